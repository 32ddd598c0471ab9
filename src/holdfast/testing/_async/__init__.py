"""The engine contract for ``AsyncLocks``. ``crew`` and ``interruptions`` have twins in ``_sync``, the rest a mirror."""

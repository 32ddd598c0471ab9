"""The engine contract for ``AsyncLocks``. ``contract.py`` is written here and mirrored to ``_sync``."""

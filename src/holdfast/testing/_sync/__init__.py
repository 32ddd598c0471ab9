"""The engine contract for ``Locks``: the mirror of ``_async``, but for ``crew`` and ``interruptions``, its twins."""

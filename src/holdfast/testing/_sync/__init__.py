"""The engine contract for ``Locks``. ``contract.py`` is the mirror of ``_async``'s; the rest is written by hand."""

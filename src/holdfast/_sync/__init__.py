"""The sync client: the mirror of ``_async``, written by ``make mirror``. Only ``body.py`` is written by hand."""

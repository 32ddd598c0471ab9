"""Where locks live: one contract (``base``), one module or package per technology.

Nothing here knows of patterns or clients.
"""

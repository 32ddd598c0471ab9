"""The client's side of the hook routes: the shim that a coding agent runs, and what puts hooks into its settings.

Python's own library only, and little of that: the shim is run for events, and its start is waited for.
"""

"""The supervisor of coding agents: what their hooks report, kept once and in order, and the state that follows from it.

No web framework here: the server's routes, its workers and a test call the same functions.
"""

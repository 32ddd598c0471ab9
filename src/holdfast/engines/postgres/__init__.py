"""``postgresql://…``: locks of everything that reaches one database, kept by the server as session advisory locks.

``connect`` opens a connection and refuses unsafe ones, ``connection`` makes round trips on it, ``lines`` are the queues
of this process, ``hub`` says who uses which connection when, ``courier`` is its thread, ``errand`` how callers ask.
"""

from .engine import PostgresEngine

__all__ = ["PostgresEngine"]

"""The async client, written by hand. ``_sync`` is its mirror: ``make mirror`` writes it, a test compares.

Only ``body.py`` is written by hand on both sides: what a task and a thread do differently when a lock is lost.
"""

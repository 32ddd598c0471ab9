"""Holdfast's own tables, all in schema ``holdfast`` of a PostgreSQL database, and how they come there.

Alembic's migrations (``env.py`` and ``versions/``), driven from here: ``holdfast db upgrade``, or these functions in a
deployment of one's own. Needs ``holdfast[db]``; a running application does not.
"""

from .migrations import Standing, sql, standing, upgrade

__all__ = ["Standing", "sql", "standing", "upgrade"]

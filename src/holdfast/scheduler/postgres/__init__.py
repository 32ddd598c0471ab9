"""The scheduler's store on PostgreSQL: ``database`` reaches it, ``store`` decides, ``statements.sql`` says it."""

from .store import PostgresStore

__all__ = ["PostgresStore"]

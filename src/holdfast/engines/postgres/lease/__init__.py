"""``postgresql://…?mode=lease``: leases in a table, for those who need what advisory locks have not: fences, detaching,
strict order, locks that outlive a connection. The decisions are functions in the database (``holdfast db upgrade``).
"""

from .backend import TableEngine

__all__ = ["TableEngine"]

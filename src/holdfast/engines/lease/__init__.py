"""What engines with leases share: locks that end by themselves, are renewed, and can outlive their process.

A server keeps the locks and their queues; ``backend`` says how it is asked, one round trip for each operation, and is
all that such an engine has to write. ``lease`` is one caller's claim, ``house`` what this process has at one server,
``attendant`` the thread that renews it, ``engine`` what the clients see.
"""

from .backend import Answer, LeaseBackend, Messages, Released, Wish
from .engine import LeaseEngine
from .house import House

__all__ = ["Answer", "House", "LeaseBackend", "LeaseEngine", "Messages", "Released", "Wish"]

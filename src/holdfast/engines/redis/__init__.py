"""``redis://…``: locks of everything that reaches one Redis or Valkey, kept by the server as leases.

The ``.lua`` files are the locks themselves; ``backend`` asks for them, for the core that all leases share. ``address``
says how the server is reached, ``link`` keeps the connections, ``wire`` is one of them, ``requests`` what is asked on
it, ``packing`` how that is written; ``listener`` is the one thread, which hears what is published to this process.
"""

from .engine import RedisEngine

__all__ = ["RedisEngine"]

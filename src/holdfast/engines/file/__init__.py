"""``file:///folder``: locks of one machine, kept by the kernel (flock) and gone with the process that held them.

``names`` says which files stand for a key, ``descriptors`` opens them so that a forked child keeps none, ``grip`` takes
and gives back one lock, ``blockers`` are the threads that wait in flock, ``engine`` puts them together.
"""

from .engine import FileEngine

__all__ = ["FileEngine"]

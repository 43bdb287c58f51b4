"""One registry over several hosts: one leader, one log in an engine that people already run, one
bridge on each host.

``log`` says what an entry is, ``state`` what a log adds up to, ``following`` how both are read.
``leading`` writes, ``bridge`` applies. ``engine`` is the interface to what keeps the log. See
docs/cluster.md.
"""

from .engine import *
from .engine import __all__ as __all__

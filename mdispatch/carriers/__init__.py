"""How routed calls get to other processes: what a carrier is, and the one for processes of the same
host.
"""

from .carrier import *
from .carrier import __all__ as __all__

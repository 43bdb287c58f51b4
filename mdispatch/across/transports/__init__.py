"""How routed calls get to other processes: what a transport is, and the one for processes of the
same host.
"""

from .transport import *
from .transport import __all__ as __all__

"""Register or verify: the Registry that users hold, and its operations.

Users import Registry and default_registry from here. ``library`` has Library, ``waiting`` the waits
for what others register. ``roles`` decides who registers and who verifies, ``register`` and
``verify`` do it.
"""

from .registry import *
from .registry import __all__ as __all__

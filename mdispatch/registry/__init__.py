"""Register or verify: the door that users hold, and what goes through it.

Users import Registry and default_registry from here. ``library`` has Library, ``waiting`` the waits
for what others register. ``roles`` decides who registers and who verifies, ``register`` and
``verify`` do it.
"""

from .registry import *
from .registry import __all__ as __all__

"""The way to libmdispatch: one contract, two bindings.

``binding`` chooses the binding that serves in this interpreter; import its names from here.
``contract`` has the types that both bindings promise, ``constants`` the contract's numbers.
"""

from .binding import *
from .binding import __all__ as __all__

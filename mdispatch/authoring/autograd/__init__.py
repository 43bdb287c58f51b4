"""Gradients: formulas of operators, and the engines that run them.

Users import from here the classes that formulas and engines work with.
"""

from .register import *
from .register import __all__ as __all__

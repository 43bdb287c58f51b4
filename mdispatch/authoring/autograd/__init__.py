"""Gradients: formulas of operators, the engines that run them, and a tape of our own.

Users import from here the classes that formulas and engines work with.
"""

from .register import *
from .register import __all__ as __all__

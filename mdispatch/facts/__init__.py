"""The shared registry, and waiting for what is not in it yet.

Other packages import the values from here: kinds, roles, a Registration. ``abc`` says what every
registry of registrations can do. ``shared`` is the registry in the memory that interpreters and
processes share; ``local`` is the registry of a single interpreter. ``native`` is the way to
libmdispatch.
"""

from .registration import *
from .registration import __all__ as __all__

"""The shared book of registrations, and waiting for what is not in it yet.

Other rooms import the values from here: kinds, roles, a Registration. ``abc`` says what every book
of facts can do. ``shared`` is the book in the memory that interpreters and processes share;
``local`` is the book of a single interpreter. ``native`` is the way to libmdispatch.
"""

from .registration import *
from .registration import __all__ as __all__

"""Every way in which mdispatch says no, and the words in which it does.

Users import the classes from here. The other rooms import ``words`` (showing a value, guessing the
name that was meant), ``places`` (where a registration comes from) and ``unraisable`` (errors that
nobody can catch). This room imports nothing of the others.
"""

from .classes import *
from .classes import __all__ as __all__

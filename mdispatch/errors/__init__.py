"""Every way in which mdispatch says no, and the words in which it does.

Users import the classes from here. The other packages import ``words`` (showing a value, guessing
the name that was meant), ``locations`` (where a registration comes from) and ``unraisable`` (errors
that nobody can catch). This package imports nothing of the others.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .classes import *
    from .classes import __all__ as __all__


def __getattr__(name: str) -> object:
    """Loads classes.py when a class is first asked for: to make them all takes a third of what the
    start of a sub-interpreter takes. So what a start loads writes ``errors.SomeError``, and imports
    no class. Main interpreters load them at their start all the same: see facts/shared.py.
    """
    value: object = getattr(__import__(f"{__name__}.classes", fromlist=[name]), name)
    globals()[name] = value
    return value

"""Dispatch keys: their numbers and names, sets of them, the devices they belong to.

Users import DispatchKey, DispatchKeySet and the functions on them from here. ``names`` defines
what can be a name, also for the schemas above.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .key_sets import *
    from .key_sets import __all__ as __all__


def __getattr__(name: str) -> object:
    """Loads key_sets.py when a name of its own is first asked for: many who import a module of this
    package need none.
    """
    value: object = getattr(__import__(f"{__name__}.key_sets", fromlist=[name]), name)
    globals()[name] = value
    return value

"""Operators' signatures: their text, their values, their comparison.

Users import parse_schema, the comparisons and the values from here. The packages above also import
``canonical`` (the text that interpreters share), ``names``, ``scanner`` and ``sizes`` (the values
that a SymInt may have beside ints).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .schemas import *
    from .schemas import __all__ as __all__


def __getattr__(name: str) -> object:
    """Loads schemas.py when a name of its own is first asked for: many who import a module of this
    package need none.
    """
    value: object = getattr(__import__(f"{__name__}.schemas", fromlist=[name]), name)
    globals()[name] = value
    return value

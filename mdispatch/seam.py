"""The seam between the core and the features.

The core imports no feature. Where a feature can take part in the core's work, there is a *point*
with a name. The package's face says in one table which function or class of a feature is the
point's *home* (``_POINTS`` in __init__.py). The core loads a home when it first comes to its point.
So a program pays for the features that it uses, and runs without those whose folder was left out.

A point has one meaning, and its home one signature: the core's code at the point shows both.

Locking: none. Each change is one step of a dict; two threads that load a point at once load the
same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: The home of each point, as "module:name". The package's face fills it.
homes: dict[str, str] = {}
_loaded: dict[str, Any] = {}


def at(point: str) -> Any:
    """The home of a point. FeatureMissingError where its folder was left out."""
    found = _loaded.get(point)
    if found is None:
        module, _, name = homes[point].partition(":")
        try:
            home = __import__(f"{__package__}.{module}", fromlist=[name])
        except ModuleNotFoundError as error:
            folder = f"{__package__}.{module.partition('.')[0]}"
            if error.name != folder:
                raise
            from .errors import FeatureMissingError

            raise FeatureMissingError(
                f"this needs {folder}, which is not installed here ({point})", folder
            ) from None
        found = _loaded.setdefault(point, getattr(home, name))
    return found


def perhaps(point: str) -> Any:
    """The same, and None where its folder was left out."""
    from .errors import FeatureMissingError

    try:
        return at(point)
    except FeatureMissingError:
        return None


def late(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a feature's face. ``modules`` maps each name to its module of the
    package, which the first use of the name loads: the core comes to one module of a feature by way
    of the face, and should not load the others.
    """

    def find(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(__import__(f"{package}.{module}", fromlist=[name]), name)

    return find

"""The values inside of lists, tuples and dicts, for operators that take anything.

A value that carries dispatch keys is a single value, even if its type derives from list.
(PyTorch: torch/utils/_pytree.py)
"""

from __future__ import annotations

import copy

from .hermetic import SafeObject, opened_for
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """The value, or the values in it at any depth, without the keys of dicts."""
    if not isinstance(value, (list, tuple, dict)) or raw_of(value) is not None:
        yield value
        return
    for item in value.values() if isinstance(value, dict) else value:
        yield from leaves(item)


def opened(value: Any, operator: str) -> Any:
    """The value with each SafeObject in it replaced by its object, for a call of ``operator``; the
    value itself if there is no SafeObject in it.

    ForeignObjectError if one is not at home here.
    """
    if isinstance(value, SafeObject):
        return opened_for(value, operator)
    if not isinstance(value, (list, tuple, dict)) or raw_of(value) is not None:
        return value
    if isinstance(value, dict):
        changed = {key: opened(item, operator) for key, item in value.items()}
        if all(changed[key] is item for key, item in value.items()):
            return value
        made = copy.copy(value)  # it may have a default, or another order
        made.update(changed)
        return made
    items = [opened(item, operator) for item in value]
    if all(new is item for new, item in zip(items, value, strict=True)):
        return value
    return getattr(type(value), "_make", type(value))(items)  # named tuples have _make

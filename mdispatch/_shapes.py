"""Shapes of meta values: tuples of sizes, some of which may depend on data."""

from __future__ import annotations

from ._nearest import shown
from ._sizes import DynamicSize
from .errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Size = int | DynamicSize
    Sizes = tuple[Size, ...]

__all__ = ["broadcast", "checked_shape", "checked_sizes", "is_same", "listed"]


def is_same(left: Size, right: Size) -> bool:
    """Whether two sizes are known to be the same; a comparison that asks for data would raise."""
    if isinstance(left, DynamicSize) == isinstance(right, DynamicSize):
        return left == right
    size, number = (left, right) if isinstance(left, DynamicSize) else (right, left)
    return isinstance(size, DynamicSize) and size.min == size.max == number


def checked_shape(given: Any) -> Sizes:
    """A shape, of sizes that can be. InvalidArgumentError for anything else."""
    sizes = checked_sizes(given, "shape")
    for size in sizes:
        most = size.max if isinstance(size, DynamicSize) else size
        if most is not None and most < 0:
            raise InvalidArgumentError(f"shape={listed(sizes)}: no size is less than 0")
    return sizes


def checked_sizes(given: Any, what: str) -> Sizes:
    """Ints and dynamic sizes, in a tuple. InvalidArgumentError for anything else."""
    if isinstance(given, (str, bytes, bytearray, set, frozenset, dict)):
        raise InvalidArgumentError(
            f"{what}={shown(given)}: a {type(given).__name__} is no size, and no tuple of sizes"
        )
    try:
        found = tuple(given)
    except TypeError:
        hint = f"; for one dimension ({shown(given)},)" if isinstance(given, int) else ""
        raise InvalidArgumentError(f"{what}={shown(given)}: it is a tuple of sizes{hint}") from None
    sizes: list[Size] = []
    for size in found:
        if isinstance(size, DynamicSize):
            sizes.append(size)
            continue
        try:
            if isinstance(size, (bool, str, bytes)):
                raise TypeError
            sizes.append(size.__index__())  # the ints of array libraries, too
        except (AttributeError, TypeError):
            raise InvalidArgumentError(
                f"{what}={shown(given)}: {shown(size)} is no size; a size is an int or a "
                "DynamicSize"
            ) from None
    return tuple(sizes)


def listed(sizes: Sizes) -> str:
    """A shape as it is written."""
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


def broadcast(left: Sizes, right: Sizes) -> Sizes:
    """The shape of the sum of two values. InvalidArgumentError where there is none."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    first = len(longer) - len(shorter)
    sizes = list(longer[:first])
    for a, b in zip(longer[first:], shorter, strict=True):
        if not is_same(a, b) and not is_same(a, 1) and not is_same(b, 1):
            raise InvalidArgumentError(
                f"values of shapes {listed(left)} and {listed(right)} cannot be added: {a} and "
                f"{b} are not known to be equal"
            )
        sizes.append(b if is_same(a, 1) else a)
    return tuple(sizes)

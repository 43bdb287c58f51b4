"""Sizes that are not known before there are data: how many elements of a value are not zero, say.

A fake kernel has no data, so it makes a DynamicSize and returns it as part of a shape. Such a size
is one that was made, and no other; it has bounds, answers the questions that these decide, and
raises for all others. It is not computed with. Where PyTorch calls the fake kernel, sizes are
PyTorch's own, which are.

(PyTorch: SymInt with an unbacked symbol. There the numbers live in a ShapeEnv and go through sympy;
here they are values, can be pickled and compared anywhere.)
"""

from __future__ import annotations

import operator
import os

from ..errors import DataDependentError, InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Number = int | float  # a float is an infinity

_INFINITY = float("inf")


def _refused(sign: str, turned: bool = False) -> Callable[[DynamicSize, object], Any]:
    """What an arithmetic operator does with a size. ``turned``: the size stands on the right."""

    def compute(self: DynamicSize, other: object) -> Any:
        if isinstance(other, (int, DynamicSize)):
            left, right = (other, self) if turned else (self, other)
            self._not_known(f"{left} {sign} {right}")
        return NotImplemented

    return compute


class DynamicSize:
    """A size that depends on data. Made by ``get_ctx().new_dynamic_size()`` in a fake kernel; it
    never changes, and can be pickled: the unpickled size is equal to the first.

    Two of them are equal if they are the same size, or if the bounds leave both the same one
    number. All others are not equal, though their numbers may turn out to be. Every other
    comparison, and every comparison with an int, is answered if the bounds decide it, and raises
    DataDependentError if they do not; so do ``int()``, ``bool()`` and ``range``. To compute with
    one by ``+``, ``-``, ``*``, ``//`` or ``%`` always raises it: make another size for the result.

    Operators take one where their schema says SymInt. (torch: SymInt)
    """

    __slots__ = ("_key", "max", "min", "name")

    #: By this a binder recognizes a size without importing the module.
    is_dynamic_size = True

    #: How it is written, as "u0".
    name: str
    #: The least number that it can be.
    min: int
    #: The greatest number that it can be; None where there is no such bound.
    max: int | None

    _key: bytes

    def __new__(cls, *args: object, **kwargs: object) -> DynamicSize:
        raise InvalidArgumentError(
            "sizes that depend on data are made in fake kernels, by get_ctx().new_dynamic_size()"
        )

    def admits(self, number: int) -> bool:
        """Whether a real size is within the bounds: one that a kernel with data returned where the
        fake kernel returned this.
        """
        return isinstance(number, int) and self.min <= number <= self._most()

    # --- comparing

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DynamicSize):
            if self.min == self.max:
                return other.min == other.max == self.min
            return self._key == other._key
        if not isinstance(other, int):
            return NotImplemented
        if self.min != self.max and self.admits(other):
            self._undecided(f"{self.name} == {other}")
        return self.min == self.max == other

    def __hash__(self) -> int:
        return hash(self.min if self.min == self.max else self._key)

    def __lt__(self, other: object) -> bool:
        return self._compared(other, "<", operator.lt)

    def __le__(self, other: object) -> bool:
        return self._compared(other, "<=", operator.le)

    def __gt__(self, other: object) -> bool:
        return self._compared(other, ">", operator.gt)

    def __ge__(self, other: object) -> bool:
        return self._compared(other, ">=", operator.ge)

    def _compared(self, other: object, sign: str, holds: Callable[[Number, Number], bool]) -> bool:
        """Whether it ``holds``: so it is where it does for the two numbers that lie furthest apart,
        the least of one side and the greatest of the other, whichever side that is; and not so
        where it does for neither pair.
        """
        if isinstance(other, DynamicSize):
            if self._key == other._key:
                return holds(0, 0)
            low, high = other.min, other._most()
        elif isinstance(other, int):
            low = high = other
        else:
            return NotImplemented  # type: ignore[no-any-return]  # as the operator that asks
        answer = holds(self.min, high)
        if answer != holds(self._most(), low):
            self._undecided(f"{self.name} {sign} {other}")
        return answer

    # --- as a number

    def __index__(self) -> int:
        if self.min == self.max:
            return self.min
        raise DataDependentError(
            f"{self} depends on data, and there is no data here: it cannot be used as a count or "
            "an index\nReturn it as part of a shape; if the kernel must know the number, the "
            "operator has to take it as an argument."
        )

    __int__ = __index__

    def __bool__(self) -> bool:
        if self.min == 0 != self.max:
            self._undecided(f"{self.name} != 0")
        return self.max != 0

    __add__, __radd__ = _refused("+"), _refused("+", turned=True)
    __sub__, __rsub__ = _refused("-"), _refused("-", turned=True)
    __mul__, __rmul__ = _refused("*"), _refused("*", turned=True)
    __floordiv__, __rfloordiv__ = _refused("//"), _refused("//", turned=True)
    __mod__, __rmod__ = _refused("%"), _refused("%", turned=True)

    def __neg__(self) -> NoReturn:
        self._not_known(f"-{self}")

    def _not_known(self, what: str) -> NoReturn:
        raise DataDependentError(
            f"{what} depends on data, and there is no data here\n  {self.name} is {_range(self)}\n"
            "Make another size for the result, with bounds of its own: new_dynamic_size(min=, "
            "max=). Only PyTorch's sizes, which a fake kernel gets where PyTorch calls it, are "
            "computed with."
        )

    def _undecided(self, question: str) -> NoReturn:
        raise DataDependentError(
            f"whether {question} depends on data, and there is no data here\n  {self.name} is "
            f"{_range(self)}\nWrite the kernel so that it does not ask, or give closer bounds when "
            "it makes the size: new_dynamic_size(min=, max=)."
        )

    def _most(self) -> Number:
        return _INFINITY if self.max is None else self.max

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"DynamicSize.{name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"DynamicSize.{name} cannot be deleted")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<dynamic size {self.name}, {_range(self)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (self._key, self.name, self.min, self.max)


def new_size(name: str, low: int, high: int | None) -> DynamicSize:
    """A new size of this name and these bounds, different from every other."""
    return _made(os.urandom(12), name, low, high)  # random: no other process makes the same


def _made(key: bytes, name: str, low: int, high: int | None) -> DynamicSize:
    made = object.__new__(DynamicSize)
    put = object.__setattr__
    put(made, "_key", key)
    put(made, "name", name)
    put(made, "min", low)
    put(made, "max", high)
    return made


def _range(size: DynamicSize) -> str:
    return f"{size.min} or more" if size.max is None else f"from {size.min} to {size.max}"

"""Sizes that are not known before there are data: how many elements of a value are not zero, say.

A fake kernel has no data, so it makes a DynamicSize and computes with it as with an int. What comes
of that is an expression: a whole number of times each of some atoms, plus a constant. So ``n + n``
is ``2 * n`` and ``n - n`` is 0. (See _size_parts.py for atoms.) Every expression has bounds,
computed from those of its atoms, and answers what follows from them; what does not, raises.

(PyTorch: SymInt with an unbacked symbol. There the numbers live in a ShapeEnv and go through sympy;
here they are values, can be pickled and compared anywhere.)
"""

from __future__ import annotations

import os

from ._size_parts import (
    INFINITY,
    Atom,
    product_of,
    quotient_of,
    remainder_of,
    sum_of,
    written,
)
from .errors import DataDependentError, InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from ._size_parts import Bounds, Number

__all__ = ["DynamicSize", "new_size"]


class DynamicSize:
    """A size that depends on data, or an expression with such sizes. Made by
    ``get_ctx().new_dynamic_size()`` in a fake kernel; it never changes.

    With ints and with each other they can be added, subtracted, multiplied, divided with ``//`` and
    ``%``, and negated. What no longer depends on data is an int. They can be pickled, and are equal
    to what they were.

    Two of them are equal where they are the same expression of the same sizes, or where the bounds
    leave each the same one number. Sizes that were made apart are else not equal, though their
    numbers may turn out to be. Every other comparison, and one
    with an int, is answered where the bounds decide it, and raises DataDependentError where they do
    not; so do ``int()``, ``bool()`` and ``range``.

    Operators take one where their schema says SymInt. (torch: SymInt)
    """

    __slots__ = ("_constant", "_key", "_terms", "max", "min", "name")

    #: How a binder knows one, without importing this.
    is_dynamic_size = True

    #: How it is written: "u0", or "2*u0 + 1".
    name: str
    #: The least number that it can be; None where there is no such bound.
    min: int | None
    #: The greatest number that it can be; None where there is no such bound.
    max: int | None

    _terms: tuple[tuple[Atom, int], ...]
    _constant: int
    _key: object

    def __new__(cls, *args: object, **kwargs: object) -> DynamicSize:
        raise InvalidArgumentError(
            "sizes that depend on data are made in fake kernels, by get_ctx().new_dynamic_size()"
        )

    def admits(self, number: int) -> bool:
        """Whether a real size fits the bounds: what a kernel with data returned, where the fake one
        returned this.
        """
        low, high = self._bounds()
        return isinstance(number, int) and low <= number <= high

    # --- computing

    def __add__(self, other: object) -> DynamicSize | int:
        return self._sum(other, 1)

    __radd__ = __add__

    def __sub__(self, other: object) -> DynamicSize | int:
        return self._sum(other, -1)

    def __rsub__(self, other: object) -> DynamicSize | int:
        return -self + other if isinstance(other, int) else NotImplemented

    def __neg__(self) -> DynamicSize | int:
        return _scaled(self, -1)

    def __pos__(self) -> DynamicSize:
        return self

    def __mul__(self, other: object) -> DynamicSize | int:
        if isinstance(other, DynamicSize):
            return _product(self, other)
        return _scaled(self, other) if isinstance(other, int) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> DynamicSize | int:
        return _divided(self, other, 0)

    def __rfloordiv__(self, other: object) -> DynamicSize | int:
        return _divided(other, self, 0) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: object) -> DynamicSize | int:
        return _divided(self, other, 1)

    def __rmod__(self, other: object) -> DynamicSize | int:
        return _divided(other, self, 1) if isinstance(other, int) else NotImplemented

    def _sum(self, other: object, sign: int) -> DynamicSize | int:
        if isinstance(other, int):
            return _made(self._terms, self._constant + sign * other)
        if not isinstance(other, DynamicSize):
            return NotImplemented  # type: ignore[no-any-return]  # as the operator that asks
        terms = dict(self._terms)
        for atom, times in other._terms:
            terms[atom] = terms.get(atom, 0) + sign * times
        return _made(terms.items(), self._constant + sign * other._constant)

    # --- comparing

    def __eq__(self, other: object) -> bool:
        low, high = self._bounds()
        if isinstance(other, DynamicSize):
            return self._key == other._key or (low == high and other._bounds() == (low, high))
        if not isinstance(other, int):
            return NotImplemented
        if low < high and low <= other <= high:
            self._undecided(f"{self.name} == {other}")
        return low == high == other

    def __hash__(self) -> int:
        return hash(self.min if self.min == self.max is not None else self._key)

    def __lt__(self, other: object) -> bool:
        return self._compared(other, "<", lambda difference: difference < 0)

    def __le__(self, other: object) -> bool:
        return self._compared(other, "<=", lambda difference: difference <= 0)

    def __gt__(self, other: object) -> bool:
        return self._compared(other, ">", lambda difference: difference > 0)

    def __ge__(self, other: object) -> bool:
        return self._compared(other, ">=", lambda difference: difference >= 0)

    def _compared(self, other: object, sign: str, holds: Callable[[Number], bool]) -> bool:
        """Whether it ``holds`` for the difference to ``other``: that is so where it does at both
        bounds, and not so where it does at neither.
        """
        difference = self._sum(other, -1)
        if difference is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]  # as the operator that asks
        low, high = _bounds_of(difference)
        if holds(low) != holds(high):
            self._undecided(f"{self.name} {sign} {other}")
        return holds(low)

    # --- as a number

    def __index__(self) -> int:
        if self.min is not None and self.min == self.max:
            return self.min
        raise DataDependentError(
            f"{self} depends on data, and there are none here: it is no number that could be "
            "counted to or indexed with\nReturn it as part of a shape, or compute with it; where "
            "the number has to be known, the operator needs it as an argument."
        )

    __int__ = __index__

    def __bool__(self) -> bool:
        low, high = self._bounds()
        if low <= 0 <= high:
            if low == high:
                return False
            self._undecided(f"{self.name} != 0")
        return True

    def _undecided(self, question: str) -> NoReturn:
        raise DataDependentError(
            f"whether {question} depends on data, and there are none here\n  {self.name} is "
            f"{_range(self)}\nWrite the kernel so that it does not ask, or say more when the size "
            "is made: new_dynamic_size(min=, max=)."
        )

    def _bounds(self) -> Bounds:
        return (
            -INFINITY if self.min is None else self.min,
            INFINITY if self.max is None else self.max,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"DynamicSize.{name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"DynamicSize.{name} cannot be deleted")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<dynamic size {self.name}, {_range(self)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (self._terms, self._constant)


def new_size(name: str, low: int, high: int | None) -> DynamicSize:
    """A size like no other, of this name and these bounds."""
    # Random, so that it is like no other in any process.
    made = _made([(Atom(os.urandom(12), name, (low, INFINITY if high is None else high)), 1)], 0)
    assert isinstance(made, DynamicSize)
    return made


# --- expressions ----------------------------------------------------------------------------------


def _made(terms: Iterable[tuple[Atom, int]], constant: int) -> DynamicSize | int:
    """The sum of the atoms, each so many times, and the constant."""
    left = tuple((atom, times) for atom, times in terms if times)
    if not left:
        return constant
    bounds: Bounds = (constant, constant)
    for atom, times in left:
        bounds = sum_of(bounds, product_of(atom.bounds, (times, times)))
    low, high = bounds
    made = object.__new__(DynamicSize)
    put = object.__setattr__
    put(made, "_terms", left)
    put(made, "_constant", constant)
    put(made, "_key", (frozenset((atom.key, times) for atom, times in left), constant))
    put(made, "name", written(left, constant))
    put(made, "min", int(low) if low > -INFINITY else None)
    put(made, "max", int(high) if high < INFINITY else None)
    return made


def _scaled(size: DynamicSize, times: int) -> DynamicSize | int:
    return _made([(atom, each * times) for atom, each in size._terms], size._constant * times)


def _product(left: DynamicSize, right: DynamicSize) -> DynamicSize | int:
    factors: tuple[Atom, ...] = ()
    times = 1
    for size in (left, right):
        if len(size._terms) == 1 and not size._constant:
            atom, each = size._terms[0]
            factors += atom.factors
            times *= each
        else:
            factors += (Atom(size._key, f"({size.name})", size._bounds()),)
    counted: dict[Atom, int] = {}
    bounds: Bounds = (1, 1)
    for factor in factors:
        counted[factor] = counted.get(factor, 0) + 1
        bounds = product_of(bounds, factor.bounds)
    key = ("*", frozenset((factor.key, count) for factor, count in counted.items()))
    text = "*".join(factor.text for factor in factors)
    return _made([(Atom(key, text, bounds, factors), times)], 0)


def _divided(left: DynamicSize | int, right: object, part: int) -> DynamicSize | int:
    """The quotient (part 0), rounded down, or the remainder (part 1)."""
    if isinstance(right, int):
        assert isinstance(left, DynamicSize)
        if right == 0:
            raise ZeroDivisionError(f"{left.name} is divided by zero")
        if all(times % right == 0 for _, times in left._terms):
            constant = divmod(left._constant, right)
            whole = [(atom, times // right) for atom, times in left._terms]
            return constant[1] if part else _made(whole, constant[0])
    elif not isinstance(right, DynamicSize):
        return NotImplemented  # type: ignore[no-any-return]  # as the operator that asks
    bounds = (remainder_of if part else quotient_of)(_bounds_of(left), _bounds_of(right))
    sign = "%" if part else "//"
    key = (sign, *(each._key if isinstance(each, DynamicSize) else each for each in (left, right)))
    text = f"({_operand(left)} {sign} {_operand(right)})"
    return _made([(Atom(key, text, bounds), 1)], 0)


def _bounds_of(size: DynamicSize | int) -> Bounds:
    return size._bounds() if isinstance(size, DynamicSize) else (size, size)


def _operand(size: DynamicSize | int) -> str:
    """As it is written on one side of a division."""
    is_sum = isinstance(size, DynamicSize) and (len(size._terms) > 1 or size._constant)
    return f"({size})" if is_sum else str(size)


def _range(size: DynamicSize) -> str:
    if size.min is not None and size.max is not None:
        return f"from {size.min} to {size.max}"
    if size.min is not None:
        return f"{size.min} or more"
    return "any number" if size.max is None else f"{size.max} or less"

"""Sizes that are not known before there are data: how many elements of a value are not zero, say.

A fake kernel has no data, so it makes a DynamicSize and computes with it as with an int. The result
is an expression: a whole number of times each of some atoms, plus a constant. So ``n + n`` is
``2 * n`` and ``n - n`` is 0. An atom is a size that was made, or a product, quotient or remainder
that is no sum of others times whole numbers. Every expression has bounds, computed from those of
its atoms, and answers the questions that the bounds decide; it raises for all others.

(PyTorch: SymInt with an unbacked symbol. There the numbers live in a ShapeEnv and go through sympy;
here they are values, can be pickled and compared anywhere.)
"""

from __future__ import annotations

import os

from ..errors import DataDependentError, InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    Number = int | float  # a float is an infinity
    #: The least and the greatest number; where there is no bound stands an infinity.
    Bounds = tuple[Number, Number]

__all__ = ["DynamicSize", "new_size"]

_INFINITY = float("inf")


class DynamicSize:
    """A size that depends on data, or an expression with such sizes. Made by
    ``get_ctx().new_dynamic_size()`` in a fake kernel; it never changes.

    With ints and with each other they can be added, subtracted, multiplied, divided with ``//`` and
    ``%``, and negated. A result that no longer depends on data is an int. They can be pickled; the
    unpickled size is equal to the first.

    Two of them are equal if they are the same expression of the same sizes, or if the bounds leave
    both the same one number. All others are not equal, though their numbers may turn out to be.
    Every other comparison, and every comparison with an int, is answered if the bounds decide it,
    and raises DataDependentError if they do not; so do ``int()``, ``bool()`` and ``range``.

    Operators take one where their schema says SymInt. (torch: SymInt)
    """

    __slots__ = ("_constant", "_key", "_terms", "max", "min", "name")

    #: By this a binder recognizes a size without importing the module.
    is_dynamic_size = True

    #: How it is written: "u0", or "2*u0 + 1".
    name: str
    #: The least number that it can be; None where there is no such bound.
    min: int | None
    #: The greatest number that it can be; None where there is no such bound.
    max: int | None

    _terms: tuple[tuple[_Atom, int], ...]
    _constant: int
    _key: object

    def __new__(cls, *args: object, **kwargs: object) -> DynamicSize:
        raise InvalidArgumentError(
            "sizes that depend on data are made in fake kernels, by get_ctx().new_dynamic_size()"
        )

    def admits(self, number: int) -> bool:
        """Whether a real size is within the bounds: one that a kernel with data returned where the
        fake kernel returned this.
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
            f"{self} depends on data, and there is no data here: it cannot be used as a count or "
            "an index\nReturn it as part of a shape, or compute with it; if the kernel must know "
            "the number, the operator has to take it as an argument."
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
            f"whether {question} depends on data, and there is no data here\n  {self.name} is "
            f"{_range(self)}\nWrite the kernel so that it does not ask, or give closer bounds when "
            "it makes the size: new_dynamic_size(min=, max=)."
        )

    def _bounds(self) -> Bounds:
        return (
            -_INFINITY if self.min is None else self.min,
            _INFINITY if self.max is None else self.max,
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
    """A new size of this name and these bounds, different from every other."""
    # The key is random, so that no other process makes the same.
    made = _made([(_Atom(os.urandom(12), name, (low, _INFINITY if high is None else high)), 1)], 0)
    assert isinstance(made, DynamicSize)
    return made


# --- expressions ----------------------------------------------------------------------------------


def _made(terms: Iterable[tuple[_Atom, int]], constant: int) -> DynamicSize | int:
    """The sum of the constant and of the atoms, each taken the given number of times."""
    left = tuple((atom, times) for atom, times in terms if times)
    if not left:
        return constant
    bounds: Bounds = (constant, constant)
    for atom, times in left:
        bounds = _sum_of(bounds, _product_of(atom.bounds, (times, times)))
    low, high = bounds
    made = object.__new__(DynamicSize)
    put = object.__setattr__
    put(made, "_terms", left)
    put(made, "_constant", constant)
    put(made, "_key", (frozenset((atom.key, times) for atom, times in left), constant))
    put(made, "name", _written(left, constant))
    put(made, "min", int(low) if low > -_INFINITY else None)
    put(made, "max", int(high) if high < _INFINITY else None)
    return made


def _scaled(size: DynamicSize, times: int) -> DynamicSize | int:
    return _made([(atom, each * times) for atom, each in size._terms], size._constant * times)


def _product(left: DynamicSize, right: DynamicSize) -> DynamicSize | int:
    factors: tuple[_Atom, ...] = ()
    times = 1
    for size in (left, right):
        if len(size._terms) == 1 and not size._constant:
            atom, each = size._terms[0]
            factors += atom.factors
            times *= each
        else:
            factors += (_Atom(size._key, f"({size.name})", size._bounds()),)
    counted: dict[_Atom, int] = {}
    bounds: Bounds = (1, 1)
    for factor in factors:
        counted[factor] = counted.get(factor, 0) + 1
        bounds = _product_of(bounds, factor.bounds)
    key = ("*", frozenset((factor.key, count) for factor, count in counted.items()))
    text = "*".join(factor.text for factor in factors)
    return _made([(_Atom(key, text, bounds, factors), times)], 0)


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
    bounds = (_remainder_of if part else _quotient_of)(_bounds_of(left), _bounds_of(right))
    sign = "%" if part else "//"
    key = (sign, *(each._key if isinstance(each, DynamicSize) else each for each in (left, right)))
    text = f"({_operand(left)} {sign} {_operand(right)})"
    return _made([(_Atom(key, text, bounds), 1)], 0)


def _bounds_of(size: DynamicSize | int) -> Bounds:
    return size._bounds() if isinstance(size, DynamicSize) else (size, size)


def _operand(size: DynamicSize | int) -> str:
    """The text of one side of a division."""
    is_sum = isinstance(size, DynamicSize) and (len(size._terms) > 1 or size._constant)
    return f"({size})" if is_sum else str(size)


def _range(size: DynamicSize) -> str:
    if size.min is not None and size.max is not None:
        return f"from {size.min} to {size.max}"
    if size.min is not None:
        return f"{size.min} or more"
    return "any number" if size.max is None else f"{size.max} or less"


# --- atoms ----------------------------------------------------------------------------------------


class _Atom:
    """A term that an expression cannot take apart. Atoms are equal if their ``key`` is;
    ``factors`` are those of a product, else the atom itself.
    """

    __slots__ = ("bounds", "factors", "key", "text")

    def __init__(
        self, key: object, text: str, bounds: Bounds, factors: tuple[_Atom, ...] = ()
    ) -> None:
        self.key = key
        self.text = text
        self.bounds = bounds
        self.factors = factors or (self,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Atom) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[object, ...]:
        factors = () if len(self.factors) == 1 else self.factors
        return _Atom, (self.key, self.text, self.bounds, factors)


# --- bounds ---------------------------------------------------------------------------------------


def _sum_of(left: Bounds, right: Bounds) -> Bounds:
    return _plus(left[0], right[0]), _plus(left[1], right[1])


def _product_of(left: Bounds, right: Bounds) -> Bounds:
    ends = [_times(a, b) for a in left for b in right]
    return min(ends), max(ends)


def _quotient_of(left: Bounds, right: Bounds) -> Bounds:
    """The bounds of a quotient that is rounded down. The divisor is never 0."""
    first, last = right
    if first < 0 < last:  # of either sign, so the quotient, too
        most = max(abs(left[0]), abs(left[1]))
        return -most, most
    ends = [_over(a, b) for a in left for b in (first or 1, last or -1)]
    return min(ends), max(ends)


def _remainder_of(left: Bounds, right: Bounds) -> Bounds:
    """The bounds of a remainder, which has the sign of the divisor and is nearer to 0."""
    first, last = right
    least, most = min(first + 1, 0), max(last - 1, 0)
    if first >= 0 and left[0] >= 0:
        most = min(most, left[1])
    return least, most


# Written out because Python's floats refuse ints of many digits, and give NaN for 0 times infinity.


def _plus(a: Number, b: Number) -> Number:
    return a if abs(a) == _INFINITY else b if abs(b) == _INFINITY else a + b


def _times(a: Number, b: Number) -> Number:
    if not a or not b:
        return 0
    if _INFINITY in (abs(a), abs(b)):
        return _INFINITY if (a > 0) == (b > 0) else -_INFINITY
    return a * b


def _over(a: Number, b: Number) -> Number:
    if abs(a) == _INFINITY:
        return a if b > 0 else -a
    if abs(b) == _INFINITY:
        return -1 if a and (a < 0) != (b < 0) else 0
    return a // b


# --- texts ----------------------------------------------------------------------------------------


def _written(terms: tuple[tuple[_Atom, int], ...], constant: int) -> str:
    """The text of the sum that ``_made`` makes."""
    text = ""
    for atom, times in terms:
        sign = "-" if times < 0 else "+"
        text += f" {sign} " if text else sign.strip("+")
        text += atom.text if abs(times) == 1 else f"{abs(times)}*{atom.text}"
    return text + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")

"""What expressions of dynamic sizes consist of: atoms, bounds, and how a sum is written.

An atom is a size that was made, or a product, quotient or remainder that is no sum of others times
whole numbers. Bounds are a pair, the least and the greatest number; where there is no bound stands
an infinity.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Number = int | float  # a float is an infinity
    Bounds = tuple[Number, Number]

__all__ = ["INFINITY", "Atom", "product_of", "quotient_of", "remainder_of", "sum_of", "written"]

INFINITY = float("inf")


class Atom:
    """What an expression cannot take apart. Equal where the ``key`` is; ``factors`` are those of a
    product, else the atom itself.
    """

    __slots__ = ("bounds", "factors", "key", "text")

    def __init__(
        self, key: object, text: str, bounds: Bounds, factors: tuple[Atom, ...] = ()
    ) -> None:
        self.key = key
        self.text = text
        self.bounds = bounds
        self.factors = factors or (self,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[object, ...]:
        factors = () if len(self.factors) == 1 else self.factors
        return Atom, (self.key, self.text, self.bounds, factors)


# --- bounds ---------------------------------------------------------------------------------------


def sum_of(left: Bounds, right: Bounds) -> Bounds:
    return _plus(left[0], right[0]), _plus(left[1], right[1])


def product_of(left: Bounds, right: Bounds) -> Bounds:
    ends = [_times(a, b) for a in left for b in right]
    return min(ends), max(ends)


def quotient_of(left: Bounds, right: Bounds) -> Bounds:
    """Of a division that is rounded down. Nothing is divided by 0."""
    first, last = right
    if first < 0 < last:  # of either sign, so the quotient, too
        most = max(abs(left[0]), abs(left[1]))
        return -most, most
    ends = [_over(a, b) for a in left for b in (first or 1, last or -1)]
    return min(ends), max(ends)


def remainder_of(left: Bounds, right: Bounds) -> Bounds:
    """It has the sign of the divisor, and is nearer to 0."""
    first, last = right
    least, most = min(first + 1, 0), max(last - 1, 0)
    if first >= 0 and left[0] >= 0:
        most = min(most, left[1])
    return least, most


# Python's floats refuse ints of many digits, and 0 times infinity is no number to them.


def _plus(a: Number, b: Number) -> Number:
    return a if abs(a) == INFINITY else b if abs(b) == INFINITY else a + b


def _times(a: Number, b: Number) -> Number:
    if not a or not b:
        return 0
    if INFINITY in (abs(a), abs(b)):
        return INFINITY if (a > 0) == (b > 0) else -INFINITY
    return a * b


def _over(a: Number, b: Number) -> Number:
    if abs(a) == INFINITY:
        return a if b > 0 else -a
    if abs(b) == INFINITY:
        return -1 if a and (a < 0) != (b < 0) else 0
    return a // b


# --- texts ----------------------------------------------------------------------------------------


def written(terms: tuple[tuple[Atom, int], ...], constant: int) -> str:
    """The sum of the atoms, each so many times, and the constant."""
    text = ""
    for atom, times in terms:
        sign = "-" if times < 0 else "+"
        text += f" {sign} " if text else sign.strip("+")
        text += atom.text if abs(times) == 1 else f"{abs(times)}*{atom.text}"
    return text + (f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else "")

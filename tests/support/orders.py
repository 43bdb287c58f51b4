"""Every order of opening and closing some units. An order has the number of each unit twice: the
first time it is opened, the second time it is closed.

Orders have numbers, smallest first as tuples, and each is made from its number. So a test that
takes one in a thousand makes only those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["number_of_orders", "order_at", "orders"]


def number_of_orders(units: int) -> int:
    return math.factorial(2 * units) >> units


def order_at(units: int, number: int) -> tuple[int, ...]:
    left = [2] * units  # of each unit's two locations
    ways, places = number_of_orders(units), 2 * units
    order = []
    for rest in range(places, 0, -1):
        for unit in range(units):
            begin_so = ways * left[unit] // rest
            if number < begin_so:
                break
            number -= begin_so
        order.append(unit)
        left[unit] -= 1
        ways = begin_so
    return tuple(order)


def orders(
    units: int, start: int = 0, stop: int | None = None, step: int = 1
) -> Iterator[tuple[int, ...]]:
    """The orders with these numbers: all of them, unless it is said otherwise."""
    last = number_of_orders(units) if stop is None else stop
    return (order_at(units, number) for number in range(start, last, step))

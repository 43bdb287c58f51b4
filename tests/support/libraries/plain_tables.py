"""A library for tables of data: twenty operators of plain Python."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from fractions import Fraction
from typing import (
    Any,
    Generic,
    NamedTuple,
    NewType,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import mdispatch as md

Row: TypeAlias = dict[str, Any]
Number: TypeAlias = int | float
RowId = NewType("RowId", int)
T = TypeVar("T")


class Point(NamedTuple):
    x: float
    y: float = 0.0


@runtime_checkable
class HasRows(Protocol):
    def rows(self) -> list[Row]: ...


class Table:
    def __init__(self, *rows: Row) -> None:
        self._rows = [*rows]

    def rows(self) -> list[Row]:
        return self._rows


class Box(Generic[T]):
    def __init__(self, content: T) -> None:
        self.content = content


@md.custom_op("tables::rows")
def rows(table: HasRows) -> list[Row]:
    return table.rows()


@md.custom_op("tables::column")
def column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


@md.custom_op("tables::where")
def where(rows: list[Row], *tests: Callable[[Row], bool]) -> list[Row]:
    return [row for row in rows if all(test(row) for test in tests)]


@md.custom_op("tables::mean")
def mean(values: Sequence[Number]) -> float:
    return statistics.fmean(values)


@md.custom_op("tables::extent")
def extent(values: Sequence[Number]) -> tuple[Number, Number]:
    return min(values), max(values)


@md.custom_op("tables::unique")
def unique(values: Iterable[Hashable]) -> list[Hashable]:
    return [*dict.fromkeys(values)]


@md.custom_op("tables::index")
def index(rows: list[Row], by: str) -> dict[Any, RowId]:
    return {row[by]: RowId(at) for at, row in enumerate(rows)}


@md.custom_op("tables::at")
def at(rows: list[Row], row: RowId) -> Row:
    return rows[row]


@md.custom_op("tables::chunks")
def chunks(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[at : at + size] for at in range(0, len(values), size))


@md.custom_op("tables::window")
def window(values: Iterable[Number], size: int = 3) -> deque[Number]:
    return deque(values, maxlen=size)


@md.custom_op("tables::ordered")
def ordered(row: Row) -> OrderedDict[str, Any]:
    return OrderedDict(sorted(row.items()))


@md.custom_op("tables::share")
def share(part: int, whole: int) -> Fraction:
    return Fraction(part, whole)


@md.custom_op("tables::moved")
def moved(point: Point, by: Point | tuple[float, float]) -> Point:
    return Point(point.x + by[0], point.y + by[1])


@md.custom_op("tables::rotated")
def rotated(point: complex, by: complex = 1j) -> complex:
    return point * by


@md.custom_op("tables::content")
def content(box: Box[int]) -> int:
    return box.content


@md.custom_op("tables::put")
def put(into: MutableMapping[str, int], key: str, value: int) -> int:
    into[key] = value
    return len(into)


@md.custom_op("tables::matrix")
def matrix(rows: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


@md.custom_op("tables::span")
def span(of: range | slice) -> tuple[int, ...]:
    return tuple(of if isinstance(of, range) else range(of.start or 0, of.stop, of.step or 1))


@md.custom_op("tables::same")
def same(value: T) -> T:
    return value


@md.custom_op("tables::checked")
def checked(value, kind: type | None = None) -> bool:  # type: ignore[no-untyped-def]
    return isinstance(value, kind or object)

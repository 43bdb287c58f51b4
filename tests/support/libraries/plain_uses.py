"""Calls of the three libraries: all answers, and the errors that a type checker finds."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import plain_tables as tables
import plain_texts as texts
import plain_web as web
from plain_web import Counter, Level, Method, Request


def answers() -> list[Any]:
    request = web.request("/a", Method.POST, accept="text")
    counter = Counter()
    row: tables.Row = {"b": 1, "a": 2}
    return [
        texts.upper("a"),
        texts.words("a bcd", longer_than=2),
        texts.join("a", "b", by="-"),
        texts.encoded("é"),
        texts.decoded(bytearray(b"a")),
        texts.counted("a b a"),
        sorted(texts.vocabulary(["a b", "c"])),
        texts.replaced("abc", {"a": "x"}),
        [*texts.lines("a\nb")],
        texts.found("a1", r"\d"),
        texts.split_at("abc", 1),
        texts.ratio("ab"),
        texts.longest(("a", "bc")),
        texts.is_blank(None),
        texts.centred("a", 3),
        texts.normal("e\u0301"),
        texts.slugs(["A b"]),
        texts.grouped(["ab", "ac", "b"], by=lambda text: text[0]),
        texts.numbers("1 2.5"),
        texts.say("{a} {b}", a=1, b="c"),
        request == Request("/a", Method.POST, (("accept", "text"),)),
        asyncio.run(answered(request)),
        web.is_safe(request),
        web.with_method(request, Method.GET).method is Method.GET,
        web.query("/?a=1&a=2"),
        web.url("a b", 1, c=2),
        web.parsed(b"[1]"),
        web.body({"a": None}),
        str(web.token(1)),
        str(web.expires(datetime.datetime(2026, 1, 1), datetime.timedelta(1))),
        web.day(datetime.date(2026, 1, 1)),
        str(web.price(Decimal(100))),
        str(web.total([Decimal(1), Decimal("0.5")])),
        web.greeting({"name": "Ann", "level": 1}, Level.HIGH),
        str(web.asset(PurePosixPath("a"), "b")),
        web.merged({"a": 1}, {"b": 2}, strict=True),
        web.paged([1, 2, 3], 2),
        web.nothing(request),
        [counter.hit(request, 2), counter.hit(request), counter.reset(), counter.seen],
        tables.rows(tables.Table(row)),
        tables.column([row], "a"),
        tables.where([row], lambda each: each["a"] > 1, lambda each: each["b"] > 1),
        tables.mean([1, 2.0]),
        tables.extent((3, 1)),
        tables.unique([1, "a", 1]),
        tables.index([row], "a"),
        tables.at([row], tables.RowId(0)),
        [*tables.chunks([1, 2, 3], 2)],
        [*tables.window(range(5))],
        [*tables.ordered(row)],
        str(tables.share(1, 2)),
        tables.moved(tables.Point(1.0), (1.0, 2.0)),
        str(tables.rotated(1)),
        tables.content(tables.Box(3)),
        tables.put({"a": 1}, "b", 2),
        tables.matrix([[1.0, 2.0], [3.0, 4.0]]),
        tables.span(slice(1, 5, 2)),
        tables.same("a"),
        tables.checked(3, int),
    ]


async def answered(request: Request) -> bytes:
    return (await web.answer(request)).body


def wrong() -> None:
    texts.upper(1)  # type: ignore[arg-type]
    texts.upper("a", by=1)  # type: ignore[call-arg]
    texts.words("a", 1)  # type: ignore[call-arg]
    texts.join("a", 1)  # type: ignore[arg-type]
    count: int = texts.upper("a")  # type: ignore[assignment]
    web.request("/", "GET")  # type: ignore[arg-type]
    Counter().hit("a")  # type: ignore[arg-type]
    tables.mean("ab")  # type: ignore[arg-type]
    tables.at([], row="a")  # type: ignore[arg-type]
    print(count)

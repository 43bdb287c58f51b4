"""A library for a web service: twenty operators of plain Python."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import pathlib
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypedDict

import mdispatch as md


class Method(enum.Enum):
    GET = "GET"
    POST = "POST"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Request:
    path: str
    method: Method = Method.GET
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass
class Answer:
    status: int = 200
    body: bytes = b""


class User(TypedDict):
    name: str
    level: int


@md.custom_op("web::request")
def request(path: str, method: Method = Method.GET, **headers: str) -> Request:
    return Request(path, method, tuple(headers.items()))


@md.custom_op("web::answer")
async def answer(request: Request, status: int = 200) -> Answer:
    return Answer(status, request.path.encode())


@md.custom_op("web::is_safe")
def is_safe(request: Request) -> bool:
    return request.method is Method.GET


@md.custom_op("web::with_method")
def with_method(request: Request, method: Method) -> Request:
    return dataclasses.replace(request, method=method)


@md.custom_op("web::query")
def query(url: str) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)


@md.custom_op("web::url")
def url(*parts: str | int, **query: str | int) -> str:
    path = "/".join(urllib.parse.quote(str(each)) for each in parts)
    return f"/{path}?{urllib.parse.urlencode(query)}" if query else f"/{path}"


@md.custom_op("web::parsed")
def parsed(body: bytes) -> Any:
    return json.loads(body)


@md.custom_op("web::body")
def body(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent).encode()


@md.custom_op("web::token")
def token(seed: int) -> uuid.UUID:
    return uuid.UUID(int=seed)


@md.custom_op("web::expires")
def expires(at: datetime.datetime, after: datetime.timedelta) -> datetime.datetime:
    return at + after


@md.custom_op("web::day")
def day(at: datetime.date) -> str:
    return at.isoformat()


@md.custom_op("web::price")
def price(amount: Decimal, tax: Decimal | None = None) -> Decimal:
    return amount * (1 + (tax or Decimal("0.19")))


@md.custom_op("web::total")
def total(prices: Sequence[Decimal]) -> Decimal:
    return sum(prices, Decimal())


@md.custom_op("web::greeting")
def greeting(user: User, level: Level = Level.LOW) -> str:
    return f"{'Hello' if user['level'] >= level else 'Hi'} {user['name']}"


@md.custom_op("web::asset")
def asset(folder: pathlib.PurePath, name: str) -> pathlib.PurePath:
    return folder / name


@md.custom_op("web::merged")
def merged(*settings: Mapping[str, Any], strict: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in settings:
        if strict and found.keys() & each.keys():
            raise ValueError(sorted(found.keys() & each.keys()))
        found |= each
    return found


@md.custom_op("web::paged")
def paged(items: list[Any], size: int = 10, defaults: dict[str, int] = {}) -> list[list[Any]]:  # noqa: B006
    size = defaults.get("size", size)
    return [items[at : at + size] for at in range(0, len(items), size)]


@md.custom_op("web::nothing")
def nothing(request: Request) -> None:
    return None


class Counter:
    def __init__(self) -> None:
        self.seen = 0

    @md.custom_op("web::Counter.hit")
    def hit(self, request: Request, times: int = 1) -> int:
        self.seen += times
        return self.seen

    @md.custom_op("web::Counter.reset")
    def reset(self) -> None:
        self.seen = 0

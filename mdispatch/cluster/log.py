"""The bytes of a cluster's log: entries and chunks of snapshots, and the chain.

    entry   "md", version, what (START, BATCH, SEAL), chain (16 bytes), length (4), zlib
    chain   the first 16 bytes of SHA-256 over the chain before, what, and the unpacked bytes
    batch   what was removed (count, then 8 bytes each), then registrations
    registration    see _HEAD; then name, text and location
    start   JSON, and so is a seal

Bytes that come from an engine are hostile. Every length is compared with a limit before anything of
that length is made; what is unpacked ends at its declared length, which has a limit. A text is
UTF-8, a kind is one that travels. Whatever contradicts this raises :class:`Garbled`. Nothing is
imported or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from functools import partial
from typing import NamedTuple

from ..facts import DEF, kind_of
from ..facts.kinds import COMPARED
from ..facts.native import fact
from ..facts.native.constants import MD_MAX_BODY, MD_MAX_NAME, MD_MAX_WHERE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

START, BATCH, SEAL = 1, 2, 3
NO_CHAIN = bytes(16)

#: Unpacked bytes of an entry or a chunk, and registrations in it, at most.
_MOST, _MOST_FACTS = 8 << 20, 1 << 14
#: How many registrations are packed together, and about how many bytes: far less.
_TOGETHER = 4096, 1 << 19
_MOST_REMOVED = 1 << 16
_HEADER = struct.Struct(">2sBB16sI")
_HEAD = struct.Struct(">QQBiIqHIH")  # leader, number, kind, key, pid, interpreter, three lengths
_COUNT = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


class Garbled(Exception):
    """Bytes from an engine that no leader has written."""


class Fact(NamedTuple):
    """A registration of a leader. ``leader`` tells this leader process from others, ``number`` is
    that of the registration in its registry.
    """

    leader: int
    number: int
    kind: int
    key: int
    pid: int
    interpreter: int
    name: str
    text: str
    origin: str

    @property
    def id(self) -> tuple[int, int]:
        return self[:2]

    @property
    def what(self) -> tuple[int, int, str]:
        return self.kind, self.key, self.name

    @property
    def generation(self) -> int:
        """See Registration.generation."""
        if self.kind != DEF or "\n" not in self.text:
            return self.number
        lines = self.text.split("\n", 3)
        return int(lines[2] or 0) or self.number if len(lines) == 4 else self.number

    @property
    def content(self) -> tuple[object, ...]:
        """What it says, whoever says it from where: without the generation."""
        return *self.what, *kind_of(self.kind).content(self.text)


#: Thousands are made at once, so without a call in Python, and unseen by the collector.
as_fact: Callable[[tuple[object, ...]], Fact] = partial(fact, Fact)


class Leader(NamedTuple):
    """A leader process, as its host told it."""

    number: int
    host: str
    pid: int


class Entry(NamedTuple):
    """An unpacked entry. ``said`` are its bytes, for the chain."""

    what: int
    chain: bytes
    said: bytes


def chained(before: bytes, what: int, said: bytes) -> bytes:
    return hashlib.sha256(before + bytes((what,)) + said).digest()[:16]


def pack(what: int, before: bytes, said: bytes) -> tuple[bytes, bytes]:
    """The entry that continues the chain, and the chain after it."""
    chain = chained(before, what, said)
    head = _HEADER.pack(b"md", 1, what, chain, len(said))
    return head + _deflated(said), chain


def unpack(entry: bytes) -> Entry:
    if len(entry) < _HEADER.size:
        raise Garbled("an entry is too short")
    magic, version, what, chain, size = _HEADER.unpack_from(entry)
    if magic != b"md" or version != 1 or what not in (START, BATCH, SEAL):
        raise Garbled("an entry is of no kind that this version of mdispatch knows")
    return Entry(what, chain, _inflated(entry[_HEADER.size :], size))


def unpack_bytes(data: bytes) -> bytes:
    """The bytes of a chunk."""
    if len(data) < _COUNT.size:
        raise Garbled("a chunk is too short")
    (size,) = _COUNT.unpack_from(data)
    return _inflated(data[_COUNT.size :], size)


def pack_bytes(said: bytes) -> bytes:
    return _COUNT.pack(len(said)) + _deflated(said)


def _deflated(said: bytes) -> bytes:
    if len(said) > 1024:
        return zlib.compress(said, 1)
    # To make a compressor of the usual size takes longer than all else that is done for an entry.
    small = zlib.compressobj(1, zlib.DEFLATED, 9, 1)
    return small.compress(said) + small.flush()


def _inflated(packed: bytes, size: int) -> bytes:
    if size > _MOST:
        raise Garbled(f"{size} bytes are declared, {_MOST} are the limit")
    inflater = zlib.decompressobj()
    try:
        said = inflater.decompress(packed, size + 1)
    except zlib.error:
        raise Garbled("it cannot be unpacked") from None
    if len(said) != size or inflater.unused_data or (not inflater.eof and size):
        raise Garbled("its length is not the declared one")
    return said


# --- registrations
# ----------------------------------------------------------------------------------------


def pack_facts(facts: Iterable[Fact]) -> bytes:
    parts = [b""]
    for leader, number, kind, key, pid, interpreter, name, text, origin in facts:
        n, t, w = name.encode(), text.encode(), origin.encode()
        lengths = len(n), len(t), len(w)
        parts += _HEAD.pack(leader, number, kind, key, pid, interpreter, *lengths), n, t, w
    parts[0] = _COUNT.pack(len(parts) // 4)
    return b"".join(parts)


def read_facts(said: bytes, at: int = 0) -> list[Fact]:
    """The registrations from ``at`` to the end. Garbled."""
    (count,) = _unpacked(_COUNT, said, at)
    at += _COUNT.size
    if count > _MOST_FACTS or count * _HEAD.size > len(said) - at:
        raise Garbled(f"{count} registrations are declared, and there are fewer")
    found = []
    head, size = _HEAD.unpack_from, _HEAD.size
    for _ in range(count):
        if at + size > len(said):
            raise Garbled("it ends too early")
        leader, number, kind, key, pid, interpreter, n, t, w = head(said, at)
        travels = kind_of(kind).hosts == COMPARED
        if not travels or not 0 < n <= MD_MAX_NAME or t > MD_MAX_BODY or w > MD_MAX_WHERE:
            raise Garbled("a registration is of no kind that travels, or too long")
        begin = at + size
        body, location = begin + n, begin + n + t
        at = location + w
        if at > len(said):
            raise Garbled("a registration ends beyond its batch")
        try:
            name, text = said[begin:body].decode(), said[body:location].decode()
            origin = said[location:at].decode()
        except UnicodeDecodeError:
            raise Garbled("a text is not UTF-8") from None
        if kind == DEF and "\n" in text and not _is_definition(text):
            raise Garbled("a definition has a text that none has")
        found.append(as_fact((leader, number, kind, key, pid, interpreter, name, text, origin)))
    if at != len(said):
        raise Garbled("something follows the registrations")
    return found


def _is_definition(text: str) -> bool:
    lines = text.split("\n", 3)
    generation = lines[2] if len(lines) == 4 else ""
    is_number = generation.isascii() and generation.isdigit() and len(generation) < 20
    return len(lines) in (1, 4) and (not generation or is_number)


def batches(removed: list[int], facts: list[Fact]) -> Iterator[tuple[list[int], list[Fact]]]:
    """A change as batches of a size that an engine takes: what was removed is in the first."""
    while len(removed) > _MOST_REMOVED:
        yield removed[:_MOST_REMOVED], []
        removed = removed[_MOST_REMOVED:]
    for some in whole(facts):
        yield removed, some
        removed = []


def whole(facts: list[Fact]) -> Iterator[list[Fact]]:
    """The registrations in parts that an engine takes; one part at least."""
    part: list[Fact] = []
    size = 0
    for each in facts:
        if part and (len(part) == _TOGETHER[0] or size > _TOGETHER[1]):
            yield part
            part, size = [], 0
        part.append(each)
        size += 4 * (len(each.name) + len(each.text) + len(each.origin))
    yield part


def pack_batch(removed: list[int], facts: list[Fact]) -> bytes:
    numbers = struct.pack(f">{len(removed)}Q", *removed)
    return _COUNT.pack(len(removed)) + numbers + pack_facts(facts)


def read_batch(said: bytes) -> tuple[tuple[int, ...], list[Fact]]:
    """What was removed, and what was registered. Garbled."""
    (count,) = _unpacked(_COUNT, said, 0)
    end = _COUNT.size + count * _NUMBER.size
    if end > len(said):
        raise Garbled(f"{count} numbers are declared, and there are fewer")
    removed = struct.unpack_from(f">{count}Q", said, _COUNT.size)
    return removed, read_facts(said, end)


def _unpacked(form: struct.Struct, said: bytes, at: int) -> tuple[int, ...]:
    if at + form.size > len(said):
        raise Garbled("it ends too early")
    return form.unpack_from(said, at)


# --- what is small --------------------------------------------------------------------------------

_LONGEST_JSON = 1 << 20


def place_on(host: str, pid: int, location: str) -> str:
    """A location with its host and process before it. Of one that is too long the end is kept."""
    by = f"{host}[{pid}]:"
    if location.isascii() and len(by) + len(location) <= MD_MAX_WHERE:
        return by + location
    return by + location.encode()[-(MD_MAX_WHERE - len(by)) :].decode(errors="ignore")


def json_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(data: bytes, most: int = _LONGEST_JSON) -> dict[str, object]:
    """An object of JSON. Garbled."""
    if len(data) > most:
        raise Garbled(f"{len(data)} bytes of JSON, {most} are the limit")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Garbled("it is no JSON") from None
    if not isinstance(value, dict):
        raise Garbled("it is no object of JSON")
    return value

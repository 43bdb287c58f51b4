"""The contract over cffi: plain values in and out, the names and results of the extension, no
logic.
"""

from __future__ import annotations

from _thread import _local

from ._cffi import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .contract import InspectionTuple, MemberTuple, RecordTuple, StatTuple, WaitTuple

_BUFFER = 8192
_RECORD = ffi.sizeof("md_record")

abi = lib.md_abi
now = lib.md_now
close = lib.md_close
leave = lib.md_leave
strike = lib.md_strike
cancel = lib.md_cancel
reap = lib.md_reap


def status_text(status: int) -> str:
    text: bytes = ffi.string(lib.md_status_text(status))
    return text.decode()


def _text(at: Any, length: int) -> str:
    text: bytes = ffi.buffer(at, length)[:]
    return text.decode("utf-8", "replace")


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _record(buffer: Any, at: int) -> tuple[RecordTuple, int]:
    r = ffi.cast("md_record *", buffer + at)
    name = at + _RECORD
    body = name + r.name_len
    where = body + r.body_len
    record = (
        r.ref,
        r.seq,
        r.kind,
        r.key,
        _text(buffer + name, r.name_len),
        _text(buffer + body, r.body_len),
        _text(buffer + where, r.where_len),
        r.pid,
        r.interp,
    )
    return record, r.size


def _records(buffer: Any, size: int) -> list[RecordTuple]:
    records: list[RecordTuple] = []
    at = 0
    while at < size:
        record, step = _record(buffer, at)
        records.append(record)
        at += step
    return records


def _needed(buffer: Any) -> int:
    return int(ffi.cast("uint64_t *", buffer)[0])


def _waited(stats: Any) -> WaitTuple:
    return stats.slept_ns, stats.sleeps, stats.wakes, stats.slices, stats.by_lease


def create(name: str | None, capacity: int) -> tuple[int, int]:
    out = ffi.new("md_registry *")
    return lib.md_create(ffi.NULL if name is None else name.encode(), capacity, out), out[0]


def elect(name: str | None, capacity: int) -> tuple[int, int]:
    out = ffi.new("md_registry *")
    return lib.md_elect(ffi.NULL if name is None else name.encode(), capacity, out), out[0]


def bridge(name: str | None, capacity: int) -> tuple[int, int]:
    out = ffi.new("md_registry *")
    return lib.md_bridge(ffi.NULL if name is None else name.encode(), capacity, out), out[0]


def attach(address: bytes, deadline_ns: int) -> tuple[int, int]:
    out = ffi.new("md_registry *")
    return lib.md_attach(address, deadline_ns, out), out[0]


def open_default(address: bytes) -> tuple[int, int]:
    out = ffi.new("md_registry *")
    return lib.md_open_default(address, out), out[0]


def address(registry: int) -> tuple[int, bytes]:
    out = ffi.new("char[]", lib.MD_MAX_ADDRESS)
    return lib.md_address(registry, out, lib.MD_MAX_ADDRESS), ffi.string(out)


def join(registry: int, interpreter: int) -> tuple[int, int, int]:
    member = ffi.new("uint64_t *")
    role = ffi.new("uint32_t *")
    return lib.md_join(registry, interpreter, member, role), member[0], role[0]


def claim(registry: int, member: int, name: bytes, where: bytes) -> tuple[int, RecordTuple | None]:
    buffer = ffi.new("char[]", _BUFFER)  # long enough: a claim has no body
    status = lib.md_claim(registry, member, name, len(name), where, len(where), buffer, _BUFFER)
    there = status in (lib.MD_OK, lib.MD_EEXIST)
    return status, _record(buffer, 0)[0] if there else None


def release(registry: int, member: int, name: bytes) -> int:
    return int(lib.md_release(registry, member, name, len(name)))


class _Published(_local):
    """What this thread has published, as the extension has it; by steps of Python, so a signal
    handler may come in between.
    """

    def __init__(self) -> None:
        self.now: list[tuple[int, int, int]] = []


_published = _Published()


def forget_published() -> None:
    _published.now = []


def published(registry: int) -> list[tuple[int, int]]:
    return [(ref, seq) for its, ref, seq in _published.now if its == registry]


def register(
    registry: int,
    member: int,
    kind: int,
    rule: int,
    key: int,
    name: bytes | str,
    body: bytes | str,
    where: bytes | str,
) -> tuple[int, int, int, RecordTuple | None]:
    name, body, where = _bytes(name), _bytes(body), _bytes(where)
    size = _BUFFER
    while True:
        buffer = ffi.new("char[]", size)
        status = lib.md_register(
            registry,
            member,
            kind,
            rule,
            key,
            name,
            len(name),
            body,
            len(body),
            where,
            len(where),
            buffer,
            size,
        )
        if status != lib.MD_ENOBUFS:
            break
        size = _needed(buffer)
    if status != lib.MD_OK:
        return status, 0, 0, _record(buffer, 0)[0] if status == lib.MD_EEXIST else None
    record = ffi.cast("md_record *", buffer)
    if len(_published.now) < 4:
        _published.now.append((registry, record.ref, record.seq))
    return status, record.ref, record.seq, None


def find(registry: int, kind: int, key: int, name: bytes | str) -> tuple[int, RecordTuple | None]:
    name = _bytes(name)
    size = _BUFFER
    while True:
        buffer = ffi.new("char[]", size)
        status = lib.md_find(registry, kind, key, name, len(name), buffer, size)
        if status != lib.MD_ENOBUFS:
            break
        size = _needed(buffer)
    return status, _record(buffer, 0)[0] if status == lib.MD_OK else None


def has(registry: int, kind: int, key: int, name: bytes | str) -> int:
    name = _bytes(name)
    status: int = lib.md_find(registry, kind, key, name, len(name), ffi.NULL, 0)
    return 0 if status == lib.MD_ENOBUFS else status  # it is there, and too large for no buffer


def await_fact(
    registry: int,
    member: int,
    kind: int,
    key: int,
    at_least: int,
    name: bytes | str,
    deadline_ns: int,
    ticket: int,
    or_elect: bool,
) -> tuple[int, RecordTuple | None, WaitTuple]:
    name = _bytes(name)
    size = _BUFFER
    stats = ffi.new("md_wait_stats *")
    wait = lib.md_await_or_elect if or_elect else lib.md_await
    while True:
        buffer = ffi.new("char[]", size)
        status = wait(
            registry,
            member,
            kind,
            key,
            at_least,
            name,
            len(name),
            deadline_ns,
            ticket,
            buffer,
            size,
            stats,
        )
        if status != lib.MD_ENOBUFS:
            break
        size = _needed(buffer)
    return status, _record(buffer, 0)[0] if status == lib.MD_OK else None, _waited(stats)


def await_change(
    registry: int, member: int, seq: int, deadline_ns: int, ticket: int
) -> tuple[int, int, WaitTuple]:
    stats = ffi.new("md_wait_stats *")
    now_seq = ffi.new("uint64_t *")
    status = lib.md_await_change(registry, member, seq, deadline_ns, ticket, now_seq, stats)
    return status, now_seq[0], _waited(stats)


def list_facts(registry: int, name: bytes | str | None) -> tuple[int, int, int, list[RecordTuple]]:
    size = _BUFFER
    used = ffi.new("size_t *")
    version = ffi.new("uint64_t *")
    node = ffi.new("uint64_t *")
    text = ffi.NULL if name is None else _bytes(name)
    length = 0 if name is None else len(text)
    while True:
        buffer = ffi.new("char[]", size)
        status = lib.md_list(registry, text, length, buffer, size, used, version, node)
        if status != lib.MD_ENOBUFS:
            break
        size = used[0] + used[0] // 8
    records = _records(buffer, used[0]) if status == lib.MD_OK else []
    return status, version[0], node[0], records


def list_since(registry: int, kind: int, since: int) -> tuple[int, int, list[RecordTuple]]:
    size = _BUFFER
    used = ffi.new("size_t *")
    live = ffi.new("uint64_t *")
    while True:
        buffer = ffi.new("char[]", size)
        status = lib.md_list_since(registry, kind, since, buffer, size, used, live)
        if status != lib.MD_ENOBUFS:
            break
        size = used[0] + used[0] // 8
    return status, live[0], _records(buffer, used[0]) if status == lib.MD_OK else []


def version(registry: int, node: int) -> int:
    out = ffi.new("uint64_t *")
    status = lib.md_version(registry, node, out)
    return int(status if status < 0 else out[0])


def members(registry: int) -> tuple[int, list[MemberTuple]]:
    count = ffi.new("size_t *")
    room = 16
    while True:
        infos = ffi.new("md_member_info[]", room)
        status = lib.md_members(registry, infos, room, count)
        if count[0] <= room:
            break
        room = count[0] + 16
    return status, _members(infos, count[0])


def _members(infos: Any, count: int) -> list[MemberTuple]:
    return [
        (
            m.interp,
            m.pid,
            m.role,
            m.alive,
            m.waiters,
            m.waiting_ns,
            m.wait_kind,
            m.wait_key,
            ffi.string(m.wait_name),
        )
        for m in infos[0:count]
    ]


def stat(registry: int) -> tuple[int, StatTuple]:
    s = ffi.new("md_stats *")
    status = lib.md_stat(registry, s)
    return status, _figures(s)


def _figures(s: Any) -> StatTuple:
    return (
        s.capacity,
        s.committed,
        s.used,
        s.facts,
        s.names,
        s.next_seq,
        s.recoveries,
        s.main_pid,
        s.main_state,
        s.processes,
        s.members,
        s.policy,
        s.idle,
        s.made,
    )


def check(registry: int) -> tuple[int, bytes]:
    report = ffi.new("char[]", 4096)
    return lib.md_check(registry, report, 4096), ffi.string(report)


def inspect(address: bytes) -> tuple[int, InspectionTuple | None, list[MemberTuple]]:
    out = ffi.new("md_inspection *")
    count = ffi.new("size_t *")
    room = 16
    while True:
        infos = ffi.new("md_member_info[]", room)
        status = lib.md_inspect(address, out, infos, room, count)
        if count[0] <= room:
            break
        room = count[0] + 16
    if status:
        return status, None, []
    seen = (
        _figures(out.stats),
        out.device,
        out.inode,
        tuple(out.kinds),
        out.attach,
        out.alive,
        out.dead,
        out.lock_tid,
        out.lock_died,
        out.torn,
        out.fixed,
        ffi.string(out.address),
    )
    return status, seen, _members(infos, count[0])


def format_of(address: bytes) -> int:
    out = ffi.new("md_inspection *")
    lib.md_inspect(address, out, ffi.NULL, 0, ffi.new("size_t *"))
    return int(out.format)


def origin(address: bytes) -> tuple[int, bytes]:
    out = ffi.new("char[]", lib.MD_MAX_ADDRESS)
    return lib.md_origin(address, out, lib.MD_MAX_ADDRESS), ffi.string(out)


def folder() -> tuple[int, bytes]:
    out = ffi.new("char[]", lib.MD_MAX_ADDRESS)
    return lib.md_folder(out, lib.MD_MAX_ADDRESS), ffi.string(out)

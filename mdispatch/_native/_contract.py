"""What both bindings promise, for the type checker. Imported for types only; see mdispatch.h for
the meaning.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

#: ref, seq, kind, key, name, body, where, pid, interpreter
RecordTuple: TypeAlias = tuple[int, int, int, int, bytes, bytes, bytes, int, int]
#: slept_ns, sleeps, wakes, slices, by_lease
WaitTuple: TypeAlias = tuple[int, int, int, int, int]
#: interpreter, pid, role, alive, waiters, waiting_ns, wait_kind, wait_key, wait_name
MemberTuple: TypeAlias = tuple[int, int, int, int, int, int, int, int, bytes]
#: capacity, committed, used, facts, names, next_seq, recoveries, main_pid, main_state, processes,
#: members
StatTuple: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int]


class Binding(Protocol):
    """Every name takes and gives plain values; a status is 0 or a negative ``md_status``."""

    def abi(self) -> int: ...
    def now(self) -> int: ...
    def status_text(self, status: int, /) -> str: ...
    def create(self, name: str | None, capacity: int, /) -> tuple[int, int]: ...
    def attach(self, address: bytes, deadline_ns: int, /) -> tuple[int, int]: ...
    def open_default(self, address: bytes, /) -> tuple[int, int]: ...
    def close(self, registry: int, /) -> int: ...
    def address(self, registry: int, /) -> tuple[int, bytes]: ...
    def join(self, registry: int, interpreter: int, /) -> tuple[int, int, int]: ...
    def leave(self, registry: int, member: int, /) -> int: ...
    def register(
        self,
        registry: int,
        member: int,
        kind: int,
        rule: int,
        key: int,
        name: bytes,
        body: bytes,
        where: bytes,
        /,
    ) -> tuple[int, RecordTuple | None]: ...
    def strike(self, registry: int, member: int, ref: int, seq: int, /) -> int: ...
    def find(
        self, registry: int, kind: int, key: int, name: bytes, /
    ) -> tuple[int, RecordTuple | None]: ...
    def await_fact(
        self,
        registry: int,
        member: int,
        kind: int,
        key: int,
        at_least: int,
        name: bytes,
        deadline_ns: int,
        ticket: int,
        /,
    ) -> tuple[int, RecordTuple | None, WaitTuple]: ...
    def await_change(
        self, registry: int, member: int, seq: int, deadline_ns: int, ticket: int, /
    ) -> tuple[int, int, WaitTuple]: ...
    def cancel(self, registry: int, member: int, ticket: int, /) -> int: ...
    def list_facts(
        self, registry: int, name: bytes | None, /
    ) -> tuple[int, int, int, list[RecordTuple]]: ...
    def list_since(
        self, registry: int, kind: int, since: int, /
    ) -> tuple[int, int, list[RecordTuple]]: ...
    def version(self, registry: int, node: int, /) -> int: ...
    def members(self, registry: int, /) -> tuple[int, list[MemberTuple]]: ...
    def stat(self, registry: int, /) -> tuple[int, StatTuple]: ...
    def check(self, registry: int, /) -> tuple[int, bytes]: ...

"""How a registry is, seen from outside.

Nothing is joined, locked or kept: what is told comes from bytes that were read (md_inspect), and
is not of one moment.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from . import _registry as facts
from ._native import native
from ._registry.status import CLOSED, DAMAGED, DIED, error_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._native._contract import InspectionTuple, MemberTuple

__all__ = ["Lock", "Member", "Seen", "look_at"]

_VERSION, _BOOT, _NAMESPACE = -16, -17, -18
_ELECT = 2  # MD_POLICY_ELECT
_ROLES = facts.ROLE_NAMES
_MAIN_STATES = ("not joined", "alive", "left", "died")
_STATES = {0: "open", CLOSED: "closed", DIED: "main died", DAMAGED: "damaged"}


@dataclass(frozen=True, slots=True)
class Member:
    """An interpreter of a process that joined. ``threads`` of it wait; the newest of them for
    ``name`` and ``key`` of ``kind`` (0: any change), for ``seconds`` by now.
    """

    pid: int
    interpreter: int
    role: str
    alive: bool
    threads: int
    kind: int
    name: str
    key: int
    seconds: float

    @property
    def waits(self) -> bool:
        return self.alive and self.threads > 0


@dataclass(frozen=True, slots=True)
class Lock:
    """Who holds a registry's lock. ``pid`` is 0 where that is not known any more."""

    tid: int
    pid: int
    stopped: bool
    died: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """One registry as it was found, or what bears a registry's name and is none that can be read:
    then ``error`` says why, ``readable`` is False and all figures are 0.

    ``state`` is "open", "closed", "main died", "damaged" or "refused", by the ``status`` that
    attaching to it meets. ``held_by`` are the processes that have an anonymous or a deleted one
    open; ``deleted`` is a named one whose file was taken away. ``alive`` and ``dead`` are processes
    that joined.
    """

    address: str
    name: str | None
    state: str
    status: int
    error: Exception | None
    readable: bool = False
    deleted: bool = False
    elects: bool = False
    main_pid: int = 0
    main_state: str = ""
    main_stopped: bool = False
    members: tuple[Member, ...] = ()
    held_by: tuple[int, ...] = ()
    alive: int = 0
    dead: int = 0
    kinds: tuple[int, ...] = (0,) * 8
    facts: int = 0
    names: int = 0
    capacity: int = 0
    committed: int = 0
    used: int = 0
    free: int = 0
    sequence: int = 0
    recoveries: int = 0
    lock: Lock | None = None
    torn: bool = False
    identity: tuple[int, int] = (0, 0)

    @property
    def operators(self) -> int:
        return self.kinds[facts.DEF]

    @property
    def waiting(self) -> list[Member]:
        """Who waits, the longest first."""
        return sorted((m for m in self.members if m.waits), key=lambda m: -m.seconds)

    @property
    def label(self) -> str:
        """What people call it, and may ask for it by."""
        return self.address if self.name is None or self.deleted else self.name

    @property
    def is_file(self) -> bool:
        """Whether it bears a name, which can be taken away."""
        return self.name is not None and not self.deleted

    @property
    def is_odd(self) -> bool:
        """Whether it is a registry whose members do not tell who is alive: who has it open does."""
        return self.is_file and self.status in (_VERSION, _BOOT, _NAMESPACE, DAMAGED)

    @property
    def is_leftover(self) -> bool:
        """Whether it is a file whose processes are all dead."""
        return self.is_file and self.state in ("open", "closed", "main died") and not self.alive


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or by who traces it."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    return False


def _process_of(tid: int) -> int:
    with suppress(OSError), open(f"/proc/{tid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    return 0


def _member(found: MemberTuple, now: int) -> Member:
    interpreter, pid, role, alive, threads, since, kind, key, name = found
    seconds = max(0.0, (now - since) / 1e9) if threads else 0.0
    text = name.decode("utf-8", "replace")
    told = _ROLES.get(role, str(role))
    return Member(pid, interpreter, told, bool(alive), threads, kind, text, key, seconds)


def _lock(tid: int, died: int, ours: bool) -> Lock | None:
    if not tid and not died:
        return None
    pid = _process_of(tid) if ours and not died else 0
    return Lock(tid, pid, bool(pid) and (_is_stopped(pid) or _is_stopped(tid)), bool(died))


def look_at(
    address: str,
    name: str | None,
    held_by: tuple[int, ...] = (),
    deleted: bool = False,
) -> Seen:
    """What is there now. ``address`` is how to get at it, the rest what is known already."""
    label = name or address
    status, found, members = native.inspect(address.encode("utf-8", "surrogateescape"))
    if found is None:
        error = error_for(status, label)
        return Seen(address, name, "refused", status, error, held_by=held_by)
    return _seen(found, members, label, name, held_by, deleted)


def _seen(
    found: InspectionTuple,
    found_members: list[MemberTuple],
    label: str,
    name: str | None,
    held_by: tuple[int, ...],
    deleted: bool,
) -> Seen:
    figures, device, inode, kinds, attach, alive, dead, tid, died, torn, fixed, at = found
    capacity, committed, used, live, names, sequence, recoveries, main, main_state, *rest = figures
    now = native.now()
    members = tuple(_member(member, now) for member in found_members)
    ours = attach != _NAMESPACE  # elsewhere, the same numbers are other processes
    return Seen(
        at.decode(),
        name,
        _STATES.get(attach, "refused"),
        attach,
        None if attach == 0 else error_for(attach, label),
        readable=True,
        deleted=deleted,
        elects=rest[-1] == _ELECT,
        main_pid=main,
        main_state=_MAIN_STATES[main_state] if main_state < len(_MAIN_STATES) else "unknown",
        main_stopped=ours and main_state < 2 and _is_stopped(main),
        members=members,
        held_by=held_by,
        alive=alive,
        dead=dead,
        kinds=kinds,
        facts=live,
        names=names,
        capacity=capacity,
        committed=committed,
        used=used,
        free=max(0, capacity - fixed - used),
        sequence=sequence,
        recoveries=recoveries,
        lock=_lock(tid, died, ours),
        torn=bool(torn),
        identity=(device, inode),
    )

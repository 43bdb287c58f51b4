"""What is wrong with a registry that was looked at, what to do about it, and the two deeds of
``mdispatch doctor``: to check one that lives, and to take away those that nobody uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _registry as facts
from ._finding import find_registries
from ._keys import DispatchKey
from ._native import native
from ._registry.status import DAMAGED, EXISTS, INTERRUPTED, LOCK, NOT_FOUND, error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._inspecting import Member, Seen

__all__ = ["Check", "Reaped", "awaited", "check", "key_name", "problems", "reap"]

_CLAIM = 7  # the kind by which a member says that it registers a namespace (elect)
_WHAT = {
    facts.LIBRARY: "the library of {0}",
    facts.DEF: "the definition of {0}",
    facts.IMPL: "a kernel of {0} at {1}",
    facts.FALLBACK: "a fallback at {1}",
    facts.PYSTUB: "the Python module of {0}",
    facts.NAME: "the name {0}",
    _CLAIM: "somebody to register {0}",
}
_REAP = "mdispatch doctor --reap removes it"


def key_name(number: int) -> str:
    """The name of a dispatch key, or the number that is none."""
    try:
        return DispatchKey(number).name
    except ValueError:
        return str(number)


def awaited(member: Member) -> str:
    """What a member waits for, in words."""
    if not member.kind:
        return "any change"
    words = _WHAT.get(member.kind, f"{{0}} (kind {member.kind}) at {{1}}")
    return words.format(member.name, key_name(member.key))


# --- what is wrong --------------------------------------------------------------------------------


def problems(seen: Seen) -> list[str]:
    """What needs attention, one sentence each; [] for a registry that is well."""
    return [*_of_its_state(seen), *_of_its_members(seen), *_of_its_memory(seen)]


def _of_its_state(seen: Seen) -> Iterator[str]:
    if seen.is_leftover:
        left = {
            "closed": "it was closed and its file was left",
            "main died": f"its main member, pid {seen.main_pid}, died and nobody of it is left",
        }
        yield f"{left.get(seen.state, 'nobody of it is left')}: {_REAP}"
    elif seen.state == "main died":
        yield (
            f"its main member, pid {seen.main_pid}, died: nobody registers in it any more. Start "
            "that again, then its workers"
        )
    elif seen.state in ("damaged", "refused"):
        after = f". {_REAP} if no process has it open" if seen.is_odd else ""
        yield f"{seen.error}{after}"
    if seen.deleted and seen.state == "open":
        yield "its file was deleted: nobody can attach to it by name any more"


def _of_its_members(seen: Seen) -> Iterator[str]:
    if seen.main_stopped:
        yield f"its main process, pid {seen.main_pid}, is stopped: kill -CONT {seen.main_pid}"
    if seen.lock is not None and seen.lock.stopped:
        yield (
            f"its lock is held by pid {seen.lock.pid}, which is stopped, and all who need it wait: "
            f"continue or end it"
        )
    if seen.lock is not None and seen.lock.died and seen.state == "open":
        yield "whoever held its lock died: the next one to take it cleans up"
    dead = sorted({member.pid for member in seen.members if not member.alive} - _main_if_dead(seen))
    if dead and seen.state == "open":
        yield (
            f"{_count(len(dead), 'process', 'processes')} died without leaving "
            f"({_pids(dead)}): the next one to join frees what it held"
        )


def _main_if_dead(seen: Seen) -> set[int]:
    return {seen.main_pid} if seen.main_state == "died" else set()


def _of_its_memory(seen: Seen) -> Iterator[str]:
    if seen.torn:
        yield "its blocks cannot be followed to their end: see mdispatch doctor --check"
    if seen.state == "open" and seen.free < seen.capacity // 20:
        yield "it is almost full: create it with a larger capacity"


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _pids(pids: Iterable[int]) -> str:
    told = [str(pid) for pid in pids]
    if len(told) > 8:
        told[8:] = ["..."]
    return f"pid {', '.join(told)}"


# --- the check ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """What the invariants said of a registry: the broken ones, or why they could not be asked."""

    broken: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_well(self) -> bool:
        return not self.broken and not self.error


def check(seen: Seen) -> Check | None:
    """Has the invariants of a live registry recomputed, under its lock, as no member of it. None
    for one that is not live: nobody attaches to that.
    """
    if seen.state != "open":
        return None
    status, handle = native.attach(seen.address.encode(), native.now())
    if status:
        return Check(error=str(error_for(status, seen.label)))
    status, report = native.check(handle)
    native.close(handle)
    broken = tuple(report.decode("utf-8", "replace").splitlines())
    if status in (0, DAMAGED) and (broken or not status):
        return Check(broken)
    return Check(error=str(error_for(status, seen.label)))


# --- the removal ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reaped:
    """A file that was taken away, or why it was not."""

    name: str
    removed: bool
    why: str


def reap(registries: Iterable[Seen] | None = None) -> list[Reaped]:
    """Takes away the files of registries that nobody uses any more: those given, or all. The core
    looks again, under the lock that creators take.
    """
    told = []
    for seen in find_registries() if registries is None else registries:
        if not (seen.is_leftover or seen.is_odd):
            continue
        name = seen.name or ""
        status = INTERRUPTED
        while status == INTERRUPTED:  # a signal whose handler went on
            status = native.reap(name.encode())
        if status == 0:
            told.append(Reaped(name, True, _died_of(seen)))
        elif status == EXISTS:
            told.append(Reaped(name, False, "somebody uses it by now"))
        elif status == LOCK:
            told.append(Reaped(name, False, "a process that creates or removes a registry hangs"))
        elif status != NOT_FOUND:
            told.append(Reaped(name, False, f"{error_for(status, name)}; some process has it open"))
    return told


def _died_of(seen: Seen) -> str:
    if seen.state == "main died":
        return f"its main member, pid {seen.main_pid}, was dead, and so was everybody else"
    if seen.is_leftover:
        return f"it was {seen.state}, and nobody of it was alive"
    return f"no process had it open; {seen.error}"

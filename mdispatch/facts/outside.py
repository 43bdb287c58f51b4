"""Registries seen from outside: which ones this user has on this machine, and how each of them is.

Named registries are files in the user's folder. Anonymous registries, and those whose file was
deleted, are found among the files that this user's processes have open.

Looking joins nothing, takes no lock and keeps nothing. It reads bytes (md_inspect) that others may
change meanwhile, so the figures are not of one moment.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import sleep

from ..errors import (
    ForeignRegistryError,
    InvalidNameError,
    RegistrarGoneError,
    RegistryNotFoundError,
)
from ..errors.words import nearest
from .differing import DIFFERS, Differs, told_by
from .folder_lock import busy_text, folder_holder
from .native import fact as record_of
from .native import native, often
from .native.constants import (
    MD_EBOOT,
    MD_EBUSY,
    MD_ECLOSED,
    MD_EDAMAGED,
    MD_EDIED,
    MD_EEXIST,
    MD_EFORMAT,
    MD_EINTR,
    MD_ENAMESPACE,
    MD_ENOENT,
    MD_EOWNER,
    MD_EVERSION,
    MD_KINDS,
    MD_POLICY_BRIDGE,
    MD_POLICY_ELECT,
)
from .opening import named_registries, without_braces
from .registration import DEF, NOTE, ROLE_NAMES, STANDING, STANDS, Registration
from .status import error_for
from .unusable import FOLDER_VARIABLE, nearest_folder, owner_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .native.contract import InspectionTuple, MemberTuple, RecordTuple

_MAIN_STATES = ("not joined", "alive", "left", "died")
_STATES = {0: "open", MD_ECLOSED: "closed", MD_EDIED: "registrar died", MD_EDAMAGED: "damaged"}
_MEMFD = "/memfd:mdispatch (deleted)"  # as the core names it
_LOOKS = 30  # 10 ms between two
_NONE_SUCH = (ForeignRegistryError, InvalidNameError, RegistrarGoneError, RegistryNotFoundError)


# --- one registry ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """An interpreter that joined. ``threads`` of its threads wait now. The newest of them has
    waited ``seconds`` for a registration of ``kind``, ``name`` and ``key`` (kind 0: for any
    change).
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
    """The thread that holds a registry's lock. ``pid`` is 0 if its process is not known."""

    tid: int
    pid: int
    stopped: bool
    died: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """One registry as it was found. If the file of that name cannot be read as a registry,
    ``readable`` is False, ``error`` says why, and all figures are 0.

    ``state`` is "open", "closed", "registrar died", "damaged" or "refused"; it follows from
    ``status``, the answer to an attempt to attach. ``held_by`` are the processes that have an
    anonymous or deleted registry open. ``deleted``: its file was taken away. ``alive`` and ``dead``
    count the processes that joined. ``names`` have registrations; ``idle`` places of names that
    have ended are kept for others. ``is_host``: only bridges register there; ``standing`` says how
    its host stands, where it is of a cluster; ``notes`` are those of all members, oldest first;
    ``differing``: who differs from what is registered, and goes on; ``made``: when, by the
    monotonic clock in nanoseconds.
    """

    address: str
    name: str | None
    state: str
    status: int
    error: Exception | None
    readable: bool = False
    deleted: bool = False
    elects: bool = False
    is_host: bool = False
    standing: Registration | None = None
    notes: tuple[Registration, ...] = ()
    differing: tuple[Differs, ...] = ()
    registrar_pid: int = 0
    registrar_state: str = ""
    registrar_stopped: bool = False
    members: tuple[Member, ...] = ()
    held_by: tuple[int, ...] = ()
    alive: int = 0
    dead: int = 0
    kinds: tuple[int, ...] = (0,) * MD_KINDS
    facts: int = 0
    names: int = 0
    idle: int = 0
    capacity: int = 0
    committed: int = 0
    used: int = 0
    free: int = 0
    sequence: int = 0
    recoveries: int = 0
    lock: Lock | None = None
    torn: bool = False
    made: int = 0
    identity: tuple[int, int] = (0, 0)

    @property
    def bridge_pid(self) -> int:
        """The bridge that serves this host, where it has said how the host stands and is alive; 0
        if there is none.
        """
        pid = 0 if self.standing is None else self.standing.pid
        is_alive = any(m.pid == pid and m.alive and m.role == "bridge" for m in self.members)
        return pid if is_alive else 0

    @property
    def operators(self) -> int:
        return self.kinds[DEF]

    @property
    def waiting(self) -> list[Member]:
        """The members that wait, the longest wait first."""
        return sorted((m for m in self.members if m.waits), key=lambda m: -m.seconds)

    @property
    def label(self) -> str:
        """The name or address under which people know it and can ask for it."""
        return self.address if self.name is None or self.deleted else self.name

    @property
    def is_file(self) -> bool:
        """Whether there is a file of its name, which can be removed."""
        return self.name is not None and not self.deleted

    @property
    def is_odd(self) -> bool:
        """Whether its list of members cannot be believed: only open files show who uses it."""
        return self.is_file and self.status in (MD_EVERSION, MD_EBOOT, MD_ENAMESPACE, MD_EDAMAGED)

    @property
    def is_leftover(self) -> bool:
        """Whether it is the file of a registry whose processes are all dead."""
        return (
            self.is_file and self.state in ("open", "closed", "registrar died") and not self.alive
        )


def is_stopped(pid: int) -> bool:
    """Whether a signal or a tracer has stopped a process."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    return False


def _process_of(tid: int) -> int:
    with suppress(OSError), open(f"/proc/{tid}/status", "rb") as file:
        for line in file:
            if not line.startswith(b"Tgid:"):
                continue
            return int(line[5:])
    return 0


def _member(found: MemberTuple, now: int) -> Member:
    interpreter, pid, role, alive, threads, since, kind, key, name = found
    seconds = max(0.0, (now - since) / 1e9) if threads else 0.0
    text = name.decode("utf-8", "replace")
    told = ROLE_NAMES.get(role, str(role))
    return Member(pid, interpreter, told, bool(alive), threads, kind, text, key, seconds)


def _lock(tid: int, died: int, ours: bool) -> Lock | None:
    if not tid and not died:
        return None
    pid = _process_of(tid) if ours and not died else 0
    return Lock(tid, pid, bool(pid) and (is_stopped(pid) or is_stopped(tid)), bool(died))


def look_at(
    address: str,
    name: str | None,
    held_by: tuple[int, ...] = (),
    deleted: bool = False,
) -> Seen:
    """Looks at one registry. ``address`` says where it is; the rest is what is known already."""
    label = name or address
    status, found, members = native.inspect(address.encode("utf-8", "surrogateescape"))
    if found is None:
        error = error_for(status, label)
        return Seen(address, name, "refused", status, error, held_by=held_by)
    return _seen(found, members, label, name, held_by, deleted)


@contextmanager
def _opened(address: bytes) -> Iterator[int | None]:
    """Opens a registry to read registrations, and joins nothing. None where that cannot be."""
    status, handle = native.attach(address, 0)
    if status:
        yield None
        return
    try:
        yield handle
    finally:
        native.close(handle)


def registrations_of(address: str, kind: int = 0) -> list[Registration]:
    """All registrations of a registry, or those of a kind, oldest first; [] if nobody can attach to
    it.
    """
    records: list[RecordTuple] = []
    with _opened(address.encode()) as handle:
        if handle is not None and kind:
            records = often.list_since(handle, kind, 0)[2]
        elif handle is not None:
            records = often.list_facts(handle, None)[3]
    return [record_of(Registration, record) for record in records]


def alive_among(members: tuple[Member, ...]) -> set[tuple[int, int]]:
    """The members that are alive: process and interpreter."""
    return {(each.pid, each.interpreter) for each in members if each.alive}


def _standing(address: bytes) -> Registration | None:
    with _opened(address) as handle:
        record = None if handle is None else often.find(handle, STANDING, 0, STANDS)[1]
    return None if record is None else record_of(Registration, record)


def _seen(
    found: InspectionTuple,
    found_members: list[MemberTuple],
    label: str,
    name: str | None,
    held_by: tuple[int, ...],
    deleted: bool,
) -> Seen:
    figures, device, inode, kinds, attach, alive, dead, tid, died, torn, fixed, at = found
    capacity, committed, used, live, names, sequence, recoveries, *rest = figures
    main, registrar_state, *_, policy, idle, made = rest
    now = native.now()
    members = tuple(_member(member, now) for member in found_members)
    notes = registrations_of(at.decode(), NOTE) if attach == 0 and kinds[NOTE] > 0 else []
    ours = attach != MD_ENAMESPACE  # in another namespace the same numbers are other processes
    return Seen(
        at.decode(),
        name,
        _STATES.get(attach, "refused"),
        attach,
        None if attach == 0 else error_for(attach, label),
        readable=True,
        deleted=deleted,
        elects=policy == MD_POLICY_ELECT,
        is_host=policy == MD_POLICY_BRIDGE,
        standing=_standing(at) if attach == 0 and kinds[STANDING] else None,
        notes=tuple(notes),
        differing=told_by([each for each in notes if each.name == DIFFERS], alive_among(members)),
        registrar_pid=main,
        registrar_state=_MAIN_STATES[registrar_state]
        if registrar_state < len(_MAIN_STATES)
        else "unknown",
        registrar_stopped=ours and registrar_state < 2 and is_stopped(main),
        members=members,
        held_by=held_by,
        alive=alive,
        dead=dead,
        kinds=kinds,
        facts=live,
        names=names,
        idle=idle,
        capacity=capacity,
        committed=committed,
        used=used,
        free=max(0, capacity - fixed - used),
        sequence=sequence,
        recoveries=recoveries,
        lock=_lock(tid, died, ours),
        torn=bool(torn),
        made=made,
        identity=(device, inode),
    )


# --- all of them ----------------------------------------------------------------------------------


def folder() -> str:
    """The path of the folder with this user's named registries, whether or not it is there."""
    return os.fsdecode(native.folder()[1])


def folder_problem() -> str | None:
    """Why the folder of named registries cannot be read, or why nothing can be made in it. None if
    it is well, or does not exist yet.
    """
    status, path = native.folder()
    if status == MD_EOWNER:
        return f"the folder of named registries is not used: {owner_words()}"
    if status not in (0, MD_ENOENT):
        return str(error_for(status, os.fsdecode(path)))
    there = nearest_folder(os.fsdecode(path))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return (
            f"no named registry can be made: {there} is read-only, or this user may not write "
            f"there. Change that, or let {FOLDER_VARIABLE} name another folder (docs/security.md)"
        )
    return busy_text() if _is_kept_locked() else None


def _is_kept_locked() -> bool:
    """Whether one process keeps the folder locked: others have the lock for less than a moment."""
    first = folder_holder()
    if first is None:
        return False
    for _ in range(_LOOKS):
        sleep(0.01)
        if folder_holder() != first:
            return False
    return True


def find_registries() -> list[Seen]:
    """All registries of this user: the named ones by name, then those that processes have open."""
    named = list(_named())
    known = {seen.identity for seen in named}
    return named + [seen for seen in _open_somewhere() if seen.identity not in known]


def find_one(label: str) -> Seen:
    """The registry of a name or an address. If there is none, it raises the error of an attempt to
    attach: InvalidNameError, RegistryNotFoundError, RegistrarGoneError (no such process),
    ForeignRegistryError.
    """
    label = without_braces(label)
    if label.startswith("fd:"):
        seen = look_at(label, None)
        same = (other for other in find_registries() if other.identity == seen.identity)
        seen = next(same, seen) if seen.readable else seen
    else:
        name = label.removeprefix("shm:")
        seen = look_at(f"shm:{name}", name)
    if isinstance(seen.error, _NONE_SUCH) and not seen.readable:
        raise seen.error
    return seen


def named_like(name: str) -> tuple[str, ...]:
    """The names most like one that does not exist, of registries in which a process is alive. Its
    own editions come first.
    """
    names = named_registries()
    near = [each for each in names if each.startswith(f"{name.partition('@')[0]}@")]
    near += [each for each in nearest(name, names, limit=20) if each not in near]
    return tuple(each for each in near if look_at(f"shm:{each}", each).alive)[:3]


def _named() -> Iterator[Seen]:
    inside = folder()
    for name in named_registries():
        seen = look_at(f"shm:{name}", name)
        # A file that was removed since it was listed is left out.
        if seen.readable or os.path.lexists(os.path.join(inside, name)):
            yield seen


def _open_somewhere() -> Iterator[Seen]:
    """Each registry that processes of this user have open and that no file leads to, once."""
    holders: dict[tuple[int, int], dict[int, tuple[int, str]]] = {}
    for pid, number, link, identity in _descriptors():
        holders.setdefault(identity, {}).setdefault(pid, (number, link))
    for found in holders.values():
        names = sorted(filter(None, (_name_in(link) for _, link in found.values())))
        deleted = any(link != _MEMFD for _, link in found.values())
        for pid, (number, _) in found.items():
            seen = look_at(f"fd:{pid}:{number}", names[0] if names else None, tuple(found), deleted)
            if not seen.readable and not os.path.exists(f"/proc/{pid}/fd/{number}"):
                continue  # this process has closed it meanwhile
            if not _is_being_made(seen):
                yield _at_main(seen, found)
            break


def _is_being_made(seen: Seen) -> bool:
    """Whether its maker has not finished: it has no header yet, or no name yet."""
    return seen.status == MD_EFORMAT or (seen.deleted and seen.registrar_state == "not joined")


def _at_main(seen: Seen, found: dict[int, tuple[int, str]]) -> Seen:
    """The same under the address that leads through the registrar, which lasts longest."""
    if seen.registrar_pid not in found:
        return seen
    _, _, _, rest = seen.address.split(":", 3)
    return replace(seen, address=f"fd:{seen.registrar_pid}:{found[seen.registrar_pid][0]}:{rest}")


def _name_in(link: str) -> str | None:
    """The name that a deleted file had in the folder, if the link still shows it."""
    name = os.path.basename(link).removesuffix(" (deleted)")
    return None if link == _MEMFD or name.startswith("#") else name


def _folder_in_links() -> str:
    """The start of every link to a file of the folder, symbolic links resolved as in /proc. "" if
    there can be no folder.
    """
    path = folder()
    return path and os.path.join(os.path.realpath(path), "")


def _descriptors() -> Iterator[tuple[int, int, str, tuple[int, int]]]:
    """(pid, descriptor, link, device and inode) of each open file that has no name any more and
    may be a registry.
    """
    folder = _folder_in_links()
    user = os.geteuid()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == os.getpid():
            continue
        with suppress(OSError):  # the process ended, or does not let us look
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):
                    link = os.readlink(path)
                    if link != _MEMFD and not (folder and link.startswith(folder)):
                        continue
                    at = os.stat(path)
                    if at.st_uid == user and not at.st_nlink:
                        yield pid, int(number), link, (at.st_dev, at.st_ino)


# --- programs whose processes share nothing -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apart:
    """Processes of one program, started by one process, each of which has a registry of its own."""

    program: str
    pids: tuple[int, ...]


def apart(registries: Iterable[Seen]) -> list[Apart]:
    """The programs whose processes have an anonymous registry each, in which nobody else is. Their
    command lines are the same but for numbers: a pool gives each of its processes some.
    """
    found: dict[tuple[int, bytes], dict[int, str]] = {}
    for seen in registries:
        if seen.name is None and seen.state == "open" and seen.alive == 1 and not seen.elects:
            with suppress(OSError, ValueError):  # it has ended meanwhile
                parent, words = _started(seen.registrar_pid)
                alike = bytes(c for c in words if c not in b"0123456789")
                told = words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
                found.setdefault((parent, alike), {})[seen.registrar_pid] = told
    several = [same for same in found.values() if len(same) > 1]
    return [Apart(next(iter(same.values())), tuple(sorted(same))) for same in several]


def _started(pid: int) -> tuple[int, bytes]:
    """The parent of a process, and its command line."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        parent = int(file.read().rpartition(b") ")[2].split()[1])
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return parent, file.read()


# --- the check ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """The broken invariants of a registry, or why they could not be recomputed."""

    broken: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_well(self) -> bool:
        return not self.broken and not self.error


def check(seen: Seen) -> Check | None:
    """Recomputes the invariants of a live registry, under its lock and without joining it. Returns
    None for a registry that is not live, since nobody can attach to it.
    """
    if seen.state != "open":
        return None
    status, handle = native.attach(seen.address.encode(), native.now())
    if status:
        return Check(error=str(error_for(status, seen.label)))
    status, report = native.check(handle)
    native.close(handle)
    broken = tuple(report.decode("utf-8", "replace").splitlines())
    if status in (0, MD_EDAMAGED) and (broken or not status):
        return Check(broken)
    return Check(error=str(error_for(status, seen.label)))


# --- the removal ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reaped:
    """A file that was removed, or the reason why it was not."""

    name: str
    removed: bool
    why: str


def remove_unused(name: str) -> int:
    """Removes the file of a named registry, if nobody is alive in it. Returns the core's status."""
    status = MD_EINTR
    while status == MD_EINTR:  # a signal came, and its handler returned
        status = native.reap(name.encode())
    return status


def to_reap(registries: Iterable[Seen]) -> list[Reaped]:
    """What :func:`reap` would look at, and why; nothing is removed."""
    told = []
    for seen in registries:
        if seen.is_leftover:
            told.append(Reaped(seen.name or "", False, _died_of(seen)))
        elif seen.is_odd:
            words = f"if no process has it open; {seen.error}"
            told.append(Reaped(seen.name or "", False, words))
    return told


def reap(registries: Iterable[Seen] | None = None) -> list[Reaped]:
    """Removes the files of registries that nobody uses any more: of those given, or of all. The
    core looks again before it removes one, under the lock that creators take.
    """
    told = []
    for seen in find_registries() if registries is None else registries:
        if not (seen.is_leftover or seen.is_odd):
            continue
        name = seen.name or ""
        status = remove_unused(name)
        if status == 0:
            told.append(Reaped(name, True, _died_of(seen)))
        elif status == MD_EEXIST:
            told.append(Reaped(name, False, "somebody uses it by now"))
        elif status == MD_EBUSY:
            told.append(Reaped(name, False, busy_text()))
            break  # each of the others would wait as long
        elif status != MD_ENOENT:
            told.append(Reaped(name, False, f"{error_for(status, name)}; some process has it open"))
    return told


def _died_of(seen: Seen) -> str:
    if seen.state == "registrar died":
        return f"its registrar, pid {seen.registrar_pid}, was dead, and so was everybody else"
    if seen.is_leftover:
        return f"it was {seen.state}, and nobody of it was alive"
    return f"no process had it open; {seen.error}"

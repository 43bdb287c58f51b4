"""The stage on which processes meet hostile files. Run as a script: a process with one thread that
reads one request on each line of its standard input, and answers with one line.

For each kind it forks a child, which meets the kind, looks whether anything is left behind, and
reports the outcome and the time. The stage reports a child that dies by a signal or does not end.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import patience
from hostile_files import FINE, FOLDER, KINDS, Bytes, Kind

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.facts.native import native, which
from mdispatch.facts.opening import ENVIRONMENT
from mdispatch.registry import registry

LIMIT = 0.1  # seconds. After that it tries again, since a busy machine adds to the time
TRIES = 8
HANG = patience.limit(20.0)
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)


# --- in the child ---------------------------------------------------------------------------------


def outcome_of(error: BaseException | None) -> str:
    if error is None:
        return FINE
    name = type(error).__name__
    typed = isinstance(error, errors.MdispatchError) and name in errors.__all__
    return name if typed else f"{name}: {error}"


def timed(function, tries: int = TRIES) -> tuple[str, float, str]:
    """The outcome, the shortest time, and the error's words."""
    least, words = float("inf"), ""
    for _ in range(tries):
        began = time.perf_counter()
        try:
            close = function()
            error = None
        except BaseException as raised:
            close, error = None, raised
        least = min(least, time.perf_counter() - began)
        outcome, words = outcome_of(error), str(error)
        if close is not None:
            close()
        if least < LIMIT:
            break
    return outcome, least, words


def left_behind() -> list[str]:
    """The files that this process has open or mapped."""
    there = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if "/libffi." not in target:  # which keeps its own file open after its first use
                there.append(f"{fd} {target}")
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].startswith((str(FOLDER), "/memfd")):
            there.append(f"{place} {name[0]}")
    return sorted(there)


def attach(address: str):
    return md.Registry.attach(address, timeout=0).close


def create(name: str):
    return md.Registry.create(name, capacity=1 << 20).close


def default(address: str):
    os.environ.pop(ENVIRONMENT, None)
    if address:
        os.environ[ENVIRONMENT] = address
    there = md.default_registry()

    def close() -> None:
        there.close()
        registry.default = None

    return close


def uses(there: md.Registry, name: str):
    """Every call that reads, every wait with a near deadline, and two calls that would change
    registrations.
    """
    shared = there.dispatcher.facts
    return {
        "members": shared.members,
        "stat": shared.stat,
        "list": shared.registrations,
        "list name": lambda: shared.registrations(name),
        "list since": lambda: shared.registrations_since(facts.IMPL, 3),
        "list of all kinds": lambda: shared.registrations_since(0, 0),
        "find": lambda: shared.find(facts.DEF, 0, name),
        "find newest": lambda: shared.find(facts.IMPL, 12, name),
        "has": lambda: shared.has(facts.DEF, 0, name),
        "find nothing": lambda: shared.find(facts.DEF, 0, "not::there"),
        "version": lambda: shared.version(shared.registrations(name)[1]),
        "version of anything": lambda: shared.version(12345),
        "wait": lambda: shared.await_fact(facts.DEF, 0, name, 1, 0.002),
        "wait in vain": lambda: shared.await_fact(facts.DEF, 0, "not::there", 1, 0.002),
        "wait for many": lambda: shared.await_fact(facts.IMPL, 12, name, 99, 0.002),
        "wait for a change": lambda: shared.await_change(0, 0.002),
        "check": shared.check,
        "operators": there.operators,
        "namespaces": there.namespaces,
        "dangling": there.dangling_implementations,
        "registrations": lambda: there.registrations(name),
        "dump": lambda: there.dump(name),
        "table": lambda: there.table(name),
        "dump table": lambda: there.dump_table(name),
        "why": lambda: there.why(name, ("CPU",)),
        "look up": lambda: there.ops.find(name),
        "invariants": there.check_invariants,
        "register": lambda: shared.register(facts.DEF, 0, "new::op", "new::op() -> ()", "here"),
        "remove": lambda: shared.remove(facts.Registration(5, 5, 1, 0, "", "", "", 0, 0)),
    }


def use_all(there: md.Registry, name: str) -> dict:
    """The outcome of each of them, and how long it took."""
    calls = uses(there, name).items()
    return {what: timed(lambda call=call: (call(), None)[1]) for what, call in calls}


def use(address: str, name: str = "many::op") -> dict:
    try:
        there = md.Registry.attach(address, timeout=0)
    except errors.MdispatchError as error:
        return {"attach": (outcome_of(error), 0.0, str(error))}
    with there:
        return use_all(there, name)


def meet(kind: Kind, address: str, name: str, patient: bool) -> dict:
    """All actions, in an order in which none disturbs the next."""
    limits = [(limit, resource.getrlimit(limit)) for limit in LIMITS]
    before = left_behind()
    if kind.within is not None:
        kind.within()
        # In another mount namespace, or a chroot, the same files may have other paths. (Looking
        # takes a descriptor, and there may be none.)
        with contextlib.suppress(OSError):
            now = left_behind()
            before = now if len(now) == len(before) else before
    found = {"attach": timed(lambda: attach(address))}
    if found["attach"][0] == FINE:
        found["use"] = use(address)
    if patient or not kind.waits:
        tries = 1 if kind.waits else TRIES
        found["default"] = timed(lambda: default("" if kind.is_process else address), tries)
    found["create"] = timed(lambda: create(name))
    for limit, values in limits:
        resource.setrlimit(limit, values)
    return {"found": found, "left": sorted(set(left_behind()) - set(before))}


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which a change of user resets


# --- in the stage ---------------------------------------------------------------------------------


def in_a_child(function) -> dict:
    out, come = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        code = 1
        try:
            os.dup2(2, 1)
            told = json.dumps(function())
            with open(come, "w") as file:
                file.write(told)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(come)
    told = b""
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        if not select.select([out], [], [], max(0.0, end - time.monotonic()))[0]:
            break
        more = os.read(out, 1 << 16)
        if not more:
            break
        told += more
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(out)
    if time.monotonic() >= end:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, **(json.loads(told) if told else {})}


class Stage:
    def __init__(self) -> None:
        self.address, self.model = make_model()
        self.count = 0
        # Imports the modules that are otherwise imported late: children may be unable to.
        assert "check" in use(self.address)
        with md.Registry.attach(self.address) as there:
            for call in uses(there, "nothing::here").values():
                with contextlib.suppress(errors.MdispatchError):
                    call()

    def do(self, what: str, patient: bool) -> dict:
        kind = KINDS[what]
        self.count += 1
        name = f"hostile-{os.getpid()}-{self.count}"
        user = 50_000 + os.getpid() % 10_000 if kind.user else 0
        folder = FOLDER.with_name(f"mdispatch-{user}") if user else FOLDER
        made = kind.make(folder / name, Bytes(self.model))
        address = next(made) if inspect.isgenerator(made) else made
        if address is None:
            address = name
        elif not kind.is_process:
            name = address

        def child() -> dict:
            if user:
                become(user)
            return meet(kind, address, name, patient)

        try:
            return in_a_child(child)
        finally:
            if inspect.isgenerator(made):
                assert next(made, None) is None
            clear(folder, name)


def clear(folder: Path, name: str) -> None:
    if "/" in name or "\0" in name or not name.startswith("hostile"):
        name = "hostile"
    path = folder / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    if folder != FOLDER:
        with contextlib.suppress(OSError):
            folder.rmdir()


def make_model() -> tuple[str, Bytes]:
    """A registry whose registrar is the stage. It is not made by md.Registry, since each child
    would join that again.
    """
    status, handle = native.create(None, 1 << 20)
    assert status == 0
    _, member, role = native.join(handle, 0)
    assert role == facts.MAIN

    def put(kind: int, key: int, name: bytes, body: bytes) -> None:
        rule = facts.kind_of(kind).rule
        status, *_ = native.register(handle, member, kind, rule, key, name, body, b"model.py:1")
        assert status == 0

    put(facts.LIBRARY, 0, b"many", b"")
    for i in range(6):
        put(facts.IMPL, 10 + i, b"many::op", b"kernel %d" % i)
    for name in (b"other::op", b"many::op"):
        put(facts.DEF, 0, name, name + b"(Tensor x) -> int")
    address = native.address(handle)[1].decode()
    return address, Bytes(os.pread(int(address.split(":")[2]), 1 << 20, 0))


def main() -> None:
    os.environ.pop(ENVIRONMENT, None)
    FOLDER.mkdir(0o700, exist_ok=True)
    stage = Stage()
    print(json.dumps({"binding": which}), flush=True)
    for line in sys.stdin:
        try:
            met = stage.do(*json.loads(line))
        except Exception:
            met = {"code": "the stage failed", "words": traceback.format_exc()}
        print(json.dumps(met), flush=True)


if __name__ == "__main__":
    main()

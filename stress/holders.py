"""Killed holders of the lock. A registry with thousands of registrations is checked by processes
that do nothing else: a check holds the lock throughout, so most of them are killed in it. The
registrar registers, and another process waits for that, meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time

from crew_roles import came_of
from measure import ALLOWED_NS, HANG_SECONDS, Dice, Figures, queued_ns, queued_since

import mdispatch as md

FACTS = 4000


def fork(body, *args) -> tuple[int, int]:
    """A child that does this, and the end of the pipe into which it writes."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        os.close(read)
        body(write, *args)
        os._exit(0)
    finally:
        os._exit(2)


def check_for_ever(write: int, name: str) -> None:
    """A victim."""
    with md.Registry.attach(name, timeout=HANG_SECONDS) as registry:
        os.write(write, b"x")
        while not registry.dispatcher.facts.check():
            pass
        os.write(write, b"!")


def nurse(write: int, orders: int, name: str, dice: Dice) -> None:
    """Forks victims, one ahead of time, and kills one for each order. This process has one thread:
    the registrar's, which has some, is not to fork.
    """
    pid, ready = fork(check_for_ever, name)
    while os.read(orders, 1):
        assert os.read(ready, 1) == b"x"
        os.close(ready)
        following = fork(check_for_ever, name)
        time.sleep(dice.below(2000) / 1e6)
        turn = time.monotonic_ns() + dice.below(300_000)
        while time.monotonic_ns() < turn:
            pass
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.write(write, b"k" if status == signal.SIGKILL else b"!")
        pid, ready = following
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wait_for_ever(write: int, name: str, dice: Dice) -> None:
    """Waits for what comes and goes until the registry is closed; then tells how that was."""
    figures, late = Figures(), []
    with md.Registry.attach(name, timeout=HANG_SECONDS) as registry:
        while True:
            queued, began = queued_ns(), time.monotonic_ns()
            try:
                found = md.wait_for_def(f"w::f{dice.below(4)}", None, registry=registry)
            except md.errors.RegistryClosedError:
                break
            end = time.monotonic_ns()
            came = max(began, came_of(found))
            figures.count("operations")
            figures.latency("define to waiter", end - came)
            if end - came > ALLOWED_NS:
                figures.count("late by the clock")
                if end - came - (missing := queued_since(queued)) > ALLOWED_NS:
                    late.append((came, end, missing))
    with os.fdopen(write, "w") as file:
        json.dump({"figures": figures.as_dict(), "late": late}, file)


def register_for_ever(
    registry: md.Registry, figures: Figures, faults: list[str], stop: threading.Event
) -> dict[int, int]:
    """Registers against those who hold the lock; when each definition returned, by its beginning.
    A recovery takes its time: it looks at every registration.
    """
    returned: dict[int, int] = {}
    while not stop.is_set():
        library = md.Library("w", "DEF", registry=registry)
        for i in range(4):
            queued, began = queued_ns(), time.monotonic_ns()
            library.define(f"f{i}(Tensor x, int began={began}) -> Tensor")
            returned[began] = time.monotonic_ns()
            figures.count("operations")
            figures.latency("registration", returned[began] - began)
            if returned[began] - began - queued_since(queued) > 2_000_000_000:
                faults.append(f"a registration took {(returned[began] - began) / 1e6:.1f} ms")
        library.close()
    return returned


def killed_holders(
    figures: Figures, name: str, seed: int, seconds: float, rounds: int
) -> dict[str, int]:
    """This process is the registrar; it forks before it has threads."""
    end = time.monotonic() + seconds
    orders_read, orders = os.pipe()
    os.set_inheritable(orders, False)
    waiter, waiters_figures = fork(wait_for_ever, name, Dice(seed + 1))
    nursery, answers = fork(leave_alone, orders, nurse, orders_read, name, Dice(seed + 2))
    faults: list[str] = []
    returned: dict[int, int] = {}
    with md.Registry.create(name) as registry:
        library = md.Library("many", "DEF", registry=registry)
        for i in range(FACTS):
            library.define(f"f{i}(Tensor x) -> Tensor")
        stop = threading.Event()
        registrar = threading.Thread(
            target=lambda: returned.update(register_for_ever(registry, figures, faults, stop))
        )
        registrar.start()
        kills = 0
        while kills < 4 or (time.monotonic() < end and kills != rounds):
            os.write(orders, b"k")
            answer = os.read(answers, 1)
            assert answer == b"k", "a victim found a broken invariant, or did not attach"
            kills += 1
        stop.set()
        registrar.join()
        registry.check_invariants()
        recoveries = registry.dispatcher.facts.stat()[6]
        there = {n for n in registry.operators() if n.startswith("many::")}
        assert len(there) == FACTS, f"{FACTS - len(there)} acknowledged definitions are lost"
    os.close(orders)
    with os.fdopen(waiters_figures) as file:
        told = json.load(file)
    assert [os.waitpid(pid, 0)[1] for pid in (waiter, nursery)] == [0, 0]
    for came, late_end, missing in told["late"]:
        if late_end - max(came, returned.get(came, 0)) - missing > ALLOWED_NS:
            faults.append(f"a waiter returned {(late_end - came) / 1e6:.1f} ms after its outcome")
    assert not faults, faults
    other = Figures.from_dict(told["figures"])
    other.merge(figures)
    figures.counts, figures.latencies = other.counts, other.latencies
    for what in ("kills", "rounds", "forks"):
        figures.count(what, kills)
    figures.count("recoveries of the lock", recoveries)
    return {"recoveries": recoveries}


def leave_alone(write: int, other: int, body, *args) -> None:
    os.close(other)  # or its reader would never find the end
    body(write, *args)

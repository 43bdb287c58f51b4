"""Storms of forks: a process forks again and again while its threads register, wait and verify. Its
children, and theirs, use the registry that they inherited.

There are no sub-interpreters here: CPython cannot fork while one lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import traceback

from crew_roles import GONE, Tensor, came_of
from mains import MainClient
from measure import ALLOWED_NS, HANG_SECONDS, Dice, Figures, queued_ns, queued_since

import mdispatch as md


def use_what_was_inherited(registry: md.Registry, space: str, deep: int, write: int) -> None:
    """A child: it is a worker, waits, verifies and calls, and may fork itself."""
    assert not registry.is_main, "a child of the registrar believes that it may register"
    if deep:
        pid = fork_one(registry, space, deep - 1, write)
    queued, began = queued_ns(), time.monotonic_ns()
    found = md.wait_for_def(f"{space}::f", HANG_SECONDS, registry=registry)
    end = time.monotonic_ns()
    came = came_of(found)
    late = end - max(began, came) > ALLOWED_NS
    os.write(write, b"%d %d %d %d\n" % (began, came, end, queued_since(queued) if late else 0))
    library = md.Library(space, "FRAGMENT", registry=registry, timeout=HANG_SECONDS)
    library.define(found.body)
    library.impl("f", lambda x, began: x, "CPU")
    value = Tensor()
    assert getattr(registry.ops, space).f(value) is value
    library.close()
    try:
        md.Library("nobody", "DEF", registry=registry, timeout=0)
        raise AssertionError("a child has registered")
    except md.errors.NotRegisteredError:
        pass
    if deep:
        assert os.waitpid(pid, 0)[1] == 0


def fork_one(registry: md.Registry, space: str, deep: int, write: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            use_what_was_inherited(registry, space, deep, write)
            os._exit(0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    return pid


class Restless:
    """Threads that are in the midst of something whenever the process forks."""

    def __init__(self, registry: md.Registry, dice: Dice) -> None:
        self.registry = registry
        self.faults: list[str] = []
        self._stop = threading.Event()
        works = (self._register, self._register) if registry.is_main else (self._verify,)
        works += (self._wait, self._listen)
        self._threads = [
            threading.Thread(target=self._run, args=(work, i)) for i, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work, number: int) -> None:
        try:
            while not self._stop.is_set():
                work(number)
        except BaseException:
            self.faults.append(traceback.format_exc())

    def _register(self, number: int) -> None:
        library = md.Library(f"busy{number}", "DEF", registry=self.registry)
        for i in range(4):
            library.define(f"f{i}(Tensor x) -> Tensor")
            library.impl(f"f{i}", lambda x: x, "CPU")
        library.close()
        time.sleep(0.001)

    def _verify(self, number: int) -> None:
        try:
            getattr(self.registry.ops, f"busy{number}").f0(Tensor())
        except GONE:
            time.sleep(0.001)

    def _wait(self, number: int) -> None:
        with contextlib.suppress(md.errors.NotRegisteredError):
            md.wait_for_def("never::comes", 0.002, registry=self.registry)

    def _listen(self, number: int) -> None:
        with self.registry.add_listener(self, everywhere=True):
            time.sleep(0.003)

    def on_operator_registered(self, registration: md.Registration) -> None:
        pass

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive(), f"{thread} hangs"
        assert not self.faults, "\n".join(self.faults)


class Storm:
    """One run: ``define`` makes the registrar define, or is it ourselves."""

    def __init__(self, figures: Figures, registry: md.Registry, space: str, dice: Dice) -> None:
        self.figures = figures
        self.registry = registry
        self.space = space
        self.dice = dice

    def burst(self, define, close) -> None:
        read, write = os.pipe()
        deeps = [self.dice.below(8) // 6 for _ in range(1 + self.dice.below(6))]
        children = []
        early = self.dice.below(2)
        times = define() if early else (0, 0)
        for deep in deeps:
            children.append(fork_one(self.registry, self.space, deep, write))
            self.figures.count("forks", 1 + deep)
        os.close(write)
        if not early:
            time.sleep(self.dice.below(3000) / 1e6)
            times = define()
        self.hear(read, times, children)
        for pid in children:
            self.await_end(pid)
        os.close(read)
        close()
        self.figures.count("rounds")

    def hear(self, read: int, times: tuple[int, int], children: list[int]) -> None:
        text = b""
        while True:
            if not select.select([read], [], [], HANG_SECONDS)[0]:
                for pid in children:
                    os.kill(pid, signal.SIGABRT)  # faulthandler shows its stacks
                raise AssertionError(f"of children {children}, some hang")
            more = os.read(read, 65536)
            if not more:
                break
            text += more
        for line in text.splitlines():
            began, came, end, queued = map(int, line.split())
            assert came == times[0], "a child was told of another definition"
            self.figures.count("operations")
            self.figures.latency("define to child", end - max(began, came))
            if end - max(began, came) > ALLOWED_NS:
                self.figures.count("late by the clock")
            took = end - max(began, came, times[1]) - queued
            assert took <= ALLOWED_NS, f"a child's wait returned {took / 1e6:.1f} ms late"

    def await_end(self, pid: int) -> None:
        end = time.monotonic() + HANG_SECONDS
        while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGABRT)
                raise AssertionError(f"child {pid} hangs")
            time.sleep(0.0005)
        assert found[1] == 0, f"child {pid} ended with {found[1]}"


def storm_of_forks(
    figures: Figures, own: str, shared: list[str], seed: int, seconds: float, rounds: int
) -> None:
    """As the registrar of a registry called ``own``, or as a worker of the shared one."""
    dice = Dice(seed)
    end = time.monotonic() + seconds
    made = md.Registry.create(own) if own else md.Registry.attach(shared[0])
    client = MainClient(*shared) if not own else None
    space = "forks"
    schema = "f(Tensor x, int began={AT}) -> Tensor"
    library: list[md.Library] = []

    def define() -> tuple[int, int]:
        if client is not None:
            client.tell("open", namespace=space)
            first, last = client.tell("define", namespace=space, schemas=[schema])["times"]["f"]
            return first, last
        library.append(md.Library(space, "DEF", registry=made))
        began = time.monotonic_ns()
        library[0].define(schema.replace("{AT}", str(began)))
        returned = time.monotonic_ns()
        library[0].impl("f", lambda x, began: x, "CPU")
        return began, returned

    def close() -> None:
        if client is not None:
            client.tell("close", namespace=space)
        else:
            library.pop().close()

    with made as registry:
        restless = Restless(registry, dice)
        storm = Storm(figures, registry, space, dice)
        number = 0
        while number == 0 or (time.monotonic() < end and number != rounds):
            storm.burst(define, close)
            number += 1
        restless.end()
        registry.check_invariants()
    if client is not None:
        client.close()

"""Interpreters that end while somebody waits: in them, and beside them in others.

CPython 3.12 and 3.13 lose memory with each interpreter that had a GIL of its own: so these are made
in a process of their own, which ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from queue import SimpleQueue

from crew import CAST, Crew
from mains import MainClient
from measure import ALLOWED_NS, HANG_SECONDS, PATIENCE, Dice, Figures, queued_ns, queued_since

from mdispatch.pool import interpreters as host

#: Waits in threads of the interpreter; what ends them stands in a file descriptor afterwards.
WAITERS = """
import sys; sys.path[:] = {path!r}
import os, threading, time
import mdispatch as md

registry = md.Registry.attach({address!r})

def wait(name):
    os.write({write}, b"ready 0\\n")
    try:
        md.wait_for_def(name, None, registry=registry)
        ended = "ok"
    except md.MdispatchError as error:
        ended = type(error).__name__
    os.write({write}, f"{{ended}} {{time.monotonic_ns()}}\\n".encode())

threads = [threading.Thread(target=wait, args=("never::comes",)) for _ in range({count})]
for thread in threads:
    thread.start()
"""
#: Python 3.11 neither ends nor enters an interpreter that has threads: they are sent home from
#: inside, by its registry's end.
SENT_HOME = """
os.read({stop}, 1)
registry.close()
for thread in threads:
    thread.join()
"""
ENDS_THREADS = sys.version_info >= (3, 12)


class Ending:
    """One interpreter, from its beginning to its end."""

    def __init__(self, address: str, own_gil: bool, dice: Dice) -> None:
        self.waiters = 1 + dice.below(3)
        self.said: SimpleQueue[str] = SimpleQueue()
        self.interpreter = host.create_interpreter(own_gil=own_gil)
        self._read, self._write = os.pipe()
        self._stopped, self._stop = os.pipe()
        self._reader = threading.Thread(target=self._hear)
        self._reader.start()
        code = WAITERS.format(path=sys.path, address=address, write=self._write, count=self.waiters)
        if ENDS_THREADS:
            self.interpreter.exec(code)
        else:
            code += SENT_HOME.format(stop=self._stopped)
            self._inside = threading.Thread(target=self._live, args=(code,))
            self._inside.start()
        for _ in range(self.waiters):
            assert self.said.get(timeout=HANG_SECONDS).startswith("ready")

    def _live(self, code: str) -> None:
        self.interpreter.exec(code)
        self.interpreter.close()  # 3.11 hangs when that is not the thread in which it imported

    def _hear(self) -> None:
        with os.fdopen(self._read) as file:
            for line in file:
                self.said.put(line)

    def end(self, figures: Figures) -> None:
        queued = queued_ns()
        began = time.monotonic_ns()
        expected = "WaitCancelledError" if ENDS_THREADS else "RegistryClosedError"
        os.close(self._stop)
        if ENDS_THREADS:
            self.interpreter.close()
        else:
            self._inside.join(HANG_SECONDS)
            assert not self._inside.is_alive(), "an interpreter does not end"
        os.close(self._write)
        os.close(self._stopped)
        self._reader.join(HANG_SECONDS)
        for _ in range(self.waiters):
            ended, at = self.said.get(timeout=HANG_SECONDS).split()
            assert ended == expected, f"a wait in an interpreter that ended: {ended}"
            figures.count("operations")
            figures.latency("end to waiter", int(at) - began)
            if int(at) - began > ALLOWED_NS:
                figures.count("late by the clock")
                took = int(at) - began - queued_since(queued)
                assert took <= ALLOWED_NS, f"a wait ended {took / 1e6:.1f} ms late"
        figures.count("interpreters")


def ended_interpreters(
    figures: Figures, shared: list[str], space: str, seed: int, seconds: float, rounds: int
) -> dict[str, int]:
    """Interpreters come and go, while a crew of the same process waits and gets what it waits
    for.
    """
    dice = Dice(seed)
    end = time.monotonic() + seconds
    client = MainClient(*shared)
    number = 0
    before = client.tell("members")["of"].get(str(os.getpid()), 0)
    with Crew(client.address, CAST) as crew:
        while number == 0 or (time.monotonic() < end and number != rounds):
            for each in range(len(CAST)):
                crew.tell(each, "wait", f"{space}::f", PATIENCE)
            crew.ready(len(CAST))
            for _ in range(1 + dice.below(3)):
                ending = Ending(client.address, host.OWN_GIL and bool(dice.below(2)), dice)
                time.sleep(dice.below(2000) / 1e6)
                ending.end(figures)
            client.tell("open", namespace=space)
            schema = "f(Tensor x, int began={AT}) -> Tensor"
            came, sure = client.tell("define", namespace=space, schemas=[schema])["times"]["f"]
            for done in crew.done(len(CAST)):
                assert (done.ended, done.more) == ("ok", str(came)), crew.name(done.who)
                figures.count("operations")
                figures.latency("define to waiter", done.returned - came)
                took = done.returned - sure - done.queued
                assert took <= ALLOWED_NS, (
                    f"{crew.name(done.who)} returned {took / 1e6:.1f} ms late"
                )
            client.tell("close", namespace=space)
            number += 1
            figures.count("rounds")
            if figures.counts["interpreters"] >= 200:
                break  # the next process goes on
    figures.count("interpreters", len([kind for kind in CAST if kind != "thread"]))
    left = client.tell("members")["of"].get(str(os.getpid()), 0)
    client.close()
    assert left == before, f"{left - before} members of interpreters that have ended are left"
    return {"rounds": number}

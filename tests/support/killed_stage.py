"""Runs a scenario with editions under native/refusals/shim.c (preloaded), which kills the process
in place of one system call of the library: each in turn, or one in so many, until one run comes to
its end. After each death another process opens an edition: it waits for nobody, and of the dead
nothing is left. Prints how many deaths there were.

    LD_PRELOAD=shim.so python killed_stage.py SCENARIO ONE_IN
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack

from patience import limit

import mdispatch as md
from mdispatch.facts.opening import named_registries

shim = ctypes.CDLL(None)
shim.shim_arm.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int)

NAME = f"killed-{os.getpid()}"
SMALL = 1 << 20


def edition(which: str) -> md.Registry:
    return md.Registry.elect(f"{NAME}@{which}", capacity=SMALL)


def used(registry: md.Registry) -> None:
    """Registers and ends."""
    with md.Library("shop", "DEF", registry=registry) as lib:
        lib.define("count(int x) -> int")


def opened() -> None:
    """A new edition beside one that lives."""
    used(edition("new"))


def taken_over() -> None:
    """The edition of a process that has died."""
    used(edition("dead"))


def removing() -> None:
    """A new edition, whose maker removes three that are dead."""
    used(edition("new"))


def ended() -> None:
    """The last member of an edition leaves it."""
    edition("new").close()


#: By scenario: the editions that died before it.
SCENARIOS: dict[Callable[[], None], tuple[str, ...]] = {
    opened: (),
    taken_over: ("dead",),
    removing: ("1", "2", "3"),
    ended: (),
}


def in_a_child(work: Callable[[], None]) -> int:
    """Its exit status; negative is a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_with(which: str) -> None:
    used(edition(which))
    os.kill(os.getpid(), signal.SIGKILL)


def look() -> None:
    """Looks at the folder as a process that comes afterwards."""
    signal.alarm(math.ceil(limit(60)))  # nobody waits for the dead
    with ExitStack() as there:
        fresh = there.enter_context(edition("fresh"))
        used(fresh)
        fresh.check_invariants()
        mine = [each for each in named_registries() if each.partition("@")[0] == NAME]
        assert mine == [f"{NAME}@fresh", f"{NAME}@keeper"], mine
        for which in ("new", "dead"):
            used(there.enter_context(edition(which)))
    left = [each for each in named_registries() if each.startswith(NAME)]
    assert left == [f"{NAME}@keeper"], left


def killed_in(nth: int, scenario: Callable[[], None]) -> None:
    shim.shim_arm(nth, -1, 0)
    scenario()


def main(name: str, one_in: int) -> int:
    scenario, dead = next(its for its in SCENARIOS.items() if its[0].__name__ == name)
    ready, wait = os.pipe(), os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(wait[1])
        with edition("keeper") as registry:
            os.write(ready[1], b".")
            os.read(wait[0], 1)
            registry.check_invariants()
        os._exit(0)
    os.read(ready[0], 1)
    deaths = 0
    for nth in itertools.count(1, one_in):
        for which in dead:
            assert in_a_child(lambda which=which: die_with(which)) == -signal.SIGKILL
        status = in_a_child(lambda nth=nth: killed_in(nth, scenario))
        assert status in (0, -signal.SIGKILL), status
        assert in_a_child(look) == 0, f"after a death in call {nth} of {name}"
        if status == 0:
            break
        deaths += 1
    os.close(wait[1])
    assert os.waitpid(keeper, 0)[1] == 0
    return deaths


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))

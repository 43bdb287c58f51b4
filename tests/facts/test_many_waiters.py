"""Many sub-interpreters wait for one name, round after round: none is forgotten, and all wake up
within a second.

native/stress/waiters.c does the same with thousands of threads and without Python. It explains how
the waiters are counted.
"""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, run_main

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

ALLOWED = 1.0  # seconds

WORKER = """
import os, time
from mdispatch import facts as kinds
facts = md.default_registry().dispatcher.facts
schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

def queued():
    # Nanoseconds that this thread was ready to run and had no processor.
    return int(os.pread(schedstat, 64, 0).split()[1])

for turn in range(rounds):
    before, began = queued(), time.monotonic_ns()
    fact, waited = facts.await_fact(kinds.DEF, 0, f"many::turn{turn % 2}", 1, 60)
    returned = time.monotonic_ns()
    numbers = (
        turn, fact is not None and fact.body.endswith(f"_{turn}() -> ()"), began, returned,
        queued() - before, int(waited.seconds * 1e9), waited.sleeps, waited.wakes,
    )
    os.write(pipe, b"".join(n.to_bytes(8, "little") for n in numbers))
os.close(schedstat)
"""

MAIN = """
import random, threading
from mdispatch import facts as kinds
kind, count, rounds, seed, worker = args
dice = random.Random(seed)
registry = md.default_registry()
facts = registry.dispatcher.facts
reading, pipe = os.pipe()
before = os.getloadavg()[0]
source = f"import sys; sys.path[:] = {sys.path!r}\\nimport mdispatch as md\\n"
source += f"rounds, pipe = {rounds}, {pipe}\\n" + worker

def run(interpreter):
    try:
        interpreter.exec(source)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    over.wait()  # to end one takes milliseconds with the GIL, which others may need for their turn
    interpreter.close()

over = threading.Event()
started = time.monotonic()
threads = []
for _ in range(count):
    interpreter = md.create_interpreter(own_gil=kind == "own-gil")
    threads.append(threading.Thread(target=run, args=(interpreter,)))
    threads[-1].start()

def waiting():
    return sum(member[4] for member in facts.members())

took, without, lost, by_ring, at_once = [], [], 0, 0, 0
for turn in range(rounds):
    # Not in the first one: who still imports keeps a shared GIL from the others.
    there = dice.randrange(count) if turn and dice.randrange(4) == 3 else count
    until(lambda: waiting() >= there)
    if turn == 0:
        started = time.monotonic() - started
    committed = time.monotonic_ns()
    fact = facts.register(kinds.DEF, 0, f"many::turn{turn % 2}", f"many::t_{turn}() -> ()", "here")
    rung = time.monotonic_ns()
    data = b""
    while len(data) < 64 * count:
        data += os.read(reading, 64 * count - len(data))
    last = last_without = 0
    for at in range(0, len(data), 64):
        of, right, began, returned, queued, slept, sleeps, wakes = (
            int.from_bytes(data[i : i + 8], "little") for i in range(at, at + 64, 8)
        )
        assert of == turn and right, (of, turn, right)
        delay = max(0, returned - max(began, committed))
        last, last_without = max(last, delay), max(last_without, delay - queued)
        lost += sleeps > 0 and wakes == 0 and began + slept - queued > rung
        by_ring += wakes > 0
        at_once += sleeps == 0
    took.append(last / 1e6)
    without.append(last_without / 1e6)
    assert facts.remove(fact)
over.set()
for thread in threads:
    thread.join()
done(took=took, without=without, lost=lost, by_ring=by_ring, at_once=at_once, started=started,
     members=facts.stat()[10], check=facts.check(), load=(before, os.getloadavg()[0]))
"""

FORMS = [
    pytest.param(8, 40, id="8 interpreters"),
    pytest.param(
        200, 1000, id="200 interpreters", marks=[pytest.mark.long, pytest.mark.timeout(1800)]
    ),
]


def shown(milliseconds: list[float]) -> str:
    some = sorted(milliseconds)
    return (
        f"median {some[len(some) // 2]:.1f} ms, p99 {some[len(some) * 99 // 100]:.1f} ms, "
        f"worst {some[-1]:.1f} ms"
    )


@pytest.mark.parametrize("kind", INTERPRETERS)
@pytest.mark.parametrize(("count", "rounds"), FORMS)
def test_all_interpreters_that_wait_for_a_name_are_told_in_every_round(kind, count, rounds) -> None:
    seed = 1
    got = run_main(MAIN, kind, count, rounds, seed, WORKER, timeout=100 if count < 100 else 1700)
    waits = count * rounds
    print(
        f"\n{kind}, {count} interpreters (all there after {got['started']:.1f} s), "
        f"{rounds} rounds, seed {seed}, load {got['load'][0]:.1f} to {got['load'][1]:.1f}\n"
        f"all awake: {shown(got['took'])}\n"
        f"less each one's time without a processor: {shown(got['without'])}\n"
        f"of {waits} waits {got['by_ring']} ended by a ring, {got['at_once']} did not sleep; "
        f"rounds beyond 1 s: {sum(ms > 1000 * ALLOWED for ms in got['took'])}; "
        f"brought back by the slice after all were woken: {got['lost']}"
    )
    assert got["lost"] == 0
    assert max(got["without"]) <= 1000 * ALLOWED
    assert (got["members"], got["check"]) == (1, "")


THREADS = """
import resource, threading
from mdispatch import facts as kinds
count, = args
facts = md.default_registry().dispatcher.facts
threading.stack_size(256 * 1024)
threads = [
    threading.Thread(target=facts.await_fact, args=(kinds.DEF, 0, "many::f", 1, 60))
    for _ in range(count)
]
for thread in threads:
    thread.start()
until(lambda: sum(member[4] for member in facts.members()) >= count)
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
facts.register(kinds.DEF, 0, "many::f", "f() -> ()", "here")
for thread in threads:
    thread.join()
done(sleeps=resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""


@pytest.mark.thorough
def test_thousands_of_threads_that_are_woken_do_not_wait_for_each_other() -> None:
    """A thread that is woken sleeps a few times more: for the GIL and for the locks of Python. When
    each had to wait for the others, it slept 140 to 520 times, and 4,000 threads took 10 to 36
    times as long to wake as a threading.Event takes.
    """
    count = 4000
    assert run_main(THREADS, count)["sleeps"] <= 10 * count

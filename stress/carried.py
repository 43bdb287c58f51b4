"""Kills and stops owners of served kernels, and their callers, in the midst of calls between
processes, and judges by journals what became of each call.

    python stress/carried.py [--blows N] [--seconds N] [--seed S] [--figures FILE]

One process has the definitions. Two owners serve "work", one of them "steady", which is never hit;
callers call both, each with a timeout. A caller writes down each call before it makes it, and what
it came to; an owner writes down each call that its kernel runs. A blow is a SIGKILL of an owner or
a caller, a SIGSTOP of some milliseconds, or both. Then:

- no call was run twice;
- a call with an answer was run once, and the answer is its own;
- a call of which the caller was told that it had not begun was never run, not even by an owner that
  went on later;
- no caller that was not stopped itself waited longer than its timeout and a second (the time not
  counted in which this machine gave it no processor cannot be told apart: so it is shown, and only
  a hang fails);
- memory, descriptors and threads of the processes that were never hit stay what they were.

This process has one thread: it forks the others, so a blow costs some milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mdispatch as md
from mdispatch.across.transports import transport_named

TIMEOUT = 0.5
#: Seconds beyond the timeout after which a call is a hang.
HANG = 30.0
CALLERS = 3


class Journal:
    """Lines of a process, each written in one piece."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())


def define(name: str) -> None:
    registry = md.Registry.create(name, capacity=1 << 24)
    library = md.Library("shop", "DEF", registry=registry)
    for each in ("work", "steady"):
        library.define(f"{each}(str call, int size) -> str")
        library.impl(each, lambda call, size: "", "CompositeExplicitAutograd")
    signal.pause()


def own(name: str, folder: Path, kernel: str, ready: int) -> None:
    registry = md.Registry.attach(name, timeout=30.0)
    journal = Journal(folder / "owners")
    dice = random.Random(os.getpid())

    def work(call: str, size: int) -> str:
        journal.write(call, kernel, os.getpid())
        if dice.random() < 0.5:
            time.sleep(dice.random() * 0.01)  # so that blows fall into kernels
        return call + "." * size

    library = md.Library("shop", "IMPL", registry=registry)
    library.impl(kernel, work, "CompositeExplicitAutograd", serve="host")
    os.write(ready, b"+")
    while True:
        signal.pause()


def call(name: str, folder: Path, ops: tuple[str, ...]) -> None:
    registry = md.Registry.attach(name, timeout=30.0)
    me = f"{os.getpid()}.{time.monotonic_ns()}"  # the system uses pids again
    journal = Journal(folder / f"caller{me}")
    kernels = [getattr(registry.ops.shop, each) for each in ops]
    dice = random.Random(os.getpid())
    number = 0
    while True:
        number += 1
        mine = f"{me}.{number}"
        size = dice.choice((0, 0, 0, 100, 100_000))
        journal.write(mine, "asks", size)
        begin = time.monotonic()
        try:
            with md.routing("shop", timeout=TIMEOUT):
                answer = dice.choice(kernels)(mine, size)
            outcome = "answered" if answer == mine + "." * size else "another's"
        except (md.errors.CallTimeoutError, md.errors.OwnerGoneError) as error:
            outcome = f"{type(error).__name__}:{error.started}"
        except md.errors.OwnerBusyError:
            outcome = "OwnerBusyError:False"
        except md.errors.LocalKernelMissingError:
            outcome = "nobody:False"  # no owner serves it, for the moment
        journal.write(mine, "got", outcome, f"{time.monotonic() - begin:.3f}")
        if outcome != "answered":
            time.sleep(0.002)


def born(what: object, *args: object) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        what(*args)  # type: ignore[operator]
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def size_of(pid: int) -> dict[str, int]:
    """What a process holds."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "kib": int(status["VmRSS"].split()[0]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
    }


def strike(folder: Path, name: str, asked: argparse.Namespace, dice: random.Random) -> dict:
    serves, ready = os.pipe()
    main = born(define, name)
    steady = born(own, name, folder, "steady", ready)
    os.read(serves, 1)
    owner = born(own, name, folder, "work", ready)
    os.read(serves, 1)
    calm = born(call, name, folder, ("work", "steady"))
    callers = [born(call, name, folder, ("work", "steady")) for _ in range(CALLERS)]
    blows: Counter[str] = Counter()
    stopped: set[int] = set()
    deadline = time.monotonic() + asked.seconds
    first: dict[int, dict[str, int]] = {}

    def reborn(pid: int, *how: object) -> int:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return born(*how)

    while sum(blows.values()) < asked.blows and time.monotonic() < deadline:
        if not first and sum(blows.values()) >= asked.blows // 10:
            first = {pid: size_of(pid) for pid in (steady, calm)}
        time.sleep(dice.random() * asked.pause)
        how = dice.choices(
            ("stop owner", "kill owner", "stop and kill owner", "stop caller", "kill caller"),
            (8, 2, 1, 4, 2),
        )[0]
        place = dice.randrange(CALLERS)
        victim = owner if "owner" in how else callers[place]
        if "stop" in how:
            os.kill(victim, signal.SIGSTOP)
            stopped.add(victim)
            # Now and then for longer than calls wait.
            time.sleep(TIMEOUT * 1.2 if dice.random() < 0.01 else dice.random() * 0.004)
        if "kill" in how:
            if "owner" in how:
                owner = reborn(owner, own, name, folder, "work", ready)
                if dice.random() < 0.9:  # else it is hit before it serves
                    os.read(serves, 1)
            else:
                callers[place] = reborn(victim, call, name, folder, ("work", "steady"))
        else:
            os.kill(victim, signal.SIGCONT)
        blows[how] += 1
    last = {pid: size_of(pid) for pid in (steady, calm)}
    ended = [os.waitpid(pid, os.WNOHANG)[0] for pid in (main, steady, owner, calm, *callers)]
    time.sleep(TIMEOUT * 2)  # what is under way comes to its end
    for pid in (calm, *callers, owner, steady, main):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    left = [first.get(steady), last[steady], first.get(calm), last[calm]]
    return {"blows": dict(blows), "ended": any(ended), "sizes": left, "stopped": stopped}


def judge(folder: Path, stopped: set[int]) -> dict:
    runs = Counter(line.split()[0] for line in (folder / "owners").read_text().splitlines() if line)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    longest = 0.0
    asked = 0
    for path in folder.glob("caller*"):
        is_calm = int(path.name[6:].split(".")[0]) not in stopped
        for line in path.read_text().splitlines():
            mine, what, *told = line.split()
            if what == "asks":
                asked += 1
                continue
            outcome, seconds = told
            outcomes[outcome] += 1
            ran = runs[mine]
            if outcome == "answered" and ran != 1:
                wrong.append(f"{mine} was answered and ran {ran} times")
            if outcome.endswith(":False") and ran:
                wrong.append(f"{mine} had not begun ({outcome}) and ran")
            if outcome == "another's":
                wrong.append(f"{mine} got another call's answer")
            if is_calm:
                longest = max(longest, float(seconds))
    wrong += [f"{mine} ran {ran} times" for mine, ran in runs.items() if ran > 1]
    if longest > TIMEOUT + HANG:
        wrong.append(f"a call took {longest} s")
    return {
        "calls": asked,
        "runs": sum(runs.values()),
        "outcomes": dict(outcomes),
        "longest": longest,
        "wrong": wrong[:20],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blows", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figures", type=Path)
    asked = parser.parse_args()
    transport_named("host")  # imported once, before the forks
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        begin = time.monotonic()
        found = strike(folder, f"carried-{os.getpid()}", asked, random.Random(asked.seed))
        found |= judge(folder, found.pop("stopped"))
        found["seconds"] = round(time.monotonic() - begin, 1)
    text = json.dumps(found, indent=1)
    print(text)
    if asked.figures:
        asked.figures.write_text(text)
    return bool(found["wrong"] or found["ended"])


if __name__ == "__main__":
    sys.exit(main())

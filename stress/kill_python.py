"""Kills Python processes that share a registry, at random instants, and looks what is left.

    python stress/kill_python.py [--light] [--seconds N] [--rounds N] [--seed S]

One round is the life of one registrar: a process that defines and closes operators in three
threads. Other processes wait, verify, call, listen and attach, in threads and in sub-interpreters
with a GIL of their own; they are killed with SIGKILL and replaced. Then the main one is killed as
well, or leaves. Afterwards:

- every definition that was acknowledged (`define` had returned, and that was written down) is
  there, unless the end of its library had begun; what was closed is not there;
- check_invariants finds nothing;
- all the others have heard that the registrar is gone and have ended by themselves; nobody hangs;
- every wait has returned within 300 ms of its outcome, the time not counted in which this machine
  had no processor for threads of its process (what returned later by the clock is shown as well).

This process has one thread and no sub-interpreters: it can fork. Many more kills a second meet the
native core in native/stress/kill.c; here it is Python's layers that are met in the midst of
something. With --light a process has one thread and one interpreter and lives for some
milliseconds, so that there are ten times as many kills: of those who attach, join, verify, wait,
look and leave. A seed gives the same choices again; what they meet is up to the scheduler.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import kill_roles as roles
from kill_report import Totals
from measure import HANG_SECONDS, Dice

import mdispatch as md
from mdispatch.pool import interpreters as host

#: Of each process: what its threads do; "+" is a sub-interpreter of its own.
CAST = (
    ("wait", "wait", "wait"),
    ("+wait", "+verify"),
    ("verify", "listen"),
    ("attach", "wait"),
    ("+wait", "wait", "+attach"),
)
LIGHT_CAST = (("wait",), ("verify",), ("attach",), ("wait",), ("verify",), ("attach",), ("listen",))


@dataclass
class Victim:
    """A process, and where it writes."""

    kind: int
    pid: int
    diary: Path


# --- what the children do -------------------------------------------------------------------------


def in_interpreter(what: str, name: str, path: str, seed: int) -> None:
    interpreter = host.create_interpreter()
    interpreter.exec(
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"import kill_roles; kill_roles.loop({what!r}, {name!r}, {path!r}, {seed!r})"
    )
    interpreter.close()


def in_thread(what: str, name: str, path: str, seed: int) -> None:
    if what.startswith("+"):
        roles.Diary(path).run(lambda diary: in_interpreter(what[1:], name, path, seed))
    elif what == "listen":
        roles.Diary(path).run(lambda d: roles.listen(d, md.Registry.attach(name, timeout=0)))
    else:
        roles.loop(what, name, path, seed)


def be_worker(cast: tuple[str, ...], name: str, path: str, seed: int) -> None:
    if len(cast) == 1:
        in_thread(cast[0], name, path, seed * 8)
        return
    threads = [
        threading.Thread(target=in_thread, args=(what, name, path, seed * 8 + i))
        for i, what in enumerate(cast)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def be_main(name: str, path: str, seed: int, leave: int, light: bool) -> None:
    diary = roles.Diary(path)
    registry = md.Registry.create(name, capacity=1 << 26)
    library = roles.define_stable(registry)
    for i in range(roles.NAMESPACES):
        thread = threading.Thread(
            target=diary.run, args=(roles.churn, registry, i, seed * 8 + i), daemon=True
        )
        thread.start()
    if seed % 2 and not light:
        args = ("+wait", name, path, seed * 8 + 7)
        threading.Thread(target=in_thread, args=args, daemon=True).start()
    os.read(leave, 1)
    diary.write("leaving", time.monotonic_ns())
    registry.close()
    assert library is not None


# --- the killer -----------------------------------------------------------------------------------


class Killer:
    """One run."""

    def __init__(
        self, seconds: float, rounds: int, seed: int, folder: Path, light: bool = False
    ) -> None:
        self.light = light
        self.cast = LIGHT_CAST if light else CAST
        self.naps = (0, 1_000, 8_000) if light else (0, 30_000, 120_000)  # us
        self.most = 256 if light else 16  # kills in one round
        self.end = time.monotonic() + seconds
        self.limit = rounds
        self.seed = seed
        self.dice = Dice(seed)
        self.folder = folder
        self.name = f"kill-python-{os.getpid()}"
        self.total = Totals()
        self.children = 0

    def start(self, kind: int, leave: int = -1) -> Victim:
        self.children += 1
        path = self.folder / str(self.children)
        seed = self.seed * 1_000_003 + self.children
        pid = os.fork()
        if pid:
            return Victim(kind, pid, path)
        try:
            os.nice(5)  # whoever is to be killed runs on until the killer gets a processor
            with open(f"{path}.stacks", "w") as stacks:
                faulthandler.enable(stacks)
                self.live(kind, str(path), seed, leave)
                os._exit(0)
        finally:
            os._exit(1)

    def live(self, kind: int, path: str, seed: int, leave: int) -> None:
        """What a child does."""
        if kind < 0:
            be_main(self.name, path, seed, leave, self.light)
        else:
            be_worker(self.cast[kind], self.name, path, seed)

    def forgives(self, victim: Victim, said: str) -> bool:
        """Whether a victim may end so: here nobody."""
        return False

    def kill(self, victim: Victim) -> None:
        """At a random instant: after a nap, in which some come to full swing, and a turn."""
        nap = self.naps[self.dice.below(3)]
        select.select([], [], [], self.dice.below(nap + 1) / 1e6)
        end = time.monotonic_ns() + self.dice.below(300_000)
        while time.monotonic_ns() < end:
            pass
        os.kill(victim.pid, signal.SIGKILL)
        os.waitpid(victim.pid, 0)
        self.total.kills += 1

    def play_round(self) -> None:
        """One registrar's life."""
        read, write = os.pipe()
        main = self.start(-1, read)
        started = [main]
        if self.dice.below(8) == 0:  # one that is killed as it begins
            self.kill(main)
            main = self.start(-1, read)
            started = [main]
        registry = md.Registry.attach(self.name, timeout=HANG_SECONDS)
        workers = []
        for kind in range(len(self.cast)):
            workers.append(self.start(kind))
        started += workers
        for _ in range(self.dice.below(self.most)):
            if time.monotonic() > self.end:
                break
            victim = workers.pop(self.dice.below(len(workers)))
            self.kill(victim)
            workers.append(self.start(victim.kind))
            started.append(workers[-1])
        select.select([], [], [], self.dice.below(100) / 1000)
        gone = 0
        if self.dice.below(4):
            gone = time.monotonic_ns()
            self.kill(main)
            self.total.mains += 1
        else:
            os.write(write, b"x")
            self.await_ends([main])
        self.await_ends(workers)
        os.close(read)
        os.close(write)
        self.compare(registry, main)
        registry.close()
        self.read_diaries(started, main, gone)
        self.total.rounds += 1

    def await_ends(self, victims: list[Victim]) -> None:
        """Until all have ended by themselves; who has not is shown and killed."""
        end = time.monotonic() + HANG_SECONDS
        for victim in victims:
            status = 0
            while os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > end:
                    self.total.failures.append(self.stacks_of(victim))
                    os.kill(victim.pid, signal.SIGKILL)
                    break
                select.select([], [], [], 0.0005)
            _, status = os.waitpid(victim.pid, 0)
            if status not in (0, signal.SIGKILL) and not self.forgives(
                victim, f"ended with {status}"
            ):
                text = Path(f"{victim.diary}.stacks").read_text()
                self.total.failures.append(f"{self.what(victim)} ended with {status}\n{text}")

    def what(self, victim: Victim) -> str:
        role = "main" if victim.kind < 0 else " ".join(self.cast[victim.kind])
        return f"pid {victim.pid} ({role})"

    def stacks_of(self, victim: Victim) -> str:
        lines = [f"{self.what(victim)} hangs"]
        for task in sorted(Path(f"/proc/{victim.pid}/task").iterdir()):
            for each in ("wchan", "syscall"):
                try:
                    lines.append(f"{task.name} {each}: {(task / each).read_text().strip()}")
                except OSError as error:
                    lines.append(f"{task.name} {each}: {error}")
        os.kill(victim.pid, signal.SIGABRT)  # faulthandler writes the stacks
        end = time.monotonic() + 5
        while os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > end:
                break
        lines.append(Path(f"{victim.diary}.stacks").read_text())
        return "\n".join(lines)

    # --- looking

    def compare(self, registry: md.Registry, main: Victim) -> None:
        """The registrar's diary with what is there."""
        state: dict[str, str] = {}
        left = False
        for word, *rest in lines_of(main):
            if word in ("begun", "defined"):
                state[rest[0]] = word
            elif word in ("closing", "closed"):
                inside = [name for name in state if name.startswith(f"{rest[0]}::")]
                # In a registry that is closed, the end of a library is no act of its own.
                state.update(dict.fromkeys(inside, "closing" if left else word))
            left = left or word == "leaving"
        there = set(registry.operators())
        for name, word in state.items():
            if word == "defined" and name not in there:
                self.total.failures.append(f"the acknowledged definition of {name} is lost")
            if word == "closed" and name in there:
                self.total.failures.append(f"{name} was closed and is there")
        unknown = there - set(state) - {roles.STABLE}
        if unknown:
            self.total.failures.append(f"nobody has defined {unknown}")
        self.total.compared += len(state)
        if not left:
            try:
                registry.check_invariants()
            except md.MdispatchError as error:
                self.total.failures.append(str(error))

    def read_diaries(self, started: list[Victim], main: Victim, gone: int) -> None:
        killed = gone != 0
        if not killed:
            gone = next((int(rest[0]) for word, *rest in lines_of(main) if word == "leaving"), 0)
        there = {int(rest[1]): int(rest[2]) for word, *rest in lines_of(main) if word == "defined"}
        for victim in started:
            for word, *rest in lines_of(victim):
                if word == "waited":
                    began, came, end, queued = map(int, rest[1:])
                    sure = there.get(came, gone) if rest[0] == "fact" else came or gone
                    self.total.note_wait(
                        self.what(victim),
                        rest[0],
                        end,
                        queued,
                        max(began, came or gone),
                        max(began, sure),
                    )
                elif (word == "failed" or (word == "missing" and killed)) and not self.forgives(
                    victim, " ".join([word, *rest])
                ):
                    self.total.failures.append(f"{self.what(victim)}: {word} {' '.join(rest)}")
                self.total.acknowledged += word == "defined"
                self.total.heard += word == "heard"
                self.total.verified += word == "verified"
                self.total.attached += word == "attached"
            victim.diary.unlink(missing_ok=True)
            Path(f"{victim.diary}.stacks").unlink(missing_ok=True)

    def run(self) -> int:
        began = time.monotonic()
        load_everything()
        while not self.total.failures and time.monotonic() < self.end:
            self.play_round()
            if self.limit and self.total.rounds >= self.limit:
                break
        with md.Registry.create(self.name):
            pass  # its name is free again
        self.total.report(self.seed, time.monotonic() - began, " --light" if self.light else "")
        return 1 if self.total.failures else 0


def load_everything() -> None:
    """What the children need is there when they are forked, so that they live to do something."""
    with md.Registry.create() as registry:
        library = roles.define_stable(registry)
        registry.ops.stable.f(roles.Tensor())
        registry.check_invariants()
        library.close()


def lines_of(victim: Victim) -> list[list[str]]:
    try:
        text = victim.diary.read_text()
    except FileNotFoundError:
        return []  # killed before it began
    return [line.split(" ") for line in text.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--light", action="store_true", help="many short lives")
    parser.add_argument("--figures", help="a file for the figures, as JSON")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mdispatch-kill-") as folder:
        killer = Killer(options.seconds, options.rounds, options.seed, Path(folder), options.light)
        code = killer.run()
    if options.figures:
        Path(options.figures).write_text(json.dumps(killer.total.figures().as_dict()))
    return code


if __name__ == "__main__":
    sys.exit(main())

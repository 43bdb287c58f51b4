"""A team whose namespaces have registrars of their own, killed and replaced: Python processes, each
with a sub-interpreter, import the same module for ever.

Whoever has imported it finds all of it and gets right answers, one of them at a time is the
registrar, and with the last one the name goes. The registrar's token is a link: made by who is told
that it registers, removed before its libraries are closed. One that is there already belongs to a
process that was killed, or else there are two registrars.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scenario import Scenario

import mdispatch as md
from mdispatch.facts.native import native

MEMBERS = 3
PATIENCE = 30.0  # seconds that a member may take for one import, or to end

# What each interpreter of a member does until it finds a file `stop`. NAME, FOLDER, WHO are set.
LIFE = """
import os, time, traceback
import mdispatch as md

NAMES = [f"f{i}" for i in range(6)]

def is_dead(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

def take_token(token):
    began = time.monotonic()
    while True:
        try:
            return os.symlink(f"{os.getpid()} {WHO}", token)
        except FileExistsError:
            owner = ""
        try:
            owner = os.readlink(token)
            if is_dead(owner.split()[0]):
                os.unlink(token)
        except FileNotFoundError:
            continue
        if time.monotonic() - began > 5.0:
            raise AssertionError(f"{owner} registers, and so does {os.getpid()} {WHO}")

def import_shop(registry):
    lib = md.Library("shop", "DEF", registry=registry, timeout=PATIENCE)
    for i, name in enumerate(NAMES):
        lib.define(f"{name}(int x) -> int")
        lib.impl(name, lambda x, i=i: x + i, "CompositeExplicitAutograd")
    return lib

def live_once():
    token = FOLDER + "/registrar"
    with md.Registry.elect(NAME) as registry:
        lib = import_shop(registry)
        registers = registry.registers("shop")
        if registers:
            take_token(token)
        for _ in range(5):
            assert registry.operators() == ["shop::" + name for name in NAMES]
            for i, name in enumerate(NAMES):
                assert getattr(registry.ops.shop, name)(10) == 10 + i
        registry.check_invariants()
        if registers:
            os.unlink(token)
        lib.close()
    os.write(log, b".")

log = os.open(FOLDER + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while not os.path.exists(FOLDER + "/stop"):
    try:
        live_once()
    except BaseException:
        with open(f"{FOLDER}/failed-{os.getpid()}-{WHO}", "w") as file:
            file.write(traceback.format_exc())
        break
"""

MEMBER = """
import sys, threading
from mdispatch import OWN_GIL, create_interpreter
NAME, FOLDER, LIFE, PATIENCE = sys.argv[1:3] + [sys.argv[3], float(sys.argv[4])]
SET = f"NAME, FOLDER, PATIENCE = {NAME!r}, {FOLDER!r}, {PATIENCE!r}\\n"

def in_interpreter():
    interpreter = create_interpreter(own_gil=OWN_GIL)
    interpreter.exec(f"import sys; sys.path[:] = {sys.path!r}\\nWHO = 'sub'\\n" + SET + LIFE)
    interpreter.close()

thread = threading.Thread(target=in_interpreter)
thread.start()
exec("WHO = 'main'\\n" + SET + LIFE, {"__name__": "member"})
thread.join()
"""


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [name, str(folder), LIFE, str(PATIENCE)]
    # The mdispatch that is tested here. In the current folder it may be sources that are not built.
    program = f"import sys; sys.path[:] = {sys.path!r}\n{MEMBER}"
    return subprocess.Popen([sys.executable, "-W", "error", "-c", program, *arguments])


def check_nobody_failed(folder: Path) -> None:
    failed = [file.read_text() for file in folder.glob("failed-*")]
    assert not failed, "\n".join(failed)


def until_grown(log: Path, count: int) -> None:
    """Until so many more lives have ended well."""
    size, end = log.stat().st_size + count, time.monotonic() + PATIENCE
    while log.stat().st_size < size:
        assert time.monotonic() < end, "nobody gets anywhere"
        time.sleep(0.001)


@pytest.mark.scenario("killed team", share=2.0)
def test_a_team_that_is_killed_and_replaced_loses_nothing(
    scenario: Scenario, tmp_path: Path
) -> None:
    name = f"stress-elect-{os.getpid()}-{scenario.seed}"
    file = Path(os.fsdecode(native.folder()[1]), name)
    log = tmp_path / "log"
    log.touch()
    dice, count = scenario.dice, scenario.figures.count
    members = [start(name, tmp_path) for _ in range(MEMBERS)]
    count("interpreters", MEMBERS)
    try:
        for _ in scenario.rounds():
            # At once, or when some have come and gone; all of them in one turn of eight.
            if dice.below(4):
                until_grown(log, dice.below(12))
            scenario.pause(10)
            chosen = dice.shuffled(range(MEMBERS))[: 1 if dice.below(8) else MEMBERS]
            for i in chosen:
                assert members[i].poll() is None, "a member ended by itself"
                members[i].kill()
            for i in chosen:
                assert members[i].wait() == -signal.SIGKILL
            check_nobody_failed(tmp_path)
            for i in chosen:
                members[i] = start(name, tmp_path)
            count("kills", len(chosen))
            count("interpreters", len(chosen))
        (tmp_path / "stop").touch()
        assert [each.wait(PATIENCE) for each in members] == [0] * MEMBERS
    finally:
        for each in members:
            each.kill()
            each.wait()
    check_nobody_failed(tmp_path)
    count("operations", log.stat().st_size)
    # A killed one may have been the last: then its name waits for whoever comes next.
    with md.Registry.elect(name) as registry:
        assert registry.operators() == []
        assert registry.dispatcher.facts.stat()[10] == 1
    assert not file.exists()

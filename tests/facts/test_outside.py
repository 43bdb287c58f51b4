"""What a registry looks like to a process that has not joined it. tests/cli/test_doctor.py asks
through the command.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from registries import FOLDER, main_of, seen

import mdispatch as md
from mdispatch.facts import DEF, IMPL, LIBRARY
from mdispatch.facts.outside import check, look_at, named_like, reap

pytestmark = pytest.mark.shared


def test_a_registry_that_cannot_be_read_has_no_figures():
    name = f"noise-{os.getpid()}"
    FOLDER.mkdir(0o700, exist_ok=True)
    (FOLDER / name).write_bytes(b"noise" * 1000)
    try:
        seen = look_at(f"shm:{name}", name)
    finally:
        (FOLDER / name).unlink()
    assert (seen.name, seen.state, seen.readable) == (name, "refused", False)
    assert seen.status != 0
    assert isinstance(seen.error, md.errors.MdispatchError)
    told = ("address", "name", "state", "status", "error")
    others = {f.name: getattr(seen, f.name) for f in dataclasses.fields(seen) if f.name not in told}
    assert seen.kinds
    assert others.pop("kinds") == (0,) * len(seen.kinds)
    assert others.pop("identity") == (0, 0)
    assert not any(others.values())
    assert (seen.is_leftover, seen.waiting, seen.operators) == (False, [], 0)


def test_a_registry_is_seen_with_its_own_figures():
    name = f"seen-{os.getpid()}"
    with md.Registry.create(name, capacity=1 << 22) as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("scale(Tensor x) -> Tensor")
        lib.impl("scale", len, "CPU")
        there = registry.dispatcher.facts.registrations()[2]
        seen = look_at(registry.address, name)
        file = os.stat(FOLDER / name)
        assert named_like(name + "x") == (name,)
    assert (seen.name, seen.state, seen.status, seen.error) == (name, "open", 0, None)
    assert (seen.registrar_pid, seen.registrar_state, seen.registrar_stopped) == (
        os.getpid(),
        "alive",
        False,
    )
    assert (seen.alive, seen.dead, len(seen.members), seen.lock, seen.torn) == (
        1,
        0,
        1,
        None,
        False,
    )
    assert (seen.kinds[LIBRARY], seen.kinds[DEF], seen.kinds[IMPL]) == (1, 1, 1)
    assert seen.facts == len(there) == 3
    assert seen.names == len({fact.name for fact in there})
    assert (seen.capacity, seen.identity) == (1 << 22, (file.st_dev, file.st_ino))
    assert 0 < seen.used < seen.committed <= seen.capacity
    assert 0 < seen.free < seen.capacity - seen.used
    assert (seen.readable, seen.deleted, seen.elects, seen.recoveries) == (True, False, False, 0)
    assert named_like(name + "x") == ()


def test_a_check_keeps_nothing_open():
    name = f"checked-{os.getpid()}"
    with main_of(name):
        looked = seen(name)
        before = os.listdir("/proc/self/fd"), Path("/proc/self/maps").read_text().count(name)
        answer = check(looked)
        after = os.listdir("/proc/self/fd"), Path("/proc/self/maps").read_text().count(name)
    assert answer is not None
    assert answer.is_well
    assert after == before
    reap([seen(name)])


def test_a_name_that_was_taken_again_since_the_look_is_left_alone():
    name = f"taken-{os.getpid()}"
    with main_of(name) as main:
        main.kill()
    left = seen(name)
    assert left.is_leftover
    with main_of(name):
        (told,) = reap([left])
        assert (told.name, told.removed, told.why) == (name, False, "somebody uses it by now")
        assert seen(name).alive == 1
    (told,) = reap([seen(name)])
    assert told.removed

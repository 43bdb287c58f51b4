"""Interpreters come and go; what they leave behind is what CPython itself leaves behind, and
nothing of ours.
"""

from __future__ import annotations

import sys

import pytest
from kinds import INTERPRETERS, run_main

CYCLES = """
kind, rounds, folder, other = args
sys.path.insert(0, folder)
from mdispatch import host

def now():
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ours = sum(len(m) > 5 and ("mdispatch" in m[5]) for m in maps)
    return {"memory": memory, "fds": len(os.listdir("/proc/self/fd")), "maps": ours,
            "members": registry._facts.stat()[10]}

def cycle(code):
    interpreter = host.create_interpreter(own_gil=kind == "own-gil")
    interpreter.exec(code)
    interpreter.close()

def measure(code):
    for _ in range(5):
        cycle(code)
    before = now()
    for _ in range(rounds):
        cycle(code)
    after = now()
    return {key: after[key] - before[key] for key in after}

md.warm_up("leaky")
registry = md.default_registry()
without = measure("import sys; " + other)
used = textwrap.dedent(f'''
import sys
sys.path.insert(0, {folder!r})
import mdispatch as md
md.warm_up("leaky")
assert md.ops.leaky.size(bytearray(3)) == 3
''')
done(without=without, used=measure(used), rounds=rounds, check=registry._facts.check())
"""

MODULE = """
import mdispatch as md
md.register_type(bytearray, "CPU")
lib = md.Library("leaky", "DEF")
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU")
"""


# CPython 3.12 and 3.13 lose, with each own-GIL interpreter, part of whatever it imported; in
# shared-GIL ones a little. There the same cycle without mdispatch is one that imports about as much
# of the standard library.
LEAKY_PYTHON = (3, 12) <= sys.version_info < (3, 14)
AS_MUCH = (
    "import json, weakref, textwrap, string, heapq, bisect, argparse, dataclasses, shlex, types"
)


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_interpreters_that_used_a_registry_leave_nothing_of_ours(kind, tmp_path, long_form) -> None:
    (tmp_path / "leaky.py").write_text(MODULE)
    rounds = 500 if long_form else 25
    got = run_main(
        CYCLES, kind, rounds, str(tmp_path), AS_MUCH if LEAKY_PYTHON else "", timeout=110
    )
    used, without = got["used"], got["without"]
    assert (used["members"], used["fds"], used["maps"]) == (0, 0, 0)
    assert got["check"] == ""
    more = (used["memory"] - without["memory"]) / rounds / 1024
    print(
        f"\n{kind}: {more:.1f} KiB a cycle more than without mdispatch "
        f"({without['memory'] / rounds / 1024:.1f})"
    )
    if LEAKY_PYTHON:
        assert used["memory"] < 2 * without["memory"]
    else:
        assert more < (4 if long_form else 64)


def test_registries_opened_and_closed_give_everything_back() -> None:
    got = run_main(
        """
        def now():
            maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
            ours = sum(len(m) > 5 and "memfd:mdispatch" in m[5] for m in maps)
            return len(os.listdir("/proc/self/fd")), ours
        before = now()
        for _ in range(300):
            with md.Registry.create() as registry:
                md.Library("a", "DEF", registry=registry).define("f() -> ()")
                with md.Registry.attach(registry.address) as second:
                    assert not second.is_main
        done(before=before, after=now())
        """
    )
    assert got["after"] == got["before"]

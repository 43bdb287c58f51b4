"""The worker comes first and waits; the main interpreter registers later; the worker returns
because the registration woke it.
"""

from __future__ import annotations

import pytest
from kinds import KINDS, THREAD, run_main

pytestmark = pytest.mark.shared

WAITING_WORKER = """
import mdispatch as md
registry = md.default_registry()
i_am_here()
seen = []
for turn in range(TURNS):
    fact, waited = registry.dispatcher.facts.await_fact(2, 0, f"late::op{turn}", 1, 60.0)
    seen.append((fact.body, fact.pid, waited.sleeps, waited.wakes, waited.slices))
    arrived(turn)
report(seen=seen)
"""
TURNS = 4
WAITING_WORKER = WAITING_WORKER.replace("TURNS", str(TURNS))


@pytest.mark.parametrize("many", [False, True], ids=["1", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_waiting_workers_are_woken_by_the_registration(
    kind: str, many: bool, tmp_path, long_form
) -> None:
    # Where each is a Python of its own, 32 of them cost a second and more.
    count = 1 if not many else 32 if long_form or kind in (THREAD, "fork") else 6
    got = run_main(
        """
        kind, count, folder, text, turns = args
        registry = md.default_registry()
        workers = start(kind, text, count, Path(folder))
        lib = md.Library("late", "FRAGMENT")
        for turn in range(turns):
            until_asleep(workers)
            lib.define(f"op{turn}(Tensor x) -> Tensor")
            until_arrived(workers, turn)
        done(results=results(workers), pid=os.getpid(), check=registry.dispatcher.facts.check())
        """,
        kind,
        count,
        str(tmp_path),
        WAITING_WORKER,
        TURNS,
    )
    assert len(got["results"]) == count
    for result in got["results"]:
        for turn, (body, pid, sleeps, wakes, slices) in enumerate(result["seen"]):
            assert (body, pid) == (f"late::op{turn}(Tensor x) -> Tensor", got["pid"])
            assert sleeps == wakes + slices
        # It did not poll: it slept, and a ring woke it. (In one turn the backstop's slice may end
        # just when the registration comes, but not in every turn.)
        assert sum(wakes for _, _, _, wakes, _ in result["seen"]) >= 1
    assert got["check"] == ""


VERIFYING_WORKER = """
i_am_here()
import mdispatch as md
md.register_type(bytearray, "CPU")
with md.Library("late", "DEF", timeout=limit(30)) as lib:
    lib.define("twice(Tensor x, int n=2) -> Tensor")
    @lib.impl("twice", dispatch_key="CPU")
    def twice(x, n=2):
        return x * n
out = bytes(md.ops.late.twice(bytearray(b"ab")))
report(role=md.register_or_verify(), main=md.is_main_interpreter(), out=out)
"""


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "thread"])
def test_a_module_imported_first_in_workers_verifies_when_the_main_one_arrives(
    kind: str, tmp_path
) -> None:
    got = run_main(
        """
        kind, folder, text = args
        md.default_registry()
        workers = start(kind, text, 3, Path(folder))
        until_asleep(workers)
        lib = md.Library("late", "DEF")
        lib.define("twice(Tensor x, int n=2) -> Tensor")
        lib.impl("twice", lambda x, n: x * n, "CPU")
        done(results=results(workers))
        """,
        kind,
        str(tmp_path),
        VERIFYING_WORKER,
    )
    assert got["results"] == [{"role": "verify", "main": False, "out": b"abab"}] * 3


def test_a_sub_interpreter_may_come_before_the_main_interpreter_uses_the_registry(tmp_path) -> None:
    got = run_main(
        """
        folder, text, turns = args
        workers = start(INTERPRETERS[-1], text, 2, Path(folder))
        until_asleep(workers)
        assert md.is_main_interpreter()
        lib = md.Library("late", "DEF")
        for turn in range(turns):
            lib.define(f"op{turn}(Tensor x) -> Tensor")
        done(results=results(workers))
        """,
        str(tmp_path),
        WAITING_WORKER,
        TURNS,
    )
    assert [r["seen"][0][0] for r in got["results"]] == ["late::op0(Tensor x) -> Tensor"] * 2


IMPL_WORKER = """
import mdispatch as md
i_am_here()
fact = md.wait_for_impl("late::op", "CUDA", 30.0)
report(label=fact.body, key=fact.key.name)
"""


def test_a_wait_for_a_kernel_is_satisfied_by_exactly_that_key(tmp_path) -> None:
    got = run_main(
        """
        folder, text = args
        md.default_registry()
        workers = start("spawn", text, 1, Path(folder))
        until_asleep(workers)
        lib = md.Library("late", "DEF")
        lib.define("op(Tensor x) -> Tensor")
        lib.impl("op", len, "CPU")
        lib.impl("op", len, "CompositeExplicitAutograd")
        until_asleep(workers)
        lib.impl("op", max, "CUDA")
        done(results=results(workers))
        """,
        str(tmp_path),
        IMPL_WORKER,
    )
    assert got["results"] == [{"label": "builtins.max", "key": "CUDA"}]

"""All members of a job get one verdict about all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import environment
from dying import POINTS, ends_by_itself
from kinds import KINDS, OUTCOMES, run_main
from members import Member, member
from patience import limit

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.choices import inventory, verdicts
from mdispatch.choices.fields import Field
from mdispatch.choices.kind import KEPT, VALUE
from mdispatch.choices.values import Damaged, dumps

shared = pytest.mark.shared

OPS = """
import os
import mdispatch as md

lib = md.Library("rc", "DEF")
for name in {names}:
    default = 7 if name == os.environ.get("BAD") else 3
    lib.define(f"{{name}}(int a, int b={{default}}) -> int")
    lib.impl(name, lambda a, b: a + b, "CPU")
"""

CALL = """
try:
    verdict = md.roll_call(**{0!r})
    print("agree" if verdict.agrees else "differ", verdict)
except errors.RollCallError as error:
    print("raised", f"differs={{error.differs}}", f"late={{error.late is not None}}", error)
"""


@contextlib.contextmanager
def ranks(folder: Path, count: int, address: str, **env: str) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(member(address, folder, RANK=str(each), MDISPATCH_HOST="n1", **env))
            for each in range(count)
        ]


def all_call(members: Sequence[Member], **options: object) -> list[str]:
    """The outcome of each."""
    options = {"expected": len(members), "timeout": limit(30), **options}
    for each in members:
        each.begin(CALL.format(options))
    return [each.told() for each in members]


def await_posts(registry: md.Registry, count: int) -> None:
    """Waits until so many members have called."""
    facts, seq = registry.dispatcher.facts, 0
    while sum(len(each.posts) for each in md.choices.roll_calls(registry=registry)) < count:
        seq, _ = facts.await_change(seq, limit(30))


def verdicts_in(registry: md.Registry) -> list[str]:
    there = registry.dispatcher.facts.registrations_since(KEPT, 0)[1]
    return [fact.text for fact in there if fact.name.startswith("(roll call")]


# --- one member -----------------------------------------------------------------------------------


@pytest.mark.either_binding
def test_one_member_agrees_with_itself(registry) -> None:
    for turn in range(3):
        verdict = md.roll_call(expected=1, registry=registry)
        assert str(verdict) == "1 agrees"
        assert verdict.agrees
        assert (verdict.round, verdict.absent, verdict.lacking) == (str(turn), (), 0)
        (its,) = verdict.members
        assert (its.pid, its.interpreter, its.group) == (os.getpid(), 0, 0)


def test_a_local_registry_says_at_once_that_nobody_can_come() -> None:
    with md.Registry.local() as registry:
        assert md.roll_call(expected=1, registry=registry).agrees
        with pytest.raises(
            errors.NotSharedError, match=r"roll_call\(expected=2\) needs a registry"
        ):
            md.roll_call(expected=2, timeout=None, registry=registry)


@shared
def test_a_host_of_a_cluster_says_that_it_is_meant_alone(registry) -> None:
    registry.dispatcher.facts.register(facts.STANDING, 0, facts.STANDS, "{}", "bridge.py:1")
    with pytest.raises(errors.AgreementScopeError, match='Say scope="host"'):
        md.roll_call(expected=1, registry=registry)
    assert md.choices.roll_calls(registry=registry) == []
    assert md.roll_call(expected=1, scope="host", registry=registry).agrees


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"expected": 0}, "expected=0: it is the number of members, from 1 to 1000"),
        ({"expected": True}, "expected=True"),
        ({"expected": 1001}, "expected=1001"),
        ({"name": ""}, "a roll call has a name of 1 to 100 printable letters, not ''"),
        ({"name": 3}, "a roll call has a name"),
        ({"round": "x" * 101}, "a roll call has a round of 1 to 100"),
        ({"leader": -1}, "leader=-1: it is a rank"),
        ({"leader": "0"}, "leader='0'"),
        ({"ignore": "operators"}, "ignore= takes a list"),
        ({"ignore": ["a["]}, "ignore='a\\['"),
        ({"scope": "all"}, "scope=all"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_bad_input_is_refused_before_anything_changed(registry, options, why) -> None:
    before = registry.dispatcher.facts.stat()
    with pytest.raises(errors.InvalidArgumentError, match=why):
        md.roll_call(**{"expected": 1, "registry": registry, **options})
    assert registry.dispatcher.facts.stat() == before


@shared
def test_ranks_without_a_registry_in_common_hear_of_it_at_once(tmp_path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import mdispatch as md\nmd.roll_call(expected=8, timeout=None)"],
        cwd=tmp_path,
        env=environment(RANK="3", WORLD_SIZE="8"),
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert "NotSharedError: roll_call(expected=8): this process has a registry of its own" in (
        told.stderr
    )
    assert "MDISPATCH_REGISTRY=elect:NAME" in told.stderr


# --- several --------------------------------------------------------------------------------------

ALL = """
import mdispatch as md
md.default_registry()
verdict = md.roll_call(expected=4, timeout=limit(60))
report(outcome=[verdict.agrees, str(verdict)])
"""


@shared
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "thread"])
def test_members_of_every_kind_agree(kind, tmp_path) -> None:
    got = run_main(OUTCOMES, kind, 4, str(tmp_path), ALL)
    assert got["got"] == [[True, "4 agree"]] * 4
    assert got["check"] == ""


@shared
def test_the_majority_is_right_and_all_hear_who_differs_in_what(tmp_path, registry) -> None:
    with ranks(tmp_path, 4, registry.address) as its:
        for each in its:
            each.run("config = {'tokens': 4096, 'policy': {'name': 'fcfs'}}")
        its[2].run("md.agree('other', 1)")
        for each in its[:2] + its[3:]:
            each.run("md.agree('engine', config, ignore=['x'])")
        told = all_call(its)
        head = "roll call 'job', round '0': 3 agree; rank 2 on n1 differs in engine and in other\n"
        for rank, text in enumerate(told):
            assert text.startswith(f"raised differs={rank == 2} late=False {head}")
            assert "  agreements.engine: missing at rank 2 on n1, and {'policy': {'name':" in text
            assert (
                "  agreements.other: 1 at rank 2 on n1, and missing at ranks 0, 1, 3 on n1" in text
            )
            which = "this member differs" if rank == 2 else "this member is right"
            assert f"({which})\n" in text
        assert len(verdicts_in(registry)) == 1
        # The next one has a verdict of its own.
        its[2].run(
            "mdispatch = md; md.choices.leave('other'); md.agree('engine', config, ignore=['x'])"
        )
        assert all_call(its) == ["agree 4 agree\n"] * 4
        assert len(verdicts_in(registry)) == 2


@pytest.mark.thorough
@shared
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("lacks", [False, True], ids=["default", "operator"])
def test_a_differing_rank_that_comes_first_is_the_one_that_differs(tmp_path, first, lacks) -> None:
    (tmp_path / "ops.py").write_text(OPS.format(names=["a", "b", "c"]))
    (tmp_path / "ops_less.py").write_text(OPS.format(names=["a", "c"]))
    address = f"elect:roll-{os.getpid()}-{first}-{lacks}"
    with ranks(tmp_path, 4, address, MDISPATCH_ON_DIFFERENCE="roll_call") as its:
        odd = its[1]
        for each in (odd, *its) if first else its:
            if each is odd:
                each.run("import os; os.environ['BAD'] = 'b'")
            each.run(f"import ops{'_less' * (lacks and each is odd)}")
        told = all_call(its)
        for rank, text in enumerate(told):
            assert "3 agree; rank 1 on n1 differs in 1 of 3 operators\n" in text
            assert text.startswith(f"raised differs={rank == 1} ")
            if lacks:
                assert "  operators.rc.b: missing at rank 1 on n1, and 'rc::b(int a" in text
            else:
                assert "  operators.rc.b.schema: 'rc::b(int a, int b=7) -> int' at rank 1" in text
        ignored = all_call(its, ignore=["operators.rc.b"])
        assert ignored == ["agree 4 agree\n"] * 4


@shared
def test_a_member_that_observes_is_warned_of_the_verdict(tmp_path, registry) -> None:
    with ranks(tmp_path, 3, registry.address, MDISPATCH_ON_DIFFERENCE="warn") as its:
        its[0].run("md.agree('engine', 1)")
        for text in all_call(its):
            assert text.startswith("mdispatch.verify: differs from ")
            assert text.endswith("differ 2 agree; rank 0 on n1 differs in engine\n")


@pytest.mark.thorough
@shared
def test_without_a_majority_each_group_is_named(tmp_path, registry) -> None:
    with ranks(tmp_path, 4, registry.address) as its:
        for each in its[:2]:
            each.run("md.agree('engine', 1)")
        its[0].begin(CALL.format({"expected": 4, "timeout": limit(30)}))
        for each in its[1:]:
            each.begin(CALL.format({"expected": 4, "timeout": limit(30)}))
        for each in its:
            text = each.told()
            assert text.startswith("raised differs=True ")
            assert "nobody has a majority" in text
            assert "ranks 0, 1 on n1" in text
            assert "ranks 2, 3 on n1" in text
            assert "say whose version is right (leader=)" in text


@shared
def test_the_leaders_version_may_be_right(tmp_path, registry) -> None:
    with ranks(tmp_path, 3, registry.address) as its:
        its[2].run("md.agree('engine', 1)")
        for rank, text in enumerate(all_call(its, leader=2)):
            assert text.startswith(f"raised differs={rank != 2} ")
            assert "1 agrees; ranks 0, 1 on n1 differ in engine\n" in text
        for text in all_call(its, leader=7, ignore=["agreements"]):
            assert text.startswith("raised differs=False ")
            assert ": 3 agree; rank 7, whose version is right, did not come\n" in text
            assert "Let rank 7 come, or name another one (leader=)." in text


@shared
def test_absent_ranks_are_named(tmp_path, registry) -> None:
    with ranks(tmp_path, 3, registry.address) as its:
        for each in its[:2]:
            each.begin(CALL.format({"expected": 5, "timeout": None}))
        await_posts(registry, 2)
        for text in (its[2].run(CALL.format({"expected": 5, "timeout": 0})), its[0].told()):
            assert text.startswith("raised differs=False late=False ")
            assert ": 3 agree; ranks 3, 4 are absent\n" in text
        its[1].told()
    with member(registry.address, tmp_path) as its:
        told = its.run(CALL.format({"expected": 3, "timeout": 0.0}))
        assert ": 1 agrees; 2 of 3 are absent\n" in told
        assert "Look for an error in the log of those that are absent" in told


@shared
def test_a_member_in_another_round_is_told(tmp_path, registry) -> None:
    with ranks(tmp_path, 2, registry.address) as its:
        assert all_call(its, round="warm") == ["agree 2 agree\n"] * 2
        told = its[0].run(CALL.format({"expected": 2, "timeout": 0.0}))
        assert f"(pid {its[1].process.pid}) is in round 'warm'" in told


@shared
def test_a_launchers_restart_is_another_round(tmp_path, registry) -> None:
    with ranks(tmp_path, 1, registry.address, TORCHELASTIC_RESTART_COUNT="2") as (its,):
        assert its.run("print(md.roll_call(expected=1).round)") == "2.0\n"
        assert its.run("print(md.roll_call(expected=1).round)") == "2.1\n"
        assert its.run("print(md.roll_call(expected=1, round=7).round)") == "7\n"


@shared
def test_members_that_expect_other_numbers_differ_in_that(tmp_path, registry) -> None:
    with ranks(tmp_path, 3, registry.address) as its:
        options = {"timeout": limit(30), "round": "x"}
        its[0].begin(CALL.format({"expected": 3, **options}))
        its[1].begin(CALL.format({"expected": 3, **options}))
        await_posts(registry, 2)
        told = its[2].run(CALL.format({"expected": 2, **options}))
        for text in (told, its[0].told(), its[1].told()):
            assert "2 agree; rank 2 on n1 differs in the call's expected=\n" in text
            assert "  call.expected: 2 at rank 2 on n1, and 3 at ranks 0, 1 on n1\n" in text


# --- late, dead -----------------------------------------------------------------------------------


@shared
def test_a_late_member_is_compared_with_what_is_right(tmp_path, registry) -> None:
    with ranks(tmp_path, 4, registry.address) as its:
        assert all_call(its[:2], expected=2) == ["agree 2 agree\n"] * 2
        assert its[2].run(CALL.format({"expected": 2})) == "agree 2 agree\n"
        its[3].run("md.agree('engine', 1)")
        told = its[3].run(CALL.format({"expected": 2}))
        assert told.startswith("raised differs=True late=True ")
        assert ": 2 agree; rank 3 on n1 differs in engine\n" in told
        assert "  agreements.engine: 1 at rank 3 on n1, and missing at ranks 0, 1 on n1\n" in told
        assert " s)\nMake this member import the same versions" in told
        assert len(verdicts_in(registry)) == 1


@shared
def test_a_member_that_comes_after_it_was_found_absent_fails_too(tmp_path, registry) -> None:
    with ranks(tmp_path, 2, registry.address) as its:
        assert "; rank 1 is absent\n" in its[0].run(CALL.format({"expected": 2, "timeout": 0.0}))
        told = its[1].run(CALL.format({"expected": 2, "timeout": None}))
        assert told.startswith("raised differs=False late=True ")
        assert "The others have ended this round without it." in told
        assert all_call(its) == ["agree 2 agree\n"] * 2  # both try again


@pytest.mark.thorough
@shared
def test_the_verdict_of_a_dead_job_is_met_by_nobody(tmp_path, registry) -> None:
    for turn in range(3):
        with ranks(tmp_path, 3, registry.address) as its:
            its[0].run(f"md.agree('engine', {turn})")
            for text in all_call(its):
                assert "2 agree; rank 0 on n1 differs in engine\n" in text
                assert f"agreements.engine: {turn} at rank 0" in text
            for each in its:
                each.process.send_signal(signal.SIGKILL if turn else signal.SIGTERM)
                each.end()
        assert len(verdicts_in(registry)) == 1


@shared
def test_a_round_takes_the_verdicts_that_nobody_needs_out_of_the_registry(
    tmp_path, registry
) -> None:
    """A member has the post, and so the verdict, of its last round until it has taken the next."""
    with ranks(tmp_path, 2, registry.address) as its:
        for _ in range(5):
            assert all_call(its, expected=2) == ["agree 2 agree\n"] * 2
            assert all_call(its[:1], expected=1, name="other") == ["agree 1 agrees\n"]
        kept = [json.loads(text) for text in verdicts_in(registry)]
        assert sorted(each["name"] + each["round"] for each in kept) == [
            "job3",
            "job4",
            "other3",
            "other4",
        ]
        its[0].process.kill()
        its[0].end()
        assert its[1].run(CALL.format({"expected": 1})) == "agree 1 agrees\n"
        assert len([text for text in verdicts_in(registry) if '"job"' in text]) == 2


@shared
def test_who_has_posted_and_died_is_absent(tmp_path, registry) -> None:
    with ranks(tmp_path, 3, registry.address) as its:
        for each in its[:2]:
            each.begin(CALL.format({"expected": 3, "timeout": None}))
        await_posts(registry, 2)
        its[1].process.kill()
        its[1].end()
        told = its[2].run(CALL.format({"expected": 3, "timeout": 0.0}))
        assert "2 agree; rank 1 is absent\n" in told
        assert "2 agree; rank 1 is absent\n" in its[0].told()


@shared
def test_an_interrupt_takes_the_post_back(registry) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    facts = registry.dispatcher.facts
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        timer = threading.Thread(
            target=lambda: (await_posts(registry, 1), os.kill(os.getpid(), signal.SIGALRM))
        )
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            md.roll_call(expected=2, timeout=None, registry=registry)
        timer.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [fact.name for fact in facts.registrations_since(VALUE, 0)[1]] == []


@shared
@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2], ids=["last", "waits"])
def test_a_member_may_die_before_and_after_each_step(registry, tmp_path, count) -> None:
    """It leaves a registry in order, and a job that is started again agrees."""
    facts = registry.dispatcher.facts
    for point in range(1, 200):
        with ranks(tmp_path, 2, registry.address) as its:
            if count == 1:
                its[0].begin(CALL.format({"expected": 2, "timeout": None}))
            its[1].run(POINTS.format(point))
            its[1].begin(CALL.format({"expected": 2, "timeout": 0.0 if count == 2 else None}))
            done = ends_by_itself(its[1].process)
            for each in its:
                each.process.kill()
                each.end()
        assert facts.check() == ""
        with ranks(tmp_path, 2, registry.address) as its:
            assert all_call(its, timeout=None) == ["agree 2 agree\n"] * 2
        if done:
            break
    else:
        raise AssertionError("it has not come to its end")
    assert point > 4


# --- what members have ----------------------------------------------------------------------------


def had(registry: md.Registry) -> dict:
    from mdispatch.choices.patterns import Rules

    return inventory.inventory(registry.dispatcher, lambda fact: True, Rules((), (), (), str), {})


@pytest.mark.either_binding
def test_what_a_member_has(registry) -> None:
    lib = md.Library("own", "DEF", registry=registry)
    lib.define("f(Tensor a, int b=3) -> Tensor", tags=["pt2_compliant_tag"])
    lib.impl("f", lambda a, b: a, "CPU")
    lib.impl("f", lambda a, b: a, "CPU", provider="fast", required=False, available=lambda: True)
    lib.impl("f", md.fallthrough_kernel, "AutogradCPU")
    md.agree("#x", {"y": 1}, registry=registry)
    md.agree("flags", {"y": 1}, follow=True, registry=registry)
    assert had(registry) == {
        "operators": {
            "own": {
                "f": {
                    "schema": "own::f(Tensor a, int b=3) -> Tensor",
                    "attributes": " pt2_compliant_tag",
                    "kernels": {"CPU": "a kernel", "AutogradCPU": "falls through"},
                }
            }
        },
        "agreements": {"(#)x": {"y": 1}, "flags": '{"y":1}'},
        "call": {},
    }


@shared
def test_a_worker_has_what_it_has_verified(registry, worker) -> None:
    for its in (registry, worker):
        lib = md.Library("own", "DEF", registry=its)
        lib.define("f(int a) -> int")
        lib.impl("f", lambda a: a, "CPU")
        if its is registry:
            lib.define("g(int a) -> int")
            lib.impl("f", lambda a: a + 1, "CUDA")
    assert had(worker)["operators"] == {
        "own": {"f": {"schema": "own::f(int a) -> int", "kernels": {"CPU": "a kernel"}}}
    }
    assert set(had(registry)["operators"]["own"]) == {"f", "g"}


KINDS_OF_REGISTRATIONS = """
import multiprocessing, os, sys
import mdispatch as md

lib = md.Library("all", "DEF")
lib.define("f(Tensor a, int b=3) -> Tensor", tags=["pt2_compliant_tag"])
for key in ("CPU", "CUDA", "CPU"):
    lib.impl("f", lambda a, b=3: a, key)
lib.impl("f", lambda a, b=3: a, "CPU", types=(str,))
lib.impl("f", lambda a, b=3: a, "CPU", provider="fast")
lib.impl("f", lambda a, b=3: a, "CPU", provider="perhaps", required=False)
lib.define("f.other(Tensor a, str b) -> Tensor")
lib.impl("f.other", md.fallthrough_kernel, "AutogradCPU")
fallback = md.Library("_", "IMPL")
fallback.fallback(lambda op, keys, *args: None, "AutocastCPU")
lib.set_python_module("some.module")
lib.define("g(int a) -> int")

@md.custom_op("all::h", mutates_args=())
def h(x: md.Tensor) -> md.Tensor:
    return x

@h.register_fake
def _(x):
    return x

@md.register_class("all.Box")
class Box:
    def __init__(self, a: int) -> None: ...
    def m(self) -> int: return 1

def call():
    os.write(1, f"{md.roll_call(expected=2, timeout=None)}\\n".encode())

if __name__ == "__main__":
    md.set_priority("all::f", ["fast", "perhaps"])
    other = multiprocessing.get_context(sys.argv[1]).Process(target=call)
    other.start()
    call()
    other.join()
"""


@shared
@pytest.mark.needs("across", "providers")
@pytest.mark.parametrize("team", [False, True], ids=["main", "elect"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_registrations_of_every_kind_are_the_same(tmp_path, method, team) -> None:
    (tmp_path / "every_kind.py").write_text(KINDS_OF_REGISTRATIONS)
    env = {"MDISPATCH_REGISTRY": f"elect:kinds-{os.getpid()}-{method}"} if team else {}
    done = subprocess.run(
        [sys.executable, "every_kind.py", method],
        cwd=tmp_path,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=limit(120),
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "2 agree\n2 agree\n"


@shared
def test_a_member_that_lives_through_a_redefinition_has_the_old_definition(
    registry, tmp_path
) -> None:
    text = """
    lib = md.Library("own", "DEF")
    lib.define("f(int a, int b=3) -> int")
    lib.impl("f", lambda a, b=3: a + b, "CPU")
    """
    with ranks(tmp_path, 1, registry.address) as (its,):
        for default in (3, 3, 7):  # the second one is the same again
            lib = md.Library("own", "DEF", registry=registry)
            lib.define(f"f(int a, int b={default}) -> int")
            lib.impl("f", lambda a, b=3: a + b, "CPU")
            if default == 3:
                its.run("if 'lib' in globals(): lib.close()")
                its.run(text)
            its.begin(CALL.format({"expected": 2, "timeout": None}))
            try:
                answer = str(md.roll_call(expected=2, timeout=None, registry=registry))
            except errors.RollCallError as error:
                answer = str(error)
            told = its.told()
            if default == 3:
                assert (answer, told) == ("2 agree", "agree 2 agree\n")
            else:
                assert "differs in 1 of 1 operators" in answer
                assert "operators.own.f.schema: 'own::f(int a, int b=" in told
            lib.close()


@pytest.mark.thorough
def test_long_texts_are_digests_of_operators_then_of_namespaces() -> None:
    def of(count: int, default: int = 0) -> dict:
        its = {f"f{n}": {"schema": f"a::f{n}(int b={default * (n == 7)})"} for n in range(count)}
        return {"operators": {"a": its}, "agreements": {"x": 1}, "call": {"expected": 2}}

    levels = [inventory.level(node, dumps(node)) for node in (of(10), of(10_000), of(120_000))]
    assert levels == [0, 1, 2]
    one = inventory.shortened(of(10), 0, 1)
    assert one["agreements"] == {"x": inventory.shortened(of(20, 3), 0, 1)["agreements"]["x"]}
    found = inventory.compared(one, inventory.shortened(of(10, 3), 0, 1), 1)
    assert found.counts == {"operators": (1, 10)}
    assert [each.path for each in found.fields] == ["operators.a.f7"]
    two = inventory.shortened(one, 1, 2)
    assert two == inventory.shortened(of(10), 0, 2)
    found = inventory.compared(two, inventory.shortened(of(10, 3), 0, 2), 2)
    assert found.counts == {"operators": (0, 0)}
    assert "".join(inventory.pieces("ab" * 100_000)) == "ab" * 100_000
    assert len(inventory.pieces("ab" * 100_000)) == 4


@shared
@pytest.mark.thorough
def test_members_with_thousands_of_operators_agree(tmp_path) -> None:
    (tmp_path / "ops.py").write_text(OPS.format(names=[f"op{n}" for n in range(4000)]))
    with ranks(
        tmp_path, 2, f"elect:many-{os.getpid()}", MDISPATCH_ON_DIFFERENCE="roll_call"
    ) as its:
        its[0].run("import ops")
        its[1].run("import os; os.environ['BAD'] = 'op77'; import ops")
        told = all_call(its, leader=0)
        for text in told:
            assert "1 agrees; rank 1 on n1 differs in 1 of 4000 operators\n" in text
            assert "  operators.rc.op77: " in text


# --- the text of a verdict ------------------------------------------------------------------------


def verdict(count: int = 1000, kinds: int = 100) -> verdicts.Verdict:
    fields = tuple(Field(f"operators.a.f{n}", "x" * 190, "y" * 190) for n in range(8))
    members = tuple(
        verdicts.Member(7 + n, 0, n, f"n{n % 20}", f"a.py:{n}", n % kinds, n + 1)
        for n in range(count)
    )
    groups = [verdicts.Group(n == 0, f"in {n}", fields * (n > 0), 9, f"d{n}") for n in range(kinds)]
    return verdicts.Verdict("job", "0", count, False, members, tuple(groups), (), 0, None, 1.5)


@pytest.mark.thorough
def test_a_verdict_has_room_in_a_registration() -> None:
    text = verdicts.write(verdict(), 1 << 16)
    assert 60_000 < len(text) <= 1 << 16
    back = verdicts.read(text)
    assert len(back.members) == 1000
    assert back.groups[1] == verdict().groups[1]
    assert back.groups[99].fields == ()
    assert back.members[3] == verdict().members[3]
    assert verdicts.read(verdicts.write(back, 1 << 16)) == back


def test_a_text_that_is_no_verdict_is_damaged() -> None:
    text = verdicts.write(verdict(3, 2), 1 << 16)
    for at in (*range(300), *range(len(text) - 300, len(text))):
        for other in ("", "x", "9", "-", "[", "]", '"', "null"):
            changed = text[:at] + other + text[at + 1 :]
            with contextlib.suppress(Damaged):
                verdicts.read(changed)
    for text in ("", "[]", "{}", "null", '{"groups":[],"members":[[1]]}', "[" * 100_000):
        with pytest.raises(Damaged):
            verdicts.read(text)


@shared
def test_texts_of_other_programs_count_nobody(registry, tmp_path) -> None:
    facts = registry.dispatcher.facts
    for text in ("", "{", '{"digest": 3}', '{"digest":"x","host":"","expected":"","level":0}'):
        facts.register(VALUE, 0, "(roll call 'job' '0')", text, "elsewhere.py:1")
    facts.register(KEPT, 5, "(roll call 'job' verdicts)", "{}", "elsewhere.py:1")
    with ranks(tmp_path, 2, registry.address) as its:
        assert all_call(its) == ["agree 2 agree\n"] * 2

"""The members of a running job agree on each of its steps, in constant memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from commands import environment
from members import member
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.choices.kind import KEPT

shared = pytest.mark.shared


def steps_there(registry: md.Registry) -> list[int]:
    facts = registry.dispatcher.facts
    names = [fact.name for fact in facts.registrations_since(KEPT, 0)[1]]
    return sorted(int(name.split()[-1]) for name in names if name.split()[-1].isdigit())


@pytest.mark.either_binding
def test_a_window_holds_the_newest_steps_and_no_more(registry) -> None:
    with md.agreeing("steps", window=10, registry=registry) as steps:
        for n in range(1000):
            steps.agree(n, f"batch {n}")
            steps.agree(n, f"batch {n}")
            assert len(steps_there(registry)) <= 20
        assert set(range(990, 1000)) <= set(steps_there(registry))
        for n in (980, 0):
            with pytest.raises(
                errors.StepGoneError, match=f"step {n} of 'steps' has left"
            ) as caught:
                steps.agree(n, "batch")
            assert (caught.value.step, caught.value.window) == (n, 10)


@pytest.mark.parametrize("bad", [-1, True, "3", 1 << 31, 2.0])
def test_a_step_is_a_number(registry, bad) -> None:
    with (
        md.agreeing("steps", registry=registry) as steps,
        pytest.raises(errors.InvalidArgumentError, match="a step is a number from 0 on"),
    ):
        steps.agree(bad, 1)


@pytest.mark.parametrize("bad", [0, -1, "3", True])
def test_a_window_is_a_number_of_steps(registry, bad) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="it is a number of steps"):
        md.agreeing("steps", window=bad, registry=registry)


def test_who_has_left_asks_no_more(registry) -> None:
    with md.agreeing("steps", registry=registry) as steps:
        steps.agree(0, 1)
    steps.close()
    for step in (0, 1):
        with pytest.raises(errors.InvalidArgumentError, match="has left the run already"):
            steps.agree(step, 1)


@shared
def test_the_child_of_a_fork_is_in_no_run(tmp_path) -> None:
    code = """
        import os, mdispatch as md
        with md.agreeing("steps", window=5) as steps:
            steps.agree(0, "a")
            pid = os.fork()
            if pid == 0:
                try:
                    steps.agree(0, "a")
                except md.errors.InvalidArgumentError as error:
                    assert "that of the parent of this process" in str(error)
                    steps.close()
                    with md.agreeing("steps", window=5) as own:
                        own.agree(0, "a")
                        os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            steps.agree(1, "b")
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        check=True,
        timeout=limit(60),
    )


def test_a_run_that_cannot_begin_leaves_nothing(registry, monkeypatch) -> None:
    def full(self, floor: int) -> None:
        raise errors.RegistryFullError("full")

    with monkeypatch.context() as patched:
        patched.setattr("mdispatch.choices.steps.Steps._raise_floor", full)
        with pytest.raises(errors.RegistryFullError):
            md.agreeing("steps", window=5, registry=registry)
    assert md.choices.agreements(registry=registry) == []
    with md.agreeing("steps", window=6, registry=registry) as steps:
        steps.agree(0, 1)


@shared
def test_a_step_that_differs_names_both_values_and_locations(registry, tmp_path) -> None:
    with member(registry.address, tmp_path) as other:
        other.run("steps = md.agreeing('steps', window=5); steps.agree(3, {'loss': [1, 2.5]})")
        with md.agreeing("steps", window=5, registry=registry) as steps:
            steps.agree(3, {"loss": (1, 2.5)})
            steps.agree(4, "x" * 5000)
            with pytest.raises(errors.DisagreementError) as caught:
                steps.agree(3, {"loss": [1, 2.6]})
            assert other.run("steps.agree(4, 'x' * 5000)") == ""
            told = other.run(
                """
                try:
                    steps.agree(4, "y" * 5000)
                except errors.DisagreementError as error:
                    print(error)
                """
            )
        error = caught.value
        assert (error.name, error.step, error.pid) == ("steps", 3, other.process.pid)
        assert "step 3 of 'steps' has another value in another member: " in str(error)
        assert "loss[1] is 2.6 here, and 2.5 there" in str(error)
        assert "it is a large value, digest" in told


@shared
def test_the_window_is_compared(registry, tmp_path) -> None:
    with member(registry.address, tmp_path) as other, md.agreeing("steps", registry=registry):
        told = other.run(
            """
            try:
                md.agreeing("steps", window=5)
            except errors.DisagreementError as error:
                print(*error.fields)
            """
        )
    assert told == "window is 5 here, and 1000 there\n"


@shared
def test_the_steps_of_a_member_that_was_killed_stay_and_end_with_the_run(
    registry, tmp_path
) -> None:
    with member(registry.address, tmp_path) as first, member(registry.address, tmp_path) as second:
        begin = "steps = md.agreeing('steps', window=5)"
        first.run(f"{begin}; steps.agree(3, 'a')")
        second.run(begin)
        first.process.kill()
        first.end()
        told = second.run(
            """
            steps.agree(3, "a")
            try:
                steps.agree(3, "b")
            except errors.DisagreementError:
                print("differs")
            """
        )
        assert told == "differs\n"
        with md.agreeing("steps", window=5, registry=registry) as steps:
            steps.agree(3, "a")  # the run goes on as long as one member is there
        assert second.run("steps.close()") == ""
    with md.agreeing("steps", window=5, registry=registry) as steps:
        assert steps_there(registry) == []
        steps.agree(3, "another run")


@shared
def test_a_slow_member_never_takes_itself_for_the_first(registry, tmp_path) -> None:
    with (
        member(registry.address, tmp_path) as fast,
        md.agreeing("s", window=8, registry=registry) as slow,
    ):
        fast.run("steps = md.agreeing('s', window=8)")
        outcomes = set()
        for n in range(0, 60, 3):
            fast.run(f"for n in range({n * 4}, {n * 4 + 12}): steps.agree(n, n)")
            for step in range(n * 4):
                try:
                    slow.agree(step, -1)
                except (errors.StepGoneError, errors.DisagreementError) as error:
                    outcomes.add(type(error).__name__)
                else:
                    raise AssertionError(f"step {step} was compared with none")
        assert outcomes == {"StepGoneError", "DisagreementError"}

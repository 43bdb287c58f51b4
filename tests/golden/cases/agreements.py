"""Golden errors of agreements."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from unittest.mock import patch

from golden_stage import Stage, case, elsewhere

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.logs import calls_log, registry_log, verify_log, waits_log
from mdispatch.facts.opening import ENVIRONMENT

CONFIG = {"size": 4096, "plugins": ["a", "b"], "hosts": {"x": 1}, "password": "open sesame"}


def differs(stage: Stage, there: str, here: str, **options: object) -> None:
    """Asks here, and then in another process, whose lines are ``here``."""
    exec(f"md.agree('engine', {there}, registry=stage.registry)", {"md": md, "stage": stage})
    script = f"import mdispatch as md\nmd.agree('engine', {here})\n"
    elsewhere(stage, script, RANK="3", **{ENVIRONMENT: stage.registry.address})


@case("DisagreementError: parts of a value")
def _(stage: Stage) -> None:
    changed = {**CONFIG, "size": 8192, "plugins": ["a"], "hosts": {"y": {1, 2}}}
    differs(stage, repr(CONFIG), repr({**changed, "password": "please"}))


@case("DisagreementError: many parts")
def _(stage: Stage) -> None:
    differs(stage, repr(dict.fromkeys("abcdefghijk", 1)), repr(dict.fromkeys("abcdefghijk", 2)))


@case("DisagreementError: the value itself, of another type")
def _(stage: Stage) -> None:
    differs(stage, "[1, 2]", "{'a': 1}")


@case("DisagreementError: a value that is too large")
def _(stage: Stage) -> None:
    large = "{f'k{at}': at for at in range(50_000)}"
    differs(stage, large, f"{{**{large}, 'k77': 0}}")


@case("DisagreementError: other patterns")
def _(stage: Stage) -> None:
    differs(stage, "{'a': 1, 'b': 2}, ignore=['a']", "{'a': 1, 'b': 2}, only=['b']")


@case("DisagreementError: a step")
def _(stage: Stage) -> None:
    with md.agreeing("steps", registry=stage.registry) as steps:
        steps.agree(17, {"loss": 2.5})
        steps.agree(17, {"loss": 2.6})


@case("StepGoneError: a step has left the window")
def _(stage: Stage) -> None:
    with md.agreeing("steps", window=2, registry=stage.registry) as steps:
        for step in range(10):
            steps.agree(step, step)
        steps.agree(0, 0)


@case("AgreementTimeoutError: others are absent")
def _(stage: Stage) -> None:
    before = os.environ.get("RANK")
    os.environ["RANK"] = "1"
    try:
        md.agree("plan", 1, among=4, timeout=0, registry=stage.registry)
    finally:
        del os.environ["RANK"]
        if before is not None:
            os.environ["RANK"] = before


@case("NotSharedError: an agreement among several, alone")
def _(stage: Stage) -> None:
    with md.Registry.local() as registry:
        md.agree("plan", 1, among=4, registry=registry)


@case("RegistryDamagedError: an agreement that is none")
def _(stage: Stage) -> None:
    facts = stage.registry.dispatcher.facts
    facts.register(26, 0, "(agree plan)", "nonsense", "here.py:1")
    md.agree("plan", 1, registry=stage.registry)


@case("InvalidArgumentError: agree, a part that no other process could compare")
def _(stage: Stage) -> None:
    md.agree("engine", {"hooks": [len, object()]}, registry=stage.registry)


@case("InvalidArgumentError: agree, a pattern for nothing")
def _(stage: Stage) -> None:
    md.agree("engine", CONFIG, only=["hosts.z"], registry=stage.registry)


@case("InvalidArgumentError: agree, a secret that others would take")
def _(stage: Stage) -> None:
    md.agree("engine", CONFIG, follow=True, registry=stage.registry)


# --- roll calls -----------------------------------------------------------------------------------

HERE = {"RANK": "0", "MDISPATCH_HOST": "node-1"}


def call(stage: Stage, **options: object) -> None:
    """Calls the roll here, as rank 0."""
    with suppress(errors.RollCallError):
        md.roll_call(registry=stage.registry, **{"timeout": 60, **options})  # type: ignore[arg-type]


def called(stage: Stage, here: str, there: dict[str, object] | None, **options: object) -> None:
    """Calls the roll in another process, as rank 1, after its lines ``here``. With ``there`` this
    process calls at the same time, with these options more.
    """
    thread = threading.Thread(target=call, args=(stage,), kwargs={**options, **(there or {})})
    for area in (calls_log, registry_log, verify_log, waits_log):
        area.listens()  # now it knows the name of this host, and keeps it
    with patch.dict(os.environ, HERE):
        if there is not None:
            thread.start()
            facts, seq = stage.registry.dispatcher.facts, 0
            while not md.choices.roll_calls(registry=stage.registry):  # this one posts first
                seq, _ = facts.await_change(seq, None)
        given = ", ".join(f"{name}={its!r}" for name, its in {"timeout": 60, **options}.items())
        script = f"import mdispatch as md\n{here}\nmd.roll_call({given})\n"
        address = {ENVIRONMENT: stage.registry.address, "MDISPATCH_HOST": "node-1"}
        elsewhere(stage, script, RANK="1", **address)
        if there is not None:
            thread.join()


@case("RollCallError: the leader has another version")
def _(stage: Stage) -> None:
    md.agree("engine", CONFIG, registry=stage.registry)
    more = "md.agree('engine', {**" + repr(CONFIG) + "}); md.agree('flags', 1)"
    called(stage, more, {}, expected=2, leader=0)


@case("RollCallError: nobody has a majority")
def _(stage: Stage) -> None:
    called(stage, "md.agree('flags', 1)", {}, expected=2)


@case("RollCallError: the call itself")
def _(stage: Stage) -> None:
    called(stage, "", {"expected": 2, "leader": None}, expected=2, leader=1)


@case("RollCallError: some are absent")
def _(stage: Stage) -> None:
    called(stage, "", None, expected=4, timeout=0)


@case("RollCallError: a member that comes late and differs")
def _(stage: Stage) -> None:
    with patch.dict(os.environ, HERE):
        call(stage, expected=1)
    called(stage, "md.agree('flags', {'fast': True})", None, expected=1)


@case("RollCallError: a member that was absent")
def _(stage: Stage) -> None:
    with patch.dict(os.environ, HERE):
        call(stage, expected=2, timeout=0)
    called(stage, "", None, expected=2)


@case("RollCallError: another member is in another round")
def _(stage: Stage) -> None:
    with patch.dict(os.environ, HERE):
        call(stage, expected=1, round="warm")
    called(stage, "", None, expected=2, timeout=0)


@case("NotSharedError: a roll call of ranks that have nothing in common")
def _(stage: Stage) -> None:
    elsewhere(stage, "import mdispatch as md\nmd.roll_call(expected=8)\n", RANK="3", WORLD_SIZE="8")

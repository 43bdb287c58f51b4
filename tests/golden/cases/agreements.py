"""Golden errors of agreements."""

from __future__ import annotations

import os

from golden_stage import Stage, case, elsewhere

import mdispatch as md
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

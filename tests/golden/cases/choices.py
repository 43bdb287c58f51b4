"""Golden errors of choices."""

from __future__ import annotations

import json
import threading

from golden_stage import Stage, case
from patience import limit

import mdispatch as md
from mdispatch import choices

TILES = [16, 32, 64]


def choose(stage: Stage, candidates=TILES, decide=lambda: 16, **more) -> object:
    where = stage.registry
    return md.choose("shop::scale", (128, "f32"), candidates, decide, registry=where, **more)


@case("NotACandidateError: choose, something else was chosen")
def _(stage: Stage) -> None:
    choose(stage)
    choose(stage, [32, 64, 128])


@case("NotACandidateError: choose, decide() returns something else")
def _(stage: Stage) -> None:
    choose(stage, decide=lambda: 17)


@case("NestedChoiceError: choose")
def _(stage: Stage) -> None:
    def decide() -> object:
        return choose(stage, decide=decide)

    decide()


@case("ChoiceTimeoutError: choose")
def _(stage: Stage) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def decide() -> int:
        begun.set()
        assert go_on.wait(limit(60))
        return 16

    first = threading.Thread(target=choose, args=(stage, TILES, decide))
    first.start()
    assert begun.wait(limit(60))
    try:
        choose(stage, timeout=0)
    finally:
        go_on.set()
        first.join()


@case("InvalidArgumentError: choose, a profile that no other process could compare")
def _(stage: Stage) -> None:
    md.choose("shop::scale", {1, 2}, TILES, lambda: 16, registry=stage.registry)


@case("InvalidArgumentError: choose, no list")
def _(stage: Stage) -> None:
    choose(stage, "abc")


@case("InvalidArgumentError: choose, no candidates")
def _(stage: Stage) -> None:
    choose(stage, [])


@case("InvalidArgumentError: choose, nothing that has a name")
def _(stage: Stage) -> None:
    md.choose(7, 1, TILES, lambda: 16)  # type: ignore[arg-type]


@case("InvalidArgumentError: choose, too much for a fact")
def _(stage: Stage) -> None:
    choose(stage, ["x" * 70_000])


@case("InvalidArgumentError: choose, two registries")
def _(stage: Stage) -> None:
    with md.Registry.create() as other:
        md.choose(stage.shop.scale, 1, TILES, lambda: 16, registry=other)


def exported(stage: Stage) -> str:
    choose(stage)
    file = stage.folder / "choices.json"
    choices.export(file, registry=stage.registry)
    return str(file)


@case("ChoicesFileError: choices.load, other candidates")
def _(stage: Stage) -> None:
    choices.load(exported(stage), "shop::scale", [32, 64], registry=stage.registry)


@case("ChoicesFileError: choices.load, another environment")
def _(stage: Stage) -> None:
    choices.load(
        exported(stage), "shop::scale", TILES, environment="cuda 13", registry=stage.registry
    )


@case("ChoicesFileError: choices.load, another operator")
def _(stage: Stage) -> None:
    choices.load(exported(stage), "shop::split", TILES, registry=stage.registry)


@case("ChoicesFileError: choices.load, changed by hand")
def _(stage: Stage) -> None:
    file = exported(stage)
    with open(file) as read:
        whole = json.load(read)
    whole["sets"][0]["candidates"][0] = 8
    with open(file, "w") as write:
        json.dump(whole, write)
    choices.load(file, "shop::scale", TILES, registry=stage.registry)


@case("ChoicesFileError: choices.load, something else")
def _(stage: Stage) -> None:
    file = stage.folder / "choices.json"
    file.write_text("tiles: 16\n")
    choices.load(file, "shop::scale", TILES, registry=stage.registry)

"""Golden errors of choices."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

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


@case("InvalidArgumentError: choose, an unknown scope")
def _(stage: Stage) -> None:
    choose(stage, scope="rack")


@case("InvalidArgumentError: choose, a profile that no other process could compare")
def _(stage: Stage) -> None:
    md.choose("shop::scale", [1, object()], TILES, lambda: 16, registry=stage.registry)


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


FILE = "choices.json"


def load(stage: Stage, operator="shop::scale", candidates=TILES, change=None, **more) -> None:
    """What is loaded from the file, after a change of what is in it."""
    choose(stage)
    with contextlib.chdir(stage.folder):
        choices.export(FILE, registry=stage.registry)
        if change is not None:
            text = Path(FILE).read_text()
            Path(FILE).write_text(change(text))
        choices.load(FILE, operator, candidates, registry=stage.registry, **more)


@case("ChoicesFileError: choices.load, other candidates")
def _(stage: Stage) -> None:
    load(stage, candidates=[32, 64])


@case("ChoicesFileError: choices.load, another environment")
def _(stage: Stage) -> None:
    load(stage, environment="cuda 13")


@case("ChoicesFileError: choices.load, another operator")
def _(stage: Stage) -> None:
    load(stage, "shop::split")


@case("ChoicesFileError: choices.load, changed by hand")
def _(stage: Stage) -> None:
    load(stage, change=lambda text: text.replace("64", "65"))


@case("ChoicesFileError: choices.load, a choice that is no candidate")
def _(stage: Stage) -> None:
    load(stage, change=lambda text: text.replace('"choice": 16', '"choice": 17'))


@case("ChoicesFileError: choices.load, another format")
def _(stage: Stage) -> None:
    load(stage, change=lambda text: text.replace('choices": 1', 'choices": 2'))


@case("ChoicesFileError: choices.load, something else")
def _(stage: Stage) -> None:
    load(stage, change=lambda text: "tiles: 16")

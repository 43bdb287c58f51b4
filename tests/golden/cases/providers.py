"""Golden errors of providers."""

from __future__ import annotations

from golden_stage import Array, Stage, case

import mdispatch as md


def small(x: object, parts: int) -> bool:
    return parts < 5


def broken(x: object, parts: int) -> bool:
    raise ValueError("no idea")


def halves(x: object, parts: int) -> tuple[object, object]:
    return x, x


def two(stage: Stage) -> None:
    stage.lib.define("halve(Tensor x, int parts) -> (Tensor, Tensor)")
    stage.lib.impl("halve", halves, "CPU", provider="fast", order=10, supports=small)
    stage.lib.impl("halve", halves, "CPU", provider="odd", supports=broken)


@case("ProviderRefusedError: each predicate refuses")
def _(stage: Stage) -> None:
    two(stage)
    stage.registry.ops.shop.halve(Array(), 9)


@case("ProviderRefusedError: a strict guard")
def _(stage: Stage) -> None:
    two(stage)
    with md.priority("shop::halve", ["fast", "gone"], strict=True, registry=stage.registry):
        stage.registry.ops.shop.halve(Array(), 9)


@case("DuplicateRegistrationError: a second kernel of a provider")
def _(stage: Stage) -> None:
    two(stage)
    stage.lib.impl("halve", halves, "CPU", provider="odd")


@case("ProviderMissingError: a wait, and none is available")
def _(stage: Stage) -> None:
    for name in ("near", "far"):
        stage.lib.impl("halve", halves, "CPU", provider=name, available=lambda: 1 / 0)
    md.wait_for_impl("shop::halve", "CPU", 0, registry=stage.registry)


@case("SignatureMismatchError: a predicate")
def _(stage: Stage) -> None:
    stage.lib.impl("split", halves, "CPU", provider="fast", supports=lambda x: True)


@case("InvalidArgumentError: the name of a provider")
def _(stage: Stage) -> None:
    stage.lib.impl("halve", halves, "CPU", provider="the fast one")


@case("InvalidArgumentError: an order without a provider")
def _(stage: Stage) -> None:
    stage.lib.impl("halve", halves, "CPU", order=5)


@case("InvalidArgumentError: fallthrough_kernel as a provider")
def _(stage: Stage) -> None:
    stage.lib.impl("halve", md.fallthrough_kernel, "CPU", provider="none")


@case("InvalidArgumentError: a priority for a pattern that is none")
def _(stage: Stage) -> None:
    md.set_priority("split", ["fast"], registry=stage.registry)


@case("InvalidArgumentError: a priority of no names")
def _(stage: Stage) -> None:
    md.set_priority("shop::halve", [], registry=stage.registry)


@case("InvalidArgumentError: next_provider outside of a provider")
def _(stage: Stage) -> None:
    two(stage)
    md.next_provider(stage.registry.ops.shop.halve.default, "slow", Array(), 1)

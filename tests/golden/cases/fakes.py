"""Golden errors: calls without data, and the modules with the kernels for them."""

from __future__ import annotations

import sys
from types import ModuleType

from golden_stage import Stage, case, kernel

import mdispatch as md
from mdispatch.authoring.meta import empty_like
from mdispatch.fake import require_python_modules

ROLL = md.MetaTensor((6,), "float32")


@case("FakeKernelMissingError: none is registered")
def _(stage: Stage) -> None:
    stage.shop.scale(ROLL)


@case("FakeKernelMissingError: an operator without kernels")
def _(stage: Stage) -> None:
    stage.shop.split.sizes(ROLL, [1, 5])


@case("FakeKernelMissingError: an operator of custom_op")
def _(stage: Stage) -> None:
    @md.custom_op("shop::late", mutates_args=(), registry=stage.registry)
    def late(x: md.Tensor) -> md.Tensor:
        return x

    late(ROLL)


def with_module(stage: Stage, module: str, context: str = "") -> None:
    """Defines an operator that names its module."""
    lib = stage.library("shop", "FRAGMENT")
    lib.set_python_module(module, context)
    lib.define("late(Tensor x) -> Tensor")


@case("FakeKernelMissingError: its module is not imported")
def _(stage: Stage) -> None:
    with_module(stage, "shop_fakes", "It comes with the package shop.")
    stage.shop.late(ROLL)


@case("FakeKernelMissingError: its module is imported and has none")
def _(stage: Stage) -> None:
    sys.modules["shop_fakes"] = ModuleType("shop_fakes")
    try:
        with_module(stage, "shop_fakes")
        stage.shop.late(ROLL)
    finally:
        del sys.modules["shop_fakes"]


@case("WrongModuleError: another module than the one that is named")
def _(stage: Stage) -> None:
    with_module(stage, "shop_fakes")
    stage.lib.register_fake("late", empty_like)
    stage.shop.late(ROLL)


@case("WrongModuleError: no module is named where that is required")
def _(stage: Stage) -> None:
    stage.lib.register_fake("scale", lambda x, factor, out: empty_like(x))
    before = require_python_modules(True)
    try:
        stage.shop.scale(ROLL)
    finally:
        require_python_modules(before)


@case("PystubOverrideWarning: another module")
def _(stage: Stage) -> None:
    stage.lib.register_python_module("scale", "shop_fakes")
    stage.library("shop", "FRAGMENT").register_python_module("scale", "shop_meta")


@case("PystubOverrideWarning: another context")
def _(stage: Stage) -> None:
    stage.lib.register_python_module("scale", "shop_fakes")
    stage.lib.register_python_module("scale", "shop_fakes", "It comes with the package shop.")


@case("InvalidArgumentError: a module that has no full name")
def _(stage: Stage) -> None:
    stage.lib.set_python_module(".fakes")


@case("InvalidArgumentError: a module for a library of kernels")
def _(stage: Stage) -> None:
    stage.library("shop", "IMPL").set_python_module("shop_fakes")


@case("InvalidKeyError: a fake kernel for a composite operator")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", kernel, "CompositeImplicitAutograd")
    stage.lib.register_fake("scale", empty_like)


@case("MdispatchError: a context that is asked for outside of a fake kernel")
def _(stage: Stage) -> None:
    md.get_ctx()


def sized(stage: Stage, use: object) -> None:
    """Calls an operator whose fake kernel does this with a size that depends on data."""
    stage.lib.define("nonzero(Tensor x) -> Tensor")

    def fake(x: md.MetaTensor) -> md.MetaTensor:
        size = md.get_ctx().new_dynamic_size(min=0, max=6)
        use(size)  # type: ignore[operator]
        return x.new_empty((size,))

    stage.lib.register_fake("nonzero", fake)
    stage.shop.nonzero(ROLL)


@case("DataDependentError: a comparison")
def _(stage: Stage) -> None:
    sized(stage, lambda size: "none" if size == 0 else "some")


@case("DataDependentError: a condition")
def _(stage: Stage) -> None:
    sized(stage, lambda size: "some" if size > 5 else "few")


@case("DataDependentError: a product")
def _(stage: Stage) -> None:
    sized(stage, lambda size: 2 * size)


@case("DataDependentError: the number of elements of a shape")
def _(stage: Stage) -> None:
    sized(stage, lambda size: md.MetaTensor((size, 2)).numel())


@case("DataDependentError: a loop")
def _(stage: Stage) -> None:
    sized(stage, range)


@case("InvalidArgumentError: bounds that no size is within")
def _(stage: Stage) -> None:
    sized(stage, lambda size: md.get_ctx().new_dynamic_size(min=3, max=2))


@case("InvalidArgumentError: a meta value of what has no shape")
def _(stage: Stage) -> None:
    md.MetaTensor.of(5)

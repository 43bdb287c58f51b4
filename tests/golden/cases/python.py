"""Golden errors: modes and types that handle calls, and the rules of operators for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from golden_stage import Array, Stage, case, kernel

import mdispatch as md
from mdispatch.dispatch.context import modes
from mdispatch.dispatch.context.transforms import TransformType
from mdispatch.dispatch.higher_order import find_higher_order


class Trace(md.context.DispatchMode):
    def __md_dispatch__(self, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return op(*args, **kwargs)

    def __repr__(self) -> str:
        return "Trace()"


class Decline(Trace):
    def __md_dispatch__(self, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented

    def __repr__(self) -> str:
        return "Decline()"


class Fake(Trace):
    mode_key = md.context.DispatchModeKey.FAKE


class Wrapper(Array):
    @classmethod
    def __md_dispatch__(cls, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented


@case("ModeStackError: a second mode of a kind")
def _(stage: Stage) -> None:
    with Fake(), Fake():
        pass


@case("ModeStackError: a mode taken off twice")
def _(stage: Stage) -> None:
    with Trace():
        modes.pop_mode()


@case("ModeStackError: nothing to take off")
def _(stage: Stage) -> None:
    modes.pop_mode()


@case("ModeStackError: no mode of a kind")
def _(stage: Stage) -> None:
    modes.pop_mode(md.context.DispatchModeKey.PROXY)


@case("ModeStackError: the keys of a call while there is none")
def _(stage: Stage) -> None:
    modes.restore_keys_on_entry()


@case("ModeStackError: a second mode before dispatch")
def _(stage: Stage) -> None:
    modes.push_pre_dispatch_mode(Trace())
    try:
        modes.push_pre_dispatch_mode(Trace())
    finally:
        modes.pop_pre_dispatch_mode()


@case("ModeStackError: nothing to take off before dispatch")
def _(stage: Stage) -> None:
    modes.pop_pre_dispatch_mode()


@case("ModeStackError: a transform that ends without having begun")
def _(stage: Stage) -> None:
    md.context.Transform().__exit__()


@case("InvalidArgumentError: a mode that is none")
def _(stage: Stage) -> None:
    modes.push_mode(kernel)  # type: ignore[arg-type]


@case("InvalidArgumentError: a kind of mode that is none")
def _(stage: Stage) -> None:
    mode = Fake()
    mode.mode_key = "FAEK"
    try:
        modes.push_mode(mode)
    finally:
        assert modes.mode_stack() == ()


@case("HandlersDeclinedError: a mode")
def _(stage: Stage) -> None:
    with Decline():
        stage.shop.scale(Array())


@case("HandlersDeclinedError: a mode and a type")
def _(stage: Stage) -> None:
    with Decline():
        stage.shop.scale(Wrapper())


@case("DuplicateRegistrationError: a second rule for a class")
def _(stage: Stage) -> None:
    scale = stage.shop.scale.default
    md.register_dispatch_rule(scale, Trace, kernel)
    md.register_dispatch_rule(scale, Trace, kernel)


@case("DuplicateRegistrationError: a second Python kernel")
def _(stage: Stage) -> None:
    scale = stage.shop.scale.default
    scale.py_impl("CPU")(kernel)
    scale.py_impl("CPU")(kernel)


@case("DuplicateRegistrationError: a kernel that may not take another's place")
def _(stage: Stage) -> None:
    stage.library("shop", "FRAGMENT").impl("scale", kernel, "CPU", allow_override=False)


@case("InvalidArgumentError: a rule for a class that sees no calls")
def _(stage: Stage) -> None:
    md.register_dispatch_rule("shop::scale", Array, kernel, lib=stage.lib)


@case("InvalidArgumentError: a rule for no class")
def _(stage: Stage) -> None:
    md.register_dispatch_rule(
        "shop::scale",
        "Trace",  # type: ignore[arg-type]
        kernel,
        lib=stage.lib,
    )


@case("InvalidKeyError: a Python kernel at the key of modes")
def _(stage: Stage) -> None:
    stage.shop.scale.default.py_impl("Python")(kernel)


@case("MissingKernelError: a kernel that was closed since")
def _(stage: Stage) -> None:
    lib = stage.library("shop", "FRAGMENT")
    lib.impl("scale", kernel, "CPU")
    found = md.get_kernel("shop::scale", "CPU", registry=stage.registry)
    lib.close()
    found(Array())


# --- higher-order operators -----------------------------------------------------------------------


@contextmanager
def choose() -> Iterator[md.HigherOrderOperator]:
    """A higher-order operator with a rule."""
    operator = md.HigherOrderOperator("golden_choose")
    try:
        operator.py_impl("CPU")(kernel)
        yield operator
    finally:
        operator.close()


@case("MissingRuleError: a mode")
def _(stage: Stage) -> None:
    with choose() as operator, Trace():
        operator(kernel, Array())


@case("MissingRuleError: a type")
def _(stage: Stage) -> None:
    with choose() as operator:
        operator.py_impl(Trace)(kernel)
        operator(kernel, Wrapper())


@case("MissingKernelError: a higher-order operator at a key without a rule")
def _(stage: Stage) -> None:
    with choose() as operator:
        operator(kernel, Array("CUDA"))


@case("MissingKernelError: a higher-order operator without Tensors")
def _(stage: Stage) -> None:
    with choose() as operator:
        operator(kernel, 5)


@case("DuplicateRegistrationError: a second higher-order operator of a name")
def _(stage: Stage) -> None:
    with choose():
        md.HigherOrderOperator("golden_choose")


@case("OperatorGoneError: a higher-order operator that was closed")
def _(stage: Stage) -> None:
    with choose() as operator:
        operator.close()
        operator(kernel, Array())


@case("OperatorNotFoundError: a higher-order operator misspelled")
def _(stage: Stage) -> None:
    with choose():
        find_higher_order("golden_chose")


@case("InvalidArgumentError: a type of transforms that is none")
def _(stage: Stage) -> None:
    class Grad(md.context.Transform):
        transform_type = "Grad"  # type: ignore[assignment]

    assert TransformType.Grad != "Grad"
    with Grad():
        pass

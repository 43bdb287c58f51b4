"""Golden errors: calls of operators, and looking for them."""

from __future__ import annotations

from golden_stage import Array, Stage, case, kernel

import mdispatch as md


class Grid:
    __dispatch_keys__ = "CPU"


class GridArray(Array, Grid):
    pass


@case("ArgumentError: too many positional arguments")
def _(stage: Stage) -> None:
    stage.shop.scale.default(Array(), 2.0, 3.0)


@case("ArgumentError: an argument is missing")
def _(stage: Stage) -> None:
    stage.shop.scale.default(factor=2.0)


@case("ArgumentError: a value of another type")
def _(stage: Stage) -> None:
    stage.shop.scale.default(Array(), "twice")


@case("ArgumentError: a keyword that the schema has not")
def _(stage: Stage) -> None:
    stage.shop.scale.default(Array(), facter=2.0)


@case("ArgumentError: an argument that comes twice")
def _(stage: Stage) -> None:
    stage.shop.scale.default(Array(), 2.0, factor=2.0)


@case("ArgumentError: no overload takes the arguments")
def _(stage: Stage) -> None:
    stage.shop.split(Array(), "halves")


@case("ArgumentError: a redispatch without a key set")
def _(stage: Stage) -> None:
    stage.shop.scale.default.redispatch("CPU", Array())


@case("ArgumentError: a stack that is too short")
def _(stage: Stage) -> None:
    stage.shop.scale.default.call_boxed([Array()])


@case("ReturnValueError: one value instead of two")
def _(stage: Stage) -> None:
    stage.lib.impl("split", lambda x, parts: x, "CUDA")
    stage.shop.split.default.call_boxed([Array("CUDA"), 2])


@case("ReturnValueError: three values instead of two")
def _(stage: Stage) -> None:
    stage.lib.impl("split", lambda x, parts: (x, x, x), "CUDA")
    stage.shop.split.default.call_boxed([Array("CUDA"), 2])


@case("MissingKernelError: a key that no kernel serves")
def _(stage: Stage) -> None:
    stage.shop.scale(Array("CUDA"))


@case("MissingKernelError: a key that is no backend's")
def _(stage: Stage) -> None:
    stage.shop.scale(Array("CPU", "Conjugate"))


@case("MissingKernelError: no keys")
def _(stage: Stage) -> None:
    stage.lib.define("count(int n) -> int")
    stage.lib.impl("count", kernel, "CPU")
    stage.shop.count(3)


@case("MissingKernelError: an operator without kernels")
def _(stage: Stage) -> None:
    stage.shop.split.sizes(Array(), [1, 2])


@case("MissingKernelError: a redispatch to a key that falls through")
def _(stage: Stage) -> None:
    stage.shop.scale.default.redispatch(md.DispatchKeySet("CPU", "AutogradCPU"), Array())


@case("MissingKernelError: a call for just one key")
def _(stage: Stage) -> None:
    stage.shop.scale.default.call_for_dispatch_key("CUDA", Array())


@case("AmbiguousKernelError: a composite kernel and one behind AutogradOther")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", kernel)
    stage.lib.impl("scale", kernel, "SparseCPU")
    stage.shop.scale(Array("SparseCPU", "AutogradOther"))


@case("MissingKernelError: no kernel for the types of the call")
def _(stage: Stage) -> None:
    stage.lib.define("join(Tensor[] parts) -> Tensor")
    stage.lib.impl("join", kernel, "CPU", types=Grid)
    stage.lib.impl("join", kernel, "CUDA")
    stage.shop.join([Array(), Grid()])


@case("AmbiguousTypesError: a call that two kernels fit")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", kernel, "CPU", types=Grid)
    stage.lib.impl("scale", kernel, "CPU", types=Array)
    stage.shop.scale(GridArray())


@case("OperatorNotFoundError: a typo")
def _(stage: Stage) -> None:
    stage.shop.scael  # noqa: B018


@case("OperatorNotFoundError: a name like no other")
def _(stage: Stage) -> None:
    stage.shop.something_else  # noqa: B018


@case("OperatorNotFoundError: a namespace in which nothing is")
def _(stage: Stage) -> None:
    stage.registry.ops.shoop.scale  # noqa: B018


@case("OperatorNotFoundError: an overload")
def _(stage: Stage) -> None:
    stage.shop.split.size  # noqa: B018


@case("OperatorNotFoundError: a question about registrations")
def _(stage: Stage) -> None:
    stage.registry.dump("shop::scael")


@case("OperatorNotFoundError: a question without a namespace")
def _(stage: Stage) -> None:
    stage.registry.dump("split")


@case("OperatorNotFoundError: a question about what only has kernels")
def _(stage: Stage) -> None:
    stage.lib.impl("orphan", kernel, "CPU")
    error = stage.registry.why("shop::orphan", "CPU").error
    assert error is not None
    raise error


@case("OperatorGoneError: its library was closed")
def _(stage: Stage) -> None:
    operator = stage.shop.scale.default
    stage.lib.close()
    operator(Array())


@case("OperatorGoneError: its name is another operator's now")
def _(stage: Stage) -> None:
    operator = stage.shop.scale.default
    stage.lib.close()
    stage.library("shop", "FRAGMENT").define("scale(Tensor x, int factor) -> Tensor")
    operator(Array(), 2.0)


@case("OperatorGoneError: only kernels are left")
def _(stage: Stage) -> None:
    operator = stage.shop.scale.default
    stage.library("shop", "FRAGMENT").impl("scale", kernel, "CUDA")
    stage.lib.close()
    operator(Array())


@case("OperatorGoneError: no overload is left")
def _(stage: Stage) -> None:
    packet = stage.shop.scale
    stage.lib.close()
    packet(Array())


@case("MissingKernelError: the mark for keys that fall through is called")
def _(stage: Stage) -> None:
    md.fallthrough_kernel()

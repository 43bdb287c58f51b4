"""Golden errors: registrations and their arguments."""

from __future__ import annotations

from golden_stage import Array, Stage, case, elsewhere, kernel

import mdispatch as md
from mdispatch.dispatch.context import guards


class Plain:
    """A class that is no Tensor."""


@case("DuplicateRegistrationError: a second DEF library")
def _(stage: Stage) -> None:
    stage.library("shop", "DEF")


@case("DuplicateRegistrationError: a second definition")
def _(stage: Stage) -> None:
    stage.library("shop", "FRAGMENT").define("scale(Tensor x) -> Tensor")


@case("DuplicateRegistrationError: a second fallback")
def _(stage: Stage) -> None:
    stage.library("_", "IMPL").fallback(kernel, "CPU")
    stage.library("_", "IMPL").fallback(kernel, "CPU")


@case("DuplicateRegistrationError: a second class of a name")
def _(stage: Stage) -> None:
    md.register_class("shop.Plain", registry=stage.registry)(Plain)
    md.register_class("shop.Plain", registry=stage.registry)(Plain)


@case("DuplicateRegistrationError: a second name of a backend")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "from mdispatch.keys import rename_privateuse_backend\n"
        "rename_privateuse_backend('PrivateUse1', 'npu')\n"
        "rename_privateuse_backend('PrivateUse1', 'tpu')\n",
    )


@case("SignatureMismatchError: a kernel of another type")
def _(stage: Stage) -> None:
    stage.lib.impl("split", kernel, "CPU", signature="(Tensor x, float parts) -> (Tensor, Tensor)")


@case("SignatureMismatchError: a definition that its kernel does not fit")
def _(stage: Stage) -> None:
    stage.lib.impl("late", kernel, "CPU", signature="(Tensor x) -> Tensor")
    stage.lib.define("late(Tensor x, Tensor y) -> Tensor")


@case("SignatureMismatchError: a function that takes too little")
def _(stage: Stage) -> None:
    stage.lib.impl("split", lambda x: x, "CPU")


@case("SignatureMismatchError: types for another number of tensors")
def _(stage: Stage) -> None:
    stage.lib.impl("split", kernel, "CPU", types=(Plain, Array))


@case("AmbiguousTypesError: a kernel that ties with another one")
def _(stage: Stage) -> None:
    stage.lib.define("join(Tensor a, Tensor b) -> Tensor")
    stage.lib.impl("join", kernel, "CPU", types=(Plain, object))
    stage.lib.impl("join", kernel, "CPU", types=(object, Plain))


@case("InvalidArgumentError: two classes of one name for the kernels of a key")
def _(stage: Stage) -> None:
    stage.lib.impl("split", kernel, "CPU", types=Plain)
    stage.lib.impl("split", kernel, "CPU", types=type("Plain", (), {"__module__": __name__}))


@case("InvalidArgumentError: types that are no classes")
def _(stage: Stage) -> None:
    stage.lib.impl("split", kernel, "CPU", types="Plain")


@case("DuplicateRegistrationError: a type for something else")
def _(stage: Stage) -> None:
    with md.register_type(Plain, "CPU"):
        md.register_type(Plain, "CUDA")


@case("SchemaSyntaxError: a type of Python's")
def _(stage: Stage) -> None:
    stage.lib.define("late(List[int] x) -> Tensor")


@case("SchemaSyntaxError: a type behind its name")
def _(stage: Stage) -> None:
    stage.lib.define("late(x: Tensor) -> Tensor")


@case("SchemaSyntaxError: a union of Python's")
def _(stage: Stage) -> None:
    stage.lib.define("late(str | None x) -> Tensor")


@case("InvalidKeyError: a device in place of a key")
def _(stage: Stage) -> None:
    stage.lib.impl("split", kernel, "cpu")


@case("InvalidKeyError: a function in place of a device")
def _(stage: Stage) -> None:
    md.impl("shop::split", len, "cpu", lib=stage.lib)  # type: ignore[call-overload]


@case("InvalidArgumentError: a key in place of a function")
def _(stage: Stage) -> None:
    stage.lib.impl("split", "CPU", kernel)  # type: ignore[call-overload]


@case("InvalidArgumentError: nothing said of what is written to")
def _(stage: Stage) -> None:
    def late(x: md.Tensor) -> None: ...

    md.custom_op("shop::late", late, registry=stage.registry)


@case("LibraryClosedError: a definition")
def _(stage: Stage) -> None:
    stage.lib.close()
    stage.lib.define("late(Tensor x) -> Tensor")


@case("SchemaSyntaxError: no type of this name")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensr x) -> Tensor")


@case("SchemaSyntaxError: an end too early")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensor x")


@case("SchemaSyntaxError: no returns")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensor x)")


@case("SchemaSyntaxError: a default of another type")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensor x, int n=1.5) -> Tensor")


@case("InvalidNameError: an operator's name")
def _(stage: Stage) -> None:
    stage.lib.define("sc-ale(Tensor x) -> Tensor")


@case("InvalidNameError: a namespace")
def _(stage: Stage) -> None:
    stage.library("my shop", "FRAGMENT")


@case("InvalidNameError: a definition in another namespace")
def _(stage: Stage) -> None:
    stage.lib.define("toys::scale(Tensor x) -> Tensor")


@case("InvalidNameError: an overload that Python keeps for itself")
def _(stage: Stage) -> None:
    stage.lib.define("scale.default(Tensor x) -> Tensor")


@case("InvalidNameError: definitions for all namespaces")
def _(stage: Stage) -> None:
    stage.library("_", "DEF")


@case("InvalidNameError: a wait without a namespace")
def _(stage: Stage) -> None:
    md.wait_for_def("scale", registry=stage.registry)


@case("InvalidNameError: a registry's name")
def _(stage: Stage) -> None:
    md.Registry.create("my registry")


@case("EditionError: a variable that is not set")
def _(stage: Stage) -> None:
    md.Registry.create("shop@{env:MDISPATCH_NO_SUCH_RELEASE}")


@case("EditionError: a value that no edition can have")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import os\n"
        "import mdispatch as md\n"
        "os.environ['RELEASE'] = 'v1/rc'\n"
        "md.Registry.create('shop@{env:RELEASE}')\n",
    )


@case("TooManyEditionsError: one more than may be alive")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import mdispatch as md\n"
        "there = [md.Registry.create(f'many@{number}') for number in range(16)]\n"
        "md.Registry.create('many@16')\n",
    )


@case("MatchError: others have to be the same")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import mdispatch as md\n"
        "registry = md.Registry.elect('strict')\n"
        "lib = md.Library('shop', 'DEF', registry=registry)\n"
        "md.Registry.elect('strict', match='compatible')\n",
    )


@case("NotCompatibleError: overloads in another order")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import os\n"
        "import mdispatch as md\n"
        "ready, wait = os.pipe(), os.pipe()\n"
        "def register(*overloads):\n"
        "    registry = md.Registry.elect('overloads-in-order', match='compatible')\n"
        "    lib = md.Library('shop', 'DEF', registry=registry, timeout=0)\n"
        "    for each in overloads:\n"
        "        lib.define(f'count{each} -> int')\n"
        "    return registry, lib\n"
        "if os.fork() == 0:\n"
        "    kept = register('(int x)')\n"
        "    os.write(ready[1], b'.')\n"
        "    os.close(wait[1])\n"
        "    os.read(wait[0], 1)\n"
        "    os._exit(0)\n"
        "os.close(wait[0])\n"
        "os.read(ready[0], 1)\n"
        "registry, lib = register('.text(str x)', '(int x)')\n"
        "try:\n"
        "    md.warm_up((), registry=registry)\n"
        "except md.errors.WarmUpError as error:\n"
        "    raise error.differences[0] from None\n",
    )


@case("InvalidNameError: a device's name")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "from mdispatch.keys import rename_privateuse_backend\n"
        "rename_privateuse_backend('PrivateUse1', 'cuda')\n",
    )


@case("SchemaSyntaxError: a class that nobody has registered")
def _(stage: Stage) -> None:
    stage.lib.define("late(torch.Tensor x, float by=2.5) -> Tensor")


@case("ClassNotFoundError: a class that was to come later")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import mdispatch as md\n"
        "md.define('shop::count', '(shop.Basket b) -> int', forward=True)\n"
        "try:\n"
        "    md.warm_up(())\n"
        "except md.errors.WarmUpError as error:\n"
        "    raise error.differences[0] from None\n",
    )


@case("InvalidKeyError: a typo")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", kernel, "CUDDA")


@case("InvalidKeyError: a number")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", kernel, 5)  # type: ignore[arg-type]


@case("InvalidKeyError: another key than the library's")
def _(stage: Stage) -> None:
    stage.library("shop", "IMPL", "CPU").impl("scale", kernel, "CUDA")


@case("InvalidKeyError: a fallback at an alias key")
def _(stage: Stage) -> None:
    stage.library("_", "IMPL").fallback(kernel, "Autograd")


@case("InvalidKeyError: a fallback without a key")
def _(stage: Stage) -> None:
    stage.library("_", "IMPL").fallback(kernel)


@case("InvalidKeyError: a type without keys")
def _(stage: Stage) -> None:
    md.register_type(Array, ())


@case("InvalidKeyError: an attribute that is no key")
def _(stage: Stage) -> None:
    array = Array()
    array.__dispatch_keys__ = 5  # type: ignore[assignment]
    stage.shop.scale(array)


@case("InvalidKeyError: a device of DLPack that has no key")
def _(stage: Stage) -> None:
    class OnHexagon:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 16, 0

    stage.shop.scale(OnHexagon())


@case("InvalidArgumentError: no kind of library")
def _(stage: Stage) -> None:
    stage.library("shop", "DEFINE")


@case("InvalidArgumentError: a key for a library of definitions")
def _(stage: Stage) -> None:
    stage.library("toys", "DEF", "CPU")


@case("InvalidArgumentError: a definition in a library of kernels")
def _(stage: Stage) -> None:
    stage.library("shop", "IMPL").define("late(Tensor x) -> Tensor")


@case("InvalidArgumentError: a kernel for another namespace")
def _(stage: Stage) -> None:
    stage.lib.impl("toys::scale", kernel, "CPU")


@case("InvalidArgumentError: a kernel that cannot be called")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", 5, "CPU")


@case("InvalidArgumentError: a fallback in a library of one namespace")
def _(stage: Stage) -> None:
    stage.lib.fallback(kernel, "CPU")


@case("InvalidArgumentError: a kind of alias analysis")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensor x) -> Tensor", alias_analysis="PURE")


@case("InvalidArgumentError: a tag")
def _(stage: Stage) -> None:
    stage.lib.define("late(Tensor x) -> Tensor", tags=["point wise"])


@case("InvalidArgumentError: a timeout")
def _(stage: Stage) -> None:
    md.wait_for_def("shop::late", -1, registry=stage.registry)


@case("InvalidArgumentError: a capacity")
def _(stage: Stage) -> None:
    md.Registry.create(capacity=1000)


@case("InvalidArgumentError: something else than a registry")
def _(stage: Stage) -> None:
    md.Library("shop", "FRAGMENT", registry=stage.registry.address)  # type: ignore[arg-type]


@case("InvalidArgumentError: a module's name")
def _(stage: Stage) -> None:
    md.warm_up([5], registry=stage.registry)  # type: ignore[list-item]


@case("InvalidArgumentError: a guard that ends without having begun")
def _(stage: Stage) -> None:
    guards.ExcludeDispatchKeyGuard("CPU").__exit__(None, None, None)


@case("InvalidArgumentError: a type that is none")
def _(stage: Stage) -> None:
    md.register_type(Array(), "CPU")  # type: ignore[arg-type]


#: As where the folder of a feature was left out.
LEFT_OUT = """
import sys
import mdispatch as md
class LeftOut:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "mdispatch.providers":
            raise ModuleNotFoundError("it is not there", name=name)
sys.meta_path.insert(0, LeftOut)
lib = md.Library("shop", "DEF", registry=md.Registry.local())
lib.impl(lib.define("f(int n) -> int"), abs, provider="fast")
"""


@case("FeatureMissingError: a kernel of a provider")
def _(stage: Stage) -> None:
    elsewhere(stage, LEFT_OUT)

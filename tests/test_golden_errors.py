"""What users read when mdispatch says no: every error, provoked as in real life, word for word.

The texts are in golden/errors.txt, where they can be read one after the other. ``--update-golden``
writes them anew: then read what has changed. <...> stands there for what differs from run to run.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import until

import mdispatch as md
from mdispatch import errors, guards
from mdispatch._registry.shared import ENVIRONMENT

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"
FOLDER = Path(f"/dev/shm/mdispatch-{os.geteuid()}")

HEAD = """\
Every error as its users read it. python -m pytest tests/test_golden_errors.py --update-golden
writes this file; <...> stands for what differs from run to run.
"""

#: Classes that only stand over others: nothing raises them.
PURE_BASES = {"VerificationError", "NotRegisteredError"}

CASES: dict[str, Callable[[Stage], object]] = {}


def case(title: str) -> Callable[[Callable[[Stage], object]], None]:
    """What provokes an error: titled by its class and what is done."""

    def keep(provoke: Callable[[Stage], object]) -> None:
        assert title not in CASES
        CASES[title] = provoke

    return keep


class Array:
    def __init__(self, *keys: str) -> None:
        self.__dispatch_keys__ = md.DispatchKeySet(keys or "CPU")


def kernel(*args: object, **kwargs: object) -> None:
    """What is registered here."""


class Stage:
    """What the cases find: a registry in which something is registered, and a second process."""

    def __init__(self, registry: md.Registry, folder: Path, worker: dict[str, Exception]) -> None:
        self.registry = registry
        self.folder = folder
        self.worker = worker
        self.name = f"golden-{os.getpid()}"
        self.lib = md.Library("shop", "DEF", registry=registry)
        self.lib.define("scale(Tensor x, float factor=2.0, *, Tensor? out=None) -> Tensor")
        self.lib.define("split(Tensor x, int parts) -> (Tensor, Tensor)")
        self.lib.define("split.sizes(Tensor x, int[] sizes) -> Tensor[]")
        self.lib.impl("scale", kernel, "CPU")
        self.lib.impl("split", kernel, "CPU")

    @property
    def shop(self) -> Any:
        return self.registry.ops.shop

    def library(self, *arguments: str) -> md.Library:
        return md.Library(*arguments, registry=self.registry)


# --- what a script raises in a process of its own -------------------------------------------------

CATCH = """
import pickle, sys
import mdispatch.errors
try:
    exec(compile(open({file!r}).read(), {file!r}, "exec"), {{"__name__": "__main__"}})
except mdispatch.errors.MdispatchError as error:
    sys.stdout.buffer.write(pickle.dumps(error))
"""


def elsewhere(stage: Stage, script: str, **environment: str) -> None:
    """Raises what a script raises in a process of its own."""
    file = stage.folder / "script.py"
    file.write_text(script)
    kept = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CATCH.format(file=str(file))],
        capture_output=True,
        env=kept | environment,
        timeout=60,
        cwd=stage.folder,
    )
    assert done.stdout, done.stderr.decode()
    raise pickle.loads(done.stdout)


class Main:
    """A process with a registry, which ends as it is told to."""

    SCRIPT = """
import sys
import mdispatch as md
registry = md.Registry.create(*sys.argv[1:])
md.Library("shop", "DEF", registry=registry).define("scale(Tensor x) -> Tensor")
print(registry.address, flush=True)
for line in sys.stdin:
    registry.close()
    break
"""

    def __init__(self, *name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, *name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        self.process.communicate("close\n")


def waiting(main: Main, end: Callable[[], None]) -> None:
    """Raises what a wait in a worker raises when its main process comes to this end."""
    caught: list[Exception] = []

    def wait() -> None:
        try:
            md.wait_for_def("shop::never", 60, registry=worker)
        except errors.MdispatchError as error:
            caught.append(error)

    with md.Registry.attach(main.address) as worker:
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: any(member[4] for member in worker._facts.members()))
        end()
        thread.join()
    raise caught[0]


# --- a second process, which verifies -------------------------------------------------------------

SHOP = """
import mdispatch as md

in_main = md.is_main_interpreter()
lib = md.Library("shop", "FRAGMENT")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor" if in_main else
           "scale(Tensor x, int factor=2) -> Tensor")
lib.define("colour(Tensor x) -> Tensor" if in_main else "color(Tensor x) -> Tensor")
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU" if in_main else "CUDA")
lib.impl("size", max, "Meta")
if in_main:
    lib.define("only_main(Tensor x) -> Tensor")
"""

WORKER = """
import sys, pickle
import mdispatch as md

class Array:
    __dispatch_keys__ = "CPU"

lib = md.Library("shop", "FRAGMENT", timeout=0)
wild = md.Library("_", "IMPL", timeout=0)

CASES = {
    "schema": lambda: lib.define("scale(Tensor x, int factor=2) -> Tensor"),
    "returns": lambda: lib.define("scale(Tensor x, float factor=2.0) -> (Tensor, Tensor)"),
    "attributes": lambda: lib.define("scale(Tensor x, float factor=2.0) -> Tensor", tags="core"),
    "name": lambda: lib.define("scael(Tensor x) -> Tensor"),
    "name unlike any": lambda: lib.define("entirely_different(Tensor x) -> Tensor"),
    "name of a kernel": lambda: lib.impl("scael", len, "CPU"),
    "name waited for": lambda: md.wait_for_def("shop::scael", 0),
    "name held": lambda: lib.register_name("held"),
    "key": lambda: lib.impl("size", len, "CUDA"),
    "key, without kernels": lambda: lib.impl("scale", len, "CPU"),
    "key waited for": lambda: md.wait_for_impl("shop::size", "CUDA", 0),
    "library": lambda: md.Library("toys", "DEF", timeout=0),
    "namespace": lambda: md.Library("toys", "FRAGMENT", timeout=0).define("f() -> ()"),
    "namespace waited for": lambda: md.wait_for_def("toys::f", 0),
    "fallback": lambda: wild.fallback(len, "CPU"),
    "fallback, another key": lambda: wild.fallback(len, "Conjugate"),
    "signature": lambda: lib.impl("size", len, "CPU", signature="(Tensor x, int n) -> int"),
    "kernel not here": lambda: md.ops.shop.size(Array()),
    "warm_up": lambda: md.warm_up("shop_ops", timeout=0),
    "key, once more": lambda: lib.impl("size", max, "Meta"),
}

found = {}
for name, provoke in CASES.items():
    if name == "fallback, another key":
        # From now on the main interpreter has a fallback.
        print("go on", flush=True)
        sys.stdin.readline()
    try:
        provoke()
    except md.errors.MdispatchError as error:
        found[name] = error
for error in found["warm_up"].differences:
    if type(error) is md.errors.MissingInWorkerError:
        found[f"missing {error.kind}"] = error
pickle.dump(found, open(sys.argv[1], "wb"))
"""

MAIN = """
import subprocess, sys
import mdispatch as md
import shop_ops

with subprocess.Popen(
    [sys.executable, "-W", "error", "worker.py", sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
) as worker:
    worker.stdout.readline()
    md.Library("_", "IMPL").fallback(len, "Meta")
    print("there it is", file=worker.stdin, flush=True)
sys.exit(worker.returncode)
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exception]:
    """What each thing raises that a worker does otherwise than its main interpreter."""
    folder = tmp_path_factory.mktemp("worker")
    for name, text in {"shop_ops": SHOP, "main": MAIN, "worker": WORKER}.items():
        (folder / f"{name}.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py", "found"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Exception] = pickle.loads((folder / "found").read_bytes())
    return found


def from_worker(title: str, name: str) -> None:
    def provoke(stage: Stage) -> None:
        raise stage.worker[name]

    case(title)(provoke)


from_worker("SchemaMismatchError: another argument", "schema")
from_worker("SchemaMismatchError: another return", "returns")
from_worker("SchemaMismatchError: other tags", "attributes")
from_worker("NameMismatchError: a typo in a definition", "name")
from_worker(
    "NameMismatchError: a definition like none of the main interpreter's", "name unlike any"
)
from_worker("NameMismatchError: a kernel for an operator misspelled", "name of a kernel")
from_worker("NameMismatchError: a wait for a definition", "name waited for")
from_worker("NameMismatchError: a name that is held here only", "name held")
from_worker("KeyMismatchError: a fallback at another key", "fallback, another key")
from_worker("KeyMismatchError: a kernel at another key", "key")
from_worker("KeyMismatchError: a kernel for an operator without any", "key, without kernels")
from_worker("KeyMismatchError: one kernel more at a key", "key, once more")
from_worker("KeyMismatchError: a wait for a kernel", "key waited for")
from_worker("MainNeverArrivedError: a DEF library", "library")
from_worker("MainNeverArrivedError: a definition", "namespace")
from_worker("MainNeverArrivedError: a wait for a definition", "namespace waited for")
from_worker("MainNeverArrivedError: a fallback", "fallback")
from_worker("SignatureMismatchError: a kernel of a worker", "signature")
from_worker("LocalKernelMissingError: a call of what was not imported here", "kernel not here")
from_worker("WarmUpError: everything that differs", "warm_up")
from_worker("MissingInWorkerError: a definition", "missing def")
from_worker("MissingInWorkerError: a kernel", "missing impl")


# --- calls ----------------------------------------------------------------------------------------


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


@case("MdispatchError: the mark for keys that fall through is called")
def _(stage: Stage) -> None:
    md.fallthrough_kernel()


# --- registrations --------------------------------------------------------------------------------


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


@case("InvalidNameError: a device's name")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "from mdispatch.keys import rename_privateuse_backend\n"
        "rename_privateuse_backend('PrivateUse1', 'cuda')\n",
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


# --- registries -----------------------------------------------------------------------------------


@case("RegistryNotFoundError: a name")
def _(stage: Stage) -> None:
    md.Registry.attach(stage.name, timeout=0)


@case("RegistryExistsError: a name that is taken")
def _(stage: Stage) -> None:
    with md.Registry.create(stage.name):
        md.Registry.create(stage.name)


@case("RegistryClosedError: a registry that this interpreter closed")
def _(stage: Stage) -> None:
    stage.registry.close()
    stage.lib.define("late(Tensor x) -> Tensor")


@case("RegistryClosedError: the main interpreter closes it while somebody waits")
def _(stage: Stage) -> None:
    main = Main()
    waiting(main, main.close)


@case("MainMemberGoneError: the main process dies while somebody waits")
def _(stage: Stage) -> None:
    main = Main()
    waiting(main, main.kill)


@case("MainMemberGoneError: the main process of a name is dead")
def _(stage: Stage) -> None:
    main = Main(stage.name)
    main.kill()
    try:
        md.Registry.attach(stage.name, timeout=0)
    finally:
        md.Registry.create(stage.name).close()  # takes what was left over


@case("MainMemberGoneError: the environment names a dead process")
def _(stage: Stage) -> None:
    main = Main()
    main.kill()
    elsewhere(
        stage, "import mdispatch as md\nmd.default_registry()\n", **{ENVIRONMENT: main.address}
    )


@case("RegistryError: registering where only the main interpreter may")
def _(stage: Stage) -> None:
    with md.Registry.attach(stage.registry.address) as worker:
        # Libraries never come to this: they ask for the role first.
        worker._facts.register(2, 0, "shop::late", "shop::late() -> ()", "here:1")


@case("RegistryFullError: its capacity is used up")
def _(stage: Stage) -> None:
    with md.Registry.create(capacity=466944) as small:
        lib = md.Library("shop", "DEF", registry=small)
        for number in range(10_000):
            lib.define(f"f{number}(Tensor x) -> Tensor")


@case("RegistryFullError: too many registries in one process")
def _(stage: Stage) -> None:
    opened = []
    try:
        for _number in range(65):
            opened.append(md.Registry.create(capacity=1 << 20))
    finally:
        for registry in opened:
            registry.close()


def in_the_way(stage: Stage, make: Callable[[Path], object]) -> None:
    """Attaches to a name at which something is that is no registry of ours."""
    path = FOLDER / stage.name
    md.Registry.create(stage.name).close()
    make(path)
    try:
        md.Registry.attach(stage.name, timeout=0)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()


def copy_of_a_registry(path: Path, *changes: tuple[int, bytes], mode: int = 0o600) -> None:
    with md.Registry.create(f"{path.name}-original", capacity=1 << 20) as original:
        data = bytearray((FOLDER / original.address.removeprefix("shm:")).read_bytes())
    for offset, new in changes:
        data[offset : offset + len(new)] = new
    path.write_bytes(data)
    path.chmod(mode)


@case("RegistryAccessError: a folder bears the name")
def _(stage: Stage) -> None:
    in_the_way(stage, Path.mkdir)


@case("RegistryFormatError: another file bears the name")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: (path.write_bytes(b"text" * 1000), path.chmod(0o600)))


@case("RegistryFormatError: a registry of another version")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (8, b"\xff\xff\xff\xff")))


@case("RegistryFormatError: a registry from before the last boot")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (24, b"\xff" * 16)))


@case("RegistryFormatError: a registry of another container")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (56, b"\xff" * 8)))


@case("RegistryOwnerError: a registry that everybody may write to")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, mode=0o666))


def damaged(stage: Stage, offset: int, new: bytes) -> md.Registry:
    """A registry into whose file somebody has written. The offsets are those of layout.h."""
    registry = md.Registry.create(stage.name, capacity=1 << 20)
    lib = md.Library("shop", "DEF", registry=registry)
    lib.define("scale(Tensor x) -> Tensor")
    with open(FOLDER / stage.name, "r+b") as file:
        file.seek(offset)
        file.write(new)
    return registry


@case("RegistryDamagedError: somebody has written into its file")
def _(stage: Stage) -> None:
    with damaged(stage, 401408, b"\xff" * 8192) as registry:
        registry.operators()


@case("InvariantError: a count that does not agree")
def _(stage: Stage) -> None:
    with damaged(stage, 336, b"\x63") as registry:
        registry.check_invariants()


@case("SystemCallError: a process may open no more files")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        "import resource\nimport mdispatch as md\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "md.Registry.create()\n",
    )


@case("WaitCancelledError: a wait while the interpreter ends")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        """
import os, pickle, threading
import mdispatch as md
registry = md.default_registry()
def wait():
    try:
        md.wait_for_def("shop::never", None)
    except md.errors.MdispatchError as error:
        os.write(1, pickle.dumps(error))
threading.Thread(target=wait).start()
while not registry._facts.members()[0][4]:
    os.sched_yield()
""",
    )


@case("WaitCancelledError: a wait that would begin when the interpreter ends")
def _(stage: Stage) -> None:
    elsewhere(
        stage,
        """
import atexit, os, pickle, threading
import mdispatch as md
def wait():
    try:
        md.wait_for_def("shop::never", None)
    except md.errors.MdispatchError as error:
        os.write(1, pickle.dumps(error))
md.default_registry()
atexit.register(wait)
""",
    )


@case("BindingError: a binding that is none")
def _(stage: Stage) -> None:
    # Nothing of ours can be imported then, so that only the traceback is left to tell of it.
    done = subprocess.run(
        [sys.executable, "-c", "import mdispatch"],
        capture_output=True,
        text=True,
        env=os.environ | {"MDISPATCH_BINDING": "ctypes"},
        timeout=60,
    )
    name, _, text = done.stderr.rstrip("\n").rpartition("\n")[2].partition(": ")
    assert name == "mdispatch.errors.BindingError"
    raise errors.BindingError(text)


# --- the golden file ------------------------------------------------------------------------------

NORMAL = (
    (r"(?<![\w/])/[^\s:'\"]*/(?=[^/\s:'\"]+:\d+)", ""),  # of a place, its file remains
    (r"(\.py):\d+", r"\1:<line>"),
    (r"\bpid \d+", "pid <pid>"),
    (r"\b(fd|shm):[\w:.-]+", "<address>"),
    (r"golden-\d+", "<name>"),
    (r"within [\d.e-]+ s", "within <time> s"),
)


def normal(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, word in NORMAL:
        text = re.sub(pattern, word, text)
    return text


def sections() -> dict[str, str]:
    """The golden texts by their titles."""
    if not GOLDEN.exists():
        return {}
    _, *parts = re.split(r"^## ", GOLDEN.read_text(), flags=re.MULTILINE)
    return {title: text.rstrip("\n") for title, _, text in (p.partition("\n") for p in parts)}


def write(title: str, text: str) -> None:
    """Puts one text into the golden file, and takes those out of it that nothing provokes."""
    texts = sections() | {title: text}
    kept = (f"\n## {title}\n{texts[title]}\n" for title in sorted(CASES) if title in texts)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(HEAD + "".join(kept))


@pytest.mark.parametrize("title", CASES)
def test_an_error_says_what_it_said(
    title: str,
    registry: md.Registry,
    tmp_path: Path,
    worker: dict[str, Exception],
    request: pytest.FixtureRequest,
) -> None:
    stage = Stage(registry, tmp_path, worker)
    with pytest.raises(errors.MdispatchError) as caught:
        CASES[title](stage)
    assert type(caught.value).__name__ == title.partition(":")[0]
    text = normal(str(caught.value))
    if request.config.getoption("--update-golden"):
        assert not hasattr(request.config, "workerinput"), "one writes at a time: without -n"
        write(title, text)
    assert sections().get(title) == text, "if that is as wanted: --update-golden, and read it"


def test_every_class_has_a_text_and_every_text_a_case() -> None:
    classes = {title.partition(":")[0] for title in CASES}
    assert classes == set(errors.__all__) - PURE_BASES
    assert list(sections()) == sorted(CASES)


@pytest.mark.parametrize("name", sorted(PURE_BASES))
def test_what_is_taken_for_a_base_has_classes_under_it(name: str) -> None:
    assert getattr(errors, name).__subclasses__()


# --- what all texts have in common ----------------------------------------------------------------

#: Texts that are made of others, or are not as the rest yet.
OF_ANOTHER_FORM = {
    "WarmUpError: everything that differs",
}


def faults(text: str) -> Iterator[str]:
    """What keeps a text from being: what happened, indented details, a sentence on what to do."""
    head, *rest = text.split("\n")
    if not head or head != head.strip():
        yield "it does not begin with what happened"
    if any(line != line.rstrip() or not line for line in rest):
        yield "it has blanks at the ends of lines, or empty lines"
    while rest and rest[0].startswith("  "):
        del rest[0]
    for line in rest:
        if not line[:1].isupper() or line[-1:] not in (".", "?"):
            yield f"{line!r} is neither a detail nor a sentence"


@pytest.mark.parametrize("title", sorted(CASES))
def test_a_text_says_what_happened_then_details_then_what_to_do(title: str) -> None:
    assert bool(list(faults(sections()[title]))) == (title in OF_ANOTHER_FORM)


TWO_PLACES = ("SchemaMismatch", "KeyMismatch", "NameMismatch", "SignatureMismatch", "Duplicate")


@pytest.mark.parametrize(
    "title", [title for title in sorted(CASES) if title.startswith(TWO_PLACES)]
)
def test_where_two_places_differ_both_are_named(title: str) -> None:
    assert sections()[title].count(".py:<line>") >= 2


def test_the_golden_texts_hold_nothing_of_this_machine() -> None:
    text = GOLDEN.read_text()
    for word in (str(Path.home()), os.getcwd(), "/tmp", "/dev/shm", os.uname().nodename):
        assert len(word) < 2 or word not in text
    assert not re.search(r"pid \d|\.py:\d|0x[0-9a-f]{4}|[0-9a-f]{32}", text)

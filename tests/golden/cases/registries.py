"""Golden errors: whole registries, their files and their processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from golden_stage import Main, Stage, case, elsewhere, waiting
from patience import limit

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.native import native
from mdispatch.facts.opening import ENVIRONMENT

FOLDER = Path(os.fsdecode(native.folder()[1]))


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


@case("RegistrarGoneError: the registrar dies while somebody waits")
def _(stage: Stage) -> None:
    main = Main()
    waiting(main, main.kill)


@case("RegistrarGoneError: the registrar of a name is dead")
def _(stage: Stage) -> None:
    main = Main(stage.name)
    main.kill()
    try:
        md.Registry.attach(stage.name, timeout=0)
    finally:
        md.Registry.create(stage.name).close()  # takes the file that was left over


@case("RegistrarGoneError: the environment names a dead process")
def _(stage: Stage) -> None:
    main = Main()
    main.kill()
    elsewhere(
        stage, "import mdispatch as md\nmd.default_registry()\n", **{ENVIRONMENT: main.address}
    )


@case("RegistryNotFoundError: the environment names a registry that is not there")
def _(stage: Stage) -> None:
    elsewhere(stage, "import mdispatch as md\nmd.default_registry()\n", **{ENVIRONMENT: "shop"})


@case("RegistryOwnerError: the environment asks for a registry that everybody may write to")
def _(stage: Stage) -> None:
    path = FOLDER / stage.name
    copy_of_a_registry(path, mode=0o666)
    try:
        elsewhere(
            stage,
            "import mdispatch as md\nmd.default_registry()\n",
            **{ENVIRONMENT: f"elect:{stage.name}"},
        )
    finally:
        path.unlink()


@case("RegistryAccessError: a folder that is none")
def _(stage: Stage) -> None:
    script = "import mdispatch as md\nmd.Registry.create('shop')\n"
    elsewhere(stage, script, MDISPATCH_FOLDER="here")


DAEMON = """
import os
import mdispatch as md

lib = md.Library("shop", "DEF")
first = os.getpid()
if os.fork():
    os._exit(0) if {dies} else exit()
while os.getppid() == first:
    os.sched_yield()
md.Library("fresh", "DEF")
"""


@case("RegistryClosedError: a program becomes a daemon after its imports")
def _(stage: Stage) -> None:
    elsewhere(stage, DAEMON.format(dies=False))


@case("RegistrarGoneError: a program becomes a daemon after its imports")
def _(stage: Stage) -> None:
    elsewhere(stage, DAEMON.format(dies=True))


@case("RegistryError: registering where only the main interpreter may")
def _(stage: Stage) -> None:
    with md.Registry.attach(stage.registry.address) as worker:
        # A library never gets here: it checks the role first.
        worker.dispatcher.facts.register(2, 0, "shop::late", "shop::late() -> ()", "here:1")


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
    """Attaches to a name whose file is not a registry of ours."""
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


@case("RegistryAccessError: the registry's descriptor was closed")
def _(stage: Stage) -> None:
    with md.Registry.create(None, capacity=1 << 22) as registry:
        os.close(int(registry.address.split(":")[2]))
        lib = md.Library("shop", "DEF", registry=registry)
        for i in range(1000):
            lib.define(f"scale_{i}(Tensor x) -> Tensor")


@case("RegistryFormatError: another file bears the name")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: (path.write_bytes(b"text" * 1000), path.chmod(0o600)))


@case("RegistryFormatError: a registry of another version")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (8, b"\xff\xff\xff\xff")))


@case("ForeignRegistryError: a registry from before the last boot")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (24, b"\xff" * 16)))


@case("ForeignRegistryError: a registry of another container")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, (56, b"\xff" * 8)))


@case("ForeignRegistryError: an address of another host")
def _(stage: Stage) -> None:
    with md.Registry.create(None, capacity=1 << 22) as registry:
        *fields, _, space = registry.address.split(":")
        md.Registry.attach(":".join([*fields, "0123456789abcdef" * 2, space]))


@case("ForeignRegistryError: an address of another container")
def _(stage: Stage) -> None:
    with md.Registry.create(None, capacity=1 << 22) as registry:
        md.Registry.attach(f"{registry.address.rpartition(':')[0]}:1")


@case("RegistryOwnerError: a registry that everybody may write to")
def _(stage: Stage) -> None:
    in_the_way(stage, lambda path: copy_of_a_registry(path, mode=0o666))


def damaged(stage: Stage, offset: int, new: bytes) -> md.Registry:
    """A registry whose file was overwritten. layout.h has the offsets."""
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
while not registry.dispatcher.facts.members()[0][4]:
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
    # None of our modules can be imported then, so only the traceback shows the error.
    done = subprocess.run(
        [sys.executable, "-c", "import mdispatch"],
        capture_output=True,
        text=True,
        env=os.environ | {"MDISPATCH_BINDING": "ctypes"},
        timeout=limit(60),
    )
    name, _, text = done.stderr.rstrip("\n").rpartition("\n")[2].partition(": ")
    assert name == "mdispatch.errors.BindingError"
    raise errors.BindingError(text)


_ALONE = """
import pickle, sys
import mdispatch as md
try:
    md.Registry.create("shop")
except md.errors.MdispatchError as error:
    sys.stdout.buffer.write(pickle.dumps(error))
"""


@case("NotSharedError: a name where registries belong to one process")
def _(stage: Stage) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"MDISPATCH_BINDING": "none"},
        timeout=limit(60),
    )
    raise pickle.loads(done.stdout)


@case("NotSharedError: a kernel served to other processes from Registry.local()")
def _(stage: Stage) -> None:
    with md.Registry.local() as registry:
        registry.dispatcher.facts.alone = "it was made by Registry.local()"  # with every binding
        registry.dispatcher.facts.label = "local:4242"
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("count(str text) -> int")
        lib.impl("count", len, "CompositeExplicitAutograd", serve="host")


@case("NotSharedWarning: a child registers for itself")
def _(stage: Stage) -> None:
    registry = LocalRegistry()
    registry._parent = 4242
    try:
        registry.register(facts.DEF, 0, "shop::f", "shop::f() -> ()", "ops.py:7")
    finally:
        registry.close()

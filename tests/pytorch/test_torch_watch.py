"""What torch.library registers, as registrations: recorded by one, verified by all others."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch
import torch.library
from commands import environment
from patience import limit
from torch.library import Library

import mdispatch as md
from mdispatch import errors
from mdispatch.facts import NAME
from mdispatch.torch.asked import asking
from mdispatch.torch.kind import TORCH, torch_parts
from mdispatch.torch.watches import Watches
from mdispatch.torch.watching import Watching

pytestmark = pytest.mark.either_binding

numbers = itertools.count()
HERE = __file__


@pytest.fixture
def ns():
    """A namespace that PyTorch has not seen: what it knows of a name stays in this process."""
    return f"watched{next(numbers)}"


@pytest.fixture
def watched(registry):
    with md.torch.watch(registry=registry):
        yield registry.dispatcher.of(Watches).watching


def parts(registry: md.Registry, ns: str, operator: str = "") -> dict[str, md.Registration]:
    """The registrations of one namespace, or one operator: the name and the part, without the
    namespace."""
    _, there = registry.dispatcher.facts.registrations_since(TORCH, 0)
    named = {fact.name.removeprefix("torch.library::"): fact for fact in there}
    start = f"{ns}::{operator}"
    return {
        name.removeprefix(f"{ns}::"): fact for name, fact in named.items() if name.startswith(start)
    }


def line_of(text: str) -> str:
    """The location of a line of this file."""
    found = [n for n, line in enumerate(Path(HERE).read_text().splitlines(), 1) if text in line]
    return f"{HERE}:{found[0]}"


def define_all(ns: str) -> list[object]:
    """Registers by each function of torch.library. Returns what keeps it."""
    library = Library(ns, "FRAGMENT")
    library.define("plain(Tensor x, int n=1) -> Tensor", tags=(torch.Tag.pointwise,))  # plain
    library.impl("plain", lambda x, n=1: x, "CPU")
    library.impl("plain", torch.library.fallthrough_kernel, "Autograd")  # fallthrough

    torch.library.define(f"{ns}::loose", "(Tensor x) -> Tensor", lib=library)  # loose
    torch.library.impl(f"{ns}::loose", ("cpu", "cuda"), lambda x: x, lib=library)
    torch.library.register_kernel(f"{ns}::loose", "xpu", lambda x: x, lib=library)
    torch.library.register_fake(f"{ns}::loose", torch.empty_like, lib=library)  # loose fake
    torch.library.register_autograd(f"{ns}::loose", lambda ctx, g: g, lib=library)
    torch.library.register_vmap(f"{ns}::loose", lambda info, dims, x: (x, 0), lib=library)

    @torch.library.custom_op(f"{ns}::custom", mutates_args=(), device_types="cpu")  # custom
    def custom(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    custom.register_fake(torch.empty_like)
    custom.register_autograd(lambda ctx, gradient: gradient)
    custom.register_kernel("cuda")(lambda x: x)
    custom.register_torch_dispatch(Mode, lambda mode, func, types, args, kwargs: None)
    return [library, custom]


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    pass


ALL = [
    *("custom", "custom@Autograd", "custom@CPU", "custom@CUDA", "custom@Meta"),
    *("custom@register_autograd", "custom@register_fake", "custom@register_torch_dispatch Mode"),
    *("loose", "loose@Autograd", "loose@CPU", "loose@CUDA", "loose@FuncTorchBatched"),
    *("loose@Meta", "loose@XPU"),
    *("plain", "plain@Autograd", "plain@CPU"),
]


# --- what becomes a registration
# --------------------------------------------------------------------------


def test_each_way_to_register_makes_facts_with_their_places(registry, watched, ns):
    keep = define_all(ns)
    there = parts(registry, ns)
    assert sorted(there) == ALL
    assert there["plain"].body == f"{ns}::plain(Tensor x, int n=1) -> Tensor # pointwise"
    assert there["plain"].where == line_of('"plain(Tensor x, int n=1)')
    assert there["plain@Autograd"].where == line_of("  # fallthrough")
    assert there["loose"].where == line_of("  # loose")
    assert there["loose@Meta"].where == line_of("  # loose fake")
    assert there["custom"].where == line_of("  # custom")
    assert there["custom@CPU"].body == ""
    del keep


def test_what_a_hook_tells_without_a_look_is_what_a_look_finds(registry, watched, ns, monkeypatch):
    library = Library(ns, "FRAGMENT")

    def register(name: str, *more: str) -> None:
        for schema in (
            f"{name}(Tensor x, int n=1,float eps = 1e-5) -> Tensor",
            f"{name}.out (Tensor x, int[] n, *, Tensor(a!) out) -> Tensor(a!)",
            f"{name}.none(SymInt n, str? s=None, Scalar k='nan', Device? d=None) -> ()",
            *more,
        ):
            library.define(schema)
        for key in ("CPU", "Meta", "CompositeImplicitAutograd"):
            library.impl(f"{name}.none", lambda n, *args: None, key)

    register("first")
    looked = []
    monkeypatch.setattr(Watching, "_look_at", lambda self, operator, *rest: looked.append(operator))
    register("second", "second.full(Tensor(a)? x, Dict(str, int) d) -> Tensor(a)[]")
    library.define("tagged(Tensor x) -> Tensor", tags=torch.Tag.core)
    torch.library.define(f"{ns}::elsewhere", "(Tensor x) -> Tensor", lib=library)
    assert looked == [f"{ns}::tagged", f"{ns}::elsewhere"]
    monkeypatch.undo()
    told = parts(registry, ns)
    watched.look()
    found = parts(registry, ns)
    assert set(found) - set(told) == {"tagged", "elsewhere"}
    assert told == {name: found[name] for name in told}
    assert len(told) == 3 + 4 + 2 * 3


def test_what_was_there_before_is_read_from_the_tables(registry, ns):
    keep = define_all(ns)
    with md.torch.watch(registry=registry):
        before = parts(registry, ns)
        later = define_all(ns + "b")
        after = parts(registry, ns + "b")
    assert sorted(before) == sorted(after) == ALL
    assert [fact.body for _, fact in sorted(before.items())] == [
        fact.body.replace(ns + "b", ns) for _, fact in sorted(after.items())
    ]
    # The tables know where a Library was made, and a custom_op its function.
    assert before["plain"].where == line_of('library = Library(ns, "FRAGMENT")')
    assert before["custom"].where == line_of("  # custom")
    del keep, later


def test_they_are_no_operators_of_ours_and_exported_ones_are_left_out(registry, watched, ns):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("same(Tensor x) -> Tensor")
    theirs = Library(ns, "FRAGMENT")
    theirs.define("same(Tensor x, int n) -> Tensor")
    lib.define("ours(Tensor x) -> Tensor")
    lib.impl("ours", lambda x: x, "CPU")
    assert md.torch.export(f"{ns}::ours", registry=registry) == (f"{ns}::ours",)
    watched.look()
    assert sorted(parts(registry, ns)) == ["same"]
    assert sorted(name for name in registry.operators() if name.startswith(ns)) == [
        f"{ns}::ours",
        f"{ns}::same",
    ]
    assert str(registry.ops.find(f"{ns}::same").schema) == f"{ns}::same(Tensor x) -> Tensor"
    registry.check_invariants()


def test_of_pytorchs_own_there_is_the_version_and_what_others_register_for_it(registry, watched):
    def names():
        _, there = registry.dispatcher.facts.registrations_since(TORCH, 0)
        return sorted(torch_parts(fact.name) for fact in there)

    before = names()
    assert ("", "version") in before
    assert not [each for each in before if "aten" in each[0]]
    others = Library("aten", "IMPL")
    others.impl("add.Tensor", lambda x, y: x, "PrivateUse2")
    torch.library.impl("aten::mul.Tensor", "PrivateUse2", lambda x, y: x, lib=others)
    # A module of PyTorch that registers when it is imported, which others need not import. (Here
    # another test may have imported it.)
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    watched.look()
    new = [each for each in names() if each not in before]
    assert new == [("aten::add.Tensor", "PrivateUse2"), ("aten::mul.Tensor", "PrivateUse2")]
    others._destroy()
    assert names() == before
    # What lies in the tables before a watch begins has only the location of its Library.
    later = Library("aten", "IMPL")
    later.impl("add.Tensor", lambda x, y: x, "PrivateUse2")
    watched.close()
    with md.torch.watch(registry=registry):
        assert [each for each in names() if each not in before] == [new[0]]
    later._destroy()


ROOT = Path(torch.__file__).parent
STABLE = ROOT / "include" / "torch" / "csrc" / "stable" / "library.h"


in_cpp = pytest.mark.skipif(not STABLE.exists(), reason="this PyTorch has no header for it")
#: Operators in C++: two of one namespace, the first one with a kernel.
LIBRARY = """
#include <torch/csrc/stable/library.h>
static void twice(StableIValue *stack, uint64_t arguments, uint64_t results) {}
STABLE_TORCH_LIBRARY($NS, m) {
    m.def("twice(Tensor x) -> Tensor");
    m.def("thrice(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL($NS, CPU, m) { m.impl("twice", twice); }
"""
#: A second kernel for the same.
KERNEL = """
#include <torch/csrc/stable/library.h>
static void thrice(StableIValue *stack, uint64_t arguments, uint64_t results) {}
STABLE_TORCH_LIBRARY_IMPL($NS, CPU, m) { m.impl("thrice", thrice); }
"""
#: Makes an extension module of it.
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


def built(path: Path, source: str, ns: str) -> Path:
    """Compiles a library of operators."""
    text = path.with_suffix(".cpp")
    text.write_text(source.replace("$NS", ns))
    includes = [f"-I{ROOT}/include", f"-I{sysconfig.get_path('include')}"]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", *includes]
    libraries = [f"-L{ROOT}/lib", "-ltorch_cpu"]
    subprocess.run(["c++", *flags, "-o", path, text, *libraries], check=True)
    return path


@in_cpp
def test_what_a_library_in_c_registers_is_found_when_it_is_loaded(registry, watched, ns, tmp_path):
    library = built(tmp_path / f"{ns}.so", LIBRARY, ns)
    # Another thread is about to tell of this one, with its line.
    half = Library(ns, "FRAGMENT")
    half.m.define("half(Tensor x) -> Tensor", "")
    torch.ops.load_library(library)
    there = parts(registry, ns)
    assert sorted(there) == ["thrice", "twice", "twice@CPU"]
    assert there["twice"].where == f"{library.with_suffix('.cpp')}:4, in {library}"
    assert there["twice@CPU"].where == f"{library.with_suffix('.cpp')}:8, in {library}"
    assert there["twice"].module == __name__  # what has loaded it
    assert watched.covers(there["twice"])
    torch.library.register_fake(f"{ns}::twice", torch.empty_like)  # fake in Python
    assert parts(registry, ns)["twice@Meta"].where == line_of("  # fake in Python")
    # Another library has more for the same operator.
    more = built(tmp_path / f"{ns}_more.so", KERNEL, ns)
    torch.classes.load_library(str(more))
    assert parts(registry, ns)["thrice@CPU"].where.endswith(f":4, in {more}")
    assert parts(registry, ns)["thrice"] == there["thrice"]


@in_cpp
def test_what_an_extension_module_registers_is_found_when_it_is_imported(
    registry, watched, ns, tmp_path, monkeypatch
):
    folder = tmp_path / f"package_{ns}"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import _C\n")
    library = built(folder / "_C.so", LIBRARY + MODULE, ns)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(folder.name)
    there = parts(registry, ns)
    assert sorted(there) == ["thrice", "twice", "twice@CPU"]
    assert there["twice"].where.endswith(f":4, in {library}")
    assert there["twice"].module == folder.name  # what imports it


@in_cpp
def test_what_a_library_in_c_registers_unseen_is_found_by_the_next_look(
    registry, watched, ns, tmp_path
):
    library = built(tmp_path / f"{ns}.so", LIBRARY, ns)
    ctypes.CDLL(str(library))
    assert not parts(registry, ns)
    watched.look()
    assert sorted(parts(registry, ns)) == ["thrice", "twice", "twice@CPU"]
    assert parts(registry, ns)["twice"].where == f"{library.with_suffix('.cpp')}:4"


@in_cpp
@pytest.mark.shared
def test_a_registry_that_is_full_is_told_once_and_looks_go_on(ns, tmp_path, monkeypatch):
    told, looks = [], itertools.count()
    monkeypatch.setattr(sys, "unraisablehook", lambda unraised: told.append(unraised.exc_type))
    look, full, many = Watching.look_at_libraries, threading.Event(), threading.Event()

    def counted(*args, **kwargs):
        if full.is_set() and next(looks) == 3:
            many.set()
        look(*args, **kwargs)

    def wait(backing):
        name = f"torch.library::{ns}::twice"
        while not many.is_set():
            # The memory of a removed registration serves again when no reader can be in it.
            with suppress(errors.MdispatchError), asking(backing, name, "x" * 900):
                backing.await_fact(TORCH, 0, name, 1, None)

    monkeypatch.setattr(Watching, "look_at_libraries", counted)
    with md.Registry.create(capacity=1 << 21) as registry, md.torch.watch(registry=registry):
        facts = registry.dispatcher.facts
        ctypes.CDLL(str(built(tmp_path / f"{ns}.so", LIBRARY, ns)))
        with md.Registry.attach(registry.address) as worker:
            fill = []
            for size in (900, 450, 200, 100, 50, 1):  # up to the last byte
                with suppress(errors.RegistryFullError):
                    while True:
                        fill.append(facts.register(NAME, 0, f"{ns}::{len(fill)}", "", "x" * size))
            facts.remove(fill[0])  # room for the note
            full.set()
            waiter = threading.Thread(target=wait, args=(worker.dispatcher.facts,))
            waiter.start()
            assert many.wait(limit(30))
        waiter.join(limit(30))
    assert told == [errors.RegistryFullError]


# --- what ends and what is replaced ---------------------------------------------------------------


def test_the_end_of_a_library_ends_its_facts(registry, watched, ns):
    library, other = Library(ns, "FRAGMENT"), Library(ns, "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    other.impl("f", lambda x: x, "CPU")
    library._destroy()
    assert sorted(parts(registry, ns)) == ["f@CPU"]  # as PyTorch has it
    other._destroy()
    assert not parts(registry, ns)
    library = Library(ns, "FRAGMENT")
    library.define("g(Tensor x) -> Tensor")
    assert sorted(parts(registry, ns)) == ["g"]
    del library
    gc.collect()
    Library(ns, "FRAGMENT").define("h(Tensor x) -> Tensor")
    assert "g" not in parts(registry, ns)
    watched.look()
    assert not parts(registry, ns)


def test_what_is_registered_again_replaces_and_says_so(registry, watched, ns):
    def make(second):
        def first_kernel(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        def second_kernel(x: torch.Tensor, n: int) -> torch.Tensor:
            return x.clone()

        if not second:
            return torch.library.custom_op(f"{ns}::f", first_kernel, mutates_args=())  # first
        return torch.library.custom_op(f"{ns}::f", second_kernel, mutates_args=())  # second

    keep = [make(False)]
    first = parts(registry, ns)["f"]
    keep.append(make(True))
    second = parts(registry, ns)["f"]
    assert second.body.startswith(f"{ns}::f(Tensor x, SymInt n) -> Tensor")
    assert (
        second.text.splitlines()[1]
        == f"replaces {first.where}"
        == "replaces " + line_of("  # first")
    )
    keep.append(make(True))  # the same again is the same
    assert parts(registry, ns)["f"].text.splitlines() == [second.body]

    library = Library(ns, "FRAGMENT")
    library.define("g(Tensor x) -> Tensor")
    library.impl("g", lambda x: x, "CPU")  # kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, once in a process
        library.impl("g", lambda x: x + 1, "CPU")
    there = parts(registry, ns)["g@CPU"]
    assert there.text == "\nreplaces " + line_of("  # kernel")


def test_close_ends_the_watch_and_its_facts(registry, ns):
    define = Library.define
    watch = md.torch.watch(registry=registry)
    assert md.torch.watch(registry=registry) is watch
    assert Library.define is not define
    library = Library(ns, "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    assert parts(registry, ns)
    watch.close()
    watch.close()
    assert Library.define is define
    assert "closed" in repr(watch)
    assert not registry.dispatcher.facts.registrations_since(TORCH, 0)[1]
    library.define("g(Tensor x) -> Tensor")
    assert not parts(registry, ns)
    with md.torch.watch(registry=registry) as again:
        assert again is not watch
        assert sorted(parts(registry, ns)) == ["f", "g"]


@pytest.mark.shared
def test_close_ends_the_thread_that_hears_of_those_who_wait(registry):
    with md.torch.watch(registry=registry):
        asked = registry.dispatcher.of(Watches).watching.asked
        assert asked._thread.is_alive()
    asked._thread.join(limit(30))
    assert not asked._thread.is_alive()


def test_the_end_of_a_registry_ends_its_watch(ns):
    define = Library.define
    with md.Registry.local() as registry:
        md.torch.watch(registry=registry)
        assert Library.define is not define
    assert Library.define is define
    Library(ns, "FRAGMENT").define("f(Tensor x) -> Tensor")


#: The child of a fork: whether it hears of those who wait, before and after it registers.
FORKED = """
import os, sys
from contextlib import suppress
from torch.library import Library
import mdispatch as md
from mdispatch.torch.watches import Watches
md.torch.watch(timeout=0)
watching = md.default_registry().dispatcher.of(Watches).watching
assert watching.asked._thread.is_alive()
pid = os.fork()
if pid == 0:
    before = watching.asked
    with suppress(md.errors.MdispatchError):
        Library("forked", "FRAGMENT").define("f(Tensor x) -> Tensor")
    after = watching.asked is not None and watching.asked._thread.is_alive()
    os._exit(before is not None or after is not (sys.argv[1] == "peer"))
assert os.waitpid(pid, 0)[1] == 0
assert watching.asked._thread.is_alive()
"""


@pytest.mark.shared
@pytest.mark.parametrize("role", ["main", "peer"])
def test_the_child_of_a_fork_hears_of_those_who_wait_if_it_may_register(role, tmp_path):
    team = {"MDISPATCH_REGISTRY": f"elect:forked-{tmp_path.name}"[:100]} if role == "peer" else {}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, role]
    subprocess.run(command, env=environment(**team), check=True)


def test_nothing_of_torch_is_imported_before_somebody_asks():
    code = "import sys, mdispatch as md; md.torch.watch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


# --- verifying ------------------------------------------------------------------------------------


def test_a_worker_that_watches_verifies(registry, worker, ns):
    library = Library(ns, "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    with pytest.raises(errors.MainNeverArrivedError, match=r"mdispatch\.torch\.watch\(\)") as told:
        md.torch.watch(registry=worker, timeout=0)
    assert (told.value.kind, told.value.key) == ("torch", "version")
    assert worker.dispatcher.of(Watches).watching is None  # refused: it watches nothing
    with md.torch.watch(registry=registry), md.torch.watch(registry=worker, timeout=0):
        library.impl("f", lambda x: x, "CPU")
        assert worker.dispatcher.of(Watches).watching.has(f"torch.library::{ns}::f@CPU")
        assert not worker.dispatcher.of(Watches).watching.has(f"torch.library::{ns}::f@CUDA")


#: The documented flow: the parent watches and imports, its children verify. They tell what differs.
JOB = """
import importlib, json, sys
import torch.multiprocessing as mp
import mdispatch as md

def child(rank, package, told):
    md.torch.watch(timeout={timeout})
    try:
        md.warm_up(package, timeout={timeout})
        differences = []
    except md.errors.WarmUpError as error:
        differences = [[type(e).__name__, e.name, e.key, str(e)] for e in error.differences]
    told.put(differences)

if __name__ == "__main__":
    package = sys.argv[1]
    md.torch.watch()
    importlib.import_module(package)
    told = mp.get_context("spawn").SimpleQueue()
    mp.spawn(child, (package, told), nprocs=2)
    print(json.dumps([told.get(), told.get()]))
"""
#: Ways in which a package loads its library.
LOADS = {
    "import": "from . import _C",
    "load_library": "import torch; torch.ops.load_library(os.path.join(folder, '_C.so'))",
    "dlopen": "import ctypes; ctypes.CDLL(os.path.join(folder, '_C.so'))",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library that is an extension module, too, of a namespace ``in_cpp``."""
    if not STABLE.exists():
        pytest.skip("this PyTorch has no header for it")
    return built(tmp_path_factory.mktemp("library") / "_C.so", LIBRARY + MODULE, "in_cpp")


def package_in(folder: Path, library: Path, loads: str) -> Path:
    """A package that loads a library, if it is not a child which lacks that."""
    package = folder / "package_in_cpp"
    package.mkdir()
    shutil.copy(library, package)
    (package / "__init__.py").write_text(
        "import multiprocessing, os\n"
        "folder = os.path.dirname(__file__)\n"
        "if os.environ.get('LACKS') != '1' or multiprocessing.parent_process() is None:\n"
        f"    {loads}\n"
    )
    return package


def in_job(folder: Path, library: Path, loads: str, **changes: str):
    """What differs in each child, where all import a package that loads a library."""
    package = package_in(folder, library, loads)
    (folder / "job.py").write_text(JOB.format(timeout=limit(60)))
    done = subprocess.run(
        [sys.executable, "job.py", package.name],
        cwd=folder,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", LOADS)
def test_children_find_what_a_library_in_c_has_registered_in_their_parent(tmp_path, library, way):
    assert in_job(tmp_path, library, LOADS[way]) == [[], []]


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", ["import", "load_library"])
def test_a_child_that_lacks_a_library_hears_which(tmp_path, library, way):
    first, second = in_job(tmp_path, library, LOADS[way], LACKS="1")
    assert first == second
    assert [each[:3] for each in first] == [
        ["MissingInWorkerError", "in_cpp::thrice", ""],
        ["MissingInWorkerError", "in_cpp::twice", ""],
        ["MissingInWorkerError", "in_cpp::twice", "CPU"],
    ]
    assert all(f", in {tmp_path}/package_in_cpp/_C.so)" in each[3] for each in first)
    assert all("load that library" in each[3] for each in first)


#: A file in the shape of those of engines that serve models: hundreds of operators by a helper, as
#: custom_op, and kernels for PyTorch's own. ``$X`` stands for what one rank has otherwise.
KERNELS = """
import torch
from torch.library import Library

lib = Library("engine", "FRAGMENT")

def direct_register(name, schema, key, function, fake):
    lib.define(name + schema)
    lib.impl(name, function, key)
    lib._register_fake(name, fake)

"""


def kernels(path: Path, *, differs: bool = False) -> Path:
    lines = [KERNELS]
    for i in range(300):
        schema = f"(Tensor x, Tensor? y, int n={i}, float eps=1e-5, str kind='a') -> Tensor"
        key = "CPU"
        if differs and i == 7:
            schema = schema.replace("int n=7", "int n=8")
        if differs and i == 8:
            key = "CUDA"
        if differs and i == 9:
            lines.append("\n")
            continue
        lines.append(
            f'direct_register("op{i}", "{schema}", "{key}", lambda x, *a, **k: x, '
            "lambda x, *a, **k: torch.empty_like(x))\n"
        )
    for i in range(40):
        lines.append(
            f'@torch.library.custom_op("engine::custom{i}", mutates_args=("out",))\n'
            f"def custom{i}(x: torch.Tensor, out: torch.Tensor, n: int = {i}) -> None:\n"
            "    out.copy_(x)\n"
            f"@custom{i}.register_fake\n"
            f"def _(x, out, n={i}):\n"
            "    return None\n"
        )
    lines.append('gems = Library("aten", "IMPL")\n')
    for name in ("add.Tensor", "mul.Tensor", "silu", "rsqrt", "bmm", "softmax.int"):
        lines.append(f'gems.impl("{name}", lambda *a, **k: a[0], "PrivateUse3")\n')
    path.mkdir()
    (path / "engine_kernels.py").write_text("".join(lines))
    return path


#: 300 with a kernel and a fake kernel, 40 custom_ops with a fake kernel, 6 others, the version.
FACTS = 300 * 3 + 40 * 6 + 6 + 1

RANK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mdispatch as md
md.torch.watch(timeout={timeout})
sys.path.insert(0, sys.argv[1])
try:
    done = md.warm_up("engine_kernels", timeout={timeout})
    differences = []
except md.errors.WarmUpError as error:
    differences = error.differences
told = [
    [type(e).__name__, e.name, e.key, e.here, e.there, getattr(e, "schema_here", "")]
    for e in differences
]
{then}
_, there = md.default_registry().dispatcher.facts.registrations_since(8, 0)
print(json.dumps([md.register_or_verify(), len(there), told]), flush=True)
sys.stdin.read()
"""


def rank(then: str = "", timeout: float = limit(60)) -> str:
    return RANK.format(timeout=timeout, then=textwrap.dedent(then))


@pytest.fixture
def start():
    """Starts a rank in a process of its own; ``answer`` reads what it tells."""
    started = []

    def begin(program: str, folder: Path, **changes: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", program, str(folder)]
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment(**changes)
        )
        started.append(process)
        return process

    yield begin
    for each in started:
        each.kill()
        each.communicate()


def answer(process: subprocess.Popen[str]):
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
def test_eight_ranks_at_once_register_or_verify(start, tmp_path, ns):
    folder = kernels(tmp_path / "kernels")
    team = f"elect:torch-watch-{ns}-{tmp_path.name}"[:100]
    ranks = [start(rank(), folder, MDISPATCH_REGISTRY=team) for _ in range(8)]
    answers = [answer(each) for each in ranks]  # all are members until all have answered
    assert [told for _, _, told in answers] == [[]] * 8
    assert {count for _, count, _ in answers} == {FACTS}
    assert sum(role == "register" for role, _, _ in answers) >= 1


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
def test_one_rank_whose_file_differs_is_told_with_both_places(start, tmp_path):
    folder, other = kernels(tmp_path / "a"), kernels(tmp_path / "b", differs=True)
    main = start(rank("import os; print(json.dumps(os.environ['MDISPATCH_REGISTRY']))"), folder)
    address = answer(main)
    assert answer(main) == ["register", FACTS, []]
    # What is there is there by now.
    member = {"MDISPATCH_REGISTRY": address}
    ranks = [start(rank(timeout=1), each, **member) for each in (folder, other)]
    # A second run in one process: its libraries end, and it registers all of it again.
    again = """
    import engine_kernels, importlib
    from mdispatch.registry.verify import all_kept
    engine_kernels.lib._destroy()
    engine_kernels.gems._destroy()
    importlib.reload(engine_kernels)
    told += [str(e) for e in all_kept(md.default_registry().dispatcher)]
    """
    ranks.append(start(rank(again, timeout=1), folder, **member))
    first, differs, twice = [answer(each) for each in ranks]
    assert first == twice == ["verify", FACTS, []]
    here, there = other / "engine_kernels.py", folder / "engine_kernels.py"
    line = 12  # of op0
    assert sorted(each[:5] for each in differs[2]) == sorted(
        [
            ["SchemaMismatchError", "engine::op7", "", f"{here}:{line + 7}", f"{there}:{line + 7}"],
            [
                "KeyMismatchError",
                "engine::op8",
                "CUDA",
                f"{here}:{line + 8}",
                f"{there}:{line + 8}",
            ],
            ["MissingInWorkerError", "engine::op8", "CPU", f"{here}", f"{there}:{line + 8}"],
            ["MissingInWorkerError", "engine::op9", "", f"{here}", f"{there}:{line + 9}"],
            ["MissingInWorkerError", "engine::op9", "CPU", f"{here}", f"{there}:{line + 9}"],
            ["MissingInWorkerError", "engine::op9", "Meta", f"{here}", f"{there}:{line + 9}"],
        ]
    )
    assert "int n=8" in next(each[5] for each in differs[2] if each[0] == "SchemaMismatchError")


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
def test_the_command_verifies_what_modules_register_with_torch(tmp_path):
    (tmp_path / "agreeing.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('agreeing::f', mutates_args=())\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
    )
    (tmp_path / "differing.py").write_text(
        "import torch, mdispatch as md\n"
        "is_main = md.register_or_verify() == 'register'\n"
        "lib = torch.library.Library('differing', 'DEF')\n"
        "lib.define('f(Tensor x) -> Tensor' if is_main else 'f(Tensor x, int n) -> Tensor')\n"
    )

    def verify(*arguments):
        command = [sys.executable, "-m", "mdispatch", "verify", "--torch", *arguments]
        command += ["--timeout", str(limit(10))]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    status, shown, _ = verify("agreeing", "--processes", "2")
    assert status == 0
    assert "1 operator and 3 kernels registered by agreeing" in shown
    status, told, _ = verify("differing", "--json")
    found = json.loads(told)
    assert status == 1
    assert found["torch"]
    assert len(found["workers"]) == 1
    (difference,) = found["differences"]
    assert difference["category"] == "schema"
    assert difference["name"] == "differing::f"
    assert difference["schema_there"] == "differing::f(Tensor x) -> Tensor"
    assert difference["here"] == difference["there"] == f"{tmp_path / 'differing.py'}:4"
    assert verify("json")[0] == 5  # the version of PyTorch is there, but is not of the module
    status, _, refused = verify("agreeing", "--interpreters", "1")
    assert status == 2
    assert "loaded once" in refused


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", LOADS)
def test_the_command_counts_what_it_compares(tmp_path, library, way):
    package = package_in(tmp_path, library, LOADS[way])
    with (package / "__init__.py").open("a") as module:
        module.write("from . import more\n")
    (package / "more.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('in_cpp::f', mutates_args=())\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
        "torch.library.register_fake('in_cpp::thrice', torch.empty_like)\n"
    )
    command = [sys.executable, "-m", "mdispatch", "verify", "--torch", package.name, "--json"]
    done = subprocess.run(
        [*command, "--timeout", str(limit(10))],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    (worker,) = told["workers"]
    # Of f: a kernel for all devices, that of a formula, and a fake one.
    assert (told["main"]["operators"], told["main"]["kernels"]) == (3, 5)
    assert (worker["operators"], worker["kernels"]) == (3, 5)


# --- roll calls -----------------------------------------------------------------------------------

CALLS_THE_ROLL = """
import sys, torch
import mdispatch as md

md.torch.watch()
is_odd = sys.argv[1] == "1"

@torch.library.custom_op("rolled::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float = 3.0 if is_odd else 2.0) -> torch.Tensor:
    return x * factor

if not is_odd:
    @scale.register_fake
    def _(x, factor=2.0):
        return torch.empty_like(x)

lib = torch.library.Library("rolled", "FRAGMENT")
lib.define("same(Tensor x) -> Tensor")
try:
    md.roll_call(expected=2, timeout=None, leader=0)
except md.errors.RollCallError as error:
    print(error)
"""


@pytest.mark.needs("choices", "observing")
@pytest.mark.shared
def test_a_roll_call_names_the_operators_of_pytorch_that_differ(tmp_path):
    """Also where the rank that differs is the first to register."""
    env = {"MDISPATCH_REGISTRY": f"elect:rolled-{tmp_path.name}"[:100]}
    env |= {"MDISPATCH_ON_DIFFERENCE": "roll_call", "MDISPATCH_HOST": "n1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CALLS_THE_ROLL, rank],
            env=environment(RANK=rank, **env),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("1", "0")
    ]
    for rank in ranks:
        told, _ = rank.communicate(timeout=limit(120))
        assert ": 1 agrees; rank 1 on n1 differs in 1 of 2 operators of PyTorch\n" in told
        assert "  torch.rolled.scale.definition: 'rolled::scale(Tensor x, float factor=3.)" in told
        assert "  torch.rolled.scale.register_fake: missing at rank 1 on n1, and " in told
        assert "2." not in told.partition("torch.rolled")[0]  # PyTorch's version is the same

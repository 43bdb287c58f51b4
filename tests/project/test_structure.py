"""The structure: imports that point down, one contract, one set of names."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest
from commands import environment
from our_kinds import OURS
from patience import limit

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.dispatch import c_kernels
from mdispatch.errors import classes
from mdispatch.facts import native, status
from mdispatch.facts.native import _ext, constants
from mdispatch.facts.native.contract import Binding
from mdispatch.registry import load_library
from mdispatch.schema import scanner

pytestmark = pytest.mark.either_binding

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(md.__file__).resolve().parent
NATIVE = ROOT / "native"

# --- modules --------------------------------------------------------------------------------------


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


# --- packages ------------------------------------------------------------------------------------

CORE = ["errors", "keys", "schema", "facts", "dispatch", "registry"]
FEATURES = ["across", "choices", "cluster", "editions", "observing", "pool", "providers", "torch"]
PACKAGES = [*CORE, *FEATURES, "authoring", "workers", "torch_compat", "cli"]
#: Beside the packages: the core's, then those that are above it.
FILES = ["__init__.py", "__init__.pyi", "forking.py", "seam.py"]
FILES += ["context.py", "fake.py", "telemetry.py", "config.py", "__main__.py"]
FACES = [name for name, path in MODULES.items() if path.name == "__init__.py" and name]


@pytest.mark.lint
def test_the_top_of_the_package_has_its_packages_and_little_beside():
    top = {
        path.name for path in PACKAGE.iterdir() if path.suffix in (".py", ".pyi") or path.is_dir()
    }
    assert top - {"__pycache__", "include"} == {*FILES, *PACKAGES}


@pytest.mark.lint
@pytest.mark.parametrize("name", FACES)
def test_a_face_holds_a_docstring_and_re_exports_only(name):
    """At once, or late by a ``__getattr__``. import-linter sees no arrow between a package and its
    own modules: code in a face could hide a circle.
    """
    first, *rest = ast.parse(MODULES[name].read_text()).body
    assert isinstance(first, ast.Expr)
    for node in rest:
        is_list = isinstance(node, (ast.Assign, ast.AugAssign)) and "__all__" in ast.unparse(node)
        is_late = isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        is_late |= ast.unparse(node).startswith("__getattr__ = late(")
        is_late |= is_for_types(node) or ast.unparse(node) == "TYPE_CHECKING = False"
        assert isinstance(node, ast.ImportFrom) or is_list or is_late, ast.unparse(node)


def arrows(modules):
    """Which of our modules each module imports, also in functions and for the type checker."""
    found = {}
    for name, path in modules.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [part for part in package if part]
                base = base[: len(base) - node.level + 1]
                base += node.module.split(".") if node.module else []
                for alias in node.names:
                    whole = ".".join([*base, alias.name])
                    target = whole if whole in modules else ".".join(base)
                    if target in modules and target not in ("", name):
                        found.setdefault(name, set()).add(target)
    return found


def circle(found):
    """Modules that import each other, if there are any. A face and its own modules make no
    circle.
    """
    for start in found:
        seen, waiting = set(), [start]
        while waiting:
            for target in found.get(waiting.pop(), ()):
                if target == start:
                    return sorted(seen | {start})
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
    return []


@pytest.mark.thorough
@pytest.mark.lint
def test_no_files_import_each_other_in_a_circle():
    found = arrows({name: path for name, path in MODULES.items() if name not in FACES})
    assert circle(found) == []
    found["errors.words"] = {"registry.library"}
    assert circle(found) != []


def loaded_by(work, beside=False):
    """The modules that such code loads in a process that has only what Python itself loads, or in
    an interpreter ``beside`` its main one: those of the package, and the others.
    """
    path = [str(PACKAGE.parent), *sys.path]
    code = (
        f"import os, sys; before = set(sys.modules); sys.path[:] = {path!r}\n"
        f"{work}\nos.write(1, ' '.join(set(sys.modules) - before).encode())"
    )
    if beside:
        code = (
            f"import sys; sys.path[:] = {path!r}\n"
            "import mdispatch; from mdispatch.pool.interpreters import create_interpreter\n"
            f"mdispatch.default_registry(); create_interpreter().exec({code!r})"
        )
    # Another test of this process may have a default registry open: the child makes its own.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], stdout=-1, text=True, check=True, env=environment()
    )
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.partition(".")[0] == "mdispatch"}
    return ours, loaded - ours


def test_importing_the_package_loads_little():
    # Interpreters come and go, and each imports it. Most of the cost of functools is what it
    # imports; each module costs 0.1 ms, the classes of errors 1 ms.
    work = "import mdispatch; mdispatch.default_registry()"
    _, others = loaded_by(work)
    allowed = {"__future__", "_collections", "_functools", "atexit"}
    assert {name.partition(".")[0] for name in others} <= allowed | {"_cffi_backend"}
    ours, others = loaded_by(work, beside=True)
    assert {name.partition(".")[0] for name in others} <= allowed
    assert len(ours) <= 25
    assert "mdispatch.errors.classes" not in ours


def test_what_works_from_registering_to_the_first_call_loads_little_of_the_standard_library():
    _, others = loaded_by(
        "import mdispatch as md\n"
        "lib = md.Library('small', 'DEF')\n"
        "lib.define('f(Tensor x) -> Tensor')\n"
        "lib.impl('f', lambda x: x, 'CPU')\n"
        "md.warm_up([])\n"
        "class Array: __dispatch_keys__ = 'CPU'\n"
        "md.ops.small.f(Array())"
    )
    avoided = {"collections", "contextlib", "enum", "functools"}
    avoided |= {"importlib", "re", "typing", "warnings"}
    assert not avoided & others


def includes(path):
    return re.findall(r"^\s*#\s*include\s*([<\"][^>\"]+)", path.read_text(), re.MULTILINE)


# test_layers.py tests which files of the core may include and call which others.
@pytest.mark.lint
@pytest.mark.parametrize(
    "path", sorted((NATIVE / "core").rglob("*.[ch]")), ids=lambda path: path.name
)
def test_the_core_knows_nothing_of_python(path):
    assert not re.search(r"python|torch|cffi", "".join(includes(path)), re.IGNORECASE)
    assert not re.search(r"\bPy[A-Z_]\w+|\bPyObject\b", path.read_text())


@pytest.mark.lint
@pytest.mark.parametrize(
    "path", sorted((NATIVE / "bind").rglob("*.[ch]")), ids=lambda path: path.name
)
def test_bindings_include_the_contract_and_nothing_of_the_core(path):
    own = {NATIVE / "mdispatch.h", NATIVE / "mdispatch_kernels.h", *path.parent.glob("*.h")}
    ours = {include[1:] for include in includes(path) if include.startswith('"')}
    assert {(path.parent / include).resolve() for include in ours} <= own


@pytest.mark.lint
def test_the_contract_includes_only_what_c_has():
    assert set(includes(NATIVE / "mdispatch.h")) == {"<stddef.h", "<stdint.h"}


# --- the contract ---------------------------------------------------------------------------------


def header_constants():
    """Every enumerator of the contract, from its text."""
    text = (NATIVE / "mdispatch.h").read_text()
    text = text.split("/* contract begins */")[1].split("/* contract ends */")[0]
    return {name: int(value) for name, value in re.findall(r"\b(MD_\w+)\s*=\s*(-?\d+)", text)}


HEADER = header_constants()
STATUSES = {
    name: value for name, value in HEADER.items() if name == "MD_OK" or name.startswith("MD_E")
}


@pytest.mark.lint
def test_the_module_of_constants_is_the_one_that_the_header_gives():
    script = runpy.run_path(str(NATIVE / "constants.py"))
    text = (PACKAGE / "facts" / "native" / "constants.py").read_text()
    made = script["module_text"]((NATIVE / "mdispatch.h").read_text())
    assert text == made, "run: python native/constants.py"
    assert {name: getattr(constants, name) for name in constants.__all__} == HEADER
    assert {name for name in vars(constants) if name.startswith("MD_")} == set(HEADER)


@pytest.mark.lint
def test_constants_in_python_are_those_of_the_header():
    for number, kind in OURS.items():
        assert number == HEADER[f"MD_{kind.name.upper()}"]
    for name in ("LIBRARY", "DEF", "IMPL", "FALLBACK", "PYSTUB", "NAME", "CLAIM"):
        assert getattr(facts, name) == HEADER[f"MD_{name}"]
    for name in ("MAIN", "WORKER", "PEER"):
        assert getattr(facts, name) == HEADER[f"MD_{name}"]
    assert [number for number, kind in OURS.items() if not kind.rule] == [facts.CLAIM]
    assert native.ABI == native.abi == HEADER["MD_ABI"]
    assert HEADER["MD_HOST"] == facts.HOST
    assert HEADER["MD_MAX_BODY"] == scanner.MAX_TEXT


@pytest.mark.lint
def test_kernels_in_c_have_the_numbers_of_their_headers():
    text = (NATIVE / "mdispatch_kernels.h").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"\b(MD_\w+)\s*=\s*(\d+)", text)}
    keys = {name[7:]: value for name, value in numbers.items() if name.startswith("MD_KEY_")}
    assert keys == {name: int(key) for name, key in md.DispatchKey.__members__.items()}
    kinds = {numbers["MD_DEF_LIBRARY"]: "DEF", numbers["MD_FRAGMENT"]: "FRAGMENT"}
    assert kinds == load_library._KINDS
    assert (HEADER["MD_ENOENT"], HEADER["MD_EFORMAT"], HEADER["MD_EVERSION"]) == (
        load_library._NOT_FOUND,
        load_library._NO_BLOCK,
        load_library._OTHER_ABI,
    )
    boxed = (NATIVE / "bind" / "ext" / "boxed.h").read_text()
    flags = {name: int(value) for name, value in re.findall(r"\b(BOXED_\w+) = (\d)", boxed)}
    assert flags == {"BOXED_TENSOR": c_kernels._TENSOR, "BOXED_WRITTEN": c_kernels._WRITTEN}


def test_the_library_that_is_loaded_has_the_constants_of_the_header():
    cffi = pytest.importorskip(
        "mdispatch.facts.native._cffi", reason="cffi does not load in this interpreter"
    )
    assert {name: getattr(cffi.lib, name) for name in HEADER} == HEADER


@pytest.mark.parametrize("name", STATUSES)
def test_every_status_that_can_come_out_has_a_class_and_words(name):
    handled = {"MD_OK", "MD_EINTR", "MD_ETIMEDOUT", "MD_ECANCELED", "MD_ENOBUFS", "MD_ESYS"}
    handled |= {"MD_EELECTED"}
    if name not in handled:
        assert STATUSES[name] in status._EXCEPTIONS
        error = status.error_for(STATUSES[name], "the-registry")
        assert isinstance(error, errors.MdispatchError)
        assert "unknown status" not in str(error)
    assert native.native.status_text(STATUSES[name]) not in ("", "unknown status")


def test_a_status_that_is_a_system_call_keeps_its_errno():
    error = status.error_for(HEADER["MD_ESYS"] - 13, "the-registry")
    assert isinstance(error, errors.SystemCallError)
    assert error.errno == 13
    assert "the-registry" in str(error)
    assert "Permission denied" in str(error)


# --- the bindings ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cffi_binding():
    pytest.importorskip(
        "mdispatch.facts.native._cffi", reason="cffi does not load in this interpreter"
    )
    from mdispatch.facts.native import cffi_binding

    return cffi_binding


def public(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, type)
    }


def test_every_binding_has_exactly_the_names_of_the_contract(cffi_binding):
    assert sorted(native.BINDING_NAMES) == list(native.BINDING_NAMES)
    assert public(Binding) == set(native.BINDING_NAMES)
    assert public(cffi_binding) == set(native.BINDING_NAMES)
    # The first one decides on the binding; the others are needed where only the extension serves.
    kernels = {"has_host", "load", "kernel_bind", "kernel_definition", "kernel_drop"}
    kernels |= {"kernel_function", "kernel_label", "kernel_put"}
    alone = {"caller", "fact", "interpreter_id", "run_signal_handlers", "seam", *kernels}
    alone |= {"visit", "visit_close", "visit_open", "pack", "unpack", "write_back"}
    alone |= {f"object_{each}" for each in ("close", "find", "list", "new", "pickled", "sweep")}
    alone |= {"object_give_out", "object_given_out"}
    assert public(_ext) == {*native.BINDING_NAMES, *alone}


def shape(value):
    """Types, all the way down."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple(shape(item) for item in value)
    return type(value)


def run_contract(native):
    """Uses every name of the contract, once with success and once refused: [(name, result)]."""
    results = []

    def call(name, *args):
        result = getattr(native, name)(*args)
        results.append((name, result))
        return result

    call("abi")
    deadline = call("now")
    for code in (*STATUSES.values(), -1013, 1, -999):
        call("status_text", code)
    call("create", None, 5)
    call("create", "not a name", 1 << 20)
    _, reg = call("create", None, 1 << 20)
    call("attach", b"no-such-registry", deadline)
    call("attach", b"fd:x", deadline)
    _, address = call("address", reg)
    _, again = call("attach", address, deadline)
    call("close", again)
    _, default = call("open_default", b"")
    call("close", default)
    _, member, _ = call("join", reg, 0)
    _, worker, _ = call("join", reg, 5)
    call("folder")
    call("format_of", address)
    call("format_of", b"fd:x")
    call("origin", address)
    call("origin", b"")
    call("origin", b"fd:x")
    call("inspect", address)
    call("inspect", b"fd:x")
    call("reap", b"no-such-registry")
    call("reap", b"../x")
    register = (reg, member, 2, 1, 0, b"s::f", b"schema", b"here:1")
    _, ref, number, _ = call("register", *register)
    call("register", *register)
    call("register", *register[:5], b"", b"", b"")
    call("register", reg, worker, *register[2:])
    call("register", reg, member, 3, 2, -5, "ü".encode(), b"x" * 60_000, b"\xff\0")
    call("find", reg, 2, 0, b"s::f")
    call("find", reg, 3, -5, "ü".encode())
    call("find", reg, 2, 1, b"s::f")
    call("has", reg, 2, 0, b"s::f")
    call("has", reg, 3, -5, "ü")
    call("has", reg, 2, 1, "s::f")
    call("has", reg, 2, 1, b"")
    call("register", reg, member, 3, 2, 7, "ü", "ä" * 5000, "here:1")
    call("find", reg, 3, 7, "ü")
    call("await_fact", reg, member, 2, 0, 1, b"s::f", -1, 0, False)
    call("await_fact", reg, member, 3, -5, 1, "ü".encode(), -1, 0, True)
    call("await_fact", reg, member, 2, 0, 2, b"s::f", deadline, 9, False)
    call("await_fact", reg, member, 2, 0, 0, b"s::f", deadline, 9, False)
    _, seq, _ = call("await_change", reg, member, 0, -1, 0)
    call("await_change", reg, member, seq, deadline, 9)
    call("await_change", reg, member, seq, -2, 9)
    call("cancel", reg, member, 9)
    _, _, node, _ = call("list_facts", reg, b"s::f")
    call("list_facts", reg, b"s::g")
    call("list_facts", reg, None)
    call("list_since", reg, 3, 0)
    call("list_since", reg, 2, seq)
    call("version", reg, node)
    call("version", reg, 1)
    call("members", reg)
    call("stat", reg)
    call("check", reg)
    call("published", reg)
    call("published", reg + 1)
    call("forget_published")
    call("published", reg)
    call("strike", reg, member, ref, number)
    call("strike", reg, member, ref, number)
    call("leave", reg, worker)
    call("leave", reg, worker)
    call("leave", reg, member)
    call("close", reg)
    call("bridge", "not a name", 1 << 20)
    _, host = call("bridge", None, 1 << 20)
    call("join", host, -2)
    call("close", host)
    call("elect", "not a name", 1 << 20)
    call("elect", None, 5)
    _, team = call("elect", None, 1 << 20)
    _, first, _ = call("join", team, 0)
    _, second, _ = call("join", team, 1)
    call("claim", team, first, b"s", b"here:1")
    call("claim", team, second, b"s", b"")
    call("claim", team, first, b"s::f", b"")
    call("await_fact", team, first, 2, 0, 1, b"s::f", deadline, 0, True)
    call("await_fact", team, second, 2, 0, 1, b"s::f", deadline, 0, True)
    call("stat", team)
    call("release", team, second, b"s")
    call("release", team, second, b"s")
    call("close", team)
    for name, *args in (
        ("close",),
        ("address",),
        ("join", 0),
        ("leave", member),
        ("claim", member, b"s", b""),
        ("release", member, b"s"),
        ("register", *register[1:]),
        ("strike", member, 1, 1),
        ("find", 2, 0, b"s::f"),
        ("has", 2, 0, b"s::f"),
        ("await_fact", member, 2, 0, 1, b"s::f", -1, 0, False),
        ("await_change", member, 0, -1, 0),
        ("cancel", member, 0),
        ("list_facts", None),
        ("list_since", 2, 0),
        ("version", 1),
        ("members",),
        ("stat",),
        ("check",),
    ):
        call(name, reg, *args)
    return results


def test_both_bindings_give_the_same_statuses_and_types_for_everything(cffi_binding):
    ours, theirs = run_contract(_ext), run_contract(cffi_binding)
    assert {name for name, _ in ours} == set(native.BINDING_NAMES)
    for (name, one), (other_name, other) in zip(ours, theirs, strict=True):
        assert name == other_name
        assert shape(one) == shape(other), name
        if isinstance(one, tuple):
            assert one[0] == other[0], name
        elif name not in ("now", "version"):
            assert one == other, name
    for name in ("find", "register", "list_facts", "list_since"):
        one, other = (
            [texts(result) for n, result in results if n == name] for results in (ours, theirs)
        )
        assert one == other


def texts(value):
    """The bytes in a result."""
    if isinstance(value, bytes):
        return [value]
    return (
        [text for item in value for text in texts(item)] if isinstance(value, (tuple, list)) else []
    )


def test_both_bindings_refuse_what_is_no_value_of_the_contract(cffi_binding):
    for binding in (_ext, cffi_binding):
        for call in (
            lambda n: n.find("0", 2, 0, b"s"),
            lambda n: n.close(None),
            lambda n: n.status_text("x"),
            lambda n: n.version(0),
        ):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                call(binding)


# --- public names ---------------------------------------------------------------------------------

LATE = [(name, home) for home, names in md._LATE.items() for name in names.split()]
#: The public modules beside ``errors``, which is there already.
LATE_MODULES = md._MODULES.split()


@pytest.mark.lint
def test_every_public_name_is_there():
    for name in md.__all__:
        assert getattr(md, name) is not None
    scope = {}
    exec("from mdispatch import *", scope)
    assert set(md.__all__) <= set(scope)
    assert set(md.__all__) <= set(dir(md))


@pytest.mark.lint
def test_each_public_name_is_written_once():
    """In the table of what is loaded late, or in the list of what is there early."""
    assert sorted(set(md.__all__)) == md.__all__
    code = "import mdispatch as md; print(*set(md.__all__) - set(vars(md)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(name for name, _ in LATE)


def imports_of(tree):
    """Where each name of a stub comes from, inside the package."""
    return {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def signatures_of(tree):
    return {
        node.name: (ast.unparse(node.args), ast.unparse(node.returns))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in md.__all__
    }


def test_the_stub_of_the_package_says_what_the_package_has():
    """That type checkers understand it is shown by .ci/client.py, of the wheel."""
    source, stub = (ast.parse((PACKAGE / f"__init__.{end}").read_text()) for end in ("py", "pyi"))
    early = {name: home for name, home in imports_of(source).items() if name in md.__all__}
    assert imports_of(stub) == early | dict(LATE) | dict.fromkeys(LATE_MODULES)
    assert signatures_of(stub) == signatures_of(source)
    words = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign)
    }
    assert words == {"__all__": md.__all__}
    noted = [ast.unparse(node) for node in stub.body if isinstance(node, ast.AnnAssign)]
    assert noted == ["__version__: str"]


@pytest.mark.dear
def test_a_name_of_the_package_that_the_documentation_uses_is_there():
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    pages += [*(ROOT / "examples").rglob("*.md"), ROOT / "README.md"]
    text = "\n".join(page.read_text() for page in pages)
    named = {*re.findall(r"\bmd\.(\w+)", text), *re.findall(r"\bmdispatch\.(\w+)\.\w", text)}
    named |= {*re.findall(r"^ *(?:from|import) mdispatch\.(\w+)", text, re.MULTILINE)}
    assert len(named) > 50
    assert [name for name in sorted(named) if not hasattr(md, name)] == []


def test_a_name_loaded_late_is_the_one_of_its_module():
    for name, home in LATE:
        module = __import__(f"mdispatch.{home}", fromlist=[name])
        assert getattr(md, name) is getattr(module, name)


@pytest.mark.parametrize("name", LATE_MODULES)
def test_a_public_module_is_an_attribute_of_the_package_alone(name):
    code = f"import mdispatch as md, sys; assert md.{name} is sys.modules['mdispatch.{name}']"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert getattr(md, name) is importlib.import_module(f"mdispatch.{name}")


@pytest.mark.parametrize("statement", ["from mdispatch.{} import *", "import mdispatch.{}"])
def test_a_public_module_is_found_before_anything_else_was_imported(statement):
    code = "\n".join(statement.format(name) for name in LATE_MODULES)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_name_that_is_none_of_ours_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'libary'"):
        md.libary  # noqa: B018


@pytest.mark.lint
@pytest.mark.parametrize("name", sorted(MODULES), ids=lambda name: name or "mdispatch")
def test_every_module_says_what_it_is_for(name):
    assert len(ast.get_docstring(ast.parse(MODULES[name].read_text())) or "") > 30


@pytest.mark.lint
@pytest.mark.parametrize("name", sorted({*MODULES}), ids=lambda name: name or "mdispatch")
def test_names_are_listed_where_somebody_reads_the_list(name):
    """In faces, in modules of which a face takes everything, and in those that the documentation
    names. A list that nobody reads is one more thing to keep.
    """
    module = __import__(f"mdispatch.{name}".rstrip("."), fromlist=["__all__"])
    tree = ast.parse(MODULES[name].read_text())
    for public_name in getattr(module, "__all__", ()):
        assert hasattr(module, public_name) or public_name in annotated(tree)
    if name in DOCUMENTED:
        assert module.__all__


@pytest.mark.lint
def test_no_program_of_the_tests_takes_the_name_of_another_one():
    """The constants of a module, of which the later one would take the place of the first."""
    for path in (ROOT / "tests").rglob("*.py"):
        written = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                made_from = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
                assert name not in written or name in made_from, f"{path}:{node.lineno}: {name}"
                written.add(name)


def annotated(tree):
    """Names that exist only for the type checker."""
    return {
        node.name if isinstance(node, ast.ClassDef) else alias.asname or alias.name
        for block in tree.body
        if is_for_types(block)
        for node in block.body
        if isinstance(node, (ast.ClassDef, ast.ImportFrom))
        for alias in getattr(node, "names", [None])
    }


#: The modules that users import from, by their paths.
DOCUMENTED = ["errors", *LATE_MODULES]


@pytest.mark.lint
def test_nobody_walks_over_the_modules_while_other_threads_import():
    """``list(sys.modules)`` is one step; a loop over it as it stands ends with a RuntimeError."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.For, ast.comprehension)):
                walked = ast.unparse(node.iter)
                if re.fullmatch(r"sys\.modules(\.(items|keys|values)\(\))?", walked):
                    found.append(f"{path.relative_to(PACKAGE)}: {walked}")
    assert not found


def test_every_public_class_and_function_has_a_docstring():
    bare = []
    for name in ("", *DOCUMENTED):
        module = __import__(f"mdispatch.{name}".rstrip("."), fromlist=["__all__"])
        for public_name in module.__all__:
            value = getattr(module, public_name)
            if isinstance(value, (type, types.FunctionType)) and not inspect.getdoc(value):
                bare.append(f"{name}.{public_name}")
            elif isinstance(value, type) and "__doc__" not in vars(value):
                bare.append(f"{name}.{public_name} (inherited)")
    assert bare == []


@pytest.mark.lint
def test_what_users_call_on_libraries_registries_and_operators_has_a_docstring():
    bare = [
        f"{cls.__name__}.{name}"
        for cls in (md.Library, md.Registry, md.OpOverload, md.OpOverloadPacket)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and isinstance(value, (types.FunctionType, property, classmethod))
        and not inspect.getdoc(value)
    ]
    # For the modules above, not for users.
    internal = {"forget_overload", "add_fallback", "drop_fallback"}
    assert [name for name in bare if name.partition(".")[2] not in internal] == []


# --- errors ---------------------------------------------------------------------------------------

CLASSES = {
    name: value
    for name, value in vars(classes).items()
    if isinstance(value, type) and issubclass(value, BaseException) and name[0] != "_"
}


@pytest.mark.lint
def test_every_exception_class_is_public_documented_and_of_the_family():
    assert sorted(CLASSES) == sorted(errors.__all__)
    for cls in CLASSES.values():
        assert issubclass(cls, (errors.MdispatchError, Warning))
        assert len(vars(cls).get("__doc__") or "") > 20
    assert md.errors is errors
    assert md.MdispatchError is errors.MdispatchError


def parameters_of(cls):
    """The names of the arguments of a constructor, without the message."""
    return ("text", "position") if cls is errors.SchemaSyntaxError else classes._fields_of(cls)


def example(cls):
    """An error with a value of its own in every attribute that its constructor names."""
    samples = {
        "nearest": ("a", "b"),
        "available": ("CPU",),
        "waited": 1.5,
        "differences": (
            errors.SchemaMismatchError("inner", name="s::f", here="h"),
            errors.KeyMismatchError("k"),
        ),
        "schema": md.parse_schema("s::f(Tensor x, int[2] y=1) -> ()"),
        "position": 3,
        "key": "CPU",
        "text": "f(Tensr x) -> ()",
    }
    if issubclass(cls, Warning):
        return cls("what happened")
    named = {name: samples.get(name, f"the {name}") for name in parameters_of(cls)}
    error = cls("what happened", **named)
    if issubclass(cls, OSError):
        error.errno = 13
    return error


def observed(error):
    """All that an except clause can see of it."""
    attributes = {name: value for name, value in vars(error).items() if name != "differences"}
    inner = [observed(each) for each in getattr(error, "differences", ())]
    return (
        type(error),
        error.args,
        str(error),
        repr(error),
        attributes,
        inner,
        getattr(error, "errno", None),
        getattr(error, "path", None),
    )


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_comes_out_of_its_pickle_as_it_went_in(name):
    error = example(CLASSES[name])
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert observed(again) == observed(error)
    assert observed(copy.copy(error)) == observed(copy.deepcopy(error)) == observed(error)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_what_an_error_is_made_with_is_an_attribute_of_it(name):
    cls = CLASSES[name]
    if not issubclass(cls, Warning):
        error = example(cls)
        assert all(getattr(error, each) for each in parameters_of(cls))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_can_be_made_with_a_message_and_shows_it(name):
    cls = CLASSES[name]
    rest = ("text", 0) if cls is errors.SchemaSyntaxError else ()
    error = cls("message", *rest)
    assert "message" in str(error)
    with pytest.raises((errors.MdispatchError, Warning)):
        raise error


def test_an_error_refuses_what_is_no_attribute_of_it():
    error = errors.KeyMismatchError("text", "impl", keys_there=["CPU"])
    assert (str(error), error.kind, error.name, error.keys_there) == ("text", "impl", "", ("CPU",))
    for given, named in (
        (("text", "impl"), {"kind": "def"}),
        (("text", *"abcdefghi"), {}),
        (("text",), {"schema_here": ""}),
    ):
        with pytest.raises(TypeError, match="KeyMismatchError takes a message, kind, name, key"):
            errors.KeyMismatchError(*given, **named)


def test_notes_and_what_users_add_survive_too():
    error = errors.RegistryNotFoundError("gone", "name")
    error.add_note("while testing")
    error.mine = [1]
    again = pickle.loads(pickle.dumps(error))
    assert again.__notes__ == ["while testing"]
    assert again.mine == [1]
    assert again.registry == "name"


def test_errors_of_users_that_inherit_from_ours_can_be_pickled():
    again = pickle.loads(pickle.dumps(OwnError("text", 5)))
    assert (type(again), str(again), again.more) == (OwnError, "text", 5)


class OwnError(errors.VerificationError):
    def __init__(self, message, more):
        super().__init__(message, name="own")
        self.more = more


RAISE = """
import pickle, sys
import mdispatch as md
from mdispatch.errors import MdispatchError
found = []
registry = md.Registry.create()
worker = md.Registry.attach(registry.address, timeout=0)
main = md.Library("s", "DEF", registry=registry)
main.define("scale(Tensor x) -> Tensor")
main.impl("scale", len, "CPU")
mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
for call in (
    lambda: mine.define("scale(Tensor x, int y) -> Tensor"),
    lambda: mine.define("scael(Tensor x) -> Tensor"),
    lambda: mine.impl("scale", len, "CUDA"),
    lambda: md.wait_for_def("nowhere::f", 0, registry=worker),
    lambda: main.define("scale(Tensor x) -> Tensor"),
    lambda: main.define("scale(Tensr x) -> Tensor"),
    lambda: main.impl("scale", len, "GPU"),
    lambda: registry.ops.s.scale(5),
    lambda: registry.ops.s.scael,
    lambda: worker.ops.s.scale.default.redispatch(md.DispatchKeySet("CPU"), None),
    lambda: md.Registry.attach("no-such-registry", timeout=0),
    lambda: md.Registry.create("no name"),
):
    try:
        call()
    except MdispatchError as error:
        found.append((error, str(error), {k: v for k, v in vars(error).items()}))
sys.stdout.buffer.write(pickle.dumps(found))
"""


def test_errors_raised_in_another_process_arrive_with_everything_they_said():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RAISE],
        capture_output=True,
        check=False,
        timeout=limit(100),
    )
    assert done.stderr == b""
    found = pickle.loads(done.stdout)
    assert len(found) == 12
    for error, text, attributes in found:
        assert str(error) == text
        assert vars(error) == attributes
    assert {type(error) for error, _, _ in found} >= {
        errors.SchemaMismatchError,
        errors.NameMismatchError,
        errors.KeyMismatchError,
        errors.MainNeverArrivedError,
        errors.DuplicateRegistrationError,
        errors.SchemaSyntaxError,
        errors.ArgumentError,
        errors.RegistryNotFoundError,
    }

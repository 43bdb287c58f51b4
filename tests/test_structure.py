"""What holds the house together: imports that point down, one contract, one set of names."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import mdispatch as md
from mdispatch import _c_kernels, _load_library, _native, _registry, _schema_scanner, errors
from mdispatch._native import _contract, _ext
from mdispatch._registry import status

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(md.__file__).resolve().parent
NATIVE = ROOT / "native"

# --- imports point downwards ----------------------------------------------------------------------

#: Bottom up: a module imports only from rows that stand before its own. "" is the package.
LAYERS = (
    "errors _pool_refusal _pool_worker",
    "_forking _nearest _place _unraisable _size_parts _dlpack _aliases",
    "_sizes _value_checks",
    "_shapes _alias_check",
    "_autograd_context _tape_walk _torch_engine",
    "_autograd_engines",
    "_tape_engine",
    "_keys _schema_names",
    "_devices",
    "keys _schema_types",
    "_device_kernels _schema_check",
    "_schema_scanner",
    "_schema_defaults",
    "_schema_parser",
    "schema",
    "_schema_pieces",
    "_table _bind",
    "_returns",
    "_native._contract",
    "_native._cffi_binding",
    "_native",
    "_homes _places",
    "_registry",
    "_logs",
    "_registry.local _registry.status _registry.waits",
    "_registry.opening",
    "_registry.shared",
    "_pystubs _loading",
    "_kernels _differences values guards _everywhere",
    "_keeping _autograd_node",
    "_hermetic _tensor tape meta",
    "modes _schema_infer _fake_check _arguments _nested",
    "transforms _roles _observers _listeners",
    "_rules _fakes",
    "_python_key _higher_order",
    "_placement _pairing _c_kernels",
    "_call_py _explanation _invariants _call_shape",
    "_call_c",
    "_explain _computed_kernel",
    "_entry higher_order",
    "_registering_base",
    "_registering_stubs",
    "_registering_definitions",
    "_registering",
    "_registering_c",
    "_load_library",
    "operators",
    "registry",
    "_autocasting _stubs _cdata",
    "_library",
    "library waiting warming host",
    "_old_pool",
    "pool",
    "_testing",
    "_targets",
    "aio decorator _operator_library _torch_common autograd functions fake pystub _opcheck",
    "_torch_keys custom_ops telemetry",
    "_torch_threads _torch_library",
    "_torch_looking _torch_modes _torch_resolving",
    "torch_compat",
    "python_dispatcher",
    "",
    "config",
    "_columns _stress",
    "_command",
    "_verify_values _verify_show _verify_worker",
    "_verify _explain_subject _inspecting",
    "_finding",
    "_doctor _asking",
    "_catalogue _explain_show _verify_command _stubs_command _doctor_show",
    "_doctor_command _ls_show _report _report_markup _report_style _stress_show _top_show",
    "_report_operators _stress_command _top_command",
    "_report_page",
    "_pictures _bench",
    "_bench.measure _bench.fresh",
    "_bench.pairs _bench.peers _bench.jobs _bench.worker",
    "_bench.calls _bench.parallel _bench.parallel_calls _bench.find",
    "_bench.own _bench.rebuild _bench.import_cost _bench.memory _bench.verify_many _bench.wake_up",
    "_bench.running",
    "_bench_show",
    "_bench_plot",
    "_bench_command",
    "_explain_command _ls_command _report_command",
    "cli",
    "__main__",
)
ROW = {name: row for row, names in enumerate(LAYERS) for name in names.split() or [""]}

#: What is not in the standard library, and who may import it.
FOREIGN = {
    "pytest": {"_testing"},
    "typer": {"cli", "_command", "_explain_command", "_stubs_command", "_verify_command"}
    | {"_asking", "_bench_command", "_doctor_command", "_ls_command", "_report_command"}
    | {"_stress_command", "_top_command"},
    "opentelemetry": {"telemetry"},
    "rich": {
        *("_doctor_show", "_top_command", "_top_show", "_ls_show"),
        *("_bench_show", "_columns", "_command", "_explain_show", "_explain_subject"),
        "_verify_show",
    },
}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_statements(node):
    """All of them, in functions too, except those for the type checker only."""
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            for branch in child.orelse:
                yield from import_statements(branch)
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from import_statements(child)


def imports_of(name):
    """The modules of ours that a module imports, and the top-level names of others."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    ours, others = set(), set()
    for node in import_statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.level == 0:
            others.add(node.module.partition(".")[0])
        else:
            base = [part for part in package if part][: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                full = ".".join([*base, alias.name])
                ours.add(full if full in MODULES else ".".join(base))
    return ours - {name}, others


def test_every_module_has_its_place_in_the_table_of_layers():
    assert set(MODULES) == set(ROW)
    assert len(ROW) == sum(len(names.split() or [""]) for names in LAYERS)


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "mdispatch")
def test_imports_point_downwards_only(name):
    ours, _ = imports_of(name)
    assert {other for other in ours if other in MODULES and ROW[other] >= ROW[name]} == set()
    unknown = ours - set(MODULES)
    assert unknown <= {"_native._cffi", "_native._call"}, "neither ours nor built"


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "mdispatch")
def test_what_is_not_in_the_standard_library_is_imported_by_the_command_line_only(name):
    _, others = imports_of(name)
    foreign = (
        others
        - set(sys.stdlib_module_names)
        - {"_xxsubinterpreters", "_interpreters", "_interpqueues"}
    )
    assert {other for other in foreign if name not in FOREIGN.get(other, ())} - {
        "mdispatch"
    } == set()


def test_the_table_of_layers_would_see_an_import_upwards(monkeypatch, tmp_path):
    path = tmp_path / "errors.py"
    path.write_text("def late():\n    from . import _keys\n    from .registry import Registry\n")
    monkeypatch.setitem(MODULES, "errors", path)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    with pytest.raises(AssertionError):
        test_imports_point_downwards_only("errors")


def includes(path):
    return re.findall(r"^\s*#\s*include\s*([<\"][^>\"]+)", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted((NATIVE / "core").iterdir()), ids=lambda path: path.name)
def test_the_core_includes_the_contract_its_own_headers_and_the_system(path):
    own = {f'"{header.name}' for header in (NATIVE / "core").glob("*.h")}
    for include in includes(path):
        contract = {'"../mdispatch.h', '"mdispatch.h', '"../mdispatch_kernels.h'}
        assert include.startswith("<") or include in own | contract
        assert not re.search(r"python|torch|cffi", include, re.IGNORECASE)
    assert not re.search(r"\bPy[A-Z_]\w+|\bPyObject\b", path.read_text())


@pytest.mark.parametrize(
    "path", sorted((NATIVE / "bind").glob("*.[ch]")), ids=lambda path: path.name
)
def test_bindings_include_the_contract_and_nothing_of_the_core(path):
    own = {f'"{header.name}' for header in (NATIVE / "bind").glob("*.h")}
    ours = {include for include in includes(path) if include.startswith('"')}
    assert ours <= {*own, '"../mdispatch.h', '"../mdispatch_kernels.h'}


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


def test_constants_in_python_are_those_of_the_header():
    assert {name: HEADER[f"MD_{name.upper()}"] for name in _registry.KIND_NAMES.values()} == {
        name: kind for kind, name in _registry.KIND_NAMES.items()
    }
    for name in ("LIBRARY", "DEF", "IMPL", "FALLBACK", "PYSTUB", "NAME", "CLAIM"):
        assert getattr(_registry, name) == HEADER[f"MD_{name}"]
    for name in ("MAIN", "WORKER", "PEER"):
        assert getattr(_registry, name) == HEADER[f"MD_{name}"]
    assert (HEADER["MD_UNIQUE"], HEADER["MD_STACK"]) == (_registry._UNIQUE, _registry._STACK)
    assert HEADER["MD_RAISE_ALL"] == _registry._RAISE_ALL
    assert {*_registry.RULES, _registry.CLAIM} == set(_registry.KIND_NAMES)
    assert _native.ABI == _native.abi == HEADER["MD_ABI"]
    assert HEADER["MD_FOREVER"] == status.FOREVER
    assert HEADER["MD_HOST"] == _registry.HOST
    assert HEADER["MD_MAX_BODY"] == _schema_scanner.MAX_TEXT


def test_kernels_in_c_have_the_numbers_of_their_headers():
    text = (NATIVE / "mdispatch_kernels.h").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"\b(MD_\w+)\s*=\s*(\d+)", text)}
    keys = {name[7:]: value for name, value in numbers.items() if name.startswith("MD_KEY_")}
    assert keys == {name: int(key) for name, key in md.DispatchKey.__members__.items()}
    kinds = {numbers["MD_DEF_LIBRARY"]: "DEF", numbers["MD_FRAGMENT"]: "FRAGMENT"}
    assert kinds == _load_library._KINDS
    assert HEADER["MD_DEF"] == _load_library._DEF
    assert (HEADER["MD_ENOENT"], HEADER["MD_EFORMAT"], HEADER["MD_EVERSION"]) == (
        _load_library._NOT_FOUND,
        _load_library._NO_BLOCK,
        _load_library._OTHER_ABI,
    )
    boxed = (NATIVE / "bind" / "boxed.h").read_text()
    flags = {name: int(value) for name, value in re.findall(r"\b(BOXED_\w+) = (\d)", boxed)}
    assert flags == {"BOXED_TENSOR": _c_kernels._TENSOR, "BOXED_WRITTEN": _c_kernels._WRITTEN}


def test_statuses_in_python_are_those_of_the_header():
    assert (
        HEADER["MD_ECLOSED"],
        HEADER["MD_EDIED"],
        HEADER["MD_ETIMEDOUT"],
    ) == (status.CLOSED, status.DIED, status.TIMED_OUT)
    assert (HEADER["MD_EINTR"], HEADER["MD_ECANCELED"]) == (status.INTERRUPTED, status.CANCELLED)
    assert (HEADER["MD_EEXIST"], HEADER["MD_ENOENT"]) == (status.EXISTS, status.NOT_FOUND)
    assert (HEADER["MD_EROLE"], HEADER["MD_EDAMAGED"]) == (status.ROLE, status.DAMAGED)
    assert HEADER["MD_EELECTED"] == status.ELECTED
    assert HEADER["MD_ESYS"] == status.SYSTEM


def test_the_library_that_is_loaded_has_the_constants_of_the_header():
    cffi = pytest.importorskip(
        "mdispatch._native._cffi", reason="cffi does not load in this interpreter"
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
    assert _native.native.status_text(STATUSES[name]) not in ("", "unknown status")


def test_a_status_that_is_a_system_call_keeps_its_errno():
    error = status.error_for(HEADER["MD_ESYS"] - 13, "the-registry")
    assert isinstance(error, errors.SystemCallError)
    assert error.errno == 13
    assert "the-registry" in str(error)
    assert "Permission denied" in str(error)


# --- the bindings ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cffi_binding():
    pytest.importorskip("mdispatch._native._cffi", reason="cffi does not load in this interpreter")
    from mdispatch._native import _cffi_binding

    return _cffi_binding


def public(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, type)
    }


def test_every_binding_has_exactly_the_names_of_the_contract(cffi_binding):
    assert sorted(_native.BINDING_NAMES) == list(_native.BINDING_NAMES)
    assert public(_contract.Binding) == set(_native.BINDING_NAMES)
    assert public(cffi_binding) == set(_native.BINDING_NAMES)
    # By the first it is decided who binds; the others are needed where only the extension serves.
    kernels = {"has_host", "kernel_drop", "kernel_function", "kernel_label", "kernel_put", "load"}
    alone = {"caller", "interpreter_id", "run_signal_handlers", *kernels}
    assert public(_ext) == {*_native.BINDING_NAMES, *alone}


def shape(value):
    """Types, all the way down."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple(shape(item) for item in value)
    return type(value)


def run_contract(native):
    """Every name of the contract, in what it does and in what it refuses: [(name, result)]."""
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
    call("strike", reg, member, ref, number)
    call("strike", reg, member, ref, number)
    call("leave", reg, worker)
    call("leave", reg, worker)
    call("leave", reg, member)
    call("close", reg)
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
    assert {name for name, _ in ours} == set(_native.BINDING_NAMES)
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
    for native in (_ext, cffi_binding):
        for call in (
            lambda n: n.find("0", 2, 0, b"s"),
            lambda n: n.close(None),
            lambda n: n.status_text("x"),
            lambda n: n.version(0),
        ):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                call(native)


# --- public names ---------------------------------------------------------------------------------


def test_every_public_name_is_there():
    for name in md.__all__:
        assert getattr(md, name) is not None
    scope = {}
    exec("from mdispatch import *", scope)
    assert set(md.__all__) <= set(scope)
    assert set(md.__all__) <= set(dir(md))
    assert sorted(md.__all__) == md.__all__


def test_names_that_are_loaded_late_are_listed_once_for_python_and_once_for_type_checkers():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for_types = {
        alias.name: node.module
        for block in tree.body
        if is_for_types(block)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    public_home = {name: home for name, home in md._HOME.items() if name in md.__all__}
    assert public_home == md._HOME
    assert {name: home for name, home in for_types.items() if name in md.__all__} == md._HOME
    early = {
        *(
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ),
        *(node.name for node in tree.body if isinstance(node, ast.FunctionDef)),
        *(
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
        ),
    }
    assert set(md.__all__) == (early & set(md.__all__)) | set(md._HOME)
    assert early & set(md._HOME) == set()


def test_a_name_loaded_late_is_the_one_of_its_module():
    for name, home in md._HOME.items():
        module = __import__(f"mdispatch.{home}", fromlist=[name])
        assert getattr(md, name) is getattr(module, name)
        assert name in module.__all__, (name, home)


def test_a_name_that_is_none_of_ours_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'libary'"):
        md.libary  # noqa: B018


@pytest.mark.parametrize("name", sorted(MODULES), ids=lambda name: name or "mdispatch")
def test_every_module_lists_its_names_and_says_what_it_is_for(name):
    tree = ast.parse(MODULES[name].read_text())
    assert len(ast.get_docstring(tree) or "") > 30
    if name in ("__main__", "_native._contract", "_native._cffi_binding"):
        return
    module = __import__(f"mdispatch.{name}".rstrip("."), fromlist=["__all__"])
    assert module.__all__
    for public_name in module.__all__:
        assert hasattr(module, public_name) or public_name in annotated(tree)


def annotated(tree):
    """Names that exist for the type checker only."""
    return {
        node.name if isinstance(node, ast.ClassDef) else alias.asname or alias.name
        for block in tree.body
        if is_for_types(block)
        for node in block.body
        if isinstance(node, (ast.ClassDef, ast.ImportFrom))
        for alias in getattr(node, "names", [None])
    }


def test_every_public_class_and_function_has_a_docstring():
    bare = []
    for name in MODULES:
        if any(part.startswith("_") for part in name.split(".")):
            continue
        if name == "cli":
            continue  # what the command line says is its own help
        module = __import__(f"mdispatch.{name}".rstrip("."), fromlist=["__all__"])
        for public_name in module.__all__:
            value = getattr(module, public_name)
            if isinstance(value, (type, types.FunctionType)) and not inspect.getdoc(value):
                bare.append(f"{name}.{public_name}")
            elif isinstance(value, type) and "__doc__" not in vars(value):
                bare.append(f"{name}.{public_name} (inherited)")
    assert bare == []


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
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def test_every_exception_class_is_public_documented_and_of_the_family():
    assert sorted(CLASSES) == sorted(errors.__all__)
    for cls in CLASSES.values():
        assert issubclass(cls, (errors.MdispatchError, Warning))
        assert len(vars(cls).get("__doc__") or "") > 20
    assert md.errors is errors
    assert md.MdispatchError is errors.MdispatchError


def example(cls):
    """One with a value of its own in every attribute that its constructor or its class names."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
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
    args, kwargs = [], {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.append("what happened")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = samples.get(parameter.name, f"the {parameter.name}")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            args.append(samples.get(parameter.name, f"the {parameter.name}"))
    error = cls(*args, **kwargs)
    for base in cls.__mro__:
        for name, default in vars(base).items() if base.__module__ == errors.__name__ else ():
            if not name.startswith("_") and isinstance(default, (str, int, tuple)):
                setattr(error, name, {str: "set later", int: 42, tuple: ("x",)}[type(default)])
    if issubclass(cls, OSError):
        error.errno = 13
    return error


def observed(error):
    """All that a handler can see."""
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
def test_an_error_can_be_made_with_a_message_and_shows_it(name):
    cls = CLASSES[name]
    rest = {"SchemaSyntaxError": ("text", 0), "DuplicateRegistrationError": ("def", "s::f")}.get(
        name, ()
    )
    error = cls("message", *rest)
    assert "message" in str(error)
    with pytest.raises((errors.MdispatchError, Warning)):
        raise error


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
        [sys.executable, "-W", "error", "-c", RAISE], capture_output=True, check=False, timeout=100
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

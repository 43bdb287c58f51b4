"""``mdispatch stubs``: type checkers know the operators from the stub that it writes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch

import mdispatch as md
from mdispatch.cli.stubs import stub_text

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

SHOP = """
import mdispatch as md

lib = md.Library("shop", "DEF")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor")
lib.define("scale.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
lib.define("norm(Tensor x, int[2] dims=0, *, str? mode=None) -> float")
lib.define("split(Tensor self, int[] sizes) -> (Tensor[], int)")
lib.define("note(str text, Device? device=None) -> ()")
lib.define("from(Tensor lambda, int y) -> Tensor")
lib.define("any.Tensor(Tensor x) -> Tensor")
lib.define("any.int(int x) -> int")
for word in ("Any", "Sequence", "Tensor", "dict", "list", "object", "overload", "str", "tuple"):
    lib.define(f"words.{word}(int[] x, Dict(str, Any) {word}, Device d) -> (int, Tensor[])")
lib.define("_shop_scale.note(Tensor x) -> Tensor")
print("a module that prints")
"""

# A line that ends with "#:" and a code has this error.
USES = """
from typing import assert_type

from mdispatch import OpOverload, OpOverloadPacket, Tensor
from ops import ops


def right(x: Tensor, names: list[str]) -> None:
    ops.shop.scale(x)
    ops.shop.scale(x, 2.0)
    ops.shop.scale(x, factor=2)
    ops.shop.scale(x, out=x)
    ops.shop.scale.out(x, out=x)
    assert_type(ops.shop.norm(x, 1), float)
    assert_type(ops.shop.norm(x, (1, 2), mode="max"), float)
    assert_type(ops.shop.split(self=x, sizes=[1]), tuple[list[Tensor], int])
    ops.shop.note("a", None)
    ops.shop.note("a", device=object())
    assert_type(ops.shop.any.int(3), int)
    ops.shop.any.Tensor(x)
    assert_type(ops.shop.words.Sequence((1,), {}, None), tuple[int, list[Tensor]])
    assert_type(ops.shop.words([1], overload={}, d=None), tuple[int, list[Tensor]])
    ops.shop._shop_scale.note(x)
    one: OpOverload = ops.shop.scale.default
    one.schema
    packet: OpOverloadPacket = ops.shop.scale
    assert_type(packet.overloads(), list[str])


def wrong(x: Tensor) -> None:
    ops.shop.norm()  #: call-arg
    ops.shop.norm(x, dimz=1)  #: call-arg
    ops.shop.norm(x, 1, "max")  #: call-arg
    ops.shop.norm(x, 1.5)  #: arg-type
    ops.shop.norm(x, mode=3)  #: arg-type
    ops.shop.scale()  #: call-overload
    ops.shop.scale(x, "a")  #: call-overload
    ops.shop.scale.out(x)  #: call-arg
    ops.shop.scale.default(x, out=x)  #: call-arg
    ops.shop.split(x, [1.5])  #: list-item
    ops.shop.norm(x).shape  #: attr-defined
    ops.shop.scael(x)  #: attr-defined
    ops.shop.scale.into(x)  #: attr-defined
    ops.shpo.scale(x)  #: attr-defined
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop.py").write_text(SHOP)
    (folder / "empty.py").write_text("import mdispatch\n")
    (folder / "fails.py").write_text("raise RuntimeError('never works')\n")
    (folder / "ops.py").write_text("import shop\nfrom mdispatch import ops\n")
    (folder / "uses.py").write_text(USES)
    assert run(folder, "shop", "-o", "ops.pyi").returncode == 0
    return folder


def run(folder: Path, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    return mdispatch("stubs", *arguments, cwd=folder, **changes)


def found_by_mypy(folder: Path, file: str) -> list[str]:
    """``file:line code`` for each error in the files of this folder."""
    pytest.importorskip("mypy", reason="mypy is not installed here")
    root = Path(md.__file__).resolve().parents[1]
    # mypy finds an installed package by itself and refuses to be told of it again.
    path = {} if root.name == "site-packages" else {"MYPYPATH": str(root)}
    options = ["--strict", "--follow-imports=silent", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, f"--cache-dir={folder / 'cache'}", file],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **path},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors = re.findall(r"^(\S+:\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert bool(errors) == bool(done.returncode), done.stdout
    return [f"{place} {code}" for place, code in errors]


# --- type checkers --------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_right_calls_pass_and_wrong_ones_are_found(folder: Path) -> None:
    wanted = [
        f"uses.py:{number} {code}"
        for number, line in enumerate(USES.splitlines(), 1)
        if (code := line.partition("#: ")[2])
    ]
    assert found_by_mypy(folder, "uses.py") == wanted


@pytest.mark.timeout(300)
def test_the_stub_is_clean_itself(folder: Path) -> None:
    assert found_by_mypy(folder, "ops.pyi") == []


# --- the command ----------------------------------------------------------------------------------


def test_the_stub_goes_to_standard_output_and_nothing_else_does(folder: Path) -> None:
    done = run(folder, "shop")
    assert (done.returncode, done.stderr) == (0, "a module that prints\n")
    assert done.stdout == (folder / "ops.pyi").read_text().replace(" -o ops.pyi", "")
    assert done.stdout.startswith("# Types of the operators in mdispatch.ops, written by: ")
    assert "#     import shop\n#     from mdispatch import ops\n" in done.stdout
    ast.parse(done.stdout)


def test_the_operators_of_a_running_process_can_be_written(folder: Path) -> None:
    with md.Registry.create() as registry:
        lib = md.Library("far", "DEF", registry=registry)
        lib.define("away(int x) -> int")
        done = run(folder, "--registry", registry.address)
    assert done.returncode == 0, done.stderr
    assert "    def __call__(self, /, x: int) -> int: ...\n" in done.stdout
    assert f"mdispatch stubs --registry {registry.address}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 2, "give the modules that register the operators"),
        (["shop", "--registry", "x"], 2, "not both"),
        (["empty"], 1, "empty: no operators are defined there"),
        (["fails"], 2, "fails: the import in the main interpreter failed"),
        (["nowhere"], 2, "No module named 'nowhere'"),
        (["./shop.py"], 2, "Is it 'shop'?"),
        (["--registry", "nobody-has-this-name"], 2, "nobody-has-this-name"),
        (["shop", "-o", "no/such/folder/ops.pyi"], 2, "the stub could not be written"),
    ],
)
def test_what_gives_no_stub_says_why(
    folder: Path, arguments: list[str], status: int, told: str
) -> None:
    done = run(folder, *arguments, COLUMNS="200")
    assert (done.returncode, done.stdout) == (status, "")
    assert told in " ".join(done.stderr.replace("│", " ").split())


def test_a_file_is_replaced_only_by_a_whole_stub(folder: Path) -> None:
    before = (folder / "ops.pyi").read_bytes()
    assert run(folder, "fails", "-o", "ops.pyi").returncode == 2
    assert (folder / "ops.pyi").read_bytes() == before
    (folder / "there.pyi").mkdir()
    done = run(folder, "shop", "-o", "there.pyi")
    assert done.returncode == 2
    assert ": [Errno 21] Is a directory: 'there.pyi'\n" in done.stderr
    assert not list(folder.glob("*.part"))


def test_the_help_says_how_to_use_the_stub_and_the_exit_statuses(folder: Path) -> None:
    text = run(folder, "--help").stdout
    for each in ("mdispatch stubs MODULE -o ops.pyi", "from mdispatch import ops", "  130  "):
        assert each in text


# --- the text -------------------------------------------------------------------------------------


@pytest.fixture
def lib(registry: md.Registry) -> Iterator[md.Library]:
    with md.Library("t", "DEF", registry=registry) as lib:
        yield lib
        lib.close()


def body(registry: md.Registry) -> list[str]:
    text = stub_text(registry, "command", ["module"])
    ast.parse(text)
    return [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("schema", "signature"),
    [
        ("f() -> ()", "(self, /) -> None"),
        (
            "f(SymInt x, SymBool y, complex z) -> SymInt",
            "(self, /, x: int, y: bool, z: complex) -> int",
        ),
        ("f(Scalar x) -> Scalar", "(self, /, x: int | float | complex) -> int | float | complex"),
        (
            "f(Tensor? x, int[]? y=None) -> Tensor?",
            "(self, /, x: Tensor | None, y: Sequence[int] | None = None) -> Tensor | None",
        ),
        ("f(str x=None) -> str[]", "(self, /, x: str | None = None) -> list[str]"),
        (
            "f(int[2] x, Tensor[2] y) -> ()",
            "(self, /, x: Sequence[int] | int, y: Sequence[Tensor]) -> None",
        ),
        (
            "f(Device x, Any y, NoneType z) -> Device",
            "(self, /, x: object, y: Any, z: None) -> Any",
        ),
        ("f((int, str) x) -> (int, str)", "(self, /, x: tuple[int, str]) -> tuple[int, str]"),
        (
            "f(Dict(str, int[]) x) -> Dict(str, int[])",
            "(self, /, x: dict[str, Sequence[int]]) -> dict[str, list[int]]",
        ),
        ("f(Union(int, SymInt, str)? x) -> ()", "(self, /, x: int | str | None) -> None"),
        ("f(int x, ...) -> ...", "(self, /, x: int, *args: Any) -> tuple[Any, ...]"),
        (
            "f(int x=1, *, int y, int z=2) -> ()",
            "(self, /, x: int = 1, *, y: int, z: int = 2) -> None",
        ),
        ("f(Tensor self, int _self) -> ()", "(__self, /, self: Tensor, _self: int) -> None"),
        ("f(int from, int y) -> ()", "(self, _0: int, /, y: int) -> None"),
        ("f(int from, int _0, int __x) -> ()", "(self, __0: int, _0: int, _2: int, /) -> None"),
        (
            "f(int x, int lambda=1, *, int y) -> ()",
            "(self, x: int, _1: int = 1, /, *, y: int) -> None",
        ),
        (
            "f(float x=1e-5, int[2] y=[1, 2], str s='=<1>', ScalarType? t=long) -> ()",
            "(self, /, x: float = 1e-05, y: Sequence[int] | int = [1, 2], s: str = '=<1>', "
            "t: object | None = ...) -> None",
        ),
        (f"f(str x='{'long' * 20}') -> ()", "(self, /, x: str = ...) -> None"),
        ("f(*, int lambda) -> ()", "(self, /, **kwargs: Any) -> None"),
        ("f(*, int yield, int x) -> ()", "(self, /, *, x: int, **kwargs: Any) -> None"),
    ],
)
def test_a_schema_gives_this_signature(
    registry: md.Registry, lib: md.Library, schema: str, signature: str
) -> None:
    lib.define(schema)
    assert body(registry).count(f"def __call__{signature}: ...") == 2  # of overload and packet


def test_schemas_are_the_docstrings_whatever_is_in_them(
    registry: md.Registry, lib: md.Library
) -> None:
    name = lib.define(r'f(str a="\\", str b="", str c="\"", str d="é\n") -> ()')
    tree = ast.parse(stub_text(registry, "command"))
    texts = {ast.get_docstring(each) for each in tree.body if isinstance(each, ast.ClassDef)}
    assert str(registry.ops.find(name).schema) in texts


def test_packets_try_their_overloads_in_the_order_of_definition(
    registry: md.Registry, lib: md.Library
) -> None:
    lib.define("f.b(int x) -> int")
    lib.define("f.a(str x) -> str")
    lines = body(registry)
    at = lines.index("class _t_f(OpOverloadPacket):")
    calls = [line for line in lines[at:] if line.startswith("def __call__")]
    assert calls == [
        "def __call__(self, /, x: int) -> int: ...",
        "def __call__(self, /, x: str) -> str: ...",
    ]
    assert lines[at:].count("@overload") == 2


def test_the_text_is_the_same_in_whatever_order_the_operators_were_defined() -> None:
    texts = set()
    for order in (("b", "a"), ("a", "b")):
        with md.Registry.create() as registry:
            for name in order:
                lib = md.Library(name, "DEF", registry=registry)
                for each in order:
                    lib.define(f"{each}() -> ()")
            texts.add(stub_text(registry, "command"))
    assert len(texts) == 1


def test_no_two_classes_have_one_name(registry: md.Registry, lib: md.Library) -> None:
    for name in ("a_b", "_a_b", "a.b", "a.default_", "ops"):
        lib.define(f"{name}() -> ()")
    for namespace in ("ops", "_ops", "t_a", "a_b"):
        other = md.Library(namespace, "DEF", registry=registry)
        other.define("b() -> ()")
    lines = body(registry)
    names = [re.split("[ (:]", line)[1] for line in lines if line.startswith("class ")]
    assert len(names) == len(set(names))
    assert "_a_b" not in names  # an operator's
    assert sum(line.startswith("ops: _ops") for line in lines) >= 1


def test_what_cannot_be_had_by_attribute_is_left_out_with_the_reason(
    registry: md.Registry, lib: md.Library
) -> None:
    lib.define("lambda() -> ()")
    lib.define("f.overloads() -> ()")
    lib.define("__f() -> ()")
    lines = body(registry)
    assert "# lambda is a keyword of Python: getattr(..., 'lambda')" in lines
    assert "# overloads cannot be had by attribute: objects of this class have one" in lines
    assert "# __f cannot be had by attribute: objects of this class have one" in lines

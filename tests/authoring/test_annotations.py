"""The promises of operators that are made from functions of plain Python: any annotation is read,
its type is in the schema, is checked at each call, and is compared in workers.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import inspect
import io
import os
import pickle
import re
import subprocess
import sys
import types
import typing
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.call_c import turn
from mdispatch.dispatch.context.values import is_tensor
from mdispatch.schema import parse_schema
from mdispatch.schema.classes import class_of


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Order:
    number: int = 0


class Rush(Order):
    pass


class Sized(typing.Protocol):
    def size(self) -> int: ...


@typing.runtime_checkable
class Closes(typing.Protocol):
    def close(self) -> None: ...


class Movie(typing.TypedDict):
    name: str


class Pair(typing.NamedTuple):
    one: int


class Box(typing.Generic[typing.TypeVar("T")]):
    pass


async def asynchronous():
    yield 1


T = typing.TypeVar("T")
N = typing.TypeVar("N", int, str)
B = typing.TypeVar("B", bound=Order)
UserId = typing.NewType("UserId", int)
HERE = "test_annotations"

# By annotation: the type in the schema, a value that fits, and one that does not.
TYPES = {
    "str": ("str", "a", 1),
    "bytes": ("bytes", b"a", "a"),
    "bytearray": ("bytearray", bytearray(b"a"), b"a"),
    "memoryview": ("memoryview", memoryview(b"a"), b"a"),
    "int": ("int", 1, 1.5),
    "float": ("float", 1.5, "1"),
    "bool": ("bool", True, 1.5),
    "complex": ("complex", 1j, "1"),
    "None": ("NoneType", None, 0),
    "object": ("object", None, ...),
    "typing.Any": ("Any", None, ...),
    "list": ("Any[]", [1, "a"], "a"),
    "list[str]": ("str[]", ["a"], [1]),
    "list[list[int]]": ("int[][]", [[1]], [["a"]]),
    "typing.List[int]": ("int[]", [1], 1),
    "list[Order]": (f"{HERE}.Order[]", [Order()], [1]),
    "list[int | None]": ("int?[]", [1, None], ["a"]),
    "dict": ("Dict(Any, Any)", {1: "a"}, []),
    "dict[str, int]": ("Dict(str, int)", {"a": 1}, {"a": "b"}),
    "typing.Dict[str, list[int]]": ("Dict(str, int[])", {"a": [1]}, {"a": 1}),
    "tuple": ("tuple", (1, "a"), [1]),
    "tuple[int, str]": ("(int, str)", (1, "a"), (1,)),
    "tuple[int, ...]": ("tuple[int, ...]", (1, 2), [1]),
    "set": ("set", {1}, [1]),
    "set[int]": ("set[int]", {1}, frozenset((1,))),
    "frozenset[str]": ("frozenset[str]", frozenset("a"), {"a"}),
    "range": ("range", range(2), 2),
    "slice": ("slice", slice(2), 2),
    "type": ("type", int, 1),
    "type[Order]": (f"type[{HERE}.Order]", Order, Order()),
    "collections.abc.Sequence[int]": ("Sequence[int]", range(3), 3),
    "typing.Sequence[str]": ("Sequence[str]", ("a",), {"a"}),
    "collections.abc.MutableSequence[int]": ("MutableSequence[int]", [1], (1,)),
    "typing.Mapping[str, int]": ("Mapping[str, int]", types.MappingProxyType({}), []),
    "collections.abc.MutableMapping[str, int]": ("MutableMapping[str, int]", {}, []),
    "typing.AbstractSet[int]": ("Set[int]", {1}, [1]),
    "typing.Iterable[int]": ("Iterable[int]", iter((1,)), 1),
    "typing.Iterator[str]": ("Iterator[str]", iter("a"), "a"),
    "typing.Collection[int]": ("Collection[int]", {1}, 1),
    "typing.Hashable": ("Hashable", 1, []),
    "typing.Sized": ("Sized", [], 1),
    "typing.Callable": ("Callable", len, 1),
    "typing.Callable[[int, str], bool]": ("Callable[[int, str], bool]", len, 1),
    "typing.Callable[[], int]": ("Callable[[], int]", len, 1),
    "collections.abc.Callable[..., typing.Any]": ("Callable[..., Any]", len, 1),
    "typing.AsyncIterator[int]": ("AsyncIterator[int]", asynchronous(), iter((1,))),
    "typing.Generator[int, None, str]": (
        "collections.abc.Generator[int, NoneType, str]",
        (each for each in (1,)),
        [1],
    ),
    "typing.Literal['a', 1, None]": ('Literal["a", 1, None]', "a", True),
    "typing.Literal[Color.RED]": (f"Literal[{HERE}.Color.RED]", Color.RED, Color.BLUE),
    "Color": (f"{HERE}.Color", Color.RED, 1),
    "Level": (f"{HERE}.Level", Level.LOW, 1),
    "Order": (f"{HERE}.Order", Rush(), 1),
    "Sized": (f"{HERE}.Sized", 1, ...),
    "Closes": (f"{HERE}.Closes", io.BytesIO(), 1),
    "Movie": (f"{HERE}.Movie", {"name": "a"}, "a"),
    "Pair": (f"{HERE}.Pair", Pair(1), (1,)),
    "Box[int]": (f"{HERE}.Box[int]", Box(), 1),
    "UserId": ("int", 1, "a"),
    "T": ("Any", 1, ...),
    "N": ("Union(int, str)", "a", 1.5),
    "B": (f"{HERE}.Order", Order(), 1),
    "int | str": ("Union(int, str)", "a", 1.5),
    "typing.Union[str, int]": ("Union(int, str)", 1, 1.5),
    "int | float | bool": ("Union(bool, float, int)", 1, "a"),
    "set[int] | Order": (f"Union(set[int], {HERE}.Order)", {1}, 1),
    "str | None": ("str?", None, 1),
    "typing.Optional[list[int]]": ("int[]?", None, 1),
    "Order | str | None": (f"Union(str, {HERE}.Order)?", None, 1),
    "typing.Annotated[int, 'a note']": ("int", 1, "a"),
    "typing.LiteralString": ("str", "a", 1),
    "'int'": ("int", 1, "a"),
    "datetime.date": ("datetime.date", datetime.datetime(2026, 1, 1), "2026-01-01"),
    "datetime.timedelta": ("datetime.timedelta", datetime.timedelta(1), 1),
    "decimal.Decimal": ("decimal.Decimal", decimal.Decimal(1), 1),
    "fractions.Fraction": ("fractions.Fraction", fractions.Fraction(1), 1),
    "Path": ("pathlib.Path", Path(), "a"),
    "uuid.UUID": ("uuid.UUID", uuid.UUID(int=1), 1),
    "re.Pattern[str]": ("re.Pattern[str]", re.compile("a"), "a"),
    "io.BytesIO": ("io.BytesIO", io.BytesIO(), b""),
    "typing.TextIO": ("typing.TextIO", io.StringIO(), ...),
    "collections.OrderedDict[str, int]": (
        "collections.OrderedDict[str, int]",
        collections.OrderedDict(),
        {},
    ),
    "collections.deque[int]": ("collections.deque[int]", collections.deque(), []),
    "Exception": ("builtins.Exception", ValueError(), 1),
    "types.ModuleType": ("types.ModuleType", re, 1),
    "types.FunctionType": ("types.FunctionType", lambda: 1, len),
    "contextlib.AbstractContextManager": (
        "contextlib.AbstractContextManager",
        contextlib.nullcontext(),
        1,
    ),
}


@functools.cache
def scope():
    return {**globals(), "Tensor": md.Tensor}


def function(signature, body="return None", postponed=True):
    """A function with this signature, whose annotations are texts if they are ``postponed``."""
    made = {}
    code = f"from __future__ import annotations\ndef f{signature}: {body}"
    exec(
        compile(code[0 if postponed else code.index("def") :], __file__, "exec", 0, True),
        scope(),
        made,
    )
    return made["f"]


@pytest.fixture
def operator(registry):
    def make(signature, body="return None", name="s::f", postponed=True, **options):
        return md.custom_op(
            name, function(signature, body, postponed), registry=registry, **options
        )

    return make


@pytest.mark.parametrize("annotation", TYPES)
def test_an_annotation_is_a_type_that_is_checked_in_c_and_in_python(operator, annotation):
    text, good, bad = TYPES[annotation]
    if is_tensor(good):
        return  # another module of this process has registered its class with a key
    op = operator(f"(x: {annotation}, n: int = 0) -> typing.Any", "return x")
    schema = f"s::f({text} x, int n=0) -> Any"
    assert str(op.operator.schema) == schema == str(parse_schema(schema))
    for in_c in (True, True, True, False):
        turn(in_c)
        try:
            assert op(good) == good
            if bad is not ...:
                with pytest.raises(errors.ArgumentError) as caught:
                    op(bad)
                assert f"takes {text} for 'x'" in str(caught.value)
        finally:
            turn(True)


@pytest.mark.parametrize("annotation", TYPES)
def test_what_is_returned_is_checked_by_its_annotation(operator, annotation):
    text, good, bad = TYPES[annotation]
    if text in ("NoneType", "(int, str)"):
        return  # nothing is returned, or two values are
    if is_tensor(good):
        return  # another module of this process has registered its class with a key
    op = operator(f"(x: typing.Any) -> {annotation}", "return x")
    assert str(op.operator.schema) == f"s::f(Any x) -> {text}"
    assert op(good) == good
    if bad is not ...:
        with pytest.raises(errors.ReturnValueError, match="returned"):
            op(bad)


# By signature: the schema.
SIGNATURES = {
    "()": "() -> Any",
    "() -> None": "() -> ()",
    "() -> typing.NoReturn": "() -> ()",
    "() -> int": "() -> int",
    "() -> 'str'": "() -> str",
    "() -> tuple[int, str]": "() -> (int, str)",
    "() -> tuple[int]": "() -> ((int))",
    "() -> tuple": "() -> tuple",
    "() -> str | None": "() -> str?",
    "(x, y=1)": "(Any x, Any y=1) -> Any",
    "(x, /, y) -> int": "(Any x, Any y) -> int",
    "(x, *, y: int) -> int": "(Any x, *, int y) -> int",
    "(*args)": "(Any *args) -> Any",
    "(**kw)": "(Any **kw) -> Any",
    "(x: str, *rest: int, y: int = 1, **more: float) -> int": (
        "(str x, int *rest, int y=1, float **more) -> int"
    ),
    "(x: int = 1, y: str = 'a, b', z: float = 1) -> int": (
        '(int x=1, str y="a, b", float z=1.) -> int'
    ),
    "(x: bytes = b'a\\xff') -> None": '(bytes x=b"aÿ") -> ()',
    "(x: dict = {}) -> None": "(Dict(Any, Any) x={}) -> ()",
    "(x: typing.Any = {'a': [1, (2,), None]}) -> None": ('(Any x={"a": [1, (2,), None]}) -> ()'),
    "(x: list[str] = ['a']) -> None": '(str[] x=["a"]) -> ()',
    "(x: list[int] = [1, 2]) -> None": "(int[] x=[1, 2]) -> ()",
    "(x: tuple[int, int] = (1, 2)) -> None": "((int, int) x=(1, 2)) -> ()",
    "(x: Color = Color.RED) -> None": f"({HERE}.Color x={HERE}.Color.RED) -> ()",
    "(x: Level = Level.LOW) -> None": f"({HERE}.Level x={HERE}.Level.LOW) -> ()",
    "(x: int = Level.LOW) -> None": "(int x=1) -> ()",
    "(x: int | str = 'a') -> None": '(Union(int, str) x="a") -> ()',
    "(x: typing.Literal['a'] = 'a') -> None": '(Literal["a"] x="a") -> ()',
    "(x: Order = None) -> None": f"({HERE}.Order x=None) -> ()",
    "(x: complex = 1j) -> None": "(complex x=0.+1.j) -> ()",
    # Where there is a Tensor, the types are those that PyTorch infers.
    "(x: Tensor, n: int) -> Tensor": "(Tensor x, SymInt n) -> Tensor",
    "(x: Tensor, n: typing.Sequence[int], m: int | float | bool) -> None": (
        "(Tensor x, SymInt[] n, Scalar m) -> ()"
    ),
    "(x: typing.Sequence[Tensor | None], n: dict[str, int]) -> int": (
        "(Tensor?[] x, Dict(str, SymInt) n) -> SymInt"
    ),
    "(x: int) -> Tensor": "(SymInt x) -> Tensor",
    "(x: Tensor, names: typing.Sequence[str]) -> str": "(Tensor x, Sequence[str] names) -> str",
}


@pytest.mark.parametrize("postponed", [True, False])
@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_signature_is_a_schema(signature, postponed):
    text = md.infer_schema(function(signature, postponed=postponed))
    assert text == SIGNATURES[signature]
    assert str(parse_schema(f"f{text}")) == f"f{text}"


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("(x: 3) -> None", "parameter x has the annotation 3, which is no type"),
        ("(x: 'Missing') -> None", "NameError"),
        ("(x: Path = Path('a')) -> None", "A default is None, a number, str"),
        ("(x: set = {1}) -> None", "A default is None, a number, str"),
        ("(x: float = float('inf')) -> None", "A default is None, a number, str"),
        ("(x: int = 'a') -> None", 'would be int x="a"'),
        ("(x: Tensor = 1) -> None", "this is not a value of type Tensor"),
        ("(x: " + "list[" * 20 + "int" + "]" * 20 + ") -> None", "16 levels deep"),
    ],
)
def test_what_is_no_type_or_no_default_is_refused_in_words(operator, signature, words):
    with pytest.raises(errors.InvalidArgumentError) as caught:
        operator(signature, mutates_args=())
    assert words in str(caught.value)


def test_each_call_gets_a_default_of_its_own(operator):
    op = operator(
        "(x: dict = {}, y: list[str] = [], c: Color = Color.RED) -> tuple", "return x, y, c"
    )
    one, other = op(), op()
    assert one == other == ({}, [], Color.RED)
    assert one[0] is not other[0]
    assert one[1] is not other[1]


def test_arguments_with_stars_are_bound_and_checked(operator):
    op = operator(
        "(x: str, *rest: int, sep: str = '-', **more: float) -> str",
        "return f'{x} {rest} {sep} {more}'",
    )
    assert op("a") == "a () - {}"
    assert op("a", 1, True, sep="+", b=2) == "a (1, 1) + {'b': 2.0}"
    for args, named, words in (
        (("a", "b"), {}, "takes int for 'rest', not str (b)"),
        (("a",), {"b": "c"}, "takes float for 'more', not str (c)"),
        (("a",), {"x": "b"}, "got 'x' twice"),
        ((), {"b": 1}, "needs a value for 'x'"),
    ):
        with pytest.raises(errors.ArgumentError) as caught:
            op(*args, **named)
        assert words in str(caught.value)


def test_a_coroutine_is_what_a_call_returns(operator):
    made = {}
    exec("async def f(x: int) -> str: return str(x)", scope(), made)
    op = operator("() -> None")
    op = md.custom_op("s::g", made["f"], registry=op._library.registry)
    assert str(op.operator.schema) == "s::g(int x) -> Coroutine[Any, Any, str]"
    call = op(3)
    with pytest.raises(StopIteration) as caught:
        call.send(None)
    assert caught.value.value == "3"


def test_a_method_is_bound_to_its_object(registry):
    class Shop:
        name = "shop"

        @md.custom_op("s::Shop.total", registry=registry)
        def total(self, n: int) -> str:
            return f"{self.name} {n}"

    assert str(Shop.total.operator.schema) == "s::Shop.total(Any self, int n) -> str"
    assert Shop().total(3) == Shop.total(Shop(), 3) == "shop 3"


def test_an_operator_in_a_class_that_is_no_method_is_not_bound(operator):
    op = operator("(x: int) -> int", "return x")

    class Holder:
        price = op

    assert Holder().price(3) == 3


def test_an_operator_is_taken_for_its_function(operator):
    op = operator("(x: int, y: str = 'a') -> str", "return y * x", postponed=False)
    assert str(inspect.signature(op)) == "(x: int, y: str = 'a') -> str"
    assert op.function(2) == op(2) == "aa"
    assert functools.wraps(op)(lambda: 1).__wrapped__ is op


def test_a_module_level_operator_is_pickled_by_its_name(registry, monkeypatch):
    module = types.ModuleType("annotated_shop")
    monkeypatch.setitem(sys.modules, "annotated_shop", module)
    exec("def f(x: int) -> int: return x", vars(module))
    module.f = md.custom_op("s::f", module.f, registry=registry)
    assert pickle.loads(pickle.dumps(module.f)) is module.f


def test_nothing_needs_to_be_said_of_writes_where_there_is_no_tensor(operator):
    with pytest.raises(errors.InvalidArgumentError, match="takes Tensors") as caught:
        operator("(x: Tensor) -> None")
    assert "mutates_args=('x',) for x" in str(caught.value)
    assert operator("(x: int) -> int", "return x")(3) == 3


def test_an_object_may_be_returned_as_it_came(operator):
    order, all_ = Order(), [Order()]
    op = operator("(x: Order, y: list[Order]) -> tuple[Order, list[Order]]", "return x, y")
    assert op(order, all_)[0] is order
    op = operator("(x: list[Order]) -> list[Order]", "return x * 2", "s::g")
    assert op(all_) == all_ * 2


@pytest.mark.needs("providers")
def test_a_provider_of_an_operator_with_a_default_of_its_own_keeps_its_name(operator):
    op = operator("(x: int = Level.LOW) -> str", "return repr(x)")
    op.register_kernel(None, lambda x: f"fast {x!r}", provider="fast", supports=lambda x: x == 1)
    assert op() == "fast <Level.LOW: 1>"
    assert op(2) == "2"


# --- classes --------------------------------------------------------------------------------------


def test_a_class_is_known_as_long_as_an_operator_has_it(registry):
    kept = class_of(f"{HERE}.Rush")
    op = md.custom_op("s::f", function("(x: Rush) -> None"), registry=registry)
    lib = md.Library("s", "FRAGMENT", registry=registry)
    lib.define(f"g({HERE}.Rush x) -> int")
    assert class_of(f"{HERE}.Rush") is Rush
    op._library.close()
    assert class_of(f"{HERE}.Rush") is kept is None


TREES = """
from __future__ import annotations
import mdispatch as md

class Tree:
    def __init__(self, size=1):
        self.size = size

    @md.custom_op("trees::joined")
    def joined(self, other: Tree, more: list[Tree] = (), maybe: Tree | None = None) -> Tree:
        return Tree(self.size + other.size)

    @staticmethod
    @md.custom_op("trees::parsed")
    def parsed(text: str) -> Tree:
        return Tree(int(text))

    @classmethod
    @md.custom_op("trees::same")
    def same(cls, one: Tree) -> Tree:
        return one

    class Leaf:
        @md.custom_op("trees::on")
        def on(self, tree: Tree, leaf: Tree.Leaf) -> Tree:
            return tree
"""


def test_a_method_names_the_class_around_it(isolated, tmp_path):
    """Before its body has ended there is no such class. When the code runs again, the class of the
    earlier run has the name, and is not meant.
    """
    code = """
import importlib, trees
from trees import md
for run in range(2):
    tree = trees.Tree(2)
    print(tree.joined(tree).size, trees.Tree.parsed("7").size, trees.Tree.same(tree) is tree)
    print(trees.Tree.Leaf().on(tree, trees.Tree.Leaf()) is tree)
    for wrong in (1, trees.Tree.Leaf()):
        try:
            tree.joined(wrong)
        except md.errors.ArgumentError as error:
            print(str(error).splitlines()[0])
    importlib.reload(trees)
print(str(md.ops.trees.joined.default.schema))
print(md.warm_up("trees").differences)
"""
    (tmp_path / "trees.py").write_text(TREES)
    there = isolated(code).splitlines()
    once = [
        "4 7 True",
        "True",
        "trees::joined() takes trees.Tree for 'other', not int (1)",
        "trees::joined() takes trees.Tree for 'other', not Tree.Leaf",
    ]
    schema = "Any self, trees.Tree other, trees.Tree[] more=(), trees.Tree? maybe=None"
    assert there[:9] == [*once, *once, f"trees::joined({schema}) -> trees.Tree"]
    assert there[9:] == ["()"]


def test_each_operator_of_a_class_expects_it_by_itself(isolated):
    """The end of one takes nothing from the others, of which none was called before."""
    code = (
        TREES
        + """
Tree.joined._library.close()
Tree.parsed._library.close()
tree = Tree(4)
print(Tree.same(tree) is tree)
"""
    )
    assert isolated(code) == "True\n"


def test_a_class_in_a_function_is_known_to_its_methods(registry):
    def made():
        class Local:
            @md.custom_op("s::local", registry=registry)
            def itself(self, other: Local) -> Local:
                return other

        return Local

    Local = made()
    one = Local()
    assert one.itself(one) is one
    with pytest.raises(errors.ArgumentError, match=r"made\.Local for 'other', not int"):
        one.itself(1)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_a_method_names_the_class_around_it_without_quotes(isolated):
    code = TREES.replace("from __future__ import annotations\n", "")
    code += "print(Tree(1).joined(Tree(2)).size)"
    assert isolated(code) == "3\n"


def test_an_object_of_an_earlier_class_of_the_name_is_refused_in_words(registry):
    class Ware:
        pass

    old = Ware()

    class Ware:  # as in a cell that runs again
        pass

    def ware(x, y):
        return 1

    ware.__annotations__ = {"x": Ware, "y": list[Ware], "return": int}
    ware = md.custom_op("s::ware", ware, registry=registry)
    with pytest.raises(errors.ArgumentError, match=r"defined again since.* make the object anew"):
        ware(old, [])
    with pytest.raises(errors.ArgumentError) as caught:
        ware(Ware(), Ware())
    assert "again" not in str(caught.value)


def test_a_dotted_type_in_a_text_has_to_be_known(registry):
    lib = md.Library("s", "DEF", registry=registry)
    for type_, words in (
        ("torch.Tensor", "no class 'torch.Tensor' here; did you mean Tensor?"),
        ("collections.abc.Sequence", "did you mean Sequence?"),
        ("nowhere.Zzyzx", "or say forward=True if it comes later"),
    ):
        with pytest.raises(errors.SchemaSyntaxError) as caught:
            lib.define(f"f({type_}[] x, float y=2.5) -> int")
        assert words in str(caught.value)
    assert lib.define("f(float x=2.5) -> int") == "s::f"


@pytest.mark.needs("across")
def test_a_class_may_come_later_and_a_warm_up_tells_if_it_does_not(isolated):
    code = """
import mdispatch as md
with md.scoped_library("gone", "DEF") as lib:
    lib.define("f(gone.Cart c) -> int", forward=True)
md.define("shop::f", "(shop.Basket b) -> int", forward=True)
md.impl("shop::f", "default", lambda b: b.n)
try:
    md.warm_up("json")
except md.errors.WarmUpError as error:
    (why,) = error.differences
    print(type(why).__name__, why.name, why.operator)

@md.register_class("shop.Basket")
class Basket:
    n = 3

md.warm_up("json")
print(md.ops.shop.f(Basket()))
"""
    shown = isolated(code)
    assert shown == "ClassNotFoundError shop.Basket shop::f\n3\n"


@pytest.fixture
def isolated(tmp_path):
    def run(code, **more):
        path = tmp_path / "main.py"
        path.write_text(code)
        environment = {**os.environ, **more}
        ran = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, env=environment
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_two_classes_of_one_name_are_not_taken_for_each_other(registry):
    """Once an operator was called. Also not if the second one lies where the first one lay."""

    def make(name):
        class Item:
            pass

        def f(x: Item) -> None:
            pass

        f.__annotations__ = {"x": Item, "return": None}
        return Item, md.custom_op(f"s::{name}", f, registry=registry)

    old, op = make("f")
    op(old())
    item = old()
    new, op = make("g")
    for _ in range(3):
        op(new())
        with pytest.raises(errors.ArgumentError):
            op(item)
    del old, op
    gc.collect()
    with pytest.raises(errors.ArgumentError):
        make("h")[1](item)


def test_a_class_may_join_an_abstract_one_in_the_middle_of_a_call(operator):
    class Late:
        pass

    calls = []

    class Joins(collections.abc.Iterable):
        def __iter__(self):
            return iter(())

    op = operator("(x: typing.Sequence, y: typing.Any) -> None", "y()")
    with pytest.raises(errors.ArgumentError):
        op(Late(), list)
    op([], lambda: collections.abc.Sequence.register(Late))
    op(Late(), lambda: calls.append(1))
    assert calls == [1]


# --- any signature --------------------------------------------------------------------------------

ANNOTATIONS = st.sampled_from([each for each in TYPES if "typing.AsyncIterator" not in each])
DEFAULTS = st.sampled_from(["", "=None"])


@st.composite
def signatures(draw):
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    at = draw(st.integers(0, len(names)))
    items, has_default = [], False
    for name in names[:at]:
        has_default = has_default or draw(st.booleans())
        items.append(f"{name}: {draw(ANNOTATIONS)}" + ("=None" if has_default else ""))
    star = draw(st.sampled_from(["*", f"*rest: {draw(ANNOTATIONS)}"]))
    if names[at:] or star != "*":
        items.append(star)
    items += [f"{name}: {draw(ANNOTATIONS)}{draw(DEFAULTS)}" for name in names[at:]]
    if draw(st.booleans()):
        items.append(f"**more: {draw(ANNOTATIONS)}")
    return f"({', '.join(items)}) -> {draw(ANNOTATIONS)}"


@given(signatures(), st.booleans())
def test_any_signature_is_read_as_inspect_and_typing_read_it(signature, postponed):
    made = function(signature, postponed=postponed)
    schema = parse_schema("f" + md.infer_schema(made))
    found = inspect.signature(made)
    hints = typing.get_type_hints(made, scope(), include_extras=False)
    stars = [each for each in (schema.rest, schema.others) if each is not None]
    by_name = {each.name: each for each in (*schema.arguments, *stars)}
    assert [*by_name] == [
        *(
            n
            for n, p in found.parameters.items()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ),
        *(n for n, p in found.parameters.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)),
    ]
    for name, parameter in found.parameters.items():
        its = by_name[name]
        assert its.kwarg_only == (parameter.kind is parameter.KEYWORD_ONLY)
        assert its.has_default == (parameter.default is not parameter.empty)
        alone = function("(x: object) -> None")
        alone.__annotations__ = {"x": hints[name], "return": None}
        assert str(parse_schema("f" + md.infer_schema(alone)).arguments[0].type) == str(its.type)


# --- elements ---

DEEP = """
import collections.abc as abc
import mdispatch as md

@md.custom_op("s::f")
def f(
    x: set[int],
    y: abc.Mapping[str, float] = {},
    z: tuple[str, ...] = (),
    *rest: abc.Iterable[int],
) -> set[str]:
    return x

for args in (
    ({1},),
    ({"a"},),
    ({1}, {1: 1.0}),
    ({1}, {"a": "b"}),
    ({1}, {"a": 1}, (1,)),
    (set(), {}, (), [1], ["a"]),
    (set(), {}, (), iter("a")),
):
    try:
        print(f(*args))
    except (md.errors.ArgumentError, md.errors.ReturnValueError) as error:
        print(str(error).partition("\\n")[0])
"""


def test_elements_of_collections_are_looked_at_where_the_environment_says_so(isolated):
    assert isolated(DEEP, MDISPATCH_CHECK="deep").splitlines() == [
        "s::f(): kernel __main__.f returned an object of set, not set[str]",
        "s::f() takes set[int] for 'x'; an element is str (a)",
        "s::f() takes Mapping[str, float] for 'y'; an element is int (1)",
        "s::f() takes Mapping[str, float] for 'y'; an element is str (b)",
        "s::f() takes tuple[str, ...] for 'z'; an element is int (1)",
        "s::f() takes Iterable[int] for 'rest'; an element is str (a)",
        "set()",
    ]
    assert isolated(DEEP).splitlines() == [
        *("{1}", "{'a'}", "{1}", "{1}", "{1}", "set()", "set()"),
    ]


def test_another_word_for_the_depth_of_checks_is_refused(isolated):
    code = "import mdispatch as md\ndef f(x: set[int]): ...\nmd.custom_op('s::f', f)({1})"
    with pytest.raises(AssertionError, match="MDISPATCH_CHECK='dep' in the environment"):
        isolated(code, MDISPATCH_CHECK="dep")


# --- what it imports ------------------------------------------------------------------------------


def test_plain_functions_are_read_without_inspect_and_typing(isolated):
    code = """
import sys
import mdispatch as md
before = set(sys.modules)

@md.custom_op("s::f")
def f(x: str, n: "int" = 2, *, by: float | None = None, all: list[int] = []) -> list[str]:
    return [x] * n

print(sorted({"inspect", "typing", "torch", "enum"} & (set(sys.modules) - before)))
"""
    assert isolated(code) in ("[]\n",)

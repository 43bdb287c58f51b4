"""Statements of the test suites of plum and multipledispatch, said anew as programs for mdispatch.

Each statement is true there. Where it does not hold here, its program shows the behaviour here. The
page docs/coming-from-singledispatch.md has the same table.
"""

from __future__ import annotations

import abc
import collections.abc
import dataclasses
import math
import numbers
import operator
import pickle
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import pytest

import mdispatch as md
from mdispatch import errors

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-singledispatch.md"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Statement:
    """A row of the page, and its program. In the columns of plum and multipledispatch "stated" is
    for a statement of their tests; "yes" and "no" are results of programs without such a test.
    """

    words: str
    plum: str
    multipledispatch: str
    here: str
    program: Callable[[md.Registry], None]
    needs: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        return [each for each in ("plum", "multipledispatch") if getattr(self, each) == "stated"]

    @property
    def holds(self) -> bool:
        return self.here.startswith("yes")

    @property
    def row(self) -> str:
        return f"| {self.words} | {self.plum} | {self.multipledispatch} | {self.here} |"


STATEMENTS: list[Statement] = []


def states(words, plum, multipledispatch, here="yes", needs=()):
    def add(program):
        STATEMENTS.append(Statement(words, plum, multipledispatch, here, program, needs))
        return program

    return add


# --- the classes and functions of the programs ----------------------------------------------------


class Shape:
    pass


class Polygon(Shape):
    pass


class Square(Polygon):
    pass


class Red:
    pass


class Box(Generic[T]):
    pass


class IntBox(Box[int]):
    pass


def one(x: object) -> object:
    return "other"


def two(x: object, y: object) -> object:
    return "other"


def op(registry, function, *kernels):
    """An operator of a function. Each kernel is given by its types and its answer."""
    made = md.custom_op("s::f", function, registry=registry)
    for classes, answer in kernels:
        made.register_kernel(None, lambda *args, answer=answer, **named: answer, types=classes)
    return made


def overloads(registry, *schemas):
    """A name whose overloads answer with their own names, by the text of each overload."""
    library = md.Library("s", "DEF", registry=registry)
    for text in schemas:
        name = library.define(f"f.{text}")
        answer = text.partition("(")[0]
        library.impl(name, lambda *args, answer=answer, **named: answer)
    return registry.ops.s.f


def bare(registry, *kernels):
    """As ``op`` for one argument, without a function that serves all other classes."""
    library = md.Library("s", "DEF", registry=registry)
    library.define("f(Any x) -> Any")
    for classes, answer in kernels:
        library.impl("f", lambda x, answer=answer: answer, types=classes)
    return registry.ops.s.f


# --- classes --------------------------------------------------------------------------------------


@states("The class of one argument chooses", "stated", "stated")
def one_argument(registry):
    f = op(registry, one, (int, "int"), (float, "float"))
    assert [f(1), f(1.5), f("a")] == ["int", "float", "other"]


@states("The classes of several arguments choose together", "stated", "stated")
def several_arguments(registry):
    f = op(registry, two, ((int, int), "ints"), ((int, str), "int and text"))
    assert [f(1, 2), f(1, "a"), f("a", 1)] == ["ints", "int and text", "other"]


@states("An object of a derived class goes where its base goes", "stated", "stated")
def derived_class(registry):
    f = op(registry, one, (Shape, "shape"), (list, "list"))
    assert [f(Shape()), f(Square()), f(type("Own", (list,), {})())] == ["shape", "shape", "list"]


@states("Of two bases the nearer one counts, in any order of registration", "stated", "stated")
def nearer_base(registry):
    f = op(registry, one, (Polygon, "polygon"), (Shape, "shape"))
    assert [f(Square()), f(Polygon()), f(Shape())] == ["polygon", "polygon", "shape"]


@states("The more specific classes win, argument by argument", "stated", "stated")
def argument_by_argument(registry):
    f = op(registry, two, ((Shape, Red), "shape"), ((Polygon, Red), "polygon"))
    assert [f(Square(), Red()), f(Shape(), Red())] == ["polygon", "shape"]


@states("An abstract class takes its virtual subclasses", "stated", "yes")
def virtual_subclasses(registry):
    f = op(registry, one, (numbers.Number, "number"), (collections.abc.Mapping, "mapping"))
    assert [f(1), f(1j), f({}), f("a")] == ["number", "number", "mapping", "other"]


@states(
    "A metaclass with `__instancecheck__` looks at each value",
    "stated",
    "no",
    "no: `issubclass` of the value's class, so `__subclasscheck__`",
)
def metaclass_of_its_own(registry):
    class Looks(type):
        def __instancecheck__(self, value):
            return value == 3

    class Asks(Looks):
        def __subclasscheck__(self, cls):
            return cls in (int, self)

    three, whole = Looks("Three", (), {}), Asks("Whole", (), {})
    f = op(registry, one, (three, "three"))
    assert isinstance(3, three)
    assert f(3) == "other"
    f.register_kernel(None, lambda x: "whole", types=whole)
    assert [f(3), f("a")] == ["whole", "other"]


@states("A function for None serves None", "stated", "yes")
def for_none(registry):
    f = op(registry, one, (type(None), "none"), (int, "int"))
    assert [f(None), f(1), f(0)] == ["none", "int", "int"]


@states("A value that is no class is refused as a type", "stated", "stated")
def no_class(registry):
    f = op(registry, two, ((int, int), "ints"))
    for wrong in (1, (int, 1), "builtins.int"):
        with pytest.raises(errors.InvalidArgumentError, match="is not a class"):
            f.register_kernel(None, two, types=wrong)
    assert [f(1, 2), f("a", "b")] == ["ints", "other"]


# --- ties and errors ------------------------------------------------------------------------------


@states(
    "`(A, B)` and `(B, A)` may stand beside each other",
    "stated",
    "stated",
    "no: the second one is refused",
)
def crossing(registry):
    f = op(registry, two, ((Shape, Polygon), 1))
    with pytest.raises(errors.AmbiguousTypesError, match="neither is the more specific one"):
        f.register_kernel(None, lambda x, y: 2, types=(Polygon, Shape))
    assert [f(Shape(), Polygon()), f(Polygon(), Shape())] == [1, "other"]


@states(
    "A function for `(B, B)` settles calls that both fit",
    "yes",
    "stated",
    "yes, if it comes before the second",
)
def crossing_settled(registry):
    shape, polygon = Shape(), Polygon()
    kernels = (((Shape, Polygon), 1), ((Polygon, Polygon), 0), ((Polygon, Shape), 2))
    f = op(registry, two, *kernels)
    assert [f(shape, polygon), f(polygon, shape), f(Square(), Square())] == [1, 2, 0]


@states("A value with two bases that tie is refused", "stated", "no")
def diamond(registry):
    class Left(Shape):
        pass

    class Right(Shape):
        pass

    class Both(Left, Right):
        pass

    f = op(registry, one, (Shape, "shape"), (Left, "left"), (Right, "right"))
    assert [f(Left()), f(Right())] == ["left", "right"]
    with pytest.raises(errors.AmbiguousTypesError):
        f(Both())
    f.register_kernel(None, lambda x: "both", types=Both)
    assert f(Both()) == "both"


@states(
    "A precedence decides between functions that tie",
    "stated",
    "no",
    "yes, `order=` of providers",
    needs=("providers",),
)
def precedence(registry):
    f = op(registry, two)
    f.register_kernel(None, lambda x, y: "zero", types=(Polygon, Shape), provider="zero", order=1)
    f.register_kernel(None, lambda x, y: "own", types=(Shape, Polygon), provider="own")
    shape, polygon = Shape(), Polygon()
    assert [f(polygon, shape), f(shape, polygon), f(polygon, polygon)] == ["zero", "own", "zero"]


@states("A call that nothing fits is refused", "stated", "stated")
def nothing_fits(registry):
    f = bare(registry, (int, "int"))
    assert f(1) == "int"
    with pytest.raises(NotImplementedError) as caught:
        f("a")
    assert type(caught.value) is errors.MissingKernelError
    md.define("s::empty", "(Any x) -> Any", registry=registry)
    with pytest.raises(errors.MissingKernelError):
        registry.ops.s.empty(1)


@states("The errors for no fit and for a tie name the candidates", "stated", "no")
def errors_with_candidates(registry):
    f = bare(registry, (Shape, 1), (collections.abc.Sized, 2), (collections.abc.Iterable, 3))
    with pytest.raises(errors.MissingKernelError) as caught:
        f(1)
    for name in ("builtins.int", f"{__name__}.Shape", "abc.Sized", "abc.Iterable"):
        assert name in str(caught.value)
    with pytest.raises(errors.AmbiguousTypesError) as caught:
        f([])
    assert "abc.Sized" in str(caught.value)
    assert "abc.Iterable" in str(caught.value)
    assert "Shape" not in str(caught.value)


# --- unions ---------------------------------------------------------------------------------------


@states("A union is for each of its classes", "stated", "stated")
def union(registry):
    f = op(registry, two, ((int | str, Shape | None), "union"))
    assert [f(1, Polygon()), f("a", None), f(1.5, None)] == ["union", "union", "other"]


@states("`int \\| bool` takes the place of `int`", "stated", "yes")
def union_with_a_derived_class(registry):
    f = op(registry, one, (int, "first"), (int | bool, "second"))
    assert [f(1), f(True)] == ["second", "second"]


@states(
    "A function for `int` stays beside a later `int \\| str`",
    "stated",
    "no",
    "no: a union is one for each class, and the newest counts",
)
def union_after_a_class(registry):
    f = op(registry, one, (int, "int"), (int | str, "union"))
    assert [f(1), f("a")] == ["union", "union"]
    f.register_kernel(None, lambda x: "int again", types=int)
    assert [f(1), f("a")] == ["int again", "union"]


@states(
    "A union can have a name, which texts show",
    "stated",
    "no",
    "no: texts have the classes; a variable is an alias",
)
def union_with_a_name(registry):
    Number = int | float
    f = op(registry, one, (Number, "number"))
    assert [f(1), f(1.5), f("a")] == ["number", "number", "other"]
    text = registry.dump("s::f")
    assert "builtins.int" in text
    assert "builtins.float" in text
    assert "Number" not in text


@states("One function may serve several signatures", "stated", "stated")
def stacked(registry):
    f = op(registry, one)

    @f.register_kernel(None, types=list)
    @f.register_kernel(None, types=tuple)
    def turned(x):
        return x[::-1]

    assert [f([1, 2]), f((1, 2)), f("ab"), turned("ab")] == [[2, 1], (2, 1), "other", "ba"]


# --- the arguments of a call ----------------------------------------------------------------------


@states(
    "Functions of one name may have different numbers of arguments",
    "stated",
    "stated",
    "yes, as overloads",
)
def numbers_of_arguments(registry):
    def none() -> str:
        return "none"

    def single(x: int) -> str:
        return "one"

    def double(x: int, y: int) -> str:
        return "two"

    for each in (none, single, double):
        md.custom_op(f"s::f.{each.__name__}", each, registry=registry)
    f = registry.ops.s.f
    assert [f(), f(1), f(1, 2)] == ["none", "one", "two"]


@states(
    "The classes of `*args` choose",
    "stated",
    "stated",
    "yes, as overloads: each says what it takes",
)
def further_arguments(registry):
    f = overloads(registry, "texts(str x, str *rest) -> str", "floats(float *rest) -> str")
    assert [f("a", "b", "c"), f("a"), f(1.5, 2.5), f()] == ["texts", "texts", "floats", "floats"]
    with pytest.raises(errors.ArgumentError, match="no overload of s::f takes these arguments"):
        f("a", 1.5)
    g = md.custom_op("s::g", lambda *args: args, registry=registry)
    with pytest.raises(errors.SignatureMismatchError, match="no arguments whose classes could"):
        g.register_kernel(None, lambda *args: args, types=int)


@states(
    "Of functions with `*args` the most specific one runs",
    "stated",
    "stated",
    "no: the first overload that fits",
)
def specific_further_arguments(registry):
    f = overloads(
        registry,
        "some(int x, int *rest) -> str",
        "ints(int *rest) -> str",
        "all(Any *rest) -> str",
        "single(int x) -> str",
    )
    assert [f(1), f(1, 2), f(1, "a"), f("a")] == ["some", "some", "all", "all"]


@states("Keyword-only arguments do not choose, and have no position", "stated", "yes")
def keyword_only(registry):
    def function(x: object, *, option: object = None) -> object:
        return "other"

    f = op(registry, function)
    f.register_kernel(None, lambda x, *, option: ("int", option), types=int)
    assert [f(1), f(1, option="a")] == [("int", None), ("int", "a")]
    with pytest.raises(errors.ArgumentError, match="option must be given by keyword"):
        f(1, 2)
    with pytest.raises(errors.SignatureMismatchError):
        f.register_kernel(None, function, types=(int, str))


@states("An argument may be given by its name", "stated", "no", "yes, and it chooses, too")
def by_name(registry):
    f = op(registry, two, ((int, str), "int and text"))
    assert [f(1, y="a"), f(y="a", x=1), f(1, y=2)] == ["int and text", "int and text", "other"]


@states("An argument with a default may be left out", "stated", "no")
def left_out(registry):
    def function(x: object, y: object = 3) -> object:
        return "other"

    f = op(registry, function)
    f.register_kernel(None, lambda x, y: y, types=(str, int))
    assert [f("a"), f("a", 4), f("a", y=5), f("a", "b")] == [3, 4, 5, "other"]


@states(
    "Each function has a default of its own", "stated", "no", "no: the operator's, for all of them"
)
def own_default(registry):
    def function(x: object, y: int = 3) -> object:
        return ("other", y)

    f = op(registry, function)
    f.register_kernel(None, lambda x, y=4: ("int", y), types=int)
    assert [f(1), f("a"), f(1, 4)] == [("int", 3), ("other", 3), ("int", 4)]


@states("A default that does not fit its annotation is refused", "stated", "no")
def wrong_default(registry):
    def function(x: int = "a") -> int:
        return x

    with pytest.raises(errors.InvalidArgumentError, match="this is not a value of type int"):
        md.custom_op("s::f", function, registry=registry)


# --- results and conversions ----------------------------------------------------------------------


@states("A result that does not fit its annotation is a TypeError", "stated", "no")
def result_checked(registry):
    def function(x: object) -> int:
        return x

    f = op(registry, function)
    f.register_kernel(None, lambda x: len(x), types=list)
    assert [f(1), f([2, 3])] == [1, 2]
    with pytest.raises(TypeError, match="returned the str a, not int"):
        f("a")


@states(
    "Each function has an annotation of its own for its result",
    "stated",
    "no",
    "no: the operator's, for all of them",
)
def own_result(registry):
    def function(x: object) -> int:
        return 0

    def for_text(x: str) -> str:
        return x

    f = op(registry, function)
    f.register_kernel(None, for_text, types=str)
    with pytest.raises(errors.ReturnValueError, match="returned the str a, not int"):
        f("a")


@states(
    "A result that is no tuple becomes one for `-> tuple`",
    "stated",
    "no",
    "no: only numbers are converted",
)
def result_converted(registry):
    def function(x: object) -> tuple:
        return x

    def number(x: object) -> float:
        return x

    f = op(registry, function)
    assert f((1,)) == (1,)
    with pytest.raises(errors.ReturnValueError, match="returned 1, not tuple"):
        f(1)
    found = md.custom_op("s::g", number, registry=registry)(1)
    assert (found, type(found)) == (1.0, float)


@states(
    "A conversion of two classes can be added",
    "stated",
    "no",
    "no: a kernel for the class converts",
)
def own_conversion(registry):
    def function(x: object) -> int:
        return x

    f = op(registry, function)
    with pytest.raises(errors.ReturnValueError):
        f("1")
    f.register_kernel(None, int, types=str)
    assert [f(2), f("1")] == [2, 1]


@states(
    "A rule promotes two values to a common class",
    "stated",
    "no",
    "no: the schema's type converts numbers",
)
def promotion(registry):
    def function(x: float, y: float) -> object:
        return [x, y]

    f = op(registry, function)
    assert [type(each) for each in f(1, 2.5)] == [float, float]
    with pytest.raises(errors.ArgumentError, match="takes float for 'x', not str"):
        f("1", 2.5)


# --- types with parameters ------------------------------------------------------------------------


@states("The elements of a list or a tuple choose", "stated", "no", "yes, as overloads")
def elements(registry):
    f = overloads(
        registry, "pair((int, str) x) -> str", "ints(int[] x) -> str", "texts(str[] x) -> str"
    )
    assert [f([1, 2]), f(["a"]), f((1, "a"))] == ["ints", "texts", "pair"]
    with pytest.raises(errors.ArgumentError, match="no overload"):
        f([None])
    g = md.custom_op("s::g", one, registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match=re.escape("list[int] is not a class")):
        g.register_kernel(None, one, types=list[int])


@states("The value of a Literal chooses", "stated", "no", "yes, as overloads")
def literal(registry):
    f = overloads(registry, 'unit(Literal["kg", "g"] x) -> str', "text(str x) -> str")
    assert [f("kg"), f("g"), f("a")] == ["unit", "unit", "text"]


@states(
    "A class chooses by its parameters, `Box[int]`",
    "stated",
    "no",
    "no: a derived class does",
)
def parameters(registry):
    f = op(registry, one, (Box, "box"), (IntBox, "box of ints"))
    assert [f(Box()), f(Box[int]()), f(IntBox())] == ["box", "box", "box of ints"]
    with pytest.raises(errors.InvalidArgumentError, match="is not a class"):
        f.register_kernel(None, one, types=Box[int])


@states(
    "A condition on the value chooses",
    "stated",
    "no",
    "yes, `supports=` of a provider",
    needs=("providers",),
)
def condition(registry):
    f = op(registry, one)
    f.register_kernel(None, lambda x: "positive", types=int, provider="p", supports=lambda x: x > 0)
    assert [f(1), f(-1), f("a")] == ["positive", "other", "other"]


@states(
    "A function hands a call on to the more general one",
    "yes",
    "stated",
    "yes, `next_provider`",
    needs=("providers",),
)
def handed_on(registry):
    f = op(registry, one, (Shape, "shape"))

    @f.register_kernel(None, types=Polygon, provider="polygon")
    def polygon(x):
        return "polygon, " + md.next_provider(f.operator, "polygon", x)

    assert [f(Square()), f(Shape()), f(1)] == ["polygon, shape", "shape", "other"]
    library = md.Library("s", "FRAGMENT", registry=registry)
    library.define("g(Any x) -> Any")
    g = registry.ops.s.g.default
    library.impl("g", lambda x: md.next_provider(g, "only", x), types=float, provider="only")
    with pytest.raises(NotImplementedError):
        g(1.5)


# --- classes with methods -------------------------------------------------------------------------


@states("A method is chosen by its arguments", "stated", "stated")
def method(registry):
    class Till:
        @md.custom_op("s::Till_add", registry=registry)
        def add(self, item: object) -> object:
            return "other"

        @add.register_kernel(None, types=(object, int))
        def _(self, item):
            return (type(self).__name__, item)

    assert [Till().add(1), Till().add("a")] == [("Till", 1), "other"]
    assert Till.add(Till(), 1) == ("Till", 1)


@states(
    "A derived class adds functions to a method of its base", "stated", "no", "yes, `self` chooses"
)
def derived_method(registry):
    class Till:
        @md.custom_op("s::Till_add", registry=registry)
        def add(self, item: object) -> object:
            return "till"

    class Scale(Till):
        pass

    Till.add.register_kernel(None, lambda self, item: "scale", types=(Scale, int))
    assert [Scale().add(1), Scale().add("a"), Till().add(1)] == ["scale", "till", "till"]


@states(
    "A plain method of the base serves the calls that nothing fits",
    "stated",
    "no",
    "no: the operator's own function calls `super()`",
)
def plain_method_of_the_base(registry):
    class Till:
        def add(self, item):
            return "till"

    class Scale(Till):
        @md.custom_op("s::Scale_add", registry=registry)
        def add(self, item: int) -> object:
            return "scale"

    class Balance(Till):
        @md.custom_op("s::Balance_add", registry=registry)
        def add(self, item: object) -> object:
            return super().add(item)

        @add.register_kernel(None, types=(object, int))
        def _(self, item):
            return "balance"

    assert Scale().add(1) == "scale"
    with pytest.raises(errors.ArgumentError):
        Scale().add("a")
    assert [Balance().add(1), Balance().add("a")] == ["balance", "till"]


@states("A method chosen so may override an abstract one", "stated", "yes")
def abstract_method(registry):
    class Till(abc.ABC):
        @abc.abstractmethod
        def add(self, item): ...

    class Scale(Till):
        @md.custom_op("s::Scale_add", registry=registry)
        def add(self, item: int) -> object:
            return "scale"

    with pytest.raises(TypeError):
        Till()
    assert Scale().add(1) == "scale"
    with pytest.raises(TypeError):
        Scale().add("a")


@states("`staticmethod` stands around such a method", "stated", "yes")
def static_method(registry):
    class Till:
        @staticmethod
        @md.custom_op("s::Till_sum", registry=registry)
        def sum(item: object) -> object:
            return "other"

    Till.sum.register_kernel(None, lambda item: "int", types=int)
    assert [Till.sum(1), Till().sum(1), Till().sum("a")] == ["int", "int", "other"]


@states("`classmethod` stands around such a method", "stated", "no")
def class_method(registry):
    class Till:
        @md.custom_op("s::Till_make", registry=registry)
        def made(cls, item: object) -> object:
            return cls.__name__

        made.register_kernel(None, lambda cls, item: f"{cls.__name__} of int", types=(type, int))
        made = classmethod(made)

    class Scale(Till):
        pass

    assert [Till.made("a"), Scale.made(1), Scale().made(1)] == ["Till", *["Scale of int"] * 2]


@states("The setter of a property may be such a method", "stated", "no")
def setter(registry):
    class Till:
        @property
        def name(self):
            return self._name

        @name.setter
        @md.custom_op("s::Till_name", registry=registry)
        def name(self, value: str) -> None:
            self._name = value

    till = Till()
    till.name = "a"
    with pytest.raises(errors.ArgumentError, match="takes str for 'value', not int"):
        till.name = 1
    assert till.name == "a"


@states("`__init__` may be such a method", "stated", "stated")
def init(registry):
    class Till:
        @md.custom_op("s::Till_init", registry=registry)
        def __init__(self, items: object) -> None:
            self.items = [items]

        @__init__.register_kernel(None, types=(object, list))
        def _(self, items):
            self.items = items

    assert Till(3).items == Till([3]).items == [3]


@states("Special methods, as for `+`, may be such methods", "stated", "yes")
def special_methods(registry):
    class Money:
        @md.custom_op("s::Money_add", registry=registry)
        def __add__(self, other: object) -> object:
            return NotImplemented

        @__add__.register_kernel(None, types=(object, int))
        def _(self, other):
            return "sum"

        @md.custom_op("s::Money_le", registry=registry)
        def __le__(self, other: int) -> bool:
            return True

    assert Money() + 1 == "sum"
    assert Money() <= 1
    with pytest.raises(TypeError, match="unsupported operand"):
        Money() + "a"
    with pytest.raises(errors.ArgumentError):
        assert Money() <= "a"


@states("A method may name its own class in an annotation", "stated", "no", "yes")
def own_class(registry):
    code = """
class Money:
    @md.custom_op("s::Money_add", registry=registry)
    def add(self, other: "Money") -> object:
        return "other"
"""
    scope = {"md": md, "registry": registry, "__name__": "own_class"}
    exec(code, scope)
    Money = scope["Money"]
    assert Money().add(Money()) == "other"
    with pytest.raises(errors.ArgumentError, match=r"takes own_class\.Money"):
        Money().add(1)
    Money.add.register_kernel(None, lambda self, other: "money", types=(object, Money))
    assert Money().add(Money()) == "money"


@states(
    "A class may be promised, and come later",
    "stated",
    "no",
    "no: `types` are classes; a schema may name one",
)
def promised_class(registry):
    f = op(registry, one)
    with pytest.raises(errors.InvalidArgumentError, match="is not a class"):
        f.register_kernel(None, one, types="shop.Basket")
    library = md.Library("s", "FRAGMENT", registry=registry)
    with pytest.raises(errors.SchemaSyntaxError):
        library.define("g(shop.Basket b) -> int")
    assert library.define("g(shop.Basket b) -> int", forward=True) == "s::g"


# --- functions ------------------------------------------------------------------------------------


@states(
    "The annotations of each function say its classes",
    "stated",
    "stated",
    "no: `types=` does; those of the operator are checked",
)
def annotations(registry):
    def for_int(x: int) -> object:
        return "int"

    f = op(registry, one)
    f.register_kernel(None, for_int)
    assert [f(1), f("a")] == ["int", "int"]
    g = md.custom_op("s::g", for_int, registry=registry)
    assert g(1) == "int"
    with pytest.raises(errors.ArgumentError):
        g("a")


@states("Functions in C and callable objects may be registered", "stated", "yes")
def other_callables(registry):
    f = op(registry, one)
    f.register_kernel(None, math.sqrt, types=int)
    f.register_kernel(None, operator.itemgetter("x"), types=dict)
    f.register_kernel(None, operator.attrgetter("imag"), types=complex)
    assert [f(4), f({"x": 1}), f(2j)] == [2.0, 1, 2.0]


@states("A second function for the same classes takes the place of the first", "stated", "yes")
def redefinition(registry):
    f = op(registry, one, (int, "first"))
    assert f(1) == "first"
    with md.scoped_library("s", "FRAGMENT", registry=registry) as library:
        library.impl("f", lambda x: "second", "CompositeExplicitAutograd", types=int)
        assert f(1) == "second"
    assert f(1) == "first"


@states(
    "A warning tells of a second function for the same classes",
    "stated",
    "no",
    "no: `allow_override=False` refuses it",
)
def redefinition_refused(registry):
    bare(registry, (int, "first"))
    library = md.Library("s", "IMPL", registry=registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.DuplicateRegistrationError):
            library.impl("f", lambda x: "refused", types=int, allow_override=False)
        assert registry.ops.s.f(1) == "first"
        library.impl("f", lambda x: "second", types=int)
    assert registry.ops.s.f(1) == "second"


@states("A name without functions can be made first", "stated", "stated")
def without_functions(registry):
    md.define("s::f", "(Any x) -> Any", registry=registry)
    f = registry.ops.s.f
    with pytest.raises(errors.MissingKernelError):
        f(1)
    md.register_kernel("s::f", None, lambda x: "int", types=int, registry=registry)
    assert f(1) == "int"


@states("Classes find their function without a call", "stated", "stated", "yes, `why`")
def found_without_a_call(registry):
    f = op(registry, one, ((int), "int"))
    f.register_kernel(None, math.floor, types=float)
    assert registry.why("s::f", types=float).row.kernel.endswith("floor")
    assert registry.why("s::f", types=bool).row.registration.types == "builtins.int"
    assert registry.why("s::f", types=str).row.registration.types == ""


@states(
    "The function for a class runs with any values, `invoke`",
    "stated",
    "yes",
    "no: the values choose, also in `redispatch`",
)
def invoked(registry):
    f = op(registry, one)

    @f.register_kernel(None, types=int)
    def for_int(x):
        return "int"

    keys = md.DispatchKeySet("CPU")
    assert f.operator.redispatch(keys, 1) == "int"
    assert f.operator.redispatch(keys, "a") == f("a") == "other"
    assert for_int("a") == "int"
    with pytest.raises(errors.MissingKernelError, match="the arguments of each call choose one"):
        md.get_kernel(f.operator, "CPU")


@states("The operator has the name, the module and the docstring of its function", "stated", "no")
def names(registry):
    def shown(x: object) -> object:
        """Shows a value."""

    f = op(registry, shown, (int, "int"))
    assert (f.__name__, f.__module__, f.__doc__) == ("shown", __name__, "Shows a value.")
    assert f.__qualname__ == "names.<locals>.shown"


@states("The docstring has those of all functions", "stated", "stated", "no: its own function's")
def docstring(registry):
    def shown(x: object) -> object:
        """Shows a value."""

    def shown_int(x):
        """Shows a number."""

    f = op(registry, shown)
    f.register_kernel(None, shown_int, types=int)
    assert f.__doc__ == "Shows a value."


# --- pickles, changes, threads --------------------------------------------------------------------


@states("A pickle of such a function works", "no", "stated", "yes, by its name")
def pickled(registry):
    module = types.ModuleType("pickled_shop")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, module.__name__, module)
        exec("def f(x: object) -> object: return 'other'", vars(module))
        module.f = md.custom_op("s::f", module.f, registry=registry)
        module.f.register_kernel(None, lambda x: "int", types=int)
        found = pickle.loads(pickle.dumps(module.f))
    assert found is module.f
    assert [found(1), found("a")] == ["int", "other"]


@states("A new function counts from the next call on", "stated", "stated")
def new_function(registry):
    f = op(registry, one, (Shape, "shape"))
    assert [f(Square()) for _ in range(3)] == ["shape"] * 3
    f.register_kernel(None, lambda x: "polygon", types=Polygon)
    assert [f(Square()) for _ in range(3)] == ["polygon"] * 3
    f.register_kernel(None, lambda x: "square", types=Square)
    assert [f(Square()), f(Polygon()), f(Shape())] == ["square", "polygon", "shape"]


@states("Many threads may make the first call", "stated", "yes")
def first_calls(registry):
    made, found = [], []
    for n in range(5):
        f = md.custom_op(f"s::f{n}", one, registry=registry)
        f.register_kernel(None, lambda x: "shape", types=Shape)
        f.register_kernel(None, lambda x: "polygon", types=Polygon)
        made.append(f)
    start = threading.Barrier(6)

    def call():
        start.wait()
        found.extend((f(Square()), f(Shape()), f(1)) for f in made)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [("polygon", "shape", "other")] * 30


@states("One name in two namespaces is two functions", "yes", "stated")
def namespaces(registry):
    first = md.custom_op("a::f", lambda x: "a", registry=registry)
    second = md.custom_op("b::f", lambda x: "b", registry=registry)
    first.register_kernel(None, lambda x: "a, int", types=int)
    assert [first(1), first("a"), second(1), second("a")] == ["a, int", "a", "b", "b"]
    with md.Registry.local() as other:
        assert md.custom_op("a::f", lambda x: "another", registry=other)(1) == "another"
        assert first(1) == "a, int"


@states(
    "A class that is defined anew with its function is served",
    "stated",
    "yes",
    "yes, by the operator that was",
)
def defined_anew(registry):
    code = compile(
        """
class Item:
    pass

@md.custom_op("s::f", registry=registry)
def f(x: object) -> object:
    return "other"

f.register_kernel(None, lambda x: "item", types=Item)
""",
        "defined_anew.py",
        "exec",
    )
    scope = {"md": md, "registry": registry, "__name__": "defined_anew"}
    exec(code, scope)
    old, held = scope["Item"](), registry.ops.s.f.default
    assert held(old) == "item"
    exec(code, scope)
    new = scope["Item"]()
    assert type(new) is not type(old)
    assert [held(new), scope["f"](new), held(old)] == ["item", "item", "other"]


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            each,
            id=each.program.__name__,
            marks=[pytest.mark.needs(*each.needs)] if each.needs else [],
        )
        for each in STATEMENTS
    ],
)
def test_a_statement_holds_or_its_program_shows_the_behaviour_here(statement, registry):
    statement.program(registry)


def test_each_statement_has_a_source_and_a_verdict():
    for each in STATEMENTS:
        assert each.sources, each.words
        assert {each.plum, each.multipledispatch} <= {"stated", "yes", "no"}
        assert each.holds or re.match(r"no: ", each.here), each.words
    assert len({each.words for each in STATEMENTS}) == len(STATEMENTS)


def test_the_page_has_the_same_table():
    section = PAGE.read_text().partition("### Statements of their tests\n")[2].partition("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert rows[2:] == [each.row for each in STATEMENTS]


def test_the_page_counts_them():
    holding = sum(each.holds for each in STATEMENTS)
    text = " ".join(PAGE.read_text().split())
    assert f"{len(STATEMENTS)} statements, of which {holding} hold here" in text

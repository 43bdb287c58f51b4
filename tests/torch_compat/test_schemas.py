"""torch_compat reads and refuses schemas as PyTorch does, and its views have PyTorch's names. Where
PyTorch is installed, both read generated schemas.
"""

from __future__ import annotations

import importlib.util
import random

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch import torch_compat as C
from mdispatch.schema import parse_schema

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed here")

# --- classes, keys of Dict ------------------------------------------------------------------------

OF_TORCH = "f(__torch__.torch.classes.shop.Till? x) -> __torch__.torch.classes.shop.Till[]"


def test_a_class_in_pytorchs_spelling_is_the_class_of_that_name():
    assert str(C.parse_schema(OF_TORCH)) == "f(shop.Till? x) -> shop.Till[]"
    assert str(parse_schema(OF_TORCH, allow_typevars=True)) == "f(shop.Till? x) -> shop.Till[]"
    assert str(parse_schema(OF_TORCH)) == OF_TORCH  # else it is a name like any other


def test_a_text_in_quotes_keeps_that_spelling():
    schema = C.parse_schema('f(str s="__torch__.torch.classes.shop.Till") -> ()')
    assert schema.arguments[0].default_value == "__torch__.torch.classes.shop.Till"


@pytest.mark.parametrize(
    "name",
    [
        "__torch__",
        "__torch__.Till",
        "__torch__.torch.classes.Till",
        "__torch__.torch.classes.a.b.C",
    ],
)
def test_other_names_that_begin_so_are_refused(name):
    with pytest.raises(RuntimeError, match=r"write __torch__\.torch\.classes\.ns\.Name"):
        C.parse_schema(f"f({name} x) -> ()")
    with pytest.raises(errors.SchemaSyntaxError):
        parse_schema(f"f({name} x) -> ()", allow_typevars=True)


@pytest.mark.needs("across")
def test_an_operator_is_defined_with_a_class_in_pytorchs_spelling(registry):
    @md.register_class("shop.Till", registry=registry)
    class Till:
        pass

    with C.using(registry):
        m = C._dispatch_library("FRAGMENT", "shop", "")
        m.def_("count(__torch__.torch.classes.shop.Till t) -> int")
        handle = C._dispatch_find_schema_or_throw("shop::count", "")
        assert str(handle.schema()) == "shop::count(shop.Till t) -> int"
        m.reset()


@pytest.mark.parametrize("key", ["int?", "str[]", "(int, str)", "Dict(str, int)", "Scalar", "t"])
@pytest.mark.parametrize("form", ["f(Dict({}, int)[] d) -> ()", "f() -> (int, Dict({}, int))"])
def test_a_key_that_pytorchs_dict_does_not_have_is_refused_here_only(key, form):
    text = form.format(key)
    with pytest.raises(RuntimeError, match=r"no keys of type .*; the key is"):
        C.parse_schema(text, allow_typevars=True)
    assert parse_schema(text, allow_typevars=True)


PLAIN = (
    *("Tensor", "Scalar", "int", "SymInt", "float", "complex", "bool", "SymBool", "str", "Device"),
    *("Layout", "ScalarType", "MemoryFormat", "Generator", "Stream", "Storage", "QScheme", "Any"),
    *("Quantizer", "ConstQuantizerPtr", "DeviceIndex", "NoneType", "Capsule", "AnyClassType"),
    "AnyEnumType",
)


def a_type(pick, depth):
    kind = pick.randrange(12) if depth else 0
    if kind < 5:
        return pick.choice(PLAIN)
    if kind < 7:
        return a_type(pick, depth - 1) + pick.choice(("?", "[]"))
    if kind == 7:
        return f"({a_type(pick, depth - 1)}, {a_type(pick, depth - 1)})"
    if kind == 8:
        return f"{pick.choice(('Future', 'Await', 'RRef'))}({a_type(pick, depth - 1)})"
    return a_dict(pick, depth)


def a_dict(pick, depth):
    return f"Dict({a_type(pick, pick.choice((0, 0, depth - 1)))}, {a_type(pick, depth - 1)})"


def with_dicts(count):
    pick = random.Random("keys of Dict")
    for _ in range(count):
        types = [a_dict(pick, 3) + pick.choice(("", "", "?", "[]")), a_type(pick, 2)]
        pick.shuffle(types)
        yield f"ns::f({types[0]} a, {types[1]} b) -> {pick.choice(('()', a_type(pick, 2)))}"


@needs_torch
def test_2000_schemas_with_dicts_are_read_and_refused_as_in_pytorch():
    """But for two that PyTorch asserts about: an optional NoneType is a Union of one there."""
    import torch

    read, refused, differ = 0, 0, []
    for text in with_dicts(2000):
        theirs = ours = ""
        try:
            torch._C.parse_schema(text)
        except RuntimeError as error:
            theirs = str(error)
        try:
            C.parse_schema(text)
        except RuntimeError as error:
            ours = str(error)
        read += not theirs
        refused += bool(theirs)
        if bool(theirs) != bool(ours) and not ("INTERNAL ASSERT" in theirs and "NoneType?" in text):
            differ.append((text, theirs, ours))
    assert differ == []
    assert min(read, refused) > 400


# --- views ----------------------------------------------------------------------------------------


def test_a_schema_has_pytorchs_names():
    schema = C.parse_schema(
        "ns::f.out(Tensor x, int[2] k=[1, 2], *, Tensor(a!) out, str? s=None) -> Tensor(a!)"
    )
    assert (schema.name, schema.overload_name, schema.is_mutable) == ("ns::f", "out", True)
    x, k, out, s = schema.arguments
    assert [each.name for each in schema.arguments] == ["x", "k", "out", "s"]
    assert (k.default_value, k.N, x.N) == ([1, 2], 2, None)
    assert k.default_value is not k.default_value
    assert [each.has_default_value() for each in (x, k, out, s)] == [False, True, False, True]
    assert s.default_value is None is x.default_value
    assert [each.kwarg_only for each in (x, k, out, s)] == [False, False, True, True]
    assert [each.is_out for each in (x, k, out, s)] == [False, False, True, False]
    assert (out.is_write, out.alias_info.is_write, x.alias_info) == (True, True, None)
    assert out.alias_info.before_set == out.alias_info.after_set == {"a"}
    assert schema.returns[0].alias_info.before_set == out.alias_info.before_set
    assert (str(x.type), schema.returns[0].name) == ("Tensor", "")


def test_equal_schemas_are_equal():
    one, two = (C.parse_schema("f(Tensor x) -> Tensor") for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one.arguments == two.arguments
    assert {*one.arguments} == {*two.arguments}
    assert one != C.parse_schema("f(Tensor y) -> Tensor")
    assert one != "f(Tensor x) -> Tensor"
    assert one.arguments[0] != "Tensor x"
    assert repr(one) == "<FunctionSchema f(Tensor x) -> Tensor>"
    assert repr(one.arguments[0]) == "<Argument Tensor x>"
    assert repr(C.parse_schema("f(Tensor(a!) x) -> ()").arguments[0].alias_info) == (
        "<AliasInfo (a!)>"
    )


WRITES = {
    "Tensor(a!)[]": (True, set(), set()),
    "Tensor(a)[]": (False, set(), set()),
    "Tensor(a!)?[]": (True, set(), set()),
    "Tensor(a!)[]?": (True, set(), set()),
    "Tensor(a!)[][]": (True, set(), set()),
    "Tensor(a! -> b|c)": (True, {"a"}, {"b", "c"}),
    "Tensor[](a!)": (True, {"a"}, {"a"}),
    "Tensor(a)[](b!)": (True, {"b"}, {"b"}),
    "Tensor(a|b)?": (False, {"a", "b"}, {"a", "b"}),
    "Tensor(*)": (False, {"*"}, {"*"}),
    "Dict(str, int)(a!)": (True, {"a"}, {"a"}),
}


def alias_of(parse, type):
    schema = parse(f"f({type} x) -> ()")
    info = schema.arguments[0].alias_info
    assert info.is_write == schema.is_mutable == schema.arguments[0].is_write
    return info.is_write, info.before_set, info.after_set


@pytest.mark.parametrize("type", WRITES)
def test_a_list_is_written_to_where_its_elements_are(type):
    assert alias_of(C.parse_schema, type) == WRITES[type]


@needs_torch
@pytest.mark.parametrize("type", WRITES)
def test_pytorch_says_the_same_of_writes(type):
    import torch

    assert alias_of(torch._C.parse_schema, type) == WRITES[type]


@pytest.mark.parametrize("type", ["Dict(str, Tensor(a!))", "(int, Tensor(a!))", "Tensor(a!)[](b)"])
def test_a_write_inside_counts_where_pytorch_loses_it(type):
    assert alias_of(C.parse_schema, type)[0] is True
    if HAS_TORCH:
        import torch

        assert torch._C.parse_schema(f"f({type} x) -> ()").is_mutable is False


def told(schema):
    """All that a view says of a schema, but for types, whose classes differ."""

    def of(each):
        info = each.alias_info
        return (
            *(each.name, each.N, each.kwarg_only, each.is_out, each.is_write),
            *(each.has_default_value(), repr(each.default_value)),
            info and (info.is_write, info.before_set, info.after_set),
        )

    return (
        *(schema.name, schema.overload_name, schema.is_mutable),
        *(list(map(of, each)) for each in (schema.arguments, schema.returns)),
    )


ARGUMENTS = (
    *("Tensor {}", "Tensor? {}", "Tensor(a) {}", "Tensor(b!) {}", "Tensor(c!)[] {}", "int {}"),
    *("Tensor(d!)? {}", "Tensor(e! -> f) {}", "Tensor(g)[]? {}", "SymInt[3] {}", "str? {}"),
)
WITH_DEFAULTS = (
    *("int {}=3", "float {}=1.5", "int[2] {}=[1, 2]", "int[2] {}=7", "bool[] {}=[True]"),
    *("Tensor? {}=None", "SymInt {}=-1", "Scalar {}=1", "bool {}=False", "int[]? {}=None"),
    "str {}='a'",
)


@needs_torch
def test_1000_schemas_say_the_same_in_both():
    import torch

    pick = random.Random("views")
    for number in range(1000):
        items = [pick.choice(ARGUMENTS) for _ in range(pick.randrange(4))]
        items += [pick.choice(WITH_DEFAULTS) for _ in range(pick.randrange(3))]
        if pick.random() < 0.5:
            items += ["*", *(pick.choice(ARGUMENTS + WITH_DEFAULTS) for _ in range(2))]
        named = ", ".join(each.format(f"x{i}") for i, each in enumerate(items))
        returns = pick.choice(("()", "Tensor(a)", "(Tensor(b!) y, int)", "Tensor(c!)[]", "float"))
        text = f"ns::f{pick.choice(('', '.out'))}({named}) -> {returns}"
        assert told(C.parse_schema(text)) == told(torch._C.parse_schema(text)), (number, text)

"""The promises of meta values, and of a size that depends on data."""

from __future__ import annotations

import array
import itertools
import operator
import pickle

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.meta import MetaTensor, empty_like, fake_call
from mdispatch.schema.sizes import DynamicSize, new_size


class Array:
    """An array of a class that a user might write."""

    __dispatch_keys__ = ("CPU",)

    def __init__(self, *shape):
        self.shape = shape
        self.dtype = "f4"


# --- meta values ----------------------------------------------------------------------------------


def test_a_meta_value_carries_shape_dtype_and_device_and_nothing_else():
    x = MetaTensor((2, 3), "f4", "cuda:0")
    assert (x.shape, x.dtype, x.device, x.ndim, x.numel()) == ((2, 3), "f4", "cuda:0", 2, 6)
    assert MetaTensor([2, 3]).shape == (2, 3)
    assert (MetaTensor(()).ndim, MetaTensor(()).numel()) == (0, 1)
    assert not hasattr(x, "__dict__")


def test_it_dispatches_on_meta_as_a_meta_tensor_of_pytorch_does():
    keys = md.key_set_of(MetaTensor((1,)))
    assert keys == md.DispatchKeySet("Meta", "AutogradMeta", "ADInplaceOrView")
    assert keys.highest_priority() is md.DispatchKey.AutogradMeta


def test_it_reaches_autograd_where_there_is_a_kernel_and_the_fake_kernel_where_not(registry):
    library = md.Library("m", "DEF", registry=registry)
    library.define("f(Tensor x) -> str")
    library.impl("f", lambda x: "fake", "Meta")
    x = MetaTensor((1,))
    assert registry.ops.m.f(x) == "fake"
    library.impl("f", lambda x: "autograd", "Autograd")
    assert registry.ops.m.f(x) == "autograd"


def test_strides_are_those_of_a_contiguous_array_unless_given():
    assert MetaTensor((2, 3, 4)).strides == (12, 4, 1)
    assert MetaTensor((2, 0, 4)).strides == (4, 4, 1)
    assert MetaTensor(()).strides == ()
    assert MetaTensor((2, 3), strides=(1, 2)).strides == (1, 2)


def test_sizes_of_unknown_number_are_in_products_that_need_no_data():
    n, three = new_size("u0", 0, None), new_size("u1", 3, 3)
    assert MetaTensor((n, 2, 3)).strides == (6, 3, 1)
    assert MetaTensor((7, n, 1)).strides == (n, 1, 1)
    assert MetaTensor((2, three, 0)).strides == (3, 1, 1)
    assert MetaTensor((2, n, 3), strides=(1, n, 2)).strides == (1, n, 2)
    assert (MetaTensor((n,)).numel(), MetaTensor((1, n, 1)).numel()) == (n, n)
    assert (MetaTensor((n, 0)).numel(), MetaTensor((three, 2)).numel()) == (0, 6)


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (2, 1), (1, 3)])
def test_a_product_that_depends_on_data_is_refused_and_named(shape):
    n, m = new_size("u0", 0, 9), new_size("u1", 0, None)
    first, last = shape
    x = MetaTensor((first, n, last, m))
    with pytest.raises(errors.DataDependentError) as caught:
        x.numel()
    assert str(caught.value).startswith(
        f"numel() of MetaTensor(({first}, u0, {last}, u1)) depends on data, and there is no data "
        "here: it is a product with <dynamic size u0, from 0 to 9> and <dynamic size u1, 0 or more>"
    )
    assert "new_dynamic_size(min=, max=)" in str(caught.value)
    with pytest.raises(errors.DataDependentError, match=r"strides of .*product with .*u0.* and "):
        _ = x.strides
    if last != 1:
        for x in (MetaTensor((n, last)), MetaTensor((5, last, n))):
            with pytest.raises(errors.DataDependentError, match="numel"):
                x.numel()
        with pytest.raises(errors.DataDependentError, match="strides"):
            _ = MetaTensor((5, last, n)).strides


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shape": 5}, r"for one dimension \(5,\)"),
        ({"shape": None}, "tuple of sizes"),
        ({"shape": "23"}, "is neither a size"),
        ({"shape": {2, 3}}, "a set is neither a size"),
        ({"shape": (2, 1.0)}, "1.0 is not a size"),
        ({"shape": (True,)}, "True is not a size"),
        ({"shape": (2, -1)}, "less than 0"),
        ({"shape": (2, 3), "strides": (1,)}, "one for each dimension"),
        ({"shape": (2,), "device": 0}, "it must be a name"),
        ({"shape": (2,), "device": ""}, "it must be a name"),
    ],
)
def test_what_is_no_shape_stride_or_device_is_refused(arguments, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        MetaTensor(**arguments)


def test_it_never_changes():
    x = MetaTensor((2,))
    with pytest.raises(AttributeError, match="cannot be changed"):
        x.shape = (3,)
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del x.dtype
    assert x.shape == (2,)


def test_values_are_equal_by_shape_dtype_and_device():
    x = MetaTensor((2, 3), "f4")
    assert x == MetaTensor([2, 3], "f4", strides=(1, 2))
    assert hash(x) == hash(MetaTensor([2, 3], "f4"))
    others = [
        *(MetaTensor((3, 2), "f4"), MetaTensor((2, 3, 1), "f4"), MetaTensor((2, 3), "f8")),
        *(MetaTensor((2, 3), "f4", "cuda:0"), (2, 3), None),
    ]
    for other in others:
        assert x != other


def test_a_shape_of_unknown_size_compares_without_asking_for_data():
    n, m = new_size("u0", 0, None), new_size("u0", 0, None)
    assert MetaTensor((n,)) == MetaTensor((n,))
    assert MetaTensor((n,)) != MetaTensor((m,))
    assert MetaTensor((n,)) != MetaTensor((3,))


def test_it_comes_out_of_a_pickle_as_it_was():
    n, m = new_size("u0", 1, 9), new_size("u1", 0, None)
    x = MetaTensor((n, m, 3), "f4", "cuda:1", strides=(1, 2, n))
    y = pickle.loads(pickle.dumps(x))
    assert (y, y.strides, repr(y)) == (x, x.strides, repr(x))
    assert [(str(size), size.min, size.max) for size in y.shape[:2]] == [
        ("u0", 1, 9),
        ("u1", 0, None),
    ]


def test_its_repr_says_what_is_not_usual():
    assert repr(MetaTensor((2,))) == "MetaTensor((2,))"
    n = new_size("u0", 0, None)
    x = MetaTensor((n, 2), "f4", "cuda:0", strides=(2, 1))
    assert repr(x) == "MetaTensor((u0, 2), 'f4', device='cuda:0', strides=(2, 1))"


def test_new_empty_keeps_dtype_and_device_unless_given():
    x = MetaTensor((2, 3), "f4", "cuda:0")
    assert x.new_empty((5,)) == MetaTensor((5,), "f4", "cuda:0")
    assert x.new_empty((5,), dtype=None, device="cpu") == MetaTensor((5,))


def test_empty_like_takes_whatever_has_a_shape():
    assert empty_like(Array(2, 3)) == MetaTensor((2, 3), "f4")
    assert empty_like(Array(2, 3), dtype="i8") == MetaTensor((2, 3), "i8")
    assert empty_like(MetaTensor((2,), "f4", "xpu:0"), device="cpu") == MetaTensor((2,), "f4")


def test_a_sum_of_two_has_the_shape_that_both_are_broadcast_to():
    x, n = MetaTensor((2, 3), "f4"), new_size("u0", 0, None)
    assert x + x == x
    assert MetaTensor((3,), "f4") + x == x
    assert MetaTensor((2, 1), "f4") + MetaTensor((1, n), "f4") == MetaTensor((2, n), "f4")
    with pytest.raises(errors.InvalidArgumentError, match=r"\(2, 3\) and \(2, 4\)"):
        x + MetaTensor((2, 4))
    with pytest.raises(errors.InvalidArgumentError, match="u0 and 3 are not known to be equal"):
        MetaTensor((n,)) + MetaTensor((3,))
    with pytest.raises(TypeError):
        x + 1


# --- of other values ------------------------------------------------------------------------------


def test_of_a_buffer_comes_its_shape_and_format():
    x = MetaTensor.of(array.array("d", [1, 2, 3]))
    assert (x.shape, x.dtype, x.device, x.strides) == ((3,), "d", "cpu", (1,))
    view = memoryview(bytes(24)).cast("i", (2, 3))
    assert MetaTensor.of(view) == MetaTensor((2, 3), "i")
    assert MetaTensor.of(view).strides == (3, 1)
    assert MetaTensor.of(memoryview(bytes(6))[::2]).strides == (2,)


def test_of_an_array_comes_what_it_says_of_itself():
    class Elsewhere(Array):
        device = "cuda:1"

    class Dlpack(Array):
        def __dlpack_device__(self):
            return 2, 3

    class Strided(Array):
        itemsize = 4
        strides = (4, 8)

    class Odd(Strided):
        strides = (6, 4)

    assert MetaTensor.of(Array(2)) == MetaTensor((2,), "f4")
    assert MetaTensor.of(Elsewhere(2)).device == "cuda:1"
    assert MetaTensor.of(Dlpack(2)).device == "cuda:3"
    assert MetaTensor.of(Strided(2, 2)).strides == (1, 2)
    assert MetaTensor.of(Odd(2, 2)).strides == (2, 1)
    x = MetaTensor((1,))
    assert MetaTensor.of(x) is x


def dlpack(shape, code, bits, *, lanes=1, strides=None, name=b"dltensor"):
    """A bare DLPack object, made as a C library makes one."""
    ctypes = pytest.importorskip("ctypes", reason="ctypes does not load in this interpreter")
    from mdispatch.authoring.dlpack import _Tensor

    def listed(numbers):
        return None if numbers is None else (ctypes.c_int64 * len(numbers))(*numbers)

    tensor = _Tensor(None, 2, 1, len(shape), code, bits, lanes, listed(shape), listed(strides), 0)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    held = ctypes.create_string_buffer(name)

    class Bare:
        kept = tensor, held

        def __dlpack__(self):
            return make(ctypes.addressof(tensor), ctypes.addressof(held), None)

        def __dlpack_device__(self):
            return 2, 1

    return Bare()


def test_of_a_bare_dlpack_object_comes_what_its_capsule_says():
    x = MetaTensor.of(dlpack((2, 3), 2, 32, strides=(1, 2)))
    assert (x, x.strides) == (MetaTensor((2, 3), "float32", "cuda:1"), (1, 2))
    assert MetaTensor.of(dlpack((5,), 4, 16)).dtype == "bfloat16"
    assert MetaTensor.of(dlpack((5,), 6, 8)).dtype == "bool"
    assert MetaTensor.of(dlpack((), 1, 8, lanes=4)) == MetaTensor((), "uint8x4", "cuda:1")
    with pytest.raises(errors.InvalidArgumentError, match="capsule cannot be read"):
        MetaTensor.of(dlpack((5,), 6, 8, name=b"other"))


def test_of_a_numpy_array():
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    x = MetaTensor.of(numpy.zeros((2, 3), "f4").T)
    assert (x.shape, x.strides, x.dtype, x.device) == ((3, 2), (1, 3), numpy.dtype("f4"), "cpu")
    assert pickle.loads(pickle.dumps(x)) == x


@pytest.mark.parametrize("value", [None, 3, "text", Array, object()])
def test_what_tells_no_shape_has_no_meta_value(value):
    with pytest.raises(errors.InvalidArgumentError, match="its shape is not known"):
        MetaTensor.of(value)


def test_a_fake_call_replaces_the_tensors_and_nothing_else(registry):
    library = md.Library("m", "DEF", registry=registry)
    library.define("f(Tensor x, Tensor[] more, int n, *, Tensor? y=None) -> Any")
    library.impl("f", lambda x, more, n, *, y: (x, more, n, y), "Meta")
    x, y = Array(2), Array(3)
    found = fake_call(registry.ops.m.f, x, [y, x], 4, y=y)
    meta_x, meta_y = MetaTensor.of(x), MetaTensor.of(y)
    assert found == (meta_x, [meta_y, meta_x], 4, meta_y)
    seen = fake_call(lambda *args, **kwargs: (args, kwargs), (x, 1), {"k": [y]}, s="text")
    assert seen == (((meta_x, 1), {"k": [meta_y]}), {"s": "text"})


# --- sizes that depend on data --------------------------------------------------------------------


OPERATORS = ["+", "-", "*", "//", "%"]


@pytest.mark.parametrize("sign", OPERATORS)
def test_to_compute_with_a_size_is_refused_and_says_what_to_do(sign):
    n, m = new_size("u0", 0, 6), new_size("u1", 3, 3)
    for text, says in (
        (f"n {sign} 2", f"u0 {sign} 2 depends on data, and there is no data here\n  u0 is from 0"),
        (f"2 {sign} n", f"2 {sign} u0 depends on data"),
        (f"n {sign} n", f"u0 {sign} u0 depends on data"),
        (f"n {sign} m", f"u0 {sign} u1 depends on data"),
        (f"m {sign} 0", f"u1 {sign} 0 depends on data, and there is no data here\n  u1 is from 3"),
    ):
        with pytest.raises(errors.DataDependentError) as caught:
            eval(text, {"n": n, "m": m})
        assert str(caught.value).startswith(says)
        assert "new_dynamic_size(min=, max=)" in str(caught.value)
    with pytest.raises(errors.DataDependentError, match="-u0 depends on data"):
        _ = -n
    with pytest.raises(errors.DataDependentError, match=r"0 \+ u0 depends on data"):
        sum([n, 2])


def test_a_size_is_equal_to_itself_and_to_no_other():
    n, m = new_size("u0", 0, None), new_size("u0", 0, None)
    again = pickle.loads(pickle.dumps(n))
    assert n == n == again
    assert hash(n) == hash(again)
    assert n != m
    assert len({n, m, again}) == 2
    assert n <= again
    assert n >= n
    assert not n < again
    assert not n > n


def test_sizes_of_which_one_number_is_left_are_equal_to_it_and_to_each_other():
    n, m, k = new_size("u0", 3, 3), new_size("u1", 3, 3), new_size("u2", 0, None)
    assert n == 3 == m
    assert n == m
    assert n != new_size("u3", 4, 4)
    assert len({n, m, 3}) == len({MetaTensor((n,)), MetaTensor((m,)), MetaTensor((3,))}) == 1
    assert MetaTensor((k,)) != MetaTensor((3,))


def test_bounds_answer_what_they_decide():
    n, m, k = new_size("u0", 2, 10), new_size("u1", 10, None), new_size("u2", 11, 12)
    assert n >= 2
    assert n <= 10
    assert not n < 2
    assert n > 1
    assert n < 11
    assert n != 11
    assert n != 10**400
    assert n < 10**400
    assert n > -(10**400)
    assert n
    assert n <= m
    assert not n > m
    assert n < k
    assert k > n
    assert not k <= n
    assert int(new_size("u3", 3, 3)) == 3
    assert not new_size("u4", 0, 0)


@pytest.mark.parametrize("other", ["a number", "a size"])
def test_an_answer_holds_for_every_number_within_the_bounds_and_all_that_hold_are_given(other):
    ranges = list(itertools.combinations_with_replacement(range(5), 2))
    for (low, high), (first, last) in itertools.product(ranges, ranges):
        if other == "a number" and first != last:
            continue
        left = new_size("u0", low, high)
        right = first if other == "a number" else new_size("u1", first, last)
        for holds in (operator.lt, operator.le, operator.gt, operator.ge):
            pairs = itertools.product(range(low, high + 1), range(first, last + 1))
            possible = {holds(a, b) for a, b in pairs}
            if len(possible) == 1:
                assert {holds(left, right)} == possible
            else:
                with pytest.raises(errors.DataDependentError):
                    holds(left, right)


def test_everything_else_needs_data_and_says_so():
    n, m = new_size("u0", 0, 9), new_size("u1", 0, None)
    asked = [
        *(lambda: n == 5, lambda: n != 0, lambda: n < 3, lambda: n <= 3, lambda: n < m),
        *(lambda: n > 3, lambda: n >= 9, lambda: n > 3, lambda: n >= m),
        *(
            lambda: bool(n),
            lambda: [1, 2, 3][n],
            lambda: range(n),
            lambda: int(n),
            lambda: max(n, 1),
        ),
    ]
    for ask in asked:
        with pytest.raises(errors.DataDependentError, match=r"u0.*depends on data"):
            ask()
    with pytest.raises(errors.DataDependentError, match="from 0 to 9\nWrite the kernel so"):
        bool(n)
    with pytest.raises(errors.DataDependentError, match="0 or more"):
        bool(m)


def test_sizes_refuse_what_ints_refuse():
    n = new_size("u0", 0, None)
    for wrong in (lambda: n + "a", lambda: n * 1.5, lambda: 1.5 // n, lambda: n % None):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError):
        sorted([n, "a"])
    assert n != "a"


def test_sizes_are_made_by_contexts_and_never_change():
    with pytest.raises(errors.InvalidArgumentError, match="new_dynamic_size"):
        DynamicSize()
    n = new_size("u0", 0, None)
    with pytest.raises(AttributeError, match="cannot be changed"):
        n.max = 3
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del n.min


def test_a_size_admits_the_numbers_within_its_bounds():
    n = new_size("u0", 2, 10)
    assert [k for k in range(-1, 30) if n.admits(k)] == list(range(2, 11))
    assert new_size("u1", 0, None).admits(10**400)
    assert not n.admits("2")


# --- as arguments ---------------------------------------------------------------------------------


@pytest.fixture
def take(registry):
    """Calls an operator with arguments of these types, and returns what its kernel got."""
    library = md.Library("m", "DEF", registry=registry)

    def call(types, *args):
        name = f"f{len(registry.operators())}"
        names = ", ".join(f"{each} a{i}" for i, each in enumerate(types.split()))
        library.define(f"{name}({names}) -> Any")
        library.impl(name, lambda *args: args)
        return getattr(registry.ops.m, name)(*args)

    return call


def test_operators_take_a_dynamic_size_for_symint_only(take):
    n, m = new_size("u0", 0, None), new_size("u1", 0, 9)
    assert take("SymInt SymInt? SymInt[]", n, m, [n, 3]) == (n, m, [n, 3])
    assert take("SymInt[2]", n) == ([n, n],)
    assert take("SymInt? SymInt[]", None, (1, n)) == (None, [1, n])
    for types, value in (("int", n), ("int[]", [n]), ("float", n), ("Scalar", n), ("bool", n)):
        with pytest.raises(errors.ArgumentError, match=r"(not|element 0 is) DynamicSize"):
            take(types, value)


def test_a_symint_is_still_an_int_for_everything_else(take):
    class Index:
        def __index__(self):
            return 7

    assert take("SymInt SymInt SymInt", 3, True, Index()) == (3, 1, 7)
    with pytest.raises(errors.ArgumentError):
        take("SymInt", 1.0)

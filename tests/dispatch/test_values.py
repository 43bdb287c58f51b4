"""Which dispatch keys an object carries, and how they are found."""

from __future__ import annotations

import enum
import gc
import subprocess
import sys
import sysconfig
import threading
import weakref

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import values

classes_die = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and sys.version_info < (3, 14),
    reason="free-threaded 3.13 makes every class immortal once a thread was started",
)

NONE = md.DispatchKeySet()


def keys(*names):
    return md.DispatchKeySet(*names)


def plain():
    """A new class that was never registered or asked about."""

    class Plain:
        pass

    return Plain


# --- by registration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("CUDA", keys("CUDA")),
        (md.DispatchKey.CUDA, keys("CUDA")),
        (("CPU", "AutogradCPU"), keys("CPU", "AutogradCPU")),
        (["CPU", md.DispatchKey.Sparse], keys("SparseCPU", "CPU")),
        ({"CPU"}, keys("CPU")),
        (frozenset(["CPU"]), keys("CPU")),
        ((name for name in ("CPU", "Meta")), keys("CPU", "Meta")),
        (keys("CPU", "Conjugate"), keys("CPU", "Conjugate")),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_instances_of_a_registered_type_carry_its_keys(given, expected):
    cls = plain()
    md.register_type(cls, given)
    assert md.key_set_of(cls()) == expected
    assert values.is_tensor(cls())


def test_what_nobody_knows_carries_no_keys():
    for value in (None, 1, 1.5, "CPU", b"", [], {}, object(), plain()(), plain(), len, sys, type):
        assert md.key_set_of(value) == NONE, value
        assert not values.is_tensor(value)


def test_types_of_the_standard_library_can_be_registered():
    class Colour(enum.Enum):
        RED = 1

    cls = type("Sub", (bytearray,), {})
    md.register_type(cls, "CPU")
    md.register_type(Colour, "Meta")
    assert md.key_set_of(cls(b"x")) == keys("CPU")
    assert md.key_set_of(Colour.RED) == keys("Meta")


def test_subclasses_carry_the_keys_of_the_nearest_registered_base():
    base = plain()
    middle = type("Middle", (base,), {})
    leaf = type("Leaf", (middle,), {})
    md.register_type(base, "CPU")
    assert md.key_set_of(leaf()) == keys("CPU")
    md.register_type(middle, "CUDA")
    assert md.key_set_of(leaf()) == md.key_set_of(middle()) == keys("CUDA")
    assert md.key_set_of(base()) == keys("CPU")
    md.register_type(leaf, "Meta")
    assert [md.key_set_of(cls()) for cls in (base, middle, leaf)] == [
        keys("CPU"),
        keys("CUDA"),
        keys("Meta"),
    ]


def test_of_several_bases_the_first_in_the_resolution_order_counts():
    one, two = plain(), plain()
    md.register_type(one, "CPU")
    md.register_type(two, "CUDA")
    assert md.key_set_of(type("Both", (one, two), {})()) == keys("CPU")
    assert md.key_set_of(type("Both", (two, one), {})()) == keys("CUDA")


def test_a_type_registered_again_carries_the_new_keys_also_in_subclasses_already_seen():
    base = plain()
    leaf = type("Leaf", (base,), {})
    with md.register_type(base, "CPU"):
        assert md.key_set_of(leaf()) == keys("CPU")
    assert md.key_set_of(leaf()) == keys()
    md.register_type(base, "CUDA")
    assert md.key_set_of(leaf()) == md.key_set_of(base()) == keys("CUDA")


def test_a_class_is_no_instance_of_itself():
    cls = plain()
    md.register_type(cls, "CPU")
    assert not values.is_tensor(cls)


def test_a_registration_wins_over_what_an_object_says_of_itself():
    cls = type(
        "Speaking", (), {"__dispatch_keys__": "CUDA", "__dlpack_device__": lambda self: (8, 0)}
    )
    assert md.key_set_of(cls()) == keys("CUDA")
    md.register_type(cls, "Meta")
    assert md.key_set_of(cls()) == keys("Meta")


@pytest.mark.parametrize(
    "given",
    [
        "GPU",
        "",
        "Autograd",
        "Undefined",
        "Sparse",
        (),
        [],
        set(),
        NONE,
        None,
        5,
        49,
        b"CPU",
        ...,
        ("CPU", 5),
        "CPU,CUDA",
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_keys_that_are_none_are_refused_and_the_type_stays_as_it_was(given):
    cls = plain()
    md.register_type(cls, "CPU")
    with pytest.raises(errors.InvalidKeyError):
        md.register_type(cls, given)
    assert md.key_set_of(cls()) == keys("CPU")


@pytest.mark.parametrize("given", [None, 5, "CPU", ..., len], ids=repr)
def test_what_is_no_class_is_refused(given):
    with pytest.raises(errors.InvalidArgumentError, match="needs a class"):
        md.register_type(given, "CPU")


@pytest.mark.thorough
@pytest.mark.dear
@classes_die
def test_a_registered_type_dies_with_its_last_reference():
    cls = plain()
    sub = type("Sub", (cls,), {})
    md.register_type(cls, "CPU")
    assert md.key_set_of(sub()) == keys("CPU")
    gone = weakref.ref(cls), weakref.ref(sub)
    del cls, sub
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.thorough
@pytest.mark.dear
@classes_die
def test_registered_types_are_counted_out_when_they_die():
    gc.collect()  # classes of other tests
    before = len(values._types._registered)
    for _ in range(50):
        md.register_type(plain(), "CPU")
    gc.collect()
    assert len(values._types._registered) == before


def test_a_look_up_during_a_reregistration_does_not_keep_the_old_keys():
    """Another thread registers the type again after the look-up has found its keys and before it
    has kept them.
    """
    cls = plain()
    types = values.TypeKeys()
    first = types.register(cls, keys("CPU").raw)

    class Interrupted(weakref.WeakKeyDictionary):
        def get(self, key, default=None):
            raw = super().get(key, default)
            if raw == keys("CPU").raw:
                first.close()
                types.register(cls, keys("CUDA").raw)
            return raw

    types._registered = Interrupted(types._registered)
    assert types.raw_of(cls()) == keys("CPU").raw
    assert types.raw_of(cls()) == keys("CUDA").raw


# --- one type, one set of keys --------------------------------------------------------------------


def test_a_type_is_registered_for_one_thing_and_the_refusal_names_both_places():
    cls = plain()
    md.register_type(cls, ("CPU", "AutogradCPU"))
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        md.register_type(cls, "CUDA")
    error = caught.value
    name = f"{__name__}.plain.<locals>.Plain"
    assert (error.kind, error.name, error.key) == ("type", name, "CPU, AutogradCPU")
    here = f"{__file__}:"
    assert error.first.startswith(here)
    assert error.second.startswith(here)
    assert error.first != error.second
    for told in (error.first, error.second, "CUDA"):
        assert told in str(error)
    assert md.key_set_of(cls()) == keys("CPU", "AutogradCPU")


def test_a_type_may_be_registered_for_the_same_thing_by_many_and_lasts_as_long_as_the_last():
    cls = plain()
    first = md.register_type(cls, "CPU")
    second = md.register_type(cls, ["CPU"])
    first.close()
    first.close()
    assert md.key_set_of(cls()) == keys("CPU")
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        md.register_type(cls, "Meta")
    assert caught.value.first == second.where
    second.close()
    assert md.key_set_of(cls()) == keys()
    md.register_type(cls, "Meta")
    assert md.key_set_of(cls()) == keys("Meta")


def test_a_line_that_runs_often_registers_a_type_once():
    cls = plain()
    handles = {md.register_type(cls, "CPU") for _ in range(100)}
    assert len(handles) == 1


def test_a_subclass_may_be_registered_for_something_else():
    cls = plain()
    leaf = type("Leaf", (cls,), {})
    md.register_type(cls, "CPU")
    md.register_type(leaf, "CUDA")
    assert (md.key_set_of(cls()), md.key_set_of(leaf())) == (keys("CPU"), keys("CUDA"))


RUN = """
import mdispatch as md
{blank}md.register_type(Given, "{key}")
{more}
"""


def run_module(cls, key, *, name="cells", blank="", more=""):
    """Runs a module, or the cell of a notebook, that registers the class by its top-level code."""
    text = RUN.format(key=key, blank=blank, more=more)
    exec(compile(text, f"{name}.py", "exec"), {"__name__": name, "Given": cls})


def test_a_module_that_runs_again_replaces_what_it_registered():
    cls = plain()
    run_module(cls, "CPU")
    run_module(cls, "CUDA")
    assert md.key_set_of(cls()) == keys("CUDA")
    run_module(cls, "Meta", blank="\n\n")
    assert md.key_set_of(cls()) == keys("Meta")
    assert len(values._types._handles[cls]) == 1


def test_another_module_or_the_same_run_replaces_nothing():
    cls = plain()
    run_module(cls, "CPU")
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        run_module(cls, "CUDA", name="others")
    assert (caught.value.first, caught.value.second) == ("cells.py:3", "others.py:3")
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        run_module(cls, "CPU", more='md.register_type(Given, "CUDA")')
    assert (caught.value.first, caught.value.second) == ("cells.py:3", "cells.py:4")
    assert md.key_set_of(cls()) == keys("CPU")


def test_of_threads_that_register_a_type_for_different_things_one_wins():
    for _ in range(20):
        cls = plain()
        barrier = threading.Barrier(4)
        won, lost = [], []

        def register(key, cls=cls, barrier=barrier, won=won, lost=lost):
            barrier.wait(limit(30))
            try:
                md.register_type(cls, key)
                won.append(key)
            except errors.DuplicateRegistrationError:
                lost.append(key)

        names = ("CPU", "CUDA", "Meta", "XPU")
        threads = [threading.Thread(target=register, args=(key,)) for key in names]
        for each in threads:
            each.start()
        for each in threads:
            each.join(limit(30))
        assert (len(won), len(lost)) == (1, 3)
        assert md.key_set_of(cls()) == keys(*won)


# --- by attribute ---------------------------------------------------------------------------------

FORMS = {
    "name": "CUDA",
    "key": md.DispatchKey.CUDA,
    "tuple": ("CUDA", "AutogradCUDA"),
    "list": [md.DispatchKey.CUDA],
    "set": {"CUDA"},
    "frozenset": frozenset(["CUDA", "Conjugate"]),
    "key set": keys("CUDA", "SparseCUDA"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_object_carries_the_keys_it_names_in_every_form(form):
    given = FORMS[form]
    expected = given if isinstance(given, md.DispatchKeySet) else keys(given)

    class Method:
        def __dispatch_keys__(self):
            return given

    class Property:
        @property
        def __dispatch_keys__(self):
            return given

    class Static:
        __dispatch_keys__ = staticmethod(lambda: given)

    instance = plain()()
    instance.__dispatch_keys__ = given
    in_class = type("InClass", (), {"__dispatch_keys__": given})()
    in_base = type("InBase", (type(in_class),), {})()
    for value in (instance, in_class, in_base, Method(), Property(), Static()):
        assert md.key_set_of(value) == expected
        assert values.is_tensor(value)


def test_the_keys_of_an_object_may_change():
    value = plain()()
    value.__dispatch_keys__ = "CPU"
    assert md.key_set_of(value) == keys("CPU")
    value.__dispatch_keys__ = "CUDA"
    assert md.key_set_of(value) == keys("CUDA")
    del value.__dispatch_keys__
    assert md.key_set_of(value) == NONE


def test_none_as_keys_means_that_the_object_carries_none():
    assert not values.is_tensor(type("Off", (), {"__dispatch_keys__": None})())


def test_a_class_with_keys_for_its_instances_carries_none_itself():
    cls = type(
        "InClass", (), {"__dispatch_keys__": "CPU", "__dlpack_device__": lambda self: (1, 0)}
    )
    assert md.key_set_of(cls) == NONE


@pytest.mark.parametrize(
    "given", [5, 1.5, b"CPU", ..., {"CPU": 1}, "GPU", ("CPU", "GPU"), ("CPU", 5), [None]], ids=repr
)
def test_keys_of_an_object_that_are_none_are_told_with_its_type(given, registry):
    class Wrong:
        __dispatch_keys__ = given

    with pytest.raises(errors.InvalidKeyError) as caught:
        md.key_set_of(Wrong())
    assert isinstance(caught.value, errors.MdispatchError)
    md.register_op("s::f(Tensor x) -> str", registry=registry)(lambda x: "ran")
    with pytest.raises(errors.InvalidKeyError):
        registry.ops.s.f(Wrong())


def test_what_an_objects_own_code_raises_passes_through():
    class OwnError(Exception):
        pass

    class Raising:
        def __dispatch_keys__(self):
            raise OwnError

    class RaisingDevice:
        def __dlpack_device__(self):
            raise OwnError

    for value in (Raising(), RaisingDevice()):
        with pytest.raises(OwnError):
            md.key_set_of(value)


# --- by DLPack ------------------------------------------------------------------------------------


class OnDevice:
    def __init__(self, *pair):
        self.pair = pair

    def __dlpack_device__(self):
        return self.pair


class Kind(enum.IntEnum):
    """As NumPy and PyTorch return it."""

    CUDA = 2


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (1, "CPU"),
        (2, "CUDA"),
        (Kind.CUDA, "CUDA"),
        (3, "CPU"),
        (7, "Vulkan"),
        (8, "MPS"),
        (10, "HIP"),
        (11, "CPU"),
        (12, "PrivateUse1"),
        (13, "CUDA"),
        (14, "XPU"),
        (17, "MAIA"),
    ],
)
def test_dlpacks_device_types_are_the_keys_whose_kernels_work_there(kind, key):
    for number in (0, 3):
        assert md.key_set_of(OnDevice(kind, number)) == keys(key)


@pytest.mark.parametrize("kind", [0, -1, 4, 9, 15, 99, 2**70])
def test_a_device_type_without_a_key_is_told(kind):
    with pytest.raises(errors.InvalidKeyError, match="register_type") as caught:
        md.key_set_of(OnDevice(kind, 0))
    assert caught.value.key == kind


@pytest.mark.parametrize("pair", [(), ("cpu", 0), (None, 0), (1.5, 0), ([1], 0)], ids=repr)
def test_what_is_no_device_is_told(pair):
    with pytest.raises(errors.InvalidKeyError, match=r"OnDevice\.__dlpack_device__"):
        md.key_set_of(OnDevice(*pair))
    device = OnDevice()
    device.pair = 7
    with pytest.raises(errors.InvalidKeyError, match="DLPack"):
        md.key_set_of(device)


def test_an_objects_own_keys_win_over_its_device():
    value = OnDevice(1, 0)
    value.__dispatch_keys__ = ("CPU", "AutogradCPU")
    assert md.key_set_of(value) == keys("CPU", "AutogradCPU")


def test_an_object_whose_class_has_a_device_is_a_tensor_without_being_asked():
    class Raising:
        def __dlpack_device__(self):
            raise OSError

    class NotAnyMore(OnDevice):
        __dlpack_device__ = None

    class Class(type):
        def __dlpack_device__(cls):
            return 1, 0

    assert values.is_tensor(Raising())
    assert values.is_tensor(OnDevice(0, 0))
    assert not values.is_tensor(NotAnyMore())
    assert not values.is_tensor(Class("Made", (), {}))


def test_arrays_of_numpy_are_on_the_cpu():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed here")
    assert md.key_set_of(numpy.zeros(3)) == keys("CPU")


# --- without imports (tensors of PyTorch: test_torch_keys.py) -------------------------------------


def test_a_pytorch_that_may_not_be_imported_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert md.key_set_of(OnDevice(1, 0)) == keys("CPU")


QUIET = """
import sys
import mdispatch as md

class Device:
    def __dlpack_device__(self):
        return 1, 0

class Keys:
    __dispatch_keys__ = "CUDA"

registry = md.Registry.create()
md.register_op("s::f(Tensor x) -> str", registry=registry)(lambda x: "ran")
md.register_type(bytearray, "CPU")
registry.ops.s.f(Keys())  # loads what calls need
before = set(sys.modules)
for value in (Device(), Keys(), bytearray(), 1, None, [], object()):
    md.key_set_of(value)
for value in (Device(), Keys(), bytearray()):
    registry.ops.s.f(value)
registry.close()
print(sorted(set(sys.modules) - before), {"torch", "numpy", "cupy", "jax"} & set(sys.modules))
"""


def test_nothing_is_imported_to_find_out_what_an_object_is():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(100),
    )
    assert (done.stdout, done.stderr) == ("[] set()\n", "")


def test_the_error_for_what_seems_to_be_an_array_names_the_way_in(registry):
    class Frame:
        shape = (2, 2)

        def __array__(self, dtype=None):
            raise AssertionError("nobody asks for it")

    class Column:
        def __arrow_c_array__(self):
            raise AssertionError("nobody asks for it")

    lib = md.Library("n", "DEF", registry=registry)
    lib.define("f(Tensor x, Tensor[]? more=None) -> Tensor")
    f = registry.ops.n.f
    for given, name, array in ((Frame(), "Frame", True), (Column(), "Column", False)):
        for arguments in ((given,), (OnDevice(1, 0), [given])):
            with pytest.raises(errors.ArgumentError) as caught:
                f(*arguments)
            last = str(caught.value).rpartition("\n")[2]
            assert last.startswith("Register its class with the key whose kernels take it: ")
            assert f'{name}, "CPU")' in last
            assert ("hand over a NumPy array" in last) is array
    for other in (3, "text", [1], object(), Frame):
        with pytest.raises(errors.ArgumentError) as caught:
            f(other)
        assert "register_type" not in str(caught.value)

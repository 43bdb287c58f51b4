"""A call that was made before is made again at once, and never where anything has changed since."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import sysconfig
import threading

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.call_c import turn

pytestmark = pytest.mark.shared

WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
classes_die = pytest.mark.skipif(
    WITHOUT_GIL and sys.version_info < (3, 14),
    reason="free-threaded 3.13 makes every class immortal once a thread was started",
)


@pytest.fixture(params=["c", "python"])
def way(request):
    """By both ways: what one of them keeps from a call before, the other has to agree with."""
    turn(request.param == "c")
    yield request.param
    turn(os.environ.get("MDISPATCH_CALLS") != "python")


def cpu_class(*bases, **body):
    cls = type("Local", bases, body)
    md.register_type(cls, "CPU")
    return cls


@pytest.fixture
def f(registry, lib, way):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "CPU", "CPU")
    lib.impl("f", lambda x: "CUDA", "CUDA")
    return registry.ops.s.f.default


@pytest.fixture
def same(registry, lib, way):
    lib.define("same(Any x) -> Tensor")
    lib.impl("same", lambda x: x() if callable(x) else x, "CompositeExplicitAutograd")
    return registry.ops.s.same.default


def handled(cls, op, types, args, kwargs):
    return "handled"


def called(f, *args):
    """What a call gives that has been made before."""
    for _ in range(3):
        answer = f(*args)
    return answer


def test_a_class_that_gets_and_loses_a_handler(f):
    cls = cpu_class()
    for _ in range(3):
        assert called(f, cls()) == "CPU"
        cls.__md_dispatch__ = classmethod(handled)
        assert called(f, cls()) == "handled"
        del cls.__md_dispatch__
    assert called(f, cls()) == "CPU"


def test_a_base_that_gets_a_handler(f):
    base = type("Base", (), {})
    cls = cpu_class(base)
    assert called(f, cls()) == "CPU"
    base.__md_dispatch__ = classmethod(handled)
    assert called(f, cls()) == "handled"


def test_a_class_that_gets_other_bases(f):
    class Plain:
        pass

    class Cuda:
        pass

    md.register_type(Cuda, "CUDA")
    cls = type("Local", (cpu_class(),), {})
    assert called(f, cls()) == "CPU"
    cls.__bases__ = (Cuda,)
    assert called(f, cls()) == "CUDA"
    cls.__bases__ = (Plain,)
    with pytest.raises(errors.ArgumentError):
        f(cls())


def test_a_value_that_gets_another_class(f):
    one, other = cpu_class(), type("Other", (), {})
    md.register_type(other, "CUDA")
    value = one()
    assert called(f, value) == "CPU"
    value.__class__ = other
    assert called(f, value) == "CUDA"


def test_a_type_that_is_registered_and_no_longer(f):
    cls = type("Local", (), {})
    for _ in range(3):
        for name in ("CPU", "CUDA"):
            with md.register_type(cls, name):
                assert called(f, cls()) == name
            with pytest.raises(errors.ArgumentError):
                f(cls())


def test_a_class_whose_tags_are_used_up(f):
    """CPython 3.13 gives a class a thousand of them."""
    cls = cpu_class()
    for i in range(1200):
        cls.changed = i
        assert f(cls()) == "CPU"
    cls.__md_dispatch__ = classmethod(handled)
    assert called(f, cls()) == "handled"
    del cls.__md_dispatch__
    assert called(f, cls()) == "CPU"


@pytest.mark.thorough
@pytest.mark.dear
@classes_die
def test_classes_at_one_address(f, same):
    addresses, met = set(), 0
    gc.collect()
    gc.freeze()  # then the collections below have little to look at
    for i in range(60):
        cls = type("Passing", (), {})
        met += id(cls) in addresses
        addresses.add(id(cls))
        if i % 3 < 2:
            name = ("CPU", "CUDA")[i % 3]
            md.register_type(cls, name)
            assert called(f, cls()) == name
            called(same, cls())
        else:
            with pytest.raises(errors.ArgumentError):
                f(cls())
            with pytest.raises(errors.ReturnValueError):
                same(cls())
        del cls
        gc.collect()
    if not met:
        pytest.skip("no class came where another one had been")


def test_a_guard_that_is_opened(registry, lib, way):
    lib.define("g(Tensor x) -> str")
    lib.impl("g", lambda x: "CPU", "CPU")
    lib.impl("g", lambda x: "XLA", "XLA")
    g, value = registry.ops.s.g.default, cpu_class()()
    for _ in range(3):
        assert called(g, value) == "CPU"
        with md.context.IncludeDispatchKeyGuard("XLA"):
            assert called(g, value) == "XLA"


def test_redispatches_of_one_call_with_other_keys(registry, lib, way):
    lib.define("g(Tensor x, Tensor? y) -> str")
    for key in ("CPU", "CUDA", "XLA"):
        lib.impl("g", lambda x, y, key=key: key, key)
    lib.impl("g", lambda keys, x, y: str(keys), "AutogradCPU", with_keyset=True)
    md.Library("_", "IMPL", registry=registry).fallback(lambda op, x, y: op.name, "Meta")
    g, there = registry.ops.s.g.default, {"Meta": "s::g"}

    class Carries:
        __dispatch_keys__ = "CUDA"

    for x, key in ((cpu_class()(), "CPU"), (Carries(), "CUDA")):
        for y in (None, Carries()):
            for name in ("CPU", "XLA", "Meta", "CUDA"):
                assert called(g, x, y) == "CUDA" if y else key
                found = [g.redispatch(md.DispatchKeySet(name), x, y) for _ in range(3)]
                assert found == [there.get(name, name)] * 3
            for more in ((), ("Negative",)):
                given = md.DispatchKeySet("AutogradCPU", *more)
                assert [g.redispatch(given, x, y) for _ in range(3)] == [str(given)] * 3


def test_a_handler_that_comes_while_another_argument_is_asked(registry, lib, way):
    """And one that comes while the class itself is asked about."""
    lib.define("g(Tensor x, Tensor y) -> str")
    lib.impl("g", lambda x, y: "CPU", "CPU")
    g, cls = registry.ops.s.g.default, cpu_class()

    class Changes:
        @property
        def __dispatch_keys__(self):
            cls.__md_dispatch__ = classmethod(handled)
            return "CPU"

    class Meta(type):
        def __getattr__(self, name):
            if name == "__md_dispatch__" and armed:
                armed.clear()
                self.__md_dispatch__ = classmethod(handled)
                assert self.__md_dispatch__  # a look-up: the class has another version now
            raise AttributeError(name)

    changed = Changes()
    for _ in range(3):
        assert called(g, cls(), cls()) == "CPU"
        assert g(cls(), changed) in ("CPU", "handled")
        assert called(g, cls(), cls()) == "handled"
        del cls.__md_dispatch__
    for _ in range(3):
        armed = [True]
        other = Meta("Local", (), {})
        md.register_type(other, "CPU")
        assert g(other(), other()) in ("CPU", "handled")
        assert not armed
        assert called(g, other(), other()) == "handled"


def test_values_of_one_class_with_keys_of_their_own(f, same):
    class Carries:
        def __init__(self, *keys):
            if keys:
                self.__dispatch_keys__ = keys[0]

    for _ in range(3):
        for name in ("CPU", "CUDA"):
            value = Carries(name)
            assert called(f, value) == name
            assert called(same, value) is value
        with pytest.raises(errors.ArgumentError):
            f(Carries())
        with pytest.raises(errors.ReturnValueError):
            same(Carries())


def test_a_conversion_that_changes_the_class_of_another_argument(registry, lib, way):
    lib.define("g(Tensor x, int y) -> str")
    lib.impl("g", lambda x, y: f"CPU {y}", "CPU")
    g, cls = registry.ops.s.g.default, cpu_class()

    class Index:
        def __index__(self):
            if armed:
                cls.__md_dispatch__ = classmethod(handled)
            return 5

    for _ in range(3):
        armed = False
        assert called(g, cls(), Index()) == "CPU 5"
        armed = True
        assert called(g, cls(), Index()) == "handled"
        del cls.__md_dispatch__


def test_arguments_that_are_converted_and_others(registry, lib, way):
    lib.define("g(float x, int[2] y, Tensor? z) -> Any")
    lib.impl("g", lambda *args: args, "CompositeExplicitAutograd")
    g = registry.ops.s.g.default
    for x in (1, 1.0, True):
        for y in (3, [1, True], (1, 2)):
            for z in (None, cpu_class()()):
                given = [y, y] if y == 3 else [int(each) for each in y]
                found = called(g, x, y, z)
                assert found == (1.0, given, z)
                assert list(map(type, (found[0], *found[1]))) == [float, int, int]
        with pytest.raises(errors.ArgumentError):
            g(x, "a", None)
        with pytest.raises(errors.ArgumentError):
            g("a", 3, None)


def test_a_result_whose_type_changes_what_it_is_while_the_kernel_runs(same):
    cls = type("Local", (), {})
    value = cls()
    handle = md.register_type(cls, "CPU")
    assert called(same, value) is value

    def end():
        handle.close()
        return value

    with pytest.raises(errors.ReturnValueError):
        same(end)
    with pytest.raises(errors.ReturnValueError):
        same(value)

    def begin():
        md.register_type(cls, "CUDA")
        return value

    assert same(begin) is value
    assert called(same, value) is value


def test_a_kernel_that_calls_its_operator_with_other_types(registry, lib, way):
    lib.define("g(Any x) -> Scalar")

    def kernel(x):
        return x if not isinstance(x, list) else (registry.ops.s.g(x[0]), x[1])[1]

    lib.impl("g", kernel, "CompositeExplicitAutograd")
    g = registry.ops.s.g.default
    for _ in range(3):
        assert called(g, 1) == 1
        assert called(g, [1, 2.5]) == 2.5
        with pytest.raises(errors.ReturnValueError):
            g([1, "a"])
        with pytest.raises(errors.ReturnValueError):
            g("a")


def test_an_argument_may_be_anything_where_the_schema_says_so(registry, lib, way):
    lib.define("g(Tensor? x, Any y, Device z) -> Any")
    lib.impl("g", lambda x, y, z: (y, z), "CompositeExplicitAutograd")
    g = registry.ops.s.g.default
    for y in (1, "a", None, object(), g):
        assert called(g, None, y, "cpu") == (y, "cpu")
        with pytest.raises(errors.ArgumentError):
            g(None, y, None)


def test_a_kernel_that_is_replaced(registry, f):
    value = cpu_class()()
    assert called(f, value) == "CPU"
    other = md.Library("s", "IMPL", registry=registry)
    other.impl("f", lambda x: "new", "CPU")
    assert called(f, value) == "new"
    other.close()
    assert called(f, value) == "CPU"


@pytest.mark.dear
def test_calls_in_threads_while_types_come_and_go(f):
    """A thread that has registered a type, or ended that, finds it so at its next call, whatever
    other threads find and keep meanwhile.
    """
    classes = [type(f"Local{i}", (), {}) for i in range(4)]
    start, over, wrong = threading.Barrier(4), threading.Event(), []

    def change(mine):
        start.wait()
        for _ in range(300):
            for name in ("CPU", "CUDA"):
                with md.register_type(mine, name):
                    answer = f(mine())
                    if answer != name:
                        wrong.append((name, answer))
                with contextlib.suppress(errors.ArgumentError):
                    wrong.append(("refused", f(mine())))

    def call():
        start.wait()
        while not over.is_set():
            for cls in classes:
                with contextlib.suppress(errors.MdispatchError):
                    f(cls())

    threads = [threading.Thread(target=change, args=(cls,)) for cls in classes[:2]]
    callers = [threading.Thread(target=call) for _ in range(2)]
    for thread in (*threads, *callers):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    for thread in callers:
        thread.join()
    assert wrong == []

"""For any bad argument of the functions that make operators, add to them or observe them: a clear
error of a documented class, and nothing has changed. test_bad_input.py has the rest.
"""

from __future__ import annotations

import pytest
from bad_values import CALLABLES, KERNEL, TEXTS, VALUES, Array, assert_clear, everything

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.autograd import engines
from mdispatch.authoring.functions import scoped_library
from mdispatch.authoring.meta import empty_like
from mdispatch.dispatch.context import modes, observers, transforms
from mdispatch.dispatch.higher_order import higher_order_names
from mdispatch.fake import require_python_modules

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

OP = "s::f"
ALL = frozenset(VALUES)
BOOLS = {"True", "False"}
#: The values that are empty.
NOTHING = {"empty list", "dict", "empty"}


class Mode(md.context.DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)


def first(x: md.Tensor) -> md.Tensor:
    return x


@pytest.fixture
def lib(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda x: "still", "CPU")
    return lib


@pytest.fixture
def higher():
    operator = md.HigherOrderOperator("bad_input")
    operator.py_impl("CPU")(lambda *args: "still")
    yield operator
    operator.close()


@pytest.fixture
def made(registry):
    return md.custom_op("made::f", first, mutates_args=(), registry=registry)


def all_of_it(registry, higher):
    """All that could have changed: registrations, rules, and the state of this thread and
    interpreter."""
    rules = [registry.ops.s.f.default.rules, higher.rules]
    return (
        everything(registry),
        [(r.py_kernels, r.by_class, r.by_transform) for r in rules],
        higher.non_fallthrough_keys,
        higher_order_names(),
        engines._engines,
        observers.observing.now,
        modes.mode_stack(),
        modes.pre_dispatch_modes(),
        transforms.transform_stack(),
        require_python_modules(require_python_modules(False)),
        registry.ops.s.f.default.py_kernels,
    )


def with_kind(value, base, name):
    return type("Odd", (base,), {name: value})()


def enter(manager):
    with manager:
        pass


# By name: the call that takes the value (with the registry, the library "s", an operator of
# custom_op and a higher-order operator), and the names of the values that it accepts.
SLOTS = {
    # Free functions.
    "define(name)": (lambda r, v, **o: md.define(v, "() -> ()", registry=r), set()),
    "define(schema)": (lambda r, v, **o: md.define("s::g", v, registry=r), set()),
    "define(tags)": (
        lambda r, v, **o: md.define("s::g", "() -> ()", tags=v, registry=r),
        NOTHING,
    ),
    "define(alias_analysis)": (
        lambda r, v, **o: md.define("s::g", "() -> ()", alias_analysis=v, registry=r),
        {"empty"},
    ),
    "define(lib)": (lambda r, v, **o: md.define("s::g", "() -> ()", lib=v, registry=r), {"None"}),
    "define(registry)": (lambda r, v, **o: md.define("s::g", "() -> ()", registry=v), {"None"}),
    "impl(op)": (lambda r, v, **o: md.impl(v, "cpu", KERNEL, registry=r), set()),
    "impl(types)": (lambda r, v, **o: md.impl(OP, v, KERNEL, registry=r), set()),
    "impl(function)": (lambda r, v, **o: md.impl(OP, "cuda", v, registry=r), CALLABLES | {"None"}),
    "impl()(function)": (lambda r, v, **o: md.impl(OP, "cuda", registry=r)(v), CALLABLES),
    "impl(lib)": (lambda r, v, **o: md.impl(OP, "cpu", KERNEL, lib=v, registry=r), {"None"}),
    "impl(registry)": (lambda r, v, **o: md.impl(OP, "cpu", KERNEL, registry=v), {"None"}),
    "register_kernel(op)": (
        lambda r, v, **o: md.register_kernel(v, "cpu", KERNEL, registry=r),
        set(),
    ),
    "register_kernel(types)": (
        lambda r, v, **o: md.register_kernel(OP, v, KERNEL, registry=r),
        {"None"},
    ),
    "register_kernel()(function)": (
        lambda r, v, **o: md.register_kernel(OP, "cuda", registry=r)(v),
        CALLABLES,
    ),
    "register_vmap(op)": (lambda r, v, **o: md.register_vmap(v, KERNEL, registry=r), set()),
    "register_vmap(function)": (
        lambda r, v, **o: md.register_vmap(OP, v, registry=r),
        CALLABLES | {"None"},
    ),
    "register_autocast(op)": (
        lambda r, v, **o: md.register_autocast(v, "cpu", "float16", registry=r),
        set(),
    ),
    "register_autocast(device)": (
        lambda r, v, **o: md.register_autocast(OP, v, "float16", registry=r),
        set(),
    ),
    "register_autocast(cast)": (
        lambda r, v, **o: md.register_autocast(OP, "cpu", "float16", cast=v, registry=r),
        CALLABLES | {"None"},
    ),
    "register_dispatch_rule(op)": (
        lambda r, v, **o: md.register_dispatch_rule(v, Mode, KERNEL, registry=r),
        set(),
    ),
    "register_dispatch_rule(class)": (
        lambda r, v, **o: md.register_dispatch_rule(OP, v, KERNEL, registry=r),
        set(),
    ),
    "register_dispatch_rule()(class)": (
        lambda r, v, **o: md.register_dispatch_rule(OP, v, registry=r)(KERNEL),
        set(),
    ),
    "register_dispatch_rule(function)": (
        lambda r, v, **o: md.register_dispatch_rule(OP, Mode, v, registry=r),
        CALLABLES | {"None"},
    ),
    "register_fake(op)": (lambda r, v, **o: md.register_fake(v, KERNEL, registry=r), set()),
    "register_fake(function)": (
        lambda r, v, **o: md.register_fake(OP, v, registry=r),
        CALLABLES | {"None"},
    ),
    "register_fake()(function)": (lambda r, v, **o: md.register_fake(OP, registry=r)(v), CALLABLES),
    "register_fake(lib)": (
        lambda r, v, **o: md.register_fake(OP, KERNEL, lib=v, registry=r),
        {"None"},
    ),
    "register_autograd(op)": (lambda r, v, **o: md.register_autograd(v, KERNEL, registry=r), set()),
    "register_autograd(backward)": (
        lambda r, v, **o: md.register_autograd(OP, v, registry=r),
        CALLABLES,
    ),
    "register_autograd(setup_context)": (
        lambda r, v, **o: md.register_autograd(OP, KERNEL, setup_context=v, registry=r),
        CALLABLES | {"None"},
    ),
    "register_autograd_engine": (lambda r, v, **o: md.register_autograd_engine(v), set()),
    "get_kernel(op)": (lambda r, v, **o: md.get_kernel(v, "CPU", registry=r), set()),
    "get_kernel(key)": (lambda r, v, **o: md.get_kernel(OP, v, registry=r), set()),
    "get_kernel(registry)": (lambda r, v, **o: md.get_kernel(OP, "CPU", registry=v), {"None"}),
    "python_module(op)": (
        lambda r, v, **o: md.python_module(v, registry=r),
        {"100 kB qualified"},
    ),
    "python_module(registry)": (lambda r, v, **o: md.python_module(OP, registry=v), {"None"}),
    "require_python_modules": (lambda r, v, **o: require_python_modules(v), BOOLS),
    "scoped_library(namespace)": (
        lambda r, v, **o: scoped_library(v, "FRAGMENT", registry=r),
        set(),
    ),
    "scoped_library(kind)": (lambda r, v, **o: scoped_library("s", v, registry=r), set()),
    # Libraries.
    "Library.set_python_module": (
        lambda r, v, lib, **o: lib.set_python_module(v),
        {"None", "not ASCII"},
    ),
    "Library.set_python_module(context)": (
        lambda r, v, lib, **o: lib.set_python_module("a.b", v),
        set(TEXTS) - {"100 kB", "100 kB qualified"},
    ),
    "Library.register_python_module(op)": (
        lambda r, v, lib, **o: lib.register_python_module(v, "a.b"),
        set(),
    ),
    "Library.register_python_module": (
        lambda r, v, lib, **o: lib.register_python_module("f", v),
        {"not ASCII"},
    ),
    "Library.register_fake(op)": (lambda r, v, lib, **o: lib.register_fake(v, KERNEL), set()),
    "Library.register_fake(function)": (
        lambda r, v, lib, **o: lib.register_fake("f", v),
        CALLABLES | {"None"},
    ),
    "Library.register_name": (lambda r, v, lib, **o: lib.register_name(v), set()),
    # custom_op and infer_schema.
    "custom_op(name)": (
        lambda r, v, **o: md.custom_op(v, first, mutates_args=(), registry=r),
        set(),
    ),
    "custom_op(function)": (
        lambda r, v, **o: md.custom_op("s::g", v, mutates_args=(), registry=r),
        {"None"},
    ),
    "custom_op()(function)": (
        lambda r, v, **o: md.custom_op("s::g", mutates_args=(), registry=r)(v),
        set(),
    ),
    "custom_op(mutates_args)": (
        lambda r, v, **o: md.custom_op("s::g", first, mutates_args=v, registry=r),
        {"empty list", "dict"},
    ),
    "custom_op(mutates_args) with a schema": (
        lambda r, v, **o: md.custom_op(
            "s::g", first, mutates_args=v, schema="(Tensor x) -> Tensor", registry=r
        ),
        {"empty list", "dict"},
    ),
    "custom_op(device_types)": (
        lambda r, v, **o: md.custom_op("s::g", first, mutates_args=(), device_types=v, registry=r),
        {"None"},
    ),
    "custom_op(schema)": (
        lambda r, v, **o: md.custom_op("s::g", first, mutates_args=(), schema=v, registry=r),
        {"None"},
    ),
    "custom_op(tags)": (
        lambda r, v, **o: md.custom_op("s::g", first, mutates_args=(), tags=v, registry=r),
        NOTHING,
    ),
    "custom_op(registry)": (
        lambda r, v, **o: md.custom_op("s::g", first, mutates_args=(), registry=v),
        {"None"},
    ),
    "CustomOpDef.register_kernel(types)": (
        lambda r, v, made, **o: made.register_kernel(v, first),
        {"None"},
    ),
    "CustomOpDef.register_kernel()(function)": (
        lambda r, v, made, **o: made.register_kernel("cuda")(v),
        CALLABLES,
    ),
    "CustomOpDef.register_fake": (
        lambda r, v, made, **o: made.register_fake(v),
        CALLABLES | {"None"},
    ),
    "CustomOpDef.register_autograd": (
        lambda r, v, made, **o: made.register_autograd(v),
        CALLABLES,
    ),
    "CustomOpDef.register_vmap": (
        lambda r, v, made, **o: made.register_vmap(v),
        CALLABLES | {"None"},
    ),
    "CustomOpDef.register_autocast": (
        lambda r, v, made, **o: made.register_autocast(v, "float16"),
        set(),
    ),
    "CustomOpDef.register_dispatch_rule": (
        lambda r, v, made, **o: made.register_dispatch_rule(v, KERNEL),
        set(),
    ),
    "CustomOpDef.set_kernel_enabled": (
        lambda r, v, made, **o: made.set_kernel_enabled(v, False),
        set(),
    ),
    "infer_schema": (lambda r, v, **o: md.infer_schema(v), set()),
    "infer_schema(mutates_args)": (
        lambda r, v, **o: md.infer_schema(first, mutates_args=v),
        {"empty list", "dict"},
    ),
    "infer_schema(op_name)": (
        lambda r, v, **o: md.infer_schema(first, op_name=v),
        {"None", "100 kB qualified"},
    ),
    # Rules of operators.
    "py_impl": (lambda r, v, **o: r.ops.s.f.default.py_impl(v)(KERNEL), set()),
    "py_impl()(function)": (lambda r, v, **o: r.ops.s.f.default.py_impl("CUDA")(v), CALLABLES),
    "py_functionalize_impl": (
        lambda r, v, **o: r.ops.s.f.default.py_functionalize_impl(v),
        CALLABLES,
    ),
    "has_kernel_for_any_dispatch_key": (
        lambda r, v, **o: r.ops.s.f.default.has_kernel_for_any_dispatch_key(v),
        {"empty list", "dict"},
    ),
    "HigherOrderOperator": (lambda r, v, **o: md.HigherOrderOperator(v), set()),
    "HigherOrderOperator.py_impl": (lambda r, v, higher, **o: higher.py_impl(v)(KERNEL), set()),
    "HigherOrderOperator.py_impl()(function)": (
        lambda r, v, higher, **o: higher.py_impl("CUDA")(v),
        CALLABLES,
    ),
    "HigherOrderOperator.py_functionalize_impl": (
        lambda r, v, higher, **o: higher.py_functionalize_impl(v),
        CALLABLES,
    ),
    "HigherOrderOperator.fallthrough": (lambda r, v, higher, **o: higher.fallthrough(v), set()),
    "HigherOrderOperator.dispatch": (lambda r, v, higher, **o: higher.dispatch(v), set()),
    "HigherOrderOperator.has_kernel": (
        lambda r, v, higher, **o: higher.has_kernel_for_dispatch_key(v),
        set(),
    ),
    "HigherOrderOperator.why": (lambda r, v, higher, **o: higher.why(v), set()),
    # Modes, transforms, observers.
    "push_mode": (lambda r, v, **o: modes.push_mode(v), set()),
    "push_pre_dispatch_mode": (lambda r, v, **o: modes.push_pre_dispatch_mode(v), set()),
    "pop_mode": (lambda r, v, **o: modes.pop_mode(v), set()),
    "mode_key": (
        lambda r, v, **o: modes.push_mode(with_kind(v, Mode, "mode_key")),
        {"None"},
    ),
    "transform_type": (
        lambda r, v, **o: enter(with_kind(v, md.context.Transform, "transform_type")),
        {"None"},
    ),
    "observe_calls(before)": (lambda r, v, **o: md.observe_calls(v), CALLABLES),
    "observe_calls(after)": (lambda r, v, **o: md.observe_calls(KERNEL, v), CALLABLES | {"None"}),
    "allow_imports": (lambda r, v, **o: r.allow_imports(v), {"not ASCII", "100 kB"}),
    # Values without data.
    "MetaTensor(shape)": (lambda r, v, **o: md.MetaTensor(v), {"empty list", "dict", "tuple"}),
    "MetaTensor(device)": (
        lambda r, v, **o: md.MetaTensor((), device=v),
        set(TEXTS) - {"empty"},
    ),
    "MetaTensor(strides)": (
        lambda r, v, **o: md.MetaTensor((2, 2), strides=v),
        {"None", "tuple"},
    ),
    "MetaTensor.of": (lambda r, v, **o: md.MetaTensor.of(v), {"bytes"}),
    "empty_like": (lambda r, v, **o: empty_like(v), {"bytes"}),
    "new_empty": (
        lambda r, v, **o: md.MetaTensor(()).new_empty(v),
        {"empty list", "dict", "tuple"},
    ),
    # Checks.
    "opcheck(op)": (lambda r, v, **o: md.opcheck(v, ()), set()),
    "opcheck(args)": (
        lambda r, v, **o: md.opcheck(r.ops.s.f.default, v, test_utils=()),
        set(),
    ),
    "opcheck(kwargs)": (
        lambda r, v, **o: md.opcheck(r.ops.s.f.default, (Array(),), v, test_utils=()),
        {"None", "dict"},
    ),
    "opcheck(test_utils)": (
        lambda r, v, **o: md.opcheck(r.ops.s.f.default, (Array(),), test_utils=v),
        {"empty list", "dict"},
    ),
}


@pytest.mark.parametrize("slot", SLOTS)
def test_whatever_is_no_good_is_refused_clearly_and_changes_nothing(
    registry, lib, made, higher, slot
):
    call, good = SLOTS[slot]
    assert good <= ALL
    before = all_of_it(registry, higher)
    wrong = []
    for name, value in VALUES.items():
        if name in good:
            continue
        try:
            call(registry, value, lib=lib, made=made, higher=higher)
        except errors.MdispatchError as error:
            assert_clear(error)
        except Exception as error:
            wrong.append(f"{name} raised {error!r:.200}")
        else:
            wrong.append(f"{name} was taken")
        if all_of_it(registry, higher) != before:
            wrong.append(f"{name} changed something")
            break
    assert not wrong
    assert registry.ops.s.f(Array()) == "still"
    assert higher(Array()) == "still"


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if "registry" not in slot])
def test_a_worker_hears_the_same_refusals(registry, lib, made, higher, slot):
    call, good = SLOTS[slot]
    with md.Registry.attach(registry.address, timeout=0) as worker:
        same = {
            "lib": md.Library("s", "DEF", registry=worker, timeout=0),
            "made": md.custom_op("made::f", first, mutates_args=(), registry=worker),
        }
        before = all_of_it(registry, higher)
        for name in VALUES.keys() - good:
            if name == "100 kB" and slot.endswith("(tags)"):
                continue  # an identifier, so it waits for the definition
            with pytest.raises(errors.MdispatchError) as caught:
                call(worker, VALUES[name], higher=higher, **same)
            assert_clear(caught.value)
        assert all_of_it(registry, higher) == before
        assert not any(worker.dispatcher.entry(OP).kernels.values())


CLOSED = {
    "define": lambda r, op: md.define("s::g", "() -> ()", registry=r),
    "impl": lambda r, op: md.impl(OP, "cpu", KERNEL, registry=r),
    "impl of an operator": lambda r, op: md.impl(op, "cpu", KERNEL),
    "register_kernel": lambda r, op: md.register_kernel(op, "cpu", KERNEL),
    "register_vmap": lambda r, op: md.register_vmap(op, KERNEL),
    "register_autocast": lambda r, op: md.register_autocast(op, "cpu", "float16"),
    "register_dispatch_rule": lambda r, op: md.register_dispatch_rule(op, Mode, KERNEL),
    "register_fake": lambda r, op: md.register_fake(op, KERNEL),
    "register_autograd": lambda r, op: md.register_autograd(op, KERNEL),
    "register_autograd by name": lambda r, op: md.register_autograd(OP, KERNEL, registry=r),
    "get_kernel": lambda r, op: md.get_kernel(op, "CPU"),
    "python_module": lambda r, op: md.python_module(op),
    "py_impl": lambda r, op: op.py_impl("CPU")(KERNEL),
    "py_functionalize_impl": lambda r, op: op.py_functionalize_impl(KERNEL),
    "custom_op": lambda r, op: md.custom_op("s::g", first, mutates_args=(), registry=r),
    "opcheck": lambda r, op: md.opcheck(op, (Array(),)),
    "fake call": lambda r, op: op(md.MetaTensor(())),
    "scoped_library": lambda r, op: scoped_library("t", "DEF", registry=r),
}


@pytest.mark.parametrize("case", CLOSED)
def test_a_closed_registry_says_so_whatever_is_asked(registry, lib, case):
    op = registry.ops.s.f.default
    registry.close()
    with pytest.raises(errors.RegistryClosedError) as caught:
        CLOSED[case](registry, op)
    assert_clear(caught.value)


CLOSED_LIBRARY = {
    "set_python_module": lambda lib: lib.set_python_module("a.b"),
    "register_python_module": lambda lib: lib.register_python_module("f", "a.b"),
    "register_name": lambda lib: lib.register_name("g"),
    "Library.register_fake": lambda lib: lib.register_fake("f", KERNEL),
    "define": lambda lib: md.define("s::g", "() -> ()", lib=lib),
    "impl": lambda lib: md.impl(OP, "cpu", KERNEL, lib=lib),
    "register_kernel": lambda lib: md.register_kernel(OP, "cpu", KERNEL, lib=lib),
    "register_fake": lambda lib: md.register_fake(OP, KERNEL, lib=lib),
    "register_autograd": lambda lib: md.register_autograd(OP, KERNEL, lib=lib),
    "register_dispatch_rule": lambda lib: md.register_dispatch_rule(OP, Mode, KERNEL, lib=lib),
    "register_autocast": lambda lib: md.register_autocast(OP, "cpu", "float16", lib=lib),
    "register_vmap": lambda lib: md.register_vmap(OP, KERNEL, lib=lib),
}


@pytest.mark.parametrize("case", CLOSED_LIBRARY)
def test_a_closed_library_says_so_whatever_is_asked(registry, lib, case):
    fragment = md.Library("s", "FRAGMENT", registry=registry)
    fragment.close()
    before = everything(registry)
    with pytest.raises(errors.LibraryClosedError) as caught:
        CLOSED_LIBRARY[case](fragment)
    assert_clear(caught.value)
    assert everything(registry) == before
    assert registry.ops.s.f.default.rules.by_class == {}

"""Tapes: what they record, what they hold, when they end, and gradients of gradients."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from kinds import run_main
from places import PLACES, run_at
from tapes import Tape
from vectors import Vec, close, differences, ones, operators

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.autograd import register_autograd, register_autograd_engine
from mdispatch.dispatch.context import guards


@pytest.fixture
def vec(registry):
    return operators(registry)


@pytest.fixture(autouse=True)
def whatever_happens_the_thread_keeps_its_keys():
    before = guards.included_keys(), guards.excluded_keys()
    yield
    assert (guards.included_keys(), guards.excluded_keys()) == before


def in_thread(function):
    """Runs the function in a thread of its own, and returns its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    assert results, "the function raised"
    return results[0]


X, Y = Vec(0.5, -1.25), Vec(3.0, 0.75)


# --- recording ------------------------------------------------------------------------------------


def test_a_tape_records_what_depends_on_what_it_watches_and_nothing_else(vec):
    with Tape() as tape:
        before = vec.sin(X)
        tape.watch(X)
        after = vec.sin(X)
        beside = vec.sin(Y)
        far = vec.mul(after, beside)
    outside = vec.sin(X)
    watched = [tape.is_watched(each) for each in (X, before, after, beside, far, outside)]
    assert watched == [True, False, True, False, True, False]
    assert repr(tape) == "<Tape: 2 calls>"


def test_equal_objects_are_not_the_same_object_to_a_tape(vec):
    class Equal(Vec):
        def __eq__(self, other):
            return True

        __hash__ = None

    x, y = Equal(1.0), Equal(2.0)
    with Tape(ones_like=ones) as tape:
        tape.watch(x)
        z = vec.mul(x, y)
    found = tape.gradient(z, [x, y])
    assert found[0].items == (2.0,)
    assert found[1] is None


@pytest.mark.thorough
def test_what_a_tape_holds_lives_until_it_ends(vec):
    def begin(**options):
        x = Vec(1.0)
        with Tape(ones_like=ones, **options) as tape:
            tape.watch(x)
            y = vec.sin(vec.mul(x, x))
        return tape, x, y, [weakref.ref(each) for each in (x, y)]

    for end in ("gradient", "close"):
        tape, x, y, refs = begin()
        assert end == "close" or tape.gradient(y, x) is not None
        if end == "close":
            tape.close()
        del x, y
        gc.collect()
        assert [ref() for ref in refs] == [None, None], end
    tape, x, y, refs = begin(persistent=True)
    tape.gradient(y, x)
    del x, y
    gc.collect()
    assert None not in [ref() for ref in refs]
    tape.close()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.thorough
@pytest.mark.dear
def test_what_is_watched_lives_though_no_operator_was_called_with_it():
    tape = Tape()
    x = Vec(1.0)
    ref = weakref.ref(x)
    tape.watch(x)
    del x
    gc.collect()
    assert tape.is_watched(ref())
    tape.close()
    gc.collect()
    assert ref() is None


@pytest.mark.dear
def test_a_tape_that_has_ended_lives_no_longer_than_it_is_held(vec):
    with Tape() as tape:
        tape.watch(X)
        vec.sin(X)
    ref = weakref.ref(tape)
    del tape
    gc.collect()
    assert ref() is None


def test_a_kernel_may_close_the_tape_that_is_about_to_record_it(registry):
    lib = md.Library("t", "DEF", registry=registry)
    with Tape() as tape:
        tape.watch(X)
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: tape.close() or x.map(abs), "CPU")
        register_autograd("t::f", lambda ctx, g: g, lib=lib)
        y = registry.ops.t.f(X)
    assert y.items == (0.5, 1.25)
    assert not tape.is_watched(y)


def test_objects_of_a_backend_come_to_the_formula_only_while_a_tape_is_open(registry):
    ran = []
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: ran.append("CPU") or x.map(abs), "CPU")
    lib.impl("f", lambda x: ran.append("Autograd") or x.map(abs), "Autograd")
    registry.ops.t.f(X)
    with Tape() as tape:
        registry.ops.t.f(X)
        with tape.stop_recording():
            registry.ops.t.f(X)
    registry.ops.t.f(X)
    assert ran == ["CPU", "Autograd", "Autograd", "CPU"]


def test_operators_without_tensors_and_without_formulas_run_as_ever_while_a_tape_is_open(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("make(int n) -> Tensor")
    lib.impl("make", lambda n: Vec(float(n)), "CompositeExplicitAutograd")
    lib.define("chosen(int n) -> str")
    lib.impl("chosen", lambda n: "BackendSelect", "BackendSelect")
    lib.impl("chosen", lambda n: "any", "CompositeImplicitAutograd")
    lib.define("plain(Tensor x) -> Tensor")
    lib.impl("plain", lambda x: x.map(abs), "CPU")
    ops = registry.ops.t
    with Tape() as tape:
        made = ops.make(3)
        assert made.items == (3.0,)
        assert ops.chosen(1) == "BackendSelect"
        tape.watch(made)
        assert not tape.is_watched(ops.plain(made))
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        y = ops.plain(X)
    assert tape.gradient(y, X) is None


def test_a_formula_of_an_operator_without_tensors_stands_aside(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("make(int n) -> Tensor")
    lib.impl("make", lambda n: Vec(float(n)), "CompositeExplicitAutograd")
    register_autograd("t::make", lambda ctx, g: None, lib=lib)
    with Tape():
        assert registry.ops.t.make(3).items == (3.0,)
        with guards.IncludeDispatchKeyGuard("AutogradOther"):
            assert registry.ops.t.make(4).items == (4.0,)


@pytest.mark.parametrize("keys", ["SparseCUDA", "AutogradOther", ("Vulkan", "AutogradOther")])
def test_objects_of_other_keys_are_recorded_too(registry, keys):
    kind = type("Other", (Vec,), {"__dispatch_keys__": keys})
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("twice(Tensor x) -> Tensor")
    for key in ("SparseCUDA", "Vulkan", "Undefined" if keys == "AutogradOther" else "CPU"):
        fallback = key == "Undefined"
        key = "CompositeExplicitAutograd" if fallback else key
        lib.impl("twice", lambda x: kind(*(2 * each for each in x.items)), key)
    register_autograd("t::twice", lambda ctx, g: g + g, lib=lib)
    x = kind(1.0)
    with Tape(ones_like=ones) as tape:
        tape.watch(x)
        y = registry.ops.t.twice(x)
    assert tape.gradient(y, x).items == (2.0,)


def test_inside_of_kernels_nothing_is_recorded_on_a_tape_that_they_open(registry, vec):
    lib = md.Library("t", "DEF", registry=registry)
    inner = []

    def kernel(x):
        with Tape() as tape:
            tape.watch(x)
            y = vec.sin(x)
        inner.append(tape.is_watched(y))
        return y

    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", kernel, "CPU")
    register_autograd("t::f", lambda ctx, g: g, lib=lib)
    with Tape():
        registry.ops.t.f(X)
    assert inner == [False]


@pytest.mark.parametrize("which", ["argument", "earlier", "twice"])
def test_an_output_that_is_no_new_object_is_refused(registry, vec, which):
    lib = md.Library("t", "DEF", registry=registry)
    with Tape() as tape:
        tape.watch(X)
        earlier = vec.sin(X)
        outputs = {"argument": (X, Vec(1.0)), "earlier": (Vec(1.0), earlier)}
        same = Vec(1.0)
        lib.define("f(Tensor x) -> (Tensor, Tensor)")
        lib.impl("f", lambda x: outputs.get(which, (same, same)), "CPU")
        register_autograd("t::f", lambda ctx, g, h: g, lib=lib)
        before = repr(tape)
        with pytest.raises(errors.AutogradError, match="by their identity") as caught:
            registry.ops.t.f(X)
        assert caught.value.operator == "t::f"
        assert repr(tape) == before
        assert not tape.is_watched(same)


def test_a_pause_leaves_out_what_is_called_in_it_and_pauses_may_be_nested(vec):
    with Tape() as tape:
        tape.watch(X)
        with tape.stop_recording(), tape.stop_recording():
            assert not tape.is_recording
            left_out = vec.sin(X)
        assert tape.is_recording
        recorded = vec.sin(X)
    assert (tape.is_watched(left_out), tape.is_watched(recorded)) == (False, True)
    assert not tape.is_recording


def test_a_tape_is_opened_once(vec):
    tape = Tape()
    with tape:
        with pytest.raises(errors.AutogradError, match="opened only once"):
            tape.__enter__()
        assert tape.is_recording
    with pytest.raises(errors.AutogradError, match="opened only once"):
        tape.__enter__()
    closed = Tape()
    closed.close()
    with pytest.raises(errors.AutogradError, match="opened only once"):
        closed.__enter__()


@pytest.mark.parametrize("value", [3, "x", None, [X]])
def test_what_is_no_tensor_cannot_be_watched(value):
    tape = Tape()
    with pytest.raises(errors.AutogradError, match="carries none"):
        tape.watch(X, value)
    assert not tape.is_watched(X)


@pytest.mark.dear
def test_a_tape_that_nobody_holds_records_on_until_its_block_ends(vec):
    with Tape():
        gc.collect()
        assert guards.included_keys().raw & md.DispatchKey.AutogradFunctionality.raw
    assert not guards.included_keys().raw & md.DispatchKey.AutogradFunctionality.raw


# --- gradients ------------------------------------------------------------------------------------


def test_sources_come_back_in_the_structure_in_which_they_were_given(vec):
    with Tape(ones_like=ones, persistent=True) as tape:
        tape.watch(X, Y)
        z = vec.mul(X, Y)
    assert tape.gradient(z, X).items == Y.items
    assert [each.items for each in tape.gradient(z, [X])] == [Y.items]
    assert [each.items for each in tape.gradient((z,), (Y, X))] == [X.items, Y.items]
    assert tape.gradient([], [X]) == [None]
    assert tape.gradient(z, []) == []


def test_gradients_of_several_targets_are_added_up(vec):
    with Tape(persistent=True) as tape:
        tape.watch(X)
        one, other = vec.scale(X), vec.scale(X, factor=3.0)
    seeds = [Vec(1.0, 10.0), Vec(1.0, 100.0)]
    assert tape.gradient([one, other], X, seeds).items == (5.0, 320.0)
    assert tape.gradient([one, one], X, seeds).items == (4.0, 220.0)


def test_the_gradient_can_be_asked_in_the_middle_of_the_way(vec):
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        middle = vec.mul(X, X)
        end = vec.sin(middle)
    of_middle, of_x, of_end = tape.gradient(end, [middle, X, end])
    assert close(of_middle, differences(vec.sin, [middle])[0])
    assert close(of_x, differences(lambda x: vec.sin(vec.mul(x, x)), [X])[0])
    assert of_end.items == (1.0, 1.0)


def test_formulas_run_only_between_the_sources_and_the_target(registry, vec):
    ran = []
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x, str name) -> Tensor")
    lib.impl("f", lambda x, name: x.map(abs), "CPU")

    def setup_context(ctx, inputs, output):
        ctx.name = inputs[1]

    def backward(ctx, g):
        ran.append(ctx.name)
        return g, None

    register_autograd("t::f", backward, setup_context=setup_context, lib=lib)
    f = registry.ops.t.f
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        middle = f(X, "before the source")
        end = f(f(middle, "on the way"), "at the end")
        f(middle, "beside")
        f(end, "behind")
    tape.gradient(end, middle)
    assert ran == ["at the end", "on the way"]


def test_what_the_target_does_not_depend_on_has_the_gradient_none(vec):
    with Tape(ones_like=ones) as tape:
        tape.watch(X, Y)
        z = vec.sin(X)
    assert tape.gradient(z, [Y, Vec(1.0)]) == [None, None]


def test_what_was_not_watched_when_it_was_used_has_no_gradient_for_that_use(vec):
    late, never = Vec(3.0, 4.0), Vec(5.0, 6.0)
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        first = vec.mul(vec.mul(X, never), late)
        tape.watch(late)
        z = vec.mul(first, late)
    of_late, of_never = tape.gradient(z, [late, never])
    assert of_late.items == first.items
    assert of_never is None


def test_a_gradient_needs_something_to_begin_with(vec):
    with Tape() as tape:
        tape.watch(X)
        z = vec.sin(X)
    with pytest.raises(errors.AutogradError, match="no value to start from"):
        tape.gradient(z, X)
    assert tape.gradient(z, X, Vec(1.0, 1.0)) is not None


def test_for_numbers_it_is_one(registry):
    class Number(float):
        __dispatch_keys__ = "CPU"

        def __add__(self, other):
            return Number(float(self) + float(other))

    lib = md.Library("t", "DEF", registry=registry)
    lib.define("square(Tensor x) -> (Tensor, Tensor)")
    lib.impl("square", lambda x: (Number(float(x) * x), Number(1)), "CPU")
    seen = []

    def backward(ctx, g, h):
        seen.append((type(g), type(h), float(h)))
        return Number(2 * float(ctx.saved_tensors[0]) * g)

    register_autograd(
        "t::square",
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        lib=lib,
    )
    x = Number(3.0)
    with Tape() as tape:
        tape.watch(x)
        y, _ = registry.ops.t.square(x)
    assert tape.gradient(y, x) == 6.0
    assert seen == [(Number, Number, 0.0)]


@pytest.mark.parametrize("wrong", [3, [X, 3], None])
def test_bad_input_is_refused_and_the_tape_stays_as_it_is(vec, wrong):
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        z = vec.sin(X)
        with pytest.raises(errors.AutogradError, match="a target must be a Tensor"):
            tape.gradient(wrong, X)
        with pytest.raises(errors.AutogradError, match="a source must be a Tensor"):
            tape.gradient(z, wrong)
        for gradients in (X, [X, X]):
            with pytest.raises(errors.AutogradError, match="a list of 3"):
                tape.gradient([z, z, z], X, gradients)
        assert tape.is_recording
    assert tape.gradient(z, X) is not None


def test_a_tape_gives_one_gradient_and_a_persistent_one_any_number(vec):
    for persistent in (False, True):
        with Tape(ones_like=ones, persistent=persistent) as tape:
            tape.watch(X)
            z = vec.sin(X)
        first = tape.gradient(z, X)
        if persistent:
            assert tape.gradient(z, X).items == first.items
            tape.close()
        words = "was closed" if persistent else "has given its gradient"
        for ask in (lambda: tape.gradient(z, X), lambda: tape.watch(X)):  # noqa: B023
            with pytest.raises(errors.AutogradError, match=words):
                ask()
        tape.close()
        assert repr(tape) == "<Tape: ended>"


def test_a_tape_whose_formula_raised_gives_its_gradient_later(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x.map(abs), "CPU")
    failing = [True]

    def backward(ctx, g):
        if failing:
            raise ZeroDivisionError
        return g

    register_autograd("t::f", backward, lib=lib)
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        y = registry.ops.t.f(X)
    with pytest.raises(ZeroDivisionError):
        tape.gradient(y, X)
    failing.clear()
    assert tape.gradient(y, X).items == (1.0, 1.0)


# --- gradients of gradients -----------------------------------------------------------------------


def cube(vec):
    return lambda x: vec.mul(vec.mul(x, x), x)


def test_nested_tapes_give_the_gradient_of_a_gradient(vec):
    def first(x):
        with Tape(ones_like=ones) as inner:
            inner.watch(x)
            y = vec.add(vec.sin(cube(vec)(x)), vec.cos(x))
        return inner.gradient(y, x)

    with Tape(ones_like=ones) as outer:
        outer.watch(X)
        gradient = first(X)
    assert close(outer.gradient(gradient, X), differences(first, [X])[0])


def test_a_third_derivative_comes_from_three_tapes(vec):
    x = Vec(1.5)
    with Tape(ones_like=ones) as one:
        one.watch(x)
        with Tape(ones_like=ones) as two:
            two.watch(x)
            with Tape(ones_like=ones) as three:
                three.watch(x)
                y = vec.mul(cube(vec)(x), x)
            first = three.gradient(y, x)
        second = two.gradient(first, x)
    third = one.gradient(second, x)
    assert [each.items[0] for each in (first, second, third)] == pytest.approx([13.5, 27.0, 36.0])


def test_a_persistent_tape_that_is_open_records_its_own_gradients(vec):
    with Tape(ones_like=ones, persistent=True) as tape:
        tape.watch(X)
        first = tape.gradient(cube(vec)(X), X)
    assert close(tape.gradient(first, X), Vec(3.0, -7.5))


def test_a_tape_that_is_not_persistent_stops_recording_when_it_is_asked(vec):
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        tape.gradient(cube(vec)(X), X)
        assert not tape.is_recording
        assert not guards.included_keys().raw & md.DispatchKey.AutogradFunctionality.raw


def test_a_sum_that_calls_an_operator_is_recorded_once(registry):
    ops = operators(registry)

    class Summed(Vec):
        def __add__(self, other):
            return ops.add(self, other)

    # The kernel adds plain vectors; with others it would call itself.
    lib = md.Library("vec", "FRAGMENT", registry=registry)
    lib.impl("add", lambda a, b: Summed(*(Vec(*a.items) + Vec(*b.items)).items), "CPU")
    lib.impl("mul", lambda a, b: Summed(*(a * b).items), "CPU")
    x = Summed(2.0)
    with Tape(ones_like=ones, persistent=True) as outer:
        outer.watch(x)
        with Tape(ones_like=lambda value: Summed(1.0)) as inner:
            inner.watch(x)
            y = ops.mul(x, x)
        first = inner.gradient(y, x)
    assert first.items == (4.0,)
    # mul; two for the formula; one sum
    assert repr(outer) == "<Tape: 4 calls>"
    assert outer.gradient(first, x).items == (2.0,)


# --- threads --------------------------------------------------------------------------------------


def test_a_tape_records_the_thread_that_opened_it_and_no_other(vec):
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        assert not tape.is_watched(in_thread(lambda: vec.sin(X)))
        mine = vec.sin(X)
    assert in_thread(lambda: tape.gradient(mine, X)) is not None


def test_another_thread_may_watch_pause_and_end_a_tape(vec):
    with Tape() as tape:
        in_thread(lambda: tape.watch(X) or True)
        assert tape.is_watched(vec.sin(X))
        pause = tape.stop_recording()
        in_thread(lambda: pause.__enter__() or True)
        assert not tape.is_watched(vec.sin(X))
        in_thread(lambda: pause.__exit__(None, None, None) or True)
        assert tape.is_watched(vec.sin(X))
        in_thread(lambda: tape.close() or True)
        vec.sin(X)
        assert repr(tape) == "<Tape: ended>"


@pytest.mark.parametrize("end", ["close", "pause"])
def test_a_tape_that_ends_while_engines_are_asked_records_nothing(vec, end):
    """The engine that is asked about Y stands for another thread, which ends the tape then."""
    tape = Tape()
    with contextlib.ExitStack() as pauses:

        class Ends:
            def needs_grad(self, value):
                if value is Y:
                    tape.close() if end == "close" else pauses.enter_context(tape.stop_recording())
                return False

            def apply(self, call):
                raise AssertionError

        with tape, register_autograd_engine(Ends()):
            tape.watch(X)
            product = vec.mul(X, Y)
            assert close(product, X * Y)
            assert not tape.is_watched(product)


def test_threads_with_tapes_of_their_own_do_not_meet(vec):
    barrier = threading.Barrier(4)
    found = {}

    def work(number):
        x = Vec(float(number))
        for _ in range(25):
            with Tape(ones_like=ones) as tape:
                tape.watch(x, X)
                barrier.wait()
                y = cube(vec)(x)
                barrier.wait()
            found.setdefault(number, set()).add(tape.gradient(y, x).items[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {3.0 * number * number} for number in range(4)}


def test_threads_may_ask_one_persistent_tape_at_once(vec):
    with Tape(ones_like=ones, persistent=True) as tape:
        tape.watch(X)
        y = vec.sin(cube(vec)(X))
    expected = tape.gradient(y, X).items
    found = []
    threads = [
        threading.Thread(target=lambda: found.extend(tape.gradient(y, X).items for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 200


@pytest.mark.parametrize("held", [True, False])
def test_a_child_uses_a_tape_whose_lock_another_thread_had_when_it_was_forked(held):
    got = run_main(
        """
import threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
from tapes import Tape
md.register_type(float, "CPU")
tape, inside, forked = Tape(persistent=True), threading.Event(), threading.Event()
def hold():
    if args[0]:
        with tape._lock:
            inside.set()
            forked.wait()
    else:
        inside.set()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    signal.alarm(int(limit(30)))  # it would wait for ever
    with tape:
        tape.watch(2.0)
    tape.close()
    os._exit(7)
forked.set()
thread.join()
done(status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        held,
    )
    assert got["status"] == 7, got["stderr"]


# --- in four places -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_a_tape_records_pauses_and_ends_alike_in_every_place(place, tmp_path):
    module = """
        import mdispatch as md
        from mdispatch import register_autograd

        class Number:
            __dispatch_keys__ = "CPU"
            def __init__(self, value):
                self.value = value
            def __add__(self, other):
                return Number(self.value + other.value)

        lib = md.Library("feature", "DEF")
        lib.define("total(Tensor[] xs) -> (Tensor, int)")
        lib.impl("total", lambda xs: (Number(sum(x.value for x in xs)), len(xs)), "CPU")

        def keep(ctx, inputs, output):
            ctx.count = output[1]

        register_autograd(
            "feature::total", lambda ctx, g, _: ([g] * ctx.count,), setup_context=keep
        )
    """
    body = """
        import mdispatch as md
        from feature import Number
        from tapes import Tape

        x, y = Number(5.0), Number(1.0)
        with Tape(ones_like=lambda value: Number(1.0)) as tape:
            tape.watch(x)
            total, count = md.ops.feature.total([x, y, x])
            with tape.stop_recording():
                paused, _ = md.ops.feature.total([x])
        watched = [tape.is_watched(each) for each in (total, paused)]
        found = tape.gradient(total, [x, y])
        try:
            tape.gradient(total, x)
        except md.errors.AutogradError as error:
            again = "not persistent" in str(error)
        result = dict(
            total=total.value, count=count, watched=watched, again=again,
            x=found[0].value, y=found[1],
        )
    """
    assert run_at(place, module, body, tmp_path) == {
        "total": 11.0,
        "count": 3,
        "watched": [True, False],
        "x": 2.0,
        "y": None,
        "again": True,
    }

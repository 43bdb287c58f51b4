"""While a hermetic guard is open, no mode and no rule of a type takes part in calls; when it ends,
home forgets the objects that were pickled.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import signal
import threading
import weakref

import pytest
from alarms import end_alarms
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import guards, keeping
from mdispatch.dispatch.context.guards import (
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    SetExcludeDispatchKeyGuard,
    excluded_keys,
    included_keys,
    set_excluded,
    set_included,
)
from mdispatch.dispatch.context.hermetic import SafeObject, hermetic, is_hermetic
from mdispatch.facts.native import calls
from mdispatch.keys import BACKEND_BITS
from mdispatch.keys.numbers import FULL

pytestmark = pytest.mark.either_binding

DEFAULTS = (guards.DEFAULT_INCLUDED, guards.DEFAULT_EXCLUDED)


def sets():
    """Both sets of this thread. The sets that calls read have to be the same."""
    included, excluded = included_keys(), excluded_keys()
    kept = FULL & ~(excluded.raw & ~BACKEND_BITS)
    assert calls.now() == (included.raw, kept)
    return included, excluded


def flags():
    """The flags that the guard of the original saves and sets: hermetic, Python excluded, Python
    included, PythonTLSSnapshot included.
    """
    included, excluded = sets()
    return (
        is_hermetic(),
        "Python" in excluded,
        "Python" in included,
        "PythonTLSSnapshot" in included,
    )


def in_thread(function, *args):
    """The result of the function in a thread of its own, which begins with the default sets."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    assert results, "the function raised"
    return results[0]


@pytest.fixture(autouse=True)
def whatever_happens_the_thread_ends_as_it_began():
    before = dict(keeping._kept)
    yield
    assert sets() == DEFAULTS
    assert not is_hermetic()
    assert keeping._kept == before
    assert not keeping._keeping


class Thing:
    pass


def came_home(sent):
    """Whether a pickle still stands for its object."""
    back = pickle.loads(sent)
    if repr(back).endswith(", at home>"):
        back.open()
        return True
    with pytest.raises(errors.ObjectGoneError, match=r"pickled inside hermetic\(\)"):
        back.open()
    return False


# --- the four flags -------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [*itertools.product([False, True], repeat=3)], ids=str)
def test_the_four_flags_are_set_and_come_back_whatever_they_were(before):
    def run():
        set_excluded("Python", before[0])
        set_included("Python", before[1])
        set_included("PythonTLSSnapshot", before[2])
        seen = [flags()]
        with hermetic():
            seen.append(flags())
            with hermetic():
                seen.append(flags())
            seen.append(flags())
        return [*seen, flags()]

    inside = (True, True, False, False)
    assert in_thread(run) == [(False, *before), inside, inside, inside, (False, *before)]


#: The steps, and how each changes the four flags and another key of each set.
SETTERS = {
    "Python excluded": (set_excluded, "Python", True),
    "Python not excluded": (set_excluded, "Python", False),
    "Python included": (set_included, "Python", True),
    "Snapshot included": (set_included, "PythonTLSSnapshot", True),
    "Negative included": (set_included, "Negative", True),
    "Conjugate excluded": (set_excluded, "Conjugate", True),
}
PLACES_OF_FLAGS = {
    (set_excluded, "Python"): 1,
    (set_included, "Python"): 2,
    (set_included, "PythonTLSSnapshot"): 3,
    (set_included, "Negative"): 4,
    (set_excluded, "Conjugate"): 5,
}


def as_the_original(steps):
    """The guard saves and sets four flags, and when it ends it writes back only those."""
    now, saved, seen = [False] * 6, [], []
    for step in steps:
        if step == "begin":
            saved.append(now[:4])
            now[:4] = [True, True, False, False]
        elif step == "end":
            now[:4] = saved.pop()
        else:
            function, key, on = SETTERS[step]
            now[PLACES_OF_FLAGS[function, key]] = on
        seen.append(tuple(now))
    return seen


def as_here(steps):
    opened, seen = [], []
    for step in steps:
        if step == "begin":
            opened.append(hermetic().__enter__())
        elif step == "end":
            opened.pop().__exit__()
        else:
            function, *what = SETTERS[step]
            function(*what)
        included, excluded = sets()
        seen.append((*flags(), "Negative" in included, "Conjugate" in excluded))
    return seen


@pytest.mark.thorough
def test_guards_that_end_in_order_are_those_of_the_original_flag_by_flag():
    count = 0
    for steps in itertools.product(["begin", "end", *SETTERS], repeat=5):
        depths = list(itertools.accumulate((s == "begin") - (s == "end") for s in steps))
        if min(depths) < 0 or max(depths) == 0:
            continue
        steps = [*steps, *["end"] * depths[-1]]
        assert in_thread(as_here, steps) == as_the_original(steps), steps
        count += 1
    assert count > 10_000


FIVE = {
    "hermetic": hermetic,
    "hermetic too": hermetic,
    "include": lambda: IncludeDispatchKeyGuard(("Python", "PythonTLSSnapshot", "Negative")),
    "switch": lambda: SetExcludeDispatchKeyGuard("Python", False),
    "force": lambda: ForceDispatchKeyGuard("Functionalize", "Conjugate"),
}


def alone(names):
    """The sets of a thread in which only these guards were begun."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(FIVE[name]())
        return sets(), is_hermetic()


def test_in_whatever_order_guards_end_those_left_are_as_if_they_were_alone():
    expected = {}
    for n in range(5):
        for left in itertools.permutations(FIVE, n):
            expected[left] = in_thread(alone, left)
            assert expected[left][1] == any("hermetic" in name for name in left)
    for begun in itertools.permutations(FIVE, 4):
        for ended in itertools.permutations(begun):
            opened = {name: FIVE[name]().__enter__() for name in begun}
            for name in ended:
                opened.pop(name).__exit__()
                assert (sets(), is_hermetic()) == expected[tuple(opened)], (begun, ended, name)


def test_the_outer_guard_may_end_first_and_no_key_stays_switched():
    """If whole sets were saved and written back, Python would stay excluded for good."""
    first, second = hermetic(), hermetic()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert flags() == (True, True, False, False)
    second.__exit__()
    assert flags() == (False, False, False, False)
    outer = ExcludeDispatchKeyGuard("Python").__enter__()
    inner = hermetic().__enter__()
    outer.__exit__()
    assert flags() == (True, True, False, False)
    inner.__exit__()
    assert sets() == DEFAULTS


def test_it_can_be_used_again_and_inside_itself():
    guard = hermetic()
    for _ in range(2):
        with guard as entered:
            assert entered is guard
            with guard:
                assert is_hermetic()
            assert flags() == (True, True, False, False)
        assert sets() == DEFAULTS
    with pytest.raises(errors.InvalidArgumentError, match="this HermeticGuard was not entered"):
        guard.__exit__()


def test_it_holds_for_its_thread_only():
    with hermetic():
        assert in_thread(flags) == (False,) * 4
        assert is_hermetic()

    def inside():
        with hermetic():
            return flags()

    assert in_thread(inside) == (True, True, False, False)
    assert not is_hermetic()


@pytest.mark.thorough
@pytest.mark.dear
def test_a_guard_that_nobody_holds_has_ended():
    hermetic().__enter__()
    assert sets() == DEFAULTS
    cycle = [hermetic().__enter__()]
    cycle.append(cycle)
    parcel = SafeObject(Thing())
    thing = weakref.ref(parcel.open())
    sent = pickle.dumps(parcel)
    assert is_hermetic()
    del cycle, parcel
    assert came_home(sent)
    gc.collect()
    assert flags() == (False,) * 4
    assert not came_home(sent)
    assert thing() is None


def test_a_generator_that_goes_on_elsewhere_ends_its_guard_here():
    def steps():
        with hermetic():
            yield pickle.dumps(SafeObject(Thing()))

    running = steps()
    sent = next(running)
    assert is_hermetic()
    assert came_home(sent)
    assert in_thread(lambda: (is_hermetic(), list(running), is_hermetic())) == (False, [], False)
    assert not is_hermetic()
    assert not came_home(sent)


def test_an_end_from_another_thread_is_refused_and_home_keeps_what_was_pickled():
    def end():
        with pytest.raises(errors.ModeStackError):
            guard.__exit__()
        return is_hermetic()

    with hermetic() as guard:
        sent = pickle.dumps(SafeObject(Thing()))
        assert in_thread(end) is False
        assert is_hermetic()
        assert came_home(sent)
    assert not came_home(sent)


def test_what_a_block_raises_passes_and_the_guard_ends():
    def block():
        with hermetic():
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        block()
    assert sets() == DEFAULTS


def test_calls_pass_by_the_key_python(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> str")
    for key in ("CPU", "Python"):
        lib.impl("f", lambda x, key=key: key, key)
    value = type("Value", (), {"__dispatch_keys__": ("CPU", "Python")})()
    assert registry.ops.s.f(value) == "Python"
    with hermetic():
        assert registry.ops.s.f(value) == "CPU"
    assert registry.ops.s.f(value) == "Python"


# --- what home forgets ----------------------------------------------------------------------------


def test_what_is_pickled_inside_comes_home_until_the_guard_ends_and_is_not_kept():
    parcel = SafeObject(Thing())
    thing = weakref.ref(parcel.open())
    with hermetic():
        sent = pickle.dumps(parcel)
        assert pickle.loads(sent).open() is thing()
        del parcel
        assert pickle.loads(sent).open() is thing(), "kept while the guard is open"
    assert thing() is None
    late = pickle.loads(sent)
    with pytest.raises(errors.ObjectGoneError) as caught:
        late.open()
    assert str(caught.value) == (
        "an object of Thing is gone: it was pickled inside hermetic(), which keeps pickled "
        "objects only until it ends; pickle it outside, and close() it when nobody "
        "needs it any longer"
    )
    late.close()
    assert not came_home(sent)
    assert not came_home(pickle.dumps(late)), "to send it again does not bring it back"


def test_each_pickle_for_itself_one_from_outside_stays_good():
    parcel = SafeObject(Thing())
    before = pickle.dumps(parcel)
    with hermetic():
        inside = pickle.dumps(parcel)
    after = pickle.dumps(parcel)
    assert [came_home(sent) for sent in (before, inside, after)] == [True, False, True]
    assert pickle.loads(inside) == pickle.loads(before)
    late = pickle.loads(inside)
    assert not came_home(pickle.dumps(late)), "though home still keeps the object"
    late.close()
    assert came_home(before), "what a holder has lost it cannot close"
    parcel.close()


def test_a_holder_that_came_home_in_time_stays_and_can_travel_again():
    with hermetic():
        back = pickle.loads(pickle.dumps(SafeObject(Thing())))
    assert isinstance(back.open(), Thing)
    sent = pickle.dumps(back)
    assert pickle.loads(sent).open() is back.open()
    back.close()


@pytest.mark.parametrize("ends_first", ["outer", "inner"])
def test_of_several_guards_the_first_that_ends_decides(ends_first):
    parcel = SafeObject(Thing())
    opened = {"outer": hermetic().__enter__()}
    only_outer = pickle.dumps(parcel)
    opened["inner"] = hermetic().__enter__()
    both = pickle.dumps(parcel)
    assert came_home(both)
    opened.pop(ends_first).__exit__()
    assert not came_home(both)
    assert came_home(only_outer) == (ends_first == "inner")
    then = pickle.dumps(parcel)
    assert came_home(then)
    opened.popitem()[1].__exit__()
    assert not any(map(came_home, (then, both, only_outer)))


def test_what_another_thread_pickles_meanwhile_is_kept():
    parcel = SafeObject(Thing())
    with hermetic():
        sent = in_thread(pickle.dumps, parcel)
    assert came_home(sent)
    parcel.close()


def test_a_guard_keeps_an_object_once_however_often_it_is_pickled():
    parcel = SafeObject(Thing())
    with hermetic():
        for _ in range(100):
            pickle.dumps(parcel)
        (guard,) = keeping._keeping.values()
        assert list(guard.cells.values()) == [parcel._cell]


def test_what_is_closed_inside_says_so():
    with hermetic():
        with SafeObject(Thing()) as parcel:
            sent = pickle.dumps(parcel)
        with pytest.raises(errors.ObjectGoneError, match="a holder of it was closed"):
            pickle.loads(sent).open()


def test_a_signal_handler_may_end_the_guard_in_the_middle_of_a_pickle():
    guard = hermetic()
    begun, ended, sent = [], [], []

    def handler(number, frame):
        if begun:  # nothing can end a guard that has not quite begun
            begun.clear()
            guard.__exit__()
            ended.append(1)
        signal.setitimer(signal.ITIMER_REAL, 1e-4)  # at fixed times, slow ones would pile up

    signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5)
        while len(ended) < 100:
            guard.__enter__()
            begun.append(1)
            sent.append(pickle.dumps(SafeObject(Thing())))
            while begun:
                pickle.dumps(SafeObject(Thing()))
    finally:
        end_alarms()
    assert not keeping._keeping
    for each in sent:
        # If the handler came before the pickle, the pickle was made outside the guard and is kept.
        with contextlib.suppress(errors.ObjectGoneError):
            back = pickle.loads(each)
            back.open()
            back.close()
    for cell in tuple(keeping._kept.values()):
        keeping.give_up(cell)


# --- everywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_it_serves_in_every_place(place, tmp_path):
    feature = """
    import mdispatch as md
    lib = md.Library("hermetic_here", "DEF")
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "CPU", "CPU")
    lib.impl("f", lambda x: "Python", "Python")

    class Value:
        __dispatch_keys__ = ("CPU", "Python")
    """
    body = """
    import pickle
    import feature
    import mdispatch as md
    from mdispatch import errors
    from mdispatch.context import excluded_keys, included_keys
    from mdispatch.dispatch.context.hermetic import SafeObject, hermetic, is_hermetic
    f, value = md.ops.hermetic_here.f, feature.Value()
    before = (included_keys(), excluded_keys())
    seen = [(is_hermetic(), f(value))]
    outer, inner = hermetic().__enter__(), hermetic().__enter__()
    sent = pickle.dumps(SafeObject(value))
    seen.append((is_hermetic(), f(value)))
    back = pickle.loads(sent).open() is value
    outer.__exit__()
    seen.append((is_hermetic(), f(value)))
    inner.__exit__()
    seen.append((is_hermetic(), f(value)))
    try:
        pickle.loads(sent).open()
    except errors.ObjectGoneError as error:
        gone = "hermetic()" in str(error)
    restored = before == (included_keys(), excluded_keys())
    result = dict(seen=seen, back=back, gone=gone, restored=restored)
    """
    assert run_at(place, feature, body, tmp_path) == {
        "seen": [(False, "Python"), (True, "CPU"), (True, "CPU"), (False, "Python")],
        "back": True,
        "gone": True,
        "restored": True,
    }


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_in_a_workers_thread_it_is_that_threads(place, tmp_path):
    body = """
    import threading
    from mdispatch.dispatch.context.hermetic import hermetic, is_hermetic
    seen = []
    def run():
        with hermetic():
            seen.append(is_hermetic())
            other = threading.Thread(target=lambda: seen.append(is_hermetic()))
            other.start()
            other.join()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result = dict(seen=[*seen, is_hermetic()])
    """
    assert run_at(place, "import mdispatch", body, tmp_path) == {"seen": [True, False, False]}

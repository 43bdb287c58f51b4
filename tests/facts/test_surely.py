"""What has to be given back although signal handlers may raise, in C and in plain Python. See
Note [Handlers that raise] in native/bind/call/surely.c; tests/project/test_storm.py raises for
real.
"""

from __future__ import annotations

import pytest
from kinds import run_main

from mdispatch.facts.native import calls, calls_py

BOTH = pytest.mark.parametrize("way", [calls, calls_py], ids=["as it is here", "in Python"])


def raising(*errors):
    """A function that raises these, one in each call, and then returns its arguments."""
    left = list(errors)

    def function(*args):
        calls.append(args)
        if left:
            raise left.pop(0)
        return args

    calls: list[tuple[object, ...]] = []
    return function, calls


@BOTH
def test_what_comes_to_its_end_at_once_runs_once(way):
    function, calls = raising()
    assert way.surely(function, 1, "a") == (1, "a")
    assert calls == [(1, "a")]
    with pytest.raises(TypeError):
        way.surely()


@BOTH
@pytest.mark.parametrize("others", [(), (SystemExit(2), TimeoutError("later"))])
def test_what_is_interrupted_runs_to_its_end_and_the_first_interrupt_is_raised(way, others):
    first = KeyboardInterrupt("first")
    function, calls = raising(first, *others)
    with pytest.raises(KeyboardInterrupt) as caught:
        way.surely(function, 1)
    assert caught.value is first
    assert calls == [(1,)] * (2 + len(others))


@BOTH
@pytest.mark.parametrize(("kind", "most"), [(ValueError, 20), (KeyboardInterrupt, 1000)])
def test_what_always_raises_ends_with_what_it_raised_last(way, kind, most):
    errors = [kind(number) for number in range(most + 1)]
    function, calls = raising(*errors)
    with pytest.raises(kind) as caught:
        way.surely(function)
    assert caught.value is errors[most - 1]
    assert len(calls) == most


@BOTH
def test_what_was_made_is_noted_and_what_was_refused_is_not(way):
    there: list[object] = []
    assert way.noted(there, max, 2, 3) == 3
    with pytest.raises(ValueError, match="no"):
        way.noted(there, raising(ValueError("no"))[0])
    assert there == [3]
    with pytest.raises((TypeError, AttributeError)):
        way.noted((), max, 2, 3)


@pytest.mark.shared
def test_a_wait_that_nobody_ends_does_not_keep_the_process():
    got = run_main(
        """
        import threading
        from mdispatch.facts import waits
        from mdispatch.facts.living import waits as its
        md.default_registry()
        waits._LOOKS = 10
        threading.Thread(target=int).start()
        its.begin("stays")
        done(under_way=len(its.under_way))
        """
    )
    assert got["under_way"] == 1

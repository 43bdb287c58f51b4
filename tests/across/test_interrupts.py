"""A signal handler that raises in the midst of a call, as that of Ctrl-C does."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
from kinds import until
from patience import limit

from mdispatch.across.transports import host, transport
from mdispatch.across.transports.messages import Messages
from mdispatch.facts.native import c_kernels

pytestmark = pytest.mark.shared


class Interrupted(BaseException):
    """What the handler raises."""


def interrupted(call, at: int) -> tuple[object, int]:
    """Calls; at this instruction of the transport, counted from 0, the handler raises. Returns the
    outcome, and how many instructions there were.

    In a thread of its own: what a tracer raises where an `except` ends leaves that exception as the
    one that the thread handles, and each later error of the thread would have it as its context.
    """
    inside = {
        each.__code__
        for cls in (host._Line, Messages, host.HostTransport)
        for each in vars(cls).values()
        if hasattr(each, "__code__")
    }
    met = 0

    def trace(frame, event, arg):
        nonlocal met
        if event == "call":
            if frame.f_code not in inside:
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode":
            met += 1
            if met == at + 1:
                raise Interrupted
        return trace

    outcome: object = None

    def run():
        nonlocal outcome
        sys.settrace(trace)
        try:
            outcome = call()
        except Interrupted:
            outcome = Interrupted
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome, met


@pytest.fixture
def stalled(monkeypatch):
    """An owner that takes no call until the last one of the events is set, and what it took."""
    events = [threading.Event()]
    took: list[object] = []
    serve = host._Owner._serve

    def serve_later(self, messages):
        events[-1].wait(limit(60.0))
        serve(self, messages)

    monkeypatch.setattr(host._Owner, "_serve", serve_later)
    owner = host._Owner(lambda call, caller: took.append(call) or (0, None))
    yield owner, events, took
    events[-1].set()
    owner.close()


def test_a_signal_handler_that_serves_while_the_owner_starts_serves_by_the_same(monkeypatch):
    transport, real, found = host.HostTransport(), host._Owner, []

    def handler(number, frame):
        found.append(transport.serve(lambda call, caller: (0, None)))

    def interrupted(answer):
        monkeypatch.setattr(host, "_Owner", real)
        signal.raise_signal(signal.SIGUSR1)
        return real(answer)

    threads = set(threading.enumerate())
    monkeypatch.setattr(host, "_Owner", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert transport.serve(lambda call, caller: (0, None)) == found[0]
    finally:
        signal.signal(signal.SIGUSR1, before)
    until(lambda: len(set(threading.enumerate()) - threads) == 1)
    transport._end()
    until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 1 << 17])
def test_a_call_that_is_interrupted_at_any_instruction_is_taken_back(stalled, size):
    owner, events, took = stalled
    # Python 3.12 tells nothing of the instructions of code that it traces for the first time.
    for at in [-1, *range(100_000)]:
        caller = host.HostTransport()
        line = caller._opened(owner.address, 0)
        caller._idle[owner.address] = [line]
        deadline = c_kernels.now() + 2_000_000
        outcome, count = interrupted(
            lambda: caller.call(owner.address, [b"x" * size], (), deadline),  # noqa: B023
            at,
        )
        # The next call takes no line of which an answer may still come.
        assert line.is_idle or not caller._idle[owner.address]
        events[-1].set()  # the owner goes on: now it would take what was left for it
        line.close()  # as whoever drops it does, where nothing was on its way
        until(lambda: not owner._lines)
        assert took == []
        events.append(threading.Event())
        if outcome is not Interrupted and at >= 0:
            break
    assert outcome == (transport.LATE, None, False)
    assert at == count > 50

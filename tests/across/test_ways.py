"""Where a routed call goes, for how long it waits, and what goes with it: the sentences of
mdispatch/across/routing.py, one by one.
"""

from __future__ import annotations

import os
import sys

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch.across import routing, serving
from mdispatch.across.offers import offer_of, offer_text
from mdispatch.across.transports.transport import LATE, NO_KERNEL, Caller
from mdispatch.dispatch.context.homes import here
from mdispatch.facts import IMPL, NOTE, Registration, interpreter_id
from mdispatch.facts.native import c_kernels

pytestmark = pytest.mark.shared

CPU = md.DispatchKey.CPU


def text_of(label: str, ticket: int, *, transport: str = "", types: str = "") -> str:
    address = "there" if transport else ""
    return offer_text(label, types, "", False, ticket, transport, address, 0, ("", ""))


def offered(ticket: int, pid: int, interpreter: int, transport: str = ""):
    text = text_of("k", ticket, transport=transport)
    fact = Registration(1, ticket, NOTE, CPU, "s::f", text, "a.py:1", pid, interpreter)
    return offer_of(fact)


def tickets(found) -> list[int]:
    return [each.ticket for each in found]


def test_the_way_goes_to_other_interpreters_of_this_process_first_and_then_to_other_processes():
    me, other, more = os.getpid(), interpreter_id + 1, interpreter_id + 2
    found = [
        offered(9, me + 1, 0, "host"),
        offered(8, me, other),
        offered(7, me + 2, 0),  # serves its own process only
        offered(6, me, interpreter_id),  # this one
        offered(5, me, more, "host"),
        offered(4, me + 2, 3, "host"),
    ]
    assert tickets(routing._reachable(found)) == [8, 5, 9, 4]  # each kind the newest first


def test_the_newest_offer_of_just_this_kernel_comes_first(registry, lib):
    lib.define("f() -> int")
    facts = registry.dispatcher.facts
    definition = facts.registrations("s::f")[2][0]

    def register(kind: int, text: str, key: int = CPU) -> Registration:
        return facts.register(kind, key, "s::f", text, "a.py:1")

    kernel = register(IMPL, "one")
    register(NOTE, text_of("one", 4))
    register(NOTE, text_of("another name, as a member has it", 5))
    register(NOTE, text_of("one", 6), md.DispatchKey.CUDA)
    register(NOTE, text_of("one", 7, types="shop.A"))
    register(NOTE, "something else")
    register(NOTE, text_of("one", 8))
    assert tickets(routing.offers(facts, "s::f", kernel, definition)) == [8, 5, 4]
    # Where the key has several kernels for the same types, an offer says by its label of which.
    newer = register(IMPL, "two")
    register(NOTE, text_of("two", 9))
    assert tickets(routing.offers(facts, "s::f", kernel, definition)) == [8, 4]
    assert tickets(routing.offers(facts, "s::f", newer, definition)) == [9]


@pytest.mark.thorough
def test_handles_of_two_homes_that_both_serve_a_kernel_lead_nowhere():
    got = run_main("""
import pickle, subprocess, sys
from mdispatch.across import routing
lib = md.Library("shop", "DEF")
lib.define("who(Any a, Any[] b) -> int")
lib.impl("who", lambda a, b: -1, "CompositeExplicitAutograd")
OWNER = '''
import os, pickle, sys
import mdispatch as md
class Box:
    pass
md.Library("shop", "IMPL").impl("who", lambda a, b: os.getpid(), "CompositeExplicitAutograd",
                                serve="host")
kept = [md.share(Box(), serve="host") for _ in range(2)]
sys.stdout.buffer.write(pickle.dumps([[each._number, each.home, each._way] for each in kept]))
sys.stdout.flush()
sys.stdin.read()
'''
owners = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(OWNER)], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE) for _ in range(2)]
homes = [pickle.load(each.stdout) for each in owners]
CALLER = f'''
import pickle
import mdispatch as md
from mdispatch.across import sharing
homes = pickle.loads({pickle.dumps(homes)!r})
handles = [[sharing._arrived(home, number, "Box", None, "", way) for number, home, way in each]
           for each in homes]
def outcome(a, b):
    try:
        return md.ops.shop.who(a, b)
    except Exception as error:
        return type(error).__name__
(a, b), (c, d) = handles
with md.routing("shop", timeout=LIMIT):
    print([outcome(a, []), outcome(c, []), outcome(None, [b, a]), outcome(c, [d, None]),
           outcome(a, [c]), outcome(None, [d, b])])
'''
command = [sys.executable, "-c", textwrap.dedent(CALLER).replace("LIMIT", str(limit(60)))]
ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
for each in owners:
    each.communicate()
done(outcomes=eval(ran.stdout), pids=[each.pid for each in owners])
""")
    one, two = got["pids"]
    both = "ForeignObjectError"
    assert got["outcomes"] == [one, two, one, two, both, both]


# --- what a call inside another one inherits ------------------------------------------------------


class Loop:
    """A transport that notes what it is to carry."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[object], int]] = []

    def call(self, address, call, written, deadline):
        self.calls.append((call, deadline))
        return 0, "told", True


def carried(loop: Loop, deadline: int) -> object:
    return routing.carry("s::f", here, loop, "there", 4, (), {}, (), deadline, 1.0)


@pytest.fixture
def inside():
    """Answers a call of another process in this thread."""
    tokens = []

    def begin(deadline: int, way: list[str]) -> None:
        tokens.append(serving._call.set(serving.Call(deadline, way, Caller(lambda: False))))

    yield begin
    for token in reversed(tokens):
        serving._call.reset(token)


@pytest.mark.parametrize(
    ("outer", "inner", "counts"),
    [(0, 0, 0), (0, 50, 50), (100, 0, 100), (100, 200, 100), (100, 50, 50), (100, 100, 100)],
)
def test_a_call_inside_another_one_has_no_later_deadline(inside, outer, inner, counts):
    loop = Loop()
    inside(outer, ["far"])
    assert carried(loop, inner) == "told"
    [(call, deadline)] = loop.calls
    assert (call[1], deadline) == (counts, counts)
    assert call[2] == ["far", str(here())]


def test_so_many_calls_are_inside_one_another_and_the_next_is_refused(inside):
    loop = Loop()
    assert carried(loop, 0) == "told"
    inside(0, [f"home {number}" for number in range(31)])  # with this one it is 32
    assert carried(loop, 0) == "told"
    assert len(loop.calls[-1][0][2]) == 32
    inside(0, [f"home {number}" for number in range(32)])
    with pytest.raises(md.errors.RoutingCycleError) as caught:
        carried(loop, 0)
    assert len(loop.calls) == 2
    assert caught.value.chain[:2] == ("home 0", "home 1")
    assert len(caught.value.chain) == 34


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["shared-gil", "own-gil"])
def test_a_visit_inside_another_one_has_no_later_deadline(kind):
    if kind == "own-gil" and sys.version_info < (3, 12):
        pytest.skip("interpreters have a GIL of their own from Python 3.12 on")
    got = run_main(
        """
import threading
from mdispatch.facts.native import c_kernels
lib = md.Library("shop", "DEF")
ANY = "CompositeExplicitAutograd"
for name in ("outer", "inner"):
    lib.define(f"{name}(int until) -> str")
inner = []
def ran(until):
    inner.append(until)
    return "ran"
lib.impl("inner", ran, ANY, serve=True)
lib.impl("outer", lambda until: "", ANY)
owner, caller = (md.create_interpreter(own_gil=args[0] == "own-gil") for _ in range(2))
owner.exec(textwrap.dedent('''
import mdispatch as md
from mdispatch.facts.native import c_kernels
def outer(until):
    while c_kernels.now() < until:
        pass
    try:
        with md.routing("shop", timeout=None):
            return md.ops.shop.inner(until)
    except md.errors.CallTimeoutError as error:
        return f"late {error.started}"
md.Library("shop", "IMPL").impl("outer", outer, "CompositeExplicitAutograd", serve=True)
'''))
file = Path(__file__).with_name("answers")
text = f'''
import mdispatch as md
from mdispatch.facts.native import c_kernels
answers = []
for timeout, after in ((LIMIT, 0), (0.5, 600_000_000)):
    with md.routing("shop", timeout=timeout):
        until = c_kernels.now() + after
        try:
            answers.append(md.ops.shop.outer(until))
        except md.errors.CallTimeoutError as error:
            answers.append(f"outer {{error.started}}")
open({str(file)!r}, "w").write(repr(answers))
'''
text = textwrap.dedent(text).replace("LIMIT", str(limit(60.0)))
thread = threading.Thread(target=caller.exec, args=(text,))
thread.start()
thread.join()
caller.close()
owner.close()
done(answers=eval(file.read_text()), inner=len(inner))
""",
        kind,
    )
    assert got["answers"][0] == "ran"
    assert got["answers"][1] in ("late False", "outer False")  # the latter on a busy machine
    assert got["inner"] == 1


# --- what an owner answers ------------------------------------------------------------------------


def test_a_call_past_its_deadline_is_not_run(monkeypatch):
    ran = []
    ticket = 1 << 40
    monkeypatch.setitem(serving._served_outside, ticket, (lambda *args: ran.append(args), None))
    caller = Caller(lambda: False)
    now = c_kernels.now()
    assert serving.answer([ticket, now - 1, [], [1], [], []], caller) == (LATE, None)
    assert serving.answer([ticket + 1, 0, [], [2], [], []], caller) == (NO_KERNEL, None)
    for call in ([ticket, 0, [], [3], [], []], [ticket, now + 3600 * 10**9, [], [4], [], []]):
        assert serving.answer(call, caller) == (0, None)
    assert ran == [(3,), (4,)]


@pytest.mark.parametrize(
    ("deadline", "has_gone", "is_cancelled"),
    [(0, False, False), (1, False, True), (1 << 62, False, False), (0, True, True)],
)
def test_a_call_is_cancelled_when_its_time_is_up_or_its_caller_gone(
    deadline, has_gone, is_cancelled
):
    token = serving._call.set(serving.Call(deadline, [], Caller(lambda: has_gone)))
    try:
        assert md.cancelled() is is_cancelled
    finally:
        serving._call.reset(token)
    assert md.cancelled() is False

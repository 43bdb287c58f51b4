"""A storm of signals whose handler raises: after it another thread can do everything, nothing is
counted or locked, nothing lacks an owner, and the process ends. See Note [Handlers that raise] in
native/bind/call/surely.c.
"""

from __future__ import annotations

import pytest
from kinds import run_main
from seeds import seed_of

# In plain Python, what gives back is steps of Python, between which a handler may still come.
pytestmark = pytest.mark.shared

STORM = """
import gc, itertools, threading
from storm import Storm, with_forgets_its_exit
from mdispatch import choices
from mdispatch.providers.order import guards, priorities_of
from mdispatch.facts import CLAIM
from mdispatch.facts.living import waits
from mdispatch.facts.native.calls import changed_sets
from mdispatch.choices.choosing import Turns

what, of, rounds, seed = args
if with_forgets_its_exit():
    return done(loses=True)

class A:
    pass

md.register_type(A, "CPU")
make = {"local": md.Registry.local, "shared": md.Registry.create}[of]
registry, number = make(), itertools.count()
lib = md.Library("n", "DEF", registry=registry)
lib.define("f(Tensor x) -> str")
lib.impl("f", lambda x: "p", "CPU", provider="p")
lib.impl("f", lambda x: "q", "CPU", provider="q")
f, facts = registry.ops.n.f.default, registry.dispatcher.facts
before = facts.registrations()[2]

def wait():
    facts.await_change(0, 0.0)
    md.wait_for_def("n::f", 0.0, registry=registry)

def choose():
    md.choose("n::f", next(number), [1, 2], lambda: 1, registry=registry)

def register():
    each = md.Library("n", "FRAGMENT", registry=registry)
    name = each.define(f"g{next(number)}(Tensor x) -> str")
    each.impl(name, lambda x: "g", "CPU")
    registry.ops.find(name)(A())
    each.close()

def guard():
    with md.priority(f, ["p"]):
        f(A())
    with md.context.ExcludeDispatchKeyGuard("AutogradCPU"):
        f(A())

def prioritise():
    handle = md.set_priority("n::f", ["p"], registry=registry)
    opened.append(handle)
    handle.close()
    opened.pop()

opened = []
works = {"waits": wait, "choices": choose, "registrations": register, "guards": guard,
         "priorities": prioritise}
for each in works.values():
    each()  # what is imported late is here then
storm = Storm(seed)
longest = {"waits": 5e-5, "choices": 4e-4, "registrations": 8e-4, "guards": 5e-5,
           "priorities": 1e-4}
storm.run(works[what], rounds, longest[what])
gc.collect()
end_left = [each for runs in list(registry.dispatcher.libraries.values())
            for opened in list(runs.values()) for each in list(opened) if each is not lib]
for each in [*end_left, *opened]:
    each.close()
opened.clear()
for choice in choices.made(registry=registry):
    choices.withdraw(choice, registry=registry)
left = dict(
    waits=len(waits.under_way),
    turns=len(registry.dispatcher.of(Turns).deciding),
    claims=facts.registrations_since(CLAIM, 0)[0],
    guards=len(guards.open) + guards.stack.priority,
    keys=changed_sets(),
    priorities=sum(map(len, priorities_of(registry.dispatcher.fallbacks).own.values())),
    facts=[each.text for each in facts.registrations()[2] if each not in before],
)

def everything():
    for work in works.values():
        work()
    told.append(f(A()))
    registry.check_invariants()

told = []
other = threading.Thread(target=everything, daemon=True)
other.start()
other.join(limit(20))
done(interrupts=storm.interrupts, left=left, told=told)
"""


@pytest.mark.parametrize("registry", ["local", "shared"])
@pytest.mark.parametrize("what", ["waits", "choices", "registrations", "guards", "priorities"])
def test_after_a_storm_of_signals_nothing_is_left_and_all_goes_on(what, registry, long_form):
    got = run_main(STORM, what, registry, 10_000 if long_form else 400, seed_of(long_form))
    if got.get("loses"):
        pytest.skip("this CPython forgets the __exit__ of a `with` where a signal handler raises")
    assert got["interrupts"] > 20
    nothing = {"waits": 0, "turns": 0, "claims": 0, "guards": 0, "priorities": 0}
    assert got["left"] == {**nothing, "keys": None, "facts": []}
    assert got["told"] == ["q"]

"""Calls of other interpreters, and methods of classes, while the main interpreter defines the
operator anew: see tests/dispatch/test_outdated.py.
"""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, run_main

pytestmark = pytest.mark.shared

#: Two definitions that differ in the order of two arguments, for modules of both sides.
TWO = """
import mdispatch as md
OLD, NEW = "div(int x, int by) -> float", "div(int by, int x) -> float"
def old(x, by):
    return x / by
def new(by, x):
    return x / by
def opened(schema, kernel, **options):
    lib = md.Library("shop", "DEF")
    lib.impl(lib.define(schema), kernel, "CompositeExplicitAutograd", **options)
    return lib
def outcome(call, **given):
    try:
        return call(**given)
    except md.MdispatchError as error:
        return type(error).__name__
"""

#: Verifies, serves what it has, and serves the new one once it has heard of that.
OWNER = """
lib = opened(OLD, old, serve=SERVE)
arrived("served")
md.wait_for_def("turn::again", limit(30))
lib.close()
lib = opened(NEW, new, serve=SERVE)
arrived("again")
md.wait_for_def("turn::end", limit(30))
report()
"""

#: Has no kernel of its own.
CALLER = """
md.allow_routing("shop", timeout=limit(20))
def call():
    return outcome(md.ops.shop.div, x=8, by=2)
seen = [call(), call()]
arrived("called")
md.wait_for_def("turn::new", limit(30))
seen += [call(), call()]
arrived("refused")
md.wait_for_def("turn::called", limit(30))
seen += [call(), call()]
report(seen=seen)
"""

ROUTED = """
import tempfile
owner, caller, two = args[2:]
exec(two, globals())
folders = [Path(tempfile.mkdtemp(dir=Path(__file__).parent)) for _ in range(2)]
turns = md.Library("turn", "FRAGMENT")
lib = opened(OLD, old)
serve = "SERVE = " + repr("host" if args[0] == "subprocess" else True)
owners = start(args[0], two + serve + owner, 1, folders[0])
until_arrived(owners, "served")
callers = start(args[1], two + caller, 1, folders[1])
until_arrived(callers, "called")
lib.close()
lib = opened(NEW, new)
turns.define("new() -> ()")
until_arrived(callers, "refused")
turns.define("again() -> ()")
until_arrived(owners, "again")
turns.define("called() -> ()")
seen = results(callers)[0]["seen"]
turns.define("end() -> ()")
results(owners)
done(seen=seen)
"""


@pytest.mark.parametrize(
    ("owner", "caller"),
    [
        ("subprocess", "subprocess"),
        ("subprocess", INTERPRETERS[-1]),
        *((kind, kind) for kind in INTERPRETERS),
    ],
)
def test_an_owner_serves_a_kernel_to_calls_of_its_text_only(owner, caller):
    got = run_main(ROUTED, owner, caller, OWNER, CALLER, TWO)
    assert got["seen"] == [4.0, 4.0, *["KernelOutdatedError"] * 2, 4.0, 4.0]


# --- typed classes --------------------------------------------------------------------------------

#: A class whose method takes two arguments in one order, or in the other.
CLASS = """
import pickle
import mdispatch as md
def registered(schema, cls):
    return md.register_class("shop.Ratio", methods={"of": schema})(cls)
class Old:
    def of(self, x, by):
        return x / by
class New:
    def of(self, by, x):
        return x / by
OLD, NEW = "(int x, int by) -> float", "(int by, int x) -> float"
def outcome(call, **given):
    try:
        return call(**given)
    except md.MdispatchError as error:
        return type(error).__name__
"""

#: Verifies the class, and has an object that the main interpreter calls.
HOME = """
registered(OLD, Old)
ratio = Old()
handle = md.share(ratio, **SERVED)
with open(f"{FOLDER}/{INDEX}.pickle", "wb") as file:
    file.write(pickle.dumps(handle))
def call():
    return [outcome(handle.of, x=8, by=2), outcome(md.ops.shop.Ratio.of, self=ratio, x=8, by=2)]
seen = call()
arrived(1)
md.wait_for_def("turn::new", limit(30))
seen += call()
arrived(2)
md.wait_for_def("turn::end", limit(30))
report(seen=seen)
"""

CALLED = """
import tempfile
kind, home, classes = args
exec(classes, globals())
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
turns = md.Library("turn", "FRAGMENT")
registered(OLD, Old)
served = "SERVED = " + repr({"serve": "host"} if kind == "subprocess" else {})
workers = start(kind, classes + served + home, 1, folder)
until_arrived(workers, 1)
handle = pickle.loads((folder / "0.pickle").read_bytes())
seen = [outcome(handle.of, x=8, by=2)]
dispatcher = md.default_registry().dispatcher
for runs in list(dispatcher.libraries.values()):
    for opened in list(runs.values()):
        for library in list(opened):
            if library is not turns:
                library.close()
registered(NEW, New)
turns.define("new() -> ()")
until_arrived(workers, 2)
seen.append(outcome(handle.of, x=8, by=2))
seen.append(outcome(md.ops.shop.Ratio.of, self=New(), x=8, by=2))
turns.define("end() -> ()")
done(here=seen, there=results(workers)[0]["seen"])
"""


@pytest.mark.parametrize("kind", ["subprocess", *INTERPRETERS])
def test_a_method_of_a_class_that_was_verified_belongs_to_its_text(kind):
    got = run_main(CALLED, kind, HOME, CLASS)
    outdated = "KernelOutdatedError"
    # A handle at home that was asked for its methods has operators.
    assert got["there"] == [4.0, 4.0, "OperatorGoneError", outdated]
    assert got["here"] == [4.0, outdated, 4.0]

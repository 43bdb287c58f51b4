"""Operator objects of workers: they follow the definitions of the main interpreter."""

from __future__ import annotations

import pytest
from kinds import KINDS, THREAD, run_main
from runs import in_another_run

import mdispatch as md
from mdispatch import errors

pytestmark = pytest.mark.shared


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def says(word):
    return lambda *args: word


def in_this_run(registry):
    return md.Library("s", "DEF", registry=registry, timeout=0)


def opened(registry, *schemas, word="kernel", **attributes):
    """Each time in another run of this module, so in one registry it is always the same library."""
    lib = in_another_run(in_this_run)(registry)
    for schema in schemas:
        lib.impl(lib.define(schema, **attributes), says(word), "CPU")
    return lib


def fragment(registry, *schemas, word="kernel"):
    lib = md.Library("s", "FRAGMENT", registry=registry, timeout=0)
    for schema in schemas:
        lib.impl(lib.define(schema), says(word), "CPU")
    return lib


# --- a second membership of this interpreter ------------------------------------------------------


def test_a_worker_goes_on_when_the_main_interpreter_opens_its_library_again(registry, worker):
    opened(registry, "f(Tensor x) -> str", word="main")
    opened(worker, "f(Tensor x) -> str", word="worker")
    f = worker.ops.s.f.default
    for _ in range(3):
        opened(registry, "f(Tensor x) -> str", word="main again")
        assert f(CPU) == worker.ops.s.f(CPU) == "worker"
        opened(worker, "f(Tensor x) -> str", word="worker")
        assert f(CPU) == worker.ops.s.f(CPU) == "worker"
    assert worker.ops.s.f.default is f


def test_a_worker_goes_on_when_it_opens_its_own_library_again(registry, worker):
    opened(registry, "f(Tensor x) -> str", word="main")
    opened(worker, "f(Tensor x) -> str", word="first")
    f = worker.ops.s.f.default
    opened(worker, "f(Tensor x) -> str", word="second")
    assert f(CPU) == "second"
    assert registry.ops.s.f(CPU) == "main"


@pytest.mark.parametrize(
    ("schema", "attributes"),
    [("f(Tensor x, int n=0) -> str", {}), ("f(Tensor x) -> str", {"tags": "new"})],
)
def test_a_workers_operator_is_gone_when_the_main_interpreter_defines_another(
    registry, worker, schema, attributes
):
    opened(registry, "f(Tensor x) -> str")
    opened(worker, "f(Tensor x) -> str", word="worker")
    f, packet = worker.ops.s.f.default, worker.ops.s.f
    opened(registry, schema, **attributes)
    with pytest.raises(errors.OperatorGoneError, match="another operator has since"):
        f(CPU)
    # The worker's own module is another version now.
    with pytest.raises(errors.SchemaMismatchError):
        opened(worker, "f(Tensor x) -> str")
    opened(worker, schema, word="worker again", **attributes)
    assert packet(CPU) == packet.default(CPU) == "worker again"
    assert f.is_gone


def test_a_workers_packet_leaves_out_an_overload_that_the_main_interpreter_closed(registry, worker):
    first = fragment(registry, "f.a(Tensor x) -> str")
    opened(registry, "f.b(Tensor x) -> str")
    fragment(worker, "f.a(Tensor x) -> str", word="worker's a")
    opened(worker, "f.b(Tensor x) -> str", word="worker's b")
    packet = worker.ops.s.f
    assert packet(CPU) == "worker's a"
    first.close()
    assert packet.overloads() == ["b"]
    assert packet(CPU) == "worker's b"


def test_a_workers_packet_finds_an_overload_that_only_the_main_interpreter_defines(
    registry, worker
):
    opened(registry, "f.a(Tensor x) -> str")
    opened(worker, "f.a(Tensor x) -> str", word="worker's a")
    packet = worker.ops.s.f
    assert packet(CPU) == "worker's a"
    fragment(registry, "f.b(Tensor x, int n) -> str")
    assert packet.overloads() == ["a", "b"]
    with pytest.raises(errors.LocalKernelMissingError):
        packet(CPU, 1)


# --- workers of every kind ------------------------------------------------------------------------

MODULE = """
import mdispatch as md

class Array:
    __dispatch_keys__ = "CPU"
lib = md.Library("r", "DEF")
lib.define("f(Tensor x) -> str")
lib.define("g(Tensor x{more}) -> str")
lib.impl("f", lambda *args: {word!r}, "CPU")
lib.impl("g", lambda *args: {word!r}, "CPU")
extra = md.Library("r", "FRAGMENT")
extra.define("h(Tensor x) -> str")
extra.impl("h", lambda *args: {word!r})
"""

#: Holds operators while the main interpreter changes its definitions twice.
HOLDER = """
import importlib, sys
sys.path.insert(0, FOLDER)
sys.dont_write_bytecode = True
import mdispatch as md, reloaded_ops
r = md.ops.r
held = [r.f.default, r.g.default, r.h.default]
def calls():
    outcomes = []
    for f in [*held, r.f, r.g, r.h]:
        try:
            outcomes.append(f(reloaded_ops.Array()))
        except md.MdispatchError as error:
            outcomes.append(type(error).__name__)
    return outcomes
seen = [calls()]
arrived(1)
md.wait_for_def("turn::same", 30)
seen.append(calls())
if not md.is_main_interpreter():
    importlib.reload(reloaded_ops)
seen.append(calls())
arrived(2)
md.wait_for_def("turn::changed", 30)
seen.append(calls())
if not md.is_main_interpreter():
    importlib.reload(reloaded_ops)
seen.append(calls())
report(seen=seen)
"""

RELOADING = """
import importlib
kind, folder, module, holder = args
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
file = Path(folder, "reloaded_ops.py")
file.write_text(module.format(more="", word="first"))
import reloaded_ops
workers = start(kind, holder, 2, Path(folder))
until_arrived(workers, 1)
turns = md.Library("turn", "FRAGMENT")
importlib.reload(reloaded_ops)
turns.define("same() -> ()")
until_arrived(workers, 2)
file.write_text(module.format(more=", int n=0", word="third, of another length"))
importlib.reload(reloaded_ops)
turns.define("changed() -> ()")
seen = [result["seen"] for result in results(workers)]
md.default_registry().check_invariants()
done(seen=seen)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_in_workers_of_every_kind_operators_go_on_if_they_are_the_same_and_not_if_not(
    kind, tmp_path
):
    got = run_main(RELOADING, kind, str(tmp_path), MODULE, HOLDER)
    third, gone = "third, of another length", "OperatorGoneError"
    for seen in got["seen"]:
        assert seen[:3] == [["first"] * 6] * 3
        # The main interpreter has loaded it again, the worker has not yet.
        mine = third if kind == THREAD else "first"
        by_name = third if kind == THREAD else "KernelOutdatedError"
        assert seen[3] == [mine, gone, mine, mine, by_name, mine]
        assert seen[4] == [third, gone, third, third, third, third]

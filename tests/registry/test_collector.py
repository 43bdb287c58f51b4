"""What Python's garbage collector has to look at: little while operators are there, and nothing of
them once the registry has ended.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from contextlib import contextmanager

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch.facts import DEF, IMPL, Registration
from mdispatch.facts.native import alone_because
from mdispatch.facts.native import fact as made_fact
from mdispatch.registry.register import RegistrationHandle
from mdispatch.schema import parser

OPERATORS = 500

free_threaded = pytest.mark.skipif(
    "free-threading" in sys.version, reason="its collector has no such figures"
)


def kernel(x: object) -> object:
    return x


def register(library: md.Library) -> None:
    for i in range(OPERATORS):
        library.define(f"f{i}(Tensor x) -> Tensor")
        library.impl(f"f{i}", kernel, "CPU")


@contextmanager
def paused():
    """The collector rests, and has nothing to do at the beginning."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def visited() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.thorough
@pytest.mark.shared
@free_threaded
def test_an_operator_with_a_kernel_is_four_objects_for_the_collector(registry, worker, lib) -> None:
    """Where it is registered, and where it is verified: the handle of the definition, the
    operator's entry with a tuple, the kernel, which is its own handle.
    """
    mine = md.Library("s", "DEF", registry=worker)
    for library in (lib, mine):
        library.define("warm(Tensor x) -> Tensor")
        library.impl("warm", kernel, "CPU")
    for library in (lib, mine):
        before = visited()
        register(library)
        assert (visited() - before) / OPERATORS == pytest.approx(4, abs=0.1)


@pytest.mark.skipif(bool(alone_because), reason="what makes facts so is the extension")
def test_the_collector_does_not_look_at_facts(registry, lib) -> None:
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", kernel, "CPU")
    facts = registry.dispatcher.facts
    found = [facts.find(DEF, 0, "s::f"), facts.find(IMPL, md.DispatchKey.CPU, "s::f")]
    found += facts.registrations()[2]
    found.append(registry.dispatcher.listeners.definition("s::f"))
    assert not [fact for fact in found if gc.is_tracked(fact)]
    assert {type(fact) for fact in found} == {Registration}


@pytest.mark.dear
@pytest.mark.skipif(bool(alone_because), reason="what makes facts so is the extension")
def test_the_collector_looks_at_what_can_be_in_a_cycle() -> None:
    class Pair(tuple):
        pass

    cycle: list[object] = []
    pair = made_fact(Pair, (1, cycle))
    assert type(pair) is Pair
    assert pair == (1, cycle)
    assert gc.is_tracked(pair)
    cycle.append(pair)
    gone = weakref.ref(Watched(cycle))
    del pair, cycle
    gc.collect()
    assert gone() is None
    for wrong in ((int, (1,)), (Pair, [1]), (1, (1,)), (Pair,)):
        with pytest.raises(TypeError):
            made_fact(*wrong)


class Watched:
    """Weak references know of its end. It is a part of what it is put into."""

    def __init__(self, within: list[object]) -> None:
        within.append(self)


def of_a_new_function(library: md.Library) -> weakref.ref[object]:
    def own(x: object) -> object:
        return x

    library.impl("f", own, "CPU")
    return weakref.ref(own)


@pytest.mark.dear
@pytest.mark.parametrize("who", ["main", pytest.param("worker", marks=pytest.mark.shared)])
def test_the_end_of_a_registry_drops_its_callables_without_the_collector(request, lib, who) -> None:
    lib.define("f(Tensor x) -> Tensor")
    if who == "worker":
        lib.impl("f", kernel, "CPU")
        library = request.getfixturevalue("mine")
        library.define("f(Tensor x) -> Tensor")
    else:
        library = lib
    with paused():
        function = of_a_new_function(library)
        assert function() is not None
        library.registry.close()
        assert function() is None
    library.close()


def test_what_a_library_ends_beside_its_facts_ends_after_the_registry_too(registry, lib) -> None:
    ended: list[str] = []
    lib.define("f(Tensor x) -> Tensor")
    lib.hold(RegistrationHandle(None, lambda: ended.append("handle")))
    registry.close()
    assert ended == []
    lib.close()
    assert ended == ["handle"]


def test_who_has_an_operator_is_told_that_its_registry_has_ended(registry, lib) -> None:
    lib.define("f(int x) -> int")
    lib.impl("f", lambda x: x, "CompositeExplicitAutograd")
    operator = registry.ops.s.f.default
    assert operator(3) == 3
    registry.close()
    with pytest.raises(md.errors.RegistryClosedError):
        operator(3)


@pytest.mark.thorough
@pytest.mark.shared
@free_threaded
def test_at_the_end_of_the_program_the_collector_does_not_look_at_its_operators() -> None:
    code = (
        "import sys; sys.path[:] = eval(sys.argv[1])\n"
        "import gc\n"
        "import mdispatch as md\n"
        "lib = md.Library('s', 'DEF')\n"
        "def kernel(x): return x\n"
        "print(len(gc.get_objects()))\n"
        "for i in range(20_000):\n"
        "    lib.define(f'f{i}(Tensor x) -> Tensor')\n"
        "    lib.impl(f'f{i}', kernel, 'CPU')\n"
        "print(len(gc.get_objects()))\n"
        "gc.disable()\n"
        "gc.set_debug(gc.DEBUG_STATS)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path)], capture_output=True, text=True, check=True
    )
    lines = re.findall(r"objects in each generation:((?: \d+)+)", done.stderr)
    looks = [sum(map(int, line.split())) for line in lines]
    assert looks, done.stderr
    before, after = map(int, done.stdout.split())
    assert after - before > 70_000 > 7 * (max(looks) - before)


def test_the_first_call_reads_no_schema_that_its_interpreter_has_read(
    registry, lib, monkeypatch
) -> None:
    lib.define("f(int x, *, float? scale=None) -> int")
    lib.impl("f", lambda x, *, scale: x, "CompositeExplicitAutograd")

    def read(*args: object) -> None:
        raise AssertionError(f"a schema is parsed again: {args[1:]}")

    monkeypatch.setattr(parser.Parser, "__init__", read)
    with pytest.raises(AssertionError):
        lib.define("g(int in_no_other_test) -> int")
    assert registry.ops.s.f(3, scale=2.0) == 3
    schema = registry.ops.s.f.default.schema
    assert str(schema) == "s::f(int x, *, float? scale=None) -> int"
    assert [each.kwarg_only for each in schema.arguments] == [False, True]


MODULE = """
import mdispatch as md
lib = md.Library("s", "DEF")
lib.define("f(Tensor x) -> Tensor")
lib.impl("f", len, "CPU")

import os

class Told:
    def __del__(self, write=os.write):  # there is no print any more by then
        write(1, b"ended\\n")

told = Told()
told.itself = told  # a cycle: only the collector ends it
"""


@pytest.mark.parametrize("collects", [True, False])
def test_a_warm_up_that_freezes_leaves_the_collector_as_it_was(tmp_path, collects) -> None:
    (tmp_path / "frozen_ops.py").write_text(MODULE)
    (tmp_path / "faulty_ops.py").write_text("1 / 0\n")
    got = run_main(
        """
        import gc
        folder, collects = args
        if not collects:
            gc.disable()
        within, before = [], gc.get_freeze_count()
        look = lambda name, *_: within.append((name, gc.isenabled()))
        sys.meta_path.insert(0, type("", (), {"find_spec": look}))
        try:
            md.warm_up("faulty_ops", [folder], freeze=True)
        except ZeroDivisionError:
            failed = gc.get_freeze_count() - before, gc.isenabled()
        del sys.meta_path[0]
        warm = md.warm_up("frozen_ops", freeze=True)
        done(
            failed=failed, within=within, frozen=gc.get_freeze_count() > 1000,
            enabled=gc.isenabled(), counted=(warm.operators, warm.kernels),
        )
        """,
        str(tmp_path),
        collects,
    )
    assert got["failed"] == (0, collects)
    within = {collected for name, collected in got["within"] if name.endswith("_ops")}
    assert within == {False}
    assert (got["frozen"], got["enabled"], got["counted"]) == (True, collects, (1, 1))


def test_what_is_in_cycles_when_it_is_frozen_ends_with_the_interpreter(tmp_path) -> None:
    (tmp_path / "frozen_ops.py").write_text(MODULE)
    code = (
        "import sys; sys.path[:] = eval(sys.argv[1])\n"
        "import mdispatch as md\n"
        "md.warm_up('frozen_ops', [sys.argv[2]], freeze=True)\n"
        "del sys.modules['frozen_ops']\n"
        "import gc; gc.collect(); print('end of the program', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path), str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n") == ["end of the program", "ended", ""]

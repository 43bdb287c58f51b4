"""A difference is remembered though a loader of plug-ins has caught it: until the name is
registered well, warm-ups tell it, and the other members of the registry know of it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit
from runs import in_another_run

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.differing import DIFFERS, told
from mdispatch.registry import verify

pytestmark = pytest.mark.shared


def says(word):
    return lambda *args, **kwargs: word


class Array:
    __dispatch_keys__ = "CPU"


class Other(Array):
    pass


def differs(worker, modules=()):
    """What a warm-up of the worker tells: the class, the kind and the name of each difference."""
    try:
        md.warm_up(modules, registry=worker, timeout=0)
    except errors.WarmUpError as error:
        return [(type(each).__name__, each.kind, each.name) for each in error.differences]
    return []


def notes(registry):
    """The first lines of what the members tell each other."""
    return [each.text.partition("\n")[0] for each in told(registry.dispatcher.facts)]


def load(plugin, *args):
    """As loaders do it."""
    with suppress(Exception):
        plugin(*args)


def library(registry, *args):
    return md.Library(*args, registry=registry, timeout=0)


# --- each kind of registration --------------------------------------------------------------------
#
# What a worker does that differs; what the main interpreter does before that, and then, so that the
# same is well.

SCHEMAS = "f(Tensor x) -> Any", "f(Tensor x, int n) -> Any"


def open_other(registry):
    return library(registry, "other", "DEF")


def define(registry, schema=SCHEMAS[1]):
    return library(registry, "s", "FRAGMENT").define(schema)


def implement(registry, **more):
    return library(registry, "s", "FRAGMENT").impl("f", says(1), "CPU", **more)


def fall_back(registry):
    return library(registry, "_", "IMPL").fallback(says(1), "CUDA")


def hold(registry):
    return library(registry, "s", "FRAGMENT").register_name("held")


def name_module(registry):
    fragment = library(registry, "s", "FRAGMENT")
    fragment.register_python_module("s::f", "some.module")
    return fragment


def prefer(registry):
    return md.set_priority("s::f", ["fast"], registry=registry, timeout=0)


def with_types(registry):
    return implement(registry, types=Other)


def of_provider(registry):
    return implement(registry, provider="fast")


def with_order(registry):
    return implement(registry, provider="fast", order=3)


#: What the worker does, the class of its error, and what the main interpreter lacks: that again.
KINDS = {
    "library": (open_other, "MainNeverArrivedError"),
    "kernel": (implement, "KeyMismatchError"),
    "kernel by type": (with_types, "KeyMismatchError"),
    "provider": (of_provider, "ProviderMissingError"),
    "fallback": (fall_back, "NotRegisteredError"),
    "name": (hold, "NameMismatchError"),
    "priority": (prefer, "PriorityMismatchError"),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.needs("providers"))
        if kind in ("provider", "priority")
        else kind
        for kind in KINDS
    ],
)
def test_what_was_caught_is_told_until_the_name_registers_well(registry, lib, worker, kind):
    does, error = KINDS[kind]
    lib.define(SCHEMAS[0])
    load(does, worker)
    (first,) = found = differs(worker)
    assert issubclass(getattr(errors, first[0]), getattr(errors, error))
    assert differs(worker) == found
    assert len(notes(registry)) == 1
    load(does, worker)  # a retry that fails is no second difference
    assert [each[1:] for each in differs(worker)] == [first[1:]] * len(found)
    kept = [does(registry), does(worker)]
    assert differs(worker) == notes(registry) == []
    del kept


def test_a_schema_that_differed_is_told_until_it_is_the_same(registry, lib, worker):
    lib.define(SCHEMAS[0])
    load(define, worker)
    assert differs(worker) == [("SchemaMismatchError", "def", "s::f")]
    assert "has another schema" in notes(registry)[0]
    define(worker, SCHEMAS[0])  # the short way, by the text as it was written
    assert differs(worker) == notes(registry) == []
    load(define, worker)
    define(worker, SCHEMAS[0].replace("(Tensor", "( Tensor"))
    assert differs(worker) == notes(registry) == []


@pytest.mark.needs("providers")
def test_an_order_that_differed_is_told_until_it_is_the_same(registry, lib, worker):
    lib.define(SCHEMAS[0])
    kept = with_order(registry)
    load(of_provider, worker)
    assert differs(worker) == [("PriorityMismatchError", "impl", "s::f")]
    kept = [kept, with_order(worker)]
    assert differs(worker) == notes(registry) == []


def test_a_module_that_differed_is_told_until_it_is_the_same(registry, lib, worker):
    lib.define(SCHEMAS[0])
    load(name_module, worker)
    assert [each[1:] for each in differs(worker)] == [("pystub", "s::f")]
    kept = [name_module(registry), name_module(worker)]
    assert differs(worker) == notes(registry) == []
    del kept


@pytest.mark.needs("across")
def test_a_class_that_differed_is_told_until_it_is_the_same(registry, lib, worker):
    def cls(registry, methods):
        made = type("Index", (), {"size": lambda self: 1})
        mark = md.register_class("s.Index", methods=methods, registry=registry, timeout=0)
        return mark(made)

    cls(registry, {"size": "() -> int"})
    load(cls, worker, {"size": "() -> str"})
    assert differs(worker)[0][:2] == ("ClassMismatchError", "class")
    cls(worker, {"size": "() -> int"})
    assert differs(worker) == notes(registry) == []


# --- what nobody tried to register, and what serves no more ---------------------------------------


def lacks(worker):
    """A warm-up that finds what is lacking; a loader has caught its error."""
    with suppress(errors.WarmUpError):
        md.warm_up([], registry=worker, timeout=0, complete="s")


def test_what_a_warm_up_found_lacking_is_told_until_it_is_registered(registry, lib, worker):
    lib.define(SCHEMAS[0])
    kept = [implement(registry)]
    lacks(worker)
    assert differs(worker) == [
        ("MissingInWorkerError", "library", "s"),
        ("MissingInWorkerError", "def", "s::f"),
        ("MissingInWorkerError", "impl", "s::f"),
    ]
    lines = notes(registry)
    assert len(lines) == 3
    assert all("but this interpreter" in line for line in lines)
    lacks(worker)
    assert notes(registry) == lines  # once for each
    mine = library(worker, "s", "DEF")
    assert [each[1] for each in differs(worker)] == ["def", "impl"]
    mine.define(SCHEMAS[0])
    kept.append(implement(worker))
    assert differs(worker) == notes(registry) == []


def test_what_is_lacking_is_forgotten_once_the_main_interpreter_lacks_it_too(registry, lib, worker):
    lib.define(SCHEMAS[0])
    lacks(worker)
    assert len(differs(worker)) == 2
    lib.close()
    assert differs(worker) == notes(registry) == []


def test_what_a_worker_tried_to_register_is_told_and_not_that_it_lacks_it(registry, lib, worker):
    lib.define(SCHEMAS[0])
    mine = library(worker, "s", "DEF")
    load(mine.define, SCHEMAS[1])
    lacks(worker)
    assert differs(worker) == [("SchemaMismatchError", "def", "s::f")]


def test_a_call_of_what_a_warm_up_found_lacking_does_not_say_that_it_was_refused(
    registry, lib, worker
):
    lib.define(SCHEMAS[0])
    kept = implement(registry)
    lacks(worker)
    with pytest.raises(errors.LocalKernelMissingError, match="did not register it"):
        worker.ops.s.f(Array())
    del kept


def divides(registry, schema, **more):
    """A library of another run that defines ``s::div`` and its kernel."""
    lib = in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()
    lib.impl(lib.define(schema), lambda x, by: x / by, **more)
    return lib


DIVISIONS = "div(int x, int by) -> float", "div(int by, int x) -> float"


@pytest.fixture(
    params=[
        pytest.param({}, id="plain"),
        pytest.param({"provider": "fast"}, id="provider", marks=pytest.mark.needs("providers")),
    ]
)
def outdated(request, registry, worker):
    """Has a worker's kernel that was verified for another definition; the options of the kernel."""
    divides(registry, DIVISIONS[0], **request.param)
    divides(worker, DIVISIONS[0], **request.param)
    assert worker.ops.s.div(8, 2) == 4.0
    divides(registry, DIVISIONS[1], **request.param)
    return request.param


def call_div(worker):
    with pytest.raises(errors.KernelOutdatedError):
        worker.ops.s.div(8, 2)


def kinds_of(worker):
    """The class of each difference that a warm-up of the worker tells."""
    try:
        md.warm_up([], registry=worker, timeout=0)
    except errors.WarmUpError as error:
        return [type(each).__name__ for each in error.differences]
    return []


def test_a_call_of_an_outdated_kernel_is_told_until_it_is_registered_again(
    registry, worker, outdated
):
    call_div(worker)
    (first,) = registry.dispatcher.facts.registrations(DIFFERS)[2]
    assert "which was verified against another definition" in notes(registry)[0]
    call_div(worker)
    assert registry.dispatcher.facts.registrations(DIFFERS)[2] == [first]  # one note for all calls
    assert kinds_of(worker) == ["KernelOutdatedError"]
    divides(worker, DIVISIONS[1], **outdated)
    assert kinds_of(worker) == notes(registry) == []
    assert worker.ops.s.div(8, 2) == 4.0


def test_a_warm_up_tells_of_an_outdated_kernel_that_nobody_has_called(registry, worker, outdated):
    assert notes(registry) == []
    assert kinds_of(worker) == ["KernelOutdatedError"]
    assert len(notes(registry)) == 1


def test_an_outdated_kernel_is_no_difference_once_its_text_is_back(registry, worker, outdated):
    call_div(worker)
    divides(registry, DIVISIONS[0], **outdated)
    assert worker.ops.s.div(8, 2) == 4.0
    assert kinds_of(worker) == notes(registry) == []


def test_an_outdated_kernel_that_was_ended_is_no_difference(registry, worker):
    divides(registry, DIVISIONS[0])
    mine = divides(worker, DIVISIONS[0])
    divides(registry, DIVISIONS[1])
    call_div(worker)
    mine.close()
    assert kinds_of(worker) == notes(registry) == []


def told_wrong_schema(registry, worker):
    load(define, worker)


def told_wrong_class(registry, worker):
    for one, returns in ((registry, "int"), (worker, "str")):
        made = type("Index", (), {"size": lambda self: 1})
        methods = {"size": f"() -> {returns}"}
        mark = md.register_class("s.Index", methods=methods, registry=one, timeout=0)
        load(mark, made)


def told_other_module(registry, worker):
    fragment = library(registry, "s", "FRAGMENT")
    fragment.register_python_module("s::f", "another.module")
    load(name_module, worker)


def told_other_types(registry, worker):
    library(registry, "s", "FRAGMENT").impl("f", says(1), "CPU", types=Array)
    load(with_types, worker)


def told_outdated(registry, worker):
    divides(registry, DIVISIONS[0])
    divides(worker, DIVISIONS[0])
    divides(registry, DIVISIONS[1])
    load(worker.ops.s.div, 8, 2)


#: Each class of differences: what makes a worker remember one of just this class, or why none does.
NOTED = {
    "VerificationError": "the base of the others, which nothing raises",
    "SchemaMismatchError": told_wrong_schema,
    "ClassMismatchError": told_wrong_class,
    "PystubMismatchError": told_other_module,
    "NotRegisteredError": "the base of those that waited in vain, which nothing raises",
    "MainNeverArrivedError": lambda registry, worker: load(open_other, worker),
    "NameMismatchError": lambda registry, worker: load(hold, worker),
    "TypesMismatchError": told_other_types,
    "ProviderMissingError": lambda registry, worker: load(of_provider, worker),
    "PriorityMismatchError": lambda registry, worker: load(prefer, worker),
    "KeyMismatchError": lambda registry, worker: load(implement, worker),
    "TypeKeysMismatchError": "of processes: the test of types below has it",
    "MissingInWorkerError": lambda registry, worker: lacks(worker),
    "NotCompatibleError": "of processes: tests/observing/test_match.py has it",
    "WarmUpError": "a list of others, which are remembered each by itself",
    "LocalKernelMissingError": "a worker need not import each module; warm_up(complete=) says so",
    "KernelOutdatedError": told_outdated,
}


def below(cls):
    return {cls, *(each for sub in cls.__subclasses__() for each in below(sub))}


def test_of_each_class_of_differences_it_is_said_whether_it_is_remembered():
    classes = below(errors.VerificationError) | below(errors.LocalKernelMissingError)
    there = {
        each.__name__ for each in classes if each.__module__ == errors.MdispatchError.__module__
    }
    assert set(NOTED) == there


#: The features that a difference of a class needs.
OF_FEATURES = {
    "ClassMismatchError": "across",
    "ProviderMissingError": "providers",
    "PriorityMismatchError": "providers",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs(OF_FEATURES[name]))
        if name in OF_FEATURES
        else name
        for name, does in NOTED.items()
        if callable(does)
    ],
)
def test_a_difference_of_each_class_is_told_to_the_other_members(registry, lib, worker, name):
    lib.define(SCHEMAS[0])
    if name == "KernelOutdatedError":
        lib.close()
    NOTED[name](registry, worker)
    found = {type(each) for each in worker.dispatcher.facts.differing}
    assert found == {getattr(errors, name)}
    assert len(notes(registry)) == len(list(worker.dispatcher.facts.differing))


# --- what is told, and what is not ----------------------------------------------------------------


@pytest.mark.needs("providers")
def test_another_registration_of_the_name_mends_nothing(registry, lib, worker):
    lib.define(SCHEMAS[0])
    lib.impl("f", says(1), "CPU", types=Other)
    library(registry, "_", "IMPL").fallback(says(1), "CPU")
    load(of_provider, worker)
    before = differs(worker)
    kept = [with_types(worker), library(worker, "_", "IMPL").fallback(says(1), "CPU")]
    kept.append(define(worker, SCHEMAS[0]))
    assert len(before) == 1
    assert differs(worker) == before


def test_two_places_that_differ_are_two_differences_and_one_name(registry, lib, worker):
    lib.define(SCHEMAS[0])
    with suppress(errors.KeyMismatchError):
        implement(worker)
    with suppress(errors.KeyMismatchError):
        library(worker, "s", "FRAGMENT").impl("f", says(1), "CPU")
    assert len(differs(worker)) == len(notes(registry)) == 2
    kept = [implement(registry), implement(worker)]
    assert differs(worker) == notes(registry) == []
    del kept


def test_calls_go_on_while_a_difference_that_was_caught_is_remembered(registry, lib, worker):
    lib.define(SCHEMAS[0])
    kept = [implement(registry), implement(worker)]
    load(fall_back, worker)
    assert worker.ops.s.f(Array()) == 1
    del kept


@pytest.mark.parametrize(
    "providers", [False, pytest.param(True, marks=pytest.mark.needs("providers"))]
)
def test_a_call_of_what_was_refused_here_says_so_and_not_that_nobody_imported_it(
    registry, lib, worker, providers
):
    lib.define(SCHEMAS[0])
    more = {"provider": "fast"} if providers else {}
    kept = [implement(registry, **more), library(registry, "s", "FRAGMENT")]
    with pytest.raises(errors.LocalKernelMissingError, match="did not register it"):
        worker.ops.s.f(Array())
    load(define, worker)
    with pytest.raises(errors.LocalKernelMissingError) as caught:
        worker.ops.s.f(Array())
    head, *lines = str(caught.value).split("\n")
    assert head.endswith("but this interpreter was refused where it would have registered it")
    assert lines[0].startswith("  registered at ")
    assert lines[1].startswith("  refused: s::f has another schema in the main interpreter (pid ")
    assert lines[1].endswith(f"({__file__}:{define.__code__.co_firstlineno + 1})")
    assert lines[2] == "Mend that first: warm_up tells all that differs."
    define(worker, SCHEMAS[0])
    with pytest.raises(errors.LocalKernelMissingError, match="did not register it"):
        worker.ops.s.f(Array())
    del kept


def test_a_wait_in_vain_is_no_difference(registry, lib, worker):
    with pytest.raises(errors.NotRegisteredError):
        md.wait_for_def("s::never", 0, registry=worker)
    assert differs(worker) == notes(registry) == []


def test_the_main_interpreter_remembers_no_refusals(registry, lib):
    lib.define(SCHEMAS[0])
    load(lib.define, SCHEMAS[1])
    assert md.warm_up([], registry=registry).differences == ()
    assert notes(registry) == []


def test_what_is_remembered_keeps_nothing_of_the_import_that_failed(registry, lib, worker):
    class Heavy:
        pass

    def plugin():
        heavy = Heavy()
        died.append(weakref.ref(heavy))
        implement(worker)

    lib.define(SCHEMAS[0])
    died = []
    load(plugin)
    gc.collect()
    assert len(differs(worker)) == 1
    assert died[0]() is None


def test_a_member_tells_of_20_differences_and_remembers_all(registry, lib, worker):
    for number in range(30):
        load(define, worker, f"f{number}() -> int")
    assert len(differs(worker)) == 30
    assert len(notes(registry)) == 20


def test_a_full_registry_leaves_the_difference_with_its_interpreter():
    with (
        md.Registry.create(capacity=466_944) as registry,
        md.Registry.attach(registry.address, timeout=0) as worker,
    ):
        lib = library(registry, "s", "DEF")
        lib.define(SCHEMAS[0])
        for letters in (200, 1):  # first the most of it, then what is left
            with suppress(errors.RegistryFullError):
                for number in range(100_000):
                    lib.define(f"{'n' * letters}{number}() -> int")
        load(define, worker)
        assert [each[0] for each in differs(worker)] == ["SchemaMismatchError"]
        assert notes(registry) == []


def test_what_differs_in_a_thread_is_told_by_a_warm_up_of_another(registry, lib, worker):
    lib.define(SCHEMAS[0])
    thread = threading.Thread(target=load, args=(define, worker))
    thread.start()
    thread.join()
    assert differs(worker) == [("SchemaMismatchError", "def", "s::f")]


def test_threads_that_fail_and_mend_at_once_leave_no_note_behind(registry, lib, worker):
    lib.define(SCHEMAS[0])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work():
        for _ in range(100):
            load(define, worker)
            define(worker, SCHEMAS[0])

    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    define(worker, SCHEMAS[0])
    assert differs(worker) == notes(registry) == []
    assert not worker.dispatcher.facts.differing.kept


def test_a_refusal_of_calls_ends_when_all_is_registered_well(registry, lib, worker, monkeypatch):
    lib.define(SCHEMAS[0])
    kept = [implement(registry), implement(worker)]
    with monkeypatch.context() as patched:
        patched.setattr(verify, "is_unheard", lambda: True)
        define(worker)
    with pytest.raises(errors.WarmUpError, match="1 difference"):
        worker.ops.s.f(Array())
    define(worker, SCHEMAS[0])
    assert worker.ops.s.f(Array()) == 1
    del kept


def test_who_becomes_the_registrar_has_mended_what_it_registers_itself():
    name = f"swallowed-{os.getpid()}"
    with md.Registry.elect(name) as first, md.Registry.elect(name) as second:
        lib = library(first, "s", "DEF")
        lib.define(SCHEMAS[0])
        mine = library(second, "s", "DEF")
        load(mine.define, SCHEMAS[1])
        assert [each[0] for each in differs(second)] == ["SchemaMismatchError"]
        assert len(notes(first)) == 1
        lib.close()
        mine.close()
        library(second, "s", "DEF").define(SCHEMAS[1])
        assert differs(second) == notes(second) == []


# --- programs -------------------------------------------------------------------------------------

PLUGIN = """
import mdispatch as md
lib = md.Library("plugged", "DEF")
lib.define("f(Tensor x) -> int" if md.is_main_interpreter() else "f(Tensor x, int n) -> int")
"""
APP = """
try:
    import plugin
except Exception:
    plugin = None  # as loaders do: the plug-in is optional
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "late.py").write_text("")
    return str(tmp_path)


WORKER = """
import sys
sys.path.insert(0, FOLDER_OF_APP)
import app
assert app.plugin is None
import mdispatch as md
def told():
    try:
        md.warm_up("late")
        return []
    except md.errors.WarmUpError as error:
        return [(type(e).__name__, e.name, e.here.rpartition("/")[2]) for e in error.differences]
first = told()
again = told()
import os
file = FOLDER_OF_APP + "/plugin.py"
good = open(file).read().replace(", int n", "")
with open(file, "w") as out:
    out.write(good + "#" * 100)
import plugin
report(first=first, again=again, mended=told())
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "fork", "spawn", "subprocess"])
def test_a_plug_in_whose_error_a_loader_caught_is_told_by_a_later_warm_up(kind, app) -> None:
    got = run_main(
        """
        kind, folder, text = args
        sys.path.insert(0, folder)
        import plugin
        del sys.modules["plugin"]  # a child of fork imports it, too
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        app,
        WORKER.replace("FOLDER_OF_APP", repr(app)),
    )
    assert got["first"] == got["again"] == [("SchemaMismatchError", "plugged::f", "plugin.py:4")]
    assert got["mended"] == []


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_what_a_module_catches_in_a_thread_of_its_own_is_told_by_its_warm_up(kind, app) -> None:
    """No audit is open in that thread, so the error is raised, and lost with the thread."""
    Path(app, "app.py").write_text(
        "import threading\n"
        "def load():\n"
        "    try:\n"
        "        import plugin\n"
        "    except Exception:\n"
        "        pass\n"
        "thread = threading.Thread(target=load)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        import plugin
        text = '''
        from mdispatch.workers.warm_up import examine
        report(found=[(type(e).__name__, e.name) for e in examine("app").differences])
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        kind,
        app,
    )
    assert got["found"] == [("SchemaMismatchError", "plugged::f")]


def test_a_child_of_fork_lacks_what_its_parent_lacked_and_tells_it(app) -> None:
    got = run_main(
        """
        import subprocess
        from mdispatch.facts.differing import told
        sys.path.insert(0, args[0])
        code = "import sys, plugin, mdispatch as md; print(md.default_registry().address)"
        main = subprocess.Popen([sys.executable, "-c", code + "; sys.stdout.flush(); input()"],
            env=os.environ | {"PYTHONPATH": args[0]}, stdin=-1, stdout=-1, text=True)
        os.environ["MDISPATCH_REGISTRY"] = main.stdout.readline().strip()
        import app
        backing = md.default_registry().dispatcher.facts
        read, write = os.pipe()
        child = os.fork()
        if not child:
            from mdispatch.workers.warm_up import examine
            here = [e.name for e in examine([]).differences]
            os.write(write, repr(here).encode())
            os._exit(0)
        os.waitpid(child, 0)
        done(child=eval(os.read(read, 300)), parent=[each.pid for each in told(backing)],
            pid=os.getpid())
        main.stdin.close(), main.wait(), main.stdout.close()
        """,
        app,
    )
    assert got["child"] == ["plugged::f"]
    assert got["parent"] == [got["pid"]]


def test_the_notes_of_a_member_that_died_are_told_to_nobody(app) -> None:
    with md.Registry.create() as registry:
        lib = library(registry, "plugged", "DEF")
        lib.define("f(Tensor x) -> int")
        program = "import app, os; print(flush=True); input()"
        worker = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"MDISPATCH_REGISTRY": registry.address, "PYTHONPATH": app},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with worker:
            worker.stdout.readline()
            (one,) = told(registry.dispatcher.facts)
            assert (one.pid, one.interpreter) == (worker.pid, 0)
            assert one.where == f"{app}/plugin.py:4"
            assert "plugged::f has another schema" in one.text
            worker.kill()
            worker.wait(limit(60))
        assert told(registry.dispatcher.facts) == ()
        assert registry.dispatcher.facts.registrations(DIFFERS)[2] != []  # until somebody joins


TYPES = """
import mdispatch as md
class Array: ...
class Other: ...
"""
TYPE_WORKER = """
import sys
sys.path.insert(0, FOLDER_OF_TYPES)
import mdispatch as md
import types_of
md.Library("first", "FRAGMENT")  # from here on the registry has this interpreter's types
from mdispatch.facts.differing import told
def found():
    notes = [each.text.split()[1] for each in told(md.default_registry().dispatcher.facts)]
    try:
        md.warm_up([])
        here = []
    except md.errors.WarmUpError as error:
        here = [e.name for e in error.differences]
    return here, notes
def register(cls, key):
    try:
        return md.register_type(cls, key)
    except md.errors.TypeKeysMismatchError:
        pass
steps = []
register(types_of.Array, "CUDA")
steps.append(found())
register(types_of.Array, "CPU")
steps.append(found())
from mdispatch.registry.verify import Audit
with Audit(0):
    handle = register(types_of.Other, "CUDA")
steps.append(found())
steps.append(found())
handle.close()
steps.append(found())
with Audit(0):
    register(types_of.Other, "CUDA")
steps.append(found())
arrived(0)
from kinds_of import until_there
until_there(FOLDER + "/closed")
steps.append(found())
report(steps=steps)
"""
WAITS = """
import os, time
def until_there(path):
    while not os.path.exists(path):
        time.sleep(0.001)
"""


@pytest.mark.parametrize("kind", [INTERPRETERS[-1], "subprocess"])
def test_a_type_that_differed_is_told_until_it_is_the_same_or_nobody_has_another(
    kind, tmp_path
) -> None:
    (tmp_path / "types_of.py").write_text(TYPES)
    (tmp_path / "kinds_of.py").write_text(WAITS)
    got = run_main(
        """
        kind, folder, text = args
        sys.path.insert(0, folder)
        import types_of
        md.Library("first", "FRAGMENT")
        md.register_type(types_of.Array, "CPU")
        other = md.register_type(types_of.Other, "CPU")
        workers = start(kind, text, 1, Path(folder))
        until_arrived(workers, 0)
        other.close()
        Path(folder, "closed").touch()
        done(**results(workers)[0])
        """,
        kind,
        str(tmp_path),
        TYPE_WORKER.replace("FOLDER_OF_TYPES", repr(str(tmp_path))),
    )
    none, array, other = [[]] * 2, [["types_of.Array"]] * 2, [["types_of.Other"]] * 2
    steps = [list(each) for each in got["steps"]]
    noted = [[], ["types_of.Other"]]  # the other member went since, and nobody has looked
    assert steps == [array, none, other, other, none, other, noted]


def test_so_does_a_call_in_a_program_whose_loader_caught_the_error(app) -> None:
    Path(app, "plugin.py").write_text(PLUGIN + 'lib.impl("f", lambda x: 1, "CPU")\n')
    got = run_main(
        """
        sys.path.insert(0, args[0])
        import plugin
        text = '''
        import app
        import mdispatch as md
        class Array: __dispatch_keys__ = "CPU"
        try:
            md.ops.plugged.f(Array())
        except md.errors.LocalKernelMissingError as error:
            report(text=str(error))
        '''
        done(**results(start("subprocess", textwrap.dedent(text), 1, Path(args[0])))[0])
        """,
        app,
    )
    head, there, refused, advice = got["text"].split("\n")
    assert head.endswith("but this interpreter was refused where it would have registered it")
    assert there.startswith(f"  registered at {app}/plugin.py:5 by pid ")
    assert refused.startswith("  refused: plugged::f has another schema in the main interpreter")
    assert refused.endswith(f"    ({app}/plugin.py:4)")
    assert advice == "Mend that first: warm_up tells all that differs."

"""The records that the package gives to `logging`, and those that it does not."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md
from mdispatch.errors.locations import host
from mdispatch.facts import TYPE, logs
from mdispatch.facts.opening import ENVIRONMENT
from mdispatch.registry import verify
from mdispatch.registry.verify import Audit

pytestmark = pytest.mark.shared

AREAS = ("registry", "verify", "waits", "calls")


class Told(logging.Handler):
    """Keeps each debug record as (area, text), and each warning likewise."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.records, self.warnings = [], []
        self.found = threading.Event()
        self.wanted = None

    def emit(self, record):
        assert record.mdispatch_host == host()
        told = record.name.removeprefix("mdispatch."), record.getMessage()
        if record.levelno == logging.WARNING:
            self.warnings.append(told)
            return
        assert record.levelno == logging.DEBUG
        self.records.append(told)
        if self.wanted and self.wanted in self.records[-1][1]:
            self.found.set()

    def of(self, area):
        return [text for name, text in self.records if name == area]


@pytest.fixture
def logger():
    top = logging.getLogger("mdispatch")
    level, handlers = top.level, list(top.handlers)
    top.setLevel(logging.DEBUG)
    yield top
    top.setLevel(level)
    for handler in set(top.handlers) - set(handlers):
        top.removeHandler(handler)


@pytest.fixture
def told(logger):
    handler = Told()
    logger.addHandler(handler)
    return handler


@pytest.fixture
def registry():
    with md.Registry.create() as made:
        yield made


@pytest.fixture
def worker(registry):
    with md.Registry.attach(registry.address, timeout=0) as attached:
        yield attached


def test_registrations_and_their_ends_are_told_with_their_places(told, registry):
    with md.Library("logs", "DEF", registry=registry) as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", len, "CPU")
        lib.close()
    here = f"from {__file__}:"
    joined, library, definition, kernel, *ends = told.of("registry")
    assert joined == f"joined {registry.address} as main"
    assert library.startswith(f"registered library logs {here}")
    assert definition.startswith(f"registered def logs::f {here}")
    assert kernel.startswith(f"registered impl logs::f at CPU {here}")
    assert ends == [
        "let go of impl logs::f at CPU",
        "let go of def logs::f",
        "let go of library logs",
    ]
    assert {name for name, _ in told.records} == {"registry"}


def test_a_refused_registration_is_not_told_as_one(told, registry):
    lib = md.Library("logs", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    before = len(told.records)
    with pytest.raises(md.errors.DuplicateRegistrationError):
        lib.define("f(Tensor x) -> Tensor")
    assert told.records[before:] == []


def test_what_a_worker_verified_is_told_and_what_differs_too(told, registry, worker):
    main = md.Library("logs", "DEF", registry=registry)
    main.define("f(Tensor x) -> Tensor")
    main.impl("f", len, "CPU")
    told.records.clear()
    with md.Library("logs", "FRAGMENT", registry=worker, timeout=0) as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", len, "CPU")
        with pytest.raises(md.errors.SchemaMismatchError) as caught:
            lib.define("f(Tensor x, int y) -> Tensor")
    definition, kernel, difference = told.of("verify")
    assert definition.startswith(f"verified def logs::f with pid {os.getpid()}, {__file__}:")
    assert kernel == "verified impl logs::f at CPU, which was there"
    first_line = str(caught.value).partition("\n")[0]
    assert difference == f"not verified: def logs::f: {first_line}"
    assert not any("registered" in text for text in told.of("registry"))


def test_an_audit_tells_of_the_same_verifications(told, registry, worker):
    main = md.Library("logs", "DEF", registry=registry)
    main.define("f(Tensor x) -> Tensor")
    main.impl("f", len, "CPU")
    with Audit(0), md.Library("logs", "FRAGMENT", registry=worker, timeout=0) as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", len, "CPU")
        lib.define("f(Tensor x, int y) -> Tensor")
    assert [text.split(" logs")[0] for text in told.of("verify")] == [
        "verified def",
        "verified impl",
        "not verified: def",
    ]


def differing(registry, schema="f(Tensor x, int y) -> Tensor"):
    with md.Library("logs", "FRAGMENT", registry=registry, timeout=0) as lib:
        lib.define(schema)


def warm(worker):
    md.warm_up([], registry=worker, timeout=0)


def test_a_member_that_is_refused_leaves_one_warning(told, logger, registry, worker):
    logger.setLevel(logging.WARNING)
    told.records.clear()
    main = md.Library("logs", "DEF", registry=registry)
    main.define("f(Tensor x) -> Tensor")
    with pytest.raises(md.errors.SchemaMismatchError) as first:
        differing(worker)
    for more in ("f(Tensor x, int z) -> Tensor", "never() -> int"):
        with pytest.raises(md.errors.VerificationError):
            differing(worker, more)
    with pytest.raises(md.errors.WarmUpError):
        warm(worker)
    ((area, text),) = told.warnings
    assert area == "verify"
    assert text.startswith(f"refused in {registry.address}: {first.value}\n")
    assert text.endswith("warm_up tells all that differs, and so does mdispatch doctor.")
    assert told.records == []


def test_a_warm_up_that_fails_leaves_one_warning_with_all_that_differs(told, registry, worker):
    main = md.Library("logs", "DEF", registry=registry)
    main.define("f(Tensor x) -> Tensor")
    with Audit(0):
        for schema in ("f(Tensor x, int z) -> Tensor", "never() -> int"):
            differing(worker, schema)
    assert told.warnings == []
    for _ in range(2):
        with pytest.raises(md.errors.WarmUpError) as caught:
            warm(worker)
    ((_, text),) = told.warnings
    assert text.startswith(f"refused in {registry.address}: 2 differences from the main")
    assert str(caught.value) in text


def test_who_has_mended_all_and_is_refused_again_leaves_a_second_warning(told, registry, worker):
    main = md.Library("logs", "DEF", registry=registry)
    main.define("f(Tensor x) -> Tensor")
    for times in (1, 2, 3):
        with pytest.raises(md.errors.SchemaMismatchError):
            differing(worker)
        assert len(told.warnings) == times
        if times == 2:  # a warm-up that finds nothing, or the registration itself
            worker.dispatcher.facts.differing.drop(next(iter(worker.dispatcher.facts.differing)))
            warm(worker)
        else:
            differing(worker, "f(Tensor x) -> Tensor")


def test_where_nobody_would_hear_the_error_the_warning_is_there(
    told, registry, worker, monkeypatch
):
    md.Library("logs", "DEF", registry=registry).define("f(Tensor x) -> Tensor")
    monkeypatch.setattr(verify, "is_unheard", lambda: True)
    differing(worker)
    assert len(told.warnings) == 1


def test_threads_that_are_refused_at_once_leave_one_warning(told, registry, worker):
    md.Library("logs", "DEF", registry=registry).define("f(Tensor x) -> Tensor")
    barrier = threading.Barrier(4)

    def refused():
        barrier.wait(limit(30))
        with contextlib.suppress(md.errors.SchemaMismatchError):
            differing(worker)

    threads = [threading.Thread(target=refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told.warnings) == 1


REFUSED = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
import mdispatch as md
class Array: ...
def caught(call, *args, **more):
    try:
        call(*args, **more)
    except md.errors.MdispatchError as error:
        print(type(error).__name__)
"""


def refused(environment, *lines):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join((REFUSED, *lines))],
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=True,
        env=os.environ | environment,
    )
    return done.stdout


def test_a_process_that_cannot_join_its_registry_leaves_one_warning():
    lines = ["caught(md.default_registry)", "caught(md.Library, 's', 'DEF')"] * 2
    out = refused({ENVIRONMENT: "no such name"}, *lines)
    assert out.count("WARNING") == 1
    assert out.startswith("WARNING mdispatch.registry not joined: 'no such name' cannot be")
    assert out.count("\nInvalidNameError") == 4


def test_a_refused_type_leaves_a_warning_too():
    with md.Registry.create() as main:
        begin = "md.Library('first', 'FRAGMENT')"
        import_as = "import sys, types; sys.modules['shop'] = types.ModuleType('shop')"
        named = "Array.__module__ = 'shop'; sys.modules['shop'].Array = Array"
        main.dispatcher.facts.register(TYPE, 0, "shop.Array", "CPU", "shop.py:3")
        for order in (
            [begin, import_as, named, "caught(md.register_type, Array, 'CUDA')"],
            [import_as, named, "md.register_type(Array, 'CUDA')", f"caught(lambda: {begin})"],
        ):
            out = refused({ENVIRONMENT: main.address}, *order)
            assert out.startswith("WARNING mdispatch.verify refused in fd:")
            assert "type shop.Array is registered for CPU" in out
            assert out.endswith("\nTypeKeysMismatchError\n")
            assert out.count("WARNING") == 1


def test_a_wait_is_told_when_it_has_slept_and_how_it_ended(told, registry, worker):
    with pytest.raises(md.errors.NotRegisteredError):
        md.wait_for_def("logs::never", 0, registry=worker)
    assert told.of("waits") == []  # it never slept
    with pytest.raises(md.errors.NotRegisteredError):
        md.wait_for_def("logs::never", 0.01, registry=worker)
    (text,) = told.of("waits")
    assert text.startswith("waited 0.0")
    assert f"s in {worker.address} for def logs::never, " in text
    assert text.endswith("asleep: timed out"), text

    told.records.clear()
    lib = md.Library("logs", "DEF", registry=registry)
    for i in itertools.count():  # until one of them slept, and was not just about to
        thread = threading.Thread(
            target=md.wait_for_impl, args=(f"logs::f{i}", "CPU", 60), kwargs={"registry": worker}
        )
        thread.start()
        while not any(member[4] for member in registry.dispatcher.facts.members()):
            registry.dispatcher.facts.await_change(0, 0)
        lib.impl(f"f{i}", len, "CPU")
        thread.join(limit(60))
        if texts := told.of("waits"):
            break
    (text,) = texts
    assert f"for impl logs::f{i} at CPU, " in text
    assert text.endswith("asleep: it is there")


def test_a_call_tells_which_module_it_imports(told, tmp_path, monkeypatch, registry, worker):
    (tmp_path / "logs_kernels.py").write_text(
        "import mdispatch as md\n"
        "def register(registry):\n"
        "    lib = md.Library('logs', 'FRAGMENT', registry=registry)\n"
        "    lib.impl('f', lambda x: 42, 'CPU')\n"
        "import builtins\n"
        "register(builtins.registry_of_the_test)\n"
    )
    import builtins

    monkeypatch.setattr(builtins, "registry_of_the_test", registry, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    lib = md.Library("logs", "DEF", registry=registry)
    lib.define("f(Tensor x) -> int")
    import logs_kernels  # noqa: F401

    del sys.modules["logs_kernels"]
    builtins.registry_of_the_test = worker
    worker.allow_imports("logs_kernels")
    md.register_type(Value, "CPU")
    assert worker.ops.logs.f(Value()) == 42
    assert worker.ops.logs.f(Value()) == 42
    assert told.of("calls") == ["a call of logs::f imports logs_kernels for a kernel"]


class Value: ...


def test_calls_leave_no_records(told, registry):
    lib = md.Library("logs", "DEF", registry=registry)
    lib.define("f(Tensor x, float y) -> int")
    lib.impl("f", lambda x, y: 42, "CPU")
    md.register_type(Value, "CPU")
    op = registry.ops.logs.f.default
    told.records.clear()
    for y in (1.0, 1):  # in C, and in Python
        assert op(Value(), y) == 42
    with pytest.raises(md.errors.ArgumentError):
        op()
    assert told.records == []


def test_a_recovery_is_told_once(told, hold):
    name = f"logs-{os.getpid()}"
    with md.Registry.create(name) as registry:
        with subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"held\n"
            holder.kill()
        lib = md.Library("logs", "DEF", registry=registry)
        lib.define("f(Tensor x) -> Tensor")
    assert [text for text in told.of("registry") if "died" in text] == [
        f"recovered shm:{name} from a member that died with its lock; recoveries so far: 1"
    ]


# --- handlers are other people's code -------------------------------------------------------------


def test_a_handler_that_raises_harms_nobody(logger, registry, monkeypatch):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("no room")

    logger.addHandler(Broken())
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    lib = md.Library("logs", "DEF", registry=registry)
    assert lib.define("f(Tensor x) -> Tensor") == "logs::f"
    assert registry.dispatcher.facts.find(2, 0, "logs::f") is not None
    assert {str(each.exc_value) for each in seen} == {"no room"}
    assert len(seen) == 2


def test_what_a_handler_registers_leaves_no_records(told, logger, registry):
    class Registers(logging.Handler):
        count = 0

        def emit(self, record):
            self.count += 1
            with md.Library("logs", "FRAGMENT", registry=registry) as lib:
                lib.define(f"f{self.count}(Tensor x) -> Tensor")

    registers = Registers()
    logger.addHandler(registers)
    md.Library("logs", "DEF", registry=registry).define("f(Tensor x) -> Tensor")
    assert registers.count == 2
    assert len(told.of("registry")) == 3  # the joining was logged before that handler existed
    assert logs._telling == set()


def test_no_lock_is_held_while_a_record_is_handled(logger, registry):
    """Another thread that uses the registry meanwhile finishes."""
    first, done = threading.current_thread(), []

    def use(record):
        if threading.current_thread() is first:
            other = threading.Thread(target=define, args=(f"g{len(done)}",), daemon=True)
            other.start()
            other.join(limit(20))
            done.append((record.getMessage().split(" from")[0], not other.is_alive()))
        return False

    def define(name):
        with md.Library("other", "FRAGMENT", registry=registry) as lib:
            lib.define(f"{name}(Tensor x) -> Tensor")

    # Not a handler: logging itself lets only one thread at a time into a handler.
    of_area = logging.getLogger("mdispatch.registry")
    of_area.addFilter(use)
    try:
        lib = md.Library("logs", "DEF", registry=registry)
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", len, "CPU")
        lib.close()
    finally:
        of_area.removeFilter(use)
    assert done == [
        ("registered library logs", True),
        ("registered def logs::f", True),
        ("registered impl logs::f at CPU", True),
        ("let go of impl logs::f at CPU", True),
        ("let go of def logs::f", True),
        ("let go of library logs", True),
    ]


# --- silent unless asked for ----------------------------------------------------------------------

USE = """
import mdispatch as md
registry = md.Registry.create()
lib = md.Library("logs", "DEF", registry=registry)
lib.define("f(Tensor x) -> Tensor")
lib.close()
"""


def run(*parts):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_nobody_loads_logging_for_this():
    out, err = run(USE, "import sys; print('logging' in sys.modules)")
    assert (out, err) == ("False\n", "")


def test_nothing_is_printed_even_where_the_last_resort_prints_everything():
    refused = (
        "worker = md.Registry.attach(registry.address, timeout=0)",
        "try: md.Library('other', 'DEF', registry=worker, timeout=0)",
        "except md.errors.MainNeverArrivedError: pass",
    )
    loud = (
        "import logging",
        "logging.getLogger('mdispatch').setLevel(logging.DEBUG)",
        "logging.lastResort.setLevel(logging.DEBUG)",
        "logging.getLogger('another').warning('loud')",
    )
    assert run(*loud, USE, *refused) == ("", "loud\n")


def test_whoever_asks_later_is_heard():
    later = "import logging; logging.basicConfig(level=0, format='%(name)s: %(message)s')"
    _, err = run(USE, later, "md.Library('later', 'DEF', registry=registry)")
    assert err.startswith("mdispatch.registry: registered library later from <string>:")
    assert err.count("\n") == 1


def test_the_areas_are_those_that_the_documentation_names():
    page = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text()
    named = {area.name for area in vars(logs).values() if isinstance(area, logs.Area)}
    assert named == {f"mdispatch.{area}" for area in AREAS}
    for name in named:
        assert f"`{name}`" in page

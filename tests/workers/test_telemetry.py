"""Calls as spans, with OpenTelemetry's own exporter into memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from patience import limit

import mdispatch as md
from mdispatch import telemetry

trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)


class Value: ...


class Spans:
    """The spans that were made, by name, and the tracer that made them."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("the test's")

    def finished(self):
        return list(self.exporter.get_finished_spans())

    def tree(self):
        """(name, name of the span around it), in the order of their beginnings."""
        spans = sorted(self.finished(), key=lambda span: span.start_time)
        names = {span.context.span_id: span.name for span in spans}
        return [(span.name, names[span.parent.span_id] if span.parent else "") for span in spans]


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
def lib():
    with md.Registry.create() as registry:
        md.register_type(Value, "CPU")
        yield md.Library("spans", "DEF", registry=registry)


def test_a_call_is_a_span_that_says_how_it_was_dispatched(spans, lib, monkeypatch):
    def double(x):
        return 42

    lib.define("f(Tensor x) -> int")
    lib.impl("f", double, "CPU")
    monkeypatch.setenv("MDISPATCH_HOST", "node-7")
    with telemetry.observe_with_opentelemetry(spans.tracer):
        assert lib.registry.ops.spans.f(Value()) == 42
    assert lib.registry.ops.spans.f(Value()) == 42  # no longer looked at
    (span,) = spans.finished()
    assert (span.name, span.parent, span.instrumentation_scope.name) == (
        "spans::f",
        None,
        "the test's",
    )
    assert dict(span.attributes) == {
        "mdispatch.host": "node-7",
        "mdispatch.how": "call",
        "mdispatch.key": "CPU",
        "mdispatch.key_set": "DispatchKeySet(CPU)",
        "mdispatch.kernel": span.attributes["mdispatch.kernel"],
        "mdispatch.reason": "kernel",
    }
    assert "double" in span.attributes["mdispatch.kernel"]
    assert span.status.status_code is trace.StatusCode.UNSET
    assert span.end_time >= span.start_time


def test_spans_lie_in_each_other_as_the_calls_do(spans, lib):
    ops = lib.registry.ops.spans
    for name in ("outer", "inner", "innermost"):
        lib.define(f"{name}(Tensor x) -> int")

    def outer(x):
        return ops.inner(x) + ops.innermost(x)

    def inner(x):
        with spans.tracer.start_as_current_span("of the kernel"):
            return ops.innermost(x)

    lib.impl("outer", outer, "CPU")
    lib.impl("inner", inner, "CPU")
    lib.impl("innermost", lambda x: 1, "CPU")
    with (
        spans.tracer.start_as_current_span("request"),
        telemetry.observe_with_opentelemetry(spans.tracer),
    ):
        assert ops.outer(Value()) == 2
        ops.innermost(Value())
    assert spans.tree() == [
        ("request", ""),
        ("spans::outer", "request"),
        ("spans::inner", "spans::outer"),
        ("of the kernel", "spans::inner"),
        ("spans::innermost", "of the kernel"),
        ("spans::innermost", "spans::outer"),
        ("spans::innermost", "request"),
    ]


def test_what_ends_a_kernel_is_recorded_and_goes_on(spans, lib):
    lib.define("f(Tensor x) -> int")
    problem = ValueError("no such file")

    def broken(x):
        raise problem

    lib.impl("f", broken, "CPU")
    with (
        telemetry.observe_with_opentelemetry(spans.tracer),
        pytest.raises(ValueError, match="no such file") as caught,
    ):
        lib.registry.ops.spans.f(Value())
    assert caught.value is problem
    (span,) = spans.finished()
    assert (span.status.status_code, span.status.description) == (
        trace.StatusCode.ERROR,
        "ValueError: no such file",
    )
    (event,) = span.events
    assert event.attributes["exception.type"] == "ValueError"
    assert event.attributes["exception.message"] == "no such file"
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_error_that_cannot_be_shown_leaves_no_span_open(spans, lib, monkeypatch):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def broken(x):
        raise Mute

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    lib.define("f(Tensor x) -> int")
    lib.impl("f", broken, "CPU")
    with telemetry.observe_with_opentelemetry(spans.tracer), pytest.raises(Mute):
        lib.registry.ops.spans.f(Value())
    assert len(spans.finished()) == 1
    assert not trace.get_current_span().get_span_context().is_valid
    assert [str(each.exc_value) for each in reported] == ["no words"]


def test_threads_have_spans_of_their_own(spans, lib):
    lib.define("f(Tensor x) -> int")
    both = threading.Barrier(2, timeout=limit(60))

    def kernel(x):
        both.wait()
        with spans.tracer.start_as_current_span(threading.current_thread().name):
            both.wait()
        return 1

    lib.impl("f", kernel, "CPU")

    def run(name):
        with spans.tracer.start_as_current_span(f"thread {name}"):
            lib.registry.ops.spans.f(Value())

    with telemetry.observe_with_opentelemetry(spans.tracer):
        threads = [threading.Thread(target=run, args=(name,), name=name) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit(60))
    made = {span.context.span_id: span for span in spans.finished()}
    for name in "ab":
        (kernel_span,) = (span for span in made.values() if span.name == name)
        operator_span = made[kernel_span.parent.span_id]
        assert operator_span.name == "spans::f"
        assert made[operator_span.parent.span_id].name == f"thread {name}"


def test_an_observer_that_is_closed_in_a_call_still_ends_its_span(spans, lib):
    lib.define("f(Tensor x) -> int")
    lib.impl("f", lambda x: handle.close() or 1, "CPU")
    handle = telemetry.observe_with_opentelemetry(spans.tracer)
    lib.registry.ops.spans.f(Value())
    lib.registry.ops.spans.f(Value())
    assert [span.name for span in spans.finished()] == ["spans::f"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_tracer_that_fails_is_reported_once_and_at_last_left_out(spans, lib, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    lib.define("double(Tensor x) -> Any")
    lib.impl("double", lambda x: x, "CPU")

    class Broken:
        def start_span(self, name, attributes):
            raise ConnectionError("no exporter")

    x, double = Value(), lib.registry.ops.spans.double
    with telemetry.observe_with_opentelemetry(Broken()) as handle:
        assert [double(x) for _ in range(150)] == [x] * 150
    assert [type(each.exc_value) for each in reported] == [ConnectionError] * 2
    assert handle.failures == 100


def test_the_tracer_is_the_global_one_by_default(lib):
    lib.define("f(Tensor x) -> int")
    seen = []
    lib.impl("f", lambda x: seen.append(trace.get_current_span()) or 1, "CPU")
    with telemetry.observe_with_opentelemetry():
        lib.registry.ops.spans.f(Value())
    assert len(seen) == 1  # none is set: there are no real spans, and nothing fails


def test_what_is_no_tracer_is_refused():
    with pytest.raises(md.errors.InvalidArgumentError, match="5 is no tracer"):
        telemetry.observe_with_opentelemetry(5)


MISSING = """
import sys
sys.modules["opentelemetry"] = None
import mdispatch.telemetry
try:
    mdispatch.telemetry.observe_with_opentelemetry()
except ModuleNotFoundError as error:
    print(*error.__notes__)
"""


def test_opentelemetry_is_imported_only_when_it_is_asked_for():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MISSING],
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert (done.stdout, done.stderr) == (
        "Install it: python -m pip install 'mdispatch[opentelemetry]'\n",
        "",
    )


#: What an owner, whose kernel makes a span, and a caller, in another interpreter or process, begin
#: with: each ends with the names, the traces and the outer spans of its own.
SPANS = """
import json, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import mdispatch as md
from mdispatch.telemetry import observe_with_opentelemetry
exporter = InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("the test's")
def spans():
    return [[each.name, each.context.trace_id, each.context.span_id,
             each.parent and each.parent.span_id] for each in exporter.get_finished_spans()]
"""
OWNER = """
import json
import subprocess
CALLER, kind = sys.argv[1:]
lib = md.Library("traced", "DEF")
lib.define("look() -> ()")
class Box:
    def look(self):
        with tracer.start_as_current_span("in the owner"):
            pass
lib.impl("look", Box().look, "CompositeExplicitAutograd", serve="host")
handle = md.share(Box(), serve="host")
import pickle
CALLER = CALLER.replace("PICKLE", repr(pickle.dumps(handle)))
with observe_with_opentelemetry(tracer):
    if kind == "process":
        subprocess.run([sys.executable, "-c", CALLER], check=True)
    else:
        worker = md.create_interpreter(own_gil=False)
        worker.exec(CALLER)
        worker.close()
with open("caller") as file:
    print(json.dumps([json.load(file), spans()]))
"""
CALLER = """
import pickle
handle = pickle.loads(PICKLE)
with md.routing("traced"):
    md.ops.traced.look()
    handle.look()
    with observe_with_opentelemetry(tracer):
        md.ops.traced.look()
        with md.context.ExcludeDispatchKeyGuard("Negative"), tracer.start_as_current_span("around"):
            handle.look()
with open("caller", "w") as file:
    json.dump(spans(), file)
"""


@pytest.mark.needs("across")
@pytest.mark.shared
@pytest.mark.parametrize("kind", ["interpreter", "process"])
def test_a_call_that_runs_elsewhere_takes_its_trace_along(kind, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", SPANS + OWNER, SPANS + CALLER, kind],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=limit(60),
    )
    assert ran.returncode == 0, ran.stderr
    outer, inner = json.loads(ran.stdout)
    assert [each[0] for each in outer] == ["traced::look", "around"]
    *without, first, second = inner
    assert {each[0] for each in inner} == {"in the owner"}
    assert [each[3] for each in without] == [None, None]  # nobody observes these two
    assert [first[1], first[3]] == outer[0][1:3]
    assert [second[1], second[3]] == outer[1][1:3]

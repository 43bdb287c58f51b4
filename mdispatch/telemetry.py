"""One function, which reports calls of operators to OpenTelemetry as spans.

OpenTelemetry comes with the extra ``mdispatch[opentelemetry]``; the function imports it when it is
called. Log records and probes, the other kinds of telemetry, need no function and so have no code
here: see docs/telemetry.md.
"""

from __future__ import annotations

from contextlib import contextmanager

from . import seam
from .dispatch.context.observers import observe_calls
from .errors import InvalidArgumentError
from .errors.locations import host
from .errors.words import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token
    from typing import Any

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from .dispatch.context.observers import ObservedCall, ObserverHandle

__all__ = ["observe_with_opentelemetry"]


def observe_with_opentelemetry(tracer: Tracer | None = None) -> ObserverHandle:
    """Makes a span of every kernel that operators run in this interpreter, until the handle is
    closed: ``with observe_with_opentelemetry(): ...``

    A span has the operator's name. It is the current span while the kernel runs, so operators that
    the kernel calls, and spans that it makes itself, lie inside. An exception that ends the kernel
    is recorded, and is the span's status. Attributes: ``mdispatch.how``, ``mdispatch.key``,
    ``mdispatch.key_set``, ``mdispatch.kernel``, ``mdispatch.reason``, and where a provider runs
    ``mdispatch.provider``, as ObservedCall has them, and ``mdispatch.host``, the name of this host
    in its cluster; arguments are kept out.

    ``tracer`` is one of a tracer provider of your own; by default that of the global one, named
    "mdispatch". While spans are made, calls go through Python.

    From the first use on, calls that are routed to another interpreter, and those of handles, take
    their trace along, as the program's propagators write it (``opentelemetry.propagate``); an owner
    that has called this function goes on with it.

    InvalidArgumentError when ``tracer`` makes no spans; ModuleNotFoundError when OpenTelemetry is
    not installed.
    """
    try:
        from opentelemetry import context, propagate, trace
    except ModuleNotFoundError as error:
        error.add_note("Install it: python -m pip install 'mdispatch[opentelemetry]'")
        raise
    if tracer is None:
        tracer = trace.get_tracer("mdispatch")
    elif not callable(getattr(tracer, "start_span", None)):
        raise InvalidArgumentError(
            f"{shown(tracer)} is no tracer: give one that get_tracer() returned, or None"
        )
    trace_with = seam.perhaps("traces of calls")
    if trace_with is not None:
        trace_with(_Traces(propagate, context))
    start, here = tracer.start_span, host()
    # By the call's number: calls nest, and a call may end in another thread than it began in.
    under_way: dict[int, tuple[Span, Token[Context]]] = {}

    def before(call: ObservedCall) -> None:
        attributes: dict[str, Any] = {
            "mdispatch.host": here,
            "mdispatch.how": call.how,
            "mdispatch.key": call.key.name,
            "mdispatch.key_set": str(call.key_set),
            "mdispatch.kernel": call.kernel,
            "mdispatch.reason": call.reason,
        }
        if call.provider:
            attributes["mdispatch.provider"] = call.provider
        span: Span = start(call.operator, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span))
        under_way[call.sequence_number] = span, token

    def after(call: ObservedCall) -> None:
        began = under_way.pop(call.sequence_number, None)
        if began is None:
            return  # no span could be made, and that was reported
        span, token = began
        context.detach(token)
        try:
            if call.error is not None:
                span.record_exception(call.error)
                text = f"{type(call.error).__name__}: {call.error}"
                span.set_status(trace.Status(trace.StatusCode.ERROR, text))
        finally:
            span.end()

    return observe_calls(before, after)


class _Traces:
    """Hands the current trace on with calls to other interpreters. See serving.tracing."""

    def __init__(self, propagate: Any, context: Any) -> None:
        self._propagate = propagate
        self._context = context

    def sent(self) -> list[str]:
        told: dict[str, str] = {}
        self._propagate.inject(told)
        return [each for pair in told.items() for each in pair]

    @contextmanager
    def received(self, trace: list[str]) -> Iterator[None]:
        told = dict(zip(trace[::2], trace[1::2], strict=True))
        token = self._context.attach(self._propagate.extract(told))
        try:
            yield
        finally:
            self._context.detach(token)

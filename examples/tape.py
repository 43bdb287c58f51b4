"""An engine for gradients of any objects: a tape records the calls of this thread while it is open,
and can differentiate them afterwards.

The objects need to support only ``+``, so that gradients from several locations can be added up.
The formulas, which ``mdispatch.register_autograd`` registers, know everything else that a gradient
needs::

    from tape import Tape

    with Tape(ones_like=lambda x: Vector([1.0] * len(x.items))) as tape:
        tape.watch(x)
        y = ops.vec.mul(x, x)
    dx = tape.gradient(y, x)

To use it, copy the file. As a program it shows a gradient, and the gradient of a gradient::

    python examples/tape.py

A tape knows objects by identity. So it holds a reference to each of them until it is closed or used
up, and an operator must return new objects. It knows nothing of an object's memory: gradients are
wrong if an object that is on the tape is written to.

While a tape is open, its thread's calls dispatch as if an argument carried AutogradFunctionality
too: objects of key CPU come to the kernels at AutogradCPU. Objects of keys that belong to no
backend (Vulkan, FPGA and the like) come to autograd kernels only if they carry AutogradOther
themselves. At an autograd key at which nothing falls through (AutogradHIP and others) every
operator that is called needs a formula, or a fallback. Calls inside kernels that run below autograd
are not recorded.

Locking: every change of what a tape holds is made under its ``_lock``. A tape is open in the thread
that opened it, and records only calls of that thread, so do not await while it is open. Any thread
may use every other method.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol
from weakref import WeakSet

import mdispatch as md
from mdispatch import AutogradCall, is_tensor
from mdispatch.errors import AutogradError


class Node(Protocol):
    """One call, as far as the way back needs to know it; an AutogradNode is one."""

    @property
    def differentiable(self) -> Sequence[bool]: ...

    @property
    def materialize(self) -> bool: ...

    def gradients(self, gradients: Sequence[Any], needs: Sequence[bool], /) -> list[Any]: ...


class Tape:
    """Records the calls of this thread inside its ``with`` block, as far as they depend on watched
    objects, and computes gradients of their results.

    A tape gives one gradient; a ``persistent`` one any number, until it is closed. ``ones_like``
    makes the first gradient, that of a target. ``zeros_like`` makes the gradient that formulas get
    for outputs that none has reached. Both are called with the object. For Python's numbers neither
    is needed. Without ``zeros_like`` formulas get None.

    Tapes may be nested: each records the calls that depend on the objects that it watches. An outer
    tape records the calls that an inner tape's gradient makes, so it can give the gradient of a
    gradient; so can a persistent tape that is asked while it is open. The only ``+`` that a tape
    records is the one that adds up gradients: elsewhere, call an operator. The results of an
    operator without a formula are not watched. A tape is opened once. (TensorFlow: GradientTape)
    """

    def __init__(
        self,
        *,
        persistent: bool = False,
        ones_like: Callable[[Any], Any] | None = None,
        zeros_like: Callable[[Any], Any] | None = None,
    ) -> None:
        self.persistent = persistent
        self._ones_like = ones_like
        self._zeros_like = zeros_like
        self._guard = md.context.IncludeDispatchKeyGuard("AutogradFunctionality")
        self._stopped = 0
        self._opened = False
        self._lock = threading.RLock()
        self._tapes: list[Tape] = []  # of the thread that opened it
        self._watched: dict[int, Any] = {}
        self._calls: list[Recorded] | None = []
        self._why_ended = ""
        _all.add(self)

    # --- recording

    def __enter__(self) -> Tape:
        """Raises AutogradError if the tape was opened before, or closed."""
        with self._lock:
            if self._opened or self._calls is None:
                raise AutogradError(
                    "a tape can be opened only once: its recordings would get mixed up\nOpen "
                    "another tape, or use stop_recording() for a pause."
                )
            self._opened = True
        self._tapes = _open.tapes
        try:
            self._tapes.append(self)
            self._guard.__enter__()
            return self
        except BaseException:  # from a signal handler: Python then does not call __exit__
            self._end_recording()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Ends the recording. Gradients can be computed afterwards."""
        self._end_recording()

    def _end_recording(self) -> None:
        with self._lock:
            # By identity, like everything here.
            self._tapes[:] = [*(each for each in self._tapes if each is not self)]
        if self._guard.is_open:
            self._guard.__exit__()

    @property
    def is_recording(self) -> bool:
        """Whether it is open and not paused."""
        return not self._stopped and self._guard.is_open

    def watch(self, *objects: Any) -> None:
        """From now on, records calls whose arguments depend on these objects, which are known by
        identity.

        Raises AutogradError for an object that carries no dispatch keys, and if the tape has ended.
        """
        for each in objects:
            if not is_tensor(each):
                raise AutogradError(
                    "a tape watches objects that carry dispatch keys, and a "
                    f"{type(each).__qualname__} carries none: register its type with "
                    "mdispatch.register_type, or pass several objects as watch(*objects)"
                )
        with self._lock:
            self._recorded()
            self._watched.update((id(each), each) for each in objects)

    def is_watched(self, value: object) -> bool:
        """Whether the object is watched, or was computed from one that is."""
        return id(value) in self._watched

    def stop_recording(self) -> _Pause:
        """A context manager. While it is open, this tape records nothing, whatever the thread.
        (TensorFlow: GradientTape.stop_recording)
        """
        return _Pause(self)

    def record(self, call: Recorded) -> None:
        """For the engine: puts a call onto the tape, and watches its results."""
        with self._lock:
            if self._calls is not None:  # another thread may have ended the tape meanwhile
                self._calls.append(call)
                self._watched.update((id(each), each) for each in call.differentiable())

    # --- gradients

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """The gradient of ``target`` with respect to ``sources``. Each is an object, or a list or
        tuple of objects. There is one gradient for each source, in a list if ``sources`` is
        several. Gradients of several targets are added up. A source that no target depends on, or
        that was not watched when it was used, gets None.

        ``output_gradients`` are the gradients at the targets to begin with, in the structure of
        ``target``. None stands for the tape's ``ones_like``, or for 1 if the target is a Python
        number.

        A tape that is not persistent stops recording, and releases everything it holds once the
        gradient is computed. If a formula raises, it releases nothing.

        Raises AutogradError if the tape has given its gradient or was closed, or if a target has no
        gradient to begin with, and whatever the formulas and ``+`` raise. (TensorFlow:
        GradientTape.gradient)
        """
        targets = _several(target, "target")
        wanted = _several(sources, "source")
        given = _gradients_given(target, targets, output_gradients)
        with self._lock:
            calls = list(self._recorded())
        if not self.persistent:
            self._end_recording()
        beginning = [
            (each, self._ones(each) if gradient is None else gradient)
            for each, gradient in zip(targets, given, strict=True)
        ]
        found = _walk(calls, wanted, beginning, self._zeros, _added)
        if not self.persistent:
            self._release("has given its gradient and is not persistent")
        return found[0] if is_tensor(sources) else found

    def _ones(self, value: Any) -> Any:
        if self._ones_like is not None:
            return self._ones_like(value)
        if isinstance(value, (int, float, complex)):
            return type(value)(1)
        raise AutogradError(
            f"the gradient of a {type(value).__qualname__} has no value to start from: the tape "
            "knows only how to add gradients\nGive output_gradients, or open the tape as "
            "Tape(ones_like=function)."
        )

    def _zeros(self, value: Any) -> Any:
        if self._zeros_like is not None:
            return None if value is None else self._zeros_like(value)
        return type(value)(0) if isinstance(value, (int, float, complex)) else None

    # --- ending

    def close(self) -> None:
        """Ends the recording and releases everything that was recorded. Idempotent."""
        self._end_recording()
        self._release("was closed")

    def _release(self, why: str) -> None:
        with self._lock:
            self._why_ended = self._why_ended or why
            calls, self._calls = self._calls, None
            watched, self._watched = self._watched, {}
        del calls, watched  # outside the lock: finalizers of users' objects may run

    def forked(self) -> None:
        """In the child of a fork: another thread may have held the lock."""
        self._lock = threading.RLock()

    def _recorded(self) -> list[Recorded]:
        if self._calls is None:
            raise AutogradError(
                f"this tape {self._why_ended}, so it no longer holds anything\nOpen another tape, "
                "with persistent=True if you need several gradients."
            )
        return self._calls

    def __repr__(self) -> str:
        if self._calls is None:
            state = "ended"
        else:
            recording = ", recording" if self.is_recording else ""
            state = f"{len(self._calls)} calls{recording}"
        return f"<Tape: {state}>"


#: All tapes of this interpreter: the child of a fork replaces their locks.
_all: WeakSet[Tape] = WeakSet()


class _Pause:
    """While it is open, its tape does not record."""

    __slots__ = ("_tape",)

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __enter__(self) -> None:
        with self._tape._lock:
            self._tape._stopped += 1

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._tape._lock:
            self._tape._stopped -= 1


def _several(given: Any, what: str) -> list[Any]:
    values = [given] if is_tensor(given) else given
    if not isinstance(values, (list, tuple)):
        shown = "None" if given is None else f"a {type(given).__qualname__}"
        raise AutogradError(
            f"a {what} must be a Tensor, or a list or tuple of Tensors, not {shown}"
        )
    for each in values:
        if not is_tensor(each):
            raise AutogradError(
                f"a {what} must be a Tensor; a {type(each).__qualname__} carries no dispatch keys"
            )
    return list(values)


def _gradients_given(target: Any, targets: list[Any], given: Any) -> Sequence[Any]:
    if given is None:
        return [None] * len(targets)
    if is_tensor(target):
        return [given]
    if not isinstance(given, (list, tuple)) or len(given) != len(targets):
        shown = f"a {type(given).__qualname__}"
        if isinstance(given, (list, tuple)):
            shown += f" of {len(given)}"
        raise AutogradError(
            "output_gradients needs a gradient or None for each target: give a list of "
            f"{len(targets)}, not {shown}"
        )
    return given


# --- the engine for tapes -------------------------------------------------------------------------


# One engine serves all tapes, so that tapes can be nested: a call is recorded once, on each tape
# that watches one of its tensors.


class _OpenTapes(threading.local):
    def __init__(self) -> None:
        self.tapes: list[Tape] = []


#: The open tapes of each thread, innermost last.
_open = _OpenTapes()


def _recording() -> list[Tape]:
    """The tapes that are recording in this thread."""
    return [tape for tape in _open.tapes if tape.is_recording]


class TapeEngine:
    """Serves, for all tapes, the calls with tensors that an open tape of the thread watches."""

    def needs_grad(self, value: Any) -> bool:
        return any(tape.is_watched(value) for tape in _recording())

    def apply(self, call: AutogradCall) -> Any:
        watching = [
            (tape, [tape.is_watched(each) for each in call.inputs]) for tape in _recording()
        ]
        watching = [(tape, watched) for tape, watched in watching if any(watched)]
        if not watching:  # after needs_grad, another thread closed or paused the tape
            return call.below()
        needs = [any(each) for each in zip(*(watched for _, watched in watching), strict=True)]
        result, outputs, node = call.forward(needs)
        calls = [
            (tape, Recorded(call.inputs, watched, outputs, node)) for tape, watched in watching
        ]
        for tape, recorded in calls:
            _check_outputs(call.name, recorded, tape)
        for tape, recorded in calls:
            tape.record(recorded)
        return result


def _check_outputs(name: str, call: Recorded, tape: Tape) -> None:
    seen = {id(value) for value in call.inputs}
    for value in call.differentiable():
        if id(value) in seen or tape.is_watched(value):
            raise AutogradError(
                f"{name} returned an object that is one of its arguments, was returned twice or is "
                "on the tape already: a tape tells objects apart by their identity\nReturn a new "
                "object, or mark it as non-differentiable in setup_context.",
                name,
            )
        seen.add(id(value))


def _added(one: Any, other: Any) -> Any:
    """The sum of two gradients. The tapes that are open in this thread record it like a call,
    unless the class's ``+`` has called an operator, which they have recorded already.
    """
    total = one + other
    for tape in _recording():
        watched = (tape.is_watched(one), tape.is_watched(other))
        if any(watched) and not tape.is_watched(total):
            tape.record(Recorded((one, other), watched, (total,), Sum()))
    return total


def _forked() -> None:
    """In the child of a fork."""
    for tape in list(_all):
        tape.forked()


md.register_autograd_engine(TapeEngine())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# --- the way back ---------------------------------------------------------------------------------


# From gradients at the targets to gradients at the sources. Nothing here knows of threads or of
# open tapes: the result depends only on the recorded calls.


class Recorded:
    """One call on a tape. ``watched`` says which of the inputs were on it at that time. The tape
    may have missed other uses of the rest.
    """

    __slots__ = ("inputs", "node", "outputs", "watched")

    def __init__(
        self, inputs: Sequence[Any], watched: Sequence[bool], outputs: Sequence[Any], node: Node
    ) -> None:
        self.inputs = inputs
        self.watched = watched
        self.outputs = outputs
        self.node = node

    def differentiable(self) -> Iterator[Any]:
        """The outputs that gradients go through."""
        for value, differentiable in zip(self.outputs, self.node.differentiable, strict=True):
            if differentiable:
                yield value

    def found(self, at: dict[int, Any]) -> list[Any]:
        """The gradients at the outputs, as far as there are any."""
        return [
            at.get(id(value)) if differentiable else None
            for value, differentiable in zip(self.outputs, self.node.differentiable, strict=True)
        ]


class Sum:
    """The node of ``one + other``, which is all that a tape does to objects without an operator."""

    differentiable = (True,)
    materialize = False

    def gradients(self, gradients: Sequence[Any], needs: Sequence[bool], /) -> list[Any]:
        return [gradients[0] if need else None for need in needs]


def _walk(
    calls: Sequence[Recorded],
    sources: Sequence[Any],
    beginning: Sequence[tuple[Any, Any]],
    zeros: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
) -> list[Any]:
    """The gradient at each source; None if none arrives.

    ``calls`` are in the order in which they ran. ``beginning`` pairs each target with the gradient
    there. ``zeros(output)`` makes a gradient for an output that none has reached, ``add`` adds two.
    A formula runs only if its call depends on the sources and a gradient has reached it.
    """
    reached = {id(each) for each in sources}
    way = []
    for call in calls:
        needs = [
            watched and id(each) in reached
            for each, watched in zip(call.inputs, call.watched, strict=True)
        ]
        if any(needs):
            way.append((call, needs))
            reached.update(id(each) for each in call.differentiable())
    at: dict[int, Any] = {}

    def arrive(value: Any, gradient: Any) -> None:
        there = at.get(id(value))
        at[id(value)] = gradient if there is None else add(there, gradient)

    for target, gradient in beginning:
        arrive(target, gradient)
    for call, needs in reversed(way):
        found = call.found(at)
        if all(each is None for each in found):
            continue
        if call.node.materialize:
            found = [
                zeros(each) if gradient is None else gradient
                for each, gradient in zip(call.outputs, found, strict=True)
            ]
        for value, gradient in zip(call.inputs, call.node.gradients(found, needs), strict=True):
            if gradient is not None:
                arrive(value, gradient)
    return [at.get(id(each)) for each in sources]


# --- as a program ---------------------------------------------------------------------------------


class Number:
    """A number that can be added, which is all that a tape asks for."""

    __dispatch_keys__ = "CPU"

    def __init__(self, value: float) -> None:
        self.value = value

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value)


def main() -> None:
    library = md.Library("number", "DEF")
    ops = md.ops.number

    def keep_inputs(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def mul_backward(ctx: Any, gradient: Number) -> tuple[Number, Number]:
        a, b = ctx.saved_tensors
        return ops.mul(gradient, b), ops.mul(gradient, a)

    def sin_backward(ctx: Any, gradient: Number) -> Any:
        (x,) = ctx.saved_tensors
        return ops.mul(gradient, ops.cos(x))

    library.define("mul(Tensor a, Tensor b) -> Tensor")
    library.impl("mul", lambda a, b: Number(a.value * b.value), "CPU")
    md.register_autograd("number::mul", mul_backward, setup_context=keep_inputs, lib=library)
    library.define("cos(Tensor x) -> Tensor")
    library.impl("cos", lambda x: Number(math.cos(x.value)), "CPU")
    library.define("sin(Tensor x) -> Tensor")
    library.impl("sin", lambda x: Number(math.sin(x.value)), "CPU")
    md.register_autograd("number::sin", sin_backward, setup_context=keep_inputs, lib=library)

    def slope(function: Callable[[Number], Number], x: Number) -> Number:
        with Tape(ones_like=lambda _: Number(1.0)) as tape:
            tape.watch(x)
            y = function(x)
        found: Number = tape.gradient(y, x)
        return found

    x = Number(2.0)
    first = slope(lambda x: ops.sin(ops.mul(x, x)), x)
    print(f"the slope of sin(x * x) at 2 is {first.value:.6f}")
    assert math.isclose(first.value, 4 * math.cos(4))
    second = slope(lambda x: slope(lambda x: ops.mul(ops.mul(x, x), x), x), x)
    print(f"the slope of the slope of x * x * x at 2 is {second.value:.6f}")
    assert math.isclose(second.value, 12)


if __name__ == "__main__":
    main()

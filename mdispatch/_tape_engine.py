"""The engine for tapes: which of them are open in a thread, and what is put on them.

One engine serves all tapes, so that tapes can be nested: a call is recorded once, on each tape that
watches one of its tensors.
"""

from __future__ import annotations

from _thread import _local, allocate_lock

from ._autograd_engines import EngineHandle, register_autograd_engine
from ._tape_walk import Recorded, Sum
from .errors import AutogradError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ._autograd_node import AutogradCall

    class RecordingTape(Protocol):
        """What the engine needs of a Tape."""

        @property
        def is_recording(self) -> bool: ...

        def is_watched(self, value: object) -> bool: ...

        def record(self, call: Recorded) -> None: ...


__all__ = ["TapeEngine", "added", "be_asked", "local"]


class _Local(_local):
    def __init__(self) -> None:
        self.tapes: list[RecordingTape] = []


#: The open tapes of each thread, innermost last.
local = _Local()


def _recording() -> list[RecordingTape]:
    """The tapes that are recording in this thread."""
    return [tape for tape in local.tapes if tape.is_recording]


class TapeEngine:
    """Serves the calls with tensors that an open tape of the thread watches, for all tapes."""

    def needs_grad(self, value: Any) -> bool:
        return any(tape.is_watched(value) for tape in _recording())

    def apply(self, call: AutogradCall) -> Any:
        watching = [
            (tape, [tape.is_watched(each) for each in call.inputs]) for tape in _recording()
        ]
        watching = [(tape, watched) for tape, watched in watching if any(watched)]
        if not watching:  # since this was asked, the tape was closed or paused elsewhere
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


def _check_outputs(name: str, call: Recorded, tape: RecordingTape) -> None:
    seen = {id(value) for value in call.inputs}
    for value in call.differentiable():
        if id(value) in seen or tape.is_watched(value):
            raise AutogradError(
                f"{name} returned an object that is one of its arguments, was returned twice or "
                "is on the tape already: tapes tell objects by their identity\nReturn a new "
                "object, or mark it as non-differentiable in setup_context.",
                name,
            )
        seen.add(id(value))


def added(one: Any, other: Any) -> Any:
    """The sum of two gradients. On the tapes that are open here it is a call like others, unless
    the class's ``+`` has called an operator, which is on them already.
    """
    total = one + other
    for tape in _recording():
        watched = (tape.is_watched(one), tape.is_watched(other))
        if any(watched) and not tape.is_watched(total):
            tape.record(Recorded((one, other), watched, (total,), Sum()))
    return total


_engine: EngineHandle | None = None
_lock = allocate_lock()


def be_asked() -> None:
    """Registers the engine, with the first tape of this interpreter."""
    global _engine
    if _engine is None:
        with _lock:
            if _engine is None:
                _engine = register_autograd_engine(TapeEngine())

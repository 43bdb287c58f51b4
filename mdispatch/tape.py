"""A tape: what an open one records of this thread's calls, it can differentiate afterwards.

The objects need to support ``+`` and nothing else, so that gradients from several places can be
added up. All else that a gradient needs, the operators' formulas know (see autograd.py)::

    with Tape(ones_like=lambda x: Vector([1.0] * len(x.items))) as tape:
        tape.watch(x)
        y = ops.vec.mul(x, x)
    dx = tape.gradient(y, x)

Which objects are on a tape goes by identity. So a tape holds a reference to each of them until it
is closed or used up, and an operator must return new objects. Of an object's memory it knows
nothing: gradients are wrong when an object that is on it is written to.

While a tape is open, its thread's calls dispatch as if an argument carried AutogradFunctionality
too: objects of key CPU come to the kernels at AutogradCPU. Objects of keys that belong to no
backend (Vulkan, FPGA and the like) come to autograd kernels only if they carry AutogradOther
themselves. At an autograd key at which nothing falls through (AutogradHIP and others, see
BUILTIN_FALLBACKS in _pairing.py) every operator that is called needs a formula, or a fallback.
Inside of kernels that run below autograd nothing is recorded.

Locking: what a tape holds is changed under its ``_lock``. A tape is open in the thread that opened
it, and records that thread's calls only, so do not await while it is open; every other method may
be used by any thread.
"""

from __future__ import annotations

from _thread import RLock

from ._tape_engine import added, be_asked, local
from ._tape_walk import walk
from .errors import AutogradError
from .guards import IncludeDispatchKeyGuard
from .values import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    from ._tape_engine import RecordingTape
    from ._tape_walk import Recorded

__all__ = ["Tape"]


class Tape:
    """Records this thread's calls from ``with`` on, as far as they depend on what is watched, and
    computes gradients of what came out.

    A tape gives one gradient; a ``persistent`` one any number, until it is closed. ``ones_like``
    makes the gradient to begin with for a target, ``zeros_like`` what formulas get for outputs that
    no gradient has reached; both are called with the object. For Python's numbers neither is
    needed. Without ``zeros_like`` formulas get None.

    Tapes may be nested: each records what depends on what it watches. What the gradient of an inner
    tape calls, an outer one records, and so can give the gradient of a gradient; so can a
    persistent tape that is asked while it is open. Of ``+`` a tape records only that by which
    gradients are added up: elsewhere, call an operator. What comes out of an operator without a
    formula is not watched. A tape is opened once. (TensorFlow: GradientTape)
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
        self._guard = IncludeDispatchKeyGuard("AutogradFunctionality")
        self._stopped = 0
        self._opened = False
        self._lock = RLock()
        self._tapes: list[RecordingTape] = []  # of the thread that opened it
        self._watched: dict[int, Any] = {}
        self._calls: list[Recorded] | None = []
        self._why_ended = ""

    # --- recording

    def __enter__(self) -> Tape:
        """AutogradError when it was opened before, or closed."""
        with self._lock:
            if self._opened or self._calls is None:
                raise AutogradError(
                    "a tape is opened once: what it has recorded would get mixed up\nOpen another "
                    "one, or use stop_recording() for a pause."
                )
            self._opened = True
        be_asked()
        self._tapes = local.tapes
        try:
            self._tapes.append(self)
            self._guard.__enter__()
            return self
        except BaseException:  # of a signal handler: then the block is not entered, nor left
            self._end_recording()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Ends the recording; gradients can be asked for afterwards."""
        self._end_recording()

    def _end_recording(self) -> None:
        with self._lock:
            # By identity, as everything here.
            self._tapes[:] = [each for each in self._tapes if each is not self]
        if self._guard.is_open:
            self._guard.__exit__()

    @property
    def is_recording(self) -> bool:
        """Whether it is open and not paused."""
        return not self._stopped and self._guard.is_open

    def watch(self, *objects: Any) -> None:
        """Records from now on what is computed from these objects, by identity.

        AutogradError for an object that carries no dispatch keys, and on a tape that has ended.
        """
        for each in objects:
            if not is_tensor(each):
                raise AutogradError(
                    f"a tape watches what schemas call a Tensor; a {type(each).__qualname__} "
                    "carries no dispatch keys: register its type with mdispatch.register_type, or "
                    "name several objects as watch(*objects)"
                )
        with self._lock:
            self._recorded()
            self._watched.update((id(each), each) for each in objects)

    def is_watched(self, value: object) -> bool:
        """Whether the object was watched, or computed from what was."""
        return id(value) in self._watched

    def stop_recording(self) -> _Pause:
        """A context manager: within it nothing is recorded here, whatever the thread. (TensorFlow:
        GradientTape.stop_recording)
        """
        return _Pause(self)

    def record(self, call: Recorded) -> None:
        """For the engine: puts a call onto the tape, and watches what came out of it."""
        with self._lock:
            if self._calls is not None:  # another thread may have ended the tape meanwhile
                self._calls.append(call)
                self._watched.update((id(each), each) for each in call.differentiable())

    # --- gradients

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """The gradient of ``target`` with respect to ``sources``, each an object or a list or tuple
        of them: one for each source, in a list where that is one. Those of several targets are
        added up. None for a source that no target depends on, or that was not watched when it was
        used.

        ``output_gradients`` is what the gradients at the targets are to begin with, in the
        structure of ``target``; None stands for the tape's ``ones_like``, for a Python number 1.

        A tape that is not persistent stops recording, and gives up what it holds once the gradient
        is there. When a formula raises, it holds it still.

        Raises AutogradError when the tape has given its gradient or was closed, when a target has
        no gradient to begin with, and what the formulas and ``+`` raise. (TensorFlow:
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
        found = walk(calls, wanted, beginning, self._zeros, added)
        if not self.persistent:
            self._release("has given its gradient, and is not persistent")
        return found[0] if is_tensor(sources) else found

    def _ones(self, value: Any) -> Any:
        if self._ones_like is not None:
            return self._ones_like(value)
        if isinstance(value, (int, float, complex)):
            return type(value)(1)
        raise AutogradError(
            f"the gradient of a {type(value).__qualname__} has nothing to begin with: "
            "all that a tape knows of it is how to add it\nGive output_gradients, or open the tape "
            "as Tape(ones_like=function)."
        )

    def _zeros(self, value: Any) -> Any:
        if self._zeros_like is not None:
            return None if value is None else self._zeros_like(value)
        return type(value)(0) if isinstance(value, (int, float, complex)) else None

    # --- ending

    def close(self) -> None:
        """Ends the recording and gives up everything that was recorded. Idempotent."""
        self._end_recording()
        self._release("was closed")

    def _release(self, why: str) -> None:
        with self._lock:
            calls, self._calls = self._calls, None
            watched, self._watched = self._watched, {}
            self._why_ended = self._why_ended or why
        del calls, watched  # outside the lock: finalizers of the users' objects may run

    def _recorded(self) -> list[Recorded]:
        if self._calls is None:
            raise AutogradError(
                f"this tape {self._why_ended}: it holds nothing any more\nOpen another one, or one "
                "with persistent=True for several gradients."
            )
        return self._calls

    def __repr__(self) -> str:
        if self._calls is None:
            state = "ended"
        else:
            recording = ", recording" if self.is_recording else ""
            state = f"{len(self._calls)} calls{recording}"
        return f"<mdispatch.Tape: {state}>"


class _Pause:
    """Stops a tape's recording while it is open."""

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
        raise AutogradError(f"a {what} is a Tensor, or a list or tuple of them, not {shown}")
    for each in values:
        if not is_tensor(each):
            raise AutogradError(
                f"a {what} is a Tensor; a {type(each).__qualname__} carries no dispatch keys"
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
            "output_gradients has one gradient, or None, for each target: give a list of "
            f"{len(targets)}, not {shown}"
        )
    return given

"""The engines of this interpreter, and which of them serves a call. That is decided here only."""

from __future__ import annotations

import sys
from _thread import allocate_lock

from ._nearest import shown
from .errors import AutogradError, InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Protocol

    from ._autograd_node import AutogradCall

    class AutogradEngine(Protocol):
        """What keeps the graph of some kind of values."""

        def needs_grad(self, value: Any) -> bool:
            """Whether a call with this tensor, now and in this thread, is to be remembered."""

        def apply(self, call: AutogradCall) -> Any:
            """Runs the call with ``call.forward``, remembers it, and returns its result."""


__all__ = ["AutogradEngine", "EngineHandle", "engine_for", "needs_grad", "register_autograd_engine"]


class EngineHandle:
    """A registered engine. ``close`` takes it away; idempotent. Also a context manager."""

    __slots__ = ("_entry",)

    def __init__(self, entry: _Entry) -> None:
        self._entry = entry

    def close(self) -> None:
        """No call is given to the engine from now on."""
        global _engines
        with _lock:
            _engines = tuple(each for each in _engines if each is not self._entry)

    def __enter__(self) -> EngineHandle:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Entry:
    """One registration of an engine, which may be registered twice."""

    __slots__ = ("engine",)

    def __init__(self, engine: AutogradEngine) -> None:
        self.engine = engine


# Engines are objects of this interpreter, newest first. The tuple is replaced, never changed: calls
# read it without a lock.
_engines: tuple[_Entry, ...] = ()
_lock = allocate_lock()
_torch_engine: AutogradEngine | None = None


def register_autograd_engine(engine: AutogradEngine) -> EngineHandle:
    """Lets ``engine`` keep the graph of the values that it says need a gradient, in this
    interpreter, until the handle is closed.

    ``engine.needs_grad(value)`` is asked, in the thread of the call, for each tensor that an
    operator with a formula is called with; ``engine.apply(call)`` then runs the
    :class:`AutogradCall`. The engine registered last is asked first, that of PyTorch's tensors
    after all others. What it answers must not depend on other values of the call.

    Raises InvalidArgumentError for an object without these methods.
    """
    global _engines
    for method in ("needs_grad", "apply"):
        if not callable(getattr(engine, method, None)):
            raise InvalidArgumentError(
                f"an autograd engine has needs_grad(value) and apply(call); {shown(engine)} has "
                f"no {method}()"
            )
    entry = _Entry(engine)
    with _lock:
        _engines = (entry, *_engines)
    return EngineHandle(entry)


def _asked() -> list[AutogradEngine]:
    """The engines in the order in which they are asked."""
    global _torch_engine
    engines = [each.engine for each in _engines]
    torch = sys.modules.get("torch")
    # While another thread is importing it, this is the last that comes of what the engine needs.
    if hasattr(getattr(torch, "autograd", None), "Function"):
        if _torch_engine is None:
            from ._torch_engine import TorchEngine

            _torch_engine = TorchEngine(torch)
        engines.append(_torch_engine)
    return engines


def needs_grad(value: Any) -> bool:
    """Whether a call with this value, now and in this thread, would be remembered by an engine.
    (torch: Tensor.requires_grad)
    """
    return any(engine.needs_grad(value) for engine in _asked())


def engine_for(call: AutogradCall) -> AutogradEngine | None:
    """The engine that serves this call; None when no tensor needs a gradient.

    AutogradError when the tensors need gradients of two engines: neither would see the other's.
    """
    engines = _asked()
    if not engines:
        return None
    chosen: AutogradEngine | None = None
    for value in call.inputs:
        if value is None:
            continue
        engine = next((each for each in engines if each.needs_grad(value)), None)
        if engine is None or engine is chosen:
            continue
        if chosen is not None:
            names = " and ".join(sorted(type(each).__qualname__ for each in (chosen, engine)))
            raise AutogradError(
                f"{call.name} got tensors whose gradients two engines keep, {names}: neither sees "
                "what the other has recorded\nTake the tensors of one of them out of its graph "
                "first, or watch all of them with one.",
                call.name,
            )
        chosen = engine
    return chosen

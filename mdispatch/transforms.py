"""Transforms: what turns a whole program into another one, a level at a time.

A transform is pushed onto the stack of a thread by a with block. While it is there, calls come to
it at the key FuncTorchDynamicLayerFrontMode: before autograd, autocast and modes, after what stands
above that key. A rule that an operator has for its type (``py_impl(TransformType.Vmap)``) runs in
place of its ``process``::

    class Grad(Transform):
        transform_type = TransformType.Grad

        def process(self, op, args, kwargs):
            ...
            return op(*args, **kwargs)

While either runs, the transform is off the stack: what they call goes to the next one. Calls that
come from handlers of modes and types do not come to transforms, which had their turn above.

Here is only the stack, not what differentiates or maps. It belongs to the thread, and so to one
interpreter: nothing is inherited. (PyTorch: the interpreter stack of functorch,
torch/_functorch/pyfunctorch.py)

One rule may be wanted for all that makes mutation functional: the key Functionalize, the mode of
kind FUNCTIONAL, and the transform. :class:`FunctionalizeContext` hides which of them it is.
"""

from __future__ import annotations

from _thread import _local

from ._arguments import checked_callable
from .errors import InvalidArgumentError, ModeStackError
from .guards import ExcludeDispatchKeyGuard, IncludeDispatchKeyGuard, _Guard
from .keys import DispatchKey
from .modes import DispatchMode, DispatchModeKey, put_on, take_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, ClassVar, TypeAlias, TypeVar

    from .higher_order import HigherOrderOperator
    from .operators import OpOverload

    T = TypeVar("T", bound="Transform")
    Operator: TypeAlias = "OpOverload | HigherOrderOperator"

__all__ = [
    "FRONT",
    "FunctionalMode",
    "FunctionalizeContext",
    "Transform",
    "TransformType",
    "are_transforms_active",
    "local",
    "places_of_functionalize",
    "transform_stack",
]

#: Where calls come to transforms.
FRONT = DispatchKey.FuncTorchDynamicLayerFrontMode


class TransformType:
    """The kinds of transforms; there is one object of each. (PyTorch: functorch's TransformType)"""

    __slots__ = ("name",)

    Grad: ClassVar[TransformType]
    Jvp: ClassVar[TransformType]
    Vmap: ClassVar[TransformType]
    Functionalize: ClassVar[TransformType]

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (TransformType, self.name)

    def __repr__(self) -> str:
        return f"TransformType.{self.name}"


TransformType.Grad = TransformType("Grad")
TransformType.Jvp = TransformType("Jvp")
TransformType.Vmap = TransformType("Vmap")
TransformType.Functionalize = TransformType("Functionalize")


class Entry:
    """One place on the stack: a transform, and the guard that turns calls to it."""

    __slots__ = ("guard", "transform")
    rank = 0  # all transforms are equal: they stay as they were pushed

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.guard = IncludeDispatchKeyGuard(FRONT)


class _Local(_local):
    def __init__(self) -> None:
        self.entries: list[Entry] = []  # once for each thread, the outermost first


#: ``local.entries`` is this thread's stack.
local = _Local()


class Transform:
    """Base of transforms. As a context manager it is on this thread's stack while the block runs.

    (PyTorch: FuncTorchInterpreter)
    """

    #: Its kind, for the rules of operators; None for one that no rule can be for.
    transform_type: TransformType | None = None

    def process(self, op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called in place of a call that has no rule for ``transform_type``; its result is the
        call's. ``op`` may be a HigherOrderOperator. (PyTorch: FuncTorchInterpreter.process)
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define process")

    def __enter__(self: T) -> T:
        """InvalidArgumentError when ``transform_type`` is none."""
        kind = self.transform_type
        if kind is not None and not isinstance(kind, TransformType):
            from ._nearest import shown

            raise InvalidArgumentError(
                f"{type(self).__qualname__}.transform_type is {shown(kind)}: give one of "
                "TransformType, or None"
            )
        put_on(local.entries, Entry(self))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Takes the transform off, wherever it is in the stack by now: its newest place, if there
        are several. ModeStackError when it is not there.
        """
        entries = local.entries
        for entry in entries[::-1]:
            if entry.transform is self:
                # Not by a function of its own: a signal handler may raise where that begins.
                try:
                    take_off(entries, entry)
                except BaseException:  # of a signal handler, perhaps before anything was done
                    take_off(entries, entry)
                    raise
                return
        raise ModeStackError(
            f"{type(self).__qualname__} is not on this thread's stack of transforms: a with block "
            "ends in the thread it began in, and not from inside the transform's own process"
        )


def transform_stack() -> tuple[Transform, ...]:
    """This thread's transforms, the outermost first. (PyTorch: get_interpreter_stack)"""
    return tuple(entry.transform for entry in local.entries)


def are_transforms_active() -> bool:
    """Whether this thread has a transform on its stack. (PyTorch:
    _are_functorch_transforms_active)
    """
    return bool(local.entries)


# --- one rule for the key, the mode and the transform ---------------------------------------------


class FunctionalMode(DispatchMode):
    """The mode of kind FUNCTIONAL, for which ``py_functionalize_impl`` registers.

    Operators without a rule for it run as they would without it. A subclass that has an
    ``__md_dispatch__`` of its own is asked by that, before rules for this class. (PyTorch:
    FunctionalTensorMode)
    """

    mode_key = DispatchModeKey.FUNCTIONAL

    def __md_dispatch__(
        self, op: OpOverload, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return op(*args, **kwargs)


class FunctionalizeContext:
    """What a rule of ``py_functionalize_impl`` was called by.

    ``kind`` is "key", "mode" or "transform"; ``mode`` and ``transform`` are that object, or None.

    There is nothing to wrap and unwrap values, to replace them, to commit updates or to
    synchronise: that is about tensors that share storage, and the values here are anybody's
    objects.
    (PyTorch: BaseFunctionalizeAPI)
    """

    __slots__ = ("kind", "mode", "transform")

    def __init__(
        self, kind: str, mode: DispatchMode | None = None, transform: Transform | None = None
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.transform = transform

    def redispatch_to_next(self) -> _Guard:
        """A guard: calls while it is open go on below what this rule was called by.

        A mode or a transform is off its stack already while the rule runs; then it changes nothing.
        (PyTorch: BaseFunctionalizeAPI.redispatch_to_next)
        """
        return (
            ExcludeDispatchKeyGuard(DispatchKey.Functionalize) if self.kind == "key" else _Guard()
        )

    def __repr__(self) -> str:
        return f"<functionalize by {self.kind}>"


def places_of_functionalize(
    function: Callable[..., Any],
) -> list[tuple[DispatchKey | type | TransformType, Callable[..., Any]]]:
    """The three places for which a rule ``function(ctx, *args, **kwargs)`` is registered, each with
    what stands there for it.

    InvalidArgumentError for what cannot be called.
    """
    rule = checked_callable(function)

    def at_key(*args: Any, **kwargs: Any) -> Any:
        return rule(FunctionalizeContext("key"), *args, **kwargs)

    def at_mode(mode: DispatchMode, /, *args: Any, **kwargs: Any) -> Any:
        return rule(FunctionalizeContext("mode", mode=mode), *args, **kwargs)

    def at_transform(transform: Transform, /, *args: Any, **kwargs: Any) -> Any:
        return rule(FunctionalizeContext("transform", transform=transform), *args, **kwargs)

    return [
        (DispatchKey.Functionalize, at_key),
        (FunctionalMode, at_mode),
        (TransformType.Functionalize, at_transform),
    ]

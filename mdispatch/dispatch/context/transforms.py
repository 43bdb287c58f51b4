"""Transforms turn a whole program into another one, one level at a time.

A transform is pushed onto the stack of a thread by a with block. While it is there, calls come to
it at the key FuncTorchDynamicLayerFrontMode: before autograd, autocast and modes, and after the
kernels of the keys above. If an operator has a rule for its type (``py_impl(TransformType.Vmap)``),
the rule runs in place of its ``process``::

    class Grad(Transform):
        transform_type = TransformType.Grad

        def process(self, op, args, kwargs):
            ...
            return op(*args, **kwargs)

While either runs, the transform is off the stack: calls that it makes go to the next transform.
Calls that handlers of modes and types make do not come to transforms, which were asked before.

This module has only the stack, and no transform that differentiates or maps. Each thread has its
own stack, which begins empty. (PyTorch: the interpreter stack of functorch,
torch/_functorch/pyfunctorch.py)

Mutation is made functional in three places: at the key Functionalize, in the mode of kind
FUNCTIONAL, and in the transform. A single rule can serve all three: :class:`FunctionalizeContext`
hides which of them called it.
"""

from __future__ import annotations

from _thread import _local

from ...errors import InvalidArgumentError, ModeStackError
from ...keys import DispatchKey
from ..checks import checked_callable
from .guards import ExcludeDispatchKeyGuard, IncludeDispatchKeyGuard, _Guard
from .modes import DispatchMode, DispatchModeKey, put_on, take_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, ClassVar, TypeVar

    T = TypeVar("T", bound="Transform")

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

#: The key at which calls come to transforms.
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


class TransformEntry:
    """One place on the stack: a transform, and the guard that turns calls to it."""

    __slots__ = ("guard", "transform")
    rank = 0  # transforms have no ranks: they stay in the order of their pushes

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.guard = IncludeDispatchKeyGuard(FRONT)


class _Local(_local):
    def __init__(self) -> None:
        self.entries: list[TransformEntry] = []  # of this thread, the outermost first


#: ``local.entries`` is this thread's stack.
local = _Local()


class Transform:
    """Base of transforms. As a context manager it is on this thread's stack while the block runs.

    (PyTorch: FuncTorchInterpreter)
    """

    #: Its kind, for which operators may have rules; with None they cannot.
    transform_type: TransformType | None = None

    def process(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called in place of the kernel if the operator has no rule for ``transform_type``. Its
        result is that of the call. ``op`` may be a HigherOrderOperator. (PyTorch:
        FuncTorchInterpreter.process)
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define process")

    def __enter__(self: T) -> T:
        """InvalidArgumentError if ``transform_type`` is not a TransformType."""
        kind = self.transform_type
        if kind is not None and not isinstance(kind, TransformType):
            from ...errors.words import shown

            raise InvalidArgumentError(
                f"{type(self).__qualname__}.transform_type is {shown(kind)}: give a member of "
                "TransformType, or None"
            )
        put_on(local.entries, TransformEntry(self))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Takes the transform off the stack, wherever it is by now. If it is there several times,
        takes the newest off. ModeStackError if it is not there.
        """
        entries = local.entries
        for entry in entries[::-1]:
            if entry.transform is self:
                # Not in a function of its own: a signal handler may raise where that begins.
                try:
                    take_off(entries, entry)
                except BaseException:  # from a signal handler, perhaps before anything was done
                    take_off(entries, entry)
                    raise
                return
        raise ModeStackError(
            f"{type(self).__qualname__} is not on this thread's stack of transforms: end its with "
            "block in the thread that began it, and not inside the transform's own process()"
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
    """The mode of kind FUNCTIONAL, for which ``py_functionalize_impl`` registers rules.

    An operator without such a rule runs as it would without the mode. If a subclass defines
    ``__md_dispatch__``, that is called before rules for this class are looked for. (PyTorch:
    FunctionalTensorMode)
    """

    mode_key = DispatchModeKey.FUNCTIONAL

    def __md_dispatch__(
        self, op: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return op(*args, **kwargs)


class FunctionalizeContext:
    """The key, mode or transform that has called a rule of ``py_functionalize_impl``.

    ``kind`` is "key", "mode" or "transform"; ``mode`` and ``transform`` are that object, or None.

    PyTorch's methods that wrap, unwrap and replace values, commit updates and synchronise are not
    here. They are about tensors that share storage; the values here are objects of any kind.
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
        """Returns a guard. While it is open, calls go on below the key, mode or transform that has
        called this rule.

        A mode or a transform is off its stack while the rule runs. For these the guard changes
        nothing.
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
    the function that is registered there for it.

    InvalidArgumentError if ``function`` cannot be called.
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

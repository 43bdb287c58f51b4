"""What calls are made of, in plain Python: the twin of the extension ``_call``, in its place.

Every call goes to dispatch/call_py.py, every look-up to the methods that C asks when it does not
know an answer. Nothing is kept for C, so what keeps it (Shape, Cell) is empty here. Guards and the
sets of threads are in guards_py.py.
"""

from __future__ import annotations

from .guards_py import (
    Guard,
    Stack,
    change,
    changed_sets,
    local,
    now,
    number,
    quick,
    sets,
    start,
    tags,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, TypeVarTuple

    Args = TypeVarTuple("Args")
    T = TypeVar("T")
    C = TypeVar("C", bound=type)

__all__ = ["Cell", "Forward", "Guard", "Names", "Operator", "Packet", "Shape", "Stack", "Steps"]
__all__ += [
    "Unshared",
    "arrived",
    "callable",
    "change",
    "changed",
    "changed_sets",
    "handlers",
    "keys",
    "local",
    "noted",
    "now",
    "number",
]
__all__ += ["observers", "observing", "paths", "quick", "sets", "shows_as_call", "start"]
__all__ += ["surely", "tags", "torch_place", "turn", "types_changed", "values"]


class _Paths:
    """The functions that make calls. Set once, before the first call."""

    call: Callable[..., Any]
    redispatch: Callable[..., Any]
    call_packet: Callable[..., Any]
    renew_packet: Callable[..., Any]


class Operator:
    """The base of OpOverload."""

    def _attach(self, cell: Cell, generation: int) -> None:
        pass

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _Paths.call(self, args, kwargs)

    def redispatch(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel of ``key_set`` as it is, whatever keys the arguments carry: this thread's
        included and excluded keys do not count, and nothing falls through.

        From inside a kernel that was registered with its key set, ``op.redispatch(key_set &
        DispatchKeySet.full_after("AutogradCPU"), ...)`` goes on below AutogradCPU. (c10:
        redispatch)
        """
        return _Paths.redispatch(self, args, kwargs)

    redispatch.__text_signature__ = "($self, key_set, /, *args, **kwargs)"  # type: ignore[attr-defined]


class Forward:
    """The base of CustomOpDef: its calls are calls of its operator."""

    # Types in C have no annotations either.
    if TYPE_CHECKING:
        _operator: Any
        operator: Any
    else:
        _operator = None

    def _attach(self, operator: Any) -> Any:
        """Returns the operator that its calls go to, which is the first one."""
        self._operator = self._operator or operator
        return self._operator

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


class Unshared:
    """The base of DeviceKernel: runs a function, and looks whether the result shares memory with an
    argument, if it ``looks``.
    """

    __slots__ = ("_looks", "_switch", "function")

    def __init__(self, function: Callable[..., Any], switch: Any, looks: bool) -> None:
        self.function = function
        self._switch = switch
        self._looks = looks

    def _chosen(self) -> Callable[..., Any]:
        raise NotImplementedError

    def _look(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise NotImplementedError

    def _below(self, function: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self._looks:
            return self._chosen()(*args, **kwargs)
        result = self._below(self._chosen())(*args, **kwargs)
        self._look(result, args, kwargs)
        return result


class Names:
    """The base of classes that have operators as attributes."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        """An operator that ended since it was found is looked up again, and told to be missing."""
        found = object.__getattribute__(self, name)
        if isinstance(found, Packet) and not len(_Paths.renew_packet(found, "default")):
            object.__delattr__(self, name)
            return self.__missing__(name)
        return found

    def __getattr__(self, name: str) -> Any:
        return self.__missing__(name)

    def __missing__(self, name: str) -> Any:
        raise AttributeError(name)


class Packet:
    """The base of OpOverloadPacket."""

    def __getattr__(self, name: str) -> Any:
        return self.__missing__(name)

    def __missing__(self, name: str) -> Any:
        raise AttributeError(name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _Paths.call_packet(self, args, kwargs)


class Shape:
    """The part of a schema that C checks by itself."""

    def __init__(self, arguments: Any, positional: int, results: Any) -> None:
        pass


class Steps:
    """What calls in C do where predicates are asked: see providers/chain.py."""

    def __init__(
        self, steps: Any, with_keyset: bool, run: Callable[..., Any], refuse: Any, find: Any
    ) -> None:
        self._run = run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


class Cell:
    """The location of an operator's plan for calls in C: always empty."""

    def begin(self) -> None:
        pass

    def clear(self) -> None:
        pass

    def ruled(self) -> None:
        pass


def shows_as_call(cls: type, function: Callable[..., Any]) -> None:
    """Calls use it here: it does what the call would do, and what it is shown for."""
    cls.__call__ = function  # type: ignore[method-assign]


def arrived(shape: Shape, front: int, args: Any, names: Any, values: Any) -> bool:
    """Whether C is certain that a call of another process fits."""
    return False


def callable(cls: C) -> C:
    return cls


def paths(
    call: Callable[..., Any],
    redispatch: Callable[..., Any],
    renew: Callable[..., Any],
    target: Callable[..., Any],
    check: Callable[..., Any],
    call_packet: Callable[..., Any],
    renew_packet: Callable[..., Any],
    for_types: Callable[..., Any],
) -> None:
    _Paths.call = staticmethod(call)
    _Paths.redispatch = staticmethod(redispatch)
    _Paths.call_packet = staticmethod(call_packet)
    _Paths.renew_packet = staticmethod(renew_packet)


_MOST_INTERRUPTS, _MOST_ERRORS = 1000, 20


def surely(function: Callable[[*Args], T], *args: *Args) -> T:
    """Calls a function again where something was raised, which it has to bear, and then raises what
    was raised first. See Note [Handlers that raise] in native/bind/call/surely.c; here a handler
    may still come in between.
    """
    first: BaseException | None = None
    interrupts = errors = 0
    while True:
        try:
            result = function(*args)
        except BaseException as error:
            first = first or error
            if isinstance(error, Exception):
                errors += 1
            else:
                interrupts += 1
            if errors == _MOST_ERRORS or interrupts == _MOST_INTERRUPTS:
                raise
            continue
        if first is not None:
            raise first
        return result


def noted(into: list[T], function: Callable[[*Args], T], *args: *Args) -> T:
    """What the function returns, which is in the list before."""
    into.append(function(*args))
    return into[-1]


def _tell(*what: object) -> None:
    """C would have to know this."""


changed = handlers = keys = observers = observing = _tell
torch_place = turn = types_changed = values = _tell

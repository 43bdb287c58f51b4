"""What happens at the keys that Python code answers: their builtin fallbacks.

    PythonDispatcher     the operator's Python kernels take part in its table (see _rules.py)
    PreDispatch          the modes before dispatch; else goes on below
    FuncTorchDynamicLayerFrontMode
                         the innermost transform (see transforms.py); else goes on below
    PythonTLSSnapshot    notes with which sets the call was made; goes on below
    Python               the innermost mode; then the arguments' types; else goes on below

Both keys of Python are included while a thread has modes, and carried by values whose type has
``__md_dispatch__``. Handlers run with the keys above Python excluded, because what stands there has
had its turn, and without the mode they belong to.

(c10: PythonFallbackKernel.cpp; PyTorch: handle_torch_function_no_python_arg_parser)
"""

from __future__ import annotations

from ._keys import FULL
from .errors import HandlersDeclinedError
from .guards import ExcludeDispatchKeyGuard, _Guard, excluded_keys, included_keys
from .keys import DispatchKey, DispatchKeySet
from .modes import PYTHON, ModeStack, local
from .transforms import FRONT
from .transforms import local as transforms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .operators import OpOverload
    from .transforms import Operator

__all__ = ["NOBODY", "ask_modes_and_types", "ask_pre_dispatch", "ask_transform", "declined"]
__all__ += ["dispatcher_fallback", "overloaded_types", "pre_dispatch_fallback", "python_fallback"]
__all__ += ["snapshot_fallback", "transform_fallback"]

#: In place of a result: there was nobody to ask.
NOBODY: Any = object()

_BELOW_PYTHON = DispatchKeySet.full_after(DispatchKey.Python)
_BELOW_SNAPSHOT = DispatchKeySet.full_after(DispatchKey.PythonTLSSnapshot)
_BELOW_PRE_DISPATCH = DispatchKeySet.full_after(DispatchKey.PreDispatch)
_BELOW_FRONT = DispatchKeySet.full_after(FRONT)
_NONE = DispatchKeySet()
_ABOVE_PYTHON = DispatchKeySet.from_raw(FULL & ~_BELOW_PYTHON.raw & ~DispatchKey.Python.raw)


def dispatcher_fallback(
    key_set: DispatchKeySet, operator: OpOverload, /, *args: Any, **kwargs: Any
) -> Any:
    """Runs what the operator's table gives with its Python kernels in it."""
    return operator._call_with_python_kernels(key_set, args, kwargs)


def snapshot_fallback(
    key_set: DispatchKeySet, operator: OpOverload, /, *args: Any, **kwargs: Any
) -> Any:
    """Notes the sets of the outermost call that is under way."""
    stack = local.stack
    below = key_set & _BELOW_SNAPSHOT
    if stack.on_entry is not None:
        return operator.redispatch(below, *args, **kwargs)
    stack.on_entry = (included_keys(), excluded_keys())
    try:
        return operator.redispatch(below, *args, **kwargs)
    finally:
        stack.on_entry = None


def python_fallback(
    key_set: DispatchKeySet, operator: OpOverload, /, *args: Any, **kwargs: Any
) -> Any:
    """Asks modes and types."""
    result = ask_modes_and_types(operator, overloaded_types(args, kwargs), args, kwargs)
    if result is NOBODY:
        return operator.redispatch(key_set & _BELOW_PYTHON, *args, **kwargs)
    return result


def ask_modes_and_types(
    operator: Operator, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Asks the innermost mode, then the types of the arguments; NOBODY when there are none.

    HandlersDeclinedError when all of them return NotImplemented.
    """
    stack = local.stack
    asked = []
    if stack.entries:
        entry = stack.entries[-1]
        with _Handling(stack, stack.entries, entry, PYTHON):
            result = _ask(entry.mode, type(entry.mode), operator, types, args, kwargs)
        if result is not NotImplemented:
            return result
        asked.append(f"mode {entry.mode!r}")
    for cls in types:
        with _Handling(stack):
            result = _ask(cls, cls, operator, types, args, kwargs)
        if result is not NotImplemented:
            return result
        asked.append(f"type {cls.__module__}.{cls.__qualname__}")
    if not asked:
        return NOBODY
    raise declined(operator.name, asked)


def declined(name: str, asked: list[str]) -> HandlersDeclinedError:
    return HandlersDeclinedError(
        f"nobody knows what {name} does with these arguments: every handler returned "
        "NotImplemented\n  asked: " + ", ".join(asked) + "\n"
        "Let one of them handle the operator, or register a rule for it with "
        "register_dispatch_rule or py_impl.",
        name,
        asked,
    )


def pre_dispatch_fallback(
    key_set: DispatchKeySet, operator: OpOverload, /, *args: Any, **kwargs: Any
) -> Any:
    """Asks the first of the modes before dispatch."""
    result = ask_pre_dispatch(operator, overloaded_types(args, kwargs), args, kwargs)
    if result is NOBODY:
        return operator.redispatch(key_set & _BELOW_PRE_DISPATCH, *args, **kwargs)
    return result


def ask_pre_dispatch(
    operator: Operator, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Asks the first of the modes before dispatch; NOBODY without one, and while modes are not to
    be asked (disable_md_dispatch).
    """
    stack = local.stack
    if not stack.pre_dispatch or excluded_keys().has(DispatchKey.Python):
        return NOBODY
    entry = stack.pre_dispatch[-1]
    before = DispatchKeySet(DispatchKey.PreDispatch)
    with _Handling(stack, stack.pre_dispatch, entry, before, _NONE):
        result = _ask(entry.mode, type(entry.mode), operator, types, args, kwargs)
    if result is NotImplemented:
        raise declined(operator.name, [f"mode {entry.mode!r}"])
    return result


def transform_fallback(
    key_set: DispatchKeySet, operator: OpOverload, /, *args: Any, **kwargs: Any
) -> Any:
    """Asks the innermost transform."""
    result = ask_transform(operator, args, kwargs)
    if result is NOBODY:
        return operator.redispatch(key_set & _BELOW_FRONT, *args, **kwargs)
    return result


def ask_transform(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's rule for the type of the innermost transform, else its ``process``; NOBODY
    without a transform.
    """
    if not transforms.entries:
        return NOBODY
    entry = transforms.entries[-1]
    transform = entry.transform
    with _Handling(local.stack, transforms.entries, entry, DispatchKeySet(FRONT), _NONE):
        kind = transform.transform_type
        rule = operator.rules.by_transform.get(kind) if kind is not None else None
        if rule is None:
            return transform.process(operator, args, kwargs)
        return rule.function(transform, *args, **kwargs)


class _Handling:
    """While a handler runs: its mode or transform is off its stack, that stack's keys are included
    only if others are left on it, the keys above are excluded, and the handler's own calls have
    another entry.
    """

    __slots__ = ("_before", "_entries", "_entry", "_guards", "_position", "_stack")

    def __init__(
        self,
        stack: ModeStack,
        entries: list[Any] | None = None,
        entry: Any = None,
        keys: DispatchKeySet = PYTHON,
        above: DispatchKeySet = _ABOVE_PYTHON,
    ) -> None:
        self._stack = stack
        self._entries = entries
        self._entry = entry
        self._before = (stack.on_entry, stack.handled)
        self._guards = [ExcludeDispatchKeyGuard(above)]
        if entries is not None and len(entries) == 1:
            self._guards.append(_Guard(included=(FULL & ~keys.raw, 0)))  # type: ignore[arg-type]

    def __enter__(self) -> None:
        stack = self._stack
        stack.handled = stack.on_entry or (included_keys(), excluded_keys())
        stack.on_entry = None
        if self._entries is not None and self._entry is not None:
            self._position = self._entries.index(self._entry)
            self._entries.remove(self._entry)
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *exc: object) -> None:
        for guard in self._guards[::-1]:
            guard.__exit__()
        if self._entries is not None and self._entry is not None:
            # Where it was; one without a kind also above what its handler has left there.
            last = len(self._entries)
            self._entries.insert(last if self._entry.slot is None else self._position, self._entry)
        self._stack.on_entry, self._stack.handled = self._before


def _ask(
    handler: Any,
    cls: type,
    operator: Operator,
    types: tuple[type, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Asks a mode of this class, or the class itself as the type of a value."""
    rule = operator.rules.chosen(cls)
    if rule is None:
        return handler.__md_dispatch__(operator, types, args, kwargs)
    if rule.full:
        return rule.function(handler, operator, types, args, kwargs)
    if handler is cls:
        return rule.function(*args, **kwargs)
    return rule.function(handler, *args, **kwargs)


def overloaded_types(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[type, ...]:
    """The types of the arguments that have ``__md_dispatch__``, each once: in the order of the
    arguments, subclasses before their bases. Lists and tuples are looked into.
    """
    found: list[type] = []
    for value in _each(args, kwargs):
        cls = type(value)
        if cls not in found and getattr(cls, "__md_dispatch__", None) is not None:
            bases = (i for i, other in enumerate(found) if issubclass(cls, other))
            found.insert(next(bases, len(found)), cls)
    return tuple(found)


def _each(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        if type(value) in (list, tuple):
            yield from value
        yield value

"""What happens at the keys that Python code answers: their builtin fallbacks.

    PythonDispatcher     the operator's Python kernels take part in its table (see overrides.py)
    PreDispatch          asks the modes before dispatch; without one the call goes on below
    FuncTorchDynamicLayerFrontMode
                         asks the innermost transform; without one the call goes on below
    PythonTLSSnapshot    notes the sets with which the call was made; the call goes on below
    Python               asks the innermost mode, then the arguments' types; without any the call
                         goes on below

A thread that has modes includes both keys of Python. Values carry them, too, if their type has
``__md_dispatch__``. While a handler runs, the keys above Python are excluded, because their
handlers have had their turn, and the handler's own mode is off its stack.

(c10: PythonFallbackKernel.cpp; PyTorch: handle_torch_function_no_python_arg_parser)
"""

from __future__ import annotations

from ..errors import HandlersDeclinedError
from ..facts.native import calls
from ..keys import DispatchKey, DispatchKeySet
from ..keys.numbers import FULL
from .context.guards import EXCLUDED, INCLUDED, _Guard, excluded_keys, included_keys
from .context.modes import PYTHON, DispatchMode, ModeEntry, by_rank, local
from .context.transforms import FRONT
from .context.transforms import local as transforms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .abc import Dispatched, Operator
    from .context.transforms import Transform

#: In place of a result: there was no handler to ask.
NOBODY: Any = object()

_BELOW_PYTHON = DispatchKeySet.full_after(DispatchKey.Python)
_BELOW_SNAPSHOT = DispatchKeySet.full_after(DispatchKey.PythonTLSSnapshot)
_BELOW_PRE_DISPATCH = DispatchKeySet.full_after(DispatchKey.PreDispatch)
_BELOW_FRONT = DispatchKeySet.full_after(FRONT)
_NONE = DispatchKeySet()
_FRONT = DispatchKeySet(FRONT)
_PRE_DISPATCH = DispatchKeySet(DispatchKey.PreDispatch)
_ABOVE_PYTHON = DispatchKeySet.from_raw(FULL & ~_BELOW_PYTHON.raw & ~DispatchKey.Python.raw)


def dispatcher_fallback(
    key_set: DispatchKeySet, operator: Dispatched, /, *args: Any, **kwargs: Any
) -> Any:
    """Runs the kernel that the operator's table gives when its Python kernels are in it."""
    return operator.call_with_python_kernels(key_set, args, kwargs)


def snapshot_fallback(
    key_set: DispatchKeySet, operator: Dispatched, /, *args: Any, **kwargs: Any
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
    key_set: DispatchKeySet, operator: Dispatched, /, *args: Any, **kwargs: Any
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
    entries = local.stack.entries
    asked: list[Any] = []
    if entries:
        entry = entries[-1]
        asking = (ask_mode, entry.mode, operator, types, args, kwargs)
        result = _handled(entries, entry, PYTHON, _ABOVE_PYTHON, *asking)
        if result is not NotImplemented:
            return result
        asked.append(entry.mode)
    for cls in types:
        asking_type = (_ask, cls, cls, operator, types, args, kwargs)
        result = _handled(None, None, PYTHON, _ABOVE_PYTHON, *asking_type)
        if result is not NotImplemented:
            return result
        asked.append(cls)
    if not asked:
        return NOBODY
    raise _declined(operator.name, asked)


def _declined(name: str, handlers: list[Any]) -> HandlersDeclinedError:
    from ..errors.words import shown

    asked = [
        f"type {each.__module__}.{each.__qualname__}"
        if isinstance(each, type)
        else f"mode {shown(each)}"
        for each in handlers
    ]
    return HandlersDeclinedError(
        f"no mode or type handles {name} with these arguments: every handler returned "
        "NotImplemented\n  asked: " + ", ".join(asked) + "\n"
        "Let one of them handle the operator, or register a rule for it with "
        "register_dispatch_rule or py_impl.",
        name,
        asked,
    )


def pre_dispatch_fallback(
    key_set: DispatchKeySet, operator: Dispatched, /, *args: Any, **kwargs: Any
) -> Any:
    """Asks the first of the modes before dispatch."""
    result = ask_pre_dispatch(operator, overloaded_types(args, kwargs), args, kwargs)
    if result is NOBODY:
        return operator.redispatch(key_set & _BELOW_PRE_DISPATCH, *args, **kwargs)
    return result


def ask_pre_dispatch(
    operator: Operator, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Asks the first of the modes before dispatch. NOBODY if there is none, and while
    disable_md_dispatch is open.
    """
    stack = local.stack
    if not stack.pre_dispatch or excluded_keys().has(DispatchKey.Python):
        return NOBODY
    entry = stack.pre_dispatch[-1]
    asking = (ask_mode, entry.mode, operator, types, args, kwargs)
    result = _handled(stack.pre_dispatch, entry, _PRE_DISPATCH, _NONE, *asking)
    if result is NotImplemented:
        raise _declined(operator.name, [entry.mode])
    return result


def transform_fallback(
    key_set: DispatchKeySet, operator: Dispatched, /, *args: Any, **kwargs: Any
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
    asking = (_ask_transform, entry.transform, operator, args, kwargs)
    return _handled(transforms.entries, entry, _FRONT, _NONE, *asking)


def _ask_transform(
    transform: Transform, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    kind = transform.transform_type
    rule = operator.rules.by_transform.get(kind) if kind is not None else None
    if rule is None:
        result = transform.process(operator, args, kwargs)
    else:
        result = rule.function(transform, *args, **kwargs)
    return operator.checked_answer(result, f"transform {type(transform).__qualname__}")


def _handled(
    entries: list[Any] | None,
    entry: Any,
    keys: DispatchKeySet,
    above: DispatchKeySet,
    ask: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Runs a handler: ``ask(*arguments)``.

    Meanwhile its mode or transform, the ``entry``, is off its stack. The stack's ``keys`` are
    included only if the stack has other entries. The keys ``above`` are excluded. Calls that the
    handler makes note sets of their own.
    """
    stack = local.stack
    before = (stack.on_entry, stack.handled)
    steps = [(EXCLUDED, FULL, above.raw, 0)]
    if entries and len(entries) == 1:
        steps.append((INCLUDED, FULL & ~keys.raw, 0, 0))
    guard = _Guard(*steps)
    try:
        stack.handled = stack.on_entry or (included_keys(), excluded_keys())
        stack.on_entry = None
        if entries is not None:
            entries.remove(entry)
        guard.__enter__()
        try:
            return ask(*arguments)
        finally:
            try:
                guard.__exit__()
            except BaseException:  # a signal handler raised, perhaps before the guard had closed
                if guard.is_open:
                    guard.__exit__()
                raise
    finally:
        # Until the entry is back, this calls no function that is written in Python. So neither a
        # signal handler nor the limit of Python's stack can interrupt it.
        stack.on_entry, stack.handled = before
        if entries is not None and entry not in entries:
            entries.append(entry)
            entries.sort(key=by_rank)  # one of a kind goes below others, see modes.py


def ask_mode(
    mode: Any,
    operator: Operator,
    types: tuple[type, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Asks a mode. One that is at home elsewhere, of which there is a handle here, is asked there
    (across/sharing.py).
    """
    if isinstance(mode, DispatchMode):
        return _ask(mode, type(mode), operator, types, args, kwargs)
    answer = mode.call_at_home(operator.name, "__md_dispatch__", (operator.name, *args), kwargs)
    return _answered(operator, answer[0], mode) if answer else NotImplemented


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
        result = handler.__md_dispatch__(operator, types, args, kwargs)
    elif rule.full:
        result = rule.function(handler, operator, types, args, kwargs)
    elif handler is cls:
        result = rule.function(*args, **kwargs)
    else:
        result = rule.function(handler, *args, **kwargs)
    if result is NotImplemented:
        return result
    return _answered(operator, result, handler)


def tell_c() -> None:
    """Gives calls in C what they need to ask modes and types (native/bind/call/handlers.c)."""
    python, snapshot = DispatchKey.Python.raw, DispatchKey.PythonTLSSnapshot.raw
    bits = (python, _BELOW_PYTHON.raw, _ABOVE_PYTHON.raw, snapshot, _BELOW_SNAPSHOT.raw)
    calls.handlers(
        python_fallback, snapshot_fallback, DispatchMode, ModeEntry, _answered, _declined_by, bits
    )


def _answered(operator: Operator, result: Any, handler: Any) -> Any:
    """What the caller gets for the answer of a mode or a type."""
    is_type = isinstance(handler, type)
    cls = handler if is_type else type(handler)
    return operator.checked_answer(result, f"{'type' if is_type else 'mode'} {cls.__qualname__}")


def _declined_by(operator: Operator, handlers: list[Any]) -> NoReturn:
    raise _declined(operator.name, handlers)


def overloaded_types(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[type, ...]:
    """The types of the arguments that have ``__md_dispatch__``, each once: in the order of the
    arguments, subclasses before their bases. Lists and tuples are searched, too. A mode that is
    an argument does not count: its handler serves the calls inside its block.
    """
    found: list[type] = []
    for value in _each(args, kwargs):
        cls = type(value)
        if cls in found or issubclass(cls, DispatchMode):
            continue
        if getattr(cls, "__md_dispatch__", None) is not None:
            bases = (i for i, other in enumerate(found) if issubclass(cls, other))
            found.insert(next(bases, len(found)), cls)
    return tuple(found)


def _each(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        if type(value) in (list, tuple):
            yield from value
        yield value

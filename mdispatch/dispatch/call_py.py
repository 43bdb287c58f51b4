"""The hot path, in Python: from arguments to the kernel that runs. The path in C has to agree with
it.

    table      the operator's, computed anew when its version word has changed
    bind       arguments to the schema, checked and converted
    types      where kernels are for types: the table of the arguments' classes (by_type.py)
    key set    the union over the arguments that are tensors by the schema, lists of them
               included; then what this thread adds and takes away (see guards.py)
    kernel     the table's, at the highest key of the effective set

A redispatch takes its key set as it is: no argument is looked at, no thread's sets, no fallthrough.

(c10: Dispatcher::call, redispatch, callBoxed, redispatchBoxed, callBoxedForDispatchKey,
DispatchKeyExtractor::getDispatchKeySetBoxed)
"""

from __future__ import annotations

import sys

from .. import seam
from ..errors import ArgumentError, ForeignObjectError, InvalidKeyError
from ..facts.native import calls
from ..facts.native import interpreter_id as HERE
from ..keys import DispatchKey, DispatchKeySet
from ..keys.numbers import parse_key, table_index
from ..schema.types import Type
from .by_type import Tie, classes_of, classes_of_plain
from .context.observers import observe, observing
from .context.values import raw_of
from .kernels import LocalKernel
from .overrides import PythonKernel
from .pairing import AbsentKernel, missing, missing_at
from .placement import check_handlers, foreign_kernel, refused
from .table import TableEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol, TypeGuard

    from ..schema.types import Argument
    from .entry import OperatorEntry, Signature
    from .overrides import Rules
    from .table import DispatchTable

    Resolver = Callable[[OperatorEntry, DispatchTable, AbsentKernel, int], LocalKernel | None]

    class Operator(Protocol):
        """What these functions need of an OpOverload."""

        entry: OperatorEntry
        generation: int

        @property
        def rules(self) -> Rules: ...


_HANDLERS = DispatchKey.Python.raw | DispatchKey.PreDispatch.raw
_DISPATCHER = DispatchKey.PythonDispatcher.raw


def call(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    table, signature = operator.entry.current(operator.generation)
    try:  # what _bound does, without its frame
        positional, keywords = signature.binder.bind(args, kwargs)
    except ForeignObjectError as error:
        raise refused(error, operator.entry.name) from None
    except (ArgumentError, InvalidKeyError):
        answered = _ask_torch_functions(operator, args, kwargs)
        if answered is None:
            raise
        return answered[0]
    raw = _keys_of_arguments(signature, positional, keywords)
    if table.is_by_type:
        table = for_types(table, signature, positional, keywords)
    raw = _effective(operator, table, raw)
    peer = operator.entry.peer
    slot = None if peer is None else peer.slot(operator, table, positional, keywords)
    return _run(operator, "call", table, signature, raw, positional, keywords, slot)


def _ask_torch_functions(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """The answer of an argument's ``__torch_function__`` to a call that does not fit: a tuple."""
    if "torch.overrides" not in sys.modules:
        return None
    ask = seam.perhaps("__torch_function__")
    found: tuple[Any] | None = None if ask is None else ask(operator, args, kwargs)
    return found


def for_types(
    table: DispatchTable,
    signature: Signature,
    positional: Sequence[Any],
    keywords: dict[str, Any],
) -> DispatchTable:
    """The table of a call with these arguments."""
    if not table.is_by_type:
        return table
    return table.for_types(_given(signature, positional, keywords))


def _given(
    signature: Signature, positional: Sequence[Any], keywords: dict[str, Any]
) -> tuple[tuple[type, ...], ...]:
    """The classes of the tensors in each Tensor argument, in the order of the schema; or of the
    plain values that choose.
    """
    if signature.plain_positions:
        return classes_of_plain(positional[i] for i in signature.plain_positions)
    arguments = signature.schema.arguments
    values = {argument.name: argument for argument in arguments if argument.kwarg_only}
    return (
        *(classes_of(positional[i], arguments[i]) for i in signature.dispatch_positions),
        *(classes_of(keywords[name], values[name]) for name in signature.dispatch_keywords),
    )


def _told(
    table: DispatchTable,
    signature: Signature,
    positional: Sequence[Any],
    keywords: dict[str, Any],
) -> tuple[tuple[type, ...], ...]:
    """The classes, for an error, where they have chosen the table and there are any."""
    given = _given(signature, positional, keywords) if table.wide is not table else ()
    return given if any(given) else ()


def _bound(
    operator: Operator, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return signature.binder.bind(args, kwargs)
    except ForeignObjectError as error:
        raise refused(error, operator.entry.name) from None


def _keys_of_arguments(
    signature: Signature, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> int:
    raw = 0
    for position in signature.dispatch_positions:
        value = positional[position]
        if type(value) is list:
            raw |= _keys_of_list(value, signature.schema.arguments[position])
        else:
            raw |= raw_of(value) or 0
    for name in signature.dispatch_keywords:
        value = keywords[name]
        if type(value) is list:
            argument = next(each for each in signature.schema.arguments if each.name == name)
            raw |= _keys_of_list(value, argument)
        else:
            raw |= raw_of(value) or 0
    return raw


def _keys_of_list(value: list[Any], argument: Argument) -> int:
    """The keys of a list's tensors. If the schema wants a Tensor, the keys of the list itself: a
    class derived from list may be registered as a tensor. The binder makes plain lists of all lists
    of tensors.
    """
    if argument.type.name != Type.LIST:
        return raw_of(value) or 0
    raw = 0
    for item in value:
        raw |= raw_of(item) or 0
    return raw


def _effective(operator: Operator, table: DispatchTable, raw: int) -> int:
    included, kept = calls.now()
    raw = (raw | included) & kept
    if raw & _DISPATCHER:
        table = operator.rules.merged(table)  # Python kernels at keys that else fall through
    return table.effective(raw)


def call_with_keyset(
    operator: Operator, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raw = _raw(operator, "call_with_keyset", key_set)
    table, signature = operator.entry.current(operator.generation)
    positional, keywords = _bound(operator, signature, args, kwargs)
    table = for_types(table, signature, positional, keywords)
    return _run(
        operator, "call", table, signature, _effective(operator, table, raw), positional, keywords
    )


def redispatch(
    operator: Operator, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raw = _raw(operator, "redispatch", key_set)
    table, signature = operator.entry.current(operator.generation)
    positional, keywords = _bound(operator, signature, args, kwargs)
    table = for_types(table, signature, positional, keywords)
    return _run(operator, "redispatch", table, signature, raw, positional, keywords)


def call_for_dispatch_key(
    operator: Operator, key: DispatchKey | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    key = parse_key(key)
    table_index(key)
    return call_registered(operator, key, args, kwargs)


def call_registered(
    operator: Operator, key: DispatchKey, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs the kernel that is registered at exactly this key, which may be an alias key."""
    table, signature = operator.entry.current(operator.generation)
    positional, keywords = _bound(operator, signature, args, kwargs)
    table = for_types(table, signature, positional, keywords)
    kernel = table.at(key)
    while _is_to_come(kernel) and operator.entry.load(kernel.fact):
        table = operator.entry.current(operator.generation)[0]
        table = for_types(table, signature, positional, keywords)
        kernel = table.at(key)
    if isinstance(kernel, AbsentKernel):
        kernel = resolved(operator.entry, table, kernel, key.raw) or kernel
    if not isinstance(kernel, LocalKernel) or kernel.is_fallthrough:
        given = _told(table, signature, positional, keywords)
        raise missing_at(operator.entry.facts, operator.entry.name, table, key, given)
    slot = TableEntry(kernel, "kernel" if key in table.kernels else "backend fallback")
    how = "call_for_dispatch_key"
    return _run(operator, how, table, signature, key.raw, positional, keywords, slot)


#: Functions that find a kernel which is not here and which no import brings; each returns None if
#: it finds none, and the first kernel counts. A feature adds its function as it is loaded.
resolvers: list[Resolver] = []


def resolved(
    entry: OperatorEntry, table: DispatchTable, kernel: AbsentKernel, raw: int
) -> LocalKernel | None:
    """The kernel that a call with these keys runs in place of an absent one; None if there is
    none.
    """
    for resolver in resolvers:
        found = resolver(entry, table, kernel, raw)
        if found is not None:
            return found
    return None


def _is_to_come(kernel: Any) -> TypeGuard[AbsentKernel]:
    """Whether an import may bring a kernel: one that is outdated has been imported."""
    return isinstance(kernel, AbsentKernel) and kernel.outdated is None


def call_next_provider(
    operator: Operator, after: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs what comes after a provider for these arguments. See Note [Providers]."""
    kernel, given, _, run = _led(operator, args, kwargs)
    return run(TableEntry(operator.entry.after_provider(kernel, after, given), "next provider"))


def call_all_providers(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Runs each provider that takes these arguments. See Note [Providers]."""
    kernel, given, (positional, keywords), run = _led(operator, args, kwargs)
    return [
        run(TableEntry(each, "one of all providers"))
        for takes, each in operator.entry.all_providers(kernel, given)
        if takes(*positional, **keywords)
    ]


def _led(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any, tuple[tuple[Any, ...], dict[str, Any]], Callable[[TableEntry], Any]]:
    """The kernel to which a call leads, the classes that choose, the bound arguments, and a
    function that runs another kernel with them.
    """
    wide, signature = operator.entry.current(operator.generation)
    positional, keywords = _bound(operator, signature, args, kwargs)
    raw = _keys_of_arguments(signature, positional, keywords)
    table = for_types(wide, signature, positional, keywords)
    raw = _effective(operator, table, raw)
    given = _given(signature, positional, keywords)

    def run(slot: TableEntry) -> Any:
        return _run(operator, "call", table, signature, raw, positional, keywords, slot)

    return table.lookup(raw).kernel, given, (positional, keywords), run


def call_python_kernel(
    operator: Operator, kernel: PythonKernel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs one of the operator's rules. Arguments and result are treated as for any kernel."""
    signature = operator.entry.current(operator.generation)[1]
    positional, keywords = _bound(operator, signature, args, kwargs)
    return check_result(operator, signature, kernel.function(*positional, **keywords), kernel)


def call_with_python_kernels(
    operator: Operator, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """At the key PythonDispatcher: runs what the table would have at the highest key below, if the
    operator's Python kernels were registered. The kernel gets the whole set, so that its
    redispatches come here again.

    (PyTorch: resolve_key; its own rules differ from the table's for nested tensors, these do not)
    """
    table, signature = operator.entry.current(operator.generation)
    positional, keywords = _bound(operator, signature, args, kwargs)
    raw = key_set.raw
    table = operator.rules.merged(for_types(table, signature, positional, keywords))
    slot = table.lookup(raw & ~_DISPATCHER)
    kernel = slot.kernel
    if isinstance(kernel, PythonKernel):
        return check_result(operator, signature, kernel.function(*positional, **keywords), kernel)
    if kernel is None or slot.is_fallthrough:
        raise missing(operator.entry.facts, operator.entry.name, table, raw & ~_DISPATCHER)
    return _run(operator, "redispatch", table, signature, raw, positional, keywords, slot)


def _raw(operator: Operator, what: str, key_set: object) -> int:
    if not isinstance(key_set, DispatchKeySet):
        from ..errors.words import shown

        name = operator.entry.name
        raise ArgumentError(
            f"{what} takes a DispatchKeySet as its first argument, not {shown(key_set)}", name
        )
    return key_set.raw


# --- stacks of arguments --------------------------------------------------------------------------


def call_boxed(operator: Operator, stack: list[Any]) -> None:
    _run_boxed(operator, "call_boxed", None, stack)


def redispatch_boxed(operator: Operator, key_set: DispatchKeySet, stack: list[Any]) -> None:
    _run_boxed(operator, "redispatch_boxed", _raw(operator, "redispatch_boxed", key_set), stack)


def _run_boxed(operator: Operator, how: str, raw: int | None, stack: list[Any]) -> None:
    """The arguments are the last elements of the stack; the returns take their place. If it raises,
    the stack stays as it was.
    """
    table, signature = operator.entry.current(operator.generation)
    schema = signature.schema
    name = operator.entry.name
    count = len(schema.arguments)
    if not isinstance(stack, list) or schema.is_open or len(stack) < count:
        if schema.is_open:
            stars = " and ".join(map(repr, schema.stars or ("...",)))
            what = (
                f"takes any number of arguments ({stars}), so it cannot know how many to take from "
                "a stack"
            )
        elif isinstance(stack, list):
            what = f"takes {count} arguments, but the stack holds {len(stack)}"
        else:
            what = f"takes its arguments from a list, not from a {type(stack).__qualname__}"
        raise ArgumentError(f"{name}() {what}\n  declared as {schema}", name, schema)
    first = len(stack) - count
    given = stack[first:]
    by_position = [v for v, a in zip(given, schema.arguments, strict=True) if not a.kwarg_only]
    by_keyword = {a.name: v for v, a in zip(given, schema.arguments, strict=True) if a.kwarg_only}
    positional, keywords = _bound(operator, signature, by_position, by_keyword)
    table = for_types(table, signature, positional, keywords)
    if raw is None:
        raw = _effective(operator, table, _keys_of_arguments(signature, positional, keywords))
    result = _run(operator, how, table, signature, raw, positional, keywords)
    # Only these locations change: the kernel may have pushed something onto the same stack.
    stack[first : first + count] = signature.returns.values(result)


# --- running --------------------------------------------------------------------------------------


def _run(
    operator: Operator,
    how: str,
    table: DispatchTable,
    signature: Signature,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    slot: TableEntry | None = None,
) -> Any:
    """Runs the kernel of ``slot``, else that of the table for these keys."""
    if raw & _HANDLERS:
        check_handlers(operator.entry.name, operator.rules, raw, positional, keywords)
    if slot is None:
        slot = table.lookup(raw)
    observers = observing.now
    if observers:
        result = observe(
            observers,
            operator.entry.name,
            how,
            raw,
            slot,
            positional,
            keywords,
            lambda: _invoke(operator, table, signature, slot, raw, positional, keywords),
        )
    else:
        result = _invoke(operator, table, signature, slot, raw, positional, keywords)
    try:  # what check_result does, without its frame
        return signature.returns.check(result, slot.kernel)
    except ForeignObjectError as error:
        raise refused(error, operator.entry.name) from None


def check_result(operator: Operator, signature: Signature, result: Any, by: object) -> Any:
    try:
        return signature.returns.check(result, by)
    except ForeignObjectError as error:
        raise refused(error, operator.entry.name) from None


def checked_answer(operator: Operator, result: Any, by: str) -> Any:
    """Checks what a handler returned in place of a kernel. If the operator was closed meanwhile,
    the result is returned as it is.
    """
    signature = operator.entry.signature()
    if signature is None or signature.generation != operator.generation:
        return result
    return check_result(operator, signature, result, by)


def _invoke(
    operator: Operator,
    table: DispatchTable,
    signature: Signature,
    slot: TableEntry,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    kernel = slot.kernel
    while _is_to_come(kernel) and operator.entry.load(kernel.fact):
        table = operator.entry.current(operator.generation)[0]
        table = for_types(table, signature, positional, keywords)
        slot = table.lookup(raw)
        kernel = slot.kernel
    if isinstance(kernel, AbsentKernel):
        kernel = resolved(operator.entry, table, kernel, raw) or kernel
    if kernel is None or isinstance(kernel, (AbsentKernel, Tie)) or kernel.is_fallthrough:
        given = _told(table, signature, positional, keywords)
        below = raw & ~_DISPATCHER  # whose fallback comes here with the slot of the key below
        raise missing(operator.entry.facts, operator.entry.name, table, below, given)
    if TYPE_CHECKING:  # one from elsewhere is of another interpreter's class
        assert isinstance(kernel, LocalKernel)
    if kernel.home != HERE:
        raise foreign_kernel(operator.entry.name, kernel)
    if slot.reason == "backend fallback":
        positional = (operator, *positional)
    if kernel.with_keyset:
        positional = (DispatchKeySet.from_raw(raw), *positional)
    return kernel.function(*positional, **keywords)

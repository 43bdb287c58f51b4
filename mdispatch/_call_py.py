"""The hot path, in Python: from arguments to the kernel that runs. What a faster one has to agree
with.

    table      the operator's, computed anew when its version word has changed
    bind       arguments to the schema, checked and converted
    key set    the union over the arguments that are tensors by the schema, lists of them
               included; then what this thread adds and takes away (see guards.py)
    kernel     the table's, at the highest key of the effective set

A redispatch takes its key set as it is: no argument is looked at, no thread's sets, no fallthrough.

(c10: Dispatcher::call, redispatch, callBoxed, redispatchBoxed, callBoxedForDispatchKey,
DispatchKeyExtractor::getDispatchKeySetBoxed)
"""

from __future__ import annotations

from ._kernels import LocalKernel
from ._keys import parse_key, table_index
from ._observers import observe, observing
from ._pairing import AbsentKernel, missing, missing_at
from ._schema_types import Type
from ._table import Entry as Slot
from .errors import ArgumentError, ReturnValueError
from .guards import local
from .keys import DispatchKey, DispatchKeySet
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ._entry import Entry, Signature
    from ._schema_types import Argument
    from ._table import DispatchTable

    class Operator(Protocol):
        """What these functions need of an OpOverload."""

        _entry: Entry
        _generation: int


__all__ = ["call", "call_boxed", "call_for_dispatch_key", "call_with_keyset"]
__all__ += ["redispatch", "redispatch_boxed"]


def call(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    table, signature = operator._entry.current(operator._generation)
    positional, keywords = signature.binder.bind(args, kwargs)
    raw = _keys_of_arguments(signature, positional, keywords)
    return _run(operator, "call", table, _effective(table, raw), positional, keywords)


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
    """Those of its tensors; its own where a Tensor is wanted, as which lists may be registered.

    Lists of tensors come from the binder as plain lists. A tensor may be of a class that is derived
    from list or tuple.
    """
    if argument.type.name != Type.LIST:
        return raw_of(value) or 0
    raw = 0
    for item in value:
        raw |= raw_of(item) or 0
    return raw


def _effective(table: DispatchTable, raw: int) -> int:
    included, kept = local.sets.now
    return table.effective((raw | included) & kept)


def call_with_keyset(
    operator: Operator, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raw = _raw(operator, "call_with_keyset", key_set)
    table, signature = operator._entry.current(operator._generation)
    positional, keywords = signature.binder.bind(args, kwargs)
    return _run(operator, "call", table, _effective(table, raw), positional, keywords)


def redispatch(
    operator: Operator, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raw = _raw(operator, "redispatch", key_set)
    table, signature = operator._entry.current(operator._generation)
    positional, keywords = signature.binder.bind(args, kwargs)
    return _run(operator, "redispatch", table, raw, positional, keywords)


def call_for_dispatch_key(
    operator: Operator, key: DispatchKey | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    key = parse_key(key)
    table_index(key)
    table, signature = operator._entry.current(operator._generation)
    positional, keywords = signature.binder.bind(args, kwargs)
    kernel = table.at(key)
    if not isinstance(kernel, LocalKernel) or kernel.is_fallthrough:
        raise missing_at(operator._entry.name, table, key)
    slot = Slot(kernel, "kernel" if key in table.kernels else "backend fallback")
    how = "call_for_dispatch_key"
    return _run_slot(operator, how, table, slot, key.raw, positional, keywords)


def _raw(operator: Operator, what: str, key_set: object) -> int:
    if not isinstance(key_set, DispatchKeySet):
        from ._nearest import shown

        name = operator._entry.name
        raise ArgumentError(f"{what} needs a DispatchKeySet first, not {shown(key_set)}", name)
    return key_set.raw


# --- stacks of arguments --------------------------------------------------------------------------


def call_boxed(operator: Operator, stack: list[Any]) -> None:
    _run_boxed(operator, "call_boxed", None, stack)


def redispatch_boxed(operator: Operator, key_set: DispatchKeySet, stack: list[Any]) -> None:
    _run_boxed(operator, "redispatch_boxed", _raw(operator, "redispatch_boxed", key_set), stack)


def _run_boxed(operator: Operator, how: str, raw: int | None, stack: list[Any]) -> None:
    """The arguments are the last elements of the stack; the returns take their place. What raises
    leaves the stack as it was.
    """
    table, signature = operator._entry.current(operator._generation)
    schema = signature.schema
    name = operator._entry.name
    count = len(schema.arguments)
    if not isinstance(stack, list) or schema.is_vararg or len(stack) < count:
        if schema.is_vararg:
            what = "takes any number of arguments ('...'), so a stack cannot tell which are its own"
        elif isinstance(stack, list):
            what = f"takes {count} arguments from a stack that has {len(stack)}"
        else:
            what = f"takes its arguments from a list, not from a {type(stack).__qualname__}"
        raise ArgumentError(f"{name}() {what}\n  declared as {schema}", name, schema)
    first = len(stack) - count
    given = stack[first:]
    by_position = [v for v, a in zip(given, schema.arguments, strict=True) if not a.kwarg_only]
    by_keyword = {a.name: v for v, a in zip(given, schema.arguments, strict=True) if a.kwarg_only}
    positional, keywords = signature.binder.bind(by_position, by_keyword)
    if raw is None:
        raw = _effective(table, _keys_of_arguments(signature, positional, keywords))
    result = _run(operator, how, table, raw, positional, keywords)
    # Those places, and no others: the kernel may have pushed something onto the same stack.
    stack[first : first + count] = _returns(signature, result)


def _returns(signature: Signature, result: Any) -> list[Any]:
    """What a kernel returned, as a list of the length that the schema says."""
    schema = signature.schema
    count = len(schema.returns)
    if count == 1 and not schema.is_varret:
        return [result]
    if count == 0 and not schema.is_varret:
        if result is None:
            return []
        wanted = "None"
    elif isinstance(result, (list, tuple)) and (
        len(result) == count or (schema.is_varret and len(result) > count)
    ):
        return list(result)
    else:
        wanted = f"a tuple of {'at least ' if schema.is_varret else ''}{count}"
    found = (
        f"{len(result)} values" if isinstance(result, (list, tuple)) else type(result).__qualname__
    )
    name = str(schema.name)
    raise ReturnValueError(
        f"a kernel of {name} returned {found}, not {wanted}\n  declared as {schema}", name, schema
    )


# --- running --------------------------------------------------------------------------------------


def _run(
    operator: Operator,
    how: str,
    table: DispatchTable,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    return _run_slot(operator, how, table, table.lookup(raw), raw, positional, keywords)


def _run_slot(
    operator: Operator,
    how: str,
    table: DispatchTable,
    slot: Slot,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    observers = observing.now
    if observers:
        return observe(
            observers,
            operator._entry.name,
            how,
            raw,
            slot,
            positional,
            keywords,
            lambda: _invoke(operator, table, slot, raw, positional, keywords),
        )
    return _invoke(operator, table, slot, raw, positional, keywords)


def _invoke(
    operator: Operator,
    table: DispatchTable,
    slot: Slot,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    kernel = slot.kernel
    if kernel is None or isinstance(kernel, AbsentKernel) or kernel.is_fallthrough:
        raise missing(operator._entry.name, table, raw)
    assert isinstance(kernel, LocalKernel)
    if slot.reason == "backend fallback":
        positional = (operator, *positional)
    if kernel.with_keyset:
        positional = (DispatchKeySet.from_raw(raw), *positional)
    return kernel.function(*positional, **keywords)

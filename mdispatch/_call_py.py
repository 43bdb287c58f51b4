"""The hot path, in Python: from arguments to the kernel that runs. What a faster one has to agree
with.

    table      the operator's, computed anew when its version word has changed
    bind       arguments to the schema, checked and converted
    key set    the union over the arguments that are tensors by the schema, lists of them
               included; then what every thread adds and takes away
    kernel     the table's, at the highest key of the effective set

(c10: Dispatcher::call, DispatchKeyExtractor::getDispatchKeySetBoxed)
"""

from __future__ import annotations

from ._kernels import LocalKernel
from ._keys import BACKEND_BITS, DispatchKey
from ._pairing import AbsentKernel, missing
from .errors import ArgumentError
from .keys import DispatchKeySet
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._entry import Entry
    from ._table import DispatchTable

__all__ = ["call", "redispatch"]

# What every thread adds to and takes from the keys of its calls. (c10: default_included_set,
# default_excluded_set)
_INCLUDED = DispatchKeySet("BackendSelect", "ADInplaceOrView").raw
_EXCLUDED = DispatchKeySet(
    name for name in DispatchKey.__members__ if name.startswith("Autocast")
).raw
_KEPT = ~(_EXCLUDED & ~BACKEND_BITS)


def call(operator: object, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    table, signature = entry.current()
    positional, keywords = signature.binder.bind(args, kwargs)
    raw = 0
    for position in signature.dispatch_positions:
        raw |= _keys_of(positional[position])
    for name in signature.dispatch_keywords:
        raw |= _keys_of(keywords[name])
    raw = table.effective((raw | _INCLUDED) & _KEPT)
    return _run(operator, entry, table, raw, positional, keywords)


def _keys_of(value: object) -> int:
    """The keys of one dispatch argument: a tensor's, those of a list's tensors, none of None."""
    if isinstance(value, (list, tuple)):
        raw = 0
        for item in value:
            raw |= raw_of(item) or 0
        return raw
    return raw_of(value) or 0


def redispatch(
    operator: object,
    entry: Entry,
    key_set: DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs the kernel of this key set as it is: no argument is looked at, no key falls through."""
    if not isinstance(key_set, DispatchKeySet):
        from ._nearest import shown

        what = shown(key_set)
        raise ArgumentError(f"redispatch needs a DispatchKeySet first, not {what}", entry.name)
    table, signature = entry.current()
    positional, keywords = signature.binder.bind(args, kwargs)
    return _run(operator, entry, table, key_set.raw, positional, keywords)


def _run(
    operator: object,
    entry: Entry,
    table: DispatchTable,
    raw: int,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    slot = table.lookup(raw)
    kernel = slot.kernel
    if kernel is None or isinstance(kernel, AbsentKernel) or kernel.is_fallthrough:
        raise missing(entry.name, entry.kernels, table, raw)
    assert isinstance(kernel, LocalKernel)
    if slot.reason == "backend fallback":
        positional = (operator, *positional)
    if kernel.with_keyset:
        positional = (DispatchKeySet.from_raw(raw), *positional)
    return kernel.function(*positional, **keywords)

"""PyTorch's names for what a call comes to: its key set, the key that decides, the kernel there."""

from __future__ import annotations

from . import guards
from . import keys as _keys
from ._computed_kernel import ComputedKernel
from ._torch_common import _key, _registry, _text, _theirs
from ._torch_keys import DispatchKeySet, _compat, _key_set, _keys_of
from .errors import AmbiguousKernelError, MissingKernelError
from .functions import get_kernel
from .keys import DispatchKey
from .operators import OpOverload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .higher_order import HigherOrderOperator

__all__ = ["_dispatch_get_computed_kernel_for_dispatch_key", "key_extractor", "resolve_key"]


@_theirs
def _dispatch_get_computed_kernel_for_dispatch_key(
    name: str, dispatch: DispatchKey | str
) -> ComputedKernel:
    """The kernel in the slot of a runtime key, to be called with ``call_boxed(key_set, ...)``.

    RuntimeError for an operator that is not there, for an alias key, and where no kernel is in the
    slot. Where the key falls through there is nothing to call, and it raises likewise.
    """
    return get_kernel(_text(name), _key(dispatch), registry=_registry())


@_theirs
def key_extractor(tensors: Iterable[object], key_mask: _keys.DispatchKeySet) -> DispatchKeySet:
    """The key set of a call with these values: their keys and those that this thread includes,
    without those it excludes, of ``key_mask``. TypeError for a value without keys.
    """
    key_set = guards.included_keys()
    for tensor in tensors:
        key_set = key_set | _keys_of(tensor)
    return _compat((key_set - guards.excluded_keys()) & _key_set(key_mask))


@_theirs
def resolve_key(op: OpOverload | HigherOrderOperator, k: DispatchKey | str) -> DispatchKey:
    """The key whose kernel, or Python kernel, serves a key: itself, or an alias key; itself also
    where a backend fallback does.

    RuntimeError where it cannot be decided, NotImplementedError where nothing serves the key.
    """
    key = _key(k)
    if op.has_kernel_for_dispatch_key(key):
        return key
    if not key.is_alias:
        if isinstance(op, OpOverload):
            table = op.rules.merged(op._entry.current(op._generation)[0])
        else:
            table = op._rules.table()
        slot = table.entries[_keys.table_index(key)]
        if slot.reason == "backend fallback":
            return key
        if slot.reason == "ambiguous autogradother":
            raise AmbiguousKernelError(
                f"{op.name} has a composite kernel and one of a backend behind AutogradOther: "
                "which of them is meant there is not known",
                op.name,
                key.name,
                [each.name for each in table.kernels],
            )
        for place, kernel in table.kernels.items():
            if kernel is slot.kernel and _serves(place, key):
                return place
    raise MissingKernelError(
        f"nothing of {op.name} serves {key}",
        op.name,
        key.name,
        [each.name for each in op.py_kernels],
    )


def _serves(place: DispatchKey, key: DispatchKey) -> bool:
    return key is DispatchKey.Undefined or _keys.is_included_in_alias(key, place)

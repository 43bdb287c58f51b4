"""The Python side of calls in C (native/bind/call/call.c): what they get, and what they ask for.

A call in C runs the kernel by itself if everything about the call is plain. It asks this file for a
plan when its own is out of date, for a target when it meets an entry of a table for the first time,
and for the keys of values whose types are not registered. Any other call it hands over to
dispatch/call_py.py, which begins anew. With ``MDISPATCH_CALLS=python`` in the environment, Python
makes every call. With ``MDISPATCH_TENSORS=torch``, C asks PyTorch for the keys of each tensor.
"""

from __future__ import annotations

import os
from abc import ABCMeta

from ..errors import InvalidArgumentError, MdispatchError
from ..facts.native import calls
from ..facts.native import interpreter_id as HERE
from ..keys import DispatchKey, DispatchKeySet
from ..keys.numbers import OFFSETS, PER_BACKEND_BITS, RUNTIME_KEYS
from .by_type import ByType, Plain, metaclasses
from .call_py import call, check_result, redispatch
from .context.observers import (
    ObservedCall,
    ObserverHandle,
    failed,
    label_of,
    observing,
    provider_of,
    raise_told,
    succeeded,
)
from .context.values import DEVICES, WRAPPED, how_of_type, raw_of, when_types_change
from .entry import most_targets
from .handlers import tell_c
from .kernels import LocalKernel
from .pairing import AbsentKernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .by_type import Given
    from .call_py import Operator
    from .table import DispatchTable


def turn(on: bool) -> None:
    """Sets whether C makes calls in this interpreter where it can. For tests, which compare both
    ways, and for users who suspect one of them.
    """
    calls.turn(not on)


def _wanted() -> bool:
    asked = os.environ.get("MDISPATCH_CALLS", "")
    if asked not in ("", "c", "python"):
        raise InvalidArgumentError(
            f"MDISPATCH_CALLS={asked!r}: it must be 'c' (for calls that C can make) or 'python'. "
            "Unset it to let mdispatch choose."
        )
    return asked != "python"


def _tensors_are_read() -> bool:
    asked = os.environ.get("MDISPATCH_TENSORS", "")
    if asked not in ("", "torch"):
        raise InvalidArgumentError(
            f"MDISPATCH_TENSORS={asked!r}: it must be 'torch' (PyTorch is asked for the keys of "
            "each tensor). Unset it to let mdispatch read them where PyTorch keeps them."
        )
    return not asked


def connect(call_packet: Callable[..., Any], renew_packet: Callable[..., Any]) -> None:
    """Once per interpreter, before the first call."""
    special = (DispatchKey.Python, DispatchKey.PreDispatch, DispatchKey.PythonDispatcher)
    calls.keys(OFFSETS, PER_BACKEND_BITS, sum(key.raw for key in special), WRAPPED)
    devices = tuple((number, key.raw) for number, key in DEVICES.items())
    calls.values(how_of_type, raw_of, DispatchKeySet, MdispatchError, devices)
    tell_c()
    calls.paths(
        call, _redispatch, _renew, _target, check_result, call_packet, renew_packet, _for_types
    )
    when_types_change(calls.types_changed)
    calls.observing(
        ObservedCall, ObserverHandle, RUNTIME_KEYS, _said, failed, succeeded, raise_told
    )
    observing.when_changed = lambda: calls.observers(observing.now)
    observing.when_changed()
    if not _tensors_are_read():
        calls.torch_place(0, 0)
    turn(_wanted())


def _redispatch(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key_set: Any = args[0] if args else None  # redispatch refuses None, in words
    return redispatch(operator, key_set, args[1:], kwargs)


def _renew(operator: Operator) -> None:
    """Makes a plan, if this operator's calls can have one. OperatorGoneError."""
    operator.entry.renew(operator.generation)


def _target(table: DispatchTable, index: int) -> tuple[Any, LocalKernel, bool, bool] | None:
    """What C calls for a table's entry, its kernel, and whether it gets the operator and the key
    set. None if the entry has no kernel that can be called here, and no call has found the way to
    one that is served elsewhere.
    """
    slot = table.entries[index]
    kernel = slot.kernel
    if isinstance(kernel, AbsentKernel) and kernel.route is not None:
        kernel = kernel.route.at(table, RUNTIME_KEYS[index])
    if not isinstance(kernel, LocalKernel) or kernel.is_fallthrough or kernel.home != HERE:
        return None
    return kernel.in_c, kernel, slot.reason == "backend fallback", kernel.with_keyset


def _said(operator: Operator, table: DispatchTable, index: int) -> tuple[str, str, str, str]:
    """What observers are told of each run of an entry: operator, kernel, reason, provider."""
    slot = table.entries[index]
    return operator.entry.name, label_of(slot), slot.reason, provider_of(slot)


def _for_types(
    table: DispatchTable, given: Given, is_plain: bool
) -> tuple[DispatchTable, int, tuple[int, ...] | None, int, bool, bool]:
    """The table of a call whose tensors have these classes, what a plan needs of it, whether these
    classes alone have chosen it, so that it may be kept for them, and whether abstract classes may
    get virtual subclasses that choose otherwise. With ``is_plain`` they are the classes of values.
    """
    given = Plain(given) if is_plain else given
    found = table.for_types(given)
    several = [each for each in table.kernels.values() if isinstance(each, ByType)]
    lasts = all(each.is_decided_by(given) for each in several)
    abstract = False
    if is_plain:
        special = metaclasses(kernel for each in several for kernel in each.kernels)
        abstract = bool(special)
        lasts = lasts and special <= {ABCMeta}  # another one may say something else at any time
    return found, found.mask, found.backend_masks, most_targets(found), lasts, abstract

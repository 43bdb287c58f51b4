"""What calls in C (native/bind/call.c) are told, and what they ask.

Such a call looks, and where everything is plain it runs the kernel. It asks here for a plan when
its own is out of date, for a target when it comes to an entry of a table for the first time, for
the keys of values whose types are not registered. All else it leaves to _call_py.py, from the
beginning. With ``MDISPATCH_CALLS=python`` in the environment, every call.
"""

from __future__ import annotations

import os

from ._call_py import call, check_result, redispatch
from ._kernels import LocalKernel
from ._keys import OFFSETS, PER_BACKEND_BITS
from ._native import _call
from ._observers import observing
from ._placement import HERE
from .errors import InvalidArgumentError, MdispatchError
from .guards import local
from .keys import DispatchKey, DispatchKeySet
from .values import raw_of, raw_of_type, when_types_change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._call_py import Operator
    from ._table import DispatchTable

__all__ = ["connect", "turn"]

# Why all calls go through Python: somebody looks on, or asked for it.
_OBSERVED, _ASKED = range(2)


def turn(on: bool) -> None:
    """Whether calls in this interpreter go through C where they can. For tests, which compare both
    ways, and for those who suspect one of them.
    """
    _call.turn(_ASKED, not on)


def _wanted(asked: str) -> bool:
    if asked not in ("", "c", "python"):
        raise InvalidArgumentError(
            f"MDISPATCH_CALLS={asked!r}: calls are made by 'c' where they can be, or by 'python'. "
            "Unset it to have that chosen."
        )
    return asked != "python"


def connect(call_packet: Callable[..., Any], renew_packet: Callable[..., Any]) -> None:
    """Once per interpreter, before the first call."""
    special = (DispatchKey.Python, DispatchKey.PreDispatch, DispatchKey.PythonDispatcher)
    _call.keys(OFFSETS, PER_BACKEND_BITS, sum(key.raw for key in special))
    _call.values(
        raw_of_type, raw_of, DispatchKeySet, DispatchKeySet.from_raw, local, MdispatchError
    )
    _call.paths(call, _redispatch, _renew, _target, check_result, call_packet, renew_packet)
    when_types_change(_call.types_changed)
    observing.when_changed = lambda: _call.turn(_OBSERVED, bool(observing.now))
    observing.when_changed()
    turn(_wanted(os.environ.get("MDISPATCH_CALLS", "")))


def _redispatch(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key_set: Any = args[0] if args else None  # which is refused, in words
    return redispatch(operator, key_set, args[1:], kwargs)


def _renew(operator: Operator) -> None:
    """Makes a plan, if this operator's calls can have one. OperatorGoneError."""
    operator._entry.renew(operator._generation)


def _target(table: DispatchTable, index: int) -> tuple[Any, LocalKernel, bool, bool] | None:
    """The function of a table's entry, its kernel, whether it gets the operator and the key set;
    None where there is none to be called, or not here.
    """
    slot = table.entries[index]
    kernel = slot.kernel
    if not isinstance(kernel, LocalKernel) or kernel.is_fallthrough or kernel.home != HERE:
        return None
    return kernel.function, kernel, slot.reason == "backend fallback", kernel.with_keyset

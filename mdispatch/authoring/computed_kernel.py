"""One kernel of one operator as a value, which ``get_kernel`` returns."""

from __future__ import annotations

from .. import facts
from ..dispatch.call_py import _bound, _raw, _run
from ..dispatch.kernels import FALLBACK_NAME, LocalKernel
from ..dispatch.pairing import BUILTIN_FALLBACKS, missing, pair
from ..dispatch.table import TableEntry
from ..errors import MissingKernelError
from ..keys import DispatchKeySet
from ..keys.numbers import DispatchKey, parse_key, table_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..dispatch.operators import OpOverload
    from ..dispatch.table import DispatchTable

__all__ = ["ComputedKernel", "computed_kernel"]


class ComputedKernel:
    """The kernel that an operator had at one key when it was asked for.

    ``operator`` and ``key`` say where it was found, ``label`` names the kernel, ``reason`` is the
    rule that put it there and ``where`` the location of its registration.

    It runs as long as it is registered, even if a newer kernel has taken its place. After its
    registration is closed a call raises MissingKernelError; after the operator is gone,
    OperatorGoneError. (torch: SafeKernelFunction)
    """

    __slots__ = ("_slot", "_table", "key", "kernel", "operator", "where")

    def __init__(
        self,
        operator: OpOverload,
        key: DispatchKey,
        slot: TableEntry,
        kernel: LocalKernel,
        where: str,
    ) -> None:
        self.operator = operator
        self.key = key
        self.kernel = kernel
        self.where = where
        self._slot = slot
        self._table: DispatchTable | None = None

    @property
    def label(self) -> str:
        """The kernel's name, as tables show it."""
        return self.kernel.label

    @property
    def reason(self) -> str:
        """The rule that put it there: "kernel", "autograd kernel", "backend fallback" ..."""
        return self._slot.reason

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs it with the arguments of the operator, defaults filled in, as a redispatch to its
        key would.
        """
        return self.call_boxed(DispatchKeySet.from_raw(self.key.raw), *args, **kwargs)

    def call_boxed(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Runs it with ``key_set`` as the key set of the call. The kernel gets the key set if it
        was registered with ``with_keyset``.

        Raises ArgumentError, ReturnValueError, MissingKernelError, OperatorGoneError and what the
        kernel raises.
        """
        operator = self.operator
        raw = _raw(operator, "call_boxed", key_set)
        table, signature = operator.entry.current(operator.generation)
        if table is not self._table:  # every change makes a new table
            self._check()
            self._table = table
        positional, keywords = _bound(operator, signature, args, kwargs)
        return _run(operator, "get_kernel", table, signature, raw, positional, keywords, self._slot)

    def _check(self) -> None:
        operator, kernel = self.operator, self.kernel
        if BUILTIN_FALLBACKS.get(kernel.key) is kernel:
            return
        dispatcher = operator.dispatcher
        if self._slot.reason == "backend fallback":
            kind, name, here = facts.FALLBACK, FALLBACK_NAME, dispatcher.fallbacks.kernels
        else:
            kind, name, here = facts.IMPL, operator.name, operator.entry.kernels
        _, _, there = dispatcher.facts.registrations(name)
        same = [fact for fact in there if (fact.kind, fact.key) == (kind, kernel.key)]
        # A worker pairs registrations with callables by what is left when others have gone. The
        # kernel is still registered if it is in effect now, or was in effect before the newer ones
        # came.
        callables = list(here.get(kernel.key, ()))
        if not any(pair(same[:count], callables) is kernel for count in range(1, len(same) + 1)):
            raise MissingKernelError(
                f"{kernel.label}, which get_kernel found for {operator.name} at {self.key.name}, "
                f"has since been closed\n  registered at {self.where}\nCall get_kernel again to "
                "get the kernel that is there now.",
                operator.name,
                self.key.name,
                [key.name for key in operator.entry.kernels],
            )

    def __repr__(self) -> str:
        return (
            f"<kernel {self.label} of {self.operator.name} at {self.key.name}, {self.reason}, "
            f"from {self.where}>"
        )


def computed_kernel(operator: OpOverload, key: DispatchKey | str) -> ComputedKernel:
    """The kernel that the operator's table has at a runtime key."""
    key = parse_key(key)
    index = table_index(key)
    table, _ = operator.entry.current(operator.generation)
    slot = table.entries[index]
    kernel = slot.kernel
    if not isinstance(kernel, LocalKernel) or kernel.is_fallthrough:
        raise missing(operator.dispatcher.facts, operator.name, table, key.raw)
    is_fallback = slot.reason == "backend fallback"
    kind, name = (facts.FALLBACK, FALLBACK_NAME) if is_fallback else (facts.IMPL, operator.name)
    fact = operator.dispatcher.facts.find(kind, kernel.key, name)
    return ComputedKernel(operator, key, slot, kernel, fact.where if fact else "mdispatch itself")

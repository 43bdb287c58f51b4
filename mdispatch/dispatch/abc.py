"""What the files of this package need to know of an operator that they are handed.

Imported for types only. An OpOverload and a HigherOrderOperator keep it; both lie above the files
that use it.
"""

from __future__ import annotations

from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..keys import DispatchKeySet
    from ..schema import FunctionSchema
    from .table import DispatchTable, TableEntry


class Operator(Protocol):
    """An operator, as modes, types, transforms and handlers get it."""

    @property
    def name(self) -> str:
        """``ns::name`` or ``ns::name.overload``."""

    @property
    def rules(self) -> Any:
        """Its Rules: what is registered for it in this interpreter only."""

    def checked_answer(self, result: Any, by: str) -> Any:
        """What a mode, a type or a transform gave in place of a kernel, if it may be given."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...


class Dispatched(Operator, Protocol):
    """An operator whose calls come by key sets."""

    def redispatch(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any: ...

    def call_with_python_kernels(
        self, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...


class KernelsEntry(Protocol):
    """An operator's entry, as its kernels know it: what ends one, and what defines it."""

    name: str

    def defined(self) -> tuple[Callable[[], int], int, Any]:
        """The Signature of the definition as it is now, None without one; before it what tells
        whether it has changed since, by a number that is another one then.
        """

    def recompute(self) -> None:
        """Has the next call compute the table anew."""

    def remove(self, kernel: Any) -> None:
        """Ends the registration of the kernel, if that is this interpreter's to end, and drops
        it."""


class EntryTable(Protocol):
    """The table that an entry stands in, as the entry knows it."""

    there: dict[str, Any]

    def let_go(self, entry: Any) -> None:
        """Keeps no more than a reference to it, which counts for nothing."""


class Chooser(Protocol):
    """Chooses among the kernels of an operator's key of which some have the name of a provider. It
    belongs to one table, and knows the priorities of that moment.
    """

    def at_key(self, kernels: Sequence[Any]) -> Any:
        """The entry of the table at a key with these kernels, which come oldest first; None if none
        can run.
        """

    def after(self, kernel: Any, name: str, at: Callable[[Any], Sequence[Any]], given: Any) -> Any:
        """The kernel after the provider of this name, for a call that leads to ``kernel``. ``at``
        gives the kernels of a key.
        """

    def every(self, kernel: Any, at: Callable[[Any], Sequence[Any]], given: Any) -> Sequence[Any]:
        """The kernels of all providers that may run, for a call that leads to ``kernel``, each with
        a function of the arguments that says whether it takes them, in their order.
        """

    def verdicts(self, kernels: Sequence[Any], given: Any) -> Sequence[tuple[str, str]]:
        """Each provider with its verdict in words, in their order."""


class Peer(Protocol):
    """Another dispatcher that has the operator too, and takes some of its calls."""

    @property
    def is_made(self) -> bool:
        """Whether the other one has the operator, and not only can get it."""

    def in_c(self, schema: FunctionSchema, table: DispatchTable) -> tuple[int, int, Any]:
        """For calls in C: a number that says which of them the other one may want, the bits of the
        arguments to which a call writes that is made here all the same, and the other one's
        operator for those with its own values alone, or None.
        """

    def slot(
        self,
        operator: Any,
        table: DispatchTable,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> TableEntry | None:
        """What runs in place of the table's kernel; None if the other one does not want this call.
        ``operator`` is the OpOverload.
        """

    def overload_of(self, operator: Any) -> Any:
        """The other one's object for the operator, for a compiler that traces."""

    def close(self) -> None:
        """Takes the operator out of the other one, if it is there."""

    def keep_up(self) -> None:
        """A kernel was registered: tells the other one, if it has to know of it."""

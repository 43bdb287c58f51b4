"""What a computed table says, for people: one slot of it, and how a key set comes to one.

Nothing here needs a callable: a kernel is told by its fact.
"""

from __future__ import annotations

from ._kernels import FALLTHROUGH, LocalKernel, fallthrough_kernel
from ._keys import RUNTIME_KEYS, DispatchKey, highest_index
from ._pairing import missing
from .keys import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._registry import Registration, RegistryProtocol
    from ._table import DispatchTable
    from .errors import MdispatchError

__all__ = ["BUILT_IN", "Explanation", "RegisteredKernel", "TableRow", "listed"]

#: Where those fallbacks come from that nobody registered.
BUILT_IN = "built in"


class RegisteredKernel(LocalKernel):
    """The kernel of a fact, wherever its callable is."""

    __slots__ = ("fact",)

    def __init__(self, fact: Registration) -> None:
        falls_through = fact.body == FALLTHROUGH
        function = fallthrough_kernel if falls_through else _elsewhere
        super().__init__(DispatchKey(fact.key), function, signature=fact.signature, label=fact.body)
        self.seq = fact.seq
        self.fact = fact


def _elsewhere(*args: object, **kwargs: object) -> None:
    raise NotImplementedError("tables for people have no callables")


class TableRow:
    """One slot of a computed table: what runs at ``key``, by which rule (``reason``), and the place
    at which it was registered.

    ``kernel`` is its label, "fallthrough" where calls pass the key by, "" where there is nothing to
    run. ``registration`` is its fact; None for nothing, and for what is built in.
    """

    __slots__ = ("is_fallthrough", "kernel", "key", "reason", "registration", "where")

    def __init__(self, key: DispatchKey, reason: str, kernel: object, is_fallthrough: bool) -> None:
        fact = kernel.fact if isinstance(kernel, RegisteredKernel) else None
        self.key = key
        self.reason = reason
        self.registration = fact
        self.kernel = kernel.label if isinstance(kernel, LocalKernel) else ""
        self.where = fact.where if fact is not None else "" if kernel is None else BUILT_IN
        self.is_fallthrough = is_fallthrough

    def __repr__(self) -> str:
        return f"<{self.key.name}: {self.kernel or 'nothing'} ({self.reason})>"


class Explanation:
    """How a key set leads to its kernel. ``str`` of it is the text for people.

    ``given`` is the key set asked about, ``included`` and ``excluded`` are the thread's sets;
    ``added`` and ``taken`` are the keys that these add and take away, ``passed_by`` those that fall
    through, ``key_set`` is what is left and ``key`` its highest key. ``rules`` are the rules tried
    there, up to the one that decides, and ``row`` is what runs. ``error`` is what a call raises
    instead, also where every module is imported; None when it raises nothing.
    """

    __slots__ = (
        "added",
        "error",
        "excluded",
        "given",
        "included",
        "key",
        "key_set",
        "operator",
        "passed_by",
        "row",
        "rules",
        "taken",
    )

    def __init__(
        self,
        registry: RegistryProtocol,
        operator: str,
        given: DispatchKeySet,
        included: DispatchKeySet,
        excluded: DispatchKeySet,
        table: DispatchTable,
        undefined: MdispatchError | None,
    ) -> None:
        self.operator = operator
        self.given = given
        self.included = included
        self.excluded = excluded
        wanted = given | included
        before = wanted - excluded
        self.key_set = DispatchKeySet.from_raw(table.effective(before.raw))
        self.added = tuple(key for key in wanted if not given.has(key))
        self.taken = tuple(key for key in wanted if not before.has(key))
        self.passed_by = tuple(key for key in before if not self.key_set.has(key))
        self.key = RUNTIME_KEYS[highest_index(self.key_set.raw)]
        self.rules = table.why(self.key)
        slot = table.lookup(self.key_set.raw)
        self.row = TableRow(self.key, slot.reason, slot.kernel, slot.is_fallthrough)
        self.error = undefined
        if undefined is None and (slot.kernel is None or slot.is_fallthrough):
            self.error = missing(registry, operator, table, self.key_set.raw)

    def steps(self) -> tuple[tuple[str, str], ...]:
        """From what the arguments carry to the key that decides, in words: (step, keys)."""
        return (
            ("arguments carry", listed(self.given)),
            ("the thread adds", listed(self.added)),
            ("the thread excludes", listed(self.taken)),
            ("fall through", listed(self.passed_by)),
            ("left", listed(self.key_set)),
            ("highest", self.key.name),
        )

    def __str__(self) -> str:
        lines = [f"{self.operator} with {listed(self.given)}"]
        lines += [f"  {step:<20} {keys}" for step, keys in self.steps()]
        lines.append(f"  rules at {self.key}, up to the one that decides:")
        lines += [f"    {rule}" for rule in self.rules]
        if self.error is not None:
            lines.append(f"  a call raises {type(self.error).__name__}:")
            lines += [f"    {line}" for line in str(self.error).split("\n")]
        else:
            lines.append(f"  runs {self.row.kernel}    ({self.row.where})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{self.operator} with {listed(self.given)} leads to {self.row!r}>"


def listed(keys: Iterable[DispatchKey]) -> str:
    """Keys in words."""
    return ", ".join(key.name for key in keys) or "no key"

"""The dispatch table of one operator, computed from its kernels and the backend fallbacks.

A table is a pure function of these two. It is never patched: each registration leads to a new
table. So no order of registrations leaves entries behind that the rules would not give. (c10's
OperatorEntry refreshes single entries, and misses entries that depend on other keys: has_backend.)

See Note [Precedence] for the rules. They are written twice: ``compute_table`` fills whole ranges of
the table, lowest rule first; ``DispatchTable.why`` tries the rules for one key in their order, and
says what it finds. The tests compare both for every key.

Note [Precedence]
~~~~~~~~~~~~~~~~~
For a runtime key k the first rule that has a kernel wins. A kernel "at" a key is the newest one
registered there. An alias key "serves" the keys that it stands for; the alias keys of rules 2, 3
and 5 also serve Undefined, the key of calls without keys.

1. kernel: one at k itself.
2. default backend kernel: one at CompositeExplicitAutogradNonFunctional, if that serves k.
3. default backend kernel: one at CompositeExplicitAutograd, if that serves k.
4. nested kernel: one at CompositeImplicitAutogradNestedTensor, if that serves k.
5. math kernel: one at CompositeImplicitAutograd, if that serves k, unless a backend has a kernel of
   its own. Gradients are then those of that kernel, and not those of the composite one's parts. A
   backend has one if there is a kernel at CompositeExplicitAutograd, or at a key that the autograd
   key k leads to, as AutogradCPU leads to CPU. AutogradOther leads to many backends, so it is
   unknown whose kernel would run. There it is an error: ambiguous autogradother.
6. autograd kernel: one at Autograd, if that serves k.
7. batched kernel: one at FuncTorchBatchedDecomposition, for FuncTorchBatched.
8. backend fallback: one of k, for all operators.
9. missing.

Where some kernels of a key are for types, the rules see one of them, or none: the one that the
call's types have chosen. See Note [Kernels by type] in dispatch/by_type.py.

(c10: OperatorEntry::computeDispatchTableEntryWithDebug)
"""

from __future__ import annotations

from ..keys import backend_keys_of_autograd, is_included_in_alias, runtime_keys
from ..keys.key_sets import BEHIND_AUTOGRAD
from ..keys.numbers import (
    BACKEND_BITS,
    FULL,
    RUNTIME_BITS,
    RUNTIME_KEYS,
    TABLE_INDEX,
    DispatchKey,
    backend_index,
    highest_index,
    table_index,
)
from .by_type import ByType, in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from .by_type import Given

    class Kernel(Protocol):
        """What an entry of a table refers to. It knows whether it is a fallthrough."""

        @property
        def is_fallthrough(self) -> bool: ...

    Kernels = Mapping[DispatchKey, Kernel]
    Masks = tuple[int, tuple[int, ...] | None]
    Below = tuple[list["TableEntry"], list[int], Masks]

_KERNEL = "kernel"
_BACKEND = "default backend kernel"
_NESTED = "nested kernel"
_MATH = "math kernel"
_AMBIGUOUS = "ambiguous autogradother"
_AUTOGRAD = "autograd kernel"
_BATCHED = "batched kernel"
_FALLBACK = "backend fallback"
_MISSING = "missing"

_EXPLICIT = DispatchKey.CompositeExplicitAutograd
_IMPLICIT = DispatchKey.CompositeImplicitAutograd
_NON_FUNCTIONAL = DispatchKey.CompositeExplicitAutogradNonFunctional
_SERVES_UNDEFINED = (_IMPLICIT, _EXPLICIT, _NON_FUNCTIONAL)

# The alias keys, least precedence first, and the reason their kernels have in a table.
_ALIASES = (
    (DispatchKey.FuncTorchBatchedDecomposition, _BATCHED),
    (DispatchKey.Autograd, _AUTOGRAD),
    (_IMPLICIT, _MATH),
    (DispatchKey.CompositeImplicitAutogradNestedTensor, _NESTED),
    (_EXPLICIT, _BACKEND),
    (_NON_FUNCTIONAL, _BACKEND),
)


def _slots(alias: DispatchKey) -> tuple[int, ...]:
    raw = runtime_keys(alias).raw
    slots = (index for index, bits in enumerate(RUNTIME_BITS) if bits and raw & bits == bits)
    return (0, *slots) if alias in _SERVES_UNDEFINED else tuple(slots)


_SLOTS = {alias: _slots(alias) for alias, _ in _ALIASES}
# For each slot: the bits that a fallthrough there removes, and for which backend (-1: for all).
_FALLS = tuple(
    (bits & ~BACKEND_BITS, backend_index(bits) if bits & BACKEND_BITS else -1)
    for bits in RUNTIME_BITS
)
_AUTOGRAD_OTHER = TABLE_INDEX[DispatchKey.AutogradOther]
_BEHIND_AUTOGRAD = tuple((TABLE_INDEX[key], keys.raw) for key, keys in BEHIND_AUTOGRAD.items())


class TableEntry:
    """One slot of a table: the kernel, or None, and the name of the rule that put it there."""

    __slots__ = ("is_fallthrough", "kernel", "reason")

    def __init__(self, kernel: Kernel | None, reason: str) -> None:
        self.kernel = kernel
        self.reason = reason
        self.is_fallthrough = kernel is not None and kernel.is_fallthrough

    def __repr__(self) -> str:
        return f"TableEntry({self.kernel!r}, {self.reason!r})"


_NOTHING = TableEntry(None, _MISSING)


class DispatchTable:
    """What runs at each runtime key, and which keys a call passes by. Nothing changes a table.

    ``entries`` is in table order (``RUNTIME_KEYS``). A fallthrough kernel means "as if this key
    were not in the set": ``mask`` lacks the bits of these keys. A functionality may fall through
    for some backends only, for SparseCPU but not for SparseCUDA. One mask cannot say that; then
    ``backend_masks`` has a mask for each backend. Else it is None.
    (c10: DispatchKeyExtractor)

    ``is_by_type`` says that kernels are for types: a call has to ask for the table of its types
    (``for_types``). ``wide`` is the table that such a table was made from, else the table itself.
    """

    __slots__ = (
        "_by_choice",
        "_fallbacks",
        "_kernels",
        "backend_masks",
        "entries",
        "is_by_type",
        "mask",
        "wide",
    )

    def __init__(
        self,
        entries: tuple[TableEntry, ...],
        kernels: Kernels,
        fallbacks: Kernels,
        masks: Masks,
    ) -> None:
        self.entries = entries
        self.mask, self.backend_masks = masks
        self._kernels = kernels
        self._fallbacks = fallbacks
        self.is_by_type = any(isinstance(kernel, ByType) for kernel in kernels.values())
        self.wide = self
        # The tables of types that were asked for, by the kernels that the types have chosen, which
        # are compared by identity. As many as there are choices; two threads that make one at once
        # keep the same.
        self._by_choice: dict[tuple[object, ...], DispatchTable] = {}

    def for_types(self, given: Given) -> DispatchTable:
        """The table of a call whose tensors have these classes. The same object for all classes
        that choose the same kernels.
        """
        if not self.is_by_type:
            return self
        chosen = {}
        for key, kernel in self._kernels.items():
            one = kernel.chosen(given) if isinstance(kernel, ByType) else kernel
            if one is not None:
                chosen[key] = one
        choice = (*chosen, *chosen.values())
        table = self._by_choice.get(choice)
        if table is None:
            table = compute_table(chosen, self._fallbacks)
            table.wide = self
            table = self._by_choice.setdefault(choice, table)
        return table

    def effective(self, raw: int) -> int:
        """The key set without the keys that fall through. ``raw`` is that of the arguments, with
        the thread's included and excluded keys applied.
        """
        if self.backend_masks is None:
            return raw & self.mask
        return raw & self.backend_masks[backend_index(raw)]

    def lookup(self, raw: int) -> TableEntry:
        """What runs for this key set. A call passes the ``effective`` set, a redispatch any."""
        return self.entries[highest_index(raw)]

    @property
    def kernels(self) -> Kernels:
        """The operator's own kernels by key, alias keys too. Not to be changed."""
        return self._kernels

    @property
    def fallbacks(self) -> Kernels:
        """The backend fallbacks by key. Not to be changed."""
        return self._fallbacks

    def at(self, key: DispatchKey) -> Kernel | None:
        """The kernel registered at exactly this key, else the backend fallback of the key.

        No alias key is asked. (c10: Dispatcher::callBoxedForDispatchKey)
        """
        return self._kernels.get(key) or self._fallbacks.get(key)

    def why(self, key: DispatchKey) -> tuple[str, ...]:
        """How the entry of a runtime key came about: the rules that were tried, up to the winner.

        Where kernels for types win, but none of them is for all types, this goes on with the rules
        for other types. InvalidKeyError for a key without a slot.
        """
        table_index(key)
        steps = []
        for reason, kernel, won, found in _rules(key, self._kernels, self._fallbacks):
            steps.append(f"{reason}: {found()}")
            if won:
                if isinstance(kernel, ByType) and kernel.plain is None:
                    others = self.for_types(()).why(key)
                    steps += [f"for other types, {other}" for other in others]
                break
        return tuple(steps)

    def faults(self) -> Iterator[str]:
        """The entries that differ from what the rules give for their key, and the keys for which
        the masks differ from the entries, in words.
        """
        for key, bits, entry in zip(RUNTIME_KEYS, RUNTIME_BITS, self.entries, strict=True):
            rules = _rules(key, self._kernels, self._fallbacks)
            reason, kernel = next((reason, kernel) for reason, kernel, won, _ in rules if won)
            if (entry.reason, entry.kernel) != (reason, kernel):
                yield (
                    f"at {key} the table has {entry.kernel!r} ({entry.reason}), the rules give "
                    f"{kernel!r} ({reason})"
                )
            passed = not self.effective(bits) & ~BACKEND_BITS
            if bits and passed != entry.is_fallthrough:  # nothing passes by Undefined
                yield f"{key} {'is passed by' if passed else 'stays'}, which its kernel is not for"


def fallback_entries(fallbacks: Kernels) -> Below:
    """The entries of a table whose operator has no kernels, which of them fall through, and their
    masks.
    """
    entries = [_NOTHING] * len(RUNTIME_BITS)
    for key, kernel in fallbacks.items():
        entries[table_index(key)] = TableEntry(kernel, _FALLBACK)
    falling = [i for i, entry in enumerate(entries) if entry.is_fallthrough]
    return entries, falling, _masks(entries, falling)


def compute_table(
    kernels: Kernels, fallbacks: Kernels, below: Below | None = None
) -> DispatchTable:
    """The table of an operator.

    ``kernels`` maps each key of the operator to the newest kernel there; a kernel registered
    without a key is one at CompositeImplicitAutograd. ``fallbacks`` maps runtime keys to the
    backend fallbacks, which all operators share; ``below`` are their ``fallback_entries``, where
    the caller has them already.
    """
    base, falling, masks = fallback_entries(fallbacks) if below is None else below
    entries = base[:]
    own = False
    for alias, reason in _ALIASES:
        if alias not in kernels:
            continue
        slots = _SLOTS[alias]
        if alias is _IMPLICIT:
            backed = _backed(kernels)
            if _AUTOGRAD_OTHER in backed:
                entries[_AUTOGRAD_OTHER] = TableEntry(None, _AMBIGUOUS)
            explicit = _EXPLICIT in kernels
            slots = () if explicit else tuple(slot for slot in slots if slot not in backed)
        entry = TableEntry(kernels[alias], reason)
        own = own or entry.is_fallthrough
        for slot in slots:
            entries[slot] = entry
    for key, kernel in kernels.items():
        slot = TABLE_INDEX.get(key, -1)
        if slot >= 0:
            entries[slot] = entry = TableEntry(kernel, _KERNEL)
            own = own or entry.is_fallthrough
    if own:
        masks = _masks(entries, range(len(entries)))
    else:
        still = [slot for slot in falling if entries[slot] is base[slot]]
        if len(still) < len(falling):
            masks = _masks(entries, still)
    return DispatchTable(tuple(entries), dict(kernels), dict(fallbacks), masks)


def _backed(kernels: Kernels) -> set[int]:
    """The slots of the autograd keys that lead to a kernel of a backend."""
    registered = [key.raw for key in kernels if key.raw]
    return {
        slot
        for slot, backends in _BEHIND_AUTOGRAD
        if any(backends & raw == raw for raw in registered)
    }


def _masks(entries: Sequence[TableEntry], where: Iterable[int]) -> Masks:
    """The masks of a table. ``where`` are the slots that may fall through."""
    shared = FULL
    by_backend: list[int] = []
    for slot in where:
        if entries[slot].is_fallthrough:
            functionality, backend = _FALLS[slot]
            if backend < 0:
                shared &= ~functionality
            else:
                by_backend = by_backend or [FULL] * 16
                by_backend[backend] &= ~functionality
    if not by_backend:
        return shared, None
    if by_backend.count(by_backend[0]) == 16:
        return by_backend[0] & shared, None
    masks = tuple([mask & shared for mask in by_backend])
    union = 0
    for mask in masks:
        union |= mask
    return union, masks


def _rules(
    key: DispatchKey, kernels: Kernels, fallbacks: Kernels
) -> Iterator[tuple[str, Kernel | None, bool, Callable[[], str]]]:
    """The rules in their order: the reason, the kernel, whether this one applies, and what makes
    the words for that. Most callers read the words of few rules, or of none.
    """

    def at(place: DispatchKey, reason: str) -> tuple[str, Kernel | None, bool, Callable[[], str]]:
        kernel = kernels.get(place)
        return reason, kernel, kernel is not None, lambda: _in_words(place, kernel)

    def at_alias(
        alias: DispatchKey, reason: str
    ) -> tuple[str, Kernel | None, bool, Callable[[], str]]:
        if alias in kernels and serves(alias, key):
            return at(alias, reason)
        return reason, None, False, lambda: not_at_alias(alias)

    def not_at_alias(alias: DispatchKey) -> str:
        if serves(alias, key):
            return _in_words(alias, None)
        return f"{alias} does not stand for {key}"

    yield at(key, _KERNEL)
    for place, reason in reversed(_ALIASES):
        found = at_alias(place, reason)
        if place is _IMPLICIT and found[2]:
            behind = backend_keys_of_autograd(key)
            backends = [other for other in kernels if other.raw and behind.has(other)]
            names = ", ".join(backend.name for backend in backends)
            if backends and key is DispatchKey.AutogradOther:
                both = f"kernels at {place} and at {names}"
                yield _AMBIGUOUS, None, True, both.__str__
            elif backends or _EXPLICIT in kernels:
                also = f"a kernel at {place}, but also one at {names or _EXPLICIT}"
                yield reason, None, False, also.__str__
            else:
                yield found
        else:
            yield found
    there = key in fallbacks
    yield _FALLBACK, fallbacks.get(key), there, lambda: f"{'one' if there else 'none'} for {key}"
    yield _MISSING, None, True, lambda: f"nothing serves {key}"


def serves(alias: DispatchKey, key: DispatchKey) -> bool:
    """Whether a kernel at the alias key may serve this key."""
    undefined = key is DispatchKey.Undefined and alias in _SERVES_UNDEFINED
    return undefined or is_included_in_alias(key, alias)


def _in_words(place: DispatchKey, kernel: Kernel | None) -> str:
    if isinstance(kernel, ByType):
        several = ", ".join(map(in_words, kernel.kernels))
        return f"kernels at {place}, chosen by type: {several}"
    return f"{'a' if kernel is not None else 'no'} kernel at {place}"

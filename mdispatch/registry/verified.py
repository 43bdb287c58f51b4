"""The registrations of a registry that an interpreter has verified. It keeps no list of them:
operators are tens of thousands.
"""

from __future__ import annotations

from .. import facts, seam
from ..dispatch.kernels import Provider

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.kernels import LocalKernel
    from ..facts import Registration
    from ..facts.kinds import Kind

__all__ = ["Verified", "present"]


class Verified:
    """Whether this interpreter has verified registrations. Ask once for each, in their order."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        # How many more registrations of this kind, key and name were verified. There may be several
        # kernels at one key for the same types, as custom_op and then register_fake make them. A
        # worker verifies the newest each time, so only the number can be compared.
        self._left: dict[tuple[int, int, str], int] = {}

    def has(self, fact: Registration) -> bool | None:
        """None for a provider that a worker may lack, and that this one lacks."""
        what, variant = fact.what, ""
        if fact.kind == facts.IMPL and "\n" in fact.text:
            what, variant = fact.verified_as, fact.variant
        times = self._left.get(what)
        if times is None:
            times = self.dispatcher.times_verified(*fact.what, variant)
        self._left[what] = times - 1
        if times > 0:
            return True
        return None if variant and may_be_lacking(fact) else False


def may_be_lacking(fact: Registration) -> bool:
    """Whether the main interpreter has said so of a provider."""
    provider = Provider.of(fact.provider_text)
    return provider is not None and not provider.required


def present(dispatcher: Dispatcher) -> list[Registration]:
    """The registrations that this interpreter has: its own, and those of others that it has
    verified. Without those that any member may register by itself, and those of the registrar that
    hold for a member which registers none. If an operator was defined anew meanwhile, this has the
    definition that the interpreter has verified.
    """
    its = dispatcher.facts
    there, has = its.registrations()[2], _Present(dispatcher).has
    if its.keeps_own and not its.observes:  # a name apart goes together with those of all
        there = seam.at("all that is registered")(dispatcher)
    kinds = {number: facts.kind_of(number) for number in {fact.kind for fact in there}}
    there = [fact for fact in there if not kinds[fact.kind].by_any]
    if its.observes or not its.keeps_own:
        definition = dispatcher.listeners.definition
        there = [
            (definition(fact.name) or fact) if fact.kind == facts.DEF else fact for fact in there
        ]
    return [fact for fact in there if has(fact, kinds[fact.kind])]


class _Present:
    """For :func:`present`: a member as kinds of registrations ask about it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher, self.verified = dispatcher, Verified(dispatcher)

    def has(self, fact: Registration, kind: Kind) -> bool | None:
        its = self.dispatcher.facts
        if its.is_apart(fact.name):
            return True
        if kind.is_here is not None:
            return kind.is_here(fact, self)
        return self.is_mine(fact) or self.verified.has(fact) or self.is_inherited(fact)

    def is_inherited(self, fact: Registration) -> bool:
        """Whether this child of a fork has it from a parent that had registered it."""
        if fact.kind == facts.DEF or fact.seq >= self.dispatcher.parents.get(fact.pid, 0):
            return False
        kernels: Iterable[LocalKernel]
        if fact.kind == facts.IMPL:
            entry = self.dispatcher.entries.get(fact.name)
            kernels = () if entry is None else entry.callables
        elif fact.kind == facts.FALLBACK:
            kernels = self.dispatcher.fallbacks.kernels.get(fact.key, ())
        else:
            return True
        return any(each.seq == -fact.seq for each in kernels)

    def is_mine(self, fact: Registration) -> bool:
        return self.dispatcher.registers_all or self.dispatcher.facts.is_mine(fact)

    def is_from_here(self, fact: Registration) -> bool:
        return False  # nothing is expected

    is_in_spaces = is_from_here

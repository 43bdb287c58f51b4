"""The registrations as a member sees them that observes: those of the shared registry, and for the
names apart those that it keeps for itself. See Note [Names apart] in __init__.py.

Locking: ``apart`` is changed by single steps of a dict, under the lock of the operator's entry
where there is one (alone.py). The registry of its own has a lock of its own: a thread
that holds it takes no other.
"""

from __future__ import annotations

import os

from .. import seam
from ..errors import ForeignRegistryError, InvalidArgumentError, RegistryFormatError
from ..errors.words import shown
from ..facts import DEF, kind_of
from ..facts.native.constants import MD_MATCH
from ..facts.opening import ENVIRONMENT
from ..facts.registration import COMPATIBLE, MATCH
from ..facts.shared import SharedRegistry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..facts import Registration
    from ..facts.abc import Facts, Removable
    from ..facts.native.contract import StatTuple
    from ..facts.waits import Waited
    from .own import Own

__all__ = ["OWN", "VARIABLE", "Observer", "backing"]

#: From here on numbers and nodes are those of a member's own registry. No shared one gets so far.
OWN = 1 << 62

#: The environment variable with the way to treat a difference: raise, warn, or roll_call, which is
#: to warn until a roll call raises.
VARIABLE = "MDISPATCH_ON_DIFFERENCE"
_OBSERVES = ("warn", "roll_call")


def backing(shared: type, match: str | None) -> type:
    """The class of the registrations where the variable or a match asks for something.
    InvalidArgumentError for another word. Where registries are not shared nothing can differ.
    """
    wanted = os.environ.get(VARIABLE) or "raise"
    if wanted not in ("raise", *_OBSERVES):
        raise InvalidArgumentError(
            f"{VARIABLE}={shown(wanted)} in the environment: it is raise, as without it, warn, or "
            "roll_call"
        )
    if match not in (None, "same", COMPATIBLE):
        raise InvalidArgumentError(
            f"match={shown(match)}, or MDISPATCH_MATCH in the environment: it is same, as without "
            "it, or compatible"
        )
    is_asked_for = wanted in _OBSERVES or match == COMPATIBLE
    return Observer if shared is SharedRegistry and is_asked_for else shared


def base_of(name: str) -> str:
    """The name without the overload."""
    return name.partition(".")[0]


class Observer(SharedRegistry):
    """A membership that goes on after some differences, or after each."""

    keeps_own = True

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        wanted = os.environ.get(VARIABLE)
        self.observes = wanted in _OBSERVES
        #: Whether roll calls raise nevertheless.
        self.raises_in_roll_calls = wanted == "roll_call"
        #: The definitions of its own that it has told the others, by the numbers of its own.
        self.variants: dict[int, Registration] = {}
        self._own: Own | None = None
        #: The names apart, without overloads, and for each the full names that it has here.
        self.apart: dict[str, dict[str, None]] = {}
        #: The registrations of its own that stand for one which was verified, by that one's number.
        self.stand_ins: dict[int, Registration] = {}
        #: Ends a stand-in, and brings a name together again: alone.py sets both.
        self.end_stand_in: Callable[[Registration], object] = id
        self.when_together: Callable[[str], object] = len
        #: The number that the next registration had when something of a namespace was missing.
        self._missing: dict[str, int] = {}
        # How many shared registrations names apart hide, and for which sequence that holds.
        self._hidden = (0, 0)
        #: Why this process does not have the registry that the environment names, in words.
        self.aside = ""
        forget = self.forget_published

        def forget_both() -> None:
            forget()
            if self._own is not None:
                self._own.forget_published()

        self.forget_published = forget_both

    @classmethod
    def default(cls) -> SharedRegistry:
        """As for any member. But where the environment names a registry of another format, host,
        boot or PID namespace, this process makes one of its own, and its children join that.
        """
        try:
            return super().default()
        except (RegistryFormatError, ForeignRegistryError) as error:
            why = str(error)
        del os.environ[ENVIRONMENT]
        made = super().default()
        if isinstance(made, Observer):
            made.aside = why
        return made

    @property
    def own(self) -> Own:
        """The registry of its own. It loads much, so it is made for the first name apart, under the
        lock of the definitions.
        """
        if self._own is None:
            from .own import Own

            self._own = Own(OWN)
        return self._own

    def is_apart(self, name: str) -> bool:
        return bool(self.apart) and base_of(name) in self.apart

    def versions(self, name: str) -> str:
        both = self.own.find(DEF, 0, name), super().find(DEF, 0, name)
        if not self.is_apart(name) or None in both:
            return ""
        here, there = (f"{each.body}    ({each.where})" for each in both if each is not None)
        return f"\n  here:  {here}\n  there: {there}\nCalls are not sent from one to the other."

    def for_entry(self, name: str) -> Facts:
        return Apart(self) if self.is_apart(name) else self

    @property
    def matches(self) -> bool:
        """Whether compatible definitions belong together in this registry."""
        return super().has(MD_MATCH, 0, MATCH)

    # --- changes

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        if self.is_apart(name) and not kind_of(kind).by_any:
            self.apart[base_of(name)][name] = None
            made = self.own.register(kind, key, name, body, where)
        else:
            made = super().register(kind, key, name, body, where)
        if kind == DEF and self.matches:
            seam.at("a definition among others that match")(self, made)
        return made

    @property
    def published(self) -> list[tuple[int, int]]:
        mine = [] if self._own is None else self._own.published
        return [*super().published, *mine]

    def remove(self, registration: Removable) -> bool:
        if registration.seq >= OWN:
            if self.end_own(registration):
                self.bring_together(getattr(registration, "name", ""))
                return True
            return False
        stand_in = self.stand_ins.pop(registration.seq, None)
        done = super().remove(registration)
        if stand_in is not None:
            self.end_stand_in(stand_in)
        return done

    def end_own(self, registration: Removable) -> bool:
        """Ends a registration of its own, and the others' knowledge of it."""
        variant = self.variants.pop(registration.seq, None)
        if variant is not None:
            super().remove(variant)
        return self.own.remove(registration)

    def bring_together(self, name: str = "") -> None:
        """Has a name with its overloads, or each, apart no longer if nothing is registered under it
        here.
        """
        for base in [base_of(name)] if name else list(self.apart):
            names = self.apart.get(base)
            if names is not None and not any(self.own.registrations(n)[2] for n in tuple(names)):
                self.apart.pop(base, None)
                self.when_together(base)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        super().close()

    # --- looking

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        if self.is_apart(name) and not kind_of(kind).by_any:
            return self.own.find(kind, key, name)
        return super().find(kind, key, name)

    def has(self, kind: int, key: int, name: str) -> bool:
        if self.is_apart(name) and not kind_of(kind).by_any:
            return self.own.has(kind, key, name)
        return super().has(kind, key, name)

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        if name is None:
            following = super().stat()[5] if self.apart else 0
            _, _, there = super().registrations()
            if not self.apart:
                return 0, 0, there
            seen = [fact for fact in there if base_of(fact.name) not in self.apart]
            self._hidden = following, len(there) - len(seen)
            return 0, 0, seen + self.own.registrations()[2]
        if self.is_apart(name):
            return self.own.registrations(name)
        return super().registrations(name)

    def registered_by_all(self) -> list[Registration]:
        """Those of the shared registry, also under names apart."""
        return super().registrations()[2]

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        count, there = super().registrations_since(kind, seq)
        if not self.apart or kind in (0, DEF):  # asked by listeners to others
            return count, there
        _, every = super().registrations_since(kind, 0)
        own, mine = self.own.registrations_since(kind, 0)
        hidden = sum(base_of(fact.name) in self.apart for fact in every)
        seen = [fact for fact in there if base_of(fact.name) not in self.apart]
        return count - hidden + own, seen + mine

    def stat(self) -> StatTuple:
        figures = super().stat()
        if not self.apart:
            return figures
        following, hidden = self._hidden
        mine = self.own.stat()
        count = figures[3] + mine[3] - (hidden if following == figures[5] else 0)
        changed = figures[5] + mine[5] - OWN
        return (*figures[:3], count, figures[4], changed, *figures[6:])

    def version(self, node: int) -> int:
        return self.own.version(node) if node >= OWN else super().version(node)

    def reader(self, node: int) -> Callable[[], int]:
        return self.own.reader(node) if node >= OWN else super().reader(node)

    def is_mine(self, registration: Registration) -> bool:
        return registration.seq >= OWN or super().is_mine(registration)

    # --- waits

    def await_fact(
        self,
        kind: int,
        key: int,
        name: str,
        at_least: int,
        timeout: float | None,
        ticket: int = 0,
        or_elect: bool = False,
    ) -> tuple[Registration | None, Waited]:
        """As in any registry. But only the first verification in a namespace waits for something
        that the registrar lacks; the next ones look, until something was registered since.
        """
        if self.is_apart(name) and not kind_of(kind).by_any:
            return self.own.await_fact(kind, key, name, at_least, timeout, ticket, or_elect)
        if not or_elect:
            return super().await_fact(kind, key, name, at_least, timeout, ticket)
        space = name.partition("::")[0]
        known = self._missing.get(space)
        if known is not None and not self._has_news(known):
            timeout = 0.0
        following = super().stat()[5]
        found, waited = super().await_fact(kind, key, name, at_least, timeout, ticket, or_elect)
        if found is None:
            self._missing[space] = known if timeout == 0.0 and known is not None else following
        else:
            self._missing.pop(space, None)
        return found, waited

    def _has_news(self, since: int) -> bool:
        """Whether anything was registered since that members compare."""
        _, there = super().registrations_since(0, since)
        return any(not kind_of(fact.kind).by_any for fact in there)


class Apart(Observer):
    """The same, as the entry of an operator apart has it: calls go through Python."""

    def __init__(self, observer: Observer) -> None:
        self.__dict__ = observer.__dict__

    def view(self, make: bool = True) -> None:
        """See Note [Names apart]."""

"""Members of compatible versions in one registry, where ``match="compatible"`` lets them be.

Note [Matching]
~~~~~~~~~~~~~~~
A registration says that compatible definitions belong together in its registry (``MATCH``). It is
there before anything is compared, and stays as long as the registry. Each member looks at it when
it finds a difference. Without it members have to be the same.

A difference is compatible if the table of ``mdispatch diff`` says so of the two versions in one
direction: any of them may have come first. Then its name is apart here (Note [Names apart]),
and the member goes on with its own, as one that observes, but without a warning. Anything else is
refused as ever.

Members that go on with their own also have to go together with each other, and with registrars that
come later. So a member tells the others of each definition of its own, by a registration of kind
``VARIANT``, which ends with it. A member that has registered a definition, for all or as a variant,
looks at the earlier ones of the name. Where two do not go together, it ends its own. Of two that
come at once, one has the higher number: it was registered when the other one was there, so its
member sees the other one. No pair is left out.

At an import a definition is compared by itself. A warm-up knows all of this interpreter: it
compares each operator apart with its overloads and kernels, and looks for those that only the
registry has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors, facts, seam
from ..dispatch.plugs import Plug
from ..facts import differing
from ..facts.logs import verify_log
from ..facts.native.constants import MD_MATCH, MD_UNIQUE
from ..facts.registration import COMPATIBLE, MATCH, def_text
from ..facts.shared import SharedRegistry
from ..registry.differences import schemas_differ
from ..registry.roles import verifies_all
from ..registry.verify import keep, mended
from ..registry.versions import remedy
from .apart import set_apart
from .kinds import VARIANT
from .registry import OWN, Observer, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.differing import What

__all__ = ["ask", "is_compatible", "lacking", "takes", "tell_variant"]


# --- the match of a registry ----------------------------------------------------------------------


def ask(registry: Facts, match: str) -> None:
    """Has the registry this match, "same" or "compatible". MatchError where it has the other one.
    Where registries are not shared nothing can differ.
    """
    if not isinstance(registry, SharedRegistry):
        return
    if match == COMPATIBLE and (registry.is_host or registry.has(facts.STANDING, 0, facts.STANDS)):
        raise _refused(registry, match, "same", "Hosts of a cluster have to be the same: unset it.")
    is_there = registry.has(MD_MATCH, 0, MATCH)
    if is_there == (match == COMPATIBLE):
        return
    if is_there or not _may_decide(registry):
        there = COMPATIBLE if is_there else "same"
        do = (
            f"Ask for {there}, too (MDISPATCH_MATCH in the environment has it for the default "
            "registry), or take another name or edition."
        )
        raise _refused(registry, match, there, do)
    try:
        registry.register(MD_MATCH, 0, MATCH, COMPATIBLE, "")
    except errors.DuplicateRegistrationError:
        return  # another member has asked for the same


def _refused(registry: SharedRegistry, wanted: str, there: str, do: str) -> errors.MatchError:
    error = errors.MatchError(
        f"{registry.label} was made with match={there}, and this process asks for "
        f"match={wanted}\n{do}",
        registry.label,
    )
    error.wanted, error.there = wanted, there
    return error


def _may_decide(registry: SharedRegistry) -> bool:
    """Whether this member can still say what belongs together: nothing was compared yet."""
    return not verifies_all(registry) and all(
        facts.kind_of(fact.kind).by_any for fact in registry.registrations()[2]
    )


# --- whether two versions go together -------------------------------------------------------------


def _changes(there: list[Registration], here: list[Registration]) -> list[str]:
    """The breaking differences of two versions, from there to here; [] if they go together."""
    breaks: Callable[..., list[str]] = seam.at("what breaks between two versions")
    found = breaks(there, here)
    return found if found and breaks(here, there) else []


def _made(
    kind: int, key: int, name: str, text: str, where: str, seq: int = OWN << 1
) -> Registration:
    """A registration as it would be, after all others unless ``seq`` says where."""
    return facts.Registration(0, seq, kind, key, name, text, where, 0, 0)


def _of_overloads(observer: Observer, name: str) -> list[Registration]:
    """The registrations of the registry under a name and its overloads, and the fallbacks."""
    base = base_of(name)
    return [
        fact
        for fact in SharedRegistry.registrations(observer)[2]
        if (base_of(fact.name) == base or fact.kind == facts.FALLBACK)
        and not facts.kind_of(fact.kind).by_any
    ]


def is_compatible(
    dispatcher: Dispatcher, what: What, error: errors.VerificationError, text: str
) -> bool:
    """Whether the registry and this interpreter go together although this registration differs."""
    kind, key, name, _ = what
    if isinstance(error, errors.PystubMismatchError):
        kind = facts.PYSTUB
    if facts.kind_of(kind).by_any or isinstance(error, _ORDERED):
        return False
    observer = dispatcher.facts
    assert isinstance(observer, Observer)
    if kind == facts.LIBRARY:
        return True  # a namespace more
    there = _of_overloads(observer, name)
    same = [f for f in there if f.what == (kind, key, name)]
    if same and facts.kind_of(kind).rule & MD_UNIQUE:
        made = _made(kind, key, name, text, error.here, same[0].seq)
        here = [made if fact is same[0] else fact for fact in there]
    else:
        here = [*there, _made(kind, key, name, text, error.here)]
    return not _changes(there, here)


#: The errors of a provider that is not available, and of another order of providers.
_ORDERED = (errors.ProviderMissingError, errors.PriorityMismatchError)


# --- definitions of its own -----------------------------------------------------------------------


class Variants(Plug):
    """Tells the others of the definitions again after a fork: those before are the parent's."""

    __slots__ = ("_observer",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        observer = dispatcher.facts
        assert isinstance(observer, Observer)
        self._observer = observer

    def forked(self, is_heir: bool) -> None:
        observer = self._observer
        for seq, fact in list(observer.variants.items()):
            try:
                observer.variants[seq] = _tell(observer, fact)
            except errors.MdispatchError as error:
                verify_log.warn("the others do not know of the %s here: %s", fact.name, str(error))


def _tell(observer: Observer, fact: Registration) -> Registration:
    return SharedRegistry.register(observer, VARIANT, 0, fact.name, fact.text, fact.origin)


def tell_variant(observer: Observer, made: Registration) -> None:
    """After a definition was registered, for all or for this interpreter: it goes together with
    those that other members have told before. Else it is ended, and SchemaMismatchError.
    """
    its = made
    if made.seq >= OWN:
        try:
            its = observer.variants[made.seq] = _tell(observer, made)
        except BaseException:  # the registry is full
            observer.remove(made)
            raise
    _, _, there = SharedRegistry.registrations(observer, made.name)
    for fact in there:
        if fact.kind not in (VARIANT, facts.DEF) or fact.seq >= its.seq or fact.text == its.text:
            continue
        one, other = (
            _made(facts.DEF, 0, each.name, each.text, each.origin) for each in (fact, its)
        )
        changes = _changes([one], [other])
        if changes:
            error = schemas_differ(
                made.name,
                f"{made.name} is defined otherwise in {facts.who(fact.pid, fact.interpreter)}: "
                f"{'; '.join(changes)}",
                (other.body, made.where),
                (one.body, fact.where),
                remedy(made.where, fact.where, fact.pid),
            )
            if not observer.observes:
                observer.remove(made)
                raise error
            if fact.kind == VARIANT:  # with the registry it was compared before
                differing.keep(observer, (VARIANT, 0, made.name, ""), error, is_refused=False)
                verify_log.warn("goes on all the same: %s", str(error))


# --- a warm-up ------------------------------------------------------------------------------------


def lacking(dispatcher: Dispatcher, missing: list[Registration]) -> list[Registration]:
    """Those of the registrations that are missing here without which this interpreter does not go
    together with the registry. Looks at the operators apart, too.
    """
    observer = dispatcher.facts
    assert isinstance(observer, Observer)
    if not observer.matches:
        return missing
    _keep_outdated(dispatcher, observer)
    _look_at_those_apart(dispatcher, observer)
    gone = {fact.seq for fact in missing}
    by_name: dict[str, list[Registration]] = {}
    for fact in missing:
        if fact.kind != facts.LIBRARY:  # a namespace less
            by_name.setdefault(base_of(fact.name), []).append(fact)
    left: list[Registration] = []
    for base, its in by_name.items():
        there = _of_overloads(observer, base)
        if _changes(there, [fact for fact in there if fact.seq not in gone]):
            left += its
    return left


def _keep_outdated(dispatcher: Dispatcher, observer: Observer) -> None:
    """Goes on with the own definition of each operator that the registry defines anew by now, if
    the two go together.
    """
    for name, entry in list(dispatcher.entries.items()):
        before, now = dispatcher.listeners.definition(name), observer.find(facts.DEF, 0, name)
        if before is None or now is None or before.text == now.text:
            continue
        is_outdated = any(kernel.is_outdated(now) for kernel in entry.callables)
        if is_outdated and not _changes([now], [before]):
            dispatcher.of(Variants)
            set_apart(dispatcher, name)


def _look_at_those_apart(dispatcher: Dispatcher, observer: Observer) -> None:
    """Looks at each operator apart, with its overloads and kernels: keeps a difference where it
    does not go together with the registry's.
    """
    for base, names in list(observer.apart.items()):
        if "::" not in base:
            continue
        there = _of_overloads(observer, base)
        here = [fact for fact in there if fact.kind == facts.FALLBACK]
        for name in tuple(names):
            here += observer.own.registrations(name)[2]
        what = (facts.DEF, 0, base, "(overloads)")
        mended(dispatcher, what)
        kept = observer.differing.with_what() if observer.differing is not None else ()
        who = "the registry"
        changes = _changes(there, here)
        if not changes:
            defined = [fact for fact in here if fact.kind == facts.DEF]
            for member, there in _of_others(observer, names).items():
                # The other one may be in the midst of its import: it may get the rest yet.
                known = {fact.name for fact in there}
                here = [fact for fact in defined if fact.name in known]
                who, changes = facts.who(*member), _changes(there, here)
                if changes:
                    break
        if not changes or any(base_of(its[2]) == base for its, _ in kept):
            continue
        first, second = _places(there), _places(here)
        listed = "".join(f"\n  {each}" for each in changes)
        error = errors.NotCompatibleError(
            f"{base} goes together with that of {who} in neither direction:{listed}\n"
            f"  here:  {second}\n  there: {first}\n"
            "Keep what is there and register the new beside it, or give this version an edition of "
            "its own (docs/diff.md).",
            kind="def",
            name=base,
            here=second,
            there=first,
        )
        error.changes = tuple(changes)
        keep(dispatcher, what, error)


def _of_others(
    observer: Observer, names: Iterable[str]
) -> dict[tuple[int, int], list[Registration]]:
    """The definitions of each other member that goes on with its own, under these names."""
    found: dict[tuple[int, int], list[Registration]] = {}
    mine = {fact.seq for fact in observer.variants.values()}
    for name in tuple(names):
        for fact in SharedRegistry.registrations(observer, name)[2]:
            if fact.kind == VARIANT and fact.seq not in mine:
                made = _made(facts.DEF, 0, name, fact.text, fact.origin, fact.seq)
                found.setdefault((fact.pid, fact.interpreter), []).append(made)
    return found


def _places(some: Iterable[Registration]) -> str:
    defined = [fact.where for fact in some if fact.kind == facts.DEF]
    return defined[0] if defined else "nothing"


# --- pickles --------------------------------------------------------------------------------------


def takes(registry: Facts, body: str, attributes: str, fact: Registration) -> bool:
    """Whether what works with an operator where it was pickled works with its definition here."""
    if not isinstance(registry, Observer) or not registry.matches:
        return False
    sent = _made(facts.DEF, 0, fact.name, def_text(body, "", attributes), "")
    return not seam.at("what breaks between two versions")([sent], [fact])

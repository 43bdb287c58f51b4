"""One member decides, and all use what it has chosen.

A choice is a registration that any member makes, once, and that outlives it. The members that want
one which is not there queue up for it by a claim: see Note [Claims] in native/core/state/claims.c.
The first in the queue decides; the others wait for the registration as for any other, and for the
death of who decides, by its lease. Whoever takes no part is missed by nobody.

Note [One turn for each interpreter]
A claim belongs to an interpreter, so of its threads one at a time queues up: its envoy, which is in
``Turns.deciding`` under the choice's name. The other threads wait for any change of the
registry. An envoy leaves its place only after its claim is released: the next one would take the
claim for its own, and lose it to the release. No wake is lost. An envoy marks its turn as ending
first, releases its claim, which is a change, and then leaves. A thread that waits reads the
registry's sequence, looks for the registration, and then tries to be the envoy. If it meets a turn
without the mark, the release comes later, and the wait for another sequence ends. If it meets the
mark, it looks again after ``_SOON`` seconds. Where there was nothing to release, since the claim
was refused, the thread looks again after ``_LOOK_AGAIN`` seconds. native/model/choices.pml has it
all.

Locking: none. ``decide`` runs while this interpreter has a claim, and nothing else. What is
remembered, and whose turn it is, are items of dicts, put and removed in one step.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic

from .. import seam
from ..dispatch.plugs import Plug
from ..errors import DuplicateRegistrationError, InvalidArgumentError, NotACandidateError
from ..errors.locations import registrants_location
from ..facts import CLAIM, STANDING, STANDS, Elected
from ..facts.native.calls import surely
from ..facts.waits import check_timeout
from ..registry import registry as registries
from ..registry.registry import Registry, given_or_default, registry_of
from .kind import CHOICE
from .profiles import HOST, REGISTRY, Asked
from .values import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.operators import OpOverload
    from ..facts import Registration
    from ..facts.abc import Facts

    T = TypeVar("T")

#: Seconds that a member waits for another one's decision unless told otherwise.
CHOOSING_TIMEOUT = 60.0

_LOOK_AGAIN = 1.0
_SOON = 0.001
_DIGITS = 6  # of the number of a candidate


def choose(
    operator: OpOverload | str,
    profile: object,
    candidates: Iterable[T],
    decide: Callable[[], T],
    *,
    timeout: float | None = CHOOSING_TIMEOUT,
    environment: object = None,
    scope: str = REGISTRY,
    registry: Registry | None = None,
) -> T:
    """The candidate on which all members of the registry agree, for an operator and a profile.

    Where nobody has chosen yet, one member, main or not, runs ``decide()``, outside of all locks,
    and what it returns is the choice from then on, also after its end. Who asks meanwhile waits
    for it, up to ``timeout`` seconds (None: without end); ``decide`` itself has all its time. When
    the member that decides dies, or its ``decide`` raises, the next that waits decides. Members
    that do not ask are not waited for.

    ``scope`` says who has to agree: "registry", all members, or "host", those of this host only.
    Where the registry is of one host, the two are the same. On a host of a cluster members of other
    hosts cannot be asked, so there only "host" is taken: each host then chooses for itself.

    ``operator`` is an operator or any name. ``profile`` is what the choice depends on, such as
    sizes and types, and ``environment`` what beside it: versions, a device. Both, and the
    candidates, are of None, numbers, texts, tuples, lists, dicts. What is returned is this
    caller's own candidate. ``mdispatch.choices`` lists choices, withdraws, exports and loads them.

    Raises ChoiceScopeError (a host of a cluster, and ``scope`` is not "host"), NotACandidateError
    (what was chosen is not among the candidates here, or ``decide`` returned something else),
    ChoiceTimeoutError, NestedChoiceError (``decide`` asks for the same
    choice), InvalidArgumentError, RegistrarGoneError, RegistryClosedError, RegistryFullError, and
    what ``decide`` raises.
    """
    try:
        its = (registry or registries.default).dispatcher  # type: ignore[union-attr]
        if scope is REGISTRY:
            known = its.chosen.get((operator, profile, environment))
        else:  # nothing is known here under a scope that a choice cannot have
            known = its.chosen.get((operator, profile, environment, scope))
        if known is not None:
            value, given, version_now, version = known
            if given == candidates and version_now() == version:
                chosen: T = value
                return chosen
    except (AttributeError, TypeError, ValueError):
        pass  # nothing of it is known here, or can be compared: what is wrong is found out below
    name, registry = named(operator, registry)
    if operator is not name:
        return choose(
            name,
            profile,
            candidates,
            decide,
            timeout=timeout,
            environment=environment,
            scope=scope,
            registry=registry,
        )
    asked = Asked(name, profile, candidates, decide, environment)
    its = given_or_default(registry).dispatcher
    return choose_as(its, asked, timeout, registrants_location, scope)  # type: ignore[no-any-return]


def named(operator: object, registry: Registry | None) -> tuple[str, Registry | None]:
    """The name, and the registry of an operator that was given itself."""
    if type(operator) is str and operator:
        return operator, registry
    from ..dispatch.operators import OpOverload, OpOverloadPacket

    own = getattr(operator, "operator", operator)  # of a CustomOpDef
    if isinstance(own, OpOverloadPacket):
        own = own.default
    if isinstance(own, OpOverload):
        its = registry_of(own)
        if registry not in (None, its):
            raise InvalidArgumentError(
                f"the operator {own.name} is of {its!r}, and registry= is {registry!r}: give only "
                "one of them"
            )
        return own.name, its
    if isinstance(own, str) and own:
        return str.__str__(own), registry
    from ..errors.words import shown

    raise InvalidArgumentError(f"a choice is for an operator or a name, not {shown(operator)}")


class Turns(Plug):
    """``deciding`` has the threads whose turn it is to work for a choice of one registry, by the
    name of the choice.
    """

    __slots__ = ("deciding",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.deciding: dict[str, _Turn] = {}

    def forked(self, is_heir: bool) -> None:
        self.deciding = {}  # the other threads are not here; the one that forked has no claim


# --- looking --------------------------------------------------------------------------------------


def choose_as(
    dispatcher: Dispatcher,
    asked: Asked,
    timeout: float | None,
    where: Callable[[], str],
    scope: str,
    ticket: int = 0,
) -> Any:
    """As :func:`choose`, for a caller at ``where``. Cancelling the ticket ends its waits."""
    timeout = check_timeout(timeout)
    facts, name = dispatcher.facts, asked.name
    if scope not in scopes_in(facts):
        from .facts import out_of_scope

        raise out_of_scope(facts, asked.operator, asked.profile, scope, where())
    version, node, there = facts.registrations(name)
    fact = _choice_among(there)
    if fact is None:
        agreed = _agree(dispatcher, asked, timeout, where, ticket)
        version, node, there = facts.registrations(name)
        fact = _choice_among(there)
        if fact is None or fact.seq != agreed.seq:
            return _taken(dispatcher, asked, agreed, where)  # it was withdrawn meanwhile
    value = _taken(dispatcher, asked, fact, where)
    if asked.given is not None:
        key: tuple[Any, ...] = asked.operator, asked.profile, asked.environment
        if scope is not REGISTRY:
            key = *key, scope
        try:
            dispatcher.chosen[key] = value, asked.given, facts.reader(node), version
        except TypeError:
            return value  # what is no key of a dict is looked up each time
    return value


def _choice_among(there: list[Registration]) -> Registration | None:
    for fact in there:
        if fact.kind == CHOICE:
            return fact
    return None


def scopes_in(facts: Facts) -> tuple[str, ...]:
    """The scopes that a choice can have in a registry."""
    # The bridge of a host tells how it stands a little later than others can be here.
    is_of_cluster = facts.is_host or facts.has(STANDING, 0, STANDS)
    return (HOST,) if is_of_cluster else (REGISTRY, HOST)


def find_choice(facts: Facts, name: str) -> Registration | None:
    """The choice of this name, if there is one."""
    return facts.find(CHOICE, 0, name)


def _taken(
    dispatcher: Dispatcher, asked: Asked, fact: Registration, where: Callable[[], str]
) -> Any:
    """The candidate that was chosen. A member that observes, and has no such candidate, decides for
    itself.
    """
    try:
        return _candidate(asked, fact, where)
    except NotACandidateError as error:
        if not dispatcher.facts.observes:
            raise
        what = CHOICE, 0, asked.name, ""
        seam.at("a difference that one call meets")(dispatcher, what, error)
        return _own_choice(asked, where)


def _candidate(asked: Asked, fact: Registration, where: Callable[[], str]) -> Any:
    """This caller's own candidate that was chosen."""
    candidates = asked.candidates
    number, _, chosen = fact.text.partition("\n")[0].partition(" ")
    at = int(number) if number.isdecimal() and len(number) < _DIGITS else len(candidates)
    if at < len(candidates) and chosen == text_of(candidates[at], "a candidate"):
        return candidates[at]
    for each in candidates:
        if chosen == text_of(each, "a candidate"):
            return each
    from .facts import chosen_elsewhere

    raise chosen_elsewhere(asked, fact, where())


# --- deciding -------------------------------------------------------------------------------------


class _Turn:
    __slots__ = ("ending", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.ending = False


class _Time:
    """How much is left of a timeout."""

    __slots__ = ("began", "timeout")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.began = monotonic()

    def left(self) -> float | None:
        if self.timeout is None:
            return None
        return max(0.0, self.timeout - (monotonic() - self.began))


def _agree(
    dispatcher: Dispatcher,
    asked: Asked,
    timeout: float | None,
    where: Callable[[], str],
    ticket: int,
) -> Registration:
    """Waits until the choice is there, or makes it. See Note [One turn for each interpreter]."""
    facts, time, turn = dispatcher.facts, _Time(timeout), _Turn()
    here = dispatcher.of(Turns)
    try:
        while True:
            seq, _ = facts.await_change(0, 0.0)
            fact = find_choice(facts, asked.name)
            if fact is not None:
                return fact
            its = here.deciding.setdefault(asked.name, turn)
            if its is turn:
                return _take_turn(facts, asked, time, where, ticket)
            if its.thread == turn.thread:
                from .facts import nested

                raise nested(asked, where())
            left = time.left()
            if left == 0.0:
                raise _timed_out(facts, asked, time, where)
            longest = _SOON if its.ending else _LOOK_AGAIN
            facts.await_change(seq, longest if left is None else min(left, longest), ticket)
    finally:
        # See Note [Handlers that raise] in native/bind/call/surely.c.
        surely(_end_turn, dispatcher, asked.name, turn)


def _end_turn(dispatcher: Dispatcher, name: str, turn: _Turn) -> None:
    """Idempotent; does nothing where the turn is another thread's."""
    deciding = dispatcher.of(Turns).deciding
    if deciding.get(name) is not turn:
        return
    turn.ending = True
    try:
        dispatcher.facts.release(name)
    except Exception:
        deciding.pop(name, None)
        raise
    deciding.pop(name, None)


def _take_turn(
    facts: Facts, asked: Asked, time: _Time, where: Callable[[], str], ticket: int
) -> Registration:
    here = where()
    while True:
        is_first = facts.claim(asked.name, here)
        # After the claim: who decided before has registered the choice before it went.
        fact = find_choice(facts, asked.name)
        if fact is None and is_first:
            fact = _decide(facts, asked, lambda: here)
        elif fact is None:
            try:
                fact, _ = facts.await_fact(
                    CHOICE, 0, asked.name, 1, time.left(), ticket, or_elect=True
                )
            except Elected:
                continue
            if fact is None:
                raise _timed_out(facts, asked, time, where)
        if fact is not None:
            return fact


def _own_choice(asked: Asked, where: Callable[[], str]) -> Any:
    """The choice of a member that observes, and has not what the others have chosen."""
    from .facts import returned_no_candidate

    value = asked.decide()
    text = text_of(value, "what decide() returned")
    for each in asked.candidates:
        if text == text_of(each, "a candidate"):
            return each
    raise returned_no_candidate(asked, value, where())


def _decide(facts: Facts, asked: Asked, where: Callable[[], str]) -> Registration | None:
    """Makes the choice. None where another one was there first, and was withdrawn already."""
    from .facts import Body, returned_no_candidate

    texts = [text_of(each, "a candidate") for each in asked.candidates]
    body = Body(asked.operator, *asked.texts, texts)
    began = monotonic()
    value = asked.decide()
    seconds = monotonic() - began
    text = text_of(value, "what decide() returned")
    if text not in texts:
        raise returned_no_candidate(asked, value, where())
    _, _, there = facts.registrations(asked.name)
    waited = max(0, sum(fact.kind == CLAIM for fact in there) - 1)
    text = body.of(texts.index(text), seconds, waited)
    try:
        return facts.register(CHOICE, 0, asked.name, text, where())
    except DuplicateRegistrationError:
        return find_choice(facts, asked.name)  # it was loaded from a file meanwhile


def _timed_out(facts: Facts, asked: Asked, time: _Time, where: Callable[[], str]) -> TimeoutError:
    from .facts import not_chosen

    return not_chosen(facts, asked, monotonic() - time.began, where())

"""All members that ask for an agreement have the same value, or the one that differs gets an error.

Note [Ask, then look]
~~~~~~~~~~~~~~~~~~~~~
A member asks by a registration of its own, which holds its value and ends with the member. Then it
looks at all registrations of this name. If one before its own has another value, the member ends
its own again, and its call raises.

- Of two members with different values at most one goes on: registrations are in one order, and the
  later one sees the earlier.
- A dead member refuses nobody. A registration ends those of the dead first, under the same lock
  (``may_register``, native/core/contract/register.c).
- A member that asks for another value than before ends its first registration first. Else it could
  go back to that one when it is refused, and meanwhile others may have agreed on the second.
- A member that is about to be refused counts until it has ended its registration. It has asked for
  another value, so the other one's error is true.

A member that is refused leaves a mark, a registration with key 1, until it asks again or ends. It
has the digest of the value that refused it. By it those that wait for a number of members with that
value (``among``) learn that one differs. A member that finds enough others leaves a mark, too, with
the sequences of their registrations. That mark outlives it, since the others may look after it has
ended. Nobody loses a wake: a member reads the sequence of the registry first, then looks, and then
waits for another sequence.

``follow`` takes the value of the first one in place of its own: it asks for that, and looks again.
All have the same text then, so the value stays when the first one ends.

native/model/agree.pml has the protocol.

Locking: none. An interpreter is one member; of its threads that ask for different values at the
same time the last one counts.
"""

from __future__ import annotations

from _blake2 import blake2b
from contextlib import suppress
from os import getpid, urandom
from time import monotonic, time

from .. import seam
from ..dispatch.plugs import Plug
from ..errors import (
    DisagreementError,
    DuplicateRegistrationError,
    InvalidArgumentError,
    RegistryError,
)
from ..errors.locations import registrants_location
from ..facts import interpreter_id
from ..facts.backing import alone_because
from ..facts.native.calls import surely
from ..facts.native.constants import MD_MAX_BODY
from ..facts.waits import check_timeout
from ..registry import registry as registries
from ..registry.registry import Registry, given_or_default
from ..registry.unheard import child_that_initializes
from .choosing import scopes_in
from .kind import KEPT, VALUE
from .patterns import Rules
from .profiles import REGISTRY
from .ranks import rank
from .values import SECRET, digest_of, dumps, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol, TypeVar

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts

    class Run(Protocol):
        def forked(self) -> None: ...

    T = TypeVar("T")

#: Seconds that a member waits for the others unless told otherwise.
AGREEING_TIMEOUT = 60.0

ASKS, REFUSED = 0, 1  # keys of registrations
_LONGEST_NAME = 200
_LONGEST_HEAD = 200  # characters before the patterns
_KEYS = 1 << 30
_SALT = "(the key of secrets)"


def agree(
    name: str,
    value: T,
    *,
    ignore: Iterable[str] = (),
    only: Iterable[str] = (),
    secret: Iterable[str] | None = None,
    follow: bool = False,
    among: int | None = None,
    timeout: float | None = AGREEING_TIMEOUT,
    keep: bool = False,
    scope: str = REGISTRY,
    registry: Registry | None = None,
) -> T:
    """Makes sure that all members of the registry that ask for ``name`` have the same value, and
    returns it.

    The value of the first member counts as long as a living member has asked for it (``keep``: as
    long as the registry is there). Any member may be the first. A member with another value gets a
    DisagreementError with each part that differs. With ``follow`` it gets the first one's value
    instead, in None, numbers, texts, bytes, lists, dicts and sets.

    A value is of None, numbers, texts, bytes, lists, tuples, dicts, sets, enums, paths, dates,
    dataclasses, attrs classes, namespaces, pydantic models, arrays, classes and functions. Values
    that are equal in Python are the same, and so are a list and a tuple. ``ignore`` has the
    patterns of the parts that may differ, such as "node_rank" or "hosts.*"; with ``only`` nothing
    else is compared. ``secret`` has those of which the registry and all texts have digests only:
    without it, the keys that end with a word like password, token or key. All members have to give
    the same patterns.

    ``among`` is a number of members: the call returns when so many have asked for this value, and
    waits for them up to ``timeout`` seconds (None: without end).

    ``scope`` is as for :func:`mdispatch.choose`: on a host of a cluster you have to say "host".

    Raises DisagreementError, AgreementTimeoutError, AgreementScopeError, InvalidArgumentError (a
    value that members of other processes could not compare, or a pattern that is none),
    NotSharedError (``among`` more than one, in a registry of one process), RegistryClosedError,
    RegistryFullError.
    """
    try:
        its = (registry or registries.default).dispatcher  # type: ignore[union-attr]
        known = its.of(Agreed).known[name]
        if (
            known[0]() == known[1]
            and known[2] == (ignore, only, secret, follow, among, keep, scope)
            and known[3] == value
        ):
            return value
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # nothing is known here, or cannot be compared; errors of the caller's show below
    dispatcher = given_or_default(registry).dispatcher
    options = ignore, only, secret, follow, among, keep, scope
    its = _copy((options, value))  # of before, should another thread change it meanwhile
    try:
        asked = _Asked(dispatcher, name, value, *options)
        answer = asked.ask(check_timeout(timeout), registrants_location)
    except Exception as error:
        tell_callers(error)
        raise
    if its is not _NO_COPY and not follow:
        version_now = asked.facts.reader(asked.node_of_name)
        dispatcher.of(Agreed).known[name] = (version_now, asked.version, *its)
    return answer  # type: ignore[no-any-return]


def tell_callers(error: Exception) -> None:
    """If the error ends the initializer of a process pool's worker, the callers of the pool get
    it.
    """
    worker = child_that_initializes()
    if worker is not None:
        seam.at("an error in the initializer of a pool")(worker, error)


class Agreed(Plug):
    """The agreements of this interpreter."""

    __slots__ = ("known", "made", "runs")

    def __init__(self, dispatcher: Dispatcher) -> None:
        #: The sequence of this member's last registration, by name.
        self.made: dict[str, int] = {}
        #: By name: a function that reads the version of the name, the version, and copies of the
        #: options and of the value.
        self.known: dict[str, tuple[Any, ...]] = {}
        #: The open runs of steps.py.
        self.runs: dict[Run, None] = {}

    def forked(self, is_heir: bool) -> None:
        self.known, self.made = {}, {}  # the child has asked for nothing
        runs, self.runs = self.runs, {}
        for run in runs:
            run.forked()

    def ended(self) -> None:
        self.known.clear()


_NO_COPY = object()
_AS_THEY_ARE = frozenset((int, str, float, bool, type(None), bytes, complex))


def _copy(value: Any) -> Any:
    """A copy that nobody else changes, and that is equal as long as the text is the same;
    ``_NO_COPY`` of anything but plain values.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is dict:
        if not _AS_THEY_ARE.issuperset(map(type, value)):
            return _NO_COPY
        parts = value.values()
    elif kind is list or kind is tuple:
        parts = value
    else:
        return _NO_COPY
    if _AS_THEY_ARE.issuperset(map(type, parts)):
        return kind(value)
    copies = [*map(_copy, parts)]
    if any(each is _NO_COPY for each in copies):
        return _NO_COPY
    return dict(zip(value, copies, strict=True)) if kind is dict else kind(copies)


class _Differs(Exception):
    """Another member has another value. The own registration ends before the words of the error are
    made, which takes time.
    """


class _Asked:
    """One call of :func:`agree`."""

    version: int
    node_of_name: int
    there: list[Registration]

    def __init__(
        self,
        dispatcher: Dispatcher,
        name: str,
        value: object,
        ignore: Iterable[str],
        only: Iterable[str],
        secret: Iterable[str] | None,
        follow: bool,
        among: int | None,
        keep: bool,
        scope: str,
    ) -> None:
        self.dispatcher, self.facts = dispatcher, dispatcher.facts
        self.name, self.value, self.registered = name, value, agreement_name(name)
        self.follows, self.keeps, self.among = follow, keep, among or 1
        if among is not None and (type(among) is not int or among < 1):
            raise InvalidArgumentError(f"among={among!r}: it is a number of members")
        if scope not in scopes_in(self.facts):
            from .disagreeing import out_of_scope

            raise out_of_scope(self.facts, name, scope, registrants_location())
        if among is not None and among > 1 and self.facts.alone:
            from ..facts.native.alone import not_shared

            raise not_shared(f"agree(among={among})", self.facts.alone, self.facts.label)
        if alone_because:
            from .disagreeing import warn_alone

            warn_alone(alone_because)
        rules = Rules(ignore, only, secret, lambda text: sealed(self.facts, text))
        self.node = plain(value, rules)
        if rules.by_key[name.rpartition(".")[2]] == SECRET:
            self.node = {"#secret": sealed(self.facts, dumps(self.node))}
        rules.check()
        told = rules.node()
        if follow:
            self.follow(rules)
            told["follow"] = 1
        self.told = told
        self.head: dict[str, object] = {"rank": rank(), "at": time(), "among": among}
        self.body = self.text_of(dumps(told) if told else "{}")

    def follow(self, rules: Rules) -> None:
        """Refuses a value that others cannot take."""
        if rules.has_paths:
            raise InvalidArgumentError("follow= takes the whole value: without ignore= and only=")
        if "#secret" in dumps(self.node):
            raise InvalidArgumentError(
                f"agree({self.name!r}): the value has a part that seems to be a secret, and with "
                "follow= the registry would have it\nIf that is meant, say secret=()."
            )

    def text_of(self, told: str) -> str:
        """The two lines that the members compare: the patterns, and the value."""
        left = MD_MAX_BODY - _LONGEST_HEAD - len(told) - 2
        if not self.follows:
            text = dumps(self.node)
            if len(text) > left:
                from .fields import shorten

                text = dumps(shorten(self.node, left))
            return f"{told}\n{text}"
        from .handed import write

        text = write(self.value)
        if len(text) > left:
            raise InvalidArgumentError(
                f"agree({self.name!r}): the value takes {len(text) // 1024} KiB, and follow= hands "
                f"on {MD_MAX_BODY // 1024} at most\nLet the members follow the name of a file."
            )
        return f"{told}\n{text}"

    # --- asking

    def ask(self, timeout: float | None, where: Callable[[], str]) -> Any:
        """See Note [Ask, then look]."""
        began = monotonic()
        try:
            mine = self.settle(where)
            if self.among > 1:
                self.await_others(mine, timeout, began, where)
        except DisagreementError as error:
            if not self.facts.observes:
                raise
            what = VALUE, 0, self.registered, ""
            seam.at("a difference that one call meets")(self.dispatcher, what, error)
            return self.value
        if self.keeps:
            self.keep(where)
        if not self.follows:
            return self.value
        from .disagreeing import Told

        return Told(mine).handed

    def settle(self, where: Callable[[], str]) -> Registration:
        """This member's registration, once no other member has another value before it."""
        self.look()
        before = self.last()
        if self.follows and before is not None and self.follows_too(before):
            self.body = compared(before)  # it has taken the first one's already
        try:
            while True:
                mine = self.registration(where)
                other = self.differing_from(mine)
                if other is None:
                    return mine
                if not (self.follows and self.follows_too(other)):
                    raise _Differs
                self.body = compared(other)
        except BaseException as error:
            # See Note [Handlers that raise] in native/bind/call/surely.c.
            surely(self.withdraw)
            if not isinstance(error, _Differs):
                raise
        assert other is not None
        self.head["against"] = digest_of(compared(other))
        with suppress(RegistryError):  # the caller hears of the difference in any case
            self.facts.register(VALUE, REFUSED, self.registered, self.text(), where())
        from .disagreeing import disagreement

        raise disagreement(self.name, self.node, self.told, other, where())

    def withdraw(self) -> None:
        self.look()
        self.end_mine()

    def look(self) -> None:
        """Reads the registrations of this name."""
        self.version, self.node_of_name, self.there = self.facts.registrations(self.registered)

    def is_mine(self, fact: Registration) -> bool:
        return bool(self.facts.alone) or (fact.pid, fact.interpreter) == (getpid(), interpreter_id)

    def mine(self) -> list[Registration]:
        """This member's registrations of this name, marks included."""
        return [fact for fact in self.there if fact.kind == VALUE and self.is_mine(fact)]

    def text(self) -> str:
        return f"{dumps(self.head)}\n{self.body}"

    def registration(self, where: Callable[[], str]) -> Registration:
        """The registration by which this member asks, made where it has none with this value."""
        mine = self.last()
        if mine is not None and self.has(mine):
            return mine
        self.end_mine()
        made = self.facts.register(VALUE, ASKS, self.registered, self.text(), where())
        self.dispatcher.of(Agreed).made[self.name] = made.seq
        self.look()
        return made

    def last(self) -> Registration | None:
        """The registration by which this member has asked last, if it is there."""
        seq = self.dispatcher.of(Agreed).made.get(self.name)
        return next((fact for fact in self.mine() if fact.seq == seq), None)

    def differing_from(self, mine: Registration) -> Registration | None:
        """The first registration with another value of those that count."""
        for fact in sorted(self.there, key=lambda fact: fact.seq):
            is_before = fact.kind == VALUE and fact.key == ASKS and fact.seq < mine.seq
            is_kept = fact.kind == KEPT and fact.key == ASKS
            counts = is_kept or (is_before and not self.is_mine(fact))
            if counts and not self.has(fact):
                return fact
        return None

    def end_mine(self) -> None:
        for fact in self.mine():
            self.facts.remove(fact)

    def keep(self, where: Callable[[], str]) -> None:
        with suppress(DuplicateRegistrationError):  # of the same value: all others are refused
            self.facts.register(KEPT, 0, self.registered, self.text(), where())

    def await_others(
        self, mine: Registration, timeout: float | None, began: float, where: Callable[[], str]
    ) -> None:
        """Waits until enough members have asked for the same."""
        from .disagreeing import Told, disagreement, not_all

        while True:
            seq, _ = self.facts.await_change(0, 0.0)
            self.look()
            if any(str(mine.seq) in fact.text.split() for fact in self.met()):
                return
            came: dict[tuple[int, int], Registration] = {}
            for fact in self.there:
                if fact.kind != VALUE:
                    continue
                if fact.key == ASKS and self.has(fact):
                    came[fact.pid, fact.interpreter] = fact
                if fact.key == REFUSED and Told(fact).against == digest_of(self.body):
                    raise disagreement(self.name, self.node, self.told, fact, where())
            if len(came) >= self.among:
                self.tell_those(mine, [fact.seq for fact in came.values()])
                return
            waited = monotonic() - began
            if timeout is not None and waited >= timeout:
                raise not_all(self.name, self.among, [*came.values()], waited, where())
            self.facts.await_change(seq, None if timeout is None else timeout - waited)

    def met(self) -> list[Registration]:
        """The marks of those that have found enough members."""
        return [fact for fact in self.there if fact.kind == KEPT and fact.key != ASKS]

    def tell_those(self, mine: Registration, seqs: list[int]) -> None:
        """Leaves a mark for those that have met. It has all that live of the marks that were there
        when this member looked, so it takes their place.
        """
        before, key = self.met(), mine.seq % _KEYS + 1
        with suppress(DuplicateRegistrationError):  # of another thread
            self.facts.register(KEPT, key, self.registered, " ".join(map(str, seqs)), mine.where)
        for fact in before:
            self.facts.remove(fact)

    def follows_too(self, other: Registration) -> bool:
        from .disagreeing import Told

        return Told(other).follows

    def has(self, fact: Registration) -> bool:
        """Whether it has the value of this call."""
        return compared(fact) == self.body


def leave(name: str, *, registry: Registry | None = None) -> None:
    """Gives up what this member has asked for under the name of an agreement, so that the others
    may agree on another value. A kept value stays.

    Raises InvalidArgumentError, RegistryClosedError.
    """
    dispatcher = given_or_default(registry).dispatcher
    dispatcher.of(Agreed).known.pop(name, None)
    facts, its = dispatcher.facts, (getpid(), interpreter_id)
    for fact in facts.registrations(agreement_name(name))[2]:
        if fact.kind == VALUE and (facts.alone or (fact.pid, fact.interpreter) == its):
            facts.remove(fact)


def compared(fact: Registration) -> str:
    """The part of a registration's text that members compare."""
    return fact.text.partition("\n")[2]


def agreement_name(name: str) -> str:
    """The name of the registrations that are an agreement."""
    if type(name) is not str or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        from ..errors.words import shown

        raise InvalidArgumentError(
            f"an agreement has a name of 1 to {_LONGEST_NAME} printable letters, not {shown(name)}"
        )
    return f"(agree {name})".replace(":", "\\:")


def sealed(facts: Facts, text: str) -> str:
    """The digest of a secret. Each registry has another one."""
    salt = facts.find(KEPT, 0, _SALT)
    if salt is None:
        with suppress(DuplicateRegistrationError):
            facts.register(KEPT, 0, _SALT, urandom(16).hex(), "(mdispatch)")
        salt = facts.find(KEPT, 0, _SALT)
    key = b"" if salt is None else salt.text.encode(errors="backslashreplace")[:64]
    return blake2b(key + text.encode()).hexdigest()[:16]

"""All members of a job have the same, or all of them get to know who differs.

Note [One verdict]
~~~~~~~~~~~~~~~~~~
Each member posts the digest of its inventory (inventory.py), in a registration that ends with the
member. Then it waits until all have posted. The first member that sees the last post, or whose time
is over, publishes the verdict; all take that.

- Verdicts have numbers, which are the keys of their registrations: one row for all rounds of a
  name. The last one of a round counts. A member publishes under the number after the last one that
  it has seen, and a number is given once, so its verdict counts only if nobody has published since
  it has looked.
- Who has published removes the older verdicts of its round, and those of other rounds that are of
  no account. The last number of all stays, so no number comes again for a member that has looked
  long before.
- A verdict is of no account when no member that it counts has its post any more. So a job that is
  started again does not meet the verdict of the dead one. A registration ends those of the dead
  first, and a member posts before it looks.
- A member that a verdict counts keeps its post until its next roll call, so nobody else finds the
  verdict of no account before this member has taken it.
- A member that a verdict does not count came too late. It ends its post, and looks again: no other
  verdict may count it, once it has taken this one. Its inventory is compared with the right one.
- A member reads the verdicts before the posts. One that comes in between has the number that this
  member would take, and one that it has read is of account only if it still is.
- Nobody loses a wake: a member reads the sequence of the registry first, then looks, and then waits
  for another sequence.

native/model/roll_call.pml has the protocol.

Locking: none. Each call has posts of its own; two threads that call at once are in two rounds.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time

from .. import seam
from ..dispatch.plugs import Plug
from ..errors import DuplicateRegistrationError, InvalidArgumentError, NotSharedError
from ..errors.locations import host, printable, registrants_location
from ..facts import interpreter_id
from ..facts.native.calls import surely
from ..facts.native.constants import MD_MAX_BODY
from ..facts.waits import check_timeout
from ..registry.registry import Registry, given_or_default
from ..registry.roles import is_main
from .agreeing import AGREEING_TIMEOUT, sealed, tell_callers
from .choosing import scopes_in
from .inventory import LEVELS, compared, inventory, level, pieces, shortened, whole
from .kind import KEPT, VALUE
from .patterns import Rules
from .profiles import REGISTRY
from .ranks import rank, sizes
from .values import Damaged, digest_of, dumps
from .verdicts import Member, Verdict, differing, failed, read, verdict_of, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from .inventory import Difference
    from .values import Node

__all__ = ["NAMES", "Post", "roll_call"]

#: How the names of all registrations of roll calls begin.
NAMES = "(roll call "
_LONGEST_NAME = 100
_NUMBERS = {int, type(None)}
_MOST = 1000  # members


def roll_call(
    *,
    expected: int,
    timeout: float | None = AGREEING_TIMEOUT,
    name: str = "job",
    round: str | int | None = None,
    leader: int | None = None,
    ignore: Iterable[str] = (),
    scope: str = REGISTRY,
    registry: Registry | None = None,
) -> Verdict:
    """Makes sure that all members of a job have the same operators, the same of PyTorch's operators
    (:func:`mdispatch.torch.watch`) and the same agreements (:func:`mdispatch.agree`). Returns the
    verdict, which is the same for all.

    Each member calls this when it has imported its modules, before the members talk to each other.
    The call returns when ``expected`` members have called. If some have not after ``timeout``
    seconds (None: without end), it raises, and names them. If a member differs, it raises in all.
    The version of the majority is right, or with ``leader`` the version of this rank.

    ``ignore`` has the patterns of parts that may differ, such as "operators.debug" (a namespace),
    "operators.debug.dump" or "agreements.plan".

    ``name`` and ``round`` tell one roll call from the next. Without a round, a member counts its
    calls of this name, in each restart of torchrun anew. ``scope`` is as for
    :func:`mdispatch.agree`.

    Raises RollCallError, AgreementScopeError, InvalidArgumentError, NotSharedError (more than one
    is expected, and nobody else can be in this registry), RegistryClosedError, RegistryFullError.
    """
    dispatcher = given_or_default(registry).dispatcher
    try:
        call = _Call(dispatcher, expected, name, round, leader, ignore, scope)
        return call.run(check_timeout(timeout))
    except Exception as error:
        tell_callers(error)
        raise


class _Calls(Plug):
    """The roll calls of this interpreter."""

    __slots__ = ("counts", "posts")

    def __init__(self, dispatcher: Dispatcher) -> None:
        #: How many there were, by name and restart.
        self.counts: dict[tuple[str, str], int] = {}
        #: The posts of this member in the last one of each name.
        self.posts: dict[str, list[Registration]] = {}

    def forked(self, is_heir: bool) -> None:
        self.counts, self.posts = {}, {}


class Post:
    """The post of a member, read. Damaged."""

    __slots__ = (
        "digest",
        "expected",
        "fact",
        "host",
        "leader",
        "level",
        "name",
        "pieces",
        "rank",
        "round",
    )

    def __init__(self, fact: Registration) -> None:
        self.fact = fact
        try:
            its = json.loads(fact.text)
            self.digest, self.host = its["digest"], printable(its["host"])[:_LONGEST_NAME]
            self.name, self.round = printable(its["name"]), printable(its["round"])
            numbers = its["expected"], its["level"], its["pieces"]
            self.expected, self.level, self.pieces = numbers
            self.rank: int | None = its["rank"]
            self.leader: int | None = its["leader"]
            if not all(type(each) is int and 0 <= each <= _MOST for each in numbers):
                raise Damaged
            if type(self.digest) is not str or len(self.digest) > _LONGEST_NAME:
                raise Damaged
            if self.level > LEVELS or not {type(self.rank), type(self.leader)} <= _NUMBERS:
                raise Damaged
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Damaged from None

    @property
    def member(self) -> tuple[int, int]:
        return self.fact.pid, self.fact.interpreter


class _Call:
    """One call of :func:`roll_call`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        expected: int,
        name: str,
        round: str | int | None,
        leader: int | None,
        ignore: Iterable[str],
        scope: str,
    ) -> None:
        self.dispatcher, self.facts = dispatcher, dispatcher.facts
        self.where = registrants_location()
        self.calls = dispatcher.of(_Calls)
        _check(expected, name, round, leader)
        self.expected, self.name, self.leader = expected, name, leader
        if scope not in scopes_in(self.facts):
            from .disagreeing import out_of_scope

            raise out_of_scope(self.facts, f"roll call {name}", scope, self.where)
        self.check_shared()
        rules = Rules(ignore, (), (), lambda text: sealed(self.facts, text))
        call: Node = {"expected": expected}
        if leader is not None:
            call["leader"] = leader
        if rules.node():
            call["ignore"] = rules.node().get("ignore", [])
        self.node = inventory(dispatcher, self.is_mine, rules, call)
        text = dumps(self.node)
        self.digest, self.level = digest_of(text), level(self.node, text)
        if self.level:
            text = dumps(shortened(self.node, 0, self.level))
        self.pieces = pieces(text)
        self.round = self.next_round() if round is None else str(round)
        self.registered = self.registered_as(self.round)
        self.parts = f"{self.registered} parts"
        self.ruled = f"{NAMES}{name!a} verdicts)".replace(":", "\\:")
        self.mine: Registration | None = None
        self.posted: list[Registration] = []
        #: The number of the registry's next registration when this call began.
        self.first = 0
        #: The posts and verdicts that were read, by the sequence of their registrations.
        self.known: dict[int, Post | None] = {}
        self.known_verdicts: dict[int, Verdict | None] = {}
        #: The sequences of all posts at the last look, the verdicts of all rounds, the last number,
        #: and the last verdict of this round.
        self.seqs: set[int] = set()
        self.verdicts: list[Registration] = []
        self.last = 0
        self.verdict: Verdict | None = None

    def registered_as(self, round: str) -> str:
        return f"{NAMES}{self.name!a} {round!a})".replace(":", "\\:")

    def check_shared(self) -> None:
        """Says at once that nobody else can come, where that is to be seen."""
        if self.expected == 1:
            return
        if self.facts.alone:
            from ..facts.native.alone import not_shared

            raise not_shared(
                f"roll_call(expected={self.expected})", self.facts.alone, self.facts.label
            )
        is_launched = rank() is not None and self.expected in sizes()
        if is_launched and self.is_private() and len(self.alive()) == 1:
            raise NotSharedError(
                f"roll_call(expected={self.expected}): {_PRIVATE} A launcher has started this "
                f"process as rank {rank()} of {self.expected}, and the others cannot come.\n"
                f"{_SHARE}",
                self.facts.label,
            )

    def is_private(self) -> bool:
        return is_main(self.dispatcher) and self.facts.label.startswith("fd:")

    def next_round(self) -> str:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")[:20]
        counts = self.calls.counts
        number = counts[self.name, restart] = counts.get((self.name, restart), -1) + 1
        return f"{restart}.{number}" if restart.isdecimal() else str(number)

    def is_mine(self, fact: Registration) -> bool:
        return bool(self.facts.alone) or (fact.pid, fact.interpreter) == (
            os.getpid(),
            interpreter_id,
        )

    def alive(self) -> set[tuple[int, int]]:
        return {(pid, its) for its, pid, _, alive, *_ in self.facts.members() if alive}

    # --- the protocol

    def run(self, timeout: float | None) -> Verdict:
        """See Note [One verdict]."""
        began = monotonic()
        self.first, _ = self.facts.await_change(0, 0.0)
        try:
            self.post()
            verdict = self.take(timeout, began)
        except BaseException:
            # See Note [Handlers that raise] in native/bind/call/surely.c.
            surely(self.withdraw)
            raise
        before = self.calls.posts.get(self.name, [])
        if self.mine is not None:
            self.calls.posts[self.name] = self.posted
            self.end(before)
        return self.judged(verdict)

    def post(self) -> None:
        self.posted = []
        for at, text in enumerate(self.pieces):
            made = self.facts.register(VALUE, at, self.parts, text, self.where)
            self.posted.append(made)
        its = {
            "name": self.name,
            "round": self.round,
            "digest": self.digest,
            "rank": rank(),
            "leader": self.leader,
            "host": host(),
            "expected": self.expected,
            "level": self.level,
            "pieces": len(self.pieces),
        }
        self.mine = self.facts.register(VALUE, 0, self.registered, dumps(its), self.where)
        self.posted.append(self.mine)

    def withdraw(self) -> None:
        """Ends the post, also one that a signal handler has interrupted."""
        there = [*self.facts.registrations(self.registered)[2]]
        there += self.facts.registrations(self.parts)[2]
        self.end(
            fact
            for fact in there
            if fact.kind == VALUE and self.is_mine(fact) and fact.seq >= self.first
        )
        self.posted, self.mine = [], None

    def end(self, posted: Iterable[Registration]) -> None:
        for fact in posted:
            self.facts.remove(fact)

    def take(self, timeout: float | None, began: float) -> Verdict:
        while True:
            seq, _ = self.facts.await_change(0, 0.0)
            posts = self.look()
            verdict = self.verdict
            counted = {each.seq for each in verdict.members} if verdict else set()
            if verdict is not None and not counted.isdisjoint(self.seqs):
                if self.mine is None or self.mine.seq in counted:
                    return verdict
                self.withdraw()
                continue
            if self.mine is None:
                self.post()
                continue
            waited = monotonic() - began
            is_over = timeout is not None and waited >= timeout
            if is_over or len(posts) >= max([each.expected for each in posts], default=_MOST):
                self.publish(posts)
                continue
            self.facts.await_change(seq, None if timeout is None else timeout - waited)

    def look(self) -> list[Post]:
        """Reads the last verdict, and the posts of the members that live: oldest first, the last
        one of each.
        """
        there = self.facts.registrations(self.ruled)[2]
        self.verdicts = sorted(
            [fact for fact in there if fact.kind == KEPT], key=lambda fact: int(fact.key)
        )
        self.last = max([int(fact.key) for fact in self.verdicts], default=0)
        self.verdict = None
        for fact in self.verdicts:
            its = self.verdict_in(fact)
            if its is not None and its.round == self.round:
                self.verdict = its
        there = self.facts.registrations(self.registered)[2]
        alive = self.alive() | {(os.getpid(), interpreter_id)}
        found: dict[tuple[int, int], Post] = {}
        for fact in there:
            if fact.kind == VALUE and (fact.pid, fact.interpreter) in alive:
                if fact.seq not in self.known:
                    self.known[fact.seq] = _read(fact)
                post = self.known[fact.seq]
                if post is not None:
                    found.pop(post.member, None)
                    found[post.member] = post
        self.seqs = {fact.seq for fact in there if (fact.pid, fact.interpreter) in alive}
        return [*found.values()]

    def verdict_in(self, fact: Registration) -> Verdict | None:
        """None for another program's text, which counts nobody."""
        if fact.seq not in self.known_verdicts:
            self.known_verdicts[fact.seq] = None
            with suppress(Damaged):
                self.known_verdicts[fact.seq] = read(fact.text)
        return self.known_verdicts[fact.seq]

    def publish(self, posts: list[Post]) -> None:
        """Publishes the next verdict. If there is one meanwhile, that counts."""
        digests = [*dict.fromkeys(each.digest for each in posts)]
        firsts = {digest: [each for each in posts if each.digest == digest] for digest in digests}
        members = [
            Member(
                *each.member,
                each.rank,
                each.host,
                each.fact.where,
                digests.index(each.digest),
                each.fact.seq,
            )
            for each in posts
        ]
        leaders = {each.leader for each in posts}
        verdict = verdict_of(
            self.name,
            self.round,
            max([self.expected, *(each.expected for each in posts)]),
            leaders.pop() if len(leaders) == 1 else None,  # else they differ in that, too
            members,
            digests,
            lambda its, other: self.compare(firsts[digests[its]], firsts[digests[other]]),
            time(),
        )
        try:
            self.facts.register(
                KEPT, self.last + 1, self.ruled, write(verdict, MD_MAX_BODY), self.where
            )
        except DuplicateRegistrationError:  # another member was first
            return
        self.end([fact for fact in self.verdicts if self.is_over(fact)])

    def is_over(self, fact: Registration) -> bool:
        """Whether nobody needs a verdict any more, now that this round has a new one."""
        its = self.verdict_in(fact)
        if its is None or its.round == self.round:
            return True
        posts = self.facts.registrations(self.registered_as(its.round))[2]
        alive = self.alive() | {(os.getpid(), interpreter_id)}
        there = {post.seq for post in posts if (post.pid, post.interpreter) in alive}
        return there.isdisjoint(each.seq for each in its.members)

    def compare(self, mine: list[Post], others: list[Post]) -> Difference | None:
        """The difference between the members of two groups."""
        its, there = self.inventory_of(mine), self.inventory_of(others)
        if its is None or there is None:
            return None
        at = max(its[1], there[1])
        return compared(shortened(*its, at), shortened(*there, at), at)

    def inventory_of(self, posts: list[Post]) -> tuple[Node, int] | None:
        """The inventory of these members, and its level; None if none of them is there."""
        there = self.facts.registrations(self.parts)[2]
        for post in posts:
            its = [fact for fact in there if (fact.pid, fact.interpreter) == post.member]
            its = sorted([fact for fact in its if fact.seq < post.fact.seq], key=lambda f: f.seq)
            with suppress(Damaged):
                if post.pieces and len(its) >= post.pieces:
                    return whole(fact.text for fact in its[-post.pieces :]), post.level
        return None

    # --- the verdict

    def judged(self, verdict: Verdict) -> Verdict:
        """Returns the verdict if this member agrees with all others, and raises if not."""
        late = None if self.mine is not None else max(0.0, time() - verdict.at)
        mine = next(
            (at for at, its in enumerate(verdict.groups) if its.digest == self.digest), None
        )
        if verdict.agrees and mine == verdict.right:
            return verdict
        if late is not None and verdict.agrees:
            verdict, mine = self.beside(verdict), len(verdict.groups)
        elif late is not None:
            mine = None
        error = failed(verdict, mine, self.where, late, self.hint(verdict))
        if not self.facts.observes or seam.at("a roll call that differs")(self.facts):
            raise error
        what = VALUE, 0, self.registered, ""
        seam.at("a difference that one call meets")(self.dispatcher, what, error)
        return verdict

    def beside(self, verdict: Verdict) -> Verdict:
        """The verdict with this member, which differs from all others and came after it."""
        its = {each.seq for each in verdict.members}
        others = [post for post in self.look() if post.fact.seq in its]
        right = self.inventory_of(others)
        found = None
        if right is not None:
            at = max(self.level, right[1])
            found = compared(shortened(self.node, 0, at), shortened(*right, at), at)
        me = Member(os.getpid(), interpreter_id, rank(), host(), self.where, len(verdict.groups), 0)
        return replace(
            verdict,
            agrees=False,
            members=(*verdict.members, me),
            groups=(*verdict.groups, differing(found, self.digest)),
        )

    def hint(self, verdict: Verdict) -> str:
        """Why some did not come, as far as it can be seen from here."""
        if not verdict.lacking:
            return ""
        if self.is_private():
            return f"{_PRIVATE[0].upper()}{_PRIVATE[1:]} {_SHARE}"
        begin = self.registered[: -len(f"{self.round!a})".replace(":", "\\:"))]
        others = {
            (fact.pid, fact.interpreter): fact.name[len(begin) : -1]
            for fact in self.facts.registrations_since(VALUE, 0)[1]
            if fact.name.startswith(begin) and fact.name[-1:] == ")"
            if fact.name != self.registered
        }
        for member in self.alive() & others.keys():
            return (
                f"Another member (pid {member[0]}) is in round {others[member]}: each member has "
                "to make the same roll calls, or to say which one it is (round=)."
            )
        return ""


_PRIVATE = "this process has a registry of its own, which only its children share."
_SHARE = "Give all the same one: MDISPATCH_REGISTRY=elect:NAME in the environment."


def _read(fact: Registration) -> Post | None:
    """The post of a member; None for another program's text in its place."""
    try:
        return Post(fact)
    except Damaged:
        return None


def _check(expected: Any, name: Any, round: Any, leader: Any) -> None:
    if type(expected) is not int or not 0 < expected <= _MOST:
        raise InvalidArgumentError(
            f"expected={expected!r}: it is the number of members, from 1 to {_MOST}"
        )
    if leader is not None and (type(leader) is not int or leader < 0):
        raise InvalidArgumentError(f"leader={leader!r}: it is a rank, such as 0")
    for what, text in (("name", name), ("round", round)):
        if what == "round" and (text is None or type(text) is int):
            continue
        if type(text) is not str or not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
            from ..errors.words import shown

            raise InvalidArgumentError(
                f"a roll call has a {what} of 1 to {_LONGEST_NAME} printable letters, not "
                f"{shown(text)}"
            )

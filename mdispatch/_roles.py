"""Register or verify: which of the two it is, and what is done in place of registering.

The main member registers facts; every other member verifies: it waits until the main one has
registered the same, compares, and only then may keep its callable. (PyTorch: _RegisterOrVerify,
Dispatcher::waitForDef, waitForImpl.)

Where there is no main member (*elect*), that is decided for each namespace: its registrar registers
what is not there yet. What is there, from a registrar before it, is verified as by all others. Who
waits for a registrar may become it: then :class:`Elected` ends the wait, and :func:`until_settled`
starts over, now with the other answer.

A verification that fails raises at once, unless the thread has opened an :class:`Audit`: then the
difference is noted and the import goes on, so that a warm-up can tell everything that differs and
not just the first of it.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic

from . import _registry as facts
from . import errors
from ._logs import described, verify_log
from ._registry import Elected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    from ._registry import Registration, RegistryProtocol
    from .registry import Registry

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "DEFAULT_TIMEOUT",
    "Audit",
    "audits",
    "known",
    "known_definition",
    "note",
    "registers",
    "until_settled",
    "verify",
    "wait_for",
]

_LONGEST_NAME = 3 * 255 + 3  # namespace, name and overload

#: Seconds that a verification waits for the main interpreter unless told otherwise. (PyTorch: 2 s)
DEFAULT_TIMEOUT = 2.0


class Audit:
    """While open, this thread's verifications share one deadline and collect what differs.

    ``facts`` holds what was verified, ``differences`` what was not, ``longest_wait`` seconds.
    """

    def __init__(self, timeout: float | None) -> None:
        self.began = monotonic()
        self.deadline = None if timeout is None else self.began + timeout
        self.facts: list[Registration] = []
        self.differences: list[errors.VerificationError] = []
        self.longest_wait = 0.0

    def remaining(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    def __enter__(self) -> Audit:
        audits.setdefault(get_ident(), []).append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack = audits[get_ident()]
        stack.remove(self)
        if not stack:
            del audits[get_ident()]


#: Open audits by thread: an import runs other people's code, through which nothing of ours can be
# passed.
audits: dict[int, list[Audit]] = {}


def registers(registry: Registry, kind: int, key: int, name: str, count: int) -> bool:
    """Whether it is for this interpreter to register such a fact now, or to verify it. ``count`` is
    how many of the kind it has with this one: so many facts are enough, whoever made them; 0 where
    one of its own does not stand for another.
    """
    if not registry.elects:
        return registry.is_main
    if not registry.claim(name.partition("::")[0]):
        return False
    _, _, there = registry._facts.registrations(name)
    same = [fact for fact in there if (fact.kind, fact.key) == (kind, key)]
    if count:
        return len(same) < count
    return not same or any(registry._facts.is_mine(fact) for fact in same)


def until_settled(function: F) -> F:
    """Calls it again when it turned out meanwhile that this interpreter is the registrar."""

    def settled(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return function(*args, **kwargs)
            except Elected:
                continue

    settled.__doc__ = function.__doc__
    result: Any = settled
    return result  # type: ignore[no-any-return]


def note(registry: RegistryProtocol, fact: Registration) -> None:
    """For the open audit: what this interpreter has registered, having no main member to verify it
    against.
    """
    audit = _open_audit()
    if audit is not None and registry.role == facts.PEER:
        audit.facts.append(fact)


def verify(
    registry: RegistryProtocol,
    kind: int,
    key: int,
    name: str,
    body: str | Callable[[], str],
    where: Callable[[], str],
    *,
    at_least: int = 1,
    timeout: float | None = DEFAULT_TIMEOUT,
    accept: Callable[[Registration], str | None] | None = None,
) -> Registration | None:
    """Waits until the main member has registered the fact, compares, and returns it; None when an
    open audit has noted that it could not be verified. Raises Elected, see above.

    ``where`` is called where the place is needed, and so may ``body`` be. ``accept`` compares the
    main member's fact with what is wanted here and returns the difference in words, or None.
    """
    audit = _open_audit()
    try:
        fact = _verify(registry, kind, key, name, body, where, at_least, timeout, accept, audit)
        if verify_log.listens():
            what = described(kind, key, name)
            verify_log.tell("verified %s with pid %d, %s", what, fact.pid, fact.where)
        return fact
    except errors.VerificationError as error:
        if verify_log.listens():
            problem = str(error).partition("\n")[0]
            verify_log.tell("not verified: %s: %s", described(kind, key, name), problem)
        if audit is None:
            raise
        audit.differences.append(error)
        return None


def known(registry: RegistryProtocol, kind: int, key: int, name: str) -> bool:
    """The short way to verify: whether the fact is there already. False says nothing;
    :func:`verify` has to find out.
    """
    audit = _open_audit()
    if audit is None:
        is_there = _is_short(name) and registry.has(kind, key, name)
    else:
        fact = registry.find(kind, key, name) if _is_short(name) else None
        if fact is not None:
            audit.facts.append(fact)
        is_there = fact is not None
    if is_there and verify_log.listens():
        verify_log.tell("verified %s, which was there", described(kind, key, name))
    return is_there


def known_definition(
    registry: RegistryProtocol, name: str, written: str, attributes: str
) -> Registration | None:
    """The short way to verify a definition: the fact, if it is there and was made with just this
    text. None says nothing; :func:`verify` has to find out.
    """
    fact = registry.find(facts.DEF, 0, name) if _is_short(name) else None
    if fact is None or not fact.is_written(written, attributes):
        return None
    audit = _open_audit()
    if audit is not None:
        audit.facts.append(fact)
    if verify_log.listens():
        what = described(facts.DEF, 0, name)
        verify_log.tell("verified %s with pid %d, %s", what, fact.pid, fact.where)
    return fact


def _is_short(name: str) -> bool:
    """Whether a name that nobody has parsed yet can be looked up at all."""
    return len(name) <= _LONGEST_NAME and name.isascii()


def _open_audit() -> Audit | None:
    mine = audits.get(get_ident()) if audits else None
    return mine[-1] if mine else None


def _verify(
    registry: RegistryProtocol,
    kind: int,
    key: int,
    name: str,
    body: str | Callable[[], str],
    where: Callable[[], str],
    at_least: int,
    timeout: float | None,
    accept: Callable[[Registration], str | None] | None,
    audit: Audit | None,
) -> Registration:
    fact = registry.find(kind, key, name) if at_least == 1 else None
    if fact is None:
        began = monotonic()
        limit = audit.remaining() if audit is not None else timeout
        fact, _ = registry.await_fact(kind, key, name, at_least, limit, or_elect=True)
        waited = monotonic() - began
        if audit is not None:
            audit.longest_wait = max(audit.longest_wait, waited)
        if fact is None:
            if audit is not None:
                waited = monotonic() - audit.began  # the main interpreter had all this time
            raise _never(registry, kind, key, name, at_least, where(), waited)
    difference = accept(fact) if accept is not None else None
    if difference is not None:
        text = body if isinstance(body, str) else body()
        from ._differences import schema_differs

        raise schema_differs(registry, fact, text.partition("\n")[0], where(), difference)
    if audit is not None:
        audit.facts.append(fact)
    return fact


def wait_for(
    registry: RegistryProtocol,
    kind: int,
    key: int,
    name: str,
    timeout: float | None,
    where: str,
    ticket: int = 0,
) -> Registration:
    """Waits for a fact and returns it; every other outcome is an exception of its own class."""
    began = monotonic()
    fact, _ = registry.await_fact(kind, key, name, 1, timeout, ticket)
    if fact is None:
        raise _never(registry, kind, key, name, 1, where, monotonic() - began)
    return fact


def _never(
    registry: RegistryProtocol,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    where: str,
    waited: float,
) -> errors.NotRegisteredError:
    from ._differences import never_registered  # only who has bad news needs the words for it

    return never_registered(registry, kind, key, name, at_least, where, waited)

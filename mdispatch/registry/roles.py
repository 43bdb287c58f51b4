"""Register or verify: which of the two this interpreter does. Only this module knows roles.

The registrar registers everything, and every other member verifies. (PyTorch: _RegisterOrVerify.)
Where each namespace has a registrar of its own (*elect*), each namespace has a registrar: the first
member in a queue that the registrations keep. The registrar registers what is not there yet. It
verifies what an earlier registrar has left, like everybody else. A member that waits for the
registrar may become the registrar: Elected ends its wait, and the choice is made again.

registry/register.py says what is registered, and how; see :func:`register_or_verify`.
"""

from __future__ import annotations

import os
import sys

from .. import errors, seam
from ..facts import CLAIM, MAIN, PEER, ROLE_NAMES, WORKER, Elected
from ..facts.registration import is_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias, TypeVar, TypeVarTuple

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts

    Args = TypeVarTuple("Args")
    Made = TypeVar("Made")
    Verified = TypeVar("Verified")

    #: A registration: kind, key, name, and whether the registrations that are there are enough,
    #: oldest first. None where one registration is enough, unless this interpreter has registered
    #: it: then it wants a second.
    Wanted: TypeAlias = tuple[int, int, str, Callable[[Sequence[Registration]], bool] | None]


def register_or_verify(
    dispatcher: Dispatcher,
    wanted: Callable[[Dispatcher, *Args], Wanted],
    register: Callable[[Dispatcher, *Args], Made],
    verify: Callable[[Dispatcher, *Args], Verified],
) -> Callable[[Dispatcher, *Args], Made | Verified]:
    """The function to call: ``register``, ``verify``, or one that chooses between them for each
    call.

    The three are one kind of registration, and take the same arguments. ``wanted`` says which
    registration it is about; it is asked only where each namespace has a registrar of its own.
    """
    if dispatcher.registers_all:
        return register
    facts = dispatcher.facts
    if facts.role != PEER and not facts.keeps_own:
        return verify
    return _chosen(wanted, register, verify, facts)


def _chosen(
    wanted: Callable[[Dispatcher, *Args], Wanted],
    register: Callable[[Dispatcher, *Args], Made],
    verify: Callable[[Dispatcher, *Args], Verified],
    facts: Facts,
) -> Callable[[Dispatcher, *Args], Made | Verified]:
    """The function that chooses for each call."""

    def choose(dispatcher: Dispatcher, *args: *Args) -> Made | Verified:
        while True:
            if _is_missing(dispatcher, *wanted(dispatcher, *args)):
                return register(dispatcher, *args)
            try:
                return verify(dispatcher, *args)
            except Elected:
                continue

    found: Callable[[Dispatcher, *Args], Made | Verified] = verify
    if facts.role == PEER:
        found = choose
    if facts.keeps_own:
        found = seam.at("a registration of a member that keeps its own")(wanted, register, found)
    return found


def _is_missing(
    dispatcher: Dispatcher,
    kind: int,
    key: int,
    name: str,
    is_enough: Callable[[Sequence[Registration]], bool] | None,
) -> bool:
    """Whether this interpreter is the registrar, and has to register such a registration."""
    if not _claim(dispatcher, name.partition("::")[0]):
        return False
    _, _, there = dispatcher.facts.registrations(name)
    same = [fact for fact in there if (fact.kind, fact.key) == (kind, key)]
    if is_enough is not None:
        return not is_enough(same)
    return not same or any(dispatcher.facts.is_mine(fact) for fact in same)


# --- roles ----------------------------------------------------------------------------------------


def is_main(dispatcher: Dispatcher) -> bool:
    """Whether this interpreter registers everything. A child of a fork does not, even where a
    program in C forked and did not tell Python.
    """
    return dispatcher.facts.role == MAIN and not dispatcher.facts.is_untold()


def is_worker(dispatcher: Dispatcher) -> bool:
    """Whether this interpreter verifies what a main one registers."""
    return verifies_all(dispatcher.facts)


def verifies_all(facts: Facts) -> bool:
    """The same, of registrations that have no Dispatcher yet."""
    return facts.role == WORKER


def elects(dispatcher: Dispatcher) -> bool:
    """Whether each namespace has a registrar of its own; each namespace has a registrar then."""
    return dispatcher.facts.role == PEER


def role_name(dispatcher: Dispatcher) -> str:
    """main, worker or peer."""
    return ROLE_NAMES[dispatcher.facts.role]


def who(facts: Facts, namespace: str = "") -> str:
    """The member that registers what others verify, in words."""
    if facts.role != PEER:
        return "the main interpreter"
    return f"the registrar of {namespace!r}" if namespace else "the registrar"


def is_made_here(dispatcher: Dispatcher, fact: Registration) -> bool:
    """Whether this interpreter has made a registration, and not verified one of its own with it."""
    return is_main(dispatcher) or dispatcher.facts.is_mine(fact)


def keeps_alive(facts: Facts) -> bool:
    """Whether what this interpreter has verified stays registered until this interpreter, too, has
    ended it. That is so where each namespace has a registrar of its own: the last member to remove
    a registration ends it. A member may keep one of its own beside it.
    """
    return facts.role == PEER or facts.keeps_own


def joined(dispatcher: Dispatcher) -> None:
    """Notes the role. Called when the registrations are opened, and by :func:`forked`."""
    dispatcher.registers_all = is_main(dispatcher)


# --- the queue for a namespace --------------------------------------------------------------------


def registers(dispatcher: Dispatcher, namespace: str | None = None) -> bool:
    """Whether registrations in the namespace are this interpreter's to make, or would be for the
    library that it opens now.

    Without a namespace: in all namespaces of which it has a library open. Before it has opened any,
    True where nobody else has either.
    """
    if not elects(dispatcher):
        return is_main(dispatcher)
    with dispatcher.claims_lock:
        asked = dispatcher.claims if namespace is None else (namespace,)
        opened = [*(each for each in asked if dispatcher.claims.get(each))]
        if opened:
            return all(_claim(dispatcher, each) for each in opened)
    if namespace is None:
        _, there = dispatcher.facts.registrations_since(CLAIM, 0)
    else:
        _, _, there = dispatcher.facts.registrations(namespace)
    return all(fact.kind != CLAIM or not is_namespace(fact.name) for fact in there)


def queue_up(dispatcher: Dispatcher, namespace: str, where: str) -> None:
    """One more library is open. Where each namespace has a registrar of its own, the first library
    of a namespace queues up to register.
    """
    if not elects(dispatcher):
        return
    with dispatcher.claims_lock:
        dispatcher.claims.setdefault(namespace, []).append(where)
        try:
            _claim(dispatcher, namespace)
        except BaseException:
            leave_queue(dispatcher, namespace)
            raise


def leave_queue(dispatcher: Dispatcher, namespace: str) -> None:
    """One library less, after it has ended its registrations. The last one leaves the queue."""
    with dispatcher.claims_lock:
        opened = dispatcher.claims.get(namespace)
        if opened:
            opened.pop()
            if not opened:
                dispatcher.facts.release(namespace)


def _claim(dispatcher: Dispatcher, namespace: str) -> bool:
    """Whether this interpreter is the registrar of a namespace. It has a library of it open.

    LibraryClosedError when another thread has just closed the last one: a claim that was made now
    would stay in the queue for good.
    """
    with dispatcher.claims_lock:
        opened = dispatcher.claims.get(namespace)
        if not opened:
            raise errors.LibraryClosedError(
                f"all libraries of {namespace!r} were closed meanwhile; open another",
                namespace,
            )
        return dispatcher.facts.claim(namespace, opened[0])


def forked(dispatcher: Dispatcher) -> None:
    """In the child of a fork. The child is a member of its own: it has another role than a main
    member had, and queues up for its namespaces.
    """
    from contextlib import suppress

    if dispatcher.registers_all or elects(dispatcher):
        dispatcher.inherited = frozenset(sys.modules)
        with suppress(errors.MdispatchError):  # it is damaged
            dispatcher.parents[os.getppid()] = dispatcher.facts.stat()[5]
    joined(dispatcher)
    for namespace in [each for each, opened in dispatcher.claims.items() if opened]:
        # Where the registry is closed, or full, the next registration tries again and says so.
        with suppress(errors.MdispatchError):
            _claim(dispatcher, namespace)

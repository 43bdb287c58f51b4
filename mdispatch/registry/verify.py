"""Verifying: what a member does in place of registering.

It waits until the member that registers has registered the same, compares, and only then may keep
its callable. (PyTorch: Dispatcher::waitForDef, waitForImpl.)

A verification that fails raises at once, with two exceptions. Where the thread has opened an
:class:`Audit`, the difference is noted and the import goes on, so that a warm-up reports every
difference and not only the first. Where nobody would hear the error (registry/unheard.py), the
import goes on, too; then this interpreter calls no operator until a warm-up finds nothing.

In each case the difference is kept until it is registered well, for somebody may have caught the
error: warm-ups tell it, and so does ``mdispatch doctor`` (facts/differing.py).
"""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # functools loads much more
from _thread import get_ident
from time import monotonic

from .. import errors, facts, seam
from ..dispatch.plugs import Plug
from ..facts.logs import described, verify_log
from ..facts.native import unlock
from ..keys.numbers import DispatchKey
from .unheard import is_unheard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.differing import What

# Seconds that a wait for a kernel lasts at most where its key has others beside it.
_LOOK_AGAIN = 1.0

_LONGEST_NAME = 3 * 255 + 3  # namespace, name and overload

#: Seconds that a verification waits for the main interpreter unless told otherwise. (PyTorch: 2 s)
DEFAULT_TIMEOUT = 2.0


class GoesOn(Exception):
    """Ends a verification that found a difference: this member goes on with a registration of its
    own.
    """


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


#: Open audits by thread. An import runs code of users, which cannot pass an audit on.
audits: dict[int, list[Audit]] = {}


def note(fact: Registration) -> None:
    """For the open audit: a registration that this interpreter has registered instead of verifying
    it."""
    audit = _open_audit()
    if audit is not None:
        audit.facts.append(fact)


def verify(
    dispatcher: Dispatcher,
    kind: int,
    key: int,
    name: str,
    body: str | Callable[[], str],
    where: Callable[[], str],
    *,
    at_least: int = 1,
    timeout: float | None = DEFAULT_TIMEOUT,
    accept: Callable[[Registration], str | None] | None = None,
    variant: str = "",
) -> Registration | None:
    """Waits until the registrar has registered the registration, compares, and returns it; None
    when it could not be verified and that was noted, by an open audit or because nobody would hear
    of it. Raises Elected, see registry/roles.py.

    ``body`` is the text with which it would be registered. It may be a function, which is called
    where the text is needed, as is ``where``. ``accept`` compares
    the registrar's registration with what is wanted here and returns the difference in words, or
    None. ``variant`` is that of a kernel: only those for the same types, or of the same provider,
    count.
    """
    audit, what = _open_audit(), (kind, int(key), name, variant)
    try:
        fact = _verify(
            dispatcher, kind, key, name, body, where, at_least, timeout, accept, audit, variant
        )
        if dispatcher.facts.differing is not None:
            mended(dispatcher, what)
        if verify_log.listens():
            words = described(kind, key, name)
            verify_log.tell("verified %s with pid %d, %s", words, fact.pid, fact.where)
        return fact
    except errors.VerificationError as error:
        if verify_log.listens():
            problem = str(error).partition("\n")[0]
            verify_log.tell("not verified: %s: %s", described(kind, key, name), problem)
        if dispatcher.facts.keeps_own and _goes_on(dispatcher, what, error, body):
            raise GoesOn from None
        if audit is None:
            warn(dispatcher, error)
        _refuse(dispatcher, what, error)
        return None
    except errors.RegistryError as error:
        if audit is not None or not is_unheard():
            raise
        warn(dispatcher, error)
        keep(dispatcher, what, error)
        refuse_calls(dispatcher)
        return None


def tell(dispatcher: Dispatcher, what: What, error: errors.VerificationError) -> None:
    """Keeps a difference, and raises it. For an open audit it notes it instead; where nobody would
    hear it, it refuses calls. A member that goes on with its own does neither.
    """
    if not (dispatcher.facts.keeps_own and _goes_on(dispatcher, what, error, "")):
        _refuse(dispatcher, what, error)


def _goes_on(
    dispatcher: Dispatcher,
    what: What,
    error: errors.VerificationError,
    body: str | Callable[[], str],
) -> bool:
    """Whether this member goes on with a registration of its own. ``body`` is its text."""
    text = body if isinstance(body, str) else body()
    goes_on: bool = seam.at("a difference")(dispatcher, what, error, text)
    return goes_on


def _refuse(dispatcher: Dispatcher, what: What, error: errors.VerificationError) -> None:
    keep(dispatcher, what, error)
    audit = _open_audit()
    if audit is not None:
        audit.differences.append(error)
    elif is_unheard():
        refuse_calls(dispatcher)
    else:
        raise error


class Differing(Plug):
    """The state of this interpreter's differences. ``unwarned`` has an item until the log has a
    warning; ``waited`` counts the seconds of waits in vain while nobody would have heard an error.
    """

    __slots__ = ("unwarned", "waited")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.unwarned: list[None] = [None]
        self.waited = 0.0

    def forked(self, is_heir: bool) -> None:
        unlock(self.unwarned)


def warn(dispatcher: Dispatcher, error: errors.MdispatchError) -> None:
    """Leaves a warning in the log, the first time since nothing differed. Call it without a lock:
    handlers of log records are other people's code.
    """
    try:
        dispatcher.of(Differing).unwarned.pop()
    except IndexError:
        return
    verify_log.warn(
        "refused in %s: %s\n"
        "This is told once. warm_up tells all that differs, and so does mdispatch doctor.",
        dispatcher.facts.label,
        str(
            error
        ),  # a handler may keep the record, and with the error all that its import has made
    )


def agree(dispatcher: Dispatcher) -> None:
    """Nothing differs any more: calls are made again, and the next difference is warned of."""
    dispatcher.of(Differing).unwarned[:] = [None]
    dispatcher.fallbacks.refuse(None)


def keep(
    dispatcher: Dispatcher, what: What, error: errors.MdispatchError, is_refused: bool = True
) -> None:
    """Keeps a difference until :func:`mended`. ``is_refused``: a registration was refused."""
    from ..facts import differing  # few interpreters differ

    differing.keep(dispatcher.facts, what, error, is_refused)


def mended(dispatcher: Dispatcher, what: What) -> None:
    """What may have differed is registered well now. The last one ends a refusal of calls."""
    differing = dispatcher.facts.differing
    if differing is None or not differing.kept or not differing.forget(what):
        return
    is_refused = dispatcher.fallbacks.refusal is not None
    agree(dispatcher)
    if is_refused and differing.kept:  # another thread has kept one in between, and refused calls
        refuse_calls(dispatcher)


def compare_kernels(dispatcher: Dispatcher, there: list[Registration]) -> None:
    """Keeps which kernels that were verified here serve no more, for their definition has another
    text now, whether or not somebody has called them; and drops those that serve again. ``there``
    are all registrations. See Note [Kernels and definitions] in dispatch/pairing.py.
    """
    differing = dispatcher.facts.differing
    kept = differing.with_what() if differing is not None else ()
    before = {what for what, error in kept if isinstance(error, errors.KernelOutdatedError)}
    suspects = {(name, int(key)) for _, key, name, _ in before}
    defined = {fact.name: fact for fact in there if fact.kind == facts.DEF}
    for name, entry in dispatcher.entries.items():
        definition = defined.get(name)
        suspects |= {(name, int(k.key)) for k in entry.callables if k.is_outdated(definition)}
    if not suspects:
        return
    from ..dispatch.pairing import AbsentKernel

    still = set()
    of_name: dict[str, list[Registration]] = {name: [] for name, _ in suspects}
    for fact in there:
        if fact.name in of_name:
            of_name[fact.name].append(fact)
    for name, key in sorted(suspects):
        for kernel in dispatcher.entry(name).at(DispatchKey(key), of_name[name]):
            if isinstance(kernel, AbsentKernel) and kernel.outdated is not None:
                kernel.outdated_error(dispatcher.facts, name)
                still.add((facts.IMPL, key, name, kernel.outdated.variant))
    for what in before - still:
        mended(dispatcher, what)


def keep_missing(
    dispatcher: Dispatcher, there: list[Registration], lacking: list[Registration]
) -> None:
    """Keeps what a warm-up found lacking here, beside what was found before and is still there.
    What somebody has tried to register here is told already.
    """
    from .differences import missing_in_worker

    differing = dispatcher.facts.differing
    told, before = set(), set()
    for what, error in differing.with_what() if differing is not None else ():
        if isinstance(error, errors.MissingInWorkerError):
            before.add(what)
        elif isinstance(error, errors.VerificationError):
            told.add((error.kind, error.name, error.key))
    now = {(*fact.what, fact.variant): fact for fact in lacking}
    if before:
        is_there = {(*fact.what, fact.variant) for fact in there}
        for what in before:
            if what in now or what not in is_there:
                mended(dispatcher, what)
    for what, fact in now.items():
        missing = missing_in_worker(dispatcher.facts, fact)
        if (missing.kind, missing.name, missing.key) not in told:
            keep(dispatcher, what, missing, is_refused=False)


def all_kept(dispatcher: Dispatcher) -> list[errors.MdispatchError]:
    """The differences that are kept, oldest first."""
    return list(dispatcher.facts.differing or ())


def refuse_calls(dispatcher: Dispatcher) -> None:
    """Has every call of an operator raise all the differences that are kept, until none is, or
    until a warm-up finds nothing.
    """

    def refuse() -> None:
        if is_unheard():
            return  # the module that is being imported calls operators
        from .differences import all_that_differs

        raise all_that_differs(dispatcher.facts, all_kept(dispatcher))

    dispatcher.fallbacks.refuse(refuse)


def known(dispatcher: Dispatcher, kind: int, key: int, name: str) -> bool:
    """The short way to verify a kernel without types or provider: whether the registration is there
    already. False says nothing; :func:`verify` has to find out.
    """
    there = dispatcher.facts.find(kind, key, name) if _is_short(name) else None
    if there is None or ("\n" in there.text and there.variant):
        return False
    audit = _open_audit()
    if audit is not None:
        audit.facts.append(there)
    if dispatcher.facts.differing is not None:
        mended(dispatcher, (kind, int(key), name, ""))
    if verify_log.listens():
        verify_log.tell("verified %s, which was there", described(kind, key, name))
    return True


def known_definition(
    dispatcher: Dispatcher, name: str, written: str, attributes: str
) -> Registration | None:
    """The short way to verify a definition: the registration, if it is there and was made with just
    this text. None says nothing; :func:`verify` has to find out.
    """
    fact = dispatcher.facts.find(facts.DEF, 0, name) if _is_short(name) else None
    if fact is None or not fact.is_written(written, attributes):
        return None
    audit = _open_audit()
    if audit is not None:
        audit.facts.append(fact)
    if dispatcher.facts.differing is not None:
        mended(dispatcher, (facts.DEF, 0, name, ""))
    if verify_log.listens():
        what = described(facts.DEF, 0, name)
        verify_log.tell("verified %s with pid %d, %s", what, fact.pid, fact.where)
    return fact


def _is_short(name: str) -> bool:
    """Whether a name that was not parsed yet can be looked up."""
    return len(name) <= _LONGEST_NAME and name.isascii()


def _open_audit() -> Audit | None:
    mine = audits.get(get_ident()) if audits else None
    return mine[-1] if mine else None


def _verify(
    dispatcher: Dispatcher,
    kind: int,
    key: int,
    name: str,
    body: str | Callable[[], str],
    where: Callable[[], str],
    at_least: int,
    timeout: float | None,
    accept: Callable[[Registration], str | None] | None,
    audit: Audit | None,
    variant: str,
) -> Registration:
    registry = dispatcher.facts
    fact = registry.find(kind, key, name) if at_least == 1 else None
    if fact is not None and fact.variant != variant:
        fact = None
    if fact is None:
        began = monotonic()
        limit, is_kept = timeout, audit is None and is_unheard()
        if audit is not None:
            limit = audit.remaining()
        elif is_kept and limit is not None:
            # The import goes on after a wait in vain: all such waits together take one timeout.
            limit = max(0.0, limit - dispatcher.of(Differing).waited)
        fact = _await(
            registry, kind, key, name, at_least, limit,
            lambda each: each.variant == variant, or_elect=True,
        )  # fmt: skip
        waited = monotonic() - began
        if audit is not None:
            audit.longest_wait = max(audit.longest_wait, waited)
        if fact is None:
            if audit is not None:
                waited = monotonic() - audit.began  # the main interpreter had all this time
            elif is_kept:
                here = dispatcher.of(Differing)
                waited = here.waited = here.waited + waited
            raise _never(registry, kind, key, name, at_least, where(), waited, variant)
    difference = accept(fact) if accept is not None else None
    if difference is not None:
        text = body if isinstance(body, str) else body()
        from .differences import schema_differs

        raise schema_differs(registry, fact, text.partition("\n")[0], where(), difference)
    if audit is not None:
        audit.facts.append(fact)
    return fact


def _await(
    registry: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    timeout: float | None,
    counts: Callable[[Registration], bool],
    ticket: int = 0,
    or_elect: bool = False,
) -> Registration | None:
    """Waits until so many registrations are there, of kernels only those that ``counts`` accepts.
    None after ``timeout`` seconds.

    A wait in C counts all kernels of the key. So this looks at the registrations, then waits for
    one more than there are. That wait begins with a look of its own, so it misses no registration
    that came since. But where a kernel is removed meanwhile it wants one too many: so it ends after
    ``_LOOK_AGAIN`` seconds, and the registrations are looked at again.
    """
    if kind != facts.IMPL:
        return _await_fact(registry, kind, key, name, at_least, timeout, ticket, or_elect)
    began = monotonic()
    wanted, left = at_least, timeout
    while True:
        fact = _await_fact(registry, kind, key, name, wanted, left, ticket, or_elect)
        if fact is not None and at_least == 1 and counts(fact):
            return fact
        _, _, there = registry.registrations(name)
        same = [each for each in there if (each.kind, each.key) == (kind, key)]
        its = [each for each in same if counts(each)]
        if len(its) >= at_least:
            return its[-1]
        left = None if timeout is None else timeout - (monotonic() - began)
        if (left is not None and left <= 0) or _is_sealed(registry):
            return None
        wanted = at_least
        if len(same) >= at_least:  # some do not count
            wanted, left = len(same) + 1, min(left or _LOOK_AGAIN, _LOOK_AGAIN)


def _await_fact(
    registry: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    timeout: float | None,
    ticket: int = 0,
    or_elect: bool = False,
) -> Registration | None:
    """The registration, or None when the time is up. On a host of a cluster the wait may end
    before."""
    wait = registry.await_fact
    if registry.has(facts.STANDING, 0, facts.STANDS):
        wait = partial(seam.at("a wait"), registry)
    return wait(kind, key, name, at_least, timeout, ticket, or_elect)[0]


def _is_sealed(registry: Facts) -> bool:
    """Whether no wait for what is missing here has to last, on a host of a cluster."""
    if not registry.has(facts.STANDING, 0, facts.STANDS):
        return False
    now = seam.at("how this host stands")(registry)
    return now is not None and now.is_sealed


def wait_for(
    dispatcher: Dispatcher,
    kind: int,
    key: int,
    name: str,
    timeout: float | None,
    where: Callable[[], str],
    ticket: int = 0,
) -> Registration:
    """Waits for a registration, of kernels for one that can serve, and returns it. Every other
    outcome is an exception of its own class.

    ``where`` finds the location that waits.
    """
    registry = dispatcher.facts
    began = monotonic()
    lacks = None
    fact = _await_fact(registry, kind, key, name, 1, timeout, ticket)
    # A text of one line has no provider.
    if fact is not None and "\n" in fact.text and _lacks(dispatcher, fact):
        left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
        lacks, serves = partial(_lacks, dispatcher), partial(_serves, dispatcher)
        fact = _await(registry, kind, key, name, 1, left, serves, ticket)
    if fact is None:
        raise _never(registry, kind, key, name, 1, where(), monotonic() - began, lacks=lacks)
    return fact


def _lacks(dispatcher: Dispatcher, fact: Registration) -> str:
    """Why the provider of a kernel is not available; "" if it is. Of one that comes later, this
    interpreter says so.
    """
    if fact.comes_later:
        return str(seam.at("why a provider is not available")(dispatcher, fact))
    return fact.lacks


def _serves(dispatcher: Dispatcher, fact: Registration) -> bool:
    return not _lacks(dispatcher, fact)


def _never(
    registry: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    where: str,
    waited: float,
    variant: str | None = None,
    lacks: Callable[[Registration], str] | None = None,
) -> errors.NotRegisteredError:
    from .missed import never_registered  # loaded only for an error

    return never_registered(registry, kind, key, name, at_least, where, waited, variant, lacks)

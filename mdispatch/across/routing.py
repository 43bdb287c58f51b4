"""The caller's side of calls that run in another interpreter, of this process or of another one:
who may make them, where they go, and what becomes of their errors.

Both sides agree to such a call. The owner has registered the kernel with ``serve=True``; the caller
allows it for a namespace. Then a call whose kernel has no callable here goes to the home of a
handle among its arguments, if that serves the kernel; else to the interpreter of this process that
serves it, the newest one of several; else, by a transport, to the newest of other processes whose
offer has one (``serve="host"``). Else it is refused as ever.

Only the kernel runs there. The call is bound, and its keys are collected, here; modes, observers
and rules are asked here; the result is compared with the schema here.

Calls in C come here too: they call ``function`` of a Route's kernel as that of any kernel. It looks
by itself whether the call is allowed, for that changes from thread to thread.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar

from .. import errors
from ..dispatch.call_py import resolvers
from ..dispatch.context.hermetic import VisitingHandle
from ..dispatch.context.homes import Home, here
from ..dispatch.kernels import LocalKernel
from ..dispatch.pairing import AbsentKernel, missing
from ..facts import DEF, IMPL
from ..facts.native import alone_because, c_kernels, calls, interpreter_id
from ..facts.waits import check_timeout
from ..forking import in_child
from ..keys.numbers import RUNTIME_KEYS, DispatchKey, highest_index
from . import serving
from .arrays import KINDS, asked, asking
from .offers import offer_of
from .serving import under_way
from .transports.transport import (
    BUSY,
    DAMAGED,
    DEEP,
    GONE,
    KEPT,
    LARGE,
    LATE,
    NO_KERNEL,
    RAISED,
    UNFIT,
    transport_named,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Token
    from types import TracebackType
    from typing import Any, NoReturn, Self

    from ..dispatch.by_type import ByType
    from ..dispatch.entry import OperatorEntry
    from ..dispatch.table import DispatchTable
    from ..facts import Registration
    from ..facts.abc import Facts
    from .offers import Offer
    from .transports.transport import Transport

    Terms = tuple[float | None, str]

# --- who may --------------------------------------------------------------------------------------

#: The namespaces whose calls may be routed, each with the timeout in seconds and the kind of
#: arrays in results: in this interpreter, and in this context.
_everywhere: dict[str, Terms] = {}
_nowhere: Mapping[str, Terms] = {}
_now: ContextVar[Mapping[str, Terms]] = ContextVar("mdispatch.routing", default=_nowhere)

_NS = 1_000_000_000
#: How many routed calls may be inside one another: as VISIT_MAX_DEPTH in native/bind/ext/visit.h.
_MOST = 32


class routing:
    """While it is open, calls of these namespaces whose kernel is not in this interpreter may run
    in another one that serves it (``Library.impl(..., serve=True)``), or in another process
    (``serve="host"``).

    ``timeout`` is how many seconds such a call may wait: until its kernel begins; in another
    process, until it is answered. None for ever. ``arrays`` is the kind of arrays in a result:
    ``"numpy"``, ``"torch"``, or ``"memory"`` for memoryviews; by default those that the kernel has
    returned. Both hold for the code in the ``with`` block, as a context variable does: for this
    thread or this task. It may be opened again.

    Raises InvalidArgumentError (no namespace, or a timeout or arrays that are none).
    """

    def __init__(
        self, *namespaces: str, timeout: float | None = None, arrays: str | None = None
    ) -> None:
        self._namespaces = dict.fromkeys(_checked(namespaces), _terms(timeout, arrays))
        self._tokens: list[Token[Mapping[str, Terms]]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_now.set({**_now.get(), **self._namespaces}))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _now.reset(self._tokens.pop())


def allow_routing(
    *namespaces: str, timeout: float | None = None, arrays: str | None = None
) -> None:
    """As :class:`routing`, for all threads of this interpreter and for good."""
    _everywhere.update(dict.fromkeys(_checked(namespaces), _terms(timeout, arrays)))


def _terms(timeout: float | None, arrays: str | None) -> Terms:
    if arrays is not None and arrays not in KINDS:
        from ..errors.words import shown

        raise errors.InvalidArgumentError(
            f"arrays is {shown(arrays)}, not one of {', '.join(map(shown, KINDS))}, or None for "
            "what the kernel has returned"
        )
    return check_timeout(timeout), arrays or ""


def _checked(namespaces: tuple[str, ...]) -> tuple[str, ...]:
    if not namespaces or not all(isinstance(each, str) and each for each in namespaces):
        from ..errors.words import shown

        raise errors.InvalidArgumentError(
            f"routing is allowed for namespaces, by their names, not for {shown(namespaces)}"
        )
    return namespaces


def _is_allowed(namespace: str) -> bool:
    return namespace in _now.get() or namespace in _everywhere


# --- where to -------------------------------------------------------------------------------------


class Route:
    """The ways from a kernel that is not here to the interpreters that serve it, by their offers,
    of which the first is taken where no handle leads elsewhere.
    """

    __slots__ = ("_entry", "_kernel", "_made", "_offers")

    def __init__(self, entry: OperatorEntry, kernel: AbsentKernel, found: Sequence[Offer]) -> None:
        self._entry = entry
        self._kernel = kernel
        with_keyset = found[0].with_keyset
        self._offers = [offer for offer in found if offer.with_keyset is with_keyset]
        self._made: dict[tuple[int, DispatchKey], LocalKernel] = {}

    def at(self, table: DispatchTable, key: DispatchKey) -> LocalKernel:
        """The kernel for calls of a table whose highest key this is."""
        made = self._made.get((id(table), key))
        if made is None:
            offer = self._offers[0]
            function = _to(self._entry, table, key, offer)
            if len(self._offers) > 1:
                function = _by_handles(self._entry, table, key, self._offers, function)
            made = LocalKernel(
                DispatchKey(offer.fact.key),
                function,
                offer.with_keyset,
                label=offer.label,
                types=self._kernel.types,
                provider=self._kernel.provider,
            )
            self._made[id(table), key] = made  # the function keeps the table, and so its id
        return made


def routed(
    entry: OperatorEntry, table: DispatchTable, kernel: AbsentKernel, raw: int
) -> LocalKernel | None:
    """The kernel for a call with these keys that leads to one which is not here; None where calls
    may not be routed, or nobody serves it.
    """
    if not _is_allowed(entry.name.partition("::")[0]):
        return None
    if kernel.route is None:
        found = _reachable(offers(entry.facts, entry.name, kernel.fact, kernel.definition))
        if not found:
            _refuse_outdated(entry, kernel)
            return None
        kernel.route = Route(entry, kernel, found)
        entry.plan_anew()
    route: Route = kernel.route
    return route.at(table, RUNTIME_KEYS[highest_index(raw)])


resolvers.append(routed)


def _refuse_outdated(entry: OperatorEntry, kernel: AbsentKernel) -> None:
    """KernelOutdatedError where all that serve a kernel have verified it for another definition."""
    definition = kernel.definition
    there = _reachable(_all_offers(entry.facts, entry.name, kernel.fact)[0])
    if not there or definition is None or kernel.outdated is not None:
        return
    first, key = there[0], DispatchKey(kernel.fact.key).name
    name, home = entry.name, _home_of(first)
    raise errors.KernelOutdatedError(
        f"{name} has the kernel {first.label} at {key} in {home}, which has verified it against "
        "another definition than the one in effect\n"
        f"  there: {first.definition[0]}    (served at {first.fact.where})\n"
        f"  now:   {definition.body}    (defined at {definition.where} by pid {definition.pid})\n"
        "Register it again there for the new definition: reload the module that registers it, or "
        "start that interpreter anew.",
        name,
        key,
        where=first.fact.where,
        schema_here=first.definition[0],
        schema_there=definition.body,
        here=first.fact.where,
        there=definition.where,
    )


def offers(
    facts: Facts, operator: str, fact: Registration, definition: Registration | None
) -> list[Offer]:
    """The offers of just this kernel, wherever it is served, the newest first. ``definition`` is
    the one by which the call is bound: a kernel that was verified for another one is not offered to
    it. One whose member has registered it is for the definition that is in effect.
    """
    found, now = _all_offers(facts, operator, fact)
    bound = ("", "") if definition is None else (definition.body, definition.attributes)
    now = now or bound
    return [each for each in found if (each.definition if each.definition[0] else now) == bound]


def _all_offers(
    facts: Facts, operator: str, fact: Registration
) -> tuple[list[Offer], tuple[str, str] | None]:
    """The same for whatever definition, and what is defined now.

    A member that has verified a kernel may have another label for it. So labels are compared only
    where the key has several kernels for the same types and of the same provider: as for the
    callables of this interpreter, in dispatch/pairing.py.
    """
    found = []
    kernels = 0
    now = None
    for each in facts.registrations(operator)[2]:
        if each.kind == DEF:
            now = each.body, each.attributes
        if each.key != fact.key:
            continue
        kernels += each.kind == IMPL and _is_for(each, fact)
        offer = offer_of(each)
        if offer is not None and _is_for(offer, fact):
            found.append(offer)
    if kernels > 1:
        found = [offer for offer in found if offer.label == fact.body]
    return found[::-1], now


def _is_for(each: Registration | Offer, fact: Registration) -> bool:
    """Whether it is for the same types, and of the same provider, as a kernel's registration."""
    return (each.types, each.provider) == (fact.types, fact.provider)


def _reachable(found: Sequence[Offer]) -> list[Offer]:
    """Of offers, the newest first, those of other interpreters of this process, and then those of
    other processes.
    """
    pid = os.getpid()
    near = [o for o in found if o.fact.pid == pid and o.fact.interpreter != interpreter_id]
    far = [offer for offer in found if offer.fact.pid != pid and offer.transport]
    return [] if alone_because else near + far


def _home_of(offer: Offer) -> Home:
    fact = offer.fact
    return Home(here().space, fact.pid, 0, fact.interpreter)


def way(
    entry: OperatorEntry, key: DispatchKey, seq: int
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Where calls run whose highest key this is and whose kernel has the registration of this
    number, in words; and who serves it, with to whom and since when. "" and nothing if they run
    here, or if nobody serves it.
    """
    table = entry.current_table()
    slot: Any = table.entries[RUNTIME_KEYS.index(key)].kernel
    by_type: ByType | None = slot if hasattr(slot, "chosen") else None
    kernels = by_type.kernels if by_type is not None else (slot,)
    for kernel in kernels:
        if isinstance(kernel, AbsentKernel) and kernel.fact.seq == seq:
            found = offers(entry.facts, entry.name, kernel.fact, kernel.definition)
            owners = tuple((str(_home_of(offer)), offer.to_whom) for offer in found)
            return _way(entry.name.partition("::")[0], found) if found else "", owners
    return "", ()


def _way(namespace: str, found: Sequence[Offer]) -> str:
    reachable = _reachable(found)
    if not reachable:
        return (
            f"not loaded here, and a call is refused: {_home_of(found[0])} serves it to its own "
            f'process only    ({found[0].fact.where})\n  serve="host" there would serve it here'
            if not alone_because
            else f"not loaded here, and a call is refused: {alone_because}"
        )
    offer = reachable[0]
    home = _home_of(offer)
    if not _is_allowed(namespace):
        return f'not loaded here; {home} serves it to calls within routing("{namespace}")'
    by = (
        "a visit on the caller's thread"
        if offer.fact.pid == os.getpid()
        else f'the transport "{offer.transport}"'
    )
    there = f"routed to {home}, which serves it, by {by}    ({offer.fact.where})"
    if len(reachable) > 1:
        there += "\n  a handle among the arguments leads to its home instead, if that serves it"
    return there


# --- the call -------------------------------------------------------------------------------------


def _to(
    entry: OperatorEntry, table: DispatchTable, key: DispatchKey, offer: Offer
) -> Callable[..., Any]:
    """What runs as the kernel, which is that of an offer."""
    way = _visit if offer.fact.pid == os.getpid() else _carried
    return way(entry, table, key, offer)


def _by_handles(
    entry: OperatorEntry,
    table: DispatchTable,
    key: DispatchKey,
    found: Sequence[Offer],
    first: Callable[..., Any],
) -> Callable[..., Any]:
    """What runs as the kernel, which several serve: that of the home of a handle among the
    arguments, where the kernel gets the object, else the first. (c10: the interpreter of the
    SafePyObjects among the arguments)
    """
    name = entry.name
    by_home: dict[tuple[int, int], Offer] = {}
    for offer in found:
        by_home.setdefault((offer.fact.pid, offer.fact.interpreter), offer)
    # Made when a call needs it: this interpreter may lack the transport of one that none goes to.
    ways: dict[tuple[int, int], Callable[..., Any]] = {}

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        chosen: dict[tuple[int, int], Home] = {}
        for each in (*args, *kwargs.values()):
            for value in each if isinstance(each, (list, tuple)) else (each,):
                if isinstance(value, VisitingHandle):
                    home = value.home
                    at = home.pid, home.interpreter_id
                    if at in by_home:
                        chosen[at] = home
        if not chosen:
            return first(*args, **kwargs)
        if len(chosen) > 1:
            homes = list(map(str, chosen.values()))
            raise errors.ForeignObjectError(
                f"{name}() has handles of objects of {' and of '.join(homes)}, and each of these "
                "serves its kernel: it cannot run in both\nCall it with objects of one home.",
                homes[0],
                str(here()),
                name,
            )
        (at,) = chosen
        way = ways.get(at) or ways.setdefault(at, _to(entry, table, key, by_home[at]))
        return way(*args, **kwargs)

    return elsewhere


def _visit(
    entry: OperatorEntry, table: DispatchTable, key: DispatchKey, offer: Offer
) -> Callable[..., Any]:
    """What runs as the kernel, which is another interpreter's of this process."""
    name, namespace = entry.name, entry.name.partition("::")[0]
    home, ticket, with_keyset = offer.fact.interpreter, offer.ticket, offer.with_keyset
    visit, now, changed_sets = c_kernels.visit, c_kernels.now, calls.changed_sets
    kind_of_arrays = asked.get
    allowed, everywhere = _now.get, _everywhere

    def failed(why: int, told: Any) -> NoReturn:
        raise error_of(name, _home_of(offer), why, told, terms_for(namespace)[0] or 0.0)

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        how = allowed()
        if namespace not in how:
            how = everywhere
            if namespace not in how:
                raise missing(entry.facts, name, table, key.raw)
        timeout, arrays = how[namespace]
        deadline = 0 if timeout is None else now() + int(timeout * _NS)
        if with_keyset:
            args = (args[0].raw, *args[1:])
        number = ticket
        if serving.tracing is not None or changed_sets() is not None:
            told = conditions()
            if told is not None:
                number, args = -ticket, (*told, *args)
        if arrays != kind_of_arrays():
            return asking(arrays, visit, failed, home, number, deadline, args, kwargs)
        return visit(failed, home, number, deadline, args, kwargs)

    return elsewhere


def _carried(
    entry: OperatorEntry, table: DispatchTable, key: DispatchKey, offer: Offer
) -> Callable[..., Any]:
    """What runs as the kernel, which is another process's."""
    name, namespace = entry.name, entry.name.partition("::")[0]
    ticket, with_keyset, address = offer.ticket, offer.with_keyset, offer.address
    transport = transport_named(offer.transport)
    now, allowed = c_kernels.now, _now.get

    def home_of() -> Home:
        return _home_of(offer)

    written = _written(entry, with_keyset)

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        how = allowed()
        if namespace not in how:
            how = _everywhere
            if namespace not in how:
                raise missing(entry.facts, name, table, key.raw)
        timeout, arrays = how[namespace]
        changed = written(args, kwargs) if written is not None else ()
        if with_keyset:
            args = (args[0].raw, *args[1:])
        number, told = ticket, conditions()
        if told is not None:
            number, args = -ticket, (*told, *args)
        deadline = 0 if timeout is None else now() + int(timeout * _NS)
        return asking(
            arrays,
            carry,
            name,
            home_of,
            transport,
            address,
            number,
            args,
            kwargs,
            changed,
            deadline,
            timeout or 0.0,
        )

    return elsewhere


#: Until when the call that this context has sent to another process waits, in ns; 0 for ever.
_until: ContextVar[int] = ContextVar("mdispatch.until", default=0)
#: The same, for what a transport's own thread asks of others meanwhile.
until = _until.get


def carry(
    name: str,
    home_of: Callable[[], Home],
    transport: Transport,
    address: str,
    ticket: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changed: tuple[Any, ...],
    deadline: int,
    timeout: float,
) -> Any:
    """Has another process run what it has under the ticket. ``changed`` is memory that this may
    write to. ``timeout`` is what the deadline is said to be. Raises what error_of() makes of what
    came to nothing.
    """
    way = [_me()]
    outer = under_way()
    if outer is not None:
        way = outer.way + way
        if len(way) > _MOST:
            raise error_of(name, home_of(), DEEP, [*way, str(home_of())])
        if outer.deadline and (not deadline or outer.deadline < deadline):
            deadline = outer.deadline
    call = [ticket, deadline, way, args, tuple(kwargs), tuple(kwargs.values())]
    token = _until.set(deadline)
    try:
        why, told, started = transport.call(address, call, changed, deadline)
    finally:
        _until.reset(token)
    if not why:
        return told
    raise error_of(name, home_of(), why, told, timeout, started)


def _written(
    entry: OperatorEntry, with_keyset: bool
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]] | None:
    """What finds, among the arguments of a call, those that the operator writes to; None if it
    writes to none. In a list of tensors, its items.
    """
    signature = entry.signature()
    arguments = signature.schema.arguments if signature is not None else ()
    chosen = [each for each in arguments if each.alias_info is not None and each.alias_info.writes]
    if not chosen:
        return None
    positional = [each for each in arguments if not each.kwarg_only]
    places = [positional.index(each) + with_keyset for each in chosen if not each.kwarg_only]
    names = [each.name for each in chosen if each.kwarg_only]

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        found = [args[place] for place in places if place < len(args)]
        found += [kwargs[each] for each in names if each in kwargs]
        lists = [each for each in found if isinstance(each, (list, tuple))]
        return (*found, *(item for items in lists for item in items))

    return find


_my_name = ""


def _me() -> str:
    """This interpreter in words, which are made once."""
    global _my_name
    if not _my_name:
        _my_name = str(here())
    return _my_name


@in_child
def _renew() -> None:
    global _my_name
    _my_name = ""


def conditions() -> tuple[int, int, list[str]] | None:
    """What goes with a call beside its arguments: this thread's included and excluded keys, and its
    trace. None where the keys are those that threads start with, and there is no trace.
    """
    sets = calls.changed_sets()
    trace = [] if serving.tracing is None else serving.tracing.sent()
    return None if sets is None and not trace else (*(sets or calls.sets()), trace)


def deadline_for(namespace: str) -> int:
    """The deadline of a call that begins now, in ns; 0 where no timeout is given."""
    timeout = terms_for(namespace)[0]
    return 0 if timeout is None else c_kernels.now() + int(timeout * _NS)


def terms_for(namespace: str) -> Terms:
    """The timeout of the calls of a namespace, in seconds, None if none is given; and the kind
    of arrays in results.
    """
    return _now.get().get(namespace) or _everywhere.get(namespace) or (None, "")


#: The reasons that mean that the owner has ended.
OWNER_GONE = (GONE, NO_KERNEL)


def error_of(
    name: str,
    home: Home,
    why: int,
    told: Any,
    timeout: float = 0.0,
    started: bool | None = False,
) -> BaseException:
    """Why a call came to nothing, as an exception."""
    where = (name, str(home), home.pid)
    if why == RAISED and (told is None or _is_description(told)):
        return _raised(told, where)
    begin = f"{name}() runs in {home}"
    ran = _RAN[started]
    if why in (GONE, NO_KERNEL):
        what = "has ended" if why == GONE else "serves it no more"
        do = "Call it while its owner runs, or import its module here."
        return errors.OwnerGoneError(f"{begin}, which {what}; {ran}\n{do}", *where, started=started)
    if why == LATE:
        what = "was busy for longer than" if not started else "did not answer within"
        return errors.CallTimeoutError(
            f"{begin}, which {what} the timeout of {timeout:g} s; {ran}\nGive routing() a longer "
            "timeout, or the owner less to do.",
            *where,
            started=started,
            timeout=timeout,
        )
    if why == BUSY:
        queue = told if type(told) is int else 0
        waiting = f", and {queue} more wait, which is its whole queue" if queue else ""
        do = "" if queue else ', have calls wait by serve=mdispatch.Serve("host", queue=8) there'
        return errors.OwnerBusyError(
            f"{begin}, which has as many calls of other processes as it takes{waiting}; {ran}\n"
            f"Call it again later, from fewer threads{do}, or let another process serve it, too.",
            *where,
            queue=queue,
        )
    if why == DEEP:
        way = " -> ".join(map(str, told or ()))
        return errors.RoutingCycleError(
            f"{begin}, and there are already {len(told or ()) - 2} routed calls inside one "
            f"another: interpreters {way}\nThese kernels call each other without end; let one of "
            "them answer by itself.",
            *where,
            chain=told or (),
        )
    if why == KEPT:
        which = (
            f"belongs to {here()} and stays pinned until that is dropped"
            if home.pid == os.getpid()
            else "is its own for the time of the call only"
        )
        return errors.RoutedError(
            f"{begin}, and its kernel has kept memory of an argument, which {which}\nLet the "
            "kernel copy what it keeps.",
            *where,
        )
    if why in (DAMAGED, RAISED):
        told = told if why == DAMAGED else "it describes no exception"
        return errors.RoutedError(
            f"{begin}, and its answer cannot be read: {told}\nLet both processes use the same "
            "version of mdispatch.",
            *where,
        )
    if why == LARGE:
        what = "its result" if started else "the call"
        return errors.CannotTravelError(
            f"{begin}, and {what} {told}, which is more than a message between processes takes\n"
            "Send it in parts; numbers as memory (the buffer protocol), which is one value.",
            *where,
        )
    what = "an argument" if why == UNFIT else "its result"
    # As encoded() in across/by_value.py and memory_of() in across/arrays.py have it.
    told, said, reason = told.partition(", whose ")
    if said:
        return errors.CannotTravelError(
            f"{begin}, and {what} is an object of {told}, whose {reason}", *where, value_type=told
        )
    return errors.CannotTravelError(
        f"{begin}, and {what} is an object of {told}, which cannot travel\nNone, bool, int of "
        "64 bits, float, str, bytes, memory (the buffer protocol), arrays of NumPy and PyTorch, "
        "handles (mdispatch.share), objects of classes with a codec and lists of these can.",
        *where,
        value_type=told,
    )


_RAN = {
    False: "the kernel was not called",
    True: "the kernel was called, and may have run to its end",
    None: "whether the kernel was called is not known",
}


def _is_description(told: Any) -> bool:
    """Whether it is what describe() in serving.py makes of an exception, in the main."""
    if type(told) is not list or [*map(type, told)] != [str, str, str, list, list, str]:
        return False
    state = told[4]
    return len(state) % 2 == 0 and all(type(each) is str for each in state[::2])


def _raised(told: Any, where: tuple[str, str, int]) -> BaseException:
    """What the kernel raised, as an exception of this interpreter."""
    if told is None:  # it could not even be described
        return errors.RoutedError(f"{where[0]}() failed in {where[1]}", *where)
    module, name, text, args, state, trace = told
    cls = _class(module, name)
    made: Any = None
    if cls is not None:
        made = _made(errors.RoutedError.of(cls) if issubclass(cls, Exception) else cls, args)
    if made is None or type(made) is errors.RoutedError:
        made = errors.RoutedError(
            f"{where[0]}() raised {module}.{name} in {where[1]}: {text}\n"
            f"Import {module} here to catch it by its class."
        )
    pairs = iter(state)
    for attribute, value in zip(pairs, pairs, strict=True):
        try:
            setattr(made, attribute, value)
        except Exception:
            continue  # a property, or a value of another type than it was there
    if isinstance(made, errors.RoutedError):
        made.operator, made.home, made.pid = where
        made.told = f"{module}.{name}"
    made.add_note(f"raised in {where[1]}:\n{trace}")
    return made  # type: ignore[no-any-return]


def _class(module: str, name: str) -> type[BaseException] | None:
    """The class of this name among what this interpreter has imported. Nothing is imported; our own
    classes are there even where none was asked for.
    """
    found: Any = sys.modules.get(module)
    if found is errors:
        from ..errors import classes

        found = classes
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _made(cls: type[BaseException], args: list[Any]) -> BaseException | None:
    """An exception with these arguments. Only a class of Python's own gets them by its __init__:
    another one may take others than it has passed on.
    """
    try:
        made: BaseException = cls.__new__(cls, *args)
        made.args = tuple(args)
        raised = getattr(cls, "_raised", cls)
        if raised.__module__ == "builtins":
            raised.__init__(made, *args)
    except Exception:
        return None
    return made

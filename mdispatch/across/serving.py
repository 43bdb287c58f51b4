"""The owner's side of calls from other interpreters and processes: which kernels of this
interpreter they may call, and what they are told of an exception.

A kernel that is served has a registration of its own, a note of its member: an *offer*
(across/offers.py). It stands under the operator's name and at the kernel's key, so it ends with its
member, and a change of it renews the tables of those who call. It has a ticket: the number by which
a visit finds the function in ``_served`` (native/bind/ext/visit.c) or, for another process, in
``_served_outside``. The ticket with a minus stands for the same function, called with the caller's
included and excluded keys, and in its trace. Handles of objects of registered classes that are at
home here are taken for the objects, as the binder does for calls from here. An offer to other
processes has the name of a transport, too, and the address at which that listens (the package
``transports``); what comes from there has to fit the schema here (arrivals.py).

Who calls waits until this interpreter gives its GIL away, which one that computes in Python does
every switch interval. So the first that it serves makes CPython's interval a tenth, 0.5 ms; one
that the program has chosen stays.

Locking: none. A ticket is added before its offer is published, and taken away after that has ended;
each is one step of a dict.
"""

from __future__ import annotations

import atexit
import sys
from contextvars import ContextVar
from itertools import count
from time import time

from ..dispatch.context.guards import ForceDispatchKeyGuard
from ..dispatch.context.hermetic import VisitingHandle
from ..errors import InvalidArgumentError, MdispatchError
from ..errors.locations import label_of
from ..errors.words import shown
from ..facts import NOTE
from ..facts.native import alone_because, c_kernels
from ..forking import in_child
from ..keys import DispatchKeySet
from .offers import offer_text
from .transports.transport import LATE, NO_KERNEL, RAISED, queues, transport_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, Protocol, Self

    from ..dispatch.kernels import LocalKernel
    from ..facts import Registration
    from ..facts.abc import Facts
    from .arrivals import Arrivals
    from .transports.transport import Caller

    class Tracing(Protocol):
        """What says to which trace a call belongs. A trace goes as names and values by turns."""

        def sent(self) -> list[str]: ...
        def received(self, trace: list[str]) -> AbstractContextManager[object]: ...

    #: A function, and what says whether it takes a call; None where the function looks itself.
    Served = tuple[Callable[..., Any], Arrivals | None]

_served: dict[int, Callable[..., Any]] = {}
#: Those of them that other processes may call.
_served_outside: dict[int, Served] = {}
#: The tickets of objects (native/bind/ext/visit.h): call a method of one, drop one. They are found
#: where across/sharing.py has put them. HOLD is for other processes: which ones they hold.
METHOD, DROP, HOLD = 1, 2, 3
_numbers = count(4)
#: CPython's switch interval, and that of an interpreter that serves, in seconds.
_USUAL, _SHORT = 0.005, 0.0005
_is_open = False
#: Hands traces on with calls from here, and takes them up here: telemetry.py.
tracing: Tracing | None = None


def trace_with(traces: Tracing) -> None:
    """Hands the current trace on with calls to other interpreters. The first one counts."""
    global tracing
    tracing = tracing or traces


class Serve(str):
    """The name of a transport, for ``serve`` of :meth:`Library.impl`, and how many calls of the
    kernel may wait: ``serve=Serve("host", queue=8)``.

    An owner runs so many calls of other processes at once: 64 by "host". While it has these, up to
    ``queue`` calls of this kernel wait and begin in the order in which they came; the next one is
    refused (OwnerBusyError). A call that waits has not begun: its caller takes it back at its
    deadline, when it is interrupted, and when it ends. Calls that a served kernel makes do not
    wait: two owners that are full could wait for each other.

    Raises InvalidArgumentError (no such transport, or ``queue`` is no number of calls).
    """

    __slots__ = ("queue",)

    queue: int

    def __new__(cls, transport: str, *, queue: int = 0) -> Self:
        if type(queue) is not int or queue < 0:
            raise InvalidArgumentError(
                f"queue is how many calls may wait, 0 or more, not {shown(queue)}"
            )
        transport_named(transport)
        made = super().__new__(cls, transport)
        made.queue = queue
        return made


class Offering:
    """The value of ``serve`` in :meth:`Library.impl`: True, or the name of a transport.
    InvalidArgumentError where there is no such transport.
    """

    __slots__ = ("_queue", "_transport")

    def __init__(self, serve: bool | str) -> None:
        self._transport = str(serve) if isinstance(serve, str) else ""
        self._queue = serve.queue if isinstance(serve, Serve) else 0
        if self._transport:
            transport_named(self._transport)

    def __call__(
        self, facts: Facts, name: str, kernel: LocalKernel, where: str
    ) -> tuple[Registration, Callable[[], object]]:
        return serve(facts, name, kernel, where, self._transport, self._queue)


def serve(
    facts: Facts,
    name: str,
    kernel: LocalKernel,
    where: str,
    transport: str = "",
    queue: int = 0,
) -> tuple[Registration, Callable[[], object]]:
    """Lets other interpreters of this process call a kernel of this one; other processes too, by
    the transport of that name, where ``queue`` of them may wait. Returns the registration, and what
    ends it. Raises InvalidArgumentError (no such transport), and what the transport raises.
    """
    address = transport_named(transport).serve(answer) if transport else ""
    _open()
    ticket = next(_numbers)
    function = kernel.function
    if kernel.with_keyset:
        function = _with_keys(function)
    _served[ticket] = function
    _served[-ticket] = _under(function)
    if address:
        from .arrivals import Arrivals  # few kernels are

        _served_outside[ticket] = function, Arrivals(kernel)
        _served_outside[-ticket] = _served[-ticket], Arrivals(kernel, under=True)
        if queue:
            queues[ticket] = queue
    its = kernel.definition
    text = offer_text(
        kernel.label,
        kernel.types_text,
        kernel.provider_name,
        kernel.with_keyset,
        ticket,
        transport,
        address,
        int(time()),
        ("", "") if its is None else (its.body, its.attributes),
    )
    try:
        fact = facts.register(NOTE, kernel.key, name, text, where)
    except BaseException:
        _forget(ticket)
        raise

    def end() -> None:
        facts.remove(fact)
        _forget(ticket)

    return fact, end


def _forget(ticket: int) -> None:
    queues.pop(ticket, None)
    for each in (ticket, -ticket):
        _served.pop(each, None)
        _served_outside.pop(each, None)


def serve_objects(method: Callable[..., Any], drop: Callable[[int], object]) -> None:
    """Lets other interpreters call methods of objects of this one, and drop these."""
    _served.update({METHOD: method, -METHOD: _under(method), DROP: drop})
    _open()


def serve_objects_outside(
    transport: str, method: Callable[..., Any], hold: Callable[[list[int]], object]
) -> str:
    """Lets other processes call methods of objects by a transport, and say which ones they hold.
    Returns the address. Raises InvalidArgumentError, and what the transport raises.
    """
    address = transport_named(transport).serve(answer)
    _served_outside.update({METHOD: (method, None), -METHOD: (_under(method), None)})
    _served_outside[HOLD] = hold, None
    return address


def _open() -> None:
    global _is_open
    if not _is_open and not alone_because:
        c_kernels.visit_open(_served, describe, opened)
        # Before the registry is left, and before CPython looks for thread states that are left.
        atexit.register(c_kernels.visit_close)
        if sys.getswitchinterval() == _USUAL:
            sys.setswitchinterval(_SHORT)
        _is_open = True


def opened(value: Any) -> Any:
    """What a kernel or a method gets for a value from elsewhere. Raises ObjectGoneError."""
    if isinstance(value, VisitingHandle):
        return value.open() if value.class_name and value.is_home else value
    return [opened(each) for each in value] if isinstance(value, list) else value


def _with_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    def with_keys(raw: int, /, *args: Any, **kwargs: Any) -> Any:
        return function(DispatchKeySet.from_raw(raw), *args, **kwargs)

    return with_keys


def _under(function: Callable[..., Any]) -> Callable[..., Any]:
    def under(included: int, excluded: int, trace: list[str], /, *args: Any, **kwargs: Any) -> Any:
        both = map(DispatchKeySet.from_raw, (included, excluded))
        with ForceDispatchKeyGuard(*both):
            if tracing is None or not trace:
                return function(*args, **kwargs)
            with tracing.received(trace):
                return function(*args, **kwargs)

    return under


# --- calls of other processes ---------------------------------------------------------------------


class Call:
    """A call of another process that this thread answers: its deadline (0 for none), the homes on
    its way here, and its caller.
    """

    __slots__ = ("caller", "deadline", "way")

    def __init__(self, deadline: int, way: list[str], caller: Caller) -> None:
        self.deadline = deadline
        self.way = way
        self.caller = caller


_call: ContextVar[Call | None] = ContextVar("mdispatch.call", default=None)
#: The call of another process that this thread answers; None if there is none.
under_way = _call.get


def answer(told: list[Any] | MdispatchError, caller: Caller) -> tuple[int, Any]:
    """Runs the kernel of a call of another process, as routing.py has put it. Raises ValueError
    for what is no such call, before anything runs.
    """
    caller.sent = []  # the last answer has come
    if isinstance(told, MdispatchError):
        return RAISED, describe(told)
    if [type(each) for each in told] != [int, int, list, list, list, list]:
        raise ValueError("it is no call")
    ticket, deadline, way, args, names, values = told
    if len(names) != len(values) or not all(isinstance(each, str) for each in way + names):
        raise ValueError("it is no call")
    if deadline and c_kernels.now() >= deadline:
        return LATE, None
    served = _served_outside.get(ticket)
    if served is None:
        return NO_KERNEL, None
    function, arrivals = served
    token = _call.set(Call(deadline, way, caller))
    try:
        if METHOD in _served:
            args, values = opened(args), opened(values)
        if arrivals is not None and not arrivals.check(args, names, values):
            return NO_KERNEL, None
        result = function(*args, **dict(zip(names, values, strict=True)))
        if METHOD in _served:
            _add_handles(result, caller.sent)
        return 0, result
    except BaseException as error:
        try:
            trace = error.__traceback__
            return RAISED, describe(error.with_traceback(trace and trace.tb_next))  # not this frame
        except BaseException as another:  # of the exception's own code
            return RAISED, _undescribed(type(error), type(another))
    finally:
        _call.reset(token)


def _add_handles(value: Any, found: list[object]) -> None:
    """Adds the handles in a result. They are kept until the caller has said that it holds them."""
    if isinstance(value, VisitingHandle):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add_handles(each, found)


def cancelled() -> bool:
    """Whether nobody waits any more for the call of another process that this thread answers: its
    caller has ended, has been interrupted, or its deadline has passed. False outside such calls,
    and for one from an interpreter of this process, which waits until the kernel has returned.

    A kernel that takes long asks this now and then, and gives up too.
    """
    call = _call.get()
    if call is None:
        return False
    return bool(call.deadline and c_kernels.now() >= call.deadline) or call.caller.has_gone()


# --- exceptions -----------------------------------------------------------------------------------


def describe(error: BaseException) -> list[Any]:
    """An exception as values: the module and name of its class, its text, its arguments, its
    attributes in pairs, and its traceback as text. What is no value becomes its repr.
    """
    cls = type(error)
    its: dict[str, object] = _or(lambda: vars(error), {})
    state = [each for pair in its.items() if pair[0] != "__notes__" for each in pair]
    trace = _or(lambda: _trace(error), "")
    args: list[object] = _or(lambda: list(error.args), [])
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(error.filename)  # Python keeps it elsewhere
    text = _or(lambda: str(error), label_of(cls))
    return [_as_value(each) for each in (*_name(cls), text, args, state, trace)]


def _trace(error: BaseException) -> str:
    from traceback import format_exception  # raises OSError if no descriptor is left

    return "".join(format_exception(error)).rstrip()


def _undescribed(cls: type, another: type) -> list[Any]:
    """The same of an exception whose own code raises what is no Exception."""
    text = f"its text, arguments or attributes cannot be told: they raise {another.__name__}"
    return [*_name(cls), text, [], [], ""]


def _name(cls: type) -> tuple[str, str]:
    """The module and the name of a class, whose ``__module__`` may be anything."""
    return str.__str__(cls.__module__) if isinstance(cls.__module__, str) else "", cls.__qualname__


def _or(make: Callable[[], Any], instead: Any) -> Any:
    """What it makes; something else where the code of an exception raises."""
    try:
        return make()
    except Exception:
        return instead


_LARGEST = 2**63


def _as_value(thing: object, depth: int = 0) -> Any:
    if thing is None or isinstance(thing, (bool, float, bytes)):
        return thing
    if isinstance(thing, int) and -_LARGEST <= thing < _LARGEST:
        return thing
    if isinstance(thing, str):
        return thing.encode(errors="backslashreplace").decode()
    if isinstance(thing, (list, tuple)) and depth < 8:
        return [_as_value(each, depth + 1) for each in thing]
    try:
        return repr(thing).encode(errors="backslashreplace").decode()
    except Exception:
        return f"<{type(thing).__qualname__}>"


@in_child
def _renew() -> None:
    """The offers belong to the parent."""
    global _is_open
    _is_open = False
    _served.clear()
    _served_outside.clear()
    queues.clear()

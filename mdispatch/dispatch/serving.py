"""The owner's side of calls from other interpreters: which kernels of this interpreter they may
call, and what they are told of an exception.

A kernel that is served has a fact of its own, a note of its member: an *offer*. It stands under the
operator's name and at the kernel's key, so it ends with its member, and a change of it renews the
tables of those who call. It has a ticket: the number by which a visit finds the function in
``_served`` (native/bind/ext/visit.c). The ticket with a minus stands for the same function, called
with the caller's included and excluded keys.

Locking: none. A ticket is added before its offer is published, and taken away after that has ended;
each is one step of a dict.
"""

from __future__ import annotations

import atexit
from itertools import count

from ..errors.places import label_of
from ..facts import NOTE
from ..facts.native import alone_because, c_kernels
from ..keys import DispatchKeySet
from .context.guards import ForceDispatchKeyGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts
    from .kernels import LocalKernel

__all__ = ["DROP", "METHOD", "Offer", "describe", "forked", "offer_of", "serve", "serve_objects"]

#: How the text of an offer begins.
_SERVES = "mdispatch.serves"

_served: dict[int, Callable[..., Any]] = {}
#: The tickets of objects (native/bind/ext/visit.h): call a method of one, drop one. They are found
#: where registry/sharing.py has put them.
METHOD, DROP = 1, 2
_numbers = count(3)
_is_open = False


class Offer:
    """What an offer says: the label and the types of the kernel, whether it takes the key set, and
    its ticket.
    """

    __slots__ = ("fact", "label", "ticket", "types", "with_keyset")

    def __init__(self, fact: Registration, label: str, types: str, keys: str, ticket: str) -> None:
        self.fact = fact
        self.label = label
        self.types = types
        self.with_keyset = bool(keys)
        self.ticket = int(ticket)


def offer_of(fact: Registration) -> Offer | None:
    """The offer that a fact is, or None."""
    if fact.kind != NOTE or not fact.text.startswith(_SERVES + "\n"):
        return None
    return Offer(fact, *fact.text.split("\n")[1:5])


def serve(
    facts: Facts, name: str, kernel: LocalKernel, where: str
) -> tuple[Registration, Callable[[], object]]:
    """Lets other interpreters call a kernel of this one. Returns the fact, and what ends it."""
    _open()
    ticket = next(_numbers)
    function = kernel.function
    if kernel.with_keyset:
        function = _with_keys(function)
    _served[ticket] = function
    _served[-ticket] = _under(function)
    keys = "keyset" if kernel.with_keyset else ""
    text = "\n".join((_SERVES, kernel.label, kernel.types_text, keys, str(ticket)))
    try:
        fact = facts.register(NOTE, kernel.key, name, text, where)
    except BaseException:
        del _served[ticket], _served[-ticket]
        raise

    def end() -> None:
        facts.strike(fact)
        _served.pop(ticket, None)
        _served.pop(-ticket, None)

    return fact, end


def serve_objects(method: Callable[..., Any], drop: Callable[[int], object]) -> None:
    """Lets other interpreters call methods of objects of this one, and drop these."""
    _served.update({METHOD: method, -METHOD: _under(method), DROP: drop})
    _open()


def _open() -> None:
    global _is_open
    if not _is_open and not alone_because:
        c_kernels.visit_open(_served, describe)
        # Before the registry is left, and before CPython looks for thread states that are left.
        atexit.register(c_kernels.visit_close)
        _is_open = True


def _with_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    def with_keys(raw: int, /, *args: Any, **kwargs: Any) -> Any:
        return function(DispatchKeySet.from_raw(raw), *args, **kwargs)

    return with_keys


def _under(function: Callable[..., Any]) -> Callable[..., Any]:
    def under(included: int, excluded: int, /, *args: Any, **kwargs: Any) -> Any:
        both = map(DispatchKeySet.from_raw, (included, excluded))
        with ForceDispatchKeyGuard(*both):
            return function(*args, **kwargs)

    return under


def describe(error: BaseException) -> list[Any]:
    """An exception as values: the module and name of its class, its text, its arguments, its
    attributes in pairs, and its traceback as text. What is no value becomes its repr.
    """
    from traceback import format_exception

    cls = type(error)
    state = [each for pair in vars(error).items() if pair[0] != "__notes__" for each in pair]
    trace = "".join(format_exception(error)).rstrip()
    args = list(error.args)
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(error.filename)  # Python keeps it elsewhere
    told = [cls.__module__, cls.__qualname__, _text_of(error), args, state, trace]
    return [_as_value(each) for each in told]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return label_of(type(error))


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


def forked() -> None:
    """See Note [Locks across a fork] in facts/forking.py. The offers belong to the parent."""
    global _is_open
    _is_open = False
    _served.clear()

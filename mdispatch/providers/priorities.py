"""Which providers come first: what this interpreter sets, and what its threads ask for.

The main interpreter's settings are registrations, which hold in every member that has set nothing
of its own; a worker that runs the same code compares. See Note [Providers] in
providers/chain.py.
"""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # functools loads much more
from _weakref import ref

from ..errors import InvalidArgumentError
from ..errors.locations import caller, given_location, printable, registrants_location
from ..facts import Handle
from ..facts.native.calls import surely
from ..registry import register
from ..registry.registry import Registry, given_or_default
from ..registry.roles import elects, register_or_verify
from ..registry.verify import DEFAULT_TIMEOUT, verify
from .kind import PRIORITY, differs
from .order import Asked, Guard, checked_names, guards, priorities_of, priority_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.operators import OpOverload, OpOverloadPacket
    from ..facts import Registration
    from ..registry.roles import Wanted

__all__ = ["PriorityHandle", "call_all", "next_provider", "priority", "set_priority"]


class PriorityHandle(Handle):
    """A priority of this interpreter, until ``close()`` or the end of a ``with`` block."""

    __slots__ = ("_asked", "_dispatcher", "_fact", "pattern")

    def __init__(self, dispatcher: Dispatcher, pattern: str) -> None:
        self.pattern = pattern
        self._dispatcher = dispatcher
        self._asked: Asked | None = None
        self._fact: Registration | None = None

    def close(self) -> None:
        """Ends it: the one before for the same pattern returns. Idempotent."""
        surely(self._end)

    def _begin(self, asked: Asked, fact: Registration | None) -> None:
        self._fact, self._asked = fact, asked

        priorities = priorities_of(self._dispatcher.fallbacks)

        def add() -> None:
            priorities.own[self.pattern] = (*priorities.own.get(self.pattern, ()), asked)

        self._dispatcher.fallbacks.reorder(add)

    def _end(self) -> None:
        asked, fact = self._asked, self._fact
        if asked is None:
            return

        priorities = priorities_of(self._dispatcher.fallbacks)

        def drop() -> None:
            before = priorities.own.get(self.pattern, ())
            priorities.own[self.pattern] = tuple(each for each in before if each is not asked)

        self._dispatcher.fallbacks.reorder(drop)
        if fact is not None:
            self._dispatcher.facts.remove(fact)
        self._asked = None  # last: who was interrupted comes again

    def _undo(self) -> None:
        """Ends it, and what was published for it, if that has not come as far as here."""
        self._end()
        for place, seq in self._dispatcher.facts.published:
            self._dispatcher.disown(place, seq)


def set_priority(
    pattern: str,
    names: Sequence[str] = (),
    *,
    disable: str | Sequence[str] = (),
    strict: bool = False,
    required: bool = True,
    registry: Registry | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    where: object = None,
) -> PriorityHandle:
    """Has these providers come first, in this order, in this interpreter. ``disable`` names one or
    several that are not to serve: they count as no kernel, unless a stronger priority names
    them.

    ``pattern`` is an operator ("ns::name", which means all overloads, or "ns::name.overload"), a
    namespace ("ns::*"), or "*"; the nearest counts first. With ``strict`` no other provider serves,
    nor any kernel without a name: a call that none of them takes raises ProviderRefusedError. The
    newest for a pattern is in effect, until its handle is closed.

    What the main interpreter sets is a registration. It holds in workers, after what they set
    themselves, and in a cluster on all hosts. A worker that sets a priority waits until the main
    interpreter has set one for the pattern, and compares, unless that said ``required=False``; its
    own counts while the two are the same. In a team it concerns this interpreter only.

    ``where`` is the function, class or module for which you set it, as for :meth:`Library.define`.

    Raises InvalidArgumentError, RegistryFullError; in a worker PriorityMismatchError.
    """
    _check_pattern(pattern)
    given, disabled = checked_names(names, disable, strict)
    text = priority_text(given, disabled, bool(strict))
    dispatcher = given_or_default(registry).dispatcher
    location = registrants_location() if where is None else given_location(where)
    handle = PriorityHandle(dispatcher, pattern)
    dispatcher.facts.forget_published()
    try:
        fact, is_bound = None, False
        if not elects(dispatcher):
            body = text if required else f"{text}\noptional"
            fact, is_bound = register_or_verify(dispatcher, _wanted, _register, _verify)(
                dispatcher, pattern, body, location, timeout
            )
        by = f"set_priority at {location}"
        handle._begin(Asked(given, disabled, bool(strict), by, is_bound), fact)
    except BaseException:  # perhaps of a signal handler: see Note [Handlers that raise]
        surely(handle._undo)
        raise
    return handle


def _wanted(
    dispatcher: Dispatcher, pattern: str, body: str, where: str, timeout: float | None
) -> Wanted:
    return PRIORITY, 0, pattern, None


def _register(
    dispatcher: Dispatcher, pattern: str, body: str, where: str, timeout: float | None
) -> tuple[Registration | None, bool]:
    return register.publish(dispatcher, PRIORITY, 0, pattern, body, where), False


def _verify(
    dispatcher: Dispatcher, pattern: str, body: str, where: str, timeout: float | None
) -> tuple[Registration | None, bool]:
    optional = ""

    def compare(newest: Registration) -> None:
        nonlocal optional
        text = body.partition("\n")[0]
        there, _, optional = newest.text.partition("\n")
        if there != text and not optional:
            raise differs(dispatcher.facts, newest, text, where)

    verify(dispatcher, PRIORITY, 0, pattern, body, lambda: where, timeout=timeout, accept=compare)
    return None, not optional  # the main interpreter's own ends it


class priority(Handle):
    """While open, has these providers of an operator come first in this thread::

        with mdispatch.priority("shop::norm", ["reference"]):
            ...

    ``op`` is an operator, or what :func:`set_priority` takes as a pattern. A guard within another
    one counts before it. ``disable`` is as there. With ``strict`` no other provider serves, nor
    any kernel without a name. Open it in the thread that calls, and do not await inside. It ends
    with its block or ``close``, and with the last reference to it, as guards of keys do. The first
    guard of an operator has all its tables computed anew; from then on calls of its providers look
    for guards.

    Raises InvalidArgumentError.
    """

    __slots__ = ("__weakref__", "_end")

    def __init__(
        self,
        op: str | OpOverload | OpOverloadPacket,
        names: Sequence[str] = (),
        *,
        disable: str | Sequence[str] = (),
        strict: bool = False,
        registry: Registry | None = None,
    ) -> None:
        given, disabled = checked_names(names, disable, strict)
        if isinstance(op, str):
            _check_pattern(op)
            pattern, dispatcher = op, given_or_default(registry).dispatcher
        else:
            pattern, dispatcher = _of_operator(op)
        priorities = priorities_of(dispatcher.fallbacks)
        if pattern not in priorities.guarded:

            def guard() -> None:
                priorities.guarded |= {pattern}

            dispatcher.fallbacks.reorder(guard)
        frame = caller()  # only its line is kept: the frame would keep what it has
        file, line = (
            (frame.f_code.co_filename, frame.f_lineno) if frame else ("(no Python code)", 0)
        )
        by = partial(_place_of_guard, file, line)
        asked = Asked(given, disabled, bool(strict), by)
        its = Guard(priorities, pattern, asked)
        self._end = guards.ending(its)  # before it begins: see Note [Handlers that raise]
        # In C, where no handler runs before `surely`: one that raised in a __del__ would leave the
        # guard open.
        its.keeper = ref(self, partial(surely, self._end))
        try:
            guards.begin(its)
        except BaseException:
            surely(self._end)
            raise

    def close(self) -> None:
        """Ends it, whatever guards end before. Idempotent."""
        surely(self._end)


def _place_of_guard(file: str, line: int) -> str:
    return f"the guard at {printable(f'{file}:{line}')}"


def call_all(op: str | OpOverload | OpOverloadPacket, *args: Any, **kwargs: Any) -> list[Any]:
    """Calls every provider that would take this call, in their order, and returns their results.

    ``op`` is the operator: with overloads, the one without a name. Those are called that stand at
    the key to which the call leads, are available, are for its types, are not disabled, and whose
    predicates accept; a kernel without a name is none. Arguments and results are treated as in a
    call. An exception of one ends it.

    Raises ArgumentError, ReturnValueError, LocalKernelMissingError (a provider whose module was not
    imported here), OperatorNotFoundError.
    """
    from ..dispatch.call_py import call_all_providers
    from ..dispatch.operators import OpOverloadPacket

    operator = given_or_default(None).ops.find(op) if isinstance(op, str) else op
    if isinstance(operator, OpOverloadPacket):
        operator = operator.default
    return call_all_providers(getattr(operator, "operator", operator), args, kwargs)


def next_provider(op: str | OpOverload, after: str, *args: Any, **kwargs: Any) -> Any:
    """Runs, within a provider's kernel, the provider that comes after it for these arguments.

    ``op`` is the operator, ``after`` the name of the provider that calls; the others come in the
    order of this call, and are asked as they are for every call. After them comes a kernel without
    a name. Arguments and result are treated as in a call.

    Raises InvalidArgumentError where the call does not lead to this provider's key,
    ProviderRefusedError where no other one takes it.
    """
    from ..dispatch.call_py import call_next_provider

    operator = given_or_default(None).ops.find(op) if isinstance(op, str) else op
    return call_next_provider(operator, after, args, kwargs)


def _of_operator(op: Any) -> tuple[str, Dispatcher]:
    from ..dispatch.operators import OpOverload, OpOverloadPacket

    if isinstance(op, OpOverload):
        return op.entry.name, op.dispatcher
    if isinstance(op, OpOverloadPacket):
        return op.__name__, getattr(op, op.overloads()[0]).dispatcher
    from ..errors.words import shown

    raise InvalidArgumentError(f"a priority is for an operator or its name, not {shown(op)}")


def _check_pattern(pattern: object) -> None:
    from ..errors.words import shown

    if isinstance(pattern, str):
        namespace, colons, name = pattern.partition("::")
        if pattern == "*" or (
            namespace.isidentifier() and colons and (name == "*" or _is_op(name))
        ):
            return
    raise InvalidArgumentError(
        "a priority is for an operator ('ns::name', 'ns::name.overload'), a namespace ('ns::*') or "
        f"for all ('*'), not for {shown(pattern)}"
    )


def _is_op(name: str) -> bool:
    return all(part.isidentifier() for part in name.split(".", 1))

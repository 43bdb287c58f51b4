"""Providers: several named kernels at one key of one operator, in an order that users can change.

Note [Providers]
~~~~~~~~~~~~~~~~
A kernel with the name of a provider takes no other kernel's place: the providers of a key stand
beside each other, in this order.

1. The names that this thread asks for (``priority``), the innermost guard first.
2. Those that the environment asks for (MDISPATCH_PRIORITY).
3. Those that this interpreter has set (``set_priority``).
4. Those that the main interpreter has set, which is a registration.
5. All others: the higher ``order`` first, of the same ``order`` the newest.

A provider that is not available here is left out: it counts as no kernel. Of the others the first
one runs that accepts the call. It accepts if its types fit (Note [Kernels by type]) and if its
predicate, where it has one, says so; a predicate that raises has refused. After all providers come
the kernels of the key without a name. Where one of the levels 1 to 4 is strict, only the names that
it and the levels above ask for may serve, and nothing comes after them. A provider that one of them
disables, and none above asks for, counts as no kernel, either.

All of it is decided when a table is computed, as far as it can be. If the first provider has no
predicate, it stands in the table by itself, and a call does not know of the others. If types
decide, the table of the types has the answer (``ByType``, which calls in C keep). What is left for
the call is a Chain: where predicates are asked, and where a thread has opened a guard for the
operator. Calls in C do what its function does by themselves (``in_c``). Priorities that change have
each table computed anew.

Types belong to the table, and predicates do not: if every predicate refuses, the call does not go
on as if the key had no kernel. It raises ProviderRefusedError, with the reason of each. A guard
does not belong to the table, either: where no provider can run here or all are disabled, and the
key has no kernel without a name, the key has no kernel, whatever a guard asks for. Where one of the
levels 2 to 4 is strict there, a Chain refuses the calls of the key, so that they do not go on to a
kernel that was not asked for. Still the key has no kernel (``is_for_none``): no wait for one ends.
"""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # functools loads much more

from ..dispatch.by_type import ByType, Tie, _fit
from ..dispatch.context.observers import FELL_BACK, observe, observing
from ..dispatch.kernels import LocalKernel, OneOfSeveral, Provider
from ..dispatch.table import TableEntry
from ..errors import InvalidArgumentError, ProviderRefusedError
from ..errors.locations import label_of, printable, process_at
from ..facts.native.calls import Steps
from .later import Later, LaterProvider, lack, provider_here
from .order import (
    LONGEST_NAME,
    Asked,
    Guard,
    Priorities,
    asked_for,
    guards,
    is_name,
    number_of,
    patterns_of,
    priorities_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..dispatch.by_type import Given
    from ..dispatch.entry import OperatorEntry
    from ..dispatch.fallbacks import Fallbacks
    from ..facts.abc import Facts
    from ..keys.numbers import DispatchKey
    from ..registry import Registry


_KEPT = 64  # combinations of guards


# --- what a user gives ----------------------------------------------------------------------------


def checked_provider(
    name: object, order: object, supports: object, available: object, required: object
) -> Provider | None:
    """What a user gave as a provider; None where that is no provider. ``available`` is asked here.

    InvalidArgumentError for what cannot be one.
    """
    if name is None:
        if order != 0 or supports is not None or available is not None or required is not True:
            raise InvalidArgumentError(
                "order, supports, available and required say something of a provider: name it "
                "(provider=)"
            )
        return None
    if not is_name(name):
        raise _refused_argument(
            "a provider's name is made of letters, digits, '_', '.' and '-', at most "
            f"{LONGEST_NAME} of them",
            name,
        )
    if type(order) is not int or not -(10**9) <= order <= 10**9:
        raise _refused_argument(
            "order is an int of at most nine digits, and the highest comes first", order
        )
    if supports is not None and not callable(supports):
        raise _refused_argument(
            "supports is a function of the arguments, which says whether the provider takes them",
            supports,
        )
    if available is not None and type(available) is not bool and not callable(available):
        raise _refused_argument(
            "available is True, False, or a function that is asked once", available
        )
    if type(required) is not bool:
        raise _refused_argument("required is True or False", required)
    return Provider(str(name), order, supports, lack(available), required)


def _refused_argument(wanted: str, given: object) -> InvalidArgumentError:
    from ..errors.words import shown

    return InvalidArgumentError(f"{wanted}; {shown(given)} is not")


def by_name(
    function: str,
    registry: Registry,
    name: object,
    order: object,
    supports: object,
    available: object,
    required: object,
) -> LaterProvider:
    """The provider for a function that a user gave by its name. InvalidArgumentError."""
    asks = available if callable(available) else None
    given = checked_provider(name, order, supports, None if asks else available, required)
    assert given is not None
    return LaterProvider(given, asks, Later(function, registry))


# --- the order ------------------------------------------------------------------------------------


def ordered(kernels: Sequence[Any], asked: Iterable[Asked]) -> tuple[tuple[Any, ...], Asked | None]:
    """The providers in their order, and the strict level that leaves others out; None without one.

    ``kernels`` are as :func:`by_order` has them.
    """
    named = {kernel.provider.name: kernel for kernel in kernels}
    order: dict[str, Any] = {}
    off: set[str] = set()
    for level in asked:
        for name in level.names:
            if name in named and name not in off:
                order.setdefault(name, named[name])
        if level.strict:
            return tuple(order.values()), level
        off.update(level.disabled)
    rest = {n: k for n, k in named.items() if n not in order and n not in off}
    return tuple({**order, **rest}.values()), None


def disabled(kernels: Sequence[Any], asked: Sequence[Asked]) -> dict[str, str]:
    """The providers that a priority disables, by name, each with the place of this priority."""
    if not any(level.disabled for level in asked):
        return {}
    named = {kernel.provider.name for kernel in kernels}
    order: set[str] = set()
    off: dict[str, str] = {}
    for level in asked:
        order |= named.intersection(level.names) - off.keys()
        for name in level.disabled:
            if name in named and name not in order:
                off.setdefault(name, level.by)
    return off


def by_order(kernels: Sequence[Any]) -> tuple[Any, ...]:
    """The highest ``order`` first, of the same ``order`` the newest. ``kernels`` are oldest
    first.
    """
    return tuple(sorted(kernels, key=lambda kernel: kernel.provider.order)[::-1])


class Chooser:
    """The Chooser of dispatch/abc.py for an operator, by the priorities of this moment: those of
    the main interpreter, which are in ``facts``, and those of this interpreter, which are in
    ``fallbacks``. ``with_guards`` adds those of this thread. From ``entry`` it knows which of the
    kernels that are only registrations have come meanwhile.
    """

    __slots__ = ("_asked", "_entry", "_operator", "_priorities")

    def __init__(
        self,
        facts: Facts | None,
        operator: str,
        fallbacks: Fallbacks | None = None,
        with_guards: bool = False,
        entry: OperatorEntry | None = None,
    ) -> None:
        self._entry = entry
        priorities = None if fallbacks is None else priorities_of(fallbacks)
        self._operator = operator
        self._asked = [] if facts is None else asked_for(facts, operator, priorities)
        if with_guards and priorities is not None:
            self._asked = [*priorities.of_guards(operator, guards.open), *self._asked]
            priorities = None  # its table is for this thread now
        self._priorities = priorities

    def at_key(self, kernels: Sequence[Any]) -> Any:
        self._bring_up_to_date(kernels)
        return at_key(self._operator, kernels, self._asked, self._priorities)

    def _bring_up_to_date(self, kernels: Sequence[Any]) -> None:
        """Has the providers that come later meet their kernels of this interpreter, and gives
        those that are only registrations the state of these.
        """
        for kernel in kernels:
            if isinstance(kernel.provider, LaterProvider):
                kernel.provider.meets(kernel)
            elif kernel.provider is not None and kernel.provider.is_later and self._entry:
                kernel.provider = provider_here(self._entry, kernel) or kernel.provider

    def verdicts(self, kernels: Sequence[Any], given: Given | None) -> list[tuple[str, str]]:
        self._bring_up_to_date(kernels)
        return verdicts(by_order(kernels), self._asked, given)

    def after(
        self, kernel: Any, name: str, at: Callable[[DispatchKey], Sequence[Any]], given: Given
    ) -> Chain:
        """InvalidArgumentError where no provider of this name is at the key of the kernel."""
        key = getattr(kernel, "key", None)
        there = () if key is None else at(key)
        return _after(self._operator, there, name, self._levels(), given)

    def every(
        self, kernel: Any, at: Callable[[DispatchKey], Sequence[Any]], given: Given
    ) -> list[tuple[Callable[..., Any], Any]]:
        key = getattr(kernel, "key", None)
        there = () if key is None else at(key)
        order, _ = ordered(_fitting(there, given), self._levels())
        for each in order:
            if not isinstance(each, LocalKernel):
                raise _not_here(self._operator, each)
        return [(partial(_takes_call, each.provider), each) for each in order]

    def _levels(self) -> list[Asked]:
        """Each that asks for something, in this thread."""
        if self._priorities is None:
            return self._asked
        return [*self._priorities.of_guards(self._operator, guards.open), *self._asked]


def at_key(
    operator: str, kernels: Sequence[Any], asked: Sequence[Asked], priorities: Priorities | None
) -> Any:
    """What stands in a table at a key with these kernels, of which some have providers. They come
    oldest first; None if none can run.
    """
    unnamed = [kernel for kernel in kernels if kernel.provider is None]
    rest = unnamed[0] if unnamed else None
    if any(kernel.types for kernel in unnamed):
        rest = ByType(tuple(unnamed))
    providers = by_order([k for k in kernels if k.provider is not None and may_run(k)])
    if isinstance(rest, ByType) or any(kernel.types for kernel in providers):
        return Several(operator, providers, rest, asked, priorities)
    return in_table(operator, providers, rest, asked, priorities)


def may_run(kernel: Any) -> bool:
    """Whether a provider counts here: it is available. What the main interpreter has, and says that
    others may lack, counts where it was registered.
    """
    provider = kernel.provider
    is_here = isinstance(kernel, LocalKernel)
    return not provider.lacks and (is_here or provider.required)


class Several(ByType):
    """Stands in a table at a key whose providers, or the kernels without a name after them, are for
    types. ``providers`` are those that are available, as :func:`by_order` has them; ``rest`` comes
    after them.
    """

    __slots__ = ("_asked", "_operator", "_priorities", "providers", "rest")

    def __init__(
        self,
        operator: str,
        providers: tuple[Any, ...],
        rest: Any,
        asked: Sequence[Asked],
        priorities: Priorities | None,
    ) -> None:
        others = rest.kernels if isinstance(rest, ByType) else () if rest is None else (rest,)
        super().__init__((*providers, *others))
        self.providers = providers
        self.rest = rest
        self._operator = operator
        self._asked = asked
        self._priorities = priorities

    @property
    def plain(self) -> Any:
        return self.chosen(())

    def chosen(self, given: Given) -> Any:
        fitting = [k for k in self.providers if _takes(k, given)]
        rest = self.rest.chosen(given) if isinstance(self.rest, ByType) else self.rest
        choice = (*fitting, rest)
        made = self._made.get(choice)
        if made is None:
            made = in_table(self._operator, fitting, rest, self._asked, self._priorities)
            made = self._made.setdefault(choice, made)
        return made

    def is_decided_by(self, given: Given) -> bool:
        return not isinstance(self.rest, ByType) or self.rest.is_decided_by(given)


def in_table(
    operator: str,
    providers: Sequence[Any],
    rest: Any,
    asked: Sequence[Asked],
    priorities: Priorities | None,
) -> Any:
    """What stands in a table for these providers, which are available and whose types fit: a
    kernel, a Chain, or None. The providers are as :func:`by_order` has them.
    """
    order, strict = ordered(providers, asked)
    if strict is None and not order and rest is None:
        return None
    if priorities is not None and priorities.guarded.intersection(patterns_of(operator)):
        guarded = _Guarded(operator, providers, rest, asked, priorities)
        return Chain(operator, providers, order, rest, strict, {}, guarded=guarded)
    if order and not order[0].provider.supports:
        return order[0]
    if not order and strict is None:
        return rest
    return Chain(operator, providers, order, rest, strict, disabled(providers, asked))


# --- what is left for the call --------------------------------------------------------------------


class Chain(OneOfSeveral):
    """Stands in a table as a kernel: it asks one provider after the other.

    ``order`` are the providers without guards, ``rest`` comes after them. ``off`` has the reasons
    for which others are disabled. ``is_first``: it stands in a table, and not after a provider.
    """

    __slots__ = ("_guarded", "_plan", "is_for_none", "order", "rest", "strict")

    def __init__(
        self,
        operator: str,
        providers: Sequence[Any],
        order: tuple[Any, ...],
        rest: Any,
        strict: Asked | None,
        off: Mapping[str, str],
        is_first: bool = True,
        guarded: _Guarded | None = None,
    ) -> None:
        some = [*providers, *(() if rest is None else (rest,))]
        here = [each for each in some if isinstance(each, LocalKernel)]
        is_later = is_first and any(isinstance(each.provider, LaterProvider) for each in here)
        with_keyset = is_later or any(each.with_keyset for each in here)
        key = here[0].key if here else None
        left_out = strict is not None or (rest is not None and rest.is_fallthrough)
        self.is_for_none = not some
        self.order = order
        self.rest = None if left_out else rest
        self.strict = strict
        steps = _steps(order, self.rest)
        self._plan = _Plan(operator, with_keyset, steps, strict, off, is_later)
        self._guarded = guarded
        function = self._plan.run if guarded is None else guarded.run
        super().__init__(key, function, with_keyset)  # type: ignore[arg-type]

    @property
    def in_c(self) -> Callable[..., Any]:
        steps = self._plan.steps
        if not all(type(kernel) is LocalKernel for _, kernel in steps):
            return self.function
        return Steps(
            tuple([(asks, kernel.function, kernel.with_keyset) for asks, kernel in steps]),
            self.with_keyset,
            self.function,
            self._plan.refuse,
            None if self._guarded is None else self._guarded.find_in_c,
        )

    @property
    def kernels(self) -> tuple[Any, ...]:
        """All that it may run, in its order."""
        return self.order if self.rest is None else (*self.order, self.rest)

    @property
    def only(self) -> tuple[str, ...] | None:
        return None if self.strict is None else self.strict.names

    @property
    def label(self) -> str:
        names = [kernel.provider.name for kernel in self.order]
        if self.rest is not None:
            names.append(self.rest.label)
        return ", or ".join(names) or "no provider"


def _steps(order: Sequence[Any], rest: Any) -> tuple[tuple[Any, Any], ...]:
    """The kernels up to the first one that takes every call, each with its predicate."""
    steps = []
    for kernel in order:
        steps.append((kernel.provider.supports, kernel))
        if kernel.provider.supports is None:
            return tuple(steps)
    if rest is not None:
        steps.append((None, rest))
    return tuple(steps)


class _Guarded:
    """A Chain where a thread may have a guard open: it works out what the guards lead to."""

    __slots__ = ("_asked", "_known", "_operator", "_priorities", "_providers", "_rest")

    def __init__(
        self,
        operator: str,
        providers: Sequence[Any],
        rest: Any,
        asked: Sequence[Asked],
        priorities: Priorities,
    ) -> None:
        self._operator = operator
        self._providers = providers
        self._rest = rest
        self._asked = asked
        self._priorities = priorities
        # By the texts of the guards: each is worked out once. Two threads come to the same.
        self._known: dict[str, Chain] = {}

    def find(self, opened: Sequence[Guard]) -> Chain:
        """What these guards lead to."""
        levels = self._priorities.of_guards(self._operator, opened)
        wanted = ";".join([level.text for level in levels])
        found = self._known.get(wanted)
        if found is None:
            here = [*levels, *self._asked]
            order, strict = ordered(self._providers, here)
            if strict in levels:
                assert strict is not None
                by = partial(self._strict_guard, strict.text)
                strict = Asked(strict.names, strict.disabled, strict.strict, by)
            off = disabled(self._providers, here)
            off.update(dict.fromkeys(disabled(self._providers, levels), "a guard of this thread"))
            found = Chain(self._operator, self._providers, order, self._rest, strict, off)
            if len(self._known) < _KEPT:
                self._known[wanted] = found
        return found

    def _strict_guard(self, text: str) -> str:
        """The guard of this thread that has this text, in words: what is kept serves each."""
        for level in self._priorities.of_guards(self._operator, guards.open):
            if level.text == text:
                return level.by
        return "a guard that has ended meanwhile"

    def find_in_c(self) -> tuple[int, Callable[..., Any]]:
        """The number of the guards that this thread has open, and what calls in C call there."""
        opened = tuple(guards.open)
        return number_of(opened), self.find(opened).in_c

    def run(self, *args: Any, **keywords: Any) -> Any:
        return self.find(guards.open).function(*args, **keywords)


def _accepts(supports: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Why a predicate refuses, in words; "" if it accepts."""
    if supports is None:
        return ""
    try:
        if supports(*args, **keywords):
            return ""
    except Exception as error:
        return printable(f"{label_of(supports)} raised {type(error).__name__}: {error}")
    return f"{label_of(supports)} said no"


class _Plan:
    """The steps of a Chain without guards. Calls in C do the same (Steps), where there are no
    observers.
    """

    __slots__ = ("_is_later", "_off", "_operator", "_strict", "_with_keyset", "steps")

    def __init__(
        self,
        operator: str,
        with_keyset: bool,
        steps: Sequence[tuple[Any, Any]],
        strict: Asked | None,
        off: Mapping[str, str],
        is_later: bool,
    ) -> None:
        self._operator = operator
        self._with_keyset = with_keyset
        self.steps = steps
        self._strict = strict
        self._off = off
        self._is_later = is_later

    def run(self, /, *args: Any, **keywords: Any) -> Any:
        """The function of the Chain."""
        with_keyset, steps, operator = self._with_keyset, self.steps, self._operator
        given = args[1:] if with_keyset else args
        observers = observing.now
        for supports, kernel in steps:
            if _accepts(supports, given, keywords):
                continue
            if not isinstance(kernel, LocalKernel):
                raise _not_here(operator, kernel)
            positional = args if kernel.with_keyset else given
            if not observers:
                return kernel.function(*positional, **keywords)
            run = partial(kernel.function, *positional, **keywords)
            raw = args[0].raw if with_keyset else kernel.key.raw
            slot = TableEntry(kernel, "provider" if kernel is steps[0][1] else FELL_BACK)
            return observe(observers, operator, "provider", raw, slot, given, keywords, run)
        return self.refuse(*args, **keywords)

    def refuse(self, /, *args: Any, **keywords: Any) -> Any:
        """Ends a call that all have refused. If that has settled which of them are available, the
        call is made again: there is another table now.
        """
        if self._is_later:
            for _, kernel in self.steps:
                if isinstance(kernel.provider, LaterProvider) and kernel.provider.lacks:
                    operator = kernel.provider.operator(self._operator)
                    raw = operator.entry.current_table().effective(args[0].raw)
                    return operator.redispatch(type(args[0]).from_raw(raw), *args[1:], **keywords)
        given = args[1:] if self._with_keyset else args
        raise _refused(self._operator, self.steps, self._strict, self._off, given, keywords)


def _not_here(operator: str, kernel: Any) -> Exception:
    from ..errors import LocalKernelMissingError

    if isinstance(kernel, Tie):
        from ..errors import AmbiguousTypesError

        return AmbiguousTypesError(
            f"no provider of {operator} takes these arguments, and several kernels without a name "
            f"do, of which none is the most specific: {kernel.label}\nRegister one for just these "
            "types.",
            operator,
        )
    if kernel.outdated is not None:
        entry = kernel.outdated.entry  # None for one in C, which only a warm-up tells of
        error: Exception = kernel.outdated_error(None if entry is None else entry.facts, operator)
        return error
    fact = kernel.fact
    return LocalKernelMissingError(
        f"{operator} would run the kernel {fact.kernel}, but this interpreter has not imported the "
        f"module that registers it\n  registered at {fact.where} by "
        f"{process_at(fact.where, fact.pid)}\n"
        "Import that module here too.",
        operator,
        "",
        (),
        where=fact.where,
        module="",
    )


def _refused(
    operator: str,
    steps: Sequence[tuple[Any, Any]],
    strict: Asked | None,
    off: Mapping[str, str],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> ProviderRefusedError:
    """The error of a call that no provider takes. Predicates are asked again, for their reasons."""
    reasons = {
        kernel.provider.name: _reason(kernel.provider, supports, args, keywords)
        for supports, kernel in steps
    }
    reasons.update({name: f"disabled by {by}" for name, by in off.items()})
    if strict is not None:
        for name in strict.names:
            reasons.setdefault(name, "is not there, not available, or not for these types")
    listed = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    end = "Register a provider without a predicate, or a kernel without a name: it comes last."
    only = ""
    if strict is not None:
        only = f", and no other one may ({strict.by} is strict)"
        end = "Ask for others too, or leave out that it is strict."
    return ProviderRefusedError(
        f"no provider of {operator} takes this call{only}{listed}\n{end}",
        operator,
        reasons=reasons,
    )


def _reason(
    provider: Provider, supports: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> str:
    if provider.lacks:
        return f"not available ({provider.lacks})"
    return _accepts(supports, args, keywords) or "accepts it now"


def _after(
    operator: str, at: Sequence[Any], after: str, levels: Sequence[Asked], given: Given
) -> Chain:
    """What runs after a provider, of the kernels at its key."""
    order, strict = ordered(_fitting(at, given), levels)
    names = [each.provider.name for each in order]
    if after not in names:
        raise InvalidArgumentError(
            f"{operator} has no provider {after!r} for these arguments that others could come "
            f"after: {', '.join(names) or 'none'}\nCall next_provider in a provider's kernel, with "
            "arguments that lead to its key, and with its own name."
        )
    unnamed = [k for k in at if k.provider is None]
    rest: Any = None
    if strict is None and unnamed:
        rest = ByType(tuple(unnamed)).chosen(given) if any(k.types for k in unnamed) else unnamed[0]
    left = order[names.index(after) + 1 :]
    return Chain(operator, left, left, rest, strict, {}, is_first=False)


def _fitting(at: Sequence[Any], given: Given) -> tuple[Any, ...]:
    """The providers of a key that may run for these classes."""
    return by_order([k for k in at if k.provider and may_run(k) and _takes(k, given)])


def _takes_call(provider: Provider, *args: Any, **keywords: Any) -> bool:
    return not _accepts(provider.supports, args, keywords)


def _takes(kernel: Any, given: Given) -> bool:
    return not kernel.types or _fit(kernel.types, given) is not None


# --- for people -----------------------------------------------------------------------------------


def verdicts(
    kernels: Sequence[Any], asked: Sequence[Asked], given: Given | None
) -> list[tuple[str, str]]:
    """Each provider of a key with what becomes of it, in words, in their order. ``kernels`` are all
    of them, as :func:`by_order` has them; ``given`` the classes of a call's tensors, if they are
    known.
    """
    order, strict = ordered(kernels, asked)
    found: list[tuple[str, str]] = []
    taken = False
    for kernel in order:
        provider = kernel.provider
        if provider.lacks:
            word = f"skipped: not available ({provider.lacks})"
        elif given is not None and kernel.types and _fit(kernel.types, given) is None:
            word = "skipped: it is for other types"
        elif taken:
            word = "not asked: one before it takes every call"
        elif provider.is_later:
            word = "imported when a call comes to it"
        elif provider.supports is not None:
            word = "asked: its predicate decides for each call"
        elif kernel.types and given is None:
            word = "accepted where its types fit"
        else:
            word, taken = "accepted", True
        by = next((level.by for level in asked if provider.name in level.names), "")
        place = f"asked for by {by}" if by else f"order {provider.order}"
        found.append((provider.name, f"{word}; {place}"))
    off = disabled(kernels, asked)
    for kernel in kernels:
        name = kernel.provider.name
        if kernel not in order and name in off:
            found.append((name, f"skipped: disabled by {off[name]}"))
        elif kernel not in order and strict is not None:
            found.append((name, f"skipped: {strict.by} is strict"))
    return found

"""The steps of a member that observes and differs: it warns, sets the name apart, and registers
for itself. See Note [Names apart] in __init__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors, facts
from ..facts.logs import registry_log, verify_log
from ..registry.verify import GoesOn, keep
from .apart import Warned, set_apart
from .registry import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.differing import What
    from ..registry import Registry

__all__ = ["goes_on_alone", "goes_on", "joined", "registered_by_all"]
__all__ += ["raises_in_roll_calls", "registered_or_verified", "warmed_up"]


def joined(registry: Registry) -> None:
    """After this interpreter has joined a registry: warns where it is not the one that the
    environment names.
    """
    observer = registry.dispatcher.facts
    if isinstance(observer, Observer) and observer.aside:
        registry_log.warn(
            "not joined, and goes on with a registry of this process and its children: %s",
            observer.aside,
        )
        observer.aside = ""


def registered_or_verified(
    wanted: Callable[..., tuple[int, int, str, object]],
    register: Callable[..., Any],
    verify: Callable[..., Any],
) -> Callable[..., Any]:
    """The function to call for a registration: as ``verify``, but under a name apart, and where the
    two differ, as ``register``.
    """

    def choose(dispatcher: Dispatcher, *args: Any) -> Any:
        observer = dispatcher.facts
        assert isinstance(observer, Observer)
        if observer.apart:
            name = wanted(dispatcher, *args)[2]
            observer.bring_together(name)  # its first registration may have been refused
            if observer.is_apart(name):
                return register(dispatcher, *args)
        try:
            return verify(dispatcher, *args)
        except GoesOn:
            return register(dispatcher, *args)

    return choose


def goes_on(dispatcher: Dispatcher, what: What, error: errors.VerificationError, text: str) -> bool:
    """Whether this interpreter goes on after a difference was found, with a registration of its
    own of this ``text``. Then its name is apart.
    """
    kind, _, name, _ = what
    observer = dispatcher.facts
    assert isinstance(observer, Observer)
    if observer.matches:
        from .matching import Variants, is_compatible

        if is_compatible(dispatcher, what, error, text):
            dispatcher.of(Variants)
            set_apart(dispatcher, name)
            return True
    if not observer.observes:
        return False
    keep(dispatcher, what, error)
    if not facts.kind_of(kind).by_any:
        set_apart(dispatcher, name)
    _warn(dispatcher, error, name)
    return True


def warmed_up(dispatcher: Dispatcher, differences: Iterable[errors.MdispatchError]) -> None:
    """After a warm-up has found differences: each is warned of once, and the names of those that
    this interpreter has something under are set apart.
    """
    for error in differences:
        name = getattr(error, "name", "") or getattr(error, "operator", "")
        entry = dispatcher.entries.get(name)
        is_here = dispatcher.listeners.is_defined(name)
        if is_here or (entry is not None and entry.callables):
            set_apart(dispatcher, name)
        _warn(dispatcher, error, name)


def registered_by_all(dispatcher: Dispatcher) -> list[Registration]:
    """The registrations of the registry, also under names apart."""
    assert isinstance(dispatcher.facts, Observer)
    return dispatcher.facts.registered_by_all()


def goes_on_alone(dispatcher: Dispatcher, what: What, error: errors.MdispatchError) -> None:
    """After a difference that concerns this call alone: keeps it, and warns of it."""
    keep(dispatcher, what, error, is_refused=False)
    _warn(dispatcher, error, what[2])


def raises_in_roll_calls(observer: Facts) -> bool:
    """Whether a roll call is to raise in a member that observes."""
    return isinstance(observer, Observer) and observer.raises_in_roll_calls


def _warn(dispatcher: Dispatcher, error: errors.MdispatchError, name: str) -> None:
    """Call it without a lock: handlers of log records are other people's code."""
    text, known = str(error), dispatcher.of(Warned).names
    if text in known:
        return
    known[text] = name
    verify_log.warn("differs from %s, and goes on with its own: %s", dispatcher.facts.label, text)

"""Setting a name apart: the registrations that this interpreter had verified under the name become
registrations of its own, until the last of them ends. See Note [Names apart] in __init__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import facts
from ..dispatch.kernels import FALLBACK_NAME
from ..dispatch.plugs import Plug
from ..errors.locations import Location, location_of_object
from ..facts.native.calls import surely
from ..facts.shared import SharedRegistry
from ..registry.verify import mended
from .registry import OWN, Observer, base_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.kernels import LocalKernel
    from ..facts import Registration

__all__ = ["Warned", "set_apart"]


class Warned(Plug):
    """The differences of which the log has a warning: the texts, and the name of each."""

    __slots__ = ("names",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.names: dict[str, str] = {}

    def forked(self, is_heir: bool) -> None:
        self.names = dict(self.names)  # another thread may have been at it


def set_apart(dispatcher: Dispatcher, name: str) -> None:
    """Has the name and its overloads apart from now on, with all that this interpreter had verified
    under them.
    """
    observer = dispatcher.facts
    assert isinstance(observer, Observer)
    if observer.is_apart(name):
        return
    observer.end_stand_in = lambda fact: _end_stand_in(dispatcher, fact)
    observer.when_together = lambda base: _bring_together(dispatcher, base)
    with dispatcher.definitions_lock:
        if observer.is_apart(name):  # another thread was first
            return
        # See Note [Handlers that raise] in native/bind/call/surely.c.
        surely(_move, dispatcher, observer, base_of(name))
        # Handles have all that was moved: an interrupt ends only what comes after it.
        observer.forget_published()


def _move(dispatcher: Dispatcher, observer: Observer, base: str) -> None:
    """Moves what was verified under a name and its overloads into the registry of its own. It bears
    to be called again after it was interrupted anywhere.
    """
    observer.apart.setdefault(base, {})
    defined = sorted(dispatcher.listeners.definitions(), key=lambda fact: fact.seq)
    names = [base, *(fact.name for fact in defined), *list(dispatcher.entries)]
    held = {fact.seq for fact in observer.stand_ins.values()}
    for name in dict.fromkeys(name for name in names if base_of(name) == base):
        _move_one(dispatcher, observer, name, held)
    observer.touch()


def _move_one(
    dispatcher: Dispatcher, observer: Observer, name: str, stand_ins: Collection[int]
) -> None:
    entry = dispatcher.entries.get(name)
    kernels = () if entry is None else entry.callables
    if name == FALLBACK_NAME:
        kernels = tuple(k for its in dispatcher.fallbacks.kernels.values() for k in its)
    held = {abs(kernel.seq) for kernel in kernels}.union(stand_ins)
    for fact in observer.own.registrations(name)[2]:
        if fact.seq not in held:
            observer.end_own(fact)  # made by a call that was interrupted
    if entry is None:
        _copy(dispatcher, observer, name)
        for kernel in kernels:
            _keep(observer, facts.FALLBACK, FALLBACK_NAME, kernel, None)
        if name == FALLBACK_NAME:
            dispatcher.fallbacks.reorder(int)  # every table is computed anew
    else:
        with entry.lock:
            definition = _copy(dispatcher, observer, name)
            for kernel in kernels:
                _keep(observer, facts.IMPL, name, kernel, definition)
            _keep_labels(observer, name, entry.labels)
            entry.facts = observer.for_entry(name)
            entry.recompute()


def _copy(dispatcher: Dispatcher, observer: Observer, name: str) -> Registration | None:
    """Registers for itself the definition and the module that were verified under a name. Returns
    the definition.
    """
    for fact in SharedRegistry.registrations(observer, name)[2]:
        if fact.kind == facts.PYSTUB and dispatcher.times_verified(fact.kind, 0, name):
            _stand_in(observer, fact, fact.text)
    before = dispatcher.listeners.definition(name)
    if before is None or before.seq >= OWN:
        return before
    text = facts.def_text(before.body, before.body, before.attributes, before.generation)
    mine = _stand_in(observer, before, text)
    dispatcher.listeners.stands_in(mine)
    return mine


def _stand_in(observer: Observer, fact: Registration, text: str) -> Registration:
    """The registration of its own that ends with one that was verified."""
    mine = observer.stand_ins.get(fact.seq)
    if mine is None:
        mine = observer.register(fact.kind, fact.key, fact.name, text, fact.where)
        observer.stand_ins[fact.seq] = mine
    return mine


def _keep(
    observer: Observer, kind: int, name: str, kernel: LocalKernel, definition: Registration | None
) -> None:
    """Registers for itself a kernel that was verified, or registered for all."""
    if abs(kernel.seq) >= OWN:
        return
    before, text = kernel.registration, kernel.label
    if before is not None:
        SharedRegistry.remove(observer, before)
    if kind == facts.IMPL:
        provider = "" if kernel.provider is None else kernel.provider.text
        text = facts.impl_text(kernel.label, kernel.signature, kernel.types_text, provider)
    where = before.where if before is not None else _where(kernel)
    made = observer.register(kind, kernel.key, name, text, where)
    kernel.definition = definition
    if kind == facts.IMPL:
        kernel.registration = made
    else:  # its handle ends the registration that was verified
        there = SharedRegistry.find(observer, kind, kernel.key, name)
        if there is not None:
            observer.stand_ins[there.seq] = made
    kernel.seq = made.seq


def _keep_labels(observer: Observer, name: str, labels: Iterable[tuple[int, str]]) -> None:
    """Registers for itself the kernels that are made by their labels: those in C, and methods."""
    there = SharedRegistry.registrations(observer, name)[2]
    for key, label in labels:
        same = [f for f in there if (f.kind, f.key, f.body) == (facts.IMPL, key, label)]
        for fact in same[-1:]:
            _stand_in(observer, fact, label)


def _where(kernel: LocalKernel) -> str:
    return location_of_object(kernel.function) or Location("(no Python code)", "")


def _end_stand_in(dispatcher: Dispatcher, fact: Registration) -> None:
    if fact.kind == facts.DEF:
        dispatcher.end(fact)
    else:
        dispatcher.facts.remove(fact)


def _bring_together(dispatcher: Dispatcher, base: str) -> None:
    """After the last registration under a name apart and its overloads: the registry counts again,
    and nothing of them differs any more.
    """
    for name, entry in list(dispatcher.entries.items()):
        if base_of(name) == base:
            with entry.lock:
                entry.facts = dispatcher.facts.for_entry(name)
                entry.recompute()
    known = dispatcher.of(Warned).names
    for text in [text for text, of in list(known.items()) if base_of(of) == base]:
        known.pop(text, None)  # the next one is new
    differing = dispatcher.facts.differing
    for what, _ in differing.with_what() if differing is not None else ():
        if base_of(what[2]) == base:
            mended(dispatcher, what)

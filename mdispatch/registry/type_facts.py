"""Types as registrations: each member writes the keys of its types into the registries that it
uses, and whoever comes second with other keys is told.

A registry is in use here once this interpreter has opened a library in it. Then it has a
registration for each registered class that its module has under its name, and follows every change.
So a class that has no name yet, since a decorator registers it, gets its registration when the next
library is opened, or by a warm-up. A registration ends with the registration, with the class, or
with its member.

Members compare with the oldest registration of another living member, not with that of the main
one: a type may be registered where the main interpreter never imports it. On another host than the
leader's, the bridge has what the leader has registered, also for workers of any host
(cluster/leading.py). That is the first, whenever it came.

Locking: a change of types, and :func:`keep_up` once there are types, run under the lock of the
types (dispatch/context/values.py), which is taken before those of a registry. What ends with a
class runs at any point of any thread, so it takes no lock but the registry's, and removals only the
registration of that class.
"""

from __future__ import annotations

import atexit
import os
import sys
from _weakref import ref

from ..dispatch.own_types import own_types
from ..dispatch.plugs import Plug
from ..errors import MdispatchError, TypeKeysMismatchError
from ..errors.locations import printable
from ..facts import AS_BRIDGE, TYPE, interpreter_id
from ..facts.native import unlock
from ..forking import in_child
from .verify import keep, mended, tell, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import TypeAlias

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.own_types import Handle
    from ..facts import Registration

    #: What a registry had under a name before it was changed.
    Change: TypeAlias = tuple[Dispatcher, str, "WrittenType | None"]


class WrittenType:
    """A type of this interpreter in one registry. ``fact`` is None where the registry takes none:
    where it is full, or gone.
    """

    __slots__ = ("cls", "fact", "keys", "where")

    def __init__(self, dispatcher: Dispatcher, cls: type, keys: str, where: str) -> None:
        self.cls = ref(cls, lambda _: self.remove(dispatcher))
        self.keys = keys
        self.where = where
        self.fact: Registration | None = None

    def register(self, dispatcher: Dispatcher, name: str) -> None:
        registry = dispatcher.facts
        try:
            for fact in _of_workers(dispatcher, name):
                registry.remove(fact)
            self.fact = registry.register(TYPE, 0, name, self.keys, self.where)
        except MdispatchError:
            self.fact = None

    def remove(self, dispatcher: Dispatcher) -> None:
        fact, self.fact = self.fact, None
        if fact is not None:
            try:
                dispatcher.facts.remove(fact)
            except MdispatchError:
                return  # the registry is gone, and the registration with it


class Types(Plug):
    """The types of this interpreter that one registry has: ``written``, by name, and as of which
    change of the types, ``seen``.
    """

    __slots__ = ("seen", "written")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.written: dict[str, WrittenType] = {}
        self.seen = -1

    def forked(self, is_heir: bool) -> None:
        if is_heir:
            self.written, self.seen = {}, -1  # with its next library it writes its own
        else:
            unlock(self.written)


def _of_workers(dispatcher: Dispatcher, name: str) -> list[Registration]:
    """What the leader of a cluster has registered under this name for a worker (cluster/leading.py)
    and has no more once it registers its own.
    """
    if not dispatcher.facts.has(TYPE, 0, name):
        return []
    there, me = dispatcher.facts.registrations(name)[2], (os.getpid(), interpreter_id)
    return [f for f in there if f.kind == TYPE and (f.pid, f.interpreter) == me]


#: The registries in use. Changed by single steps. At the interpreter's end the types refer to no
#: registry any more: 3.11 would not free the interpreter.
_in_use: list[Dispatcher] = []
atexit.register(_in_use.clear)


@in_child
def _renew() -> None:
    unlock(_in_use)


def keep_up(dispatcher: Dispatcher) -> None:
    """Writes the types that the registry does not have yet: before a library is opened, and in a
    warm-up. TypeKeysMismatchError, unless that is kept.
    """
    types = dispatcher.of(Types)
    if own_types.changes == types.seen:
        return
    if dispatcher not in _in_use:
        _in_use.append(dispatcher)
    changes = own_types.changes  # before the look: a change during it has another number
    try:
        own_types.each(lambda cls, oldest: _change([dispatcher], cls, oldest))
    except TypeKeysMismatchError as error:
        warn(dispatcher, error)
        raise
    types.seen = changes


def leave(dispatcher: Dispatcher) -> None:
    """After the registry was closed here. Idempotent."""
    if dispatcher in _in_use:
        _in_use.remove(dispatcher)


def compare_types(dispatcher: Dispatcher) -> None:
    """Notes which types differ now, whenever they were written: the other member may have come
    later, or gone. What was refused, and so never written, differs still.
    """
    for name, written in list(dispatcher.of(Types).written.items()):
        if written.cls() is None:
            continue
        error = _difference(dispatcher, name, written.keys, written.where, written.fact)
        if error is None:
            mended(dispatcher, (TYPE, 0, name, ""))
        else:
            keep(dispatcher, (TYPE, 0, name, ""), error)


def _follow(cls: type, oldest: Handle | None) -> None:
    _change(list(_in_use), cls, oldest)


def _refused(error: MdispatchError) -> None:
    for dispatcher in list(_in_use):
        if dispatcher.facts.differing is not None and dispatcher.facts.differing.kept:
            warn(dispatcher, error)


own_types.follow = _follow
own_types.refused = _refused


def _change(dispatchers: list[Dispatcher], cls: type, oldest: Handle | None) -> None:
    """Writes a class into all of them, or, if one refuses it, into none."""
    changed: list[Change] = []
    try:
        for dispatcher in dispatchers:
            if oldest is None:
                _end(dispatcher, cls, changed)
            else:
                _write(dispatcher, cls, oldest, changed)
    except BaseException:
        for dispatcher, name, before in reversed(changed):
            _put(dispatcher, name, before)
        raise


def _write(dispatcher: Dispatcher, cls: type, oldest: Handle, changed: list[Change]) -> None:
    name = _name_of(cls)
    if name is None:
        return
    keys, where = ", ".join(oldest.keys), oldest.where
    before = dispatcher.of(Types).written.get(name)
    is_known = before is not None and before.keys == keys
    if is_known and before is not None and before.cls() is cls and before.where == where:
        return
    told = is_known or _tell_difference(dispatcher, name, keys, where)
    written = WrittenType(dispatcher, cls, keys, where)
    changed.append((dispatcher, name, before))
    _put(dispatcher, name, written)
    # Another member may have written its own in between: then both look, or one.
    if not told and not _tell_difference(dispatcher, name, keys, where, written.fact):
        mended(dispatcher, (TYPE, 0, name, ""))


def _end(dispatcher: Dispatcher, cls: type, changed: list[Change]) -> None:
    for name, written in list(dispatcher.of(Types).written.items()):
        if written.cls() is cls:
            changed.append((dispatcher, name, written))
            _put(dispatcher, name, None)
            mended(dispatcher, (TYPE, 0, name, ""))


def _put(dispatcher: Dispatcher, name: str, written: WrittenType | None) -> None:
    types = dispatcher.of(Types).written
    before = types.pop(name, None)
    if before is not None:
        before.remove(dispatcher)
    if written is not None:
        written.register(dispatcher, name)
        types[name] = written


def _tell_difference(
    dispatcher: Dispatcher, name: str, keys: str, where: str, own: Registration | None = None
) -> bool:
    error = _difference(dispatcher, name, keys, where, own)
    if error is not None:
        tell(dispatcher, (TYPE, 0, name, ""), error)
    return error is not None


def _difference(
    dispatcher: Dispatcher, name: str, keys: str, where: str, own: Registration | None
) -> TypeKeysMismatchError | None:
    """How the type differs from that of the member that was first; None if that is this one."""
    registry, me = dispatcher.facts, (os.getpid(), interpreter_id)
    try:
        _, _, there = registry.registrations(name)
        there = [f for f in there if f.kind == TYPE and (f.pid, f.interpreter) != me]
        if all(fact.body == keys for fact in there):
            return None
        living = {(pid, number) for number, pid, _, alive, *_ in registry.members() if alive}
    except MdispatchError:
        return None  # the registry is gone
    there = [fact for fact in there if (fact.pid, fact.interpreter) in living]
    first = min(there, key=_order, default=None)
    if first is None or first.body == keys or (own is not None and _order(own) < _order(first)):
        return None
    from .differences import type_differs

    return type_differs(first, keys, where)


def _order(fact: Registration) -> tuple[bool, int]:
    return fact.interpreter != AS_BRIDGE, fact.seq


_PROGRAM = ("__main__", "__mp_main__")


def _name_of(cls: type) -> str | None:
    """The name under which other members know the class; None if its module does not have it under
    its name.
    """
    module = sys.modules.get(cls.__module__)
    found: object = module
    for part in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if module is None or found is not cls:
        return None
    home = cls.__module__ if cls.__module__ not in _PROGRAM else _program(module)
    return home and printable(f"{home}.{cls.__qualname__}")


def _program(main: ModuleType) -> str | None:
    """The name of the program: each has a main module, and its workers have copies of that."""
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name not in _PROGRAM:
        return str(spec.name)
    return f"__main__({os.path.abspath(file)})" if file else None

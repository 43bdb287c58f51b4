"""Handles: objects that stay in one interpreter, and are called from all of the process, and from
others.

``share(obj)`` makes the handle of an object. It is a SafeObject whose methods can be called from
anywhere, and of which each interpreter has one: ``a is b`` within each. It travels by pickle, and
as an argument or a result of routed calls and of kernels in C.

Behind the handles of one object stands one native object (native/bind/ext/object.c) with one count.
The object lives as long as that counts anything: handles, calls under way, and from its first
pickle until ``close()`` one more, since home cannot see where pickles go. Whoever lets go last has
home drop the object, in home. The end of an interpreter ends its handles, and gives up its objects:
handles elsewhere find them gone.

The wire form, what a pickle has: the home (boot and PID namespace, pid, start time, interpreter),
the object's number there, the name of its type, its keys, the name of its class, and the transport
and the address by which other processes call it, if they may. It means the same in every process.

Another process tells home which of its objects it has handles of: all of them, whenever one has
arrived, and before its next call there when one has gone. Home keeps these with the line over which
it was told (Caller.kept), so they are let go when that process ends, however it does. An object on
its way is kept by who sends it: in a call by the caller, which waits; in an answer by Caller.sent,
until the next call of that line, for whoever got the answer has told home by then.

Locking: ``_lock`` is held while the tables change. It is reentrant, because a finalizer may change
them in between. A finalizer may drop a handle at any point, also of a thread that has the lock, and
then visits another interpreter. So that two such threads do not wait for each other, ``_drop``,
which runs in a visit, never waits for the lock: it notes the number, and whoever has the lock drops
it when he lets go. No wake is lost: the number is noted before the lock is tried, and the lock is
let go before the notes are looked at. No reference to an object is dropped under the lock. The lock
of a _Far is taken without that one, and held while a home is told; nobody waits for it for longer
than the telling may take, ``_TELLING``.
"""

from __future__ import annotations

import atexit
from _thread import allocate_lock
from _weakref import ref
from types import MethodType

from ..dispatch.context.hermetic import SafeObject, VisitingHandle, is_hermetic
from ..dispatch.context.homes import Home, foreign, gone, here
from ..dispatch.context.keeping import CLOSED, Cell, Gone, give_up, new_number
from ..dispatch.context.modes import DispatchMode
from ..dispatch.context.values import raw_of
from ..dispatch.handlers import ask_mode, overloaded_types
from ..errors import (
    CannotTravelError,
    HermeticError,
    InvalidArgumentError,
    MdispatchError,
    OperatorNotFoundError,
)
from ..errors.words import shown
from ..facts import HOST, interpreter_id
from ..facts.backing import check_shared
from ..facts.native import c_kernels
from ..facts.native.calls import noted
from ..forking import in_child, new_lock
from ..registry.registry import given_or_default
from ..schema.classes import is_constant, name_of
from .arrays import asking
from .methods import checks, methods_of
from .routing import (
    OWNER_GONE,
    carry,
    conditions,
    deadline_for,
    error_of,
    terms_for,
    until,
)
from .serving import HOLD, METHOD, serve_objects, serve_objects_outside, under_way
from .transports.transport import transport_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    #: How other processes reach the home of an object: a transport's name, and an address.
    Way = tuple[str, str]

#: native/bind/ext/object.h: the home of an object that a kernel in C has made.
_OF_C = -1

#: What other processes may call of what begins with an underscore.
_OPEN = ("__call__", "__md_dispatch__")
#: The classes whose objects travel as values, and are equal wherever they are.
_VALUES = (type(None), bool, int, float, str, bytes)

_lock = new_lock()
#: The objects that are at home here and have handles, by number, with what `_by_id` has them under.
_objects: dict[int, tuple[Cell, int]] = {}
_by_id: dict[int, Cell] = {}
#: The numbers of objects to be dropped: see Locking.
_dropped: list[int] = []
#: The handles of this interpreter: by the object's home and number, as the process counts them, or
#: as other processes do.
_handles: dict[tuple[object, int], ref[ObjectHandle]] = {}
#: Those of the objects at home here that other processes may call.
_outside: dict[int, Way] = {}
#: The homes in other processes of whose objects there are handles here.
_far: dict[Way, _Far] = {}
#: Seconds that it may take to tell a home what is held here.
_TELLING = 10.0
_most_handles = 64
_is_open = False


class ObjectHandle(VisitingHandle):
    """The handle of an object, as :func:`share` makes it; in each interpreter there is one.

    Its attributes are those of the object, to be read and called: elsewhere that is done at home,
    on the thread that asks. None can be set, and names that begin with an underscore are not
    passed on. Where the object's class is registered (:func:`register_class`) the attributes are
    the methods of the class, everywhere, and calls of operators.

    ``class_name`` is the name of the registered class, or "". The rest is as for SafeObject, but
    that a copy is the handle itself.
    """

    __slots__ = ("__dict__", "__weakref__", "_known", "_mdispatch_object", "_way", "class_name")

    class_name: str
    #: The methods that were asked for, where the object is elsewhere: of a registered class their
    #: operators, of others None. Bound ones would keep the handle.
    _known: dict[str, Any]
    #: One count of the native object; None for an object of another process, or one that is gone.
    _mdispatch_object: object
    #: None if other processes may not call it.
    _way: Way | None

    def __init__(self, obj: object) -> None:
        raise InvalidArgumentError("a handle is made by mdispatch.share(obj)")

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or name in ("class_name", "type_name"):
            object.__setattr__(self, name, value)
            return
        raise AttributeError(
            f"{name!r} cannot be set by a handle: call a method of the object that sets it"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.class_name:
            raise TypeError(f"class {self.class_name} has methods that are registered, and no call")
        if self._cell is not None:
            return self.open()(*args, **kwargs)  # type: ignore[operator]
        return self.call_at_home(self.type_name, "__call__", args, kwargs)

    def __md_object__(self, class_name: str | None) -> object:
        """What a kernel gets for an argument of this class: the object at home, elsewhere the
        handle. None if it is of another class. For the binders of calls, in Python and in C.

        Raises ObjectGoneError.
        """
        cell = self._cell
        if cell is None:
            return self if self.class_name == class_name else None
        content = cell.content
        return self.open() if isinstance(content, Gone) else content

    def call_at_home(
        self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a method of the object in its home, on the thread that calls (see
        native/bind/ext/visit.c), or by the transport of the process that it is at home in. ``name``
        is the operator, or what else the errors shall call it.

        The timeout is that of the innermost ``routing()`` for the operator's namespace, if there is
        any: who has a handle may call.

        Raises ForeignObjectError for a home in another process that does not serve it,
        ObjectGoneError, CannotTravelError, CallTimeoutError, OwnerGoneError, OwnerBusyError,
        RoutingCycleError, and RoutedError for what the method raises.
        """
        home, what = self.home, f"an object of {self.type_name}"
        namespace = name.partition("::")[0]
        timeout, arrays = terms_for(namespace)
        if home.process != here().process:
            return self._call_outside(name, namespace, method, args, kwargs)

        def failed(why: int, told: Any) -> NoReturn:
            if why in OWNER_GONE:
                raise gone(what, home, f"its home, {home}, has ended", name)
            raise error_of(name, home, why, told, timeout or 0.0)

        given: tuple[Any, ...] = (self._number, method, *args)
        ticket, told = METHOD, conditions()
        if told is not None:
            ticket, given = -METHOD, (*told, *given)
        deadline = deadline_for(namespace)
        visit, to = c_kernels.visit, home.interpreter_id
        return asking(arrays, visit, failed, to, ticket, deadline, given, kwargs)

    def _call_outside(
        self,
        name: str,
        namespace: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        home, way = self.home, self._way
        if way is None:
            raise foreign(f"an object of {self.type_name}", home, name)
        far = _far_home(way)
        deadline, (timeout, arrays) = deadline_for(namespace), terms_for(namespace)
        if far.gone or not far.is_told:
            far.tell(way, deadline)
        given: tuple[Any, ...] = (self._number, method, *args)
        ticket, told = METHOD, conditions()
        if told is not None:
            ticket, given = -METHOD, (*told, *given)
        transport = transport_named(way[0])
        to = name, lambda: home, transport, way[1]
        return asking(arrays, carry, *to, ticket, given, kwargs, (), deadline, timeout or 0.0)

    def to_outside(self) -> list[Any] | str:
        """What goes to another process, as values; in words why nothing does."""
        if self._way is None:
            return (
                f"{self.type_name}, whose handle is for its own process\nShare it at its home "
                "with mdispatch.share(obj, serve='host')."
            )
        home = self.home
        parts = (home.space, home.pid, home.started, home.interpreter_id)
        return [parts, self._number, self.type_name, self.keys, self.class_name, self._way]

    def open(self) -> object:
        if self._home.interpreter_id == HOST:
            raise InvalidArgumentError(
                f"this object of {self.type_name} was made by a kernel in C: Python has its handle "
                "only\nCall an operator whose kernel is in C."
            )
        return super().open()

    def close(self) -> None:
        if self._home.interpreter_id == HOST:
            self._let_pickles_go()
            return
        super().close()
        self.__class__ = _AskingHandle
        vars(self).clear()  # the methods that know the object
        self._let_pickles_go()

    def _let_pickles_go(self) -> None:
        if self._mdispatch_object is not None:
            c_kernels.object_pickled(self._mdispatch_object, False)

    def __copy__(self) -> ObjectHandle:
        return self

    def __deepcopy__(self, memo: object) -> ObjectHandle:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """What a pickle has. Inside :func:`hermetic` it does not keep the object."""
        cell, held, keys = self._cell, self._mdispatch_object, self._keys
        if cell is not None and not isinstance(cell.content, Gone):
            keys = self._keys = raw_of(cell.content)
        is_given_up = cell is not None and isinstance(cell.content, Gone)
        if held is not None and not is_given_up and not is_hermetic():
            c_kernels.object_pickled(held, True)
        told = (self.home, self._number, self.type_name, keys, self.class_name, self._way)
        return _arrived, told

    def __repr__(self) -> str:
        return f"<handle{super().__repr__().removeprefix('<SafeObject')}"


def share(obj: object, *, serve: str = "") -> ObjectHandle:
    """The handle of an object: it stays here, and can be called from all interpreters of the
    process::

        handle = mdispatch.share(model)
        queue.put(handle)  # or pickle.dumps, for another interpreter: handle.forward(...)

    The handle keeps the object, like any reference, and so do the handles in other interpreters,
    and from the first pickle on this interpreter, until ``handle.close()``. What is shared twice
    has one handle. A handle is given back as it is.

    The object's methods are called by the threads that call the handles, one at a time where this
    interpreter has a GIL.

    With ``serve="host"``, the name of a transport, the handle can also go to other processes of
    this user on this host, and be called there, as can what such a method returns of registered
    classes. This process keeps the object until they have let go of it, or have ended. Only a main
    interpreter can serve them.

    Raises InvalidArgumentError for what travels as a value, also by a codec, and where nobody can
    serve it; HermeticError inside :func:`hermetic`, which makes no handles; NotSharedError where
    interpreters share nothing.
    """
    if serve:
        if getattr(serve, "queue", 0):
            raise InvalidArgumentError(
                "an object has no queue: calls of its methods do not wait\nServe a kernel by "
                f"mdispatch.Serve({str(serve)!r}, queue=...), or share the object with "
                f"serve={str(serve)!r}."
            )
        handle = share(obj)
        _serve(handle, serve)
        return handle
    if isinstance(obj, SafeObject):
        return obj if isinstance(obj, ObjectHandle) else share(obj.open())
    if is_constant(obj):
        raise InvalidArgumentError(
            f"an object of {name_of(type(obj))} travels by value, as the class has a codec: it has "
            "no handle, and a kernel in C does not take it\nSend it as it is."
        )
    if isinstance(obj, _VALUES):
        raise InvalidArgumentError(
            f"an object of {type(obj).__qualname__} travels as a value, and has no handle: send it "
            "as it is"
        )
    check_shared("A handle")
    _open()
    c_kernels.object_sweep()
    dead = None
    while True:
        with _lock:
            cell = _by_id.get(id(obj))
        if cell is not None and cell is not dead and cell.content is obj:
            held = c_kernels.object_find(interpreter_id, cell.number)
            if held is not None:
                return _interned(held, interpreter_id, cell.number, name_of(type(obj)), cell)
            dead = cell  # its last handle has just gone
        if is_hermetic():
            _refuse(f"an object of {type(obj).__qualname__}")
        made = Cell(obj, new_number())
        held = c_kernels.object_new(name_of(type(obj)), made.number)
        with _lock:
            now = _by_id.get(id(obj))
            is_ours = now is None or now is dead or now.content is not obj
            if is_ours:
                _by_id[id(obj)] = made
                _objects[made.number] = (made, id(obj))
        _drop_noted()
        if is_ours:
            return _interned(held, interpreter_id, made.number, name_of(type(obj)), made)


def _serve(handle: ObjectHandle, transport: str) -> None:
    """Lets other processes call it from now on."""
    if handle._cell is None:
        raise InvalidArgumentError(
            f"an object of {handle.type_name} is at home in {handle.home}: share it there"
        )
    address = serve_objects_outside(transport, _call_from_outside, _hold)
    handle._way = _outside[handle._number] = (transport, address)
    c_kernels.object_give_out(handle._mdispatch_object)


def if_of_class(obj: object) -> ObjectHandle | None:
    """The handle of an object of a registered class; None for any other. Called by C."""
    return share(obj) if name_of(type(obj)) else None


def handle_of(held: object, home: int, number: int, class_name: str) -> ObjectHandle:
    """The handle here of a native object. Called by C. HermeticError."""
    cell = None
    if home == interpreter_id:
        cell = _objects.get(number, (Cell(CLOSED, number), 0))[0]
    return _interned(held, home, number, class_name, cell)


def _arrived(
    home: Home,
    number: int,
    type_name: str,
    keys: int | None,
    class_name: str,
    way: Way | None = None,
) -> ObjectHandle:
    """A handle from its pickle."""
    if home.process != here().process:
        known = _handles.get((home, number))
        old = None if known is None else known()
        made = _interned(None, home, number, class_name, None, type_name, keys, way)
        if way is not None and made is not old:
            _far_home(way).tell(way, until())
        return made
    its = _OF_C if home.interpreter_id == HOST else home.interpreter_id
    held = c_kernels.object_find(its, number)
    cell = None
    if its == interpreter_id:
        cell = _objects.get(number, (Cell(CLOSED, number), 0))[0]
    return _interned(held, its, number, class_name, cell, type_name, keys)


def from_outside(text: str) -> ObjectHandle:
    """A handle of :meth:`ObjectHandle.to_outside`. ValueError for what is none; ObjectGoneError,
    and CannotTravelError for another class, where it would be at home in this process.
    """
    from json import loads

    try:
        (space, pid, started, interpreter), number, type_name, keys, class_name, way = loads(text)
        transport, address = way
    except (TypeError, ValueError, RecursionError):
        raise ValueError("a message of a routed call is damaged: it has an odd handle") from None
    kinds = (str, int, int, int, int, str, str, str, str)
    told = (space, pid, started, interpreter, number, type_name, class_name, transport, address)
    if (
        tuple(map(type, told)) != kinds
        or type(keys) not in (int, type(None))
        or not all(0 <= each < _END for each in (pid, started, interpreter, number))
        or not 0 <= (keys or 0) < 2 * _END
    ):
        raise ValueError("a message of a routed call is damaged: it has an odd handle")
    home = Home(space, pid, started, interpreter)
    if home.process == here().process:
        return _returned(interpreter, number, type_name, class_name, (transport, address))
    return _arrived(home, number, type_name, keys, class_name, (transport, address))


#: No number of a process, an interpreter or an object is as large.
_END = 1 << 63


def _given_out(number: object, interpreter: int = interpreter_id) -> tuple[object, str] | None:
    """The one gate for numbers of objects that other processes name: for their calls, for what they
    hold and for their handles. A count of the native object, and its class's name; None for what
    this process has not given out for others, which is as if it were not there.
    """
    if type(number) is not int:
        return None
    found: tuple[object, str] | None = c_kernels.object_given_out(interpreter, number)
    return found


def _not_given_out(home: Home) -> MdispatchError:
    return gone("the object", home, "it is not there for other processes, or no longer")


def _returned(
    interpreter: int, number: int, type_name: str, class_name: str, way: Way
) -> ObjectHandle:
    """A handle that comes from another process to that of its object. What it says of the object
    counts for words only, where the object is at home here.
    """
    found = _given_out(number, interpreter)
    if found is None:
        raise _not_given_out(here().neighbour(interpreter))
    held, its_class = found
    if interpreter != interpreter_id:
        _check_class(class_name, its_class, its_class)
        return _interned(held, interpreter, number, its_class, None, type_name, None, way)
    cell = _objects.get(number, (Cell(CLOSED, number), 0))[0]
    now = name_of(type(cell.content)) or its_class
    _check_class(class_name, its_class, now)
    return _interned(held, interpreter, number, now, cell)


def _check_class(said: str, given: str, now: str) -> None:
    """``said`` is the class's name in the handle: the one when the object was shared, or now."""
    if said not in ("", given, now):
        raise not_made(said, f"is one of {now or 'a class that is not registered'} there")


def not_made(name: str, why: str) -> CannotTravelError:
    """The error for an object of a class of this name, which cannot be made where it has come."""
    home = here()
    return CannotTravelError(
        f"an object of {shown(name)} came to {home}, and {why}\n"
        "Let both sides import the same version of the module that registers the class.",
        "",
        str(home),
        home.pid,
        value_type=name,
    )


def _interned(
    held: object,
    home: object,
    number: int,
    class_name: str,
    cell: Cell | None,
    type_name: str = "",
    keys: int | None = None,
    way: Way | None = None,
) -> ObjectHandle:
    global _most_handles
    with _lock:
        known = _handles.get((home, number))
        found = known() if known is not None else None
    if found is not None:
        found._way = found._way or way
        return found
    if not type_name:
        content = None if cell is None else cell.content
        type_name = class_name.rpartition(".")[2] or "an unregistered class"
        if cell is not None and not isinstance(content, Gone):
            type_name = type(content).__qualname__
    if is_hermetic():
        _refuse(f"an object of {type_name}")
    _open()
    made = _AskingHandle.__new__(_AskingHandle)
    at: Any = home
    if isinstance(home, int):
        at = here().neighbour(HOST if home == _OF_C else home)
    made._set(cell, at, number, type_name, keys, ())
    made._mdispatch_object = held
    made._known = {}
    made.class_name = class_name
    made._way = way if cell is None else _outside.get(number)
    gone_ones = []
    told = None if held is not None or way is None else _far_home(way).gone.append
    with _lock:
        known = _handles.get((home, number))
        found = known() if known is not None else None
        if found is None:
            found = made
            _handles[home, number] = ref(made, told)
            if len(_handles) > _most_handles:
                gone_ones = [*(each for each, its in _handles.items() if its() is None)]
                for each in gone_ones:
                    del _handles[each]
                _most_handles = 2 * len(_handles) + 64
    _drop_noted()
    return found


def _refuse(what: str) -> NoReturn:
    raise HermeticError(
        f"no handle is made inside hermetic(): {what} is shared there, or comes there as a handle\n"
        "Make the handle before, or call it outside."
    )


# --- methods --------------------------------------------------------------------------------------


class _AskingHandle(ObjectHandle):
    """A handle that looks a method up when it is asked for it: all but those that are at home, of
    a registered class, and have been asked once. Those have their methods as attributes, and are of
    the class without ``__getattr__``, whose attributes CPython finds in a third of the time.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "class_name":
            raise AttributeError(name)
        if self.class_name:
            return _method_of(self, name)
        if self._cell is not None:
            return getattr(self.open(), name)
        what = f"{self.type_name}.{name}"
        if name not in self._known:
            is_called, is_method, value = self.call_at_home(what, f".{name}", (), {})
            if not is_called:
                return value
            if is_method:
                self._known[name] = None
        return lambda *args, **kwargs: self.call_at_home(what, name, args, kwargs)


def _method_of(handle: ObjectHandle, name: str) -> MethodType:
    """A method of a registered class: its operator, called with the object or the handle."""
    operator = handle._known.get(name)
    if operator is not None and not operator.is_gone:
        return MethodType(operator, handle)
    namespace, _, cls = handle.class_name.partition(".")
    known = methods_of.get(handle.class_name)
    find = given_or_default(None).ops.find if known is None else known[0]
    try:
        operator = find(f"{namespace}::{cls}.{name}")
    except OperatorNotFoundError as error:
        raise AttributeError(
            f"class {handle.class_name} has no method {name!r} that is registered: {error}",
            name=name,
            obj=handle,
        ) from None
    if handle._cell is None:
        handle._known[name] = operator
        return MethodType(operator, handle)
    target = handle.open()
    if known is not None and name in known[1]:
        its = {each: MethodType(find(f"{namespace}::{cls}.{each}"), target) for each in known[1]}
        # A dict of its own, in which CPython remembers locations. It would share keys with others.
        object.__setattr__(handle, "__dict__", vars(handle) | its)
        handle.__class__ = ObjectHandle
    return MethodType(operator, target)


def _call(number: int, method: str, /, *args: Any, **kwargs: Any) -> Any:
    """At home: what a visitor calls. With a dot before the name it asks for the attribute: whether
    it is called, whether it is a method, and its value, if it is not called. A mode is asked by the
    name of its handler.
    """
    found = _objects.get(number)
    content = CLOSED if found is None else found[0].content
    if isinstance(content, Gone):
        raise gone("the object", here(), content.why)
    if method.startswith("."):
        value = getattr(content, method[1:])
        is_called = callable(value) and not isinstance(value, ObjectHandle)
        if is_called:
            return [True, getattr(value, "__self__", None) is content, None]
        return [False, False, _shared(value, number)]
    if method == "__md_dispatch__":
        return _asked(content, number, *args, **kwargs)
    check = checks.get(name_of(type(content))) if checks else None
    if check is not None:
        check(method)
    return _shared(getattr(content, method)(*args, **kwargs), number)


def _asked(mode: Any, number: int, name: str, /, *args: Any, **kwargs: Any) -> list[Any]:
    """A call elsewhere has come to a mode that is at home here: its answer, or nothing."""
    if not isinstance(mode, DispatchMode):
        raise InvalidArgumentError(
            f"an object of {type(mode).__qualname__} is on a stack of modes elsewhere, by its "
            "handle, and is no DispatchMode\nPush handles of modes only."
        )
    operator = given_or_default(None).ops.find(name)
    answer = ask_mode(mode, operator, overloaded_types(args, kwargs), args, kwargs)
    return [] if answer is NotImplemented else [_shared(answer, number)]


def _call_from_outside(number: int, method: str, /, *args: Any, **kwargs: Any) -> Any:
    """What another process calls. It gets no names with an underscore, as nobody does."""
    name, found = method.removeprefix("."), _given_out(number)
    if found is None or (name.startswith("_") and name not in _OPEN):
        raise _not_given_out(here())
    return _call(number, method, *args, **kwargs)


def _hold(numbers: list[int]) -> None:
    """Another process has handles of just these objects of here. Those that it had before are held
    until the others are.
    """
    call = under_way()
    if call is not None:
        found = ((number, _given_out(number)) for number in numbers)
        call.caller.kept = {number: its[0] for number, its in found if its is not None}


def _shared(value: Any, number: int) -> Any:
    """A result that can travel: objects of registered classes by their handles, which go as far as
    that of the object whose number this is.
    """
    if name_of(type(value)):
        way = _outside.get(number)
        return value if is_constant(value) else share(value, serve=way[0] if way else "")
    if isinstance(value, (list, tuple)) and any(name_of(type(each)) for each in value):
        return [_shared(each, number) for each in value]
    return value


# --- homes in other processes ---------------------------------------------------------------------


class _Far:
    """A home in another process: what it has been told of the handles here. ``gone`` has the weak
    references of handles that have gone since then.
    """

    __slots__ = ("_lock", "gone", "is_told")

    def __init__(self) -> None:
        self._lock = allocate_lock()  # waited for, and not taken again, by a signal handler, too
        self.gone: list[object] = []
        self.is_told = False

    def renew(self) -> None:
        """The parent has told what it has. The child does so by itself, before its first call."""
        self._lock = allocate_lock()
        self.is_told = False

    def tell(self, way: Way, deadline: int) -> None:
        """Tells home of all handles of its objects here, until the deadline (0 for none). A home
        that does not hear it does not keep them; their calls say so.
        """
        most = c_kernels.now() + int(_TELLING * 1e9)
        deadline = min(deadline, most) if deadline else most
        left = max(0.0, (deadline - c_kernels.now()) / 1e9)
        taken: list[bool] = []
        try:
            # See Note [Handlers that raise] in native/bind/call/surely.c.
            if not noted(taken, self._lock.acquire, True, left):
                return
            self.gone.clear()
            with _lock:
                found = [each() for each in _handles.values()]
            numbers = [
                *(
                    each._number
                    for each in found
                    if each is not None and each._way == way and each._cell is None
                )
            ]
            del found
            _drop_noted()
            call = [HOLD, deadline, [], [numbers], [], []]
            try:
                self.is_told = not transport_named(way[0]).hold(way[1], call, deadline)[0]
            except MdispatchError:
                self.is_told = False
        finally:
            if taken and taken[0]:
                self._lock.release()


def _far_home(way: Way) -> _Far:
    return _far.get(way) or _far.setdefault(way, _Far())


# --- the end --------------------------------------------------------------------------------------


def _drop(number: int) -> None:
    """The last handle of an object is gone. Called in a visit, or in a finalizer: see Locking."""
    _dropped.append(number)
    _drop_noted()


def _drop_noted() -> None:
    while _dropped:
        if _lock._is_owned():  # type: ignore[attr-defined]
            return  # whoever has it comes here afterwards
        gone_ones: list[tuple[Cell, int]] = []
        taken: list[bool] = []
        found = None
        try:
            if not noted(taken, _lock.acquire, False):
                return
            while True:
                if not _dropped:
                    break
                found = _objects.pop(_dropped.pop(), None)
                if found is None:
                    continue
                gone_ones.append(found)
                _outside.pop(found[0].number, None)
                if _by_id.get(found[1]) is not found[0]:
                    continue
                del _by_id[found[1]]
        finally:
            if taken and taken[0]:
                _lock.release()
        for cell, _ in gone_ones:
            give_up(cell)
        del gone_ones, found  # outside the lock: finalizers may run


def _open() -> None:
    """Once per interpreter: it can be visited, for its objects and to drop them."""
    global _is_open
    if not _is_open:
        _is_open = True
        atexit.register(c_kernels.object_close)
        serve_objects(_call, _drop)
        atexit.register(
            _let_go
        )  # before visits end: whoever lets go last goes to the object's home


def _let_go() -> None:
    """The interpreter ends: its handles count no more."""
    with _lock:
        found = [each() for each in _handles.values()]
    for handle in found:
        if handle is not None:
            handle._mdispatch_object = None


@in_child
def _renew() -> None:
    """The child has copies of all objects, and
    its handles are at home in it.
    """
    global _is_open
    _is_open = False
    for far in list(_far.values()):
        far.renew()
    _outside.clear()
    for each in list(_handles.values()):
        handle = each()
        if handle is not None and handle._cell is not None:
            handle._way = None  # what others reach is the parent's

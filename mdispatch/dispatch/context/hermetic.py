"""SafeObject, which travels between interpreters in place of an object that must stay; and the
guard ``hermetic``, while which an interpreter keeps no object for longer than the guard is open.

An interpreter must not touch an object of another one: the other has its own allocator and perhaps
its own GIL, and in another process its own memory. A :class:`SafeObject` holds an object, travels
through pickles in its place, and gives it out only in the interpreter that made it, its home. The
pickle has the home, a number and a few words about the object, so nothing can crash if home has
ended meanwhile.

Home cannot see where pickles go. So it keeps an object from the first time that a holder of it is
pickled until ``close()`` is called on any of its holders there, or until the interpreter ends. An
object that is pickled while :func:`hermetic` is open is kept until that guard ends, and no longer.

After a fork the child has a copy of every object. A holder that the child inherited holds the
child's copy and is at home in the child. A pickle from before the fork still belongs to the parent:
if the child could open it, it would get a copy that parent and child take for one object, until one
of them changes it.

(c10: SafePyObject, PyInterpreter; HermeticPyObjectTLS, EnableHermeticPyObject. In PyTorch a holder
in a foreign interpreter fails an assertion, and an object whose interpreter has ended leaks.)
"""

from __future__ import annotations

from ...errors import InvalidArgumentError
from ...facts import Handle
from ...keys.numbers import DispatchKey
from .guards import EXCLUDED, INCLUDED, _Guard, _switch
from .homes import Home, foreign, gone, here
from .keeping import (
    CLOSED,
    Cell,
    Gone,
    Hermetic,
    find,
    give_up,
    keep,
    new_number,
    open_guards,
)
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# --- the holder -----------------------------------------------------------------------------------


class SafeObject(Handle):
    """Holds ``obj`` for the interpreter that makes the holder, and travels in its place::

        parcel = SafeObject(model)
        queue.put(parcel)  # to another process, or pickle.dumps for another interpreter
        ...
        parcel.open()  # the model itself at home, ForeignObjectError anywhere else

    Its pickle has the home, a number, the name of the object's type and the keys that the object
    dispatches on, never the object. Unpickled at home, it is a holder of the same object, even if
    no other holder is left. Two holders are equal if one is a copy of the other, or came from its
    pickle.

    Once a holder was pickled, home keeps the object until ``close()``. A holder that was never
    pickled keeps its object like any reference. :func:`hermetic` changes how long a pickled object
    is kept.

    After a fork the child's holder holds the child's copy of the object and is at home there. A
    pickle from before the fork belongs to the parent and does not open in the child.

    ``type_name`` is the qualified name of the object's type. InvalidArgumentError when ``obj`` is a
    SafeObject itself. (c10: SafePyObject)
    """

    __slots__ = ("_cell", "_guards", "_home", "_keys", "_number", "type_name")

    type_name: str

    def __init__(self, obj: object) -> None:
        if isinstance(obj, SafeObject):
            raise InvalidArgumentError(
                f"this is a SafeObject already, and holds an object of {obj.type_name}: copy.copy "
                "makes another holder of the same object"
            )
        number = new_number()
        self._set(Cell(obj, number), here(), number, type(obj).__qualname__, None, ())

    def _set(
        self,
        cell: Cell | None,
        home: Home,
        number: int,
        type_name: str,
        keys: int | None,
        guards: tuple[int, ...],
    ) -> None:
        self._cell = cell  # None elsewhere
        self._home = home
        self._number = number
        self.type_name = type_name
        self._keys = keys
        self._guards = guards

    @property
    def home(self) -> Home:
        """The interpreter that the object belongs to. (c10: SafePyObject::pyinterpreter)"""
        # A holder that a child inherited is at home in the child, or in a child of that.
        return self._home if self._cell is None else here()

    @property
    def is_home(self) -> bool:
        """Whether this interpreter is the object's home, even if it has given the object up."""
        return self._cell is not None

    @property
    def keys(self) -> int | None:
        """The bits of the object's key set; None if it carries no keys and so is no Tensor.

        At home they are those that the object has now. Elsewhere, or when the object is gone, they
        are those that it had when it was pickled at home.
        """
        content = CLOSED if self._cell is None else self._cell.content
        return self._keys if isinstance(content, Gone) else raw_of(content)

    def open(self) -> object:
        """The object, at its home.

        Raises ForeignObjectError elsewhere, and ObjectGoneError when it was given up or its home
        has ended. (c10: SafePyObject::ptr)
        """
        return opened_for(self, "")

    def close(self) -> None:
        """Makes home give the object up: all its holders, wherever they are, find it gone.
        Idempotent.

        Raises ForeignObjectError elsewhere, unless home has ended and so has given it up. (c10:
        ~SafePyObject)
        """
        if self._cell is not None:
            give_up(self._cell)
        elif self._home.is_alive is not False:
            raise foreign(_words(self), self._home, use="closed")

    def __copy__(self) -> SafeObject:
        """Another holder of the same object."""
        return _holder(
            self._cell, self._home, self._number, self.type_name, self._keys, self._guards
        )

    def __deepcopy__(self, memo: object) -> SafeObject:
        """Another holder of the same object: a holder stands for the object's identity."""
        return self.__copy__()

    def __reduce__(self) -> tuple[object, ...]:
        """What a pickle has. InvalidKeyError if the object names keys that do not exist."""
        cell, keys, guards = self._cell, self._keys, self._guards
        if cell is not None:
            content = cell.content
            if not isinstance(content, Gone):
                # This runs the object's own code, so it comes before anything is kept.
                keys = self._keys = raw_of(content)
                guards = keep(cell)
        return _arrived, (self.home, self._number, self.type_name, keys, guards)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SafeObject):
            return NotImplemented
        return self._number == other._number and self.home == other.home

    def __hash__(self) -> int:
        return hash(self._number)  # without the home: a fork changes it

    def __repr__(self) -> str:
        """Shows only the object's type: its own repr may be long, and it may be far away."""
        if self._cell is None:
            where = f"home: {self._home}"
        else:
            where = "gone" if isinstance(self._cell.content, Gone) else "at home"
        return f"<SafeObject of {self.type_name}, {where}>"


class VisitingHandle(SafeObject):
    """A SafeObject that can call the object's methods from elsewhere: across/sharing.py."""

    __slots__ = ()

    class_name: str

    def call_at_home(
        self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        raise NotImplementedError


def _holder(
    cell: Cell | None,
    home: Home,
    number: int,
    type_name: str,
    keys: int | None,
    guards: tuple[int, ...],
) -> SafeObject:
    made = SafeObject.__new__(SafeObject)
    made._set(cell, home, number, type_name, keys, guards)
    return made


def _arrived(
    home: Home, number: int, type_name: str, keys: int | None, guards: tuple[int, ...]
) -> SafeObject:
    """A holder from its pickle."""
    cell = find(number, guards) if home.is_here else None
    return _holder(cell, home, number, type_name, keys, guards)


def opened_for(holder: SafeObject, operator: str) -> object:
    """Like :meth:`SafeObject.open`, for a call of ``operator``, which the errors name."""
    cell = holder._cell
    if cell is None:
        raise foreign(_words(holder), holder._home, operator, "opened")
    content = cell.content
    if isinstance(content, Gone):
        raise gone(_words(holder), here(), content.why, operator)
    return content


def _words(holder: SafeObject) -> str:
    return f"an object of {holder.type_name}"


# --- the guard ------------------------------------------------------------------------------------


class HermeticGuard(_Guard):
    """What :func:`hermetic` returns."""

    __slots__ = ()

    def __init__(self) -> None:
        python, snapshot = DispatchKey.Python, DispatchKey.PythonTLSSnapshot
        super().__init__(
            (INCLUDED, *_switch(python, False), python.raw),
            (INCLUDED, *_switch(snapshot, False), snapshot.raw),
            (EXCLUDED, *_switch(python, True), python.raw),
            tag=Hermetic,
            of_thread=True,
        )


def hermetic() -> HermeticGuard:
    """Returns a guard. While it is open, this interpreter keeps nothing for longer than that::

        with hermetic():
            ...  # no modes, no types' own rules; what is pickled here is not kept afterwards

    While it is open in this thread, the key Python is excluded, and neither Python nor
    PythonTLSSnapshot is included, whatever they were before. Its end undoes that for these keys;
    changes that setters make to other keys meanwhile outlast it. It can be used again, nested in
    itself, by several threads, and ended in any order. Each thread ends what it has entered, and a
    generator what it has entered itself, wherever it goes on; any other end raises ModeStackError
    and ends nothing.

    A SafeObject that this thread pickles meanwhile can be unpickled at home until the guard ends.
    After that home has forgotten it, and the error says so. With several such guards the first one
    that ends decides. This concerns the pickle, not the object: a pickle that was made outside
    stays good, and so does a holder that was unpickled at home in time. (c10:
    EnableHermeticPyObject)
    """
    return HermeticGuard()


def is_hermetic() -> bool:
    """Whether a :func:`hermetic` guard is open in this thread. (c10:
    HermeticPyObjectTLS::get_state)
    """
    return bool(open_guards())

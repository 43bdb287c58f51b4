"""Objects stay in the interpreter that made them: what travels in their place, and the guard while
which nothing is remembered for travellers.

An object of one interpreter must not be touched by another: it has another allocator, perhaps
another GIL, and in another process another memory. A :class:`SafeObject` holds one, travels through
pickles in its place, and gives it out only at home. What travels is the home, a number and a few
words about the object, so there is nothing that could crash when home has ended meanwhile.

Home keeps an object from the first time that a holder of it is pickled, because nobody at home sees
where the pickles go: until ``close()`` of any of its holders there, or the interpreter's end. What
is pickled while :func:`hermetic` is open is kept until that guard ends, and no longer.

After a fork the child has a copy of every object. A holder that it inherited holds the child's copy
and is at home in the child. A pickle from before the fork stays the parent's: to open it in the
child would give a copy that both take for the same object, until one of them changes.

(c10: SafePyObject, PyInterpreter; HermeticPyObjectTLS, EnableHermeticPyObject. In PyTorch a holder
in a foreign interpreter is a failed assertion, and an object whose interpreter has ended leaks.)
"""

from __future__ import annotations

from ._homes import Home, foreign, gone, here
from ._keeping import (
    CLOSED,
    Cell,
    Gone,
    HermeticStep,
    find,
    forget,
    give_up,
    keep,
    new_number,
    open_guards,
)
from ._keys import DispatchKey
from .errors import InvalidArgumentError
from .guards import _Guard, _Opened, _Set, _Step, _switch
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .guards import ThreadSets

__all__ = ["HermeticGuard", "SafeObject", "hermetic", "is_hermetic", "opened_for"]


# --- the holder -----------------------------------------------------------------------------------


class SafeObject:
    """Holds ``obj`` for the interpreter that makes the holder, and travels in its place::

        parcel = SafeObject(model)
        queue.put(parcel)  # to another process, or pickle.dumps for another interpreter
        ...
        parcel.open()  # the model itself at home, ForeignObjectError anywhere else

    A pickle of it holds the home, a number, the name of the object's type and the keys that it
    dispatches on, never the object. Unpickled at home, it is a holder of the same object, even when
    no other holder is left. Two holders are equal when one was copied or travelled from the other.

    From its first pickle on, home keeps the object until ``close()``; one that was never pickled
    keeps its object like any reference. Inside :func:`hermetic` pickles are kept otherwise.

    After a fork the child's holder holds the child's copy of the object and is at home there; a
    pickle from before the fork is the parent's and does not open in the child.

    ``type_name`` is the qualified name of the object's type. InvalidArgumentError when ``obj`` is a
    SafeObject itself. (c10: SafePyObject)
    """

    __slots__ = ("_cell", "_guards", "_home", "_keys", "_number", "type_name")

    type_name: str

    def __init__(self, obj: object) -> None:
        if isinstance(obj, SafeObject):
            raise InvalidArgumentError(
                f"this is a SafeObject already, and holds an object of {obj.type_name}: copy.copy"
                " gives another holder of it"
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
        # The home of an inherited holder is the child's, and that may itself have been forked.
        return self._home if self._cell is None else here()

    @property
    def is_home(self) -> bool:
        """Whether this interpreter is the object's home, though it may have been given up."""
        return self._cell is not None

    @property
    def keys(self) -> int | None:
        """The bits of the object's key set; None when it carries no keys and so is no Tensor.

        At home those of now; elsewhere, or when it is gone, those of when it was pickled at home.
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
        """Home gives the object up: all its holders, wherever they are, find it gone. Idempotent.

        Raises ForeignObjectError elsewhere, unless home has ended and so given it up. (c10:
        ~SafePyObject)
        """
        if self._cell is not None:
            give_up(self._cell)
        elif self._home.is_alive is not False:
            raise foreign(_words(self), self._home, use="closed")

    def __enter__(self) -> SafeObject:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __copy__(self) -> SafeObject:
        """Another holder of the same object."""
        return _holder(
            self._cell, self._home, self._number, self.type_name, self._keys, self._guards
        )

    def __deepcopy__(self, memo: object) -> SafeObject:
        """Another holder of the same object: what is held is its identity."""
        return self.__copy__()

    def __reduce__(self) -> tuple[object, ...]:
        """What travels. InvalidKeyError when the object says nonsense about its keys."""
        cell, keys, guards = self._cell, self._keys, self._guards
        if cell is not None:
            content = cell.content
            if not isinstance(content, Gone):
                # Runs the object's own code, so before anything is kept.
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
        """Of the object only its type: its own repr may be long, or the object far away."""
        if self._cell is None:
            where = f"home: {self._home}"
        else:
            where = "gone" if isinstance(self._cell.content, Gone) else "at home"
        return f"<SafeObject of {self.type_name}, {where}>"


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
    """As :meth:`SafeObject.open`, for a call of ``operator``, which the errors then name."""
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

    def _taken(self, sets: ThreadSets) -> tuple[tuple[_Set, _Step], ...]:
        python, snapshot = DispatchKey.Python, DispatchKey.PythonTLSSnapshot
        return (
            (sets.included, HermeticStep(new_number())),
            (sets.included, _Step(*_switch(snapshot, False), snapshot)),
            (sets.excluded, _Step(*_switch(python, True), python)),
        )

    def _undo(self, opened: _Opened) -> None:
        super()._undo(opened)
        for _, step in opened.steps:
            if isinstance(step, HermeticStep):
                forget(step)


def hermetic() -> HermeticGuard:
    """A guard while which nothing of this interpreter is remembered beyond it::

        with hermetic():
            ...  # no modes, no types' own rules; what is pickled here is not kept afterwards

    While it is open in this thread, the key Python is excluded and neither Python nor
    PythonTLSSnapshot is included, whatever they were before; it undoes that key by key, and what
    setters do to other keys meanwhile outlasts it. It can be used again, inside itself, and ended
    in any order.

    A SafeObject that is pickled meanwhile in this thread can come home until the guard ends; then
    home has forgotten it, and the traveller says so. With several such guards the first that ends
    decides. That holds for each pickle, not for the object: one that was made outside stays good,
    and so does a holder that came home in time. (c10: EnableHermeticPyObject)
    """
    return HermeticGuard()


def is_hermetic() -> bool:
    """Whether a :func:`hermetic` guard is open in this thread. (c10:
    HermeticPyObjectTLS::get_state)
    """
    return bool(open_guards())

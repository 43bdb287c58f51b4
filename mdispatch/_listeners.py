"""Listeners: who hears of every operator that is defined, and of its end.

A listener hears what this interpreter defines (or, in a worker, verifies). One for *everywhere*
hears what is defined by whichever interpreter and process: see _everywhere.py.

Note [Telling listeners]
Definitions and their ends are committed under ``Listeners.lock`` and noted in a queue before it is
let go, each with the listeners of that moment: the queue has the order of the commits. They are
told outside of the lock, by one thread at a time. A thread that finds another one telling leaves
what it has noted to that one and goes on.

No deadlock is possible: nobody waits for a listener, and none is called under a lock of ours. So
it may do whatever it likes, also define, close and add listeners; what it causes is told after
what it is being told, in order.

Nothing that was noted stays untold. A thread that left it to another one had seen, under the lock,
that this one was telling; that one takes the lock once more when it gives up telling, and looks at
the queue afterwards.

The lock can be taken again by the thread that has it: garbage collection and signals run other
people's code at any place, also while it is held, and that code may define an operator. That is
noted then (before the definition whose commit it came into), and told when the lock has been let
go. (Only a listener that such code itself adds has to hear at once of what is there.)

A new listener is told what is there by the thread that adds it. What others would tell it
meanwhile is kept for it (``ListenerHandle._backlog``) until that thread has come to it.
"""

from __future__ import annotations

from _thread import RLock

from ._native import unlock
from ._nearest import shown
from .errors import InvalidArgumentError, RegistryClosedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._everywhere import Watch
    from ._registry import Registration, RegistryProtocol

    Method = Callable[[object], object]

__all__ = ["ListenerHandle", "Listeners"]


class ListenerHandle:
    """A listener that is listening, until ``close()`` or the end of a ``with`` block.

    ``closed`` says whether that is over. A handle that nobody holds any more goes on listening. In
    the child of a fork all handles are closed: add the listeners again that are wanted there.
    """

    __slots__ = (
        *("_backlog", "_deregistered", "_gone", "_listeners", "_registered", "_watch"),
        "closed",
    )

    def __init__(self, listeners: Listeners, listener: object) -> None:
        self._listeners = listeners
        self._registered = _method(listener, "on_operator_registered")
        self._deregistered = _method(listener, "on_operator_deregistered")
        self._gone = _method(listener, "on_registry_gone")
        if self._registered is None and self._deregistered is None:
            raise InvalidArgumentError(
                "a listener has a method on_operator_registered(registration) or "
                f"on_operator_deregistered(registration), or both: {shown(listener)} has neither"
            )
        self._backlog: list[tuple[bool, Registration]] | None = None
        self._watch: Watch | None = None
        self.closed = False

    def close(self) -> None:
        """Nothing more is told. Idempotent.

        When it returns, a call of the listener that another thread has begun may still be under
        way; no other follows.
        """
        self._listeners.drop(self)
        if self._watch is not None:
            self._watch.end()

    def __enter__(self) -> ListenerHandle:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mdispatch.ListenerHandle {'closed' if self.closed else 'listening'}>"

    # --- for this module and _everywhere.py

    @property
    def is_locked(self) -> bool:
        """Whether this thread has the lock of the listeners."""
        return self._listeners.is_locked

    def tell(self, begins: bool, fact: Registration) -> None:
        """Calls the listener, unless it has been closed."""
        self._call(self._registered if begins else self._deregistered, fact, fact.name)

    def tell_gone(self, error: Exception) -> None:
        self._call(self._gone, error, "the registry's end")

    def tell_in_turn(self, begins: bool, fact: Registration) -> None:
        """The same, after what is there still to be told by the thread that adds the listener."""
        if self._backlog is not None:
            with self._listeners.lock:
                if self._backlog is not None:
                    self._backlog.append((begins, fact))
                    return
        self.tell(begins, fact)

    def catch_up(self, there: list[tuple[bool, Registration]]) -> None:
        """Tells what was there when the listener was added, then what came meanwhile."""
        while self._backlog is not None:
            for begins, fact in there:
                self.tell(begins, fact)
            with self._listeners.lock:
                there, self._backlog = self._backlog, [] if self._backlog else None

    def _call(self, method: Method | None, told: object, what: str) -> None:
        if method is None or self.closed:
            return
        try:
            method(told)
        except BaseException as error:  # whatever it is, the operator is defined
            from ._unraisable import report

            message = f"Exception ignored in a registration listener that was told of {what}"
            report(error, message, method)


class Listeners:
    """The listeners of one :class:`mdispatch.Registry`, and all definitions on their way to them.

    What is registered twice without an end between is told once: in a worker several libraries can
    verify one definition. It ends with the last of them, or when another definition of the name
    takes its place.
    """

    def __init__(self, facts: RegistryProtocol) -> None:
        self._facts = facts
        self._live: dict[str, Registration] = {}  # by name, in the order of the commits
        self._again: dict[str, int] = {}  # how often beyond the first time
        self._handles: tuple[ListenerHandle, ...] = ()
        self._watched: tuple[ListenerHandle, ...] = ()  # those for everywhere
        self._queue: list[tuple[bool, Registration, tuple[ListenerHandle, ...]]] = []
        self._telling = False
        self._closed = False
        self.lock = RLock()

    def add(self, listener: object, everywhere: bool = False) -> ListenerHandle:
        """Adds a listener: an object with ``on_operator_registered(registration)``,
        ``on_operator_deregistered(registration)``, or both. (c10: addRegistrationListener)

        Before this returns, it hears of every operator that is defined, in the order of the
        definitions; from then on of every definition and of every end of one, in the order in
        which they were committed. Of definitions only: kernels are not told. It may use the
        registry, and it may take its time, though the other listeners wait for it. What it raises
        goes to ``sys.unraisablehook``. Where several threads define at once, one may tell for all:
        the other ones' ``define()`` returns before the listener has heard.

        These are the definitions of this interpreter; in a worker, those that it has verified. With
        ``everywhere`` they are those of the registry, whichever interpreter and process they come
        from, and the listener is called by a thread of its own. What came and went between two
        looks of that thread may go untold; of one look the ends are told first, then the
        definitions, and these are always in order. When the main interpreter closes the registry
        or dies, a method ``on_registry_gone(error)`` is called if there is one, and the handle is
        closed. The end of this interpreter closes it too, after a call that is under way. (Python
        3.11 ends no sub-interpreter that has threads: there, close the handle before.)

        Raises InvalidArgumentError, RegistryClosedError; with ``everywhere`` also
        WaitCancelledError (this interpreter shuts down), RuntimeError (no thread can be had).
        """
        handle = ListenerHandle(self, listener)
        try:
            with self.lock:
                if self._closed:
                    raise RegistryClosedError(
                        f"registry {self._facts.label} is closed; open or create one again",
                        self._facts.label,
                    )
                if everywhere:
                    self._watched += (handle,)
                else:
                    self._handles += (handle,)
                    handle._backlog = []
                    there = [(True, fact) for fact in self._live.values()]
            if everywhere:
                from ._everywhere import Watch

                handle._watch = Watch(self._facts, handle)
                handle._watch.begin()
            else:
                handle.catch_up(there)
            self._tell_all()
        except BaseException:
            handle.close()
            raise
        return handle

    def registered(self, commit: Callable[[], Registration]) -> Registration:
        """Commits a definition by calling ``commit``, and tells of it."""
        with self.lock:
            fact = commit()
            self.note(fact)
        self.tell()
        return fact

    def note(self, fact: Registration) -> None:
        """Under the lock, after the commit of a definition; :meth:`tell` follows it."""
        name = fact.name
        before = self._live.get(name)
        if before is not None:
            if before.seq == fact.seq:
                self._again[name] = self._again.get(name, 0) + 1
                return
            self._again.pop(name, None)
            self._end(before)
        self._live[name] = fact
        if self._handles:
            self._queue.append((True, fact, self._handles))

    def tell(self) -> None:
        """Tells what was noted."""
        if self._queue:
            self._tell_all()

    def is_defined(self, name: str) -> bool:
        """Whether this interpreter has defined the operator, or verified its definition."""
        return name in self._live

    def struck(self, fact: Registration, strike: Callable[[], bool]) -> bool:
        """Ends a definition by calling ``strike``, and tells of it if that says that it did."""
        with self.lock:
            done = strike()
            live = self._live.get(fact.name)
            if done and live is not None and live.seq == fact.seq:
                again = self._again.pop(fact.name, 0)
                if again > 1:
                    self._again[fact.name] = again - 1
                elif not again:
                    self._end(live)
        self.tell()
        return done

    def drop(self, handle: ListenerHandle) -> None:
        """Ends what a handle is told."""
        with self.lock:
            handle.closed = True
            self._handles = tuple(other for other in self._handles if other is not handle)
            self._watched = tuple(other for other in self._watched if other is not handle)

    @property
    def is_locked(self) -> bool:
        """Whether this thread has the lock."""
        owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def close(self) -> None:
        """Closes all handles; no listener can be added any more. Idempotent."""
        with self.lock:
            self._closed = True
            handles = (*self._handles, *self._watched)
        for handle in handles:
            handle.close()

    def forked(self) -> None:
        """In the child of a fork: the threads that may have held the lock, or were telling, did not
        come along. What they had not told yet is told in the parent.
        """
        unlock(self, self._live, self._queue)
        self.lock = RLock()
        for handle in (*self._handles, *self._watched):
            handle.closed = True
            handle._watch = None
        self._handles = self._watched = ()
        self._queue.clear()
        self._telling = False

    def _end(self, fact: Registration) -> None:
        del self._live[fact.name]
        if self._handles:
            self._queue.append((False, fact, self._handles))

    def _tell_all(self) -> None:
        """See Note [Telling listeners]."""
        while self._queue and not self.is_locked:
            mine = False
            try:
                with self.lock:
                    if self._telling:
                        return
                    mine = self._telling = True
                while self._queue:
                    begins, fact, handles = self._queue.pop(0)
                    for handle in handles:
                        handle.tell_in_turn(begins, fact)
            finally:
                if mine:  # also when a signal's handler has raised
                    self._telling = False
                    with self.lock:
                        pass


def _method(listener: object, name: str) -> Method | None:
    method: Method | None = getattr(listener, name, None)
    if method is not None and not callable(method):
        raise InvalidArgumentError(f"{name} of the listener {shown(listener)} cannot be called")
    return method

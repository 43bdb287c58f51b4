"""Listeners are told of every operator that is defined, and of its end.

A listener hears what this interpreter defines (or, in a worker, verifies). A listener for
*everywhere* hears what any interpreter and process defines: see facts/watch.py.

Note [Telling listeners]
A thread commits a definition, or the end of one, under ``Listeners.lock``. Before it releases the
lock it adds the event to a queue, together with the listeners of that moment: the queue has the
order of the commits. Listeners are called outside of the lock, by one thread at a time, the teller.
A thread that finds a teller at work leaves its events to it and goes on.

No deadlock is possible: no thread waits for a listener, and no listener is called under a lock of
ours. So a listener may do anything, also define operators and add and close listeners. The events
that it causes are told, in order, after the one that it is being told.

No event stays untold. A thread that leaves its event to the teller has seen, under the lock, that
the teller was at work. When the teller stops, it takes the lock once more and looks at the queue
again afterwards.

The lock is reentrant: garbage collection and signals run other people's code at any point, also
while the lock is held, and that code may define an operator. Its event is queued at once (before
the definition whose commit it interrupted) and told when the lock has been released. (Only a
listener that such code adds itself has to hear at once what is there.)

The thread that adds a listener tells it what is there already. Events that other threads would tell
it meanwhile are kept (``ListenerHandle._backlog``) until that thread gets to them.
"""

from __future__ import annotations

from .. import errors
from ..forking import new_lock
from .native import unlock
from .registration import Handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .abc import Facts
    from .registration import Registration
    from .watch import Watch

    Method = Callable[[object], object]

__all__ = ["ListenerHandle", "Listeners"]


class ListenerHandle(Handle):
    """A listener that is listening, until ``close()`` or the end of a ``with`` block.

    ``closed`` says whether it has ended. A handle to which no reference is left goes on listening.
    In the child of a fork all handles are closed: add the listeners again that you want there.
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
            from ..errors.words import shown

            raise errors.InvalidArgumentError(
                "a listener has a method on_operator_registered(registration) or "
                f"on_operator_deregistered(registration), or both: {shown(listener)} has neither"
            )
        self._backlog: list[tuple[bool, Registration]] | None = None
        self._watch: Watch | None = None
        self.closed = False

    def close(self) -> None:
        """Ends the listening. Idempotent.

        When it returns, another thread may still be in a call of the listener that it has begun
        before; no other call follows.
        """
        self._listeners.drop(self)
        if self._watch is not None:
            self._watch.end()

    def __repr__(self) -> str:
        return f"<mdispatch.ListenerHandle {'closed' if self.closed else 'listening'}>"

    # --- for this module and facts/watch.py

    @property
    def is_locked(self) -> bool:
        """Whether this thread holds the lock of the listeners."""
        return self._listeners.is_locked

    def tell(self, begins: bool, fact: Registration) -> None:
        """Calls the listener, unless it has been closed."""
        self._call(self._registered if begins else self._deregistered, fact, fact.name)

    def tell_gone(self, error: Exception) -> None:
        self._call(self._gone, error, "the registry's end")

    def tell_in_turn(self, begins: bool, fact: Registration) -> None:
        """The same, but in order: while the thread that adds the listener still tells it what is
        there, the event is kept for that thread.
        """
        if self._backlog is not None:
            with self._listeners.lock:
                if self._backlog is not None:
                    self._backlog.append((begins, fact))
                    return
        self.tell(begins, fact)

    def catch_up(self, there: list[tuple[bool, Registration]]) -> None:
        """Tells what was there when the listener was added, then the events since."""
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
        except BaseException as error:  # whatever it is: the operator is defined all the same
            from ..errors.unraisable import report

            message = f"Exception ignored in a registration listener that was told of {what}"
            report(error, message, method)


class Listeners:
    """The listeners of one :class:`mdispatch.Registry`, and the events that they are still to hear.

    In a worker several libraries can verify one definition: it is told once. It ends with the last
    of these libraries, or when another definition of the name takes its place.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._live: dict[str, Registration] = {}  # by name, in the order of the commits
        self._again: dict[str, int] = {}  # how often beyond the first time
        self._handles: tuple[ListenerHandle, ...] = ()
        self._watched: tuple[ListenerHandle, ...] = ()  # those for everywhere
        self._queue: list[tuple[bool, Registration, tuple[ListenerHandle, ...]]] = []
        self._telling = False
        self._closed = False
        self.lock = new_lock()

    def add(self, listener: object, everywhere: bool = False) -> ListenerHandle:
        """Adds a listener: an object with ``on_operator_registered(registration)``,
        ``on_operator_deregistered(registration)``, or both. (c10: addRegistrationListener)

        Before this returns, the listener hears of every operator that is defined, in the order of
        the definitions. From then on it hears of every definition and of every end of one, in the
        order of the commits. It does not hear of kernels. It may use the registry, and it may take
        its time, though the other listeners wait for it. An exception that it raises goes to
        ``sys.unraisablehook``. When several threads define at once, one of them may tell for all:
        then ``define()`` returns in the other threads before the listener has heard.

        These are the definitions of this interpreter; in a worker, those that it has verified. With
        ``everywhere`` they are all definitions of the registry, from every interpreter and process,
        and a thread of the listener's own calls it. That thread looks at the registry again and
        again. It may miss a definition that came and went between two looks. After each look it
        tells the ends first, then the definitions; definitions are always in order. When the main
        interpreter closes the registry or dies, the method ``on_registry_gone(error)`` is called,
        if there is one, and the handle is closed. The end of this interpreter closes the handle
        too, after a call that is under way. (Python 3.11 ends no sub-interpreter that has threads:
        there, close the handle before.)

        Raises InvalidArgumentError, RegistryClosedError; with ``everywhere`` also
        WaitCancelledError (this interpreter shuts down), RuntimeError (no thread could be started).
        """
        handle = ListenerHandle(self, listener)
        try:
            with self.lock:
                if self._closed:
                    raise errors.RegistryClosedError(
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
                from .watch import Watch

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
        """Commits a definition by calling ``commit``, and tells the listeners."""
        with self.lock:
            fact = commit()
            self.note(fact)
        self.tell()
        return fact

    def note(self, fact: Registration) -> None:
        """Queues a definition. Call it under the lock, after the commit, then :meth:`tell`."""
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

    def stands_in(self, fact: Registration) -> None:
        """Has a definition stand for the one of its name that was noted, which is no change."""
        self._live[fact.name] = fact

    def tell(self) -> None:
        """Tells the listeners what is queued."""
        if self._queue:
            self._tell_all()

    def is_defined(self, name: str) -> bool:
        """Whether this interpreter has defined the operator, or verified its definition."""
        return name in self._live

    def definitions(self) -> list[Registration]:
        """Those that this interpreter has made, or verified."""
        return list(self._live.values())

    def definition(self, name: str) -> Registration | None:
        """The definition of an operator that this interpreter has made, or verified."""
        return self._live.get(name)

    def removed(self, fact: Registration, remove: Callable[[], bool]) -> bool:
        """Ends a definition by calling ``remove``, and tells the listeners if that returns True."""
        with self.lock:
            done = remove()
            if done:
                self.ended(fact)
        self.tell()
        return done

    def ended(self, fact: Registration) -> None:
        """Queues the end of a definition. Call it under the lock, after the remove, then
        :meth:`tell`.
        """
        live = self._live.get(fact.name)
        if live is not None and live.seq == fact.seq:
            again = self._again.pop(fact.name, 0) if self._again else 0
            if again > 1:
                self._again[fact.name] = again - 1
            elif not again:
                self._end(live)

    def drop(self, handle: ListenerHandle) -> None:
        """Closes a handle: it is told nothing more."""
        with self.lock:
            handle.closed = True
            self._handles = tuple(other for other in self._handles if other is not handle)
            self._watched = tuple(other for other in self._watched if other is not handle)

    @property
    def is_locked(self) -> bool:
        """Whether this thread holds the lock."""
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
        """In the child of a fork, which lacks the threads that may have held the lock or were
        telling. The parent tells what they had not told yet.
        """
        unlock(self, self._live, self._queue)
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
                while True:
                    if not self._queue:
                        break
                    begins, fact, handles = self._queue.pop(0)
                    for handle in handles:
                        handle.tell_in_turn(begins, fact)
            finally:
                if mine:  # also after an exception from a signal handler
                    self._telling = False
                    with self.lock:
                        pass


def _method(listener: object, name: str) -> Method | None:
    method: Method | None = getattr(listener, name, None)
    if method is not None and not callable(method):
        from ..errors.words import shown

        raise errors.InvalidArgumentError(
            f"{name} of the listener {shown(listener)} cannot be called"
        )
    return method

"""A library as something that is opened, holds what it has registered, and is closed. What it
registers is in library.py.
"""

from __future__ import annotations

from _thread import RLock

from . import _registry as facts
from . import errors
from ._arguments import check_namespace, check_reserved, key_or_none
from ._keys import DispatchKey
from ._logs import described, registry_log
from ._nearest import shown
from ._place import caller, place_of
from ._places import Places
from ._registering import KernelHandle, RegistrationHandle, open_namespace
from ._roles import DEFAULT_TIMEOUT
from .registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, TracebackType
    from typing import Any, TypeVar

    from ._registry import Registration

    L = TypeVar("L", bound="OpenLibrary")

__all__ = ["OpenLibrary"]


class OpenLibrary:
    """What libraries have in common with nothing registered yet. The arguments are Library's."""

    def __init__(
        self,
        namespace: str,
        kind: str,
        dispatch_key: DispatchKey | str = "",
        *,
        registry: Registry | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        _tag: str = "",
        _place: str = "",
        _replaces: bool = False,
    ) -> None:
        check_namespace(namespace, kind)
        if not _place:  # there, PyTorch's own register in its namespaces
            check_reserved(namespace, kind)
        self.key = key_or_none(dispatch_key)
        if self.key is not None and kind != "IMPL":
            raise errors.InvalidArgumentError(
                f"a {kind} library serves all keys; give dispatch_key to an IMPL library, or "
                "to impl()"
            )
        self.namespace = namespace
        self.kind = kind
        self.timeout = facts.check_timeout(timeout)
        self.registry = given_or_default(registry)
        frame = None if _place else caller()
        self._place = _place
        self.where = _place or place_of(frame)
        self._places = Places()
        self.closed = False
        self._is_counted = False  # among the open libraries of the namespace
        self._handles: list[RegistrationHandle] = []
        # Asked once: a registration takes hardly longer than the question.
        self._is_told = registry_log.listens()
        self._lock = RLock()  # over _handles and closed
        self._replaced: dict[str, Registration] = {}
        self._stub = ""  # what names the Python module of later definitions
        self._code: CodeType | None = None  # of the module that opened it, where that is asked for
        # Only a DEF library, one opened by a module's own top-level code, or one of which the tag
        # says all, is the same one when it is opened again; a function may open many from one
        # place. Never one whose place was made up.
        self._identity = (namespace, kind, str(self.key), self.where, _tag)
        is_module = frame is not None and frame.f_code.co_name == "<module>"
        if _replaces and is_module and frame is not None:
            # The lines may be others when a module, or a cell of a notebook, is run again. Within
            # one run a second one is a mistake, and not the same.
            self._code = frame.f_code
            identity = (*self._identity[:3], str(frame.f_globals.get("__name__")), _tag)
            earlier = self.registry._libraries.get(identity)
            if earlier is None or earlier.where == self.where or earlier._code is not self._code:
                self._identity = identity
        self.registry.open_namespace(namespace, self.where)
        self._is_counted = True
        try:
            if is_module or _replaces or (kind == "DEF" and not _place):
                self._replace()
            if kind == "DEF":
                self._hold(open_namespace(self.registry, namespace, self._here, self.timeout))
        except BaseException:
            self.close()
            raise

    def _replace(self) -> None:
        """Takes the place of the same library as it was opened before."""
        earlier = self.registry._libraries.get(self._identity)
        if earlier is not None:
            self._replaced = earlier._definitions()
            earlier.close()
        library: Any = self  # every one is a Library
        self.registry._libraries[self._identity] = library

    # --- ending

    def close(self) -> None:
        """Ends every registration of this library, newest first. Idempotent."""
        with self._lock:
            self.closed = True
            handles, self._handles = self._handles, []
            is_counted, self._is_counted = self._is_counted, False
        if self.registry._libraries.get(self._identity) is self:
            self.registry._libraries.pop(self._identity, None)
        try:
            end = _end_told if registry_log.listens() else _end
            for handle in reversed(handles):
                end(handle)
        finally:
            if is_counted:
                self.registry.close_namespace(self.namespace)

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """A block that raises leaves nothing registered; a block that ends well keeps
        everything.
        """
        if exc_type is not None:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<mdispatch.Library {self.kind} {self.namespace!r} from {self.where}{state}>"

    # --- helpers

    def _check_open(self) -> None:
        if self.closed:
            raise errors.LibraryClosedError(
                f"library {self.namespace!r} from {self.where} is closed; open another",
                self.namespace,
            )

    def _key(self, dispatch_key: DispatchKey | str, what: object) -> DispatchKey:
        key = key_or_none(dispatch_key)
        if key is None:
            return self.key or DispatchKey.CompositeImplicitAutograd
        if self.key is not None and key is not self.key:
            raise errors.InvalidKeyError(
                f"this library is for {self.key.name}: register {shown(what)} at {key.name} in "
                "another one",
                key,
            )
        return key

    def _hold(self, handle: RegistrationHandle | None) -> None:
        """Keeps a handle until the library is closed. LibraryClosedError when that came first.

        Without the lock: ``close`` says that it closes, then takes the handles. Whoever still finds
        the library open afterwards has added to those that will be taken; who does not ends its own
        one, which may be taken all the same and ends once.
        """
        if handle is not None:
            self._handles.append(handle)
            if not self.closed:
                if self._is_told:
                    self._tell(handle)
                return
            handle.close()
        self._check_open()

    def _tell(self, handle: RegistrationHandle) -> None:
        """For the log: what this interpreter registered. What it verified is told by _roles.py."""
        registry, fact = self.registry, _known_fact(handle)
        if fact is not None and (registry.is_main or registry._facts.is_mine(fact)):
            registry_log.tell("registered %s from %s", described(*fact.what), fact.where)
        registry.tell_of_recoveries()

    def _let_go(self, handles: Iterable[RegistrationHandle | None]) -> None:
        """Ends some of the registrations, the last one first."""
        end = _end_told if registry_log.listens() else _end
        for handle in reversed([each for each in handles if each is not None]):
            with self._lock:
                if handle in self._handles:
                    self._handles.remove(handle)
            end(handle)

    def _definitions(self) -> dict[str, Registration]:
        """What this library has defined, by name."""
        kernel = KernelHandle  # of which there is no need to know more
        found = (each.registration for each in self._handles if not isinstance(each, kernel))
        return {fact.name: fact for fact in found if fact is not None and fact.kind == facts.DEF}

    def _here(self) -> str:
        return self._place or self._places.here()


def _end(handle: RegistrationHandle) -> None:
    handle.close()


def _end_told(handle: RegistrationHandle) -> None:
    fact = _known_fact(handle)
    handle.close()
    if fact is not None:
        registry_log.tell("let go of %s", described(*fact.what))


def _known_fact(handle: RegistrationHandle) -> Registration | None:
    """The fact, where it is still to be had: only the log asks, which is no reason to fail."""
    try:
        return handle.registration
    except errors.MdispatchError:
        return None

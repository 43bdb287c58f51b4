"""Shared libraries with operators and kernels in C.

The process loads a library once and reads its block, which lists operators and kernels
(core/contract/load.c). Each interpreter that loads the library registers or verifies them; other
interpreters of the process can call them, too. Either all of them are registered, or none.
"""

from __future__ import annotations

import os

from .. import errors, seam
from ..dispatch.checks import check_namespace, check_reserved
from ..dispatch.plugs import Plug
from ..errors.locations import Location, registrants_location
from ..errors.words import shown
from ..facts import DEF, Handle
from ..facts.native import c_kernels
from ..facts.native.calls import surely
from ..facts.native.constants import MD_CLASS
from ..facts.waits import check_timeout
from ..keys.numbers import DispatchKey
from .c_kernels import implement_in_c
from .register import define, open_namespace
from .roles import leave_queue, queue_up
from .type_facts import keep_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from .register import RegistrationHandle

__all__ = ["LoadedLibrary", "load_library", "loaded_libraries"]

_NOT_FOUND, _NO_BLOCK, _OTHER_ABI = -9, -15, -16  # md_status, as md_load() returns them
_KINDS = {1: "DEF", 2: "FRAGMENT"}  # mdispatch_kernels.h, md_library_kind


class LoadedLibrary(Handle):
    """The registrations of one shared library in this interpreter. ``close`` ends them.

    ``operators`` are the names that it defines, ``kernels`` pairs of an operator's name and a
    dispatch key, ``classes`` the names of its classes, as schemas write them.
    """

    __slots__ = (
        "_handles",
        "_dispatcher",
        "_is_queued",
        "classes",
        "closed",
        "kernels",
        "namespace",
        "operators",
        "path",
    )

    def __init__(self, dispatcher: Dispatcher, path: str, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        self.operators: tuple[str, ...] = ()
        self.kernels: tuple[tuple[str, DispatchKey], ...] = ()
        self.classes: tuple[str, ...] = ()
        self.closed = False
        self._dispatcher = dispatcher
        self._handles: list[RegistrationHandle] = []
        self._is_queued = True  # by load_library

    def close(self) -> None:
        """Ends every registration of the library, newest first. The code stays loaded. Idempotent;
        does nothing once the registry is closed.
        """
        surely(self._close)

    def _close(self) -> None:
        """Goes on where a signal handler that raised has ended it."""
        self.closed = True
        loaded = self._dispatcher.of(LoadedLibraries).by_number
        for key in [key for key, library in loaded.items() if library is self]:
            del loaded[key]
        try:
            while True:
                if not self._handles:
                    break
                self._handles[-1].close()
                self._handles.pop()
        finally:
            is_queued, self._is_queued = self._is_queued, False
            if is_queued:
                surely(leave_queue, self._dispatcher, self.namespace)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<mdispatch library {self.path} of {self.namespace!r}{state}>"


class LoadedLibraries(Plug):
    """The shared libraries that are loaded for one registry, by their number in this process."""

    __slots__ = ("by_number",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.by_number: dict[int, LoadedLibrary] = {}


def loaded_libraries(dispatcher: Dispatcher) -> set[str]:
    return {library.path for library in dispatcher.of(LoadedLibraries).by_number.values()}


def load_library(
    dispatcher: Dispatcher, path: str | os.PathLike[str], timeout: float | None
) -> LoadedLibrary:
    """See Ops.load_library."""
    timeout = check_timeout(timeout)
    number, namespace, kind, where, items = _block(path)
    loaded = dispatcher.of(LoadedLibraries).by_number
    known = loaded.get(number)
    if known is not None:
        return known
    check_namespace(namespace, _KINDS[kind])
    check_reserved(namespace, _KINDS[kind])
    keep_up(dispatcher)
    library = LoadedLibrary(dispatcher, os.fspath(path), namespace)
    queue_up(dispatcher, namespace, where)
    try:
        _register(library, _KINDS[kind], where, items, timeout)
        loaded[number] = library
    except BaseException:  # perhaps of a signal handler
        held = [handle.registration for handle in library._handles]
        surely(dispatcher.end_unheld, held)
        library.close()
        raise
    return library


def _block(path: Any) -> tuple[int, str, int, str, list[Any]]:
    """What the block of a library says, and a number for the library in this process."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise errors.InvalidArgumentError(
            f"load_library takes the path of a shared library, not {shown(path)}"
        )
    status, text, found = c_kernels.load(encoded)
    if status:
        raise errors.LibraryLoadError(
            f"{os.fspath(path)!r} cannot be loaded: {text}\n{_advice(encoded, status)}",
            os.fspath(path),
        )
    number, namespace, kind, where, items = found
    return number, namespace, kind, where, items


def _advice(path: bytes, status: int) -> str:
    if status == _NO_BLOCK:
        return "Write one: MDISPATCH_LIBRARY(namespace, m) { ... }, see mdispatch_kernels.h."
    if status == _OTHER_ABI:
        return "Compile it with the header of this mdispatch: python -m mdispatch.config --cflags."
    if status == _NOT_FOUND and b"/" not in path:
        return (
            "The system looks for a name without a slash only in its own folders of libraries: "
            "give a path."
        )
    return "Nothing from it was registered."


def _register(
    library: LoadedLibrary, kind: str, where: str, items: list[Any], timeout: float | None
) -> None:
    dispatcher, namespace = library._dispatcher, library.namespace
    module = registrants_location().module  # the lines are those of the library's source

    def keep(handle: RegistrationHandle | None) -> None:
        if handle is not None:
            library._handles.append(handle)

    dispatcher.facts.forget_published()
    if kind == "DEF":
        keep(open_namespace(dispatcher, namespace, Location(where, module).itself, timeout))
    for what, number, text, label, location, spec in items:
        here = Location(location, module).itself
        dispatcher.facts.forget_published()
        if what == DEF:
            name, handle = define(dispatcher, text, namespace, here, timeout, forward=None)
            library.operators += (name,)
        elif what == MD_CLASS:
            name, handle = seam.at("a class of a library in C")(
                dispatcher, text, label, here, timeout
            )
            library.classes += (name,)
        else:
            key = DispatchKey(number)
            handle = implement_in_c(dispatcher, text, key, label, spec, here, timeout)
            library.kernels += ((text, key),)
        keep(handle)

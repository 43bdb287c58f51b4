"""Shared libraries with operators and kernels in C.

The process loads a library once and asks its block what it brings (native/core/load.c). Each
interpreter that loads it registers or verifies that; the others can call what it brings all the
same. Either all of it is registered, or nothing.
"""

from __future__ import annotations

import os

from . import errors
from ._arguments import check_namespace, check_reserved
from ._keys import DispatchKey
from ._native import c_kernels
from ._nearest import shown
from ._registering import define, open_namespace
from ._registering_c import implement_in_c
from ._registry import check_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._registering_base import RegistrationHandle
    from .registry import Registry

__all__ = ["LoadedLibrary", "load_library", "loaded_libraries"]

_DEF = 2  # mdispatch.h, md_kind
_NOT_FOUND, _NO_BLOCK, _OTHER_ABI = -9, -15, -16  # md_status, as md_load() returns them
_KINDS = {1: "DEF", 2: "FRAGMENT"}  # mdispatch_kernels.h, md_library_kind


class LoadedLibrary:
    """What one shared library has registered, or verified, in this interpreter. ``close`` ends it.

    ``operators`` are the names that it defines, ``kernels`` pairs of an operator's name and a
    dispatch key.
    """

    __slots__ = ("_handles", "_registry", "closed", "kernels", "namespace", "operators", "path")

    def __init__(self, registry: Registry, path: str, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        self.operators: tuple[str, ...] = ()
        self.kernels: tuple[tuple[str, DispatchKey], ...] = ()
        self.closed = False
        self._registry = registry
        self._handles: list[RegistrationHandle] = []

    def close(self) -> None:
        """Ends every registration of the library, newest first. The code stays loaded. Idempotent;
        does nothing once the registry is closed.
        """
        if self.closed:
            return
        self.closed = True
        loaded = self._registry._loaded_libraries
        for key in [key for key, library in loaded.items() if library is self]:
            del loaded[key]
        try:
            while self._handles:
                self._handles.pop().close()
        finally:
            self._registry.close_namespace(self.namespace)

    def __enter__(self) -> LoadedLibrary:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<mdispatch library {self.path} of {self.namespace!r}{state}>"


def loaded_libraries(registry: Registry) -> set[str]:
    return {library.path for library in registry._loaded_libraries.values()}


def load_library(
    registry: Registry, path: str | os.PathLike[str], timeout: float | None
) -> LoadedLibrary:
    """See Ops.load_library."""
    timeout = check_timeout(timeout)
    number, namespace, kind, where, items = _block(path)
    known = registry._loaded_libraries.get(number)
    if known is not None:
        return known
    check_namespace(namespace, _KINDS[kind])
    check_reserved(namespace, _KINDS[kind])
    library = LoadedLibrary(registry, os.fspath(path), namespace)
    registry.open_namespace(namespace, where)
    try:
        _register(library, _KINDS[kind], where, items, timeout)
    except BaseException:
        library.close()
        raise
    registry._loaded_libraries[number] = library
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
            "A name without a slash is looked for where the system has its libraries: give a path."
        )
    return "Nothing of it is registered."


def _register(
    library: LoadedLibrary, kind: str, where: str, items: list[Any], timeout: float | None
) -> None:
    registry, namespace = library._registry, library.namespace

    def keep(handle: RegistrationHandle | None) -> None:
        if handle is not None:
            library._handles.append(handle)

    if kind == "DEF":
        keep(open_namespace(registry, namespace, lambda: where, timeout))
    for what, number, text, label, place, spec in items:
        here = place.__str__
        if what == _DEF:
            name, handle = define(registry, text, namespace, here, timeout)
            library.operators += (name,)
        else:
            key = DispatchKey(number)
            handle = implement_in_c(registry, text, key, label, spec, here, timeout)
            library.kernels += ((text, key),)
        keep(handle)

"""Registers or verifies kernels in C: those of a library that is loaded, or one by one.

The registration is like that of any kernel. The function is kept in the table of the process, under
the registration's label. It is put there before the registration is registered, so that an
interpreter that sees the registration finds the function; it is removed after the registration was
removed.
"""

from __future__ import annotations

import sys
from time import monotonic

from .. import facts
from ..dispatch.kernels import C_LABEL, LocalKernel
from ..errors import InvalidArgumentError
from ..facts.backing import check_shared
from ..facts.native import c_kernels
from ..facts.native.alone import not_shared
from ..facts.shared import SharedRegistry
from ..facts.status import error_for
from .register import (
    RegistrationHandle,
    definition_for,
    publish,
    refuse_override,
    verified,
)
from .roles import register_or_verify
from .verify import verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..keys.numbers import DispatchKey
    from .register import Where
    from .roles import Wanted

    Spec = tuple[int, int, int, int]

# --- functions of cffi ----------------------------------------------------------------------------
#
# Kernels given as cffi's pointers to functions.
#
# A pointer to a function of the boxed type (mdispatch_kernels.h, md_kernel) becomes a kernel of the
# process: each of its interpreters can call the function, although cffi's object belongs to one.
# cffi itself calls a pointer of any other type, with the arguments as they are; such a pointer is a
# kernel of this interpreter alone, like a function in Python.


#: The type of boxed kernels, as cffi writes it: without const.
_BOXED = "int(*)(md_call *, md_value *, size_t, md_value *, size_t)"


def _type_of(function: Any) -> str:
    backend: Any = sys.modules["_cffi_backend"]
    return str(backend.typeof(function).cname).replace("struct ", "")


def _address(function: Any) -> int:
    # repr() shows the address, too, but not that of a null pointer.
    backend: Any = sys.modules["_cffi_backend"]
    unsigned = backend.new_primitive_type("uintptr_t")
    return int(backend.cast(unsigned, function))


def kernel_address(function: Any, with_more: bool) -> tuple[str, tuple[int, int, int, int]] | None:
    """Label and addresses of a boxed kernel; None for any other object of cffi's."""
    if not isinstance(function, _cdata_type()) or _type_of(function) != _BOXED:
        return None
    if with_more:
        raise InvalidArgumentError(
            "a kernel in C takes what the operator's schema says, of any type: register it without "
            "with_keyset, signature and types"
        )
    check_shared("A kernel in C")
    address = _address(function)
    label = c_kernels.kernel_label(address)
    if label is None:
        raise InvalidArgumentError(
            f"{function!r} is not in a shared library: a kernel for all interpreters cannot be "
            "made by ffi.callback(), which runs the Python code of one interpreter\nRegister the "
            "Python function itself."
        )
    return label, (address, 0, 0, 0)


def plain_kernel(key: DispatchKey, function: Any, with_keyset: bool, signature: str) -> LocalKernel:
    """The kernel of a pointer that cffi calls."""
    label = ""
    if isinstance(function, _cdata_type()):
        if not _type_of(function).partition("(")[2].startswith("*)"):
            raise InvalidArgumentError(
                f"{function!r} is not a pointer to a function, so it cannot be a kernel"
            )
        found = c_kernels.kernel_label(_address(function))
        label = f"cffi:{found[2:] if found else _type_of(function)}"
    return LocalKernel(key, function, with_keyset, signature, label)


def _cdata_type() -> type:
    backend: Any = sys.modules["_cffi_backend"]
    cdata: type = backend._CDataBase
    return cdata


# --- kernels in C ---------------------------------------------------------------------------------


def implement_in_c(
    dispatcher: Dispatcher,
    name: str,
    key: DispatchKey,
    label: str,
    spec: Spec,
    where: Where,
    timeout: float | None,
    allow_override: bool = True,
) -> RegistrationHandle | None:
    """A kernel in C of an operator, for every interpreter of this process.

    To be verified it needs a registration with the same label at the same key.
    """
    shared = dispatcher.facts
    if not isinstance(shared, SharedRegistry):
        raise not_shared("A kernel in C", "it was made by Registry.local()", shared.label)
    entry = (shared.handle, name, int(key), label, spec)
    status = c_kernels.kernel_put(*entry)
    if status:
        raise error_for(status, shared.label)
    handle = None

    def drop() -> None:
        c_kernels.kernel_drop(*entry)

    try:
        handle = implement_by_label(
            dispatcher, name, key, label, where, timeout, allow_override, drop
        )
    finally:
        if handle is None:
            drop()
    return handle


def implement_by_label(
    dispatcher: Dispatcher,
    name: str,
    key: DispatchKey,
    label: str,
    where: Where,
    timeout: float | None,
    allow_override: bool = True,
    drop: Callable[[], object] = lambda: None,
) -> RegistrationHandle | None:
    """A kernel that interpreters make by its label. ``drop`` is called when it has ended."""
    return register_or_verify(dispatcher, _wanted, _register, _verify)(
        dispatcher, name, key, label, where, timeout, allow_override, drop
    )


def _wanted(
    dispatcher: Dispatcher,
    name: str,
    key: DispatchKey,
    label: str,
    where: Where,
    timeout: float | None,
    allow_override: bool,
    drop: Callable[[], object],
) -> Wanted:
    def is_enough(same: Sequence[Registration]) -> bool:
        return any(fact.body == label for fact in same)

    return facts.IMPL, key, name, is_enough


def _register(
    dispatcher: Dispatcher,
    name: str,
    key: DispatchKey,
    label: str,
    where: Where,
    timeout: float | None,
    allow_override: bool,
    drop: Callable[[], object],
) -> RegistrationHandle:
    here = where()
    if not allow_override:
        refuse_override(dispatcher, name, key, here)
    fact = publish(dispatcher, facts.IMPL, key, name, label, here)
    _note(dispatcher, key, label, definition_for(dispatcher, name))
    return RegistrationHandle(fact, lambda: dispatcher.facts.remove(fact), drop)


def _note(
    dispatcher: Dispatcher, key: DispatchKey, label: str, definition: Registration | None
) -> None:
    if definition is not None and label.startswith(C_LABEL):
        from ..dispatch.c_kernels import note_definition  # most programs have no kernels in C

        note_definition(dispatcher.facts, key, label, definition)


def _verify(
    dispatcher: Dispatcher,
    name: str,
    key: DispatchKey,
    label: str,
    where: Where,
    timeout: float | None,
    allow_override: bool,
    drop: Callable[[], object],
) -> RegistrationHandle | None:
    """Waits for a registration with the label. A registration with another label belongs to
    somebody else, whatever its number: to another library, or to a kernel in Python, which no
    function in C may stand for. Registrations of kernels for types and of providers do not count,
    as everywhere where kernels without either are verified.
    """
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        _, _, there = dispatcher.facts.registrations(name)
        same = [
            fact
            for fact in there
            if (fact.kind, fact.key) == (facts.IMPL, key) and not fact.variant
        ]
        ours = next((fact for fact in reversed(same) if fact.body == label), None)
        found = verify(
            dispatcher, facts.IMPL, key, name, label, where,
            at_least=len(same) + 1 if ours is None else 1,
            timeout=None if deadline is None else max(0.0, deadline - monotonic()),
        )  # fmt: skip
        if found is None:
            return None
        if ours is not None:
            entry = dispatcher.entry(name, is_kept=True)
            definition = definition_for(dispatcher, name)
            _note(dispatcher, key, label, definition)
            end = entry.keep_label(key, label, definition)
            return verified(dispatcher, ours.what, ours, end, drop)

"""Kernels given as cffi's pointers to functions.

A pointer to a function of the boxed type (mdispatch_kernels.h, md_kernel) becomes a kernel of the
process: every interpreter of it can call the function, although cffi's object belongs to one. A
pointer of any other type is called by cffi itself, with the arguments as they are; so it is a
kernel of this interpreter alone, as a function in Python is.
"""

from __future__ import annotations

import sys

from ._kernels import LocalKernel
from ._native import c_kernels
from .errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._keys import DispatchKey

__all__ = ["kernel_address", "plain_kernel"]

#: The type of boxed kernels, as cffi writes it: without const.
_BOXED = "int(*)(md_call *, md_value *, size_t, md_value *, size_t)"


def _type_of(function: Any) -> str:
    backend: Any = sys.modules["_cffi_backend"]
    return str(backend.typeof(function).cname).replace("struct ", "")


def _address(function: Any) -> int:
    # repr() has it, too, but that of a null pointer is another one.
    backend: Any = sys.modules["_cffi_backend"]
    unsigned = backend.new_primitive_type("uintptr_t")
    return int(backend.cast(unsigned, function))


def kernel_address(function: Any, with_more: bool) -> tuple[str, tuple[int, int, int, int]] | None:
    """Label and addresses of a boxed kernel; None for any other object of cffi's."""
    if not isinstance(function, _cdata_type()) or _type_of(function) != _BOXED:
        return None
    if with_more:
        raise InvalidArgumentError(
            "a kernel in C takes what the operator's schema says: register it without with_keyset "
            "and signature"
        )
    address = _address(function)
    label = c_kernels.kernel_label(address)
    if label is None:
        raise InvalidArgumentError(
            f"{function!r} is in no shared library: a kernel of all interpreters cannot be made by "
            "ffi.callback(), which runs Python of one\nRegister the Python function itself."
        )
    return label, (address, 0, 0, 0)


def plain_kernel(key: DispatchKey, function: Any, with_keyset: bool, signature: str) -> LocalKernel:
    """A pointer that cffi calls."""
    label = ""
    if isinstance(function, _cdata_type()):
        if not _type_of(function).partition("(")[2].startswith("*)"):
            raise InvalidArgumentError(
                f"{function!r} is no pointer to a function, so it cannot be a kernel"
            )
        found = c_kernels.kernel_label(_address(function))
        label = f"cffi:{found[2:] if found else _type_of(function)}"
    return LocalKernel(key, function, with_keyset, signature, label)


def _cdata_type() -> type:
    backend: Any = sys.modules["_cffi_backend"]
    cdata: type = backend._CDataBase
    return cdata

"""Shape, element type and strides of an object that only speaks DLPack.

Array libraries give their arrays a shape; a bare DLPack object has it in the struct of its capsule.
The capsule is read and not consumed, so its owner frees it. Loaded for such objects only, because
ctypes is large.

(dlpack.h: DLManagedTensor, DLTensor, DLDataTypeCode)
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    """The start of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def described(value: Any) -> tuple[tuple[int, ...], str, tuple[int, ...] | None]:
    """Shape, name of the element type and strides of a DLPack object.

    Raises ValueError if its capsule is not one of DLPack's.
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = value.__dlpack__()
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    kind = _KINDS.get(tensor.code, f"dlpack{tensor.code}_")
    name = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
    if tensor.lanes != 1:
        name += f"x{tensor.lanes}"
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    return tuple(tensor.shape[: tensor.ndim]), name, strides

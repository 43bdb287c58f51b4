"""Arrays on their way: those of NumPy, and tensors of PyTorch on the CPU.

An array is memory with a *form*, a text: whose array it is, the type of its items, and for a tensor
its shape. native/bind/ext/parcel.c asks memory_of() for both where it meets what is no plain value,
and array_of() for the array where they arrive. The receiver gets an array of the same library, or
of the one that ``routing(arrays=...)`` names.

A library is looked at where the program has imported it. It is imported for an array that comes
from the same library, in a main interpreter only: the modules of both libraries in C serve one
interpreter of a process.

A tensor knows no memory that is read-only. So where the kernel may not write, it gets a tensor with
a copy of the memory; an array of NumPy is read-only there, without a copy.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar

from ..dispatch.context.homes import here
from ..errors import CannotTravelError
from ..facts.native import interpreter_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: The kinds of arrays in results; "" for those that the kernel has returned.
NUMPY, TORCH, MEMORY = "numpy", "torch", "memory"
KINDS = (NUMPY, TORCH, MEMORY)
asked: ContextVar[str] = ContextVar("mdispatch.arrays", default="")


def asking(arrays: str, call: Callable[..., Any], *args: Any) -> Any:
    """Makes a call, whose result has these arrays."""
    if arrays == asked.get():
        return call(*args)
    token = asked.set(arrays)
    try:
        return call(*args)
    finally:
        asked.reset(token)


_TITLES = {NUMPY: "NumPy", TORCH: "PyTorch"}
#: A scalar of NumPy, in a form.
_SCALAR = "numpy.scalar"
#: As VISIT_MAX_NDIM in native/bind/ext/visit.h.
_MOST_DIMENSIONS = 16

#: The kinds of items of NumPy that travel.
_LETTERS = tuple("biufcSUmM")
#: The types of a tensor's items that travel, each with the one of NumPy; "" where that has none.
_ITEMS = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
    "complex32": "",
    "bfloat16": "",
    "float8_e4m3fn": "",
    "float8_e4m3fnuz": "",
    "float8_e5m2": "",
    "float8_e5m2fnuz": "",
    "float8_e8m0fnu": "",
}
_NAMES = {text: name for name, text in _ITEMS.items() if text}
#: The same for memoryview.cast().
_CODES = {"|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i"}
_CODES |= {"<u8": "Q", "<i8": "q", "<f2": "e", "<f4": "f", "<f8": "d"}


# --- where they leave -----------------------------------------------------------------------------


def memory_of(obj: object) -> tuple[str, object] | str | None:
    """The form of an array, and an object that shows its memory. A str says why there is none, as
    error_of() in across/routing.py takes it; None for any other object. Called by C.
    """
    cls = type(obj)
    numpy: Any = sys.modules.get(NUMPY)
    array = getattr(numpy, "ndarray", None)
    if array is not None:
        if cls is array or cls is getattr(numpy, "memmap", None):
            return _of_numpy(obj)
        if isinstance(obj, numpy.generic):
            return _of_numpy(numpy.asarray(obj), _SCALAR)
        if isinstance(obj, array):
            return _subclass(cls, "numpy.ndarray", "numpy.asarray(x)")
    tensor = getattr(sys.modules.get(TORCH), "Tensor", None)
    if tensor is not None and isinstance(obj, tensor):
        if cls is not tensor:
            return _subclass(cls, "torch.Tensor", "a plain tensor, such as x.detach()")
        try:
            return _of_torch(obj)
        except Exception as error:  # of a transform, which has no memory to show
            why = " ".join(str(error).replace("\0", "").split())
            return f"torch.Tensor, whose memory cannot be read: {why}\nSend a plain tensor."
    return None


def _subclass(cls: type, base: str, instead: str) -> str:
    name = f"{cls.__module__}.{cls.__qualname__}"
    return f"{name}, whose base class {base} travels, and it does not\nSend {instead} instead."


def _of_numpy(x: Any, library: str = NUMPY) -> tuple[str, object] | str:
    dtype = x.dtype
    begin = "numpy.ndarray, whose"
    if dtype.hasobject:
        return f"{begin} items are objects of Python ({dtype})\nSend a list of values."
    is_plain = dtype.kind in _LETTERS and dtype.num < 256 and dtype.char not in "gG"
    if not is_plain or not dtype.itemsize:
        return (
            f"{begin} items of {dtype} do not travel\nSend booleans, integers, floats of at most "
            "64 bits, complex numbers of two of these, texts or dates; of a structure, each field."
        )
    if x.ndim > _MOST_DIMENSIONS:
        return f"{begin} {x.ndim} dimensions are more than {_MOST_DIMENSIONS}\nReshape it."
    text = dtype.str
    return f"{library} {text}", x.view(f"{text[0]}i8") if dtype.kind in "mM" else x


def _of_torch(x: Any) -> tuple[str, object] | str:
    torch: Any = sys.modules[TORCH]
    begin = "torch.Tensor, whose"
    if x.device.type != "cpu":
        return f"{begin} memory is on {x.device}, and only that of the CPU travels\nSend x.cpu()."
    if x.layout is not torch.strided or x.is_quantized:
        what = "quantized" if x.is_quantized else x.layout
        return f"{begin} layout {what} does not travel\nSend x.to_dense(), or x.dequantize()."
    name = str(x.dtype).removeprefix("torch.")
    if name not in _ITEMS:
        return f"{begin} items of {x.dtype} do not travel\nSend it as another type."
    if x.dim() > _MOST_DIMENSIONS:
        return f"{begin} {x.dim()} dimensions are more than {_MOST_DIMENSIONS}\nReshape it."
    if x.requires_grad and torch.is_grad_enabled():
        return (
            f"{begin} gradient would be lost: gradients do not go through calls of other processes"
            "\nSend x.detach(), or make the call, or run the kernel, within torch.no_grad()."
        )
    plain = x.detach().resolve_conj().resolve_neg().contiguous()
    form = " ".join((TORCH, name, *map(str, plain.shape)))
    size = plain.numel() * plain.element_size()
    if not size:
        return form, b""
    from ctypes import c_ubyte  # PyTorch has imported it

    shown: Any = (c_ubyte * size).from_address(plain.data_ptr())
    shown.tensor = plain  # whose memory it is
    return form, shown


# --- where they arrive ----------------------------------------------------------------------------


def array_of(form: str, memory: memoryview, is_result: bool) -> Any:
    """The array of a form, over this memory. Called by C. Raises CannotTravelError, and ValueError
    for a text that is no form.
    """
    library, _, rest = form.partition(" ")
    kind = (asked.get() if is_result else "") or library
    if library == TORCH:
        name, *sizes = rest.split(" ")
        if name not in _ITEMS or not all(each.isdigit() for each in sizes):
            raise _damaged()
        shape = [*map(int, sizes)]
        text = _ITEMS[name]
        if not memory.nbytes and 0 not in shape:
            raise _damaged()
    elif library in (NUMPY, _SCALAR) and rest[:1] in tuple("<>|") and rest[1:2] in _LETTERS:
        text, shape = rest, [*(memory.shape or ())]
        name = _NAMES.get(text, "")
    else:
        raise _damaged()
    if kind == MEMORY:
        return _as_memory(memory, text, name, shape, library)
    if kind == TORCH:
        return _as_tensor(memory, text, name, shape, library)
    if library != TORCH:
        return _as_array(memory, text, library, is_result)
    numpy = _library(NUMPY, library)
    if not text:
        raise _not_made(library, f"NumPy has no items of torch.{name}", "Ask for it as a tensor.")
    try:
        return (numpy.frombuffer(memory, text) if memory.nbytes else numpy.empty(0, text)).reshape(
            shape
        )
    except (OverflowError, ValueError):
        raise _damaged() from None


def _as_array(memory: memoryview, text: str, library: str, is_result: bool) -> Any:
    numpy = _library(NUMPY, NUMPY)
    try:
        dtype = numpy.dtype(text)
        made = numpy.asarray(memory)
        if made.dtype != dtype:
            if dtype.kind not in "mM":
                raise _damaged()
            made = made.view(dtype)
    except (TypeError, ValueError):
        raise _damaged() from None
    return made[()] if library == _SCALAR else made


def _as_tensor(memory: memoryview, text: str, name: str, shape: list[int], library: str) -> Any:
    torch = _library(TORCH, library)
    dtype = getattr(torch, name, None) if name else None
    if dtype is None:
        what = f"torch.{name}" if name else text
        raise _not_made(library, f"PyTorch has no items of {what} here", "Send another type.")
    try:
        if not memory.nbytes:
            return torch.empty(shape, dtype=dtype)
        source = bytearray(memory) if memory.readonly else memory
        return torch.frombuffer(source, dtype=dtype).view(shape)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        raise _damaged() from None


def _as_memory(
    memory: memoryview, text: str, name: str, shape: list[int], library: str
) -> memoryview:
    if library != TORCH:
        return memory
    code = _CODES.get(text)
    if code is None:
        raise _not_made(library, f"memory has no items of torch.{name}", "Ask for it as a tensor.")
    if not memory.nbytes:
        return memory  # nothing can be cast to a shape with a zero
    try:
        return memory.cast(code, shape)  # type: ignore[call-overload,no-any-return]
    except (OverflowError, TypeError, ValueError):
        raise _damaged() from None


def _library(name: str, came_from: str) -> Any:
    """The library, which is imported here if the array is its own."""
    module = sys.modules.get(name)
    if module is not None and hasattr(module, "frombuffer"):
        return module
    title = _TITLES[name]
    if interpreter_id:
        why = f"{title} is not imported in this sub-interpreter: an array imports it in a main one"
    elif name != came_from.partition(".")[0]:
        why = f"{title}, which routing() asks for, is not imported here"
    else:
        try:
            return __import__(name)
        except Exception as error:
            first = (str(error) or "no reason is given").splitlines()[0]
            why = f"{title} cannot be imported here: {type(error).__qualname__}: {first}"
    raise _not_made(
        came_from,
        why,
        "Send an argument as memoryview(x). Ask for a result of another kind by "
        'routing(..., arrays="memory"), "numpy" or "torch".',
    )


def _not_made(library: str, why: str, do: str) -> CannotTravelError:
    home = here()
    what = "torch.Tensor" if library == TORCH else "numpy.ndarray"
    text = f"an array ({what}) came to {home}, and {why}\n{do}"
    return CannotTravelError(text, "", str(home), home.pid, value_type=what)


def _damaged() -> ValueError:
    return ValueError("a message of a routed call is damaged: it has an odd array")


def write_back(array: Any, shown: Any) -> None:
    """Copies to an array from the one that was rebuilt of it, where a kernel has written."""
    flags = getattr(shown, "flags", None)
    if flags is None or flags.writeable:
        array[...] = shown

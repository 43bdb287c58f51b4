"""Meta values: a shape, an element type and a device, without data. What fake kernels take and
return.

Operators that are called with them run their fake kernels (see fake.py), which say what the result
would look like, whatever the arrays of the real kernels are: of numpy, of PyTorch, of a class of
one's own. Light enough for code that has no array library at all.
"""

from __future__ import annotations

from ._nearest import shown
from ._shapes import broadcast, checked_shape, checked_sizes, is_same, listed
from .errors import InvalidArgumentError
from .keys import DispatchKeySet
from .values import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ._shapes import Size, Sizes

__all__ = ["MetaTensor", "empty_like", "fake_call"]

#: The devices of DLPack (dlpack.h, DLDeviceType) by the names that array libraries use.
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 7: "vulkan", 8: "mps", 10: "hip", 11: "cpu", 14: "xpu"}

#: None is a dtype like any other, so it cannot stand for "not given".
_SAME: Any = object()


class MetaTensor:
    """What a value looks like, without its data: accepted wherever a schema says Tensor, dispatched
    on Meta. It never changes, and can be pickled.

    ``shape`` is a tuple of sizes, ints from 0 or DynamicSize. ``dtype`` is any object and kept as
    it is; ``device`` is a name. ``strides`` are in elements, one per dimension; None stands for
    those of a contiguous array in C order. Values are equal where shape, dtype and device are.

    Raises InvalidArgumentError. (torch: a tensor of device "meta"; FakeTensor, which has a device
    beside it)
    """

    __slots__ = ("__weakref__", "_strides", "device", "dtype", "shape")

    #: As in PyTorch: with these the kernels of autograd are reached, where there are any.
    __dispatch_keys__ = DispatchKeySet("Meta", "AutogradMeta", "ADInplaceOrView")

    shape: Sizes
    dtype: Any
    device: str
    _strides: Sizes | None

    def __init__(
        self,
        shape: Iterable[Size],
        dtype: Any = None,
        device: str = "cpu",
        *,
        strides: Iterable[Size] | None = None,
    ) -> None:
        sizes = checked_shape(shape)
        steps = None if strides is None else checked_sizes(strides, "strides")
        if steps is not None and len(steps) != len(sizes):
            raise InvalidArgumentError(
                f"strides={listed(steps)} for shape={listed(sizes)}: there is one per dimension"
            )
        if not isinstance(device, str) or not device:
            raise InvalidArgumentError(
                f"device={shown(device)}: it is a name, as 'cpu' or 'cuda:0'; give str() of a "
                "device that is an object"
            )
        put = object.__setattr__
        put(self, "shape", sizes)
        put(self, "dtype", dtype)
        put(self, "device", device)
        put(self, "_strides", steps)

    @classmethod
    def of(cls, value: Any) -> MetaTensor:
        """What ``value`` looks like: an array with ``shape`` (and ``dtype``, ``device``), or what
        has the buffer protocol or speaks DLPack. A meta value is itself.

        Of an array with a method ``stride()`` or with ``strides`` in bytes and an ``itemsize``
        the strides are taken, too. The dtype of a buffer is its format, a str; that of a DLPack
        object without a shape of its own is a name, as "float32".

        Raises InvalidArgumentError for what does not tell its shape. (torch:
        FakeTensorMode.from_tensor)
        """
        if isinstance(value, cls):
            return value
        plain = isinstance(value, (type, memoryview))  # a view has a shape, and no dtype
        shape = None if plain else getattr(value, "shape", None)
        if shape is not None and not callable(shape):
            dtype = getattr(value, "dtype", None)
            return cls(shape, dtype, _device_of(value), strides=_strides_of(value))
        if not plain and hasattr(value, "__dlpack__"):
            try:
                from ._dlpack import described

                shape, dtype, strides = described(value)
            except (
                ImportError,
                ValueError,
                BufferError,
            ) as error:  # no ctypes in some interpreters
                raise _untold(value, f"its DLPack capsule cannot be read here: {error}") from None
            return cls(shape, dtype, _device_of(value), strides=strides)
        try:
            view = memoryview(value)
        except TypeError:
            raise _untold(value, "neither a shape nor a buffer nor DLPack is there") from None
        with view:
            return cls(view.shape or (), view.format, "cpu", strides=_strides_of(view))

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def strides(self) -> Sizes:
        """By how many elements each index moves. (torch: Tensor.stride())"""
        if self._strides is not None:
            return self._strides
        steps: list[Size] = []
        step: Size = 1
        for size in reversed(self.shape):
            steps.append(step)
            # An empty dimension, or one that may be, does not make the others overlap.
            step = step * (max(size, 1) if isinstance(size, int) else size)
        return tuple(reversed(steps))

    def numel(self) -> Size:
        """How many elements it has: the product of its sizes. (torch: Tensor.numel)"""
        count: Size = 1
        for size in self.shape:
            count = count * size
        return count

    def new_empty(
        self, shape: Iterable[Size], *, dtype: Any = _SAME, device: str | None = None
    ) -> MetaTensor:
        """Another one of this shape, with the dtype and device of this one where none are given.

        Raises InvalidArgumentError. (torch: Tensor.new_empty)
        """
        return MetaTensor(
            shape,
            self.dtype if dtype is _SAME else dtype,
            self.device if device is None else device,
        )

    def __add__(self, other: object) -> MetaTensor:
        """What a sum of two looks like: gradients are added up. The sizes have to be equal, or 1
        on one side; dtype and device are those of the left one.
        """
        if not isinstance(other, MetaTensor):
            return NotImplemented
        return self.new_empty(broadcast(self.shape, other.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetaTensor):
            return NotImplemented
        return (
            len(self.shape) == len(other.shape)
            and all(map(is_same, self.shape, other.shape))
            and bool(self.dtype == other.dtype)
            and self.device == other.device
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.device))  # a dtype may be of a class that has no hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MetaTensor.{name} cannot be changed; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"MetaTensor.{name} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.shape, self.dtype, self.device, self._strides)

    def __repr__(self) -> str:
        what = [listed(self.shape)]
        if self.dtype is not None:
            what.append(str(self.dtype) if isinstance(self.dtype, type) else repr(self.dtype))
        if self.device != "cpu":
            what.append(f"device={self.device!r}")
        if self._strides is not None:
            what.append(f"strides={listed(self._strides)}")
        return f"MetaTensor({', '.join(what)})"


def empty_like(value: Any, *, dtype: Any = _SAME, device: str | None = None) -> MetaTensor:
    """A meta value of the shape of ``value``, with its dtype and device where none are given.

    ``value`` is what :meth:`MetaTensor.of` takes. Raises InvalidArgumentError. (torch: empty_like)
    """
    like = MetaTensor.of(value)
    return like.new_empty(like.shape, dtype=dtype, device=device)


def fake_call(op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls ``op`` with the meta value of each tensor among the arguments, also of those in lists,
    tuples and dicts, in place of the tensor: what would come of the call, without the work.

    Raises InvalidArgumentError for a tensor that does not tell its shape, and what the call raises.
    (torch: a call under FakeTensorMode)
    """
    return op(*map(_without_data, args), **{k: _without_data(v) for k, v in kwargs.items()})


def _without_data(value: Any) -> Any:
    if is_tensor(value):
        return MetaTensor.of(value)
    if type(value) in (list, tuple):
        return type(value)(map(_without_data, value))
    if type(value) is dict:
        return {key: _without_data(item) for key, item in value.items()}
    return value


# --- helpers --------------------------------------------------------------------------------------


def _restored(shape: Sizes, dtype: Any, device: str, strides: Sizes | None) -> MetaTensor:
    return MetaTensor(shape, dtype, device, strides=strides)


def _untold(value: Any, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{shown(value)} does not tell its shape, so there is no meta value of it: {why}\nGive its "
        "class an attribute shape (and dtype, device), or make a MetaTensor(shape, dtype) yourself."
    )


def _device_of(value: Any) -> str:
    device = getattr(value, "device", None)
    if device is not None and not callable(device):
        return str(device)
    pair = getattr(value, "__dlpack_device__", None)
    if pair is None:
        return "cpu"
    kind, index = pair()
    name = _DEVICES.get(int(kind), f"dlpack{int(kind)}")
    return name if name == "cpu" else f"{name}:{int(index)}"


def _strides_of(value: Any) -> Sizes | None:
    """In elements; None where the value does not say, or moves by parts of elements."""
    steps = getattr(value, "stride", None)  # PyTorch
    if callable(steps):
        return tuple(steps())
    steps = getattr(value, "strides", None)  # numpy, memoryview
    size = getattr(value, "itemsize", None)
    if not isinstance(steps, tuple) or not isinstance(size, int) or size < 1:
        return None
    return None if any(step % size for step in steps) else tuple(step // size for step in steps)

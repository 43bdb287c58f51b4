"""Meta values: a shape, an element type and a device, without data. Fake kernels take and return
them.

An operator that is called with meta values runs its fake kernel (see fake.py). It says what the
result would look like, whatever the real kernels take: arrays of numpy, tensors of PyTorch, or
objects of a class of one's own. Meta values need no array library.
"""

from __future__ import annotations

from ..dispatch.context.values import is_tensor, is_torch_tensor
from ..errors import DataDependentError, InvalidArgumentError
from ..errors.words import shown
from ..keys import DispatchKeySet
from ..registry.fake_kernels import MetaValue, runs_for_torch
from ..schema.sizes import DynamicSize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    Size = int | DynamicSize
    Sizes = tuple[Size, ...]

__all__ = ["MetaTensor", "empty_like", "fake_call"]

#: The devices of DLPack (dlpack.h, DLDeviceType) by the names that array libraries use.
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 7: "vulkan", 8: "mps", 10: "hip", 11: "cpu", 14: "xpu"}

#: None is a dtype like any other, so it cannot stand for "not given".
_SAME: Any = object()


class MetaTensor(MetaValue):
    """Shape, element type and device of a value, without its data. A meta value is accepted
    wherever a schema says Tensor, and dispatched on Meta. It never changes, and can be pickled.

    ``shape`` is a tuple of sizes, ints from 0 or DynamicSize. ``dtype`` is any object and kept as
    it is; ``device`` is a name. ``strides`` are in elements, one per dimension; None stands for
    those of a contiguous array in C order. Two meta values are equal if shape, dtype and device
    are.

    Raises InvalidArgumentError. (torch: a tensor of device "meta"; FakeTensor, which has a device
    beside it)
    """

    __slots__ = ("__weakref__", "_strides", "device", "dtype", "shape")

    #: As in PyTorch: with these keys a call reaches the kernels of autograd, if there are any.
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
        sizes = _checked_shape(shape)
        steps = None if strides is None else _checked_sizes(strides, "strides")
        if steps is not None and len(steps) != len(sizes):
            raise InvalidArgumentError(
                f"strides={_listed(steps)} for shape={_listed(sizes)}: give one for each dimension"
            )
        if not isinstance(device, str) or not device:
            raise InvalidArgumentError(
                f"device={shown(device)}: it must be a name, such as 'cpu' or 'cuda:0'; for a "
                "device object, give its str()"
            )
        put = object.__setattr__
        put(self, "shape", sizes)
        put(self, "dtype", dtype)
        put(self, "device", device)
        put(self, "_strides", steps)

    @classmethod
    def of(cls, value: Any) -> MetaTensor:
        """The meta value of ``value``: an array with ``shape`` (and ``dtype``, ``device``), or an
        object that has the buffer protocol or speaks DLPack. A meta value is returned as it is.

        The strides are taken too, from an array with a method ``stride()``, or with ``strides`` in
        bytes and an ``itemsize``. The dtype of a buffer is its format, a str; that of a DLPack
        object without a shape of its own is a name, as "float32".

        Raises InvalidArgumentError for a value that does not tell its shape. (torch:
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
                from .dlpack import described

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
            raise _untold(value, "it has no shape, no buffer and no DLPack") from None
        with view:
            return cls(view.shape or (), view.format, "cpu", strides=_strides_of(view))

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def strides(self) -> Sizes:
        """How many elements apart neighbours are, along each dimension.

        Raises DataDependentError where a stride that was not given is no number and no size of the
        shape. (torch: Tensor.stride())
        """
        if self._strides is not None:
            return self._strides
        # An empty dimension, or one that may be, does not make the others overlap.
        sizes = [max(size, 1) if isinstance(size, int) else size for size in self.shape]
        return tuple(_product(sizes[i:], self, "strides") for i in range(1, len(sizes) + 1))

    def numel(self) -> Size:
        """How many elements it has: the product of its sizes.

        Raises DataDependentError where that is no number and no size of the shape. (torch:
        Tensor.numel)
        """
        return _product(self.shape, self, "numel()")

    def new_empty(
        self, shape: Iterable[Size], *, dtype: Any = _SAME, device: str | None = None
    ) -> MetaTensor:
        """A meta value of the given shape. Its dtype and device are those of this one, unless
        others are given.

        Raises InvalidArgumentError. (torch: Tensor.new_empty)
        """
        return MetaTensor(
            shape,
            self.dtype if dtype is _SAME else dtype,
            self.device if device is None else device,
        )

    def __add__(self, other: object) -> MetaTensor:
        """The meta value of a sum, by which autograd adds up gradients. The sizes must be equal, or
        1 on one side; dtype and device are those of the left one.
        """
        if not isinstance(other, MetaTensor):
            return NotImplemented
        return self.new_empty(_broadcast(self.shape, other.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetaTensor):
            return NotImplemented
        return (
            len(self.shape) == len(other.shape)
            and all(map(_is_same, self.shape, other.shape))
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
        what = [_listed(self.shape)]
        if self.dtype is not None:
            what.append(str(self.dtype) if isinstance(self.dtype, type) else repr(self.dtype))
        if self.device != "cpu":
            what.append(f"device={self.device!r}")
        if self._strides is not None:
            what.append(f"strides={_listed(self._strides)}")
        return f"MetaTensor({', '.join(what)})"


def empty_like(value: Any, *, dtype: Any = _SAME, device: str | None = None) -> Any:
    """A meta value of the shape of ``value``, with its dtype and device unless others are given.

    ``value`` is anything that :meth:`MetaTensor.of` takes. In a fake kernel that runs for PyTorch
    it is a tensor, and so is the result. Raises InvalidArgumentError. (torch:
    empty_like)
    """
    if runs_for_torch() and is_torch_tensor(value):
        given = {"dtype": dtype, "device": device}
        asked = {k: v for k, v in given.items() if v is not _SAME and v is not None}
        return value.new_empty(value.shape, **asked)
    like = MetaTensor.of(value)
    return like.new_empty(like.shape, dtype=dtype, device=device)


def fake_call(op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls ``op`` with meta values in place of the tensors among the arguments, those in lists,
    tuples and dicts included: what the call would return, without the work.

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
        f"{shown(value)} has no meta value, because its shape is not known: {why}\nGive its class "
        "an attribute shape (and dtype, device), or make a MetaTensor(shape, dtype) yourself."
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
    """The strides in elements; None if the value does not say, or if they are not whole ones."""
    steps = getattr(value, "stride", None)  # PyTorch
    if callable(steps):
        return tuple(steps())
    steps = getattr(value, "strides", None)  # numpy, memoryview
    size = getattr(value, "itemsize", None)
    if not isinstance(steps, tuple) or not isinstance(size, int) or size < 1:
        return None
    return None if any(step % size for step in steps) else tuple(step // size for step in steps)


# --- shapes: tuples of sizes, some of which may depend on data ------------------------------------


def _is_same(left: Size, right: Size) -> bool:
    """Whether two sizes are known to be the same. (To compare a dynamic size with a number would
    ask for data, and raise.)
    """
    if isinstance(left, DynamicSize) == isinstance(right, DynamicSize):
        return left == right
    size, number = (left, right) if isinstance(left, DynamicSize) else (right, left)
    return isinstance(size, DynamicSize) and size.min == size.max == number


def _product(sizes: Sequence[Size], of: MetaTensor, what: str) -> Size:
    """The product of the sizes: a number, or the only one of them that depends on data."""
    known, dynamic = 1, []
    for size in sizes:
        if isinstance(size, DynamicSize) and size.min != size.max:
            dynamic.append(size)
        else:
            known *= int(size)
    if not known or not dynamic:
        return known
    if known == len(dynamic) == 1:
        return dynamic[0]
    raise DataDependentError(
        f"{what} of {of} depends on data, and there is no data here: it is a product with "
        f"{' and '.join(map(repr, dynamic))}\nMake another size for it, with bounds of its "
        "own: get_ctx().new_dynamic_size(min=, max=)."
    )


def _checked_shape(given: Any) -> Sizes:
    """A tuple of sizes, none of them below 0. InvalidArgumentError for anything else."""
    sizes = _checked_sizes(given, "shape")
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise InvalidArgumentError(f"shape={_listed(sizes)}: no size is less than 0")
    return sizes


def _checked_sizes(given: Any, what: str) -> Sizes:
    """A tuple of ints and dynamic sizes. InvalidArgumentError for anything else."""
    if isinstance(given, (str, bytes, bytearray, set, frozenset, dict)):
        raise InvalidArgumentError(
            f"{what}={shown(given)}: a {type(given).__name__} is neither a size nor a tuple of "
            "sizes"
        )
    try:
        found = tuple(given)
    except TypeError:
        hint = f"; for one dimension ({shown(given)},)" if isinstance(given, int) else ""
        raise InvalidArgumentError(
            f"{what}={shown(given)}: it must be a tuple of sizes{hint}"
        ) from None
    sizes: list[Size] = []
    for size in found:
        if isinstance(size, DynamicSize):
            sizes.append(size)
            continue
        try:
            if isinstance(size, (bool, str, bytes)):
                raise TypeError
            sizes.append(size.__index__())  # the ints of array libraries, too
        except (AttributeError, TypeError):
            raise InvalidArgumentError(
                f"{what}={shown(given)}: {shown(size)} is not a size; a size is an int or a "
                "DynamicSize"
            ) from None
    return tuple(sizes)


def _listed(sizes: Sizes) -> str:
    """The text of a shape."""
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


def _broadcast(left: Sizes, right: Sizes) -> Sizes:
    """The shape of the sum of two values. InvalidArgumentError where there is none."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    first = len(longer) - len(shorter)
    sizes = list(longer[:first])
    for a, b in zip(longer[first:], shorter, strict=True):
        if not _is_same(a, b) and not _is_same(a, 1) and not _is_same(b, 1):
            raise InvalidArgumentError(
                f"values of shapes {_listed(left)} and {_listed(right)} cannot be added: {a} and "
                f"{b} are not known to be equal"
            )
        sizes.append(b if _is_same(a, 1) else a)
    return tuple(sizes)

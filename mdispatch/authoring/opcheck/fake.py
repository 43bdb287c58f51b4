"""opcheck's third test: with meta values, an operator returns what its real results look like."""

from __future__ import annotations

import sys
from importlib import import_module

from ...dispatch.context.values import is_tensor, is_torch_tensor
from ...errors import InvalidArgumentError
from ...errors.words import shown
from ...keys import DispatchKeySet
from ...schema.sizes import DynamicSize, new_size
from ..meta import MetaTensor, fake_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ...dispatch.operators import OpOverload


class NotCheckable(Exception):
    """There is nothing to compare. The text says what is missing."""


def tensors(values: Any) -> Iterator[Any]:
    """The tensors among values, those in lists, tuples and dicts included."""
    if is_tensor(values):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for each in values.values() if isinstance(values, dict) else values:
            yield from tensors(each)


def run_fake(operator: OpOverload, positional: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """The operator's result for the meta values of these arguments; for PyTorch's tensors, if the
    operator is one of PyTorch's as well, that for its FakeTensors.

    Raises NotCheckable if a tensor does not tell its shape, and whatever the call raises.
    """
    given = list(tensors((positional, keywords)))
    overload = operator._exported() if given and all(map(is_torch_tensor, given)) else None
    if overload is not None:
        return _as_meta(_run_in_torch(overload, positional, keywords), {})
    try:
        args, kwargs = fake_call(_as_given, *positional, **keywords)
    except InvalidArgumentError as error:
        raise NotCheckable(str(error)) from error
    if any(True for _ in tensors((args, kwargs))):
        return operator(*args, **kwargs)
    # No argument has a key, so the result is meta only if the call says so.
    return operator.call_with_keyset(DispatchKeySet("Meta"), *args, **kwargs)


def _run_in_torch(overload: Any, positional: Sequence[Any], keywords: dict[str, Any]) -> Any:
    torch: Any = sys.modules["torch"]
    fake_tensor: Any = import_module("torch._subclasses.fake_tensor")
    shapes: Any = import_module("torch.fx.experimental.symbolic_shapes")
    with fake_tensor.FakeTensorMode(shape_env=shapes.ShapeEnv(), static_shapes=True) as mode:
        as_fake = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, positional)
        named = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, keywords)
        return overload(*as_fake, **named)


def _as_meta(found: Any, sizes: dict[str, DynamicSize]) -> Any:
    """What PyTorch returned, with MetaTensors for its tensors and DynamicSizes for its SymInts."""
    if isinstance(found, (list, tuple)):
        return type(found)(_as_meta(each, sizes) for each in found)
    if is_torch_tensor(found):
        return MetaTensor([_as_meta(n, sizes) for n in found.shape], found.dtype, str(found.device))
    if isinstance(found, sys.modules["torch"].SymInt):
        return sizes.setdefault(str(found), new_size(str(found), 0, None))
    return found


def _as_given(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def differences(real: Sequence[Any], fake: Sequence[Any]) -> list[str]:
    """In words, how the values that the fake kernel returned differ from what the real ones look
    like. Raises NotCheckable if a real one does not tell its shape.
    """
    sizes: dict[DynamicSize, int] = {}
    found = []
    if len(real) != len(fake):
        found.append(
            f"the operator returns {len(real)} values, but the fake kernel returns {len(fake)}"
        )
    for position, (one, other) in enumerate(zip(real, fake, strict=False)):
        what = f"return value {position}" if len(real) > 1 else "the return value"
        found += _compared(what, one, other, sizes)
    return found


def _compared(what: str, real: Any, fake: Any, sizes: dict[DynamicSize, int]) -> Iterator[str]:
    if is_tensor(real):
        yield from _tensors_compared(what, real, fake, sizes)
    elif isinstance(real, (list, tuple)):
        if not isinstance(fake, (list, tuple)) or len(real) != len(fake):
            count = f"{len(fake)} values" if isinstance(fake, (list, tuple)) else shown(fake)
            yield f"{what} has {len(real)} values, but the fake kernel's is {count}"
            return
        for position, (one, other) in enumerate(zip(real, fake, strict=True)):
            yield from _compared(f"{what}[{position}]", one, other, sizes)
    elif type(real) is int and isinstance(fake, (int, DynamicSize)):
        if not _fits(real, fake, sizes):
            yield f"{what} is {real}, but the fake kernel's is {_size(fake)}"
    elif type(real) is not type(fake):
        yield (
            f"{what} is a {type(real).__qualname__}, but the fake kernel's is a "
            f"{type(fake).__qualname__}"
        )
    elif isinstance(real, (bool, str)) and real != fake:
        yield f"{what} is {shown(real)}, but the fake kernel's is {shown(fake)}"


def _tensors_compared(
    what: str, real: Any, fake: Any, sizes: dict[DynamicSize, int]
) -> Iterator[str]:
    if not isinstance(fake, MetaTensor):
        yield (
            f"{what} of the fake kernel is a {type(fake).__qualname__}, not a MetaTensor: a fake "
            "kernel says what the result looks like, and does not make it"
        )
        return
    try:
        wanted = MetaTensor.of(real)
    except InvalidArgumentError as error:
        raise NotCheckable(str(error)) from error
    sides = zip(wanted.shape, fake.shape, strict=False)
    # Every size is compared, because it tells of the same size elsewhere.
    fits = [_fits(one, other, sizes) for one, other in sides]
    if len(wanted.shape) != len(fake.shape) or not all(fits):
        shape = ", ".join(map(_size, fake.shape))
        yield f"{what} has shape {wanted.shape}, but the fake kernel's has ({shape})"
    if wanted.dtype is not fake.dtype and not bool(wanted.dtype == fake.dtype):
        yield f"{what} has dtype {wanted.dtype}, but the fake kernel's has {fake.dtype}"
    if wanted.device != fake.device:
        yield f"{what} is on device {wanted.device!r}, but the fake kernel's is on {fake.device!r}"


def _fits(real: Any, fake: Any, sizes: dict[DynamicSize, int]) -> bool:
    """Whether a size fits. A size that depends on data is the same wherever it stands."""
    if isinstance(fake, DynamicSize):
        return fake.admits(real) and sizes.setdefault(fake, real) == real
    return bool(real == fake)


def _size(size: object) -> str:
    return repr(size) if isinstance(size, DynamicSize) else str(size)

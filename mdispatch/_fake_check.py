"""opcheck's third test: what an operator says of its result without data is what it returns with
data.
"""

from __future__ import annotations

from ._nearest import shown
from ._sizes import DynamicSize
from .errors import InvalidArgumentError
from .keys import DispatchKeySet
from .meta import MetaTensor, fake_call
from .values import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .operators import OpOverload

__all__ = ["NotCheckable", "differences", "run_fake", "tensors"]


class NotCheckable(Exception):
    """There is nothing to compare; the text says what is missing."""


def tensors(values: Any) -> Iterator[Any]:
    """The tensors among values, also those in lists, tuples and dicts."""
    if is_tensor(values):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for each in values.values() if isinstance(values, dict) else values:
            yield from tensors(each)


def run_fake(operator: OpOverload, positional: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """What the operator returns for the meta values of these arguments.

    Raises NotCheckable when a tensor does not tell its shape, and what the call raises.
    """
    try:
        args, kwargs = fake_call(_as_given, *positional, **keywords)
    except InvalidArgumentError as error:
        raise NotCheckable(str(error)) from error
    if any(True for _ in tensors((args, kwargs))):
        return operator(*args, **kwargs)
    # Made from nothing that has a key, the result is meta only if the call says so.
    return operator.call_with_keyset(DispatchKeySet("Meta"), *args, **kwargs)


def _as_given(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def differences(real: Sequence[Any], fake: Sequence[Any]) -> list[str]:
    """In what the values that the fake kernel returned are not what the real ones look like, in
    words. NotCheckable when a real one does not tell its shape.
    """
    sizes: dict[DynamicSize, int] = {}
    found = []
    if len(real) != len(fake):
        found.append(f"it returns {len(real)} values, the fake kernel {len(fake)}")
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
            yield f"{what} has {len(real)} values, that of the fake kernel is {count}"
            return
        for position, (one, other) in enumerate(zip(real, fake, strict=True)):
            yield from _compared(f"{what}[{position}]", one, other, sizes)
    elif type(real) is int and isinstance(fake, (int, DynamicSize)):
        if not _fits(real, fake, sizes):
            yield f"{what} is {real}, that of the fake kernel {_size(fake)}"
    elif type(real) is not type(fake):
        yield (
            f"{what} is a {type(real).__qualname__}, that of the fake kernel a "
            f"{type(fake).__qualname__}"
        )
    elif isinstance(real, (bool, str)) and real != fake:
        yield f"{what} is {shown(real)}, that of the fake kernel {shown(fake)}"


def _tensors_compared(
    what: str, real: Any, fake: Any, sizes: dict[DynamicSize, int]
) -> Iterator[str]:
    if not isinstance(fake, MetaTensor):
        yield (
            f"{what} of the fake kernel is a {type(fake).__qualname__} and no MetaTensor: it is "
            "to say what the result looks like, not to make it"
        )
        return
    try:
        wanted = MetaTensor.of(real)
    except InvalidArgumentError as error:
        raise NotCheckable(str(error)) from error
    sides = zip(wanted.shape, fake.shape, strict=False)
    # Every size is asked, for what it says of the same size elsewhere.
    fits = [_fits(one, other, sizes) for one, other in sides]
    if len(wanted.shape) != len(fake.shape) or not all(fits):
        shape = ", ".join(map(_size, fake.shape))
        yield f"{what} has shape {wanted.shape}, that of the fake kernel ({shape})"
    if wanted.dtype is not fake.dtype and not bool(wanted.dtype == fake.dtype):
        yield f"{what} has dtype {wanted.dtype}, that of the fake kernel {fake.dtype}"
    if wanted.device != fake.device:
        yield f"{what} is on device {wanted.device!r}, that of the fake kernel on {fake.device!r}"


def _fits(real: Any, fake: Any, sizes: dict[DynamicSize, int]) -> bool:
    """A size that depends on data is the same one wherever it stands."""
    if isinstance(fake, DynamicSize):
        return fake.admits(real) and sizes.setdefault(fake, real) == real
    return bool(real == fake)


def _size(size: object) -> str:
    return repr(size) if isinstance(size, DynamicSize) else str(size)

"""Rules of vmap in PyTorch's form."""

from __future__ import annotations

from ..errors import InvalidArgumentError
from ..errors.locations import label_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class VmapRule:
    """Stands at FuncTorchBatched for a rule of PyTorch's form, ``function(info, in_dims, *args)``,
    which PyTorch calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__module__ = getattr(function, "__module__", "")
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidArgumentError(
            f"{label_of(self.function)} is a rule for PyTorch's vmap: it gets info and in_dims, "
            "which tensors of PyTorch have\nFor other batched values register a kernel of the "
            "schema's arguments."
        )

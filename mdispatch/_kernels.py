"""Kernels of this interpreter: callables with the key they were registered at. Light, because every
worker needs it.
"""

from __future__ import annotations

from . import errors
from ._keys import DispatchKey
from ._place import label_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["FALLBACK_NAME", "FALLTHROUGH", "LocalKernel", "fallthrough_kernel"]

#: Under this name the fallbacks of all operators are registered; no operator can be called so.
FALLBACK_NAME = "_"
#: The label of a kernel that means "as if this key were not there". It says all there is: no
#: callable is needed.
FALLTHROUGH = "fallthrough"


def fallthrough_kernel(*args: object, **kwargs: object) -> None:
    """Registered as a kernel or fallback, makes calls pass by its key. It never runs.

    (PyTorch: torch.library.fallthrough_kernel, CppFunction::makeFallthrough)
    """
    raise errors.MdispatchError(
        "fallthrough_kernel is a mark for the dispatcher; it cannot be called"
    )


class LocalKernel:
    """A callable of this interpreter, registered at one key.

    ``label`` is what the registry notes of it, ``signature`` its own schema without a name, or "".
    ``seq`` is its fact's in the main interpreter, else 0.
    """

    __slots__ = ("_label", "function", "is_fallthrough", "key", "seq", "signature", "with_keyset")

    def __init__(
        self,
        key: DispatchKey,
        function: Callable[..., Any],
        with_keyset: bool = False,
        signature: str = "",
        label: str = "",
    ) -> None:
        self.key = key
        self.function = function
        self.with_keyset = with_keyset
        self.signature = signature
        self.is_fallthrough = function is fallthrough_kernel
        self._label = label
        self.seq = 0

    @property
    def label(self) -> str:
        if self.is_fallthrough:
            return FALLTHROUGH
        return self._label or label_of(self.function)

    def __repr__(self) -> str:
        return f"<kernel {self.label} at {self.key.name}>"

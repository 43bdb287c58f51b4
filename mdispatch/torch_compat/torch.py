"""Stands in for ``torch`` in a program that was written for torch.library, by one import::

    from mdispatch.torch_compat import torch  # in place of `import torch` or `import torch.library`

The program keeps its text. ``torch.library``, ``torch.ops`` and the other names of PyTorch's
dispatcher are those of :mod:`mdispatch.torch_compat`, so its operators are operators of mdispatch.
Everything else is PyTorch's own (``torch.Tensor``, ``torch.sin``, ``torch.library.triton_op``); the
first such name imports PyTorch, and a program that has none runs without it. A line ``from
torch.library import Library`` becomes ``from mdispatch.torch_compat import Library``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from .. import torch_compat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["library", "ops"]

ops = torch_compat.ops


class _Part(ModuleType):
    """A module of PyTorch. The names that torch_compat has are torch_compat's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in torch_compat.__all__:
            return getattr(torch_compat, name)
        return getattr(import_module(self.__name__.removeprefix(_HERE)), name)


_HERE = __name__.removesuffix("torch")

library = _Part(f"{__name__}.library")
_C = _Part(f"{__name__}._C")
_ops = _Part(f"{__name__}._ops")
_custom_op = _Part(f"{__name__}._custom_op")
_custom_op.impl = _Part(f"{__name__}._custom_op.impl")  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in ("DispatchKey", "DispatchKeySet", "FunctionSchema", "Argument"):
        return getattr(torch_compat, name)
    return getattr(import_module("torch"), name)

"""What PyTorch's compiler finds where it would trace a call of an operator: a call of the same
operator in ``torch.ops``, if there is one. See Note [Whose dispatcher decides].
"""

from __future__ import annotations

import sys

from ..facts.native.calls import shows_as_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    C = TypeVar("C")


def traced_in_torch(cls: type[C]) -> type[C]:
    """A decorator: the compiler sees calls of this class's objects so. Their method ``_exported``
    returns PyTorch's object for them; None if there is none, and then the compiler breaks its
    graph.
    """
    call: Any = cls.__call__

    def traced_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_traced(self):
            return self._in_torch(*args, **kwargs)
        return call(self, *args, **kwargs)

    # The compiler does not trace this function: it calls it, and takes the answer as a constant. So
    # the caller is not the call then.
    def is_traced(self: Any) -> bool:
        if sys._getframe(1).f_code is traced_call.__code__:
            return False
        self._in_torch = self._exported()
        return self._in_torch is not None

    # What torch.compiler.assume_constant_result does, without the import of a compiler.
    is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
    shows_as_call(cls, traced_call)
    return cls

"""In the place of an operator's peer in PyTorch, until PyTorch wants a call: see Note [Whose
dispatcher decides] in torch/side.py.
"""

from __future__ import annotations

import sys

from .. import seam
from .kernels import UNDECIDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..schema import FunctionSchema


class _WhenWanted:
    """The operator is PyTorch's from the first call on that PyTorch wants."""

    __slots__ = ()
    is_made = False

    @staticmethod
    def slot(
        operator: Any,
        table: Any,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        if not _is_torch_there():
            return None
        entry = operator.entry
        if entry.is_undecided:
            entry.recompute()  # the next plan knows which calls PyTorch wants
        is_wanted = seam.perhaps("whether PyTorch wants a call")
        if is_wanted is None or not is_wanted(
            operator.schema, table, positional, keywords, is_exported=False
        ):
            return None
        return seam.at("an operator in PyTorch")(operator).own_slot

    @staticmethod
    def in_c(schema: FunctionSchema, table: Any) -> tuple[int, int, None]:
        if not _is_torch_there():
            return UNDECIDED, 0, None
        if not schema.dispatch_arguments:
            return 0, 0, None
        gate_of = seam.perhaps("which calls PyTorch may want")
        gate, written = (0, 0) if gate_of is None else gate_of(schema, table)
        return gate, written, None  # the first call that PyTorch wants makes its operator

    @staticmethod
    def overload_of(operator: Any) -> Any:
        its = operator.schema
        if not any(each.type.holds_tensors for each in (*its.arguments, *its.returns)):
            return None
        return seam.at("an operator in PyTorch")(operator).overload

    @staticmethod
    def close() -> None:
        """There is nothing to take out of PyTorch."""

    @staticmethod
    def keep_up() -> None:
        """Nothing is there yet."""


def _is_torch_there() -> bool:
    return hasattr(sys.modules.get("torch"), "library")


WHEN_WANTED = _WhenWanted()

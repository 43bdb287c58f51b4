"""Operators by PyTorch's names: ``ops.namespace.name.overload``, from torch/_ops.py.

They are the operators of mdispatch, with more names. A lookup asks the registry for its packet, so
that it finds the present definitions, and keeps a view beside it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ..dispatch import operators as ours
from ..dispatch.custom import Names
from ..registry.ops import Namespace
from ..schema.names import Named
from .common import _registry
from .schemas import FunctionSchema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["OpOverload", "OpOverloadPacket", "ops"]


class _Name(str):
    """A name that also answers a call, as PyTorch's does."""

    __slots__ = ()

    def __call__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str.__str__(self),)


class OpOverload(ours.OpOverload):
    """An operator of mdispatch with PyTorch's names. It equals the operator without them. (torch:
    OpOverload)
    """

    @property
    def name(self) -> _Name:
        """``name()`` is "ns::name" or "ns::name.overload", as in PyTorch; ``name`` is that, too."""
        return _Name(self.entry.name)

    @property
    def _name(self) -> str:
        return self.entry.name

    @property
    def _opname(self) -> str:
        return self.entry.name.partition("::")[2].partition(".")[0]

    @property
    def _overloadname(self) -> str:
        return self.entry.name.partition(".")[2] or "default"

    @property
    def _schema(self) -> FunctionSchema:
        return FunctionSchema(self.schema)

    @property
    def _op(self) -> ours.OpOverload:
        """The operator without PyTorch's names, to be called."""
        made = ours.OpOverload(self.dispatcher, self.entry.name)
        made.generation = self.generation
        return made

    @property
    def overloadpacket(self) -> OpOverloadPacket:
        """All overloads of its name."""
        return OpOverloadPacket(self.dispatcher, self.entry.name.partition(".")[0])

    def __reduce__(self) -> tuple[object, ...]:
        return viewed, (self._op,)

    def __str__(self) -> str:
        return f"{self.namespace}.{self._opname}.{self._overloadname}"

    def __repr__(self) -> str:
        packet = f"{self.namespace}.{self._opname}"
        return f"<OpOverload(op={packet!r}, overload={self._overloadname!r})>"


def viewed(operator: ours.OpOverload) -> OpOverload:
    """The same definition, with PyTorch's names."""
    made = OpOverload(operator.dispatcher, operator.entry.name)
    made.generation = operator.generation
    return made


class OpOverloadPacket(ours.OpOverloadPacket):
    """A packet of mdispatch whose overloads have PyTorch's names. (torch: OpOverloadPacket)"""

    def _operator(self, overload: str) -> OpOverload:
        operator = self._operators.get(overload)
        if not isinstance(operator, OpOverload) or operator.is_gone:
            name = self._base if overload == "default" else f"{self._base}.{overload}"
            operator = self._operators[overload] = OpOverload(self._dispatcher, name)
        return operator

    @property
    def _qualified_op_name(self) -> str:
        return self._base

    @property
    def _schemas(self) -> dict[str, FunctionSchema]:
        return {
            "" if overload == "default" else overload: FunctionSchema(schema)
            for overload, schema in self.schemas.items()
        }

    def __reduce__(self) -> tuple[object, ...]:
        return _packet_viewed, (ours.OpOverloadPacket(self._dispatcher, self._base),)

    def __str__(self) -> str:
        return self._base.replace("::", ".")

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='{self}')>"


def _packet_viewed(packet: ours.OpOverloadPacket) -> OpOverloadPacket:
    return OpOverloadPacket(packet._dispatcher, packet._base)


_views: WeakKeyDictionary[ours.OpOverloadPacket, OpOverloadPacket] = WeakKeyDictionary()


class _OpNamespace(Names, Named):
    """The operators of one namespace. (torch: _OpNamespace)"""

    # Every other name can be that of an operator.
    __slots__ = ("__name",)

    def __init__(self, name: str) -> None:
        self.__name = name

    def __missing__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        packet = getattr(getattr(_registry().ops, self.__name), name)
        view = _views.get(packet)
        if view is None:
            view = _views[packet] = _packet_viewed(packet)
        return view

    def __dir__(self) -> list[str]:
        return dir(getattr(_registry().ops, self.__name))

    def __iter__(self) -> Iterator[str]:
        return iter(getattr(_registry().ops, self.__name))

    def __repr__(self) -> str:
        return f"<namespace {self.__name} of mdispatch.torch_compat.ops>"


class _Ops(Names, Named):
    """The operators of the registry on which torch_compat works. (torch: _Ops)"""

    __slots__ = ("__dict__",)

    def __missing__(self, name: str) -> Any:
        found = getattr(_registry().ops, name)
        if not isinstance(found, Namespace):
            return found
        made = vars(self)[name] = _OpNamespace(name)
        return made

    def __dir__(self) -> list[str]:
        return dir(_registry().ops)

    def __iter__(self) -> Iterator[str]:
        return iter(_registry().ops)

    def __reduce__(self) -> str:
        return "ops"  # of this module, in every interpreter

    def __repr__(self) -> str:
        return "<mdispatch.torch_compat.ops>"


ops = _Ops()

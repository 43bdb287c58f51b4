"""Operators by attribute: ``ops.namespace.name`` is a packet of overloads,
``ops.namespace.name.overload`` one of them.

Namespaces and packets are names: they stay, and find what is defined now. An overload is one
definition.
"""

from __future__ import annotations

from . import _registry as facts
from ._call_py import (
    call,
    call_boxed,
    call_for_dispatch_key,
    call_with_keyset,
    redispatch,
    redispatch_boxed,
)
from ._nearest import nearest, shown
from .errors import ArgumentError, OperatorGoneError, OperatorNotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._entry import Entry
    from .keys import DispatchKey, DispatchKeySet
    from .registry import Registry
    from .schema import FunctionSchema

__all__ = ["Namespace", "OpOverload", "OpOverloadPacket", "Ops"]


class OpOverload:
    """One operator with one schema. Calling it runs the kernel that its arguments' dispatch keys
    select.

    It stands for one definition: when that is closed, every use raises OperatorGoneError, for ever,
    also when the name is defined again. Only a library that is opened again from the same place (a
    module imported again) and defines the same goes on with the same operators. (c10:
    OperatorHandle, which reads freed memory then)
    """

    def __init__(self, registry: Registry, name: str) -> None:
        self._entry: Entry = registry.entry(name)
        signature = self._entry.signature()
        # Generations count from 1: what is not defined never will be.
        self._generation = signature.generation if signature is not None else 0
        self.__qualname__ = self.__name__ = name

    @property
    def name(self) -> str:
        """``ns::name`` or ``ns::name.overload``."""
        return self._entry.name

    @property
    def schema(self) -> FunctionSchema:
        """Raises OperatorGoneError when the operator was closed."""
        return self._entry.current(self._generation)[1].schema

    @property
    def tags(self) -> tuple[str, ...]:
        """What it was tagged with, sorted. Raises OperatorGoneError."""
        return self._entry.current(self._generation)[1].fact.tags

    @property
    def is_gone(self) -> bool:
        """Whether the operator was closed, so that every use raises OperatorGoneError."""
        signature = self._entry.signature()
        return signature is None or signature.generation != self._generation

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return call(self, args, kwargs)

    def redispatch(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel of ``key_set`` as it is, whatever keys the arguments carry: this thread's
        included and excluded keys do not count, and nothing falls through.

        From inside a kernel that was registered with its key set, ``op.redispatch(key_set &
        DispatchKeySet.full_after("AutogradCPU"), ...)`` goes on below AutogradCPU. (c10:
        redispatch)
        """
        return redispatch(self, key_set, args, kwargs)

    def call_with_keyset(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """A call with ``key_set`` in place of the keys that the arguments carry: for operators
        without tensor arguments, say. This thread's sets and fallthrough count as in every call.
        """
        return call_with_keyset(self, key_set, args, kwargs)

    def call_for_dispatch_key(self, key: DispatchKey | str, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel registered at exactly ``key``, else the backend fallback of that key.

        Kernels of alias keys are not asked. Raises MissingKernelError, InvalidKeyError. (c10:
        callBoxedForDispatchKey)
        """
        return call_for_dispatch_key(self, key, args, kwargs)

    def call_boxed(self, stack: list[Any]) -> None:
        """A call with the last elements of ``stack``, one per argument of the schema: they are
        taken off and the returns put on. What raises leaves the stack as it was.

        Raises ArgumentError, ReturnValueError. (c10: callBoxed)
        """
        call_boxed(self, stack)

    def redispatch_boxed(self, key_set: DispatchKeySet, stack: list[Any]) -> None:
        """:meth:`redispatch` with a stack, as in :meth:`call_boxed`. (c10: redispatchBoxed)"""
        redispatch_boxed(self, key_set, stack)

    def __repr__(self) -> str:
        return f"<mdispatch operator {self.name}>"


class OpOverloadPacket:
    """All overloads of one name. Called, it runs the first one, in the order of definition, whose
    schema fits.
    """

    def __init__(self, registry: Registry, base: str) -> None:
        self._registry = registry
        self._base = base
        self._operators: dict[str, OpOverload] = {}
        self.__qualname__ = self.__name__ = base

    def overloads(self) -> list[str]:
        """The overloads' names in the order of definition; ``default`` is the one without a
        name.
        """
        return [name or "default" for name in self._registry.overloads(self._base)]

    def __getattr__(self, overload: str) -> OpOverload:
        if overload.startswith("__"):
            raise AttributeError(overload)
        known = self.overloads()
        if overload not in known:
            raise OperatorNotFoundError(
                f"{self._base} has no overload {shown(overload)}; it has "
                f"{', '.join(known) or 'none'}",
                f"{self._base}.{overload}",
                nearest(overload, known),
            )
        return self._operator(overload)

    def _operator(self, overload: str) -> OpOverload:
        """The overload's operator. Not by attribute: one may be called as one of the packet's own
        attributes.
        """
        operator = self._operators.get(overload)
        if operator is None or operator.is_gone:
            name = self._base if overload == "default" else f"{self._base}.{overload}"
            operator = self._operators[overload] = OpOverload(self._registry, name)
        return operator

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        known = self.overloads()
        if len(known) == 1:
            return self._operator(known[0])(*args, **kwargs)
        refusals = []
        for overload in known:
            operator = self._operator(overload)
            try:
                operator._entry.current(operator._generation)[1].binder.bind(args, kwargs)
            except ArgumentError as error:
                refusals.append("  " + str(error).replace("\n", "\n  "))
                continue
            return operator(*args, **kwargs)
        if not known:
            raise OperatorGoneError(
                f"operator {self._base} is not defined: its last registration was closed",
                self._base,
            )
        raise ArgumentError(
            f"no overload of {self._base} takes these arguments:\n" + "\n".join(refusals),
            self._base,
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.overloads()})

    def __repr__(self) -> str:
        return f"<mdispatch operators {self._base}: {', '.join(self.overloads())}>"


class Namespace:
    """The operators of one namespace."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._name = name

    def _names(self) -> list[str]:
        prefix = self._name + "::"
        _, _, there = self._registry._facts.registrations()
        names = (f.name for f in there if f.kind == facts.DEF and f.name.startswith(prefix))
        return sorted({name[len(prefix) :].partition(".")[0] for name in names})

    def __getattr__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        base = f"{self._name}::{name}"
        if not self._registry.overloads(base):
            known = self._names()
            near = nearest(name, known)
            if near:
                hint = f"did you mean {', '.join(near)}?"
            elif known:
                hint = (
                    f"namespace {self._name!r} has "
                    f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
                )
            else:
                hint = f"nothing is defined in namespace {shown(self._name)}"
                others = nearest(self._name, self._registry.namespaces())
                meant = f"; did you mean {', '.join(others)}?"
                hint += meant if others else ": import the module that does"
            raise OperatorNotFoundError(f"there is no operator {shown(base)}; {hint}", base, near)
        packet = OpOverloadPacket(self._registry, base)
        setattr(self, name, packet)
        return packet

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names()})

    def __repr__(self) -> str:
        return f"<mdispatch namespace {self._name}>"


class Ops:
    """The namespaces of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __getattr__(self, name: str) -> Namespace:
        if name.startswith("__"):
            raise AttributeError(name)
        namespace = Namespace(self._registry, name)
        setattr(self, name, namespace)
        return namespace

    def __repr__(self) -> str:
        return f"<mdispatch ops of {self._registry!r}>"

"""Kernels in C: which function of this process stands for a fact, as a callable of this
interpreter.

The registry knows such a kernel by its label, as any other. The process has a table from labels to
functions (native/core/kernels.c), which all its interpreters share; so an interpreter that has
never heard of a library calls its kernels all the same. What is called is a builtin of this
interpreter (native/bind/boxed.c), which knows of the schema which arguments are tensors, and
returns what the function wrote. Loaded where there are such facts.
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._kernels import C_LABEL, LocalKernel
from ._keys import DispatchKey
from ._native import c_kernels
from ._registry.shared import SharedRegistry
from ._schema_types import Type
from .schema import parse_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._registry import Registration, RegistryProtocol
    from ._schema_types import AliasInfo, Argument, FunctionSchema

__all__ = ["CKernel", "is_here", "with_c_kernels"]

# boxed.h: of an argument
_TENSOR, _WRITTEN = 1, 2


class CKernel(LocalKernel):
    """A kernel in C, for one fact. Equal to another one that was made for the same fact."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CKernel) and (self.seq, self.label) == (other.seq, other.label)

    def __hash__(self) -> int:
        return hash(self.seq)


def with_c_kernels(
    registry: RegistryProtocol,
    there: list[Registration],
    here: dict[DispatchKey, list[LocalKernel]],
) -> dict[DispatchKey, list[LocalKernel]]:
    """The callables of one operator, with those of its kernels in C that this process has; without
    a definition there are none. Nothing that was handed in is changed.
    """
    definition = next((f for f in reversed(there) if f.kind == facts.DEF), None)
    if definition is None or not isinstance(registry, SharedRegistry):
        return here
    schema = parse_schema(definition.body)
    found = {key: list(kernels) for key, kernels in here.items()}
    for fact in there:
        if fact.kind != facts.IMPL or not fact.text.startswith(C_LABEL):
            continue
        function = _function(registry, fact, schema)
        if function is not None:
            key = DispatchKey(fact.key)
            kernel = CKernel(key, function, label=fact.body)
            kernel.seq = fact.seq
            found.setdefault(key, []).append(kernel)
    return found


def is_here(registry: RegistryProtocol, fact: Registration) -> bool:
    """Whether this process has the function of such a fact."""
    _, _, there = registry.registrations(fact.name)
    return any(kernel.seq == fact.seq for each in with_c_kernels(registry, there, {}).values()
               for kernel in each)  # fmt: skip


def _function(registry: SharedRegistry, fact: Registration, schema: FunctionSchema) -> Any:
    """The builtin, or None. Keyword-only arguments come last, in the schema's order."""
    arguments = sorted(schema.arguments, key=lambda argument: argument.kwarg_only)
    return c_kernels.kernel_function(
        registry._handle,
        fact.name,
        fact.key,
        fact.body,
        bytes(map(_flags, arguments)),
        tuple(argument.name for argument in arguments if argument.kwarg_only),
        len(schema.returns),
        errors.KernelError,
        errors.BoxingError,
    )


def _flags(argument: Argument) -> int:
    info: AliasInfo | None = argument.alias_info
    written = _WRITTEN if info is not None and info.writes else 0
    return written | (_TENSOR if _has_tensors(argument.type) else 0)


def _has_tensors(wanted: Type) -> bool:
    if wanted.name in (Type.OPTIONAL, Type.LIST):
        return _has_tensors(wanted.elements[0])
    return wanted.name == "Tensor"

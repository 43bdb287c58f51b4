"""Kernels in C: which function of this process stands for a registration, as a callable of this
interpreter.

The registry knows such a kernel by its label, as any other. The process has a table from labels to
functions (native/core/contract/kernels.c), which its interpreters share: an interpreter can call
the kernels of a library that it has not loaded. The callable is a builtin of this interpreter
(native/bind/ext/boxed.c). It knows which arguments of the schema are tensors, and returns what the
function wrote. This file is loaded once there are such registrations.
"""

from __future__ import annotations

import os

from .. import errors, facts
from ..facts.native import c_kernels, interpreter_id
from ..facts.shared import SharedRegistry
from ..keys.numbers import DispatchKey
from ..schema import parse_schema
from ..schema.types import Type
from .kernels import C_LABEL, LocalKernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts
    from ..schema.types import AliasInfo, Argument, FunctionSchema

# boxed.h: of an argument
_TENSOR, _WRITTEN = 1, 2


def with_c_kernels(
    registry: Facts,
    there: list[Registration],
    here: dict[DispatchKey, list[LocalKernel]],
    find: Callable[[str], Any] | None = None,
) -> dict[DispatchKey, list[LocalKernel]]:
    """The callables of one operator, together with the kernels in C that this process has for it.
    An operator without a definition has none. The arguments stay as they are. ``find`` is what the
    kernels find other operators by.
    """
    definition = next((f for f in reversed(there) if f.kind == facts.DEF), None)
    if definition is None or not isinstance(registry, SharedRegistry):
        return here
    schema = parse_schema(definition.body)
    found = {key: list(kernels) for key, kernels in here.items()}
    for fact in there:
        if fact.kind != facts.IMPL or not fact.text.startswith(C_LABEL):
            continue
        function = _function(registry, fact, schema, find)
        if function is not None:
            key = DispatchKey(fact.key)
            kernel = LocalKernel(key, function, label=fact.body)
            kernel.seq = fact.seq
            noted = definition_of(registry, fact)
            if noted is None:  # it was registered before its definition
                note_definition(registry, key, fact.body, definition)
            if (fact.pid, fact.interpreter) != (os.getpid(), interpreter_id):
                # What was registered here outlives a definition.
                kernel.definition = noted or definition
            found.setdefault(key, []).append(kernel)
    return found


def note_definition(registry: Facts, key: int, label: str, definition: Registration) -> None:
    """Notes for which definition this process has the function in C of a label, for those who have
    not verified it themselves: other interpreters, and children of a fork. What they have is
    outdated with it.
    """
    if isinstance(registry, SharedRegistry):
        told = f"{definition.body}\n{definition.attributes}\n{definition.where}"
        c_kernels.kernel_bind(registry.handle, definition.name, int(key), label, told)


def definition_of(registry: SharedRegistry, fact: Registration) -> Registration | None:
    """The definition that was noted for the function of a kernel's registration; None without
    one."""
    told = c_kernels.kernel_definition(registry.handle, fact.name, fact.key, fact.body)
    if told is None:
        return None
    body, attributes, where = told.split("\n", 2)
    text = facts.def_text(body, body, attributes)
    return facts.Registration(0, 0, facts.DEF, 0, fact.name, text, where, 0, 0)


def is_here(registry: Facts, fact: Registration) -> bool:
    """Whether this process has the function of such a registration."""
    _, _, there = registry.registrations(fact.name)
    return any(kernel.seq == fact.seq for each in with_c_kernels(registry, there, {}).values()
               for kernel in each)  # fmt: skip


def _function(
    registry: SharedRegistry,
    fact: Registration,
    schema: FunctionSchema,
    find: Callable[[str], Any] | None,
) -> Any:
    """The builtin, or None. Keyword-only arguments come last, in the schema's order."""
    arguments = sorted(schema.arguments, key=lambda argument: argument.kwarg_only)
    return c_kernels.kernel_function(
        registry.handle,
        fact.name,
        fact.key,
        fact.body,
        bytes(map(_flags, arguments)),
        tuple(argument.name for argument in arguments if argument.kwarg_only),
        len(schema.returns),
        errors.KernelError,
        errors.BoxingError,
        find,
    )


def _flags(argument: Argument) -> int:
    info: AliasInfo | None = argument.alias_info
    written = _WRITTEN if info is not None and info.writes else 0
    return written | (_TENSOR if _has_tensors(argument.type) else 0)


def _has_tensors(wanted: Type) -> bool:
    if wanted.name in (Type.OPTIONAL, Type.LIST):
        return _has_tensors(wanted.elements[0])
    return wanted.name == "Tensor"

"""Which calls of an exported operator go to PyTorch's dispatcher.

Note [Whose dispatcher decides]
An exported operator has two faces: ``mdispatch.ops.ns.name`` and ``torch.ops.ns.name``. A call of
the first with tensors of PyTorch is dispatched here, unless PyTorch wants to see it:

- a TorchDispatchMode is on, FakeTensorMode among them, or a transform of torch.func;
- a tensor is wrapped: a FakeTensor, another subclass with ``__torch_dispatch__``, or the value of a
  transform; or its memory is not its value: a conjugate or a negative view, zeros without memory;
- the operator has been exported and has no tensors, and a mode or a transform is on;
- the operator writes to a tensor, so that the tensor's version has to rise (calls in C raise it
  themselves, where nothing else is to be done: see Note [Writes] in native/bind/call/torch.c);
- this thread has a TorchFunctionMode, or a tensor's class a ``__torch_function__`` of its own;
- this thread is profiled, and the call is made in Python (calls in C tell the profiler themselves);
- it has a kernel at an autocast key that this thread has turned on (``torch.autocast``);
- a tensor requires a gradient, gradients are enabled, and the operator has no kernel for autograd:
  then PyTorch's graph must know that something is missing.

Then the call goes to ``torch.ops``. PyTorch's dispatcher runs what it has (modes, transforms,
autograd), and comes back to the kernels that are registered here: to the kernel of the backend, the
fake kernel, the formula. A call that came back is not sent there again, because it comes by
``redispatch``. A mode of mdispatch is asked before PyTorch is.

Calls in C know it by a number in the plan (:func:`gate_of`), the state of the thread, which is two
words in PyTorch's memory, and ``requires_grad`` of the tensors (native/bind/call/torch.c).
"""

from __future__ import annotations

import sys

from ..dispatch.context.values import WRAPPED, is_torch_tensor, raw_of, torch_keys
from ..facts.native import calls
from ..keys import DispatchKey, DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..dispatch.table import DispatchTable
    from ..schema import FunctionSchema

# Keys at which handlers of mdispatch are asked, before PyTorch is.
_OWN_HANDLERS = DispatchKeySet("Python", "PreDispatch", "FuncTorchDynamicLayerFrontMode").raw

# With a kernel at one of these, or at an autograd key, the operator sees to gradients by itself.
_DIFFERENTIATED = frozenset(
    key
    for key in DispatchKey
    if key.name.startswith("Autograd") or key is DispatchKey.CompositeImplicitAutograd
)

#: Keys that ``torch.autocast`` turns on, and that every other thread of PyTorch excludes.
AUTOCAST = frozenset(key for key in DispatchKey if key.name.startswith("Autocast"))

# The gates of native/bind/call/state.h: what PyTorch wants, beside wrapped tensors. With the first,
# Python decides about each call.
ALWAYS, _WATCHED, _GRADIENTS = 1, 2, 3


def gate_of(schema: FunctionSchema, table: DispatchTable) -> tuple[int, int]:
    """The gate of an exported operator: all calls, those of threads that PyTorch watches, or
    these and those with tensors that require a gradient. And the bits of the arguments that a call
    writes to which PyTorch does not want.
    """
    there = table.kernels.keys()
    if AUTOCAST & there:
        return ALWAYS, 0
    if not writes(schema):
        return _WATCHED if _DIFFERENTIATED & there else _GRADIENTS, 0
    written = [a.alias_info is not None and a.alias_info.writes for a in schema.arguments]
    are_tensors = all(
        str(argument.type) in ("Tensor", "Tensor?")
        for argument, is_written in zip(schema.arguments, written, strict=True)
        if is_written
    )
    if _DIFFERENTIATED & there or DispatchKey.ADInplaceOrView in there or not are_tensors:
        return ALWAYS, 0
    return _GRADIENTS, sum(is_ << at for at, is_ in enumerate(written))


def is_wanted(
    schema: FunctionSchema,
    table: DispatchTable,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    is_exported: bool = True,
) -> bool:
    """Whether PyTorch wants to see a call with these arguments, in this thread."""
    if calls.now()[0] & _OWN_HANDLERS:
        return False
    if not schema.dispatch_arguments:
        return is_exported and _concerns_all()
    tensors = _tensors(schema, positional, keywords)
    if not tensors or not all(map(is_torch_tensor, tensors)):
        return False  # PyTorch takes no other values
    if writes(schema) or _concerns_all(*map(type, tensors)):
        return True
    if any((raw_of(each) or 0) & WRAPPED for each in tensors):
        return True
    torch: Any = sys.modules["torch"]
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    if any(not excluded(key.name) for key in AUTOCAST & table.kernels.keys()):
        return True
    return (
        not _DIFFERENTIATED & table.kernels.keys()
        and torch.is_grad_enabled()
        and any(each.requires_grad for each in tensors)
    )


def _concerns_all(*classes: type) -> bool:
    """Whether PyTorch wants all calls of this thread with tensors of these classes."""
    keys = torch_keys()
    wants: bool = keys.is_watched() or keys.is_profiled() or keys.asks_functions(*classes)
    return wants


def writes(schema: FunctionSchema) -> bool:
    """Whether it declares a write to an argument."""
    return any(a.alias_info is not None and a.alias_info.writes for a in schema.arguments)


def _tensors(
    schema: FunctionSchema, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> list[Any]:
    found: list[Any] = []
    for position in schema.dispatch_arguments:
        argument = schema.arguments[position]
        value = keywords[argument.name] if argument.kwarg_only else positional[position]
        found += value if type(value) is list else [value]
    return [each for each in found if each is not None]

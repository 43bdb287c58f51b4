"""Operators of mdispatch as operators of torch.library, so that PyTorch's modes, transforms,
compiler and graph see their calls. torch/side.py decides which calls go there: see Note
[Whose dispatcher decides].

What PyTorch gets is made from the operator as it is when the export is made: its schema, its tags,
whether it is made of other operators (CompositeImplicitAutograd) or has an autograd kernel of its
own, at which keys of autocast and of vmap it has kernels, and its rules for PyTorch's classes. A
kernel that a library registers and that changes one of these exports it again; after other changes
the next call from here does. Kernels, the fake kernel and the formula are looked up at each call.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from contextlib import suppress
from typing import NamedTuple

from ..dispatch.call_py import call_registered
from ..dispatch.context.values import is_torch_tensor, torch_keys
from ..dispatch.kernels import LocalKernel
from ..dispatch.operators import OpOverload
from ..dispatch.overrides import is_asked_by_torch
from ..dispatch.table import TableEntry
from ..errors import (
    AutogradError,
    InvalidArgumentError,
    OperatorGoneError,
    OperatorNotFoundError,
    TorchExportError,
)
from ..errors.words import nearest, shown
from ..keys import DispatchKey, DispatchKeySet
from ..registry import given_or_default
from ..registry.fake_kernels import MetaValue, with_sizes_of
from .opaque import in_torch
from .side import ALWAYS, AUTOCAST, gate_of, is_wanted, writes
from .vmap_rules import VmapRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..dispatch.overrides import Rule
    from ..dispatch.table import DispatchTable
    from ..registry import Registry
    from ..schema import FunctionSchema

    class Formula(Protocol):
        """The formula that a kernel at Autograd stands for: its ``__autograd_formula__()``."""

        backward: Callable[..., Any]
        setup_context: Callable[..., Any] | None

        def run(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...


_AFTER_AUTOGRAD = DispatchKeySet.full_after("AutogradOther")
_IMPLICIT = DispatchKey.CompositeImplicitAutograd
_BATCHED = DispatchKey.FuncTorchBatched

# Where a kernel serves meta values.
_META = frozenset(
    (DispatchKey.Meta, DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeImplicitAutograd)
)

# The way to gradients.
_FORMULA, _OWN_KERNEL, _MADE_OF_OTHERS = range(3)


#: The names that threads export just now: PyTorch looks for a name before it defines it.
exporting: set[tuple[int, str]] = set()


def export(what: str | OpOverload, *, registry: Registry | None = None) -> tuple[str, ...]:
    """Makes operators of mdispatch operators of PyTorch, ``torch.ops.ns.name``, in this
    interpreter. ``what`` is a namespace (all operators that are defined in it now), an operator, or
    its name. Returns the names.

    Operators of the default registry, and those that :func:`mdispatch.custom_op` made, are exported
    by themselves when PyTorch wants to see a call. An export ends with its operator, or with the
    registry here.

    Raises OperatorNotFoundError, OperatorGoneError (it ends just now), InvalidArgumentError
    (``torch`` is not imported), TorchExportError (PyTorch has an operator of that name already, or
    does not understand the schema).
    """
    if "torch" not in sys.modules:
        raise InvalidArgumentError("mdispatch.torch.export needs PyTorch: import torch first")
    its = given_or_default(registry)
    if isinstance(what, OpOverload):
        operators = [what]
    else:
        names = [
            name
            for name in its.operators()
            if name in (what, f"{what}.default") or name.partition("::")[0] == what
        ]
        if not names:
            near = nearest(what, its.operators())
            raise OperatorNotFoundError(f"there is no operator in {shown(what)}", what, near)
        operators = [OpOverload(its.dispatcher, name) for name in names]
    for operator in operators:
        exported(operator)
    return tuple(operator.name for operator in operators)


def exported(operator: OpOverload) -> Exported:
    """The export of this definition of the operator, made if it is not there. TorchExportError."""
    table, signature = operator.entry.current(operator.generation)
    with operator.entry.lock:
        there = operator.entry.peer
        needed = _Needed.of(operator, table)
        if isinstance(there, Exported):
            if there.generation == operator.generation and there.needed == needed:
                return there
            there.close()
        its = get_ident(), operator.name.partition(".")[0]
        exporting.add(its)
        try:
            made = Exported(operator, signature.schema, needed)
        finally:
            exporting.discard(its)
        operator.entry.peer = made
        operator.entry.recompute()  # its plan says what PyTorch wants
    return made


def held(registry: Registry, name: str) -> Callable[[], None]:
    """Exports the operator of this name. Returns what takes this definition of it out of PyTorch.
    TorchExportError.

    For ``Library(..., torch=True)``, which finds this by its name.
    """
    operator = OpOverload(registry.dispatcher, name)
    entry, generation = operator.entry, exported(operator).generation

    def end() -> None:
        with entry.lock:
            there = entry.peer  # another one, if it was exported again or defined anew
            if isinstance(there, Exported) and there.generation == generation:
                entry.leave_peer()

    return end


class _Needed(NamedTuple):
    """What an export depends on, beside the schema."""

    gradients: int
    keys: frozenset[DispatchKey]
    rules: tuple[tuple[type, Rule], ...]

    @classmethod
    def of(cls, operator: OpOverload, table: DispatchTable) -> _Needed:
        there = table.kernels
        rules = tuple(
            each for each in operator.rules.by_class.items() if is_asked_by_torch(each[0])
        )
        keys = frozenset(there.keys() & {*AUTOCAST, _BATCHED})
        return cls(_gradients_of(table), keys, rules)


def formula_of(kernel: object) -> Formula | None:
    """The formula that a kernel at Autograd stands for; None for any other kernel."""
    function = getattr(kernel, "function", None)
    function = getattr(function, "function", function)  # what custom_op has put around it
    found = getattr(type(function), "__autograd_formula__", None)
    formula: Formula | None = found(function) if found is not None else None
    return formula


def _gradients_of(table: DispatchTable) -> int:
    kernel = table.kernels.get(DispatchKey.Autograd)
    if kernel is not None and formula_of(kernel) is None:
        return _OWN_KERNEL
    if kernel is None and _IMPLICIT in table.kernels:
        return _MADE_OF_OTHERS
    return _FORMULA


# --- one operator as an operator of PyTorch -------------------------------------------------------


class Exported:
    """One definition of an operator, as an operator of torch.library.

    ``overload`` is PyTorch's object for it, ``generation`` that of the definition.
    """

    is_made = True

    def __init__(self, operator: OpOverload, schema: FunctionSchema, needed: _Needed) -> None:
        torch: Any = sys.modules["torch"]
        self.generation = operator.generation
        self.needed = needed
        self._operator = operator
        self._schema = schema
        self._torch = torch
        namespace, _, name = operator.name.partition("::")
        self._library = torch.library.Library(namespace, "FRAGMENT")
        try:
            text = in_torch(schema)
            self._library.define(text.partition("::")[2], tags=_tags(torch, operator))
            packet, _, overload = name.partition(".")
            self.overload = getattr(
                getattr(getattr(torch.ops, namespace), packet), overload or "default"
            )
            _keep(torch, namespace, name)
            self._register(name)
        except OperatorGoneError:  # its definition has ended meanwhile
            self.close()
            raise
        except TorchExportError:  # of a class
            self.close()
            raise
        except Exception as error:
            self.close()
            raise TorchExportError(
                f"{operator.name} cannot be an operator of PyTorch: {error}\n"
                f"  declared as {schema}\nPyTorch wants to see this call. If torch.library has "
                "an operator of this name, one of the two must have another name.",
                operator.name,
                str(error),
            ) from error
        label = f"torch.ops.{namespace}.{name}"
        self.own_slot = TableEntry(
            LocalKernel(DispatchKey.Undefined, self.overload, label=label), "PyTorch"
        )

    def close(self) -> None:
        """Takes it out of PyTorch."""
        with suppress(ValueError):  # at the end of a process that imported PyTorch after mdispatch
            self._library._destroy()  # PyTorch has done so before

    def in_c(self, schema: FunctionSchema, table: DispatchTable) -> tuple[int, int, Any]:
        """PyTorch's operator is for calls in C if nothing has to be exported again, and if they
        know as well as Python which calls PyTorch wants.
        """
        gate, written = gate_of(schema, table)
        is_sure = gate != ALWAYS or writes(schema)
        is_current = is_sure and self.needed == _Needed.of(self._operator, table)
        return gate, written, self.overload if is_current else None

    def slot(
        self,
        operator: OpOverload,
        table: DispatchTable,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> TableEntry | None:
        """What runs in place of the table's kernel; None if PyTorch does not want this call."""
        if not is_wanted(self._schema, table, positional, keywords):
            return None
        return exported(operator).own_slot

    @staticmethod
    def overload_of(operator: OpOverload) -> Any:
        """The operator in ``torch.ops``, exported again if something has changed."""
        return exported(operator).overload

    def keep_up(self) -> None:
        """Exports it again, if the operator has changed so that PyTorch needs to know. Nothing is
        done for an operator that has ended.
        """
        with suppress(OperatorGoneError):
            exported(self._operator)

    def _register(self, name: str) -> None:
        torch, library, schema = self._torch, self._library, self._schema
        qualified = f"{library.ns}::{name}"
        for key in self.needed.keys:
            by_vmap = self._vmap_rule() if key is _BATCHED else None
            if by_vmap is not None:
                torch.library.register_vmap(qualified, by_vmap, lib=library)
                continue
            run = self._run_with_keys if key is _BATCHED else self._autocast(key)
            library.impl(name, run, key.name, with_keyset=True)
        for cls, rule in self.needed.rules:
            torch.library.register_torch_dispatch(
                qualified, cls, _asked(torch, cls, rule), lib=library
            )
        if self.needed.gradients == _MADE_OF_OTHERS:
            library.impl(name, self._run_composite, str(_IMPLICIT.name))
            return
        library.impl(name, self._run_backend, "CompositeExplicitAutograd", with_keyset=True)
        torch.library.register_fake(qualified, self._run_fake, lib=library)
        written = [
            i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.writes
        ]
        if written:
            library.impl(name, self._raise_versions, "ADInplaceOrView", with_keyset=True)
        if self.needed.gradients == _OWN_KERNEL:
            library.impl(name, self._run_with_keys, "Autograd", with_keyset=True)
        elif written:
            library.impl(name, self._run_below_autograd, "Autograd", with_keyset=True)
        elif _has_gaps(schema):
            if self._formula() is not None:
                library.impl(name, self._run_with_keys, "Autograd", with_keyset=True)
        elif _may_have_formula(schema):
            by_keyword = any(each.kwarg_only for each in schema.arguments)
            torch.library.register_autograd(
                qualified,
                self._backward,
                setup_context=self._setup_with_keywords if by_keyword else self._setup,
                lib=library,
            )

    # --- what PyTorch's dispatcher calls

    def _run_backend(self, key_set: Any, *args: Any, **kwargs: Any) -> Any:
        keys = DispatchKeySet.from_raw(torch_keys().raw_of_set(key_set))
        return self._operator.redispatch(keys & _AFTER_AUTOGRAD, *args, **kwargs)

    def _run_with_keys(self, key_set: Any, *args: Any, **kwargs: Any) -> Any:
        keys = DispatchKeySet.from_raw(torch_keys().raw_of_set(key_set))
        return self._operator.redispatch(keys, *args, **kwargs)

    def _vmap_rule(self) -> Callable[..., Any] | None:
        """The newest rule for vmap, if it is of PyTorch's form."""
        table = self._operator.entry.current(self.generation)[0]
        kernel: Any = table.kernels.get(_BATCHED)
        function = getattr(kernel, "function", None)
        return function.function if isinstance(function, VmapRule) else None

    def _autocast(self, key: DispatchKey) -> Callable[..., Any]:
        """What runs at a key of autocast: our kernel there, with the key turned off, so that the
        call which it makes goes below.
        """
        torch: Any = self._torch
        below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key.name))

        def run(key_set: Any, *args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(below):
                return self._operator.redispatch(DispatchKeySet(key), *args, **kwargs)

        return run

    def _run_composite(self, *args: Any, **kwargs: Any) -> Any:
        return call_registered(self._operator, _IMPLICIT, args, kwargs)

    def _run_fake(self, *args: Any, **kwargs: Any) -> Any:
        torch = self._torch
        if not self._schema.returns and self._has_no_fake():
            return None  # there is nothing to make, and meta values have no data to write
        # PyTorch has a context for FakeTensors, and none for tensors of the device meta.
        with with_sizes_of(lambda **how: torch.library.get_ctx().new_dynamic_size(**how)):
            found = self._operator.redispatch(DispatchKeySet("Meta"), *args, **kwargs)
        return _in_place_of_meta_values(torch, found)

    def _has_no_fake(self) -> bool:
        table = self._operator.entry.current(self.generation)[0]
        return not _META & table.kernels.keys()

    def _raise_versions(self, key_set: Any, *args: Any, **kwargs: Any) -> Any:
        """First: a kernel that fails may have written."""
        torch = self._torch
        below = key_set & torch._C._after_ADInplaceOrView_keyset
        for position, argument in enumerate(self._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.writes:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if each is not None:
                    torch.autograd.graph.increment_version(each)
        return self.overload.redispatch(below, *args, **kwargs)

    # --- gradients

    def _run_below_autograd(self, key_set: Any, *args: Any, **kwargs: Any) -> Any:
        """An operator that writes is not differentiated: neither its kernel, which the compiler and
        an exported program do not see, nor by a formula. So it is with torch.library.custom_op: a
        gradient of a new tensor that it returns is an error in the backward pass.
        """
        torch = self._torch
        below = key_set & torch._C._after_autograd_keyset

        def run() -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return self.overload.redispatch(below, *args, **kwargs)

        returns = self._schema.returns
        if not any(each.type.holds_tensors and each.alias_info is None for each in returns):
            return run()
        tree = torch.utils._pytree
        tensors = [each for each in tree.tree_leaves((args, kwargs)) if is_torch_tensor(each)]
        if not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors):
            return run()
        if torch._C._are_functorch_transforms_active():
            raise _not_differentiated(self._operator.name)
        spec: list[Any] = []
        flat = _no_formula(torch).apply(self._operator.name, run, spec, *tensors)
        return tree.tree_unflatten(flat, spec[0])

    def _formula(self) -> Formula | None:
        table = self._operator.entry.current(self.generation)[0]
        kernel = table.kernels.get(DispatchKey.Autograd)
        return formula_of(kernel) if kernel is not None else None

    def _setup(self, ctx: Any, inputs: Any, output: Any) -> None:
        formula = self._formula()
        if formula is not None and formula.setup_context is not None:
            formula.run(formula.setup_context, ctx=ctx, inputs=inputs, output=output)

    def _setup_with_keywords(
        self, ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any
    ) -> None:
        formula = self._formula()
        if formula is not None and formula.setup_context is not None:
            formula.run(
                formula.setup_context,
                ctx=ctx,
                inputs=inputs,
                keyword_only_inputs=keyword_only_inputs,
                output=output,
            )

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        formula = self._formula()
        if formula is None:
            name = self._operator.name
            raise AutogradError(
                f"the backward pass came to {name}, which has no formula\n  declared as "
                f"{self._schema}\nRegister one with register_autograd, or detach its arguments. A "
                "kernel that is made of differentiable operators belongs at "
                "CompositeImplicitAutograd.",
                name,
            )
        return formula.run(formula.backward, ctx, *gradients)


def _no_formula(torch: Any) -> Any:
    """PyTorch's class of a node in its graph whose backward pass raises."""
    made = _made.get("no formula")
    if made is None:

        class NoFormula(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, name: str, run: Any, spec: list[Any], *tensors: Any) -> Any:
                ctx.name = name
                flat, its = torch.utils._pytree.tree_flatten(run())
                spec.append(its)
                return tuple(flat)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                raise _not_differentiated(ctx.name)

        made = _made.setdefault("no formula", NoFormula)
    return made


_made: dict[str, Any] = {}


def _not_differentiated(name: str) -> AutogradError:
    return AutogradError(
        f"a gradient is wanted of {name}, which writes to an argument and so has no formula\n"
        "Let an operator that only returns new tensors compute that part, or detach the arguments.",
        name,
    )


# An entry of PyTorch's dispatcher is freed with its last registration, and what still holds the
# operator then reads freed memory: a graph that was compiled, an overload that somebody kept. So a
# registration that changes nothing stays for each name that was exported, as long as the process:
# VmapMode falls through for all operators anyway. A name that has ended is an error there.
_kept: dict[str, Any] = {}


def _keep(torch: Any, namespace: str, name: str) -> None:
    if f"{namespace}::{name}" not in _kept:
        library = torch.library.Library(namespace, "FRAGMENT")
        library.impl(name, torch.library.fallthrough_kernel, "VmapMode")
        _kept[f"{namespace}::{name}"] = library


def _may_have_formula(schema: FunctionSchema) -> bool:
    """Whether PyTorch takes a formula for such an operator. For others its graph has a node that
    warns in the backward pass.
    """
    return (
        bool(schema.returns)
        and not any(each.alias_info for each in (*schema.arguments, *schema.returns))
        and not any(each.kwarg_only and each.type.holds_tensors for each in schema.arguments)
    )


def _has_gaps(schema: FunctionSchema) -> bool:
    """Whether it takes a list in which None may stand for a tensor: PyTorch's formulas see no
    gradient there.
    """
    return any(str(each.type).startswith("Tensor?[") for each in schema.arguments)


def _asked(torch: Any, cls: type, rule: Rule) -> Callable[..., Any]:
    """A rule as PyTorch calls it."""
    if rule.full:
        return rule.function
    if issubclass(cls, torch.Tensor):
        return lambda kind, op, types, args, kwargs: rule.function(*args, **kwargs)
    return lambda mode, op, types, args, kwargs: rule.function(mode, *args, **kwargs)


def _tags(torch: Any, operator: OpOverload) -> tuple[Any, ...]:
    """PyTorch's tags of the same names."""
    found = [getattr(torch.Tag, str(each), None) for each in operator.tags]
    return (*(each for each in found if each is not None), torch.Tag.pt2_compliant_tag)


def _in_place_of_meta_values(torch: Any, found: Any) -> Any:
    """A fake kernel's result, with tensors where it made meta values."""
    if MetaValue in type(found).__mro__:
        name = str(found.dtype).removeprefix("torch.")
        dtype = found.dtype if isinstance(found.dtype, torch.dtype) else getattr(torch, name, None)
        return torch.empty_strided(found.shape, found.strides, dtype=dtype, device=found.device)
    if isinstance(found, (list, tuple)):
        return type(found)(_in_place_of_meta_values(torch, each) for each in found)
    return found

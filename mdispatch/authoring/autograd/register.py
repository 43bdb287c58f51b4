"""Gradients for operators of any objects: formulas, and the engines that run them.

A formula is registered as a kernel at the alias key Autograd. So it is a registration like every
kernel, and workers verify it. It serves the autograd keys of every backend, except where a kernel
at CompositeImplicitAutograd does (see the table's rules): such an operator is differentiated
through the operators that it is made of.

A formula computes no gradient by itself. When an operator is called, the kernel asks the engines
whether one of its tensors needs a gradient. If none does, the call goes on below autograd.
Otherwise the engine that said yes runs the operator, keeps what the way back needs, and calls the
formula later. There is an engine for PyTorch's tensors; users can register others. An example has
one for any objects that can be added (examples/tape.py).
"""

from __future__ import annotations

from ... import errors, facts
from ...dispatch.operators import OpOverload
from ...errors.locations import caller, label_of, location_of
from ...errors.words import nearest, shown
from ..targets import library_for, target_of
from .engines import EngineHandle, engine_for, needs_grad, register_autograd_engine
from .node import AutogradCall, AutogradContext, AutogradNode, Formula

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ...keys import DispatchKeySet
    from ...registry import Registry
    from ...registry.library import Library
    from ...schema import FunctionSchema
    from ..targets import Op

__all__ = ["AutogradCall", "AutogradContext", "AutogradNode", "EngineHandle"]
__all__ += ["needs_grad", "register_autograd", "register_autograd_engine"]


def register_autograd(
    op: Op,
    backward: Callable[..., Any],
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
    registry: Registry | None = None,
) -> None:
    """Registers the formula that differentiates an operator.

    ``op`` is a name with its namespace, an operator, or an object that ``custom_op`` made;
    ``registry`` is the operator's registry if that is not the default one. ``backward(ctx,
    *gradients)`` gets one gradient per return: a list for a list of tensors, None for a value that
    is not a tensor. It returns one gradient per positional argument of the schema, as a tuple if
    there are several: a list for a list of tensors, None if it has none to give. It may call
    operators; these are differentiated in their turn if an engine records them.

    ``setup_context`` is called after the operator has run, below autograd, with keywords: ``ctx``,
    ``inputs`` (the positional arguments, defaults included), ``output``, and, where the schema has
    keyword-only arguments, ``keyword_only_inputs``, a dict. It keeps what ``backward`` will need on
    ``ctx``, an :class:`AutogradContext`. Without ``setup_context`` nothing is kept.

    The kernel is registered at the key Autograd in ``lib``, else in a library of its own, which
    stays open. The newest formula of an operator is in effect. A worker waits until the main
    interpreter has registered one, too.

    Raises AutogradError for an operator whose arguments are written to, whose returns share memory
    with others, that returns nothing, that takes or returns any number of values, or has
    keyword-only tensors; OperatorNotFoundError, InvalidNameError, InvalidArgumentError (not
    callable, another namespace or registry), InvalidKeyError (a ``lib`` of another key),
    OperatorGoneError, LibraryClosedError, RegistryFullError; in a worker KeyMismatchError,
    NameMismatchError, MainNeverArrivedError. (torch: torch.library.register_autograd)
    """
    for what, given in (("backward", backward), ("setup_context", setup_context)):
        if not callable(given) and (given is not None or what == "backward"):
            raise errors.InvalidArgumentError(f"{what} must be callable; {shown(given)} is not")
    name, registry = target_of(op, lib, registry)
    if isinstance(op, OpOverload):
        _ = op.schema  # OperatorGoneError
    kernel = _Kernel(registry, name, backward, setup_context, location_of(caller()))
    # A worker that registers what the main interpreter has registered need not look at it again.
    if not registry.is_worker:
        _, _, there = registry.dispatcher.facts.registrations(name)
        if any(fact.kind == facts.DEF for fact in there):
            kernel.__autograd_formula__()
        elif registry.registers(name.partition("::")[0]):
            _fail_not_found(registry, name)
    if lib is not None:
        lib.impl(name, kernel, "Autograd", with_keyset=True)
        return
    with library_for(name, registry, "autograd") as own:
        own.impl(name, kernel, "Autograd", with_keyset=True)


def _fail_not_found(registry: Registry, name: str) -> NoReturn:
    near = nearest(name, registry.operators())
    hint = f"; did you mean {', '.join(near)}?" if near else ": define it first"
    raise errors.OperatorNotFoundError(f"there is no operator {shown(name)}{hint}", name, near)


class _Kernel:
    """The kernel at Autograd. It has the formula's name, which tables and reports show."""

    def __init__(
        self,
        registry: Registry,
        name: str,
        backward: Callable[..., Any],
        setup_context: Callable[..., Any] | None,
        where: str,
    ) -> None:
        module, _, qualname = label_of(backward).rpartition(".")
        self.__module__, self.__qualname__ = module, qualname
        self._registry = registry
        self._name = name
        self._backward = backward
        self._setup_context = setup_context
        self._where = where
        self._formula: Formula | None = None

    def __autograd_formula__(self) -> Formula:
        """The formula for the operator as it is defined now: a kernel outlives definitions.

        Raises AutogradError if an operator with such a schema can have no formula.
        """
        formula = self._formula
        if formula is None or formula.operator.is_gone:
            operator = OpOverload(self._registry.dispatcher, self._name)
            _check_schema(operator.schema, self._name)
            formula = Formula(operator, self._backward, self._setup_context, self._where)
            self._formula = formula
        return formula

    def __call__(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        call = AutogradCall(self.__autograd_formula__(), keys, args, kwargs)
        engine = engine_for(call)
        return call.below() if engine is None else engine.apply(call)

    def __repr__(self) -> str:
        return f"<autograd formula of {self._name} from {self._where}>"


def _check_schema(schema: FunctionSchema, name: str) -> None:
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.writes]
    keyword_only = [a.name for a in schema.arguments if a.kwarg_only and a.type.holds_tensors]
    if written:
        what = f"writes to {', '.join(written)}"
    elif any(each.alias_info is not None for each in schema.returns):
        what = "returns values that share memory with others"
    elif schema.is_vararg or schema.is_varret:
        what = "takes or returns any number of values ('...')"
    elif not schema.returns:
        what = "returns nothing"
    elif keyword_only:
        what = f"takes Tensors by keyword only ({', '.join(keyword_only)})"
    else:
        return
    raise errors.AutogradError(
        f"{name} cannot have an autograd formula: it {what}\n  declared as {schema}\nDefine an "
        "operator that takes its Tensors by position and returns new values, and register the "
        "formula for that operator.",
        name,
    )

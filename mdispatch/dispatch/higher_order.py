"""Operators that take functions: Python only, without a schema, each with rules of its own for
keys, modes, types and transforms.

    select = HigherOrderOperator("select")

    @select.py_impl("CompositeExplicitAutograd")
    def select_here(which, if_true, if_false, *values): ...

    @select.py_impl(Trace)  # a class of modes
    def select_traced(mode, which, if_true, if_false, *values): ...

Users find it as ``ops.higher_order.select``. It belongs to no registry: its rules are callables of
this interpreter, and each interpreter registers its own.

A call goes the way of every call (dispatch/call_py.py), with these differences. Keys come from all
arguments, in lists, tuples and dicts too; functions carry none. Backend fallbacks do not serve such
an operator: each key that a call meets needs a rule, or has to fall through. A mode without a rule
for the operator is an error, unless the mode's class sets ``supports_higher_order_operators =
True``: few handlers expect an operator without a schema.

Only programs that use it load this file. (PyTorch: HigherOrderOperator, torch/_ops.py)
"""

from __future__ import annotations

from ..errors import (
    AmbiguousKernelError,
    DuplicateRegistrationError,
    InvalidKeyError,
    InvalidNameError,
    MissingKernelError,
    MissingRuleError,
    OperatorGoneError,
    OperatorNotFoundError,
)
from ..errors.locations import caller, location_of
from ..errors.runs import Run
from ..errors.words import nearest, shown
from ..facts.native import calls
from ..keys import DispatchKeySet
from ..keys.numbers import DispatchKey, parse_key, table_index
from ..schema.names import Named, OperatorName
from .context.nested import leaves, opened
from .context.transforms import FRONT, places_of_functionalize
from .context.values import raw_of
from .handlers import NOBODY, ask_modes_and_types, ask_pre_dispatch, ask_transform, overloaded_types
from .overrides import PythonKernel, Rules, lock
from .placement import check_handlers
from .table import compute_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import Any, TypeVar

    from .context.transforms import TransformType
    from .overrides import Rule, Rules
    from .table import DispatchTable

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["NAMESPACE", "HigherOrderNamespace", "HigherOrderOperator", "find_higher_order"]
__all__ += ["higher_order_names"]


# --- names and rules ------------------------------------------------------------------------------

NAMESPACE = "higher_order"

#: The keys at which modes, types and transforms are asked.
ASKED = (DispatchKey.Python, DispatchKey.PreDispatch, FRONT)


# The operators of this interpreter by name.
_operators: dict[str, HigherOrderOperator] = {}


def find_higher_order(name: str) -> HigherOrderOperator:
    """The operator of a name, without its namespace. OperatorNotFoundError, with the nearest names.

    (PyTorch: torch.ops.higher_order)
    """
    operator = _operators.get(name)
    if operator is not None:
        return operator
    near = nearest(name, _operators)
    known = ", ".join(sorted(_operators)[:8]) or "none"
    hint = f"did you mean {', '.join(near)}?" if near else f"this interpreter has {known}"
    raise OperatorNotFoundError(
        f"there is no higher-order operator {shown(name)}; {hint}", f"{NAMESPACE}::{name}", near
    )


def higher_order_names() -> list[str]:
    """The names of this interpreter's higher-order operators, sorted."""
    return sorted(_operators)


def maker(operator: HigherOrderOperator) -> FrameType | None:
    """The frame that makes the operator; constructors of subclasses do not count."""
    frame = caller()
    while frame is not None and frame.f_code.co_name == "__init__":
        names = frame.f_code.co_varnames
        if not names or frame.f_locals.get(names[0]) is not operator:
            break
        frame = frame.f_back
    return frame


def take_name(operator: HigherOrderOperator) -> None:
    """Gives the operator its name in this interpreter. DuplicateRegistrationError if an operator
    has the name that was not made by an earlier run of the same module.
    """
    name = operator.__name__
    with lock:
        earlier = _operators.get(name)
        if earlier is None or operator.replaces(earlier):
            _operators[name] = operator
            return
        raise DuplicateRegistrationError(
            f"there is a higher-order operator {name} already, and each interpreter takes only one "
            f"of each name\n  first:  {earlier.where}\n  second: {operator.where}\nChoose another "
            "name, or close the first one.",
            "higher-order operator",
            operator.name,
            "",
            earlier.where,
            operator.where,
        )


def give_up_name(operator: HigherOrderOperator) -> None:
    """Frees the name, unless another operator has it by now."""
    with lock:
        if _operators.get(operator.__name__) is operator:
            del _operators[operator.__name__]


class HigherOrderRules(Rules):
    """The rules of a higher-order operator, which has no other kernels and no backend fallbacks.
    ``__md_dispatch__`` counts only in classes that declare that they support such operators.
    """

    __slots__ = ("_no_kernels",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._no_kernels = compute_table({}, {})

    def table(self) -> DispatchTable:
        """What runs at each key."""
        return self.merged(self._no_kernels)

    def at(self, key: DispatchKey) -> PythonKernel | None:
        """The rule that runs at a runtime key. InvalidKeyError for a key without a slot."""
        kernel = self.table().entries[table_index(key)].kernel
        return kernel if isinstance(kernel, PythonKernel) else None

    def of_class(self, cls: type, end: type | None = None) -> Iterator[Rule]:
        supports = getattr(cls, "supports_higher_order_operators", False)
        for base in cls.__mro__:
            if base in self.by_class:
                yield self.by_class[base]
                return
            if supports and "__md_dispatch__" in base.__dict__:
                return

    def chosen(self, cls: type) -> Rule | None:
        rule = super().chosen(cls)
        if rule is None and not getattr(cls, "supports_higher_order_operators", False):
            classes = [each.__qualname__ for each in self.by_class]
            error = MissingRuleError(
                f"{self.name} has no rule for {cls.__module__}.{cls.__qualname__}, and its "
                "__md_dispatch__ is not called for operators without a schema\n  rules for: "
                f"{', '.join(classes) or 'none'}\nRegister one with py_impl({cls.__qualname__}), "
                f"or set {cls.__qualname__}.supports_higher_order_operators to True.",
                self.name,
                DispatchKey.Python.name,
                classes,
            )
            error.handler = cls.__qualname__
            raise error
        return rule

    def missing(self, key: DispatchKey) -> MissingKernelError:
        """Why nothing runs there."""
        rules = self.py_kernels
        listed = ", ".join(f"{k.name} ({rule.where})" for k, rule in rules.items()) or "none"
        available = [each.name for each in rules]
        if self.table().entries[table_index(key)].reason == "ambiguous autogradother":
            return AmbiguousKernelError(
                f"{self.name} has rules at CompositeImplicitAutograd and at a backend behind "
                "AutogradOther: mdispatch cannot decide which of them runs\n  rules at: "
                f"{listed}\nRegister one with py_impl('AutogradOther').",
                self.name,
                key.name,
                available,
            )
        if key in ASKED:
            what = (
                f"a call of {self.name} reached {key.name}, and there is nothing to handle it there"
            )
            todo = f"Enter a mode or a transform, or register a rule with py_impl({key.name!r})."
            if key is DispatchKey.Python:
                todo = "Enter a mode, or give an argument whose type has __md_dispatch__."
        elif key is DispatchKey.Undefined:
            what = f"{self.name} has no rule for a call without dispatch keys"
            todo = "Register one with py_impl('CompositeExplicitAutograd')."
        else:
            what = f"{self.name} has no rule that serves {key.name}"
            todo = (
                f"Register one with py_impl({key.name!r}), or let calls skip the key with "
                f"fallthrough({key.name!r}): backend fallbacks do not serve higher-order operators."
            )
        return MissingKernelError(
            f"{what}\n  rules at: {listed}\n{todo}", self.name, key.name, available
        )


# --- the operators --------------------------------------------------------------------------------


#: Keys that carry nothing such an operator would have to heed, until a rule is registered there.
_FALLTHROUGH = (
    *("PythonDispatcher", "PythonTLSSnapshot", "ADInplaceOrView", "BackendSelect"),
    *("AutocastCPU", "AutocastCUDA", "AutocastXPU"),
)
_HANDLERS = DispatchKey.Python.raw | DispatchKey.PreDispatch.raw


class HigherOrderNamespace(Named):
    """The higher-order operators of this interpreter, by their names."""

    def __getattr__(self, name: str) -> HigherOrderOperator:
        if name.startswith("__"):
            raise AttributeError(name)
        return find_higher_order(name)

    def __dir__(self) -> list[str]:
        return higher_order_names()

    def __repr__(self) -> str:
        return "<mdispatch namespace higher_order>"


class HigherOrderOperator(Named):
    """An operator for functions and any other arguments. ``name`` is an identifier.

    It can be used as it is. A subclass gives calls a signature: its ``__call__`` passes its
    arguments on to this one. Until ``close()`` the operator has its name in this interpreter. A
    module that is imported again, or a cell of a notebook that is run again, replaces the operator
    that it made before, which stays as it is for code that holds it.

    Raises InvalidNameError, and DuplicateRegistrationError for a name that another module, or the
    same run, has given. (PyTorch: HigherOrderOperator, where a second operator of a name silently
    wins)
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidNameError(f"an operator is named by a str, not {shown(name)}", name)
        OperatorName(NAMESPACE, name)  # checks it
        self.__name__ = self.__qualname__ = name
        self._rules = HigherOrderRules(f"{NAMESPACE}::{name}")
        #: The keys at which calls stop, if they carry them. (PyTorch: non_fallthrough_keys)
        self.non_fallthrough_keys = DispatchKeySet.full() - DispatchKeySet(_FALLTHROUGH)
        frame = maker(self)
        #: ``file:line`` at which it was made.
        self.where = location_of(frame)
        self._made_in = None if frame is None else Run(frame)
        self._gone = False
        take_name(self)

    @property
    def name(self) -> str:
        """``higher_order::name``."""
        return self._rules.name

    @property
    def namespace(self) -> str:
        """``higher_order``. (PyTorch: HigherOrderOperator.namespace)"""
        return NAMESPACE

    def close(self) -> None:
        """Frees the name; from then on every use raises OperatorGoneError. Idempotent."""
        self._gone = True
        give_up_name(self)

    @property
    def is_gone(self) -> bool:
        """Whether it was closed."""
        return self._gone

    def replaces(self, earlier: HigherOrderOperator) -> bool:
        """Whether it is the same operator, from a later run of its module."""
        here, there = self._made_in, earlier._made_in
        return here is not None and there is not None and here.replaces(there)

    # --- what is registered

    @property
    def rules(self) -> HigherOrderRules:
        """The rules by key, by class and by type of transform: see dispatch/overrides.py.

        Raises OperatorGoneError.
        """
        if self._gone:
            raise OperatorGoneError(f"operator {self.name} was closed", self.name)
        return self._rules

    @property
    def py_kernels(self) -> dict[DispatchKey, Callable[..., Any]]:
        """The rules by key; a copy. (PyTorch: OperatorBase.py_kernels)"""
        return {key: rule.function for key, rule in self.rules.py_kernels.items()}

    def has_kernel_for_dispatch_key(self, key: DispatchKey | str) -> bool:
        """Whether a rule is registered at exactly this key. Raises InvalidKeyError.

        (PyTorch: OperatorBase.has_kernel_for_dispatch_key)
        """
        return parse_key(key) in self.rules.py_kernels

    def has_kernel_for_any_dispatch_key(self, key_set: DispatchKeySet) -> bool:
        """Whether one is registered at any key of a set. Raises OperatorGoneError. (PyTorch:
        OperatorBase.has_kernel_for_any_dispatch_key)
        """
        return any(key.raw and key_set.has(key) for key in self.rules.py_kernels)

    def py_impl(self, *places: DispatchKey | str | type | TransformType) -> Callable[[F], F]:
        """A decorator: one rule for one or several places at once; for all or, if one is refused,
        none. A module that is run again replaces the rules that it registered before.

        At dispatch keys, alias keys too, it is called with the arguments; a key that fell through
        does so no more. For a class of values likewise; for a class of modes with the mode first,
        for a type of transforms with the transform first.

        Raises InvalidKeyError (Python, Undefined), InvalidArgumentError, OperatorGoneError,
        DuplicateRegistrationError. (PyTorch: HigherOrderOperator.py_impl)
        """
        register = self.rules.adding(places)

        def add(function: F) -> F:
            register(function)
            self._stop_at(places)
            return function

        return add

    def py_functionalize_impl(self, function: F) -> F:
        """One rule for the key Functionalize, the class FunctionalMode and the transforms of type
        Functionalize; at all three, or at none. A decorator.

        It is called with a FunctionalizeContext, which says by which of them, and the arguments.
        Errors as of :meth:`py_impl`. (PyTorch: OperatorBase.py_functionalize_impl)
        """
        places = places_of_functionalize(function)
        self.rules.add_all(places)
        self._stop_at(place for place, _ in places)
        return function

    def _stop_at(self, places: Iterable[object]) -> None:
        keys = [parse_key(each) for each in places if isinstance(each, (str, DispatchKey))]
        with lock:
            self.non_fallthrough_keys |= DispatchKeySet(keys)

    def fallthrough(self, key: DispatchKey | str) -> None:
        """From now on calls pass by this key, as if no argument carried it, until a rule is
        registered there. If the key exists per backend, they pass by its whole functionality.

        InvalidKeyError for Undefined and alias keys, OperatorGoneError. (PyTorch:
        HigherOrderOperator.fallthrough)
        """
        key = parse_key(key)
        if not key.raw:
            raise InvalidKeyError(
                f"no key set holds {key}, so no call can skip it: name runtime keys", key
            )
        self.rules  # noqa: B018  # raises when it was closed
        with lock:
            self.non_fallthrough_keys -= DispatchKeySet(key)

    def why(self, key: DispatchKey | str) -> tuple[str, ...]:
        """How the rule at a runtime key was found: the rules of precedence that were tried, up to
        the one that applies, then the place at which the rule was registered.

        InvalidKeyError for a key without a slot in tables, OperatorGoneError.
        """
        key = parse_key(key)
        self.rules  # noqa: B018  # raises when it was closed
        rule = self._rules.at(key)
        where = (f"registered at {rule.where}",) if rule is not None else ()
        return *self._rules.table().why(key), *where

    # --- calling

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs what the keys of the arguments and of this thread lead to.

        A SafeObject among the arguments is opened. Raises ForeignObjectError when it is not at home
        here, MissingKernelError, MissingRuleError, HandlersDeclinedError, OperatorGoneError and
        what the rule raises.
        """
        args, kwargs, values = self._looked_into(args, kwargs)
        raw = 0
        for value in values:
            raw |= raw_of(value) or 0
        included, kept = calls.now()
        raw = (raw | included) & kept & self.non_fallthrough_keys.raw
        self._check_handlers(raw, values)
        key_set = DispatchKeySet.from_raw(raw)
        while True:
            key = key_set.highest_priority()
            result = self._run(key, values, args, kwargs)
            if result is not NOBODY:
                return result
            key_set -= DispatchKeySet(key)

    def dispatch(self, key: DispatchKey | str, /, *args: Any, **kwargs: Any) -> Any:
        """Runs what stands at just this runtime key, whatever keys the arguments carry.

        At Python, PreDispatch and FuncTorchDynamicLayerFrontMode that is the mode, type or
        transform that is asked there. Errors as of a call, and InvalidKeyError. (PyTorch:
        HigherOrderOperator.dispatch)
        """
        key = parse_key(key)
        table_index(key)
        args, kwargs, values = self._looked_into(args, kwargs)
        self._check_handlers(key.raw, values)
        result = self._run(key, values, args, kwargs)
        if result is NOBODY:
            raise self._rules.missing(key)
        return result

    def _looked_into(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """The arguments without holders, and all values in them."""
        args, kwargs = opened(args, self.name), opened(kwargs, self.name)
        return args, kwargs, tuple(leaves((args, kwargs)))

    def _check_handlers(self, raw: int, values: tuple[Any, ...]) -> None:
        rules = self.rules
        if raw & _HANDLERS:
            check_handlers(self.name, rules, raw, values, {})

    def checked_answer(self, result: Any, by: object) -> Any:
        """Returns the result: there is no schema to compare it with."""
        return result

    def _run(
        self,
        key: DispatchKey,
        values: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the handler or the rule at a key. NOBODY at a key for handlers that has none."""
        if key in ASKED:
            if key is FRONT:
                result = ask_transform(self, args, kwargs)
            else:
                ask = ask_pre_dispatch if key is DispatchKey.PreDispatch else ask_modes_and_types
                result = ask(self, overloaded_types(values, {}), args, kwargs)
            if result is not NOBODY:
                return result
        rule = self._rules.at(key)
        if rule is not None:
            return rule.function(*args, **kwargs)
        if key in ASKED:
            return NOBODY
        raise self._rules.missing(key)

    # --- as a value

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle holds the name; it is loaded as the operator of that name in its interpreter."""
        return find_higher_order, (self.__name__,)

    def __repr__(self) -> str:
        return f"<mdispatch operator {self.name}>"

"""Operators that take functions: Python only, without a schema, each with rules of its own for
keys, modes, types and transforms.

    select = HigherOrderOperator("select")

    @select.py_impl("CompositeExplicitAutograd")
    def select_here(which, if_true, if_false, *values): ...

    @select.py_impl(Trace)  # a class of modes
    def select_traced(mode, which, if_true, if_false, *values): ...

It is found as ``ops.higher_order.select``. It belongs to no registry: its rules are callables of
this interpreter, and another one has those that it registers itself.

A call goes the way of every other, see _call_py.py, with these differences. Keys come from all
arguments, in lists, tuples and dicts too; functions have none. Backend fallbacks do not serve it:
each key it meets needs a rule, or has to fall through. A mode without a rule for it is an error,
unless the mode's class says ``supports_higher_order_operators = True``: few handlers expect an
operator without a schema.

Loaded by those who use it only. (PyTorch: HigherOrderOperator, torch/_ops.py)
"""

from __future__ import annotations

from ._higher_order import (
    ASKED,
    NAMESPACE,
    HigherOrderRules,
    claim_name,
    find_higher_order,
    give_up_name,
    higher_order_names,
    maker,
)
from ._keys import DispatchKey, parse_key, table_index
from ._nearest import shown
from ._nested import leaves, opened
from ._place import place_of
from ._placement import check_handlers
from ._python_key import (
    NOBODY,
    ask_modes_and_types,
    ask_pre_dispatch,
    ask_transform,
    overloaded_types,
)
from ._rules import lock
from ._schema_names import OperatorName
from .errors import (
    InvalidKeyError,
    InvalidNameError,
    OperatorGoneError,
)
from .guards import local
from .keys import DispatchKeySet
from .transforms import FRONT, places_of_functionalize
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from ._rules import Rules
    from .transforms import TransformType

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["NAMESPACE", "HigherOrderNamespace", "HigherOrderOperator", "find_higher_order"]
__all__ += ["higher_order_names"]

#: Keys that carry nothing such an operator would have to heed, until a rule is registered there.
_FALLTHROUGH = (
    *("PythonDispatcher", "PythonTLSSnapshot", "ADInplaceOrView", "BackendSelect"),
    *("AutocastCPU", "AutocastCUDA", "AutocastXPU"),
)
_HANDLERS = DispatchKey.Python.raw | DispatchKey.PreDispatch.raw


class HigherOrderNamespace:
    """The higher-order operators of this interpreter, by their names."""

    def __getattr__(self, name: str) -> HigherOrderOperator:
        if name.startswith("__"):
            raise AttributeError(name)
        return find_higher_order(name)

    def __dir__(self) -> list[str]:
        return higher_order_names()

    def __repr__(self) -> str:
        return "<mdispatch namespace higher_order>"


class HigherOrderOperator:
    """An operator for functions and any other arguments. ``name`` is an identifier.

    It can be used as it is; a subclass gives calls a signature, with a ``__call__`` that hands its
    arguments to this one. Until ``close()`` it is the one of its name in this interpreter. Made
    again at the same place (a module imported again), it takes the place of the earlier one, which
    stays as it is for those who hold it.

    Raises InvalidNameError, and DuplicateRegistrationError for a name that was given at another
    place. (PyTorch: HigherOrderOperator, of which a second one of a name silently wins)
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidNameError(f"an operator is named by a str, not {shown(name)}", name)
        OperatorName(NAMESPACE, name)  # checks it
        self.__name__ = self.__qualname__ = name
        self._rules = HigherOrderRules(f"{NAMESPACE}::{name}")
        #: The keys at which calls stop, if they carry them. (PyTorch: non_fallthrough_keys)
        self.non_fallthrough_keys = DispatchKeySet.full() - DispatchKeySet(_FALLTHROUGH)
        #: ``file:line`` at which it was made.
        self.where = place_of(maker(self))
        self._gone = False
        claim_name(self)

    @property
    def name(self) -> str:
        """``higher_order::name``."""
        return self._rules.name

    @property
    def namespace(self) -> str:
        """``higher_order``. (PyTorch: HigherOrderOperator.namespace)"""
        return NAMESPACE

    def close(self) -> None:
        """Its name is free again, and every use raises OperatorGoneError. Idempotent."""
        self._gone = True
        give_up_name(self)

    @property
    def is_gone(self) -> bool:
        """Whether it was closed."""
        return self._gone

    # --- what is registered

    @property
    def rules(self) -> Rules:
        """The rules by key, by class and by type of transform: see _rules.py.

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
        none. Registered again from the same place in the code, it replaces the earlier one.

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
        with lock():
            self.non_fallthrough_keys |= DispatchKeySet(keys)

    def fallthrough(self, key: DispatchKey | str) -> None:
        """From now on calls pass by this key, as if no argument carried it, until a rule is
        registered there. Of a key that exists per backend: by all of its functionality.

        InvalidKeyError for Undefined and alias keys, OperatorGoneError. (PyTorch:
        HigherOrderOperator.fallthrough)
        """
        key = parse_key(key)
        if not key.raw:
            raise InvalidKeyError(
                f"{key} is in no key set, so no call could pass by it: name runtime keys", key
            )
        self.rules  # noqa: B018  # raises when it was closed
        with lock():
            self.non_fallthrough_keys -= DispatchKeySet(key)

    def why(self, key: DispatchKey | str) -> tuple[str, ...]:
        """How it was decided what runs at a runtime key: the rules of precedence that were tried,
        up to the one that applies, then the place of what it found.

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
        included, kept = local.sets.now
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

        At Python, PreDispatch and FuncTorchDynamicLayerFrontMode that is whoever is asked there.
        Errors as of a call, and InvalidKeyError. (PyTorch: HigherOrderOperator.dispatch)
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

    def _checked(self, result: Any, by: object) -> Any:
        """There is no schema to compare a result with."""
        return result

    def _run(
        self,
        key: DispatchKey,
        values: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """NOBODY at a key where somebody would be asked, and nobody is there."""
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

    def __copy__(self) -> HigherOrderOperator:
        return self

    def __deepcopy__(self, memo: object) -> HigherOrderOperator:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """It travels by its name; elsewhere it is the one of that name there."""
        return find_higher_order, (self.__name__,)

    def __repr__(self) -> str:
        return f"<mdispatch operator {self.name}>"

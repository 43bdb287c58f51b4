"""Operators: ``ops.namespace.name`` is a packet of overloads, ``ops.namespace.name.overload`` one
of them.

A packet stands for a name: it stays, and finds the overloads that are defined now. An overload
stands for one definition.
"""

from __future__ import annotations

from ..errors import ArgumentError, ForeignObjectError, OperatorGoneError, OperatorNotFoundError
from ..errors.words import nearest, shown
from ..facts.native import calls
from ..keys.numbers import DispatchKey, parse_key
from ..schema.names import Named
from .call_c import connect
from .call_py import (
    call_boxed,
    call_for_dispatch_key,
    call_python_kernel,
    call_registered,
    call_with_keyset,
    call_with_python_kernels,
    checked_answer,
    redispatch_boxed,
)
from .described import Annotations, Described
from .placement import refused
from .traced import traced_in_torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from ..facts import Registration
    from ..keys import DispatchKeySet
    from ..schema import FunctionSchema
    from .context.transforms import TransformType
    from .dispatcher import Dispatcher
    from .entry import OperatorEntry
    from .overrides import Rules

    C = TypeVar("C")
    F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:

    def _callable(cls: type[C]) -> type[C]: ...

else:
    _callable = calls.callable


@traced_in_torch
@_callable
class OpOverload(calls.Operator, Named, Described):
    """One operator with one schema. Calling it runs the kernel that its arguments' dispatch keys
    select.

    It stands for one definition: when that is closed, every use raises OperatorGoneError, for ever,
    also when the name is defined again. Only a module that is run again (imported again, a cell of
    a notebook run again) and defines the same goes on with the same operators. (c10:
    OperatorHandle, which reads freed memory then)
    """

    __annotations__ = Annotations()

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self.dispatcher = dispatcher
        self.entry: OperatorEntry = dispatcher.entry(name)
        signature = self.entry.signature()
        # Generations count from 1: with 0 it stays undefined, whatever is defined later.
        self.generation = signature.generation if signature is not None else 0
        self._attach(self.entry.cell(), self.generation)
        self.__qualname__ = self.__name__ = name

    @property
    def name(self) -> str:
        """``ns::name`` or ``ns::name.overload``."""
        return self.entry.name

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return self.name.partition("::")[0]

    @property
    def overloadpacket(self) -> OpOverloadPacket:
        """All overloads of its name."""
        return OpOverloadPacket(self.dispatcher, self.name.partition(".")[0])

    @property
    def schema(self) -> FunctionSchema:
        """Raises OperatorGoneError when the operator was closed."""
        return self.entry.current(self.generation)[1].schema

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, sorted. Raises OperatorGoneError."""
        return self.entry.current(self.generation)[1].fact.tags

    @property
    def is_view(self) -> bool:
        """Whether a return shares memory with an argument that is not written to, by the schema.

        Raises OperatorGoneError. (PyTorch: OpOverload.is_view)
        """
        schema = self.schema
        shared = {
            name
            for argument in schema.arguments
            if argument.alias_info is not None and not argument.alias_info.is_write
            for name in argument.alias_info.before
        }
        return any(
            each.alias_info is not None and shared & set(each.alias_info.before)
            for each in schema.returns
        )

    @property
    def is_gone(self) -> bool:
        """Whether the operator was closed, so that every use raises OperatorGoneError."""
        signature = self.entry.signature()
        return signature is None or signature.generation != self.generation

    def call_with_keyset(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """A call with ``key_set`` in place of the keys that the arguments carry: for operators
        without tensor arguments, say. This thread's sets and fallthrough count as in every call.

        Raises what a call raises: ArgumentError, MissingKernelError, OperatorGoneError and others.
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

    # --- what is registered

    def has_kernel_for_dispatch_key(self, key: DispatchKey | str) -> bool:
        """Whether a kernel or a Python kernel is registered at exactly this key. Alias keys that
        stand for it do not count, nor do providers that are not available here. Raises
        InvalidKeyError, OperatorGoneError.

        In the interpreter that registers, :func:`mdispatch.wait_for_impl` for the key says the same
        of kernels. (PyTorch: OpOverload.has_kernel_for_dispatch_key)
        """
        key = parse_key(key)
        return key in self._keys_with_kernels(key.__eq__)

    def has_kernel_for_any_dispatch_key(self, key_set: DispatchKeySet) -> bool:
        """Whether one is registered at any key of a set. Raises InvalidKeyError, OperatorGoneError.

        (PyTorch: OpOverload.has_kernel_for_any_dispatch_key)
        """
        from ..keys import DispatchKeySet

        key_set = DispatchKeySet(key_set)

        def is_in(key: DispatchKey) -> bool:
            return bool(key.raw) and key_set.has(key)

        return any(map(is_in, self._keys_with_kernels(is_in)))

    def _keys_with_kernels(self, wanted: Callable[[DispatchKey], bool]) -> list[DispatchKey]:
        table, _ = self.entry.current(self.generation)
        for kernel in self.entry.callables:
            if kernel.provider is not None and kernel.provider.is_later and wanted(kernel.key):
                kernel.provider.settle()
                table, _ = self.entry.current(self.generation)
        registered = table.kernels.items()
        keys = [key for key, kernel in registered if not getattr(kernel, "is_for_none", False)]
        return [*keys, *self.rules.py_kernels]

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel at CompositeImplicitAutograd, which calls other operators, whatever keys
        the arguments carry. NotImplemented if there is none.

        Raises ArgumentError, OperatorGoneError and what the kernel raises. (PyTorch:
        OpOverload.decompose)
        """
        table, _ = self.entry.current(self.generation)
        key = DispatchKey.CompositeImplicitAutograd
        python = self.rules.py_kernels.get(key)
        if python is not None:
            return call_python_kernel(self, python, args, kwargs)
        if key not in table.kernels:
            return NotImplemented
        return call_registered(self, key, args, kwargs)

    # --- what is registered in this interpreter only

    @property
    def rules(self) -> Rules:
        """The rules of this operator by key and by class, in this interpreter: see
        dispatch/overrides.py.
        """
        return self.entry.rules(self.generation)

    @property
    def py_kernels(self) -> dict[DispatchKey, Callable[..., Any]]:
        """The Python kernels by key, as :meth:`py_impl` registered them; a copy."""
        return {key: rule.function for key, rule in self.rules.py_kernels.items()}

    def py_impl(self, *places: DispatchKey | str | type | TransformType) -> Callable[[F], F]:
        """A decorator: one function for one or several dispatch keys, classes and types of
        transforms at once, in this interpreter only; all of them or, if one is refused, none.

        A Python kernel of a key runs while :func:`enable_python_dispatcher` is open, and stands
        there in the operator's table as if it were registered. For a class of modes the function is
        called in place of its ``__md_dispatch__``, with the mode and the arguments, for a type of
        transforms in place of ``process``, with the transform and the arguments, for a class of
        values with the arguments. A module that is run again replaces the rules that it registered
        before.

        Raises InvalidKeyError (Python, Undefined), InvalidArgumentError,
        DuplicateRegistrationError, OperatorGoneError. (PyTorch: OpOverload.py_impl)
        """
        self.entry.current(self.generation)
        return self.rules.adding(places)

    def py_functionalize_impl(self, function: F) -> F:
        """One rule for the key Functionalize, the class FunctionalMode and the transforms of type
        Functionalize; at all three, or at none. A decorator.

        It is called with a FunctionalizeContext, which says by which of them, and the arguments. At
        the key it is a Python kernel, see :meth:`py_impl`. Errors as there. (PyTorch:
        OpOverload.py_functionalize_impl)
        """
        from .context.transforms import places_of_functionalize

        self.entry.current(self.generation)
        self.rules.add_all(places_of_functionalize(function))
        return function

    def call_with_python_kernels(
        self, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that prefers this interpreter's Python kernels (``py_impl``), for handlers."""
        return call_with_python_kernels(self, key_set, args, kwargs)

    def checked_answer(self, result: Any, by: str) -> Any:
        """What a mode or a type gave in place of the kernel, if the schema allows it. ``by`` names
        it. Raises ReturnValueError.
        """
        return checked_answer(self, result, by)

    # --- as a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpOverload):
            return NotImplemented
        return self.entry is other.entry and self.generation == other.generation

    def __hash__(self) -> int:
        return hash((self.name, self.generation))

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle holds the name and the definition. It is loaded as the operator of that name in
        the default registry of its interpreter. TypeError for an operator of another registry,
        OperatorGoneError.
        """
        fact = self.entry.current(self.generation)[1].fact
        return self.dispatcher.holder.reduced("operator", self.name, _told(fact))

    def operators_described(self) -> list[OpOverload]:
        return [self]

    def _exported(self) -> Any:
        peer = self.entry.peer
        return None if peer is None else peer.overload_of(self)

    def __repr__(self) -> str:
        return f"<mdispatch operator {self.name}>"


def _told(fact: Registration) -> tuple[str, str, str]:
    """What a pickle holds of a definition: what verifying compares, and the location."""
    return fact.body, fact.where, fact.attributes


#: How many overloads a packet tries in C before Python takes over.
_TRIED = 8


@traced_in_torch
@_callable
class OpOverloadPacket(calls.Packet, Named, Described):
    """All overloads of one name. Called, it runs the first one, in the order of definition, whose
    schema fits; ArgumentError, with the reason of each, when none does. (torch: OpOverloadPacket)
    """

    __annotations__ = Annotations()

    def __init__(self, dispatcher: Dispatcher, base: str) -> None:
        self._dispatcher = dispatcher
        self._base = base
        self._operators: dict[str, OpOverload] = {}
        self.__qualname__ = self.__name__ = base

    def overloads(self) -> list[str]:
        """The overloads' names in the order of definition; ``default`` is the one without a
        name.
        """
        return [name or "default" for name in self._dispatcher.overloads(self._base)]

    @property
    def schemas(self) -> dict[str, FunctionSchema]:
        """The schemas by overload, in the order of definition."""
        return {overload: self._operator(overload).schema for overload in self.overloads()}

    if TYPE_CHECKING:

        def __getattr__(self, overload: str) -> OpOverload: ...

    def __missing__(self, overload: str) -> OpOverload:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return self._found(overload)

    def _found(self, overload: str) -> OpOverload:
        known = self._look_up(overload)
        if overload not in known:
            raise OperatorNotFoundError(
                f"{self._base} has no overload {shown(overload)}; it has "
                f"{', '.join(known) or 'none'}",
                f"{self._base}.{overload}",
                nearest(overload, known),
            )
        return self._operator(overload)

    def _operator(self, overload: str) -> OpOverload:
        """The overload's operator. It is not looked up as an attribute: an overload may have the
        name of one of the packet's own attributes.
        """
        operator = self._operators.get(overload)
        if operator is None or operator.is_gone:
            name = self._base if overload == "default" else f"{self._base}.{overload}"
            operator = self._operators[overload] = OpOverload(self._dispatcher, name)
        return operator

    def _look_up(self, wanted: str = "") -> list[str]:
        """The overloads' names. It renews what calls and look-ups in C keep of them."""
        # A look-up alone does not map the registry's memory for C.
        view = self._dispatcher.facts.view(make=not wanted)
        begun = self._begin(view) if view is not None else None  # before they are looked up
        known = self.overloads()
        if view is not None and begun is not None and known:
            first = known[:_TRIED]
            order = tuple(map(self._operator, first))
            if wanted in known and wanted not in first:
                self._operator(wanted)
            by_name = {
                name: operator
                for name, operator in self._operators.items()
                if name in known
                and (name in first or not operator.is_gone)  # those were looked at just now
                and not _has(self, name)
            }
            self._settle(begun, view, order, len(known) == 1, by_name)
        return known

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle holds the name and the definitions of the overloads. Errors as those of
        :meth:`OpOverload.__reduce__`.
        """
        operators = [self._operator(overload) for overload in self.overloads()]
        if not operators:
            raise _undefined(self)
        there = (each.entry.current(each.generation)[1].fact for each in operators)
        definitions = [_told(fact) for fact in there]
        return self._dispatcher.holder.reduced("packet", self._base, *definitions)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.overloads()})

    def __iter__(self) -> Iterator[str]:
        """The names of its overloads, in the order of definition."""
        return iter(self.overloads())

    def operators_described(self) -> list[OpOverload]:
        return [self._operator(overload) for overload in self.overloads()]

    def _exported(self) -> Any:
        found = [operator._exported() for operator in self.operators_described()]
        return None if None in found or not found else found[0].overloadpacket

    def __repr__(self) -> str:
        return f"<mdispatch operators {self._base}: {', '.join(self.overloads())}>"


def _call_packet(packet: OpOverloadPacket, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first overload, in the order of definition, whose schema fits."""
    known = packet.overloads()
    if len(known) == 1:
        return packet._operator(known[0])(*args, **kwargs)
    refusals = []
    for overload in known:
        operator = packet._operator(overload)
        try:
            operator.entry.current(operator.generation)[1].binder.bind(args, kwargs)
        except ArgumentError as error:
            refusals.append("  " + str(error).replace("\n", "\n  "))
            continue
        except ForeignObjectError as error:
            raise refused(error, operator.name) from None
        return operator(*args, **kwargs)
    if not known:
        raise _undefined(packet)
    raise ArgumentError(
        f"no overload of {packet._base} takes these arguments:\n" + "\n".join(refusals),
        packet._base,
    )


def _undefined(packet: OpOverloadPacket) -> OperatorGoneError:
    return OperatorGoneError(
        f"operator {packet._base} is not defined: its last registration was closed", packet._base
    )


def _has(packet: OpOverloadPacket, name: str) -> bool:
    """Whether the packet itself has an attribute of this name."""
    return name in vars(packet) or hasattr(OpOverloadPacket, name)


connect(_call_packet, OpOverloadPacket._look_up)

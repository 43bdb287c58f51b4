"""Operators by attribute: ``ops.namespace.name`` is a packet of overloads,
``ops.namespace.name.overload`` one of them.

Namespaces and packets are names: they stay, and find what is defined now. An overload is one
definition.
"""

from __future__ import annotations

from . import _registry as facts
from ._call_c import connect
from ._call_py import (
    call_boxed,
    call_for_dispatch_key,
    call_python_kernel,
    call_registered,
    call_with_keyset,
    call_with_python_kernels,
    checked_answer,
    redispatch_boxed,
)
from ._keys import DispatchKey, parse_key
from ._native import _call
from ._nearest import nearest, shown
from ._placement import refused
from ._schema_names import OperatorName
from .errors import (
    ArgumentError,
    ForeignObjectError,
    OperatorGoneError,
    OperatorNotFoundError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from types import ModuleType
    from typing import Any, TypeVar

    from ._entry import Entry
    from ._load_library import LoadedLibrary
    from ._rules import Rules
    from .higher_order import HigherOrderNamespace
    from .keys import DispatchKeySet
    from .registry import Registry
    from .schema import FunctionSchema
    from .transforms import TransformType

    C = TypeVar("C")
    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Namespace", "OpOverload", "OpOverloadPacket", "Ops"]

if TYPE_CHECKING:

    def _callable(cls: type[C]) -> type[C]: ...

else:
    _callable = _call.callable


@_callable
class OpOverload(_call.Operator):
    """One operator with one schema. Calling it runs the kernel that its arguments' dispatch keys
    select.

    It stands for one definition: when that is closed, every use raises OperatorGoneError, for ever,
    also when the name is defined again. Only a library that is opened again from the same place (a
    module imported again) and defines the same goes on with the same operators. (c10:
    OperatorHandle, which reads freed memory then)
    """

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._entry: Entry = registry.entry(name)
        signature = self._entry.signature()
        # Generations count from 1: what is not defined never will be.
        self._generation = signature.generation if signature is not None else 0
        self._attach(self._entry.cell(), self._generation)
        self.__qualname__ = self.__name__ = name

    @property
    def name(self) -> str:
        """``ns::name`` or ``ns::name.overload``."""
        return self._entry.name

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return self.name.partition("::")[0]

    @property
    def overloadpacket(self) -> OpOverloadPacket:
        """All overloads of its name."""
        return OpOverloadPacket(self._registry, self.name.partition(".")[0])

    @property
    def schema(self) -> FunctionSchema:
        """Raises OperatorGoneError when the operator was closed."""
        return self._entry.current(self._generation)[1].schema

    @property
    def tags(self) -> tuple[str, ...]:
        """What it was tagged with, sorted. Raises OperatorGoneError."""
        return self._entry.current(self._generation)[1].fact.tags

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
        signature = self._entry.signature()
        return signature is None or signature.generation != self._generation

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
        """Whether a kernel or a Python kernel is registered at exactly this key; alias keys of
        which it is one do not count. Raises InvalidKeyError, OperatorGoneError.

        (PyTorch: OpOverload.has_kernel_for_dispatch_key)
        """
        table, _ = self._entry.current(self._generation)
        key = parse_key(key)
        return key in table.kernels or key in self.rules.py_kernels

    def has_kernel_for_any_dispatch_key(self, key_set: DispatchKeySet) -> bool:
        """Whether one is registered at any key of a set. Raises InvalidKeyError, OperatorGoneError.

        (PyTorch: OpOverload.has_kernel_for_any_dispatch_key)
        """
        from .keys import DispatchKeySet

        key_set = DispatchKeySet(key_set)
        table, _ = self._entry.current(self._generation)
        keys = (*table.kernels, *self.rules.py_kernels)
        return any(key.raw and key_set.has(key) for key in keys)

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel at CompositeImplicitAutograd, which is made of other operators, whatever
        the arguments' keys are; NotImplemented when there is none.

        Raises ArgumentError, OperatorGoneError and what the kernel raises. (PyTorch:
        OpOverload.decompose)
        """
        table, _ = self._entry.current(self._generation)
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
        """The rules of this operator by key and by class, in this interpreter: see _rules.py."""
        return self._entry.rules(self._generation)

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
        values with the arguments. Registered again from the same place, it replaces the earlier
        one.

        Raises InvalidKeyError (Python, Undefined), InvalidArgumentError,
        DuplicateRegistrationError, OperatorGoneError. (PyTorch: OpOverload.py_impl)
        """
        self._entry.current(self._generation)
        return self.rules.adding(places)

    def py_functionalize_impl(self, function: F) -> F:
        """One rule for the key Functionalize, the class FunctionalMode and the transforms of type
        Functionalize; at all three, or at none. A decorator.

        It is called with a FunctionalizeContext, which says by which of them, and the arguments. At
        the key it is a Python kernel, see :meth:`py_impl`. Errors as there. (PyTorch:
        OpOverload.py_functionalize_impl)
        """
        from .transforms import places_of_functionalize

        self._entry.current(self._generation)
        self.rules.add_all(places_of_functionalize(function))
        return function

    def _call_with_python_kernels(
        self, key_set: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return call_with_python_kernels(self, key_set, args, kwargs)

    def _checked(self, result: Any, by: str) -> Any:
        return checked_answer(self, result, by)

    # --- as a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpOverload):
            return NotImplemented
        return self._entry is other._entry and self._generation == other._generation

    def __hash__(self) -> int:
        return hash((self.name, self._generation))

    def __copy__(self) -> OpOverload:
        return self

    def __deepcopy__(self, memo: object) -> OpOverload:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """An operator of the default registry travels by its name; elsewhere it is that of the
        default registry there.
        """
        return self._registry.reduced_operator(self.name)

    def __repr__(self) -> str:
        return f"<mdispatch operator {self.name}>"


#: So many overloads a packet tries without Python.
_TRIED = 8


@_callable
class OpOverloadPacket(_call.Packet):
    """All overloads of one name. Called, it runs the first one, in the order of definition, whose
    schema fits; ArgumentError, with the reason of each, when none does. (torch: OpOverloadPacket)
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
        """The overload's operator. Not by attribute: one may be called as one of the packet's own
        attributes.
        """
        operator = self._operators.get(overload)
        if operator is None or operator.is_gone:
            name = self._base if overload == "default" else f"{self._base}.{overload}"
            operator = self._operators[overload] = OpOverload(self._registry, name)
        return operator

    def _look_up(self, wanted: str = "") -> list[str]:
        """The overloads' names. What calls and look-ups in C keep of them is that from now on."""
        # Who only looks needs no memory of a registry that is closed later.
        view = self._registry._facts.view(make=not wanted)
        begun = self._begin(view) if view is not None else None  # before they are looked up
        known = self.overloads()
        if view is not None and begun is not None and known:
            if wanted in known:
                self._operator(wanted)
            order = tuple(map(self._operator, known[:_TRIED]))
            by_name = {
                name: operator
                for name, operator in self._operators.items()
                if name in known and not operator.is_gone and not _has(self, name)
            }
            self._settle(begun, view, order, len(known) == 1, by_name)
        return known

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.overloads()})

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
            operator._entry.current(operator._generation)[1].binder.bind(args, kwargs)
        except ArgumentError as error:
            refusals.append("  " + str(error).replace("\n", "\n  "))
            continue
        except ForeignObjectError as error:
            raise refused(error, operator.name) from None
        return operator(*args, **kwargs)
    if not known:
        raise OperatorGoneError(
            f"operator {packet._base} is not defined: its last registration was closed",
            packet._base,
        )
    raise ArgumentError(
        f"no overload of {packet._base} takes these arguments:\n" + "\n".join(refusals),
        packet._base,
    )


def _has(packet: OpOverloadPacket, name: str) -> bool:
    """Whether it is an attribute of the packet itself."""
    return name in vars(packet) or hasattr(OpOverloadPacket, name)


connect(_call_packet, OpOverloadPacket._look_up)


class Namespace(_call.Names):
    """The operators of one namespace. (torch: _OpNamespace)"""

    # Whatever has another name can be an operator's.
    __slots__ = ("__dict__", "__name", "__registry")

    def __init__(self, registry: Registry, name: str) -> None:
        self.__registry = registry
        self.__name = name

    def __names(self) -> list[str]:
        prefix = self.__name + "::"
        _, _, there = self.__registry._facts.registrations()
        names = (f.name for f in there if f.kind == facts.DEF and f.name.startswith(prefix))
        return sorted({name[len(prefix) :].partition(".")[0] for name in names})

    def __missing__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        packet = self._found(name)
        setattr(self, name, packet)
        return packet

    def _found(self, name: str) -> OpOverloadPacket:
        base = f"{self.__name}::{name}"
        if not self.__registry.overloads(base):
            known = self.__names()
            near = nearest(name, known)
            kernels = self.__registry._facts.registrations(base)[2]
            places = [fact.where for fact in kernels if fact.kind == facts.IMPL]
            if places:
                hint = f"it has kernels, and no definition\n  a kernel registered at {places[-1]}"
                hint += f"\nDid you mean {', '.join(near)}?" if near else "\nDefine it."
            elif near:
                hint = f"did you mean {', '.join(near)}?"
            elif known:
                hint = (
                    f"namespace {self.__name!r} has "
                    f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
                )
            else:
                hint = f"nothing is defined in namespace {shown(self.__name)}"
                others = nearest(self.__name, self.__registry.namespaces())
                meant = f"; did you mean {', '.join(others)}?"
                hint += meant if others else ": import the module that does"
            raise OperatorNotFoundError(f"there is no operator {shown(base)}; {hint}", base, near)
        return OpOverloadPacket(self.__registry, base)

    def __dir__(self) -> list[str]:
        """What can be called here, for completion."""
        return self.__names()

    def __repr__(self) -> str:
        return f"<mdispatch namespace {self.__name}>"


class Ops(_call.Names):
    """The namespaces of a registry. (torch: _Ops)"""

    __slots__ = ("__dict__", "__registry")

    def __init__(self, registry: Registry) -> None:
        self.__registry = registry

    def __missing__(self, name: str) -> Namespace:
        if name.startswith("__"):
            raise AttributeError(name)
        namespace = Namespace(self.__registry, name)
        setattr(self, name, namespace)
        return namespace

    @property
    def higher_order(self) -> HigherOrderNamespace:
        """The higher-order operators of this interpreter. (PyTorch: torch.ops.higher_order)"""
        from .higher_order import HigherOrderNamespace  # few programs have any

        return HigherOrderNamespace()

    @staticmethod
    def import_module(name: str) -> ModuleType:
        """Imports a module for the operators that it registers or, in a worker, verifies. What the
        import raises comes through. (PyTorch: torch.ops.import_module)
        """
        module = __import__(name)
        for part in name.split(".")[1:]:
            module = getattr(module, part)
        return module

    def load_library(
        self, path: str | PathLike[str], *, timeout: float | None = 2.0
    ) -> LoadedLibrary:
        """Loads a shared library whose ``MDISPATCH_LIBRARY`` block registers operators and kernels
        in C, and registers or, in a worker, verifies what it brings.

        It is loaded once per process, and for good; its kernels run in every interpreter of the
        process, loaded there or not. Loaded again, it is the same. ``timeout`` is how many seconds
        each verification waits. What is returned can be closed, which ends the registrations.

        Raises LibraryLoadError, what :class:`Library`, its ``define`` and its ``impl`` raise, and
        InvalidArgumentError; then nothing stays registered. (PyTorch: torch.ops.load_library)
        """
        from ._load_library import load_library  # few programs have any

        return load_library(self.__registry, path, timeout)

    @property
    def loaded_libraries(self) -> set[str]:
        """The paths that :meth:`load_library` has loaded here, and that were not closed since.
        (PyTorch: torch.ops.loaded_libraries)
        """
        from ._load_library import loaded_libraries

        return loaded_libraries(self.__registry)

    def __dir__(self) -> list[str]:
        """The namespaces that there are, for completion."""
        own = {"find", "higher_order", "import_module", "load_library", "loaded_libraries"}
        return sorted({*self.__registry.namespaces(), *own})

    def find(self, name: str) -> OpOverload:
        """The operator of a full name: ``ns::name``, ``ns::name.default`` or ``ns::name.overload``.

        Raises OperatorNotFoundError, with the nearest names; InvalidNameError.
        """
        # As an overload, "default" is what the one without a name is called.
        parsed = OperatorName.parse(
            name.removesuffix(".default") if isinstance(name, str) else name
        )
        # Not by attributes: a name may be that of one of ours.
        namespace = Namespace(self.__registry, parsed.namespace)
        return namespace._found(parsed.name)._found(parsed.overload or "default")

    def __repr__(self) -> str:
        return f"<mdispatch ops of {self.__registry!r}>"

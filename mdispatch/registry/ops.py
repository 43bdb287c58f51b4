"""Operators by attribute: ``ops.namespace.name``.

A namespace stands for a name: it stays, and finds the operators that are defined now.
"""

from __future__ import annotations

# Not weakref, which loads much more.
from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

from .. import facts
from ..dispatch.operators import OpOverload, OpOverloadPacket
from ..errors import OperatorNotFoundError
from ..errors.words import nearest, shown
from ..facts.native import calls
from ..schema.names import Named, OperatorName
from .unheard import is_unheard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike
    from types import ModuleType

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.higher_order import HigherOrderNamespace
    from .load_library import LoadedLibrary

__all__ = ["Namespace", "OpOverload", "OpOverloadPacket", "Ops"]


class Namespace(calls.Names, Named):
    """The operators of one namespace. (torch: _OpNamespace)"""

    # Every other name can be that of an operator.
    __slots__ = ("__dict__", "__name", "__dispatcher", "__ended")

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self.__dispatcher = dispatcher
        self.__name = name
        self.__ended: dict[str, ref[OpOverloadPacket]] = {}

    def _end(self, name: str) -> None:
        """Keeps no packet whose operator has ended. One that somebody holds is found again when the
        name is defined again.
        """
        packet = vars(self).pop(name, None)
        if packet is not None:
            ended, remove = self.__ended, _remove_dead_weakref  # at the end modules have no names
            ended[name] = ref(packet, lambda _: remove(ended, name))

    def __names(self) -> list[str]:
        prefix = self.__name + "::"
        _, _, there = self.__dispatcher.facts.registrations()
        names = (f.name for f in there if f.kind == facts.DEF and f.name.startswith(prefix))
        return sorted({name[len(prefix) :].partition(".")[0] for name in names})

    def __missing__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        packet = self._found(name)
        ended = self.__ended.pop(name, None)
        packet = (ended and ended()) or packet
        setattr(self, name, packet)
        return packet

    def _found(self, name: str) -> OpOverloadPacket:
        base = f"{self.__name}::{name}"
        if not self.__dispatcher.overloads(base):
            if is_unheard():
                return OpOverloadPacket(self.__dispatcher, base)  # its calls will say why
            known = self.__names()
            near = nearest(name, known)
            there = self.__dispatcher.facts.registrations(base)[2]
            hints = [words for f in there if (words := facts.kind_of(f.kind).hint(f))]
            locations = [fact.where for fact in there if fact.kind == facts.IMPL]
            if hints:
                hint = hints[-1]
            elif locations:
                hint = f"it has kernels but no definition\n  a kernel registered at {locations[-1]}"
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
                from ..dispatch.explain import namespaces

                others = nearest(self.__name, namespaces(self.__dispatcher.facts))
                meant = f"; did you mean {', '.join(others)}?"
                hint += meant if others else ": import the module that does"
            try:
                self.__dispatcher.check_may_call()
            except Exception as error:
                hint = str(error)
            raise OperatorNotFoundError(f"there is no operator {shown(base)}; {hint}", base, near)
        return OpOverloadPacket(self.__dispatcher, base)

    def __dir__(self) -> list[str]:
        """What can be called here, for completion."""
        return [name for name in self.__names() if not name.startswith("__")]

    def __iter__(self) -> Iterator[str]:
        """The names of its operators, each once."""
        return iter(self.__names())

    def __reduce__(self) -> tuple[object, ...]:
        return self.__dispatcher.holder.reduced("namespace", self.__name)

    def __repr__(self) -> str:
        return f"<mdispatch namespace {self.__name}>"


class Ops(calls.Names, Named):
    """The namespaces of a registry. (torch: _Ops)"""

    __slots__ = ("__dict__", "__dispatcher")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.__dispatcher = dispatcher
        if dispatcher.when_gone is None:
            dispatcher.when_gone = self.__forget

    def __forget(self, base: str) -> None:
        """Keeps nothing of an operator that has ended here. Its namespace stays."""
        name, _, operator = base.partition("::")
        namespace = vars(self).get(name)
        if isinstance(namespace, Namespace):
            namespace._end(operator)

    def __missing__(self, name: str) -> Namespace:
        if name.startswith("__"):
            raise AttributeError(name)
        namespace = Namespace(self.__dispatcher, name)
        setattr(self, name, namespace)
        return namespace

    @property
    def higher_order(self) -> HigherOrderNamespace:
        """The higher-order operators of this interpreter. (PyTorch: torch.ops.higher_order)"""
        from ..dispatch.higher_order import HigherOrderNamespace  # few programs have any

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
        from .load_library import load_library  # few programs have any

        return load_library(self.__dispatcher, path, timeout)

    @property
    def loaded_libraries(self) -> set[str]:
        """The paths that :meth:`load_library` has loaded here, and that were not closed since.
        (PyTorch: torch.ops.loaded_libraries)
        """
        from .load_library import loaded_libraries

        return loaded_libraries(self.__dispatcher)

    def __dir__(self) -> list[str]:
        """The namespaces that there are, for completion."""
        own = {"find", "higher_order", "import_module", "load_library", "loaded_libraries"}
        from ..dispatch.explain import namespaces

        return sorted({*namespaces(self.__dispatcher.facts), *own})

    def __iter__(self) -> Iterator[str]:
        """The names of the namespaces in which an operator is defined."""
        from ..dispatch.explain import namespaces

        return iter(sorted(namespaces(self.__dispatcher.facts)))

    def find(self, name: str) -> OpOverload:
        """The operator of a full name: ``ns::name``, ``ns::name.default`` or ``ns::name.overload``.

        Raises OperatorNotFoundError, with the nearest names; InvalidNameError.
        """
        # "default" is what users call the overload without a name.
        parsed = OperatorName.parse(
            name.removesuffix(".default") if isinstance(name, str) else name
        )
        # It is not looked up as an attribute: an operator may have the name of a method.
        namespace = Namespace(self.__dispatcher, parsed.namespace)
        return namespace._found(parsed.name)._found(parsed.overload or "default")

    def __reduce__(self) -> tuple[object, ...]:
        return self.__dispatcher.holder.reduced("ops", "of the default registry")

    def __repr__(self) -> str:
        return f"<mdispatch ops of {self.__dispatcher.holder!r}>"

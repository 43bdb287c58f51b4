"""Methods of registered classes, as kernels: which function of this interpreter stands for a
registration.

A method is an operator ``shop::Tokenizer.encode``, whose first argument is a ``shop.Tokenizer``.
Its kernel has a label by which every interpreter makes the callable for itself, also one that has
not imported the class: as for kernels in C. Where the object is at home the kernel calls its
method. Elsewhere it gets a handle, which visits the object's home (across/sharing.py). All else
about the call is done where it is made: arguments are bound, modes and observers asked, the result
is compared with the schema.
"""

from __future__ import annotations

from types import FunctionType

from ..dispatch.context.hermetic import VisitingHandle
from ..dispatch.kernels import METHOD_LABEL, LocalKernel
from ..facts import IMPL
from ..keys.numbers import DispatchKey
from ..schema.classes import class_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration

#: For the classes that are registered here: what finds an operator of their registry, and the names
#: of their methods.
methods_of: dict[str, tuple[Any, tuple[str, ...]]] = {}
#: For those that were verified here: what raises KernelOutdatedError for a method whose definition
#: has another text now. The home of an object asks it, for whoever calls has bound the arguments.
checks: dict[str, Callable[[str], None]] = {}


class MethodKernel(LocalKernel):
    """The kernel of one method. ``direct`` is what runs for an object of just the registered class:
    its plain function, which calls in C call without a frame between.
    """

    __slots__ = ("direct",)

    def __init__(self, fact: Registration) -> None:
        run, self.direct = _functions(fact.name)
        super().__init__(DispatchKey(fact.key), run, label=fact.body)
        self.seq = fact.seq

    @property
    def in_c(self) -> Callable[..., Any]:
        return self.direct or self.function


def label_of_method(name: str) -> str:
    """The label of the kernel of a method, by the name of the operator."""
    return f"{METHOD_LABEL}{name}"


def with_methods(
    there: list[Registration], here: dict[DispatchKey, list[LocalKernel]]
) -> dict[DispatchKey, list[LocalKernel]]:
    """The callables of one operator, together with those of its registrations that are methods. The
    arguments stay as they are.
    """
    found = {key: list(kernels) for key, kernels in here.items()}
    for fact in there:
        if fact.kind == IMPL and fact.text.startswith(METHOD_LABEL):
            found.setdefault(DispatchKey(fact.key), []).append(MethodKernel(fact))
    return found


def _functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """What runs for any object, and for one of just the class that is registered here."""
    qualified, _, method = name.partition(".")
    cls = class_of(qualified.replace("::", "."))
    found = getattr(cls, method, None)
    direct = found if isinstance(found, FunctionType) else None

    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if direct is not None and type(self) is cls:
            return direct(self, *args, **kwargs)
        if isinstance(self, VisitingHandle):  # of elsewhere: the binder has opened others
            return self.call_at_home(name, method, args, kwargs)
        return getattr(self, method)(*args, **kwargs)

    return run, direct

"""Whether a call that another process has sent fits the schema that its kernel has here.

The caller has bound the call: each argument is in its place, of its type (dispatch/arguments.py).
The owner does not rely on it. It converts nothing, and fills nothing in: a value that is not just
what a binder leaves is refused before the kernel runs. A tuple has come as a list, a tensor as
memory, or as a value whose class is a tensor here, too.

native/bind/call/arrive.c is asked first: it knows most values that fit, and refuses none.
"""

from __future__ import annotations

from ..dispatch.arguments import literal_check
from ..dispatch.context.hermetic import VisitingHandle
from ..dispatch.context.values import is_tensor
from ..errors import ArgumentError, RegistryClosedError
from ..errors.words import shown
from ..facts.native import calls
from ..schema.classes import class_of
from ..schema.types import Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ..dispatch.entry import Signature
    from ..dispatch.kernels import LocalKernel
    from ..schema.types import Argument, FunctionSchema

    Fits = Callable[[Any], bool]

#: Whose values are shown in errors.
_PLAIN = (int, float, bool, str, type(None))
_EXACT = {"int": int, "SymInt": int, "float": float, "bool": bool, "SymBool": bool, "str": str}


class Arrivals:
    """What a kernel takes of other processes; ``under``: behind the keys and the trace of a thread
    there.
    """

    __slots__ = ("_front", "_kernel", "_known", "_kinds")

    def __init__(self, kernel: LocalKernel, under: bool = False) -> None:
        self._kernel = kernel
        #: What is in front of the arguments.
        self._kinds = ((int, int, list) if under else ()) + ((int,) if kernel.with_keyset else ())
        self._front = len(self._kinds)
        #: What reads the version of the operator's registrations, what it was, and the definition
        #: and its shape then: None where the kernel is not for that, or has ended.
        self._known: tuple[Callable[[], int], int, Signature | None, Any] | None = None

    def check(self, args: list[Any], names: list[str], values: list[Any]) -> bool:
        """Whether the kernel is there, and for the definition that is in effect. Raises
        ArgumentError for what does not fit that.
        """
        known = self._known
        try:
            if known is None or known[0]() != known[1]:
                known = self._look()
        except RegistryClosedError:  # its libraries are about to end, and with them the kernel
            return False
        _, _, signature, shape = known
        if signature is None:
            return False
        if self._front and not self._is_front(args):
            _refuse(signature.schema, "no key sets before the arguments")
        if not calls.arrived(shape, self._front, args, names, values):
            _check(signature.schema, args[self._front :], names, values)
        return True

    def _look(self) -> tuple[Callable[[], int], int, Signature | None, Any]:
        kernel = self._kernel
        read, version, signature = kernel.entry.defined() if kernel.entry else (int, 0, None)
        if signature is None or kernel.is_outdated(signature.fact):
            self._known = known = read, version, None, None
        else:
            self._known = known = read, version, signature, signature.shape
        return known

    def _is_front(self, args: list[Any]) -> bool:
        its = args[: self._front]
        return tuple(map(type, its)) == self._kinds and all(
            type(each) is str for trace in its if type(trace) is list for each in trace
        )


def _check(schema: FunctionSchema, args: list[Any], names: list[str], values: list[Any]) -> None:
    positional = [each for each in schema.arguments if not each.kwarg_only]
    named = {each.name: each for each in schema.arguments if each.kwarg_only}
    given = dict(zip(names, values, strict=True))
    if len(args) < len(positional) or (len(args) > len(positional) and not schema.is_vararg):
        _refuse(schema, f"{len(args)} values by position, not {len(positional)}")
    more = given.keys() - named.keys() if schema.others is not None else set()
    if given.keys() - more != named.keys() or len(given) < len(names):
        words = [", ".join(map(shown, each)) or "none" for each in (names, named)]
        _refuse(schema, f"these values by keyword: {words[0]}; not {words[1]}")
    pairs = [*zip(positional, args, strict=False), *((named[each], given[each]) for each in named)]
    if schema.rest is not None:
        pairs += [(schema.rest, value) for value in args[len(positional) :]]
    if schema.others is not None:
        pairs += [(schema.others, given[each]) for each in sorted(more)]
    for argument, value in pairs:
        if not _fits(argument)(value):
            what = type(value).__qualname__
            what += f" ({shown(value)})" if type(value) in _PLAIN else ""
            _refuse(schema, f"{what} for {argument.name!r}, not {argument.type}")


def _refuse(schema: FunctionSchema, what: str) -> NoReturn:
    name = str(schema.name)
    raise ArgumentError(
        f"{name}() was sent {what}\n  declared as {schema}\n"
        "The kernel was not called. Let the process that calls import the module that defines the "
        "operator here, and use the same version of mdispatch.",
        name,
        schema,
    )


def _fits(argument: Argument) -> Fits:
    fits = _fits_type(argument.type)
    if argument.has_default and argument.default is None:
        return lambda value: value is None or fits(value)
    return fits


def _fits_type(wanted: Type) -> Fits:
    inner = [_fits_type(element) for element in wanted.elements]
    name = wanted.name
    if name == Type.OPTIONAL:
        return lambda value: value is None or inner[0](value)
    if name == Type.LIST:
        return lambda value: type(value) is list and all(map(inner[0], value))
    if name == Type.TUPLE:
        return lambda value: (
            type(value) is list
            and len(value) == len(inner)
            and all(fits(item) for fits, item in zip(inner, value, strict=True))
        )
    if name == "Union":
        return lambda value: any(fits(value) for fits in inner)
    if name in _EXACT:
        return lambda value: type(value) is _EXACT[name]
    if name == "Tensor":
        return lambda value: type(value) is memoryview or is_tensor(value)
    if name == "Scalar":
        return lambda value: type(value) is memoryview or hasattr(type(value), "__float__")
    if name in ("Dict", "complex"):
        return lambda value: False  # none can travel
    if name == "NoneType":
        return lambda value: value is None
    if wanted.is_class:
        return lambda value: _is_object(value, name)
    if name == "Literal":
        return literal_check(wanted)
    return lambda value: name in ("Any", "object") or value is not None


def _is_object(value: Any, name: str) -> bool:
    """Whether it is of a registered class. Handles that are at home here have been opened."""
    if isinstance(value, VisitingHandle):
        return value.class_name == name and not value.is_home
    cls = class_of(name)
    return cls is not None and isinstance(value, cls)

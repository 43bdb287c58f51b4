"""Kernels by type: several kernels at one key of one operator, of which the classes of a call's
tensors choose one.

Note [Kernels by type]
~~~~~~~~~~~~~~~~~~~~~~
The Tensor arguments of an operator choose, see below. If it has none, all arguments by position
choose that take values of several classes: Any, object, a class, a Union, an optional. There, each
value has a class, None too. A kernel fits if the value's class is a subclass of its own, also a
virtual one (``issubclass``). Once an abstract class has got a subclass by ``register``, calls look
at all classes again, as those of functools.singledispatch do.

A kernel may be registered for types: one class for all Tensor arguments, or one for each of them,
in the order of the schema. It fits a call if each tensor is an instance of its class: the class is
among the bases of the tensor's own class (``type(value).__mro__``). Nothing else makes an instance,
neither ``__class__`` nor a virtual subclass of an abstract class, so two values of one class always
have the same kernel. Of a list every tensor counts. None and an empty list fit every class. A call
that has no tensor at all has no types: only kernels without types fit it.

Of the kernels that fit, the most specific one runs: the one whose classes are, argument by
argument, subclasses of those of every other, or the same. A kernel without types is the least
specific. If there is no such kernel among several, that is a tie, and the call is refused. If none
fits, the key has no kernel as far as this call is concerned.

So the table of a call is computed from what was chosen at each key (``DispatchTable.for_types``),
by the rules of Note [Precedence] as they are. All kernels with the same types at a key are one
stack, as all kernels of a key are without types: the newest is in effect.

What other members see of a class is its name. So at one key no two classes may have one name. A
kernel of the registry that has no callable here fits by the names of the classes; those that have
one, by the classes themselves.
"""

from __future__ import annotations

import sys

from ..errors import InvalidArgumentError
from ..errors.locations import printable
from ..schema.types import Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import UnionType
    from typing import Any, Protocol, TypeAlias, TypeVar

    from ..schema.types import Argument, FunctionSchema

    #: For each Tensor argument of a call the classes of its tensors: of a list several, of None
    #: none.
    Given: TypeAlias = tuple[tuple[type, ...], ...]
    #: One for all Tensor arguments, or one for each; () for any. The names of classes, where a
    #: kernel has no callable here.
    Types: TypeAlias = tuple[type | str, ...]

    #: What a user gives as types: a class for all arguments that choose, or one for each of them.
    #: In place of a class there may be a union of classes.
    Classes: TypeAlias = type | UnionType | Sequence[type | UnionType | None]

    T = TypeVar("T", bound="Typed")
    Below: TypeAlias = Callable[[type | str, type | str], bool]

    class Typed(Protocol):
        """A kernel that may be for types."""

        types: Types

        @property
        def is_fallthrough(self) -> bool: ...


# --- the types of a kernel ------------------------------------------------------------------------


def name_of_class(cls: type) -> str:
    """By what name other members know a class: ``module.qualname``. The program's own module is
    ``__main__`` for all of them.
    """
    module = cls.__module__
    return printable(f"{'__main__' if module == '__mp_main__' else module}.{cls.__qualname__}")


def text_of_types(types: Types) -> str:
    """Types as the registry keeps them; "" for none."""
    return ", ".join(each if isinstance(each, str) else name_of_class(each) for each in types)


def split_types(text: str) -> tuple[str, ...]:
    """The names in such a text."""
    return tuple(text.split(", ")) if text else ()


def checked_types(types: Any) -> tuple[type, ...]:
    """What a user gave as the types of a kernel: a class, several, or None. InvalidArgumentError
    for anything else.

    The same class for each argument is that class for all.
    """
    if types is None:
        return ()
    several = isinstance(types, (tuple, list))
    classes: tuple[Any, ...] = tuple(types) if several else (types,)
    if "typing" in sys.modules:
        classes = tuple(map(_from_typing, classes))
    for each in classes or (types,):
        if getattr(each, "_is_protocol", False):
            _check_protocol(each)
        if not isinstance(each, type):
            from ..errors.words import shown

            raise InvalidArgumentError(
                "types are a class for all arguments that choose, or a tuple with one for each; "
                f"{shown(each)} is not a class"
            )
        if ", " in name_of_class(each):
            raise InvalidArgumentError(
                f"the class {name_of_class(each)} has a comma in its name: other members could not "
                "tell it from two classes"
            )
    return _collapsed(classes)


def _from_typing(each: Any) -> Any:
    """The class that a name of ``typing`` stands for: object for Any, that of collections.abc for
    Mapping.
    """
    if getattr(each, "__module__", "") != "typing":
        return each
    if each is sys.modules["typing"].Any:
        return object
    return each if hasattr(each, "__args__") else getattr(each, "__origin__", each)


def _check_protocol(cls: Any) -> None:
    """InvalidArgumentError for a protocol that issubclass refuses."""
    try:
        issubclass(object, cls)
    except TypeError as error:
        raise InvalidArgumentError(
            f"the protocol {name_of_class(cls)} cannot choose a kernel, since issubclass refuses "
            f"it: {error}\nDecorate it with typing.runtime_checkable, and let it have methods only."
        ) from None


_UNION = type(int | str)


def _members(each: Any) -> tuple[Any, ...]:
    """Those of a union, in both spellings; anything else is the only one."""
    typing = sys.modules.get("typing")
    is_union = type(each) is _UNION or (
        typing is not None and getattr(each, "__origin__", None) is typing.Union
    )
    return tuple(each.__args__) if is_union else (each,)


def alternatives(types: Any) -> list[Any]:
    """Types without unions: one for each combination of the members. None stands for its class
    among several.
    """
    several = isinstance(types, (tuple, list))
    if types is None or not (several or len(_members(types)) > 1):
        return [types]
    choices: list[tuple[Any, ...]] = [()]
    for each in types if several else (types,):
        choices = [
            (*before, type(None) if one is None else one)
            for before in choices
            for one in _members(each)
        ]
    return choices if several else [one for (one,) in choices]


def _collapsed(types: tuple[Any, ...]) -> tuple[Any, ...]:
    return types[:1] if all(each is types[0] for each in types) else types


def misfit_of_types(types: Types, schema: FunctionSchema, given: int | None = None) -> str | None:
    """Why types cannot be those of a schema, in words; None if they can. ``given`` is the number of
    classes that the user gave: equal ones are one here.
    """
    count = len(schema.type_arguments)
    has_tensors = bool(schema.dispatch_arguments)
    if count == 0:
        return "the operator has no arguments whose classes could choose it"
    if has_tensors and any(each in (type(None), "NoneType") for each in types):
        return (
            "None fits the types of every kernel for Tensors, so NoneType chooses none: name the "
            "class of the tensors that the argument takes"
        )
    if len(types) not in (1, count) or (given is not None and given not in (1, count)):
        names = ", ".join(schema.arguments[each].name for each in schema.type_arguments)
        what = "Tensor arguments" if has_tensors else "arguments that choose"
        return (
            f"it has one class for each of {given or len(types)} {what}, and the operator has "
            f"{count} ({names})"
        )
    return None


def same_name(types: Types, others: Iterable[Typed]) -> tuple[type, type] | None:
    """A class among these, and another class of the same name among those of other kernels."""
    there = {each: None for kernel in others for each in kernel.types if isinstance(each, type)}
    for mine in types:
        for other in there:
            if (
                isinstance(mine, type)
                and mine is not other
                and name_of_class(mine) == name_of_class(other)
            ):
                return mine, other
    return None


def tied_with(types: Types, others: Sequence[T]) -> T | None:
    """A kernel that fits arguments which these types fit too, neither being the more specific one,
    and no kernel is for just these arguments. Only what the classes themselves show counts: any two
    classes might have a subclass in common.
    """
    there = {each.types for each in others}
    for other in others:
        if not types or not other.types:
            continue
        count = max(len(types), len(other.types))
        mine, its = _spread(types, count), _spread(other.types, count)
        if len(mine) != len(its) or _covers(mine, its) or _covers(its, mine):
            continue
        pairs = list(zip(mine, its, strict=True))
        if all(_is_below(a, b) or _is_below(b, a) for a, b in pairs):
            meet = _collapsed(tuple(a if _is_below(a, b) else b for a, b in pairs))
            if meet not in there:
                return other
    return None


def _spread(types: Types, count: int) -> Types:
    return types * count if len(types) == 1 else types


def _is_below(one: type | str, other: type | str) -> bool:
    """Whether a class is another one or derived from it. Of a class that is known by its name only,
    the name tells.
    """
    if isinstance(one, type) and isinstance(other, type):
        return other in one.__mro__
    return one == other


def _covers(wide: Types, narrow: Types, is_below: Below = _is_below) -> bool:
    return all(is_below(a, b) for a, b in zip(narrow, wide, strict=True))


# --- of plain values ------------------------------------------------------------------------------


class Plain(tuple[tuple[type, ...], ...]):
    """The classes of a call without Tensor arguments, one for each argument that chooses."""

    __slots__ = ()


def _is_subclass(one: type | str, other: type | str) -> bool:
    """As issubclass; where one of the two is known by its name only, by that."""
    if isinstance(one, type) and isinstance(other, type):
        return issubclass(one, other)
    return one == other


def _class_called(name: str) -> type | None:
    """The class of this name here; None if nothing that was imported has it."""
    module, _, rest = name.rpartition(".")
    while module:
        found: object = sys.modules.get(module)
        for part in rest.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and name_of_class(found) == name:
            return found
        module, _, part = module.rpartition(".")
        rest = f"{part}.{rest}"
    return None


def _fit_plain(types: Types, given: Given) -> Types | None:
    """As :func:`_fit`, for plain values."""
    wanted = _spread(types, len(given))
    if len(wanted) != len(given):
        return None
    found = []
    for each, (cls,) in zip(wanted, given, strict=True):
        if isinstance(each, str):
            each = _base(cls, each) or _class_called(each) or each
        if not _is_subclass(cls, each):
            return None
        found.append(each)
    return tuple(found)


def metaclasses(kernels: Iterable[Any]) -> set[type]:
    """Those of the classes of kernels, if they are known here, but for ``type``."""
    found = {type(each) for kernel in kernels for each in kernel.types}
    return found - {type, str}


# --- the types of a call --------------------------------------------------------------------------


def classes_of_plain(values: Iterable[Any]) -> Plain:
    return Plain((type(value),) for value in values)


def classes_of(value: Any, argument: Argument) -> tuple[type, ...]:
    """The classes of the tensors in a value that was bound to a Tensor argument."""
    if value is None:
        return ()
    if argument.type.name == Type.LIST and type(value) is list:
        return tuple(dict.fromkeys(type(item) for item in value if item is not None))
    return (type(value),)


def given_in_words(given: Given) -> str:
    """The classes of a call's tensors: "numpy.ndarray, [shop.Grid, torch.Tensor], none"."""

    def words(classes: tuple[type, ...]) -> str:
        names = ", ".join(map(name_of_class, classes))
        return names if len(classes) == 1 else f"[{names}]" if names else "none"

    return ", ".join(map(words, given))


# --- the choice -----------------------------------------------------------------------------------


class Tie:
    """Stands in a table where several kernels fit a call, and none is the most specific."""

    __slots__ = ("kernels",)
    is_fallthrough = False

    def __init__(self, kernels: tuple[Any, ...]) -> None:
        self.kernels = kernels

    @property
    def label(self) -> str:
        return " or ".join(in_words(kernel) for kernel in self.kernels)


class ByType:
    """Stands in a table at a key whose kernels are for types: the newest of each. They stand in the
    order of their registrations.
    """

    __slots__ = ("_made", "kernels")
    is_fallthrough = False

    def __init__(self, kernels: tuple[Any, ...]) -> None:
        self.kernels = kernels
        # What was made for the kernels that fit: a table of types is found again by what was
        # chosen, and that is compared by identity. Two threads that make one at once keep the same.
        self._made: dict[tuple[Any, ...], Any] = {}

    @property
    def label(self) -> str:
        return "; ".join(in_words(kernel) for kernel in self.kernels)

    @property
    def plain(self) -> Any:
        """The kernel without types; None if there is none."""
        return next((kernel for kernel in self.kernels if not kernel.types), None)

    def chosen(self, given: Given) -> Any:
        """The kernel for a call whose tensors have these classes: a Tie where it cannot be decided,
        None where none fits.
        """
        found = self._fitting(given)
        if not found:
            return self.plain
        is_below = _is_subclass if type(given) is Plain else _is_below
        best = [
            kernel
            for kernel, types in found.items()
            # A class need not be a subclass of itself, if its __subclasshook__ says so.
            if all(its is types or _covers(its, types, is_below) for its in found.values())
        ]
        if best:
            return best[0]
        fitting = tuple(found)
        return self._made.get(fitting) or self._made.setdefault(fitting, Tie(fitting))

    def is_decided_by(self, given: Given) -> bool:
        """Whether the choice follows from these classes and their bases. Where an argument is None,
        it may follow from other classes: those that the kernels that fit have for this argument.
        """
        fitting = self._fitting(given)
        none = [place for place, classes in enumerate(given) if not classes]
        return all(len(kernel.types) == 1 for kernel in fitting) or all(
            len({types[place] for types in fitting.values()}) == 1 for place in none
        )

    def _fitting(self, given: Given) -> dict[Any, Types]:
        """The kernels for types that fit, each with its classes for this call."""
        fit = _fit_plain if type(given) is Plain else _fit
        fits = {kernel: fit(kernel.types, given) for kernel in self.kernels if kernel.types}
        return {kernel: types for kernel, types in fits.items() if types is not None}

    def __repr__(self) -> str:
        return f"<kernels by type: {self.label}>"


def _fit(types: Types, given: Given) -> Types | None:
    """The classes of a kernel, one for each argument, if it fits; else None. A name becomes the
    class that it is for the tensors there; for an argument that is None, for the other tensors.
    """
    wanted = _spread(types, len(given))
    if not any(given) or len(wanted) != len(given):
        return None
    found = []
    for each, classes in zip(wanted, given, strict=True):
        for cls in classes:
            base = _base(cls, each)
            if base is None:
                return None
            each = base
        if isinstance(each, str):
            others = (cls for classes in given for cls in classes)
            each = next(filter(None, (_base(cls, each) for cls in others)), each)
        found.append(each)
    return tuple(found)


def _base(cls: type, wanted: type | str) -> type | None:
    """The class, or the base of it, that is wanted."""
    for base in cls.__mro__:
        if base is wanted or (isinstance(wanted, str) and name_of_class(base) == wanted):
            return base
    return None


def in_words(kernel: Any) -> str:
    """A kernel's label with its types and its provider."""
    from ..facts import kernel_name  # only for errors: a table needs no registrations

    provider = "" if kernel.provider is None else kernel.provider.name
    return kernel_name(kernel.label, text_of_types(kernel.types), provider)


def virtual_bases(given: Given, kernels: Iterable[Any]) -> Iterator[tuple[type, type]]:
    """Each class of a call that a class of the kernels takes for a subclass, although it is not
    among its bases.
    """
    if type(given) is Plain:
        return  # there they count
    for cls in dict.fromkeys(each for classes in given for each in classes):
        for wanted in dict.fromkeys(each for kernel in kernels for each in kernel.types):
            if isinstance(wanted, type) and wanted not in cls.__mro__:
                try:
                    is_virtual = issubclass(cls, wanted)
                except Exception:  # the user's own __subclasscheck__; these are words only
                    is_virtual = False
                if is_virtual:
                    yield cls, wanted

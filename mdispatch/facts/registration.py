"""The values of the registry: a registration, the numbers of the core's kinds (kinds.py says what
each is), and the base class of what ends a registration of any kind.
"""

from __future__ import annotations

# What collections.namedtuple reads its fields by, in a tenth of the time of a property.
from _collections import _tuplegetter  # type: ignore[import-not-found]

from .. import seam
from .native import fact, interpreter_id
from .native.constants import (
    MD_AS_BRIDGE,
    MD_BRIDGE,
    MD_CLAIM,
    MD_DEF,
    MD_FALLBACK,
    MD_HOST,
    MD_IMPL,
    MD_LIBRARY,
    MD_MAIN,
    MD_NAME,
    MD_NOTE,
    MD_PEER,
    MD_PYSTUB,
    MD_STANDING,
    MD_TYPE,
    MD_WORKER,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any, Self

    from ..keys.numbers import DispatchKey
    from .kinds import Kind

__all__ = ["AS_BRIDGE", "BRIDGE", "CLAIM", "DEF", "FALLBACK", "HOST", "IMPL", "LIBRARY", "MAIN"]
__all__ += ["NAME", "NOTE", "PEER", "PYSTUB", "ROLE_NAMES", "STANDING", "STANDS", "TYPE", "WORKER"]
__all__ += ["Elected", "Handle", "Registration", "def_text", "field_of", "impl_text"]
__all__ += ["interpreter_id", "is_namespace", "kernel_name", "kind_of", "source_of", "who"]

LIBRARY, DEF, IMPL, FALLBACK = MD_LIBRARY, MD_DEF, MD_IMPL, MD_FALLBACK
PYSTUB, NAME, CLAIM = MD_PYSTUB, MD_NAME, MD_CLAIM
TYPE, NOTE, STANDING = MD_TYPE, MD_NOTE, MD_STANDING

#: The name of the registration by which a registry that is a part of something larger tells how
#: its registrar stands.
STANDS = "mdispatch.stands"

#: The name and the text of the registration by which members with compatible definitions belong
#: together. There is none where all have to be the same.
MATCH, COMPATIBLE = "mdispatch.match", "compatible"

#: Stands for a program that embeds Python, in place of an interpreter's number.
HOST = MD_HOST
#: Stands for a bridge, likewise (cluster/bridge.py).
AS_BRIDGE = MD_AS_BRIDGE
MAIN, WORKER, PEER, BRIDGE = MD_MAIN, MD_WORKER, MD_PEER, MD_BRIDGE
ROLE_NAMES = {MAIN: "main", WORKER: "worker", PEER: "peer", BRIDGE: "bridge"}


#: The kinds that this process has met, by their numbers. One that only opens a registry loads none.
_known: dict[int, Kind] = {}


def add(kind: Kind) -> Kind:
    """Makes a kind known. The number belongs to the first one: InvalidArgumentError."""
    there = _known.setdefault(kind.number, kind)
    if there is not kind:
        from ..errors import InvalidArgumentError

        raise InvalidArgumentError(
            f"{kind.number} is the number of the kind {there.name!r} already, and cannot be that "
            f"of {kind.name!r}: take a free one (md_kind in mdispatch.h)"
        )
    return there


def kind_of(number: int) -> Kind:
    """The kind of this number. For one that is not known here, an object that says so."""
    return _known.get(number) or _found(number)


def _found(number: int) -> Kind:
    from .kinds import CORE, Unknown

    for kind in CORE:
        # Not `add`: a signal handler that registers while this import is under way imports the
        # module for itself, and Python then runs it a second time. The first kinds stay.
        _known.setdefault(kind.number, kind)
    point = f"kind {number}"
    if number not in _known and point in seam.homes:
        its: Kind | None = seam.perhaps(point)
        if its is not None:
            add(its)
    return _known.get(number) or Unknown(number=number, name=point, title=f"Kind {number}")


def kinds() -> Iterator[Kind]:
    """All kinds that are known, those of all features that are installed included."""
    _found(0)
    for point in seam.homes:
        what, _, number = point.partition(" ")
        if what == "kind":
            kind_of(int(number))
    yield from [_known[number] for number in sorted(_known)]


class _Rules(dict[int, int]):
    """The rule of each kind, by its number. 0 for what no member registers by itself."""

    def __missing__(self, number: int) -> int:
        rule = kind_of(number).rule
        if number in _known:
            self[number] = rule
        return rule


#: What a second registration of the same kind, name and key means.
POLICY = _Rules()


class Handle:
    """``close`` ends what it stands for. So does the end of a ``with`` block, however it ends."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"a {type(self).__name__} ends something of this interpreter and cannot be pickled: "
            "make one where it is needed"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Elected(Exception):
    """Ends a wait: this interpreter is the registrar now, so no other member will register it."""


# A definition keeps its schema as written, up to this length: the same text is not parsed again.
_LONGEST_WRITTEN = 1024


def def_text(canonical: str, written: str, attributes: str = "", generation: int = 0) -> str:
    """The text of a DEF registration. Its first line is the canonical schema. Unless all are empty,
    three lines follow: the attributes, the generation, and the schema as it was written.

    ``attributes`` is the kind of alias analysis ("" for that of the schema) and the tags, with a
    space before each. ``generation`` is that of the definition that this one replaces.
    """
    if written == canonical or len(written) > _LONGEST_WRITTEN:
        written = ""
    if not (written or attributes or generation):
        return canonical
    return f"{canonical}\n{attributes}\n{generation or ''}\n{written}"


def who(pid: int, interpreter: int) -> str:
    """A member, in words. A program that embeds interpreters is a member beside them."""
    others = {HOST: "the program itself", AS_BRIDGE: "the bridge"}
    at = others.get(interpreter, f"interpreter {interpreter}")
    return f"pid {pid}, {at}"


def is_namespace(name: str) -> bool:
    """Whether claims on this name are claims on a namespace. A feature's claims on something else
    have a name that begins with "(".
    """
    return not name.startswith("(")


def source_of(where: str) -> str:
    """What members know the code at a location by: see ``Registration.source``."""
    from ..errors.locations import file_of  # few starts compare

    return getattr(where, "module", "") or file_of(where)


def impl_text(label: str, signature: str = "", types: str = "", provider: str = "") -> str:
    """The text of an IMPL registration: the kernel's label and, unless all are empty, its
    signature, its types and its provider (``Provider.text``), each on a line of its own.
    """
    if provider:
        return f"{label}\n{signature}\n{types}\n{provider}"
    if types:
        return f"{label}\n{signature}\n{types}"
    return f"{label}\n{signature}" if signature else label


def kernel_name(label: str, types: str, provider: str = "") -> str:
    """A kernel's label, with the types that it is for, and its provider."""
    if provider:
        return f"{kernel_name(label, types)} of {provider}"
    if not types:
        return label
    return f"{label} for ({types})" if ", " in types else f"{label} for {types}"


# The keys by their numbers, once somebody has asked for one: interpreters that only open a registry
# load no keys.
_keys: Mapping[int, DispatchKey] = {}


def _load_keys() -> Mapping[int, DispatchKey]:
    global _keys
    from ..keys.numbers import BY_NUMBER

    _keys = BY_NUMBER
    return _keys


def field_of(index: int) -> Any:
    """An attribute of a value that is a tuple: what it has at this location."""
    return _tuplegetter(index, None)


class Registration(tuple[object, ...]):
    """One registration: which member registered it, what it says, and the line that registered it.
    A value: it does not know whether the registration was removed since.
    """

    # A tuple, like the records of the bindings: thousands are made at once.
    __slots__ = ()

    ref: int = field_of(0)
    seq: int = field_of(1)
    kind: int = field_of(2)
    _number: int = field_of(3)
    name: str = field_of(4)
    text: str = field_of(5)
    origin: str = field_of(6)
    pid: int = field_of(7)
    interpreter: int = field_of(8)

    def __new__(
        cls,
        ref: int,
        seq: int,
        kind: int,
        key: int,
        name: str,
        text: str,
        origin: str,
        pid: int,
        interpreter: int,
    ) -> Registration:
        made: Registration = fact(cls, (ref, seq, kind, key, name, text, origin, pid, interpreter))
        return made

    @property
    def key(self) -> DispatchKey:
        """The dispatch key of a kernel or a fallback; Undefined, which is 0, for what has none.

        The plain number where a program in C has registered one that is no key.
        """
        number = self._number
        return (_keys or _load_keys()).get(number, number)  # type: ignore[arg-type]

    @property
    def what(self) -> tuple[int, int, str]:
        """Kind, key and name."""
        return self[2:5]  # type: ignore[return-value]

    @property
    def where(self) -> str:
        """``file:line`` of the code that registered it."""
        return self.origin.partition("\n")[0]

    @property
    def module(self) -> str:
        """The name by which any member can import that code; "" where there is none. See Note
        [Modules of registrations] in errors/locations.py.
        """
        return self.origin.partition("\n")[2]

    @property
    def source(self) -> str:
        """What members know that code by: its module or, without one, its file."""
        return self.module or source_of(self.where)

    @property
    def body(self) -> str:
        """The canonical schema of a definition, the label of a kernel. Of what PyTorch has, the
        schema of a definition, and "" for other parts.
        """
        if self.kind in (DEF, IMPL):
            return self.text.partition("\n")[0]
        return kind_of(self.kind).body(self.text)

    @property
    def attributes(self) -> str:
        """The attributes of a definition: see ``def_text``."""
        return self._line(1)

    @property
    def alias_analysis(self) -> str:
        """The alias analysis of a definition: FROM_SCHEMA, CONSERVATIVE or PURE_FUNCTION."""
        return self.attributes.partition(" ")[0] or "FROM_SCHEMA"

    @property
    def tags(self) -> tuple[str, ...]:
        """A definition's tags, sorted."""
        return tuple(self.attributes.split(" ")[1:])

    @property
    def generation(self) -> int:
        """The number to which handles of an operator hold on: that of its definition, or of the
        definition that this one replaced (a module was imported again).
        """
        return int(self._line(2) or self.seq)

    @property
    def signature(self) -> str:
        """The kernel's own schema, if it was registered with one, else ""."""
        return self._line(1)

    @property
    def types(self) -> str:
        """The names of the classes that a kernel is for, ", " between them, if it was registered
        with types, else "".
        """
        return self._line(2) if self.kind == IMPL else ""

    @property
    def provider_text(self) -> str:
        """The provider of a kernel, as the registry has it; "" without one."""
        return self._line(3) if self.kind == IMPL else ""

    @property
    def provider(self) -> str:
        """The name of the provider of a kernel, if it was registered with one, else ""."""
        return self.provider_text.partition(" ")[0]

    @property
    def lacks(self) -> str:
        """Why the provider of a kernel cannot be used where it was registered, in words; "" if it
        can, and for a kernel without a provider. See Provider.text in dispatch/kernels.py.
        """
        return "".join(self.provider_text.split(" ", 4)[4:])

    @property
    def comes_later(self) -> bool:
        """Whether the module of a provider is imported when a call first comes to it."""
        return self.provider_text.split(" ", 4)[3:4] == ["later"]

    @property
    def variant(self) -> str:
        """Which of the kernels of a key take each other's place: those for the same types. A
        provider takes nobody's.
        """
        provider = self.provider
        return f"@{provider}" if provider else self.types

    @property
    def kernel(self) -> str:
        """The label of a kernel, with its types and its provider."""
        return kernel_name(self.body, self.types, self.provider)

    @property
    def verified_as(self) -> tuple[int, int, str]:
        """Kind, key and name, and the types or the provider of a kernel: what members compare."""
        name = kernel_name(self.name, self.variant) if "\n" in self.text else self.name
        return self.kind, self._number, name

    def _line(self, number: int) -> str:
        lines = self.text.split("\n", number + 1)
        return lines[number] if len(lines) > number else ""

    def is_written(self, schema: str, attributes: str = "") -> bool:
        """Whether a definition was made from exactly this text, so that it need not be parsed."""
        canonical, *rest = self.text.split("\n", 3)
        if not rest:
            return schema == canonical and not attributes
        return schema in (canonical, rest[-1]) and attributes == rest[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registration) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.ref, self.seq))

    def __reduce__(self) -> tuple[object, ...]:
        kind = kind_of(self.kind)
        raise TypeError(
            f"a Registration is of the registry in which it was found, and cannot be pickled: "
            f"{kind.name} {self.name!r} ({self.where})\n"
            f"Send its name, text and location{kind.or_by}."
        )

    def __repr__(self) -> str:
        key = f" key={self.key}" if self.kind in (IMPL, FALLBACK) else ""
        return (
            f"Registration({kind_of(self.kind).name} {self.name!r}{key} "
            f"at {self.where} by {who(self.pid, self.interpreter)})"
        )


#: The most digits that a number in a note may have.
_DIGITS = 15


def number_in(text: str) -> int | None:
    """The number that a part of a note is; None where it is none, or has over 15 digits."""
    is_one = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if is_one else None

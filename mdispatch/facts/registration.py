"""The values of the registry, and the policy: the kinds of registrations, and what a second
registration of one kind means. Also the base class of what ends a registration of any kind.
"""

from __future__ import annotations

# What collections.namedtuple reads its fields by, in a tenth of the time of a property.
from _collections import _tuplegetter  # type: ignore[import-not-found]

from .native import fact, interpreter_id
from .native.constants import (
    MD_AS_BRIDGE,
    MD_BRIDGE,
    MD_CHOICE,
    MD_CLAIM,
    MD_CLASS,
    MD_DEF,
    MD_FALLBACK,
    MD_HOST,
    MD_IMPL,
    MD_LIBRARY,
    MD_MAIN,
    MD_NAME,
    MD_NOTE,
    MD_PEER,
    MD_PRIORITY,
    MD_PYSTUB,
    MD_RAISE_ALL,
    MD_STACK,
    MD_STANDING,
    MD_TORCH,
    MD_TYPE,
    MD_UNIQUE,
    MD_WORKER,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from ..keys.numbers import DispatchKey

__all__ = ["CHOICE", "CLAIM", "DEF", "FALLBACK", "HOST", "IMPL", "KIND_NAMES", "LIBRARY", "NAME"]
__all__ += ["AS_BRIDGE", "BRIDGE", "CLASS", "NOTE", "PRIORITY", "STANDING"]
__all__ += ["AGREED", "COMPARED", "KINDS", "REFUSED", "SEEN", "STAYS", "TRAVELS", "Kind"]
__all__ += ["PYSTUB", "TORCH", "TYPE", "MAIN", "PEER", "WORKER", "Elected", "Handle"]
__all__ += ["CLUSTER", "OF_ANY_MEMBER", "ROLE_NAMES", "POLICY", "Registration", "TORCH_SPACE"]
__all__ += ["def_text", "field_of", "impl_text", "interpreter_id", "is_of_choice", "kernel_name"]
__all__ += ["source_of"]
__all__ += ["shown_choice", "torch_name", "torch_parts", "who"]

LIBRARY, DEF, IMPL, FALLBACK = MD_LIBRARY, MD_DEF, MD_IMPL, MD_FALLBACK
PYSTUB, NAME, CLAIM, TORCH = MD_PYSTUB, MD_NAME, MD_CLAIM, MD_TORCH
TYPE, NOTE, CHOICE = MD_TYPE, MD_NOTE, MD_CHOICE
STANDING, PRIORITY, CLASS = MD_STANDING, MD_PRIORITY, MD_CLASS

# What becomes of a registration on its way to another member, into a pickle or a file, or to
# another host of a cluster.
#: It is there, and what is registered there is compared with it.
COMPARED = "compared"
#: It is there, and all use it.
AGREED = "agreed"
#: It is there for all to see, and nobody compares.
SEEN = "seen"
#: It is not there, and an error says so.
REFUSED = "refused"
#: It is not there: it is about members of one host, and means nothing elsewhere.
STAYS = "stays"


class Kind:
    """What is said once for all registrations of a kind.

    ``rule`` says what a second one of the same name and key means (the core knows these flags; it
    does not know which kind has which). ``by_any``: any member registers it, and not the main one
    only, so that none verifies it. ``members`` says what becomes of it for another member of the
    registry, ``pickles``, ``files`` and ``hosts`` for whoever loads a pickle, or a file of
    :mod:`mdispatch.choices`, and for the other hosts of a cluster.
    """

    __slots__ = ("by_any", "files", "hosts", "members", "name", "pickles", "rule")

    def __init__(
        self,
        name: str,
        rule: int,
        members: str = COMPARED,
        *,
        by_any: bool = False,
        pickles: str = REFUSED,
        files: str = REFUSED,
        hosts: str = COMPARED,
    ) -> None:
        self.name = name
        self.rule = rule
        self.by_any = by_any
        self.members = members
        self.pickles = pickles
        self.files = files
        self.hosts = hosts


#: The one table of kinds. docs/cluster.md and the tests of each way to travel
#: (tests/cluster/test_kinds.py) are made from it.
KINDS = {
    LIBRARY: Kind("library", MD_UNIQUE),
    DEF: Kind("def", MD_UNIQUE, pickles=COMPARED),
    IMPL: Kind("impl", MD_STACK),
    FALLBACK: Kind("fallback", MD_UNIQUE | MD_RAISE_ALL),
    PYSTUB: Kind("pystub", MD_STACK),
    NAME: Kind("name", MD_STACK),
    # On a namespace, where each namespace has a registrar of its own, or on a choice: md_claim
    # makes it a queue.
    CLAIM: Kind("claim", 0, SEEN, by_any=True, hosts=STAYS),
    TORCH: Kind("torch", MD_UNIQUE),  # what torch.library has registered
    STANDING: Kind("standing", MD_STACK, SEEN, hosts=STAYS),  # how a host stands: facts/hosts.py
    # Of the providers that come first, by operator or namespace.
    PRIORITY: Kind("priority", MD_STACK | MD_RAISE_ALL),
    CLASS: Kind("class", MD_UNIQUE),  # that schemas name: registry/classes.py
    TYPE: Kind("type", MD_UNIQUE, by_any=True),  # a member's own; for hosts: _take_over_types
    NOTE: Kind("note", MD_STACK, SEEN, by_any=True, hosts=STAYS),  # of a member about itself
    # Of one member for all.
    CHOICE: Kind("choice", MD_UNIQUE, AGREED, by_any=True, files=COMPARED, hosts=REFUSED),
}
KIND_NAMES = {number: kind.name for number, kind in KINDS.items()}
#: What a second registration of the same kind, name and key means.
POLICY = {number: kind.rule for number, kind in KINDS.items() if kind.rule}
#: The kinds that any member registers, so that none verifies them.
OF_ANY_MEMBER = tuple([number for number, kind in KINDS.items() if kind.by_any])
#: The kinds that go to all hosts of a cluster; of those that any member registers the leader's.
TRAVELS = frozenset([number for number, kind in KINDS.items() if kind.hosts == COMPARED])

#: The name of the registration by which the leader or the bridge of a host in a cluster tells how
#: the host stands: see facts/hosts.py.
CLUSTER = "mdispatch.cluster"

#: Stands for a program that embeds Python, in place of an interpreter's number.
HOST = MD_HOST
#: Stands for a bridge, likewise (cluster/bridge.py).
AS_BRIDGE = MD_AS_BRIDGE
MAIN, WORKER, PEER, BRIDGE = MD_MAIN, MD_WORKER, MD_PEER, MD_BRIDGE
ROLE_NAMES = {MAIN: "main", WORKER: "worker", PEER: "peer", BRIDGE: "bridge"}


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


def is_of_choice(name: str) -> bool:
    """Whether this is the name of a choice, and of the claims on it: no namespace has such a one.
    registry/profiles.py makes them.
    """
    return name.startswith("(")


def shown_choice(name: str) -> str:
    """The name of a choice for people."""
    return name.replace("\\:", ":")


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


#: The namespace of the registrations about PyTorch. No operator of ours can have it.
TORCH_SPACE = "torch.library"


def torch_name(operator: str, part: str = "") -> str:
    """The name of a TORCH registration: of the definition of an operator of PyTorch, or of another
    part of it, as a kernel at a key.
    """
    return f"{TORCH_SPACE}::{operator}@{part}" if part else f"{TORCH_SPACE}::{operator}"


def torch_parts(name: str) -> tuple[str, str]:
    """The operator and the part ("" for the definition) that a TORCH registration is about."""
    operator, _, part = name.removeprefix(f"{TORCH_SPACE}::").partition("@")
    return operator, part


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
        return self.text.partition("\n")[0] if self.kind in (DEF, IMPL, TORCH) else self.text

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
        kind = KINDS[self.kind]
        by = ""
        if kind.pickles == COMPARED:
            by = ", or the operator itself, which is compared where it is loaded"
        if kind.files == COMPARED:
            by = ", or a file (mdispatch.choices.export)"
        raise TypeError(
            f"a Registration is of the registry in which it was found, and cannot be pickled: "
            f"{kind.name} {self.name!r} ({self.where})\nSend its name, text and location{by}."
        )

    def __repr__(self) -> str:
        key = f" key={self.key}" if self.kind in (IMPL, FALLBACK) else ""
        return (
            f"Registration({KIND_NAMES.get(self.kind, self.kind)} {self.name!r}{key} "
            f"at {self.where} by {who(self.pid, self.interpreter)})"
        )

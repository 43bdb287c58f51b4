"""The registry of facts, as Python sees it: one protocol, two implementations.

``shared`` is the real one, over the native contract. ``local`` is plain Python for one interpreter:
the oracle that tests hold the shared one against. This file is what both have in common: the values
and the policy.
"""

from __future__ import annotations

from _operator import itemgetter

from ..errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from .._native._call import View

__all__ = ["CLAIM", "DEF", "FALLBACK", "HOST", "IMPL", "KIND_NAMES", "LIBRARY", "NAME", "PYSTUB"]
__all__ += ["MAIN", "PEER", "WORKER", "Elected", "Registration", "RegistryProtocol", "Struck"]
__all__ += ["ROLE_NAMES", "RULES", "Waited", "check_timeout"]
__all__ += ["def_text", "impl_text", "who"]

# Kinds and rules carry the numbers of the contract (mdispatch.h, md_kind and md_rule); a test
# compares them.
LIBRARY, DEF, IMPL, FALLBACK, PYSTUB, NAME, CLAIM = 1, 2, 3, 4, 5, 6, 7
KIND_NAMES = {
    LIBRARY: "library",
    DEF: "def",
    IMPL: "impl",
    FALLBACK: "fallback",
    PYSTUB: "pystub",
    NAME: "name",
    CLAIM: "claim",  # on a namespace, where there is no main member
}
_UNIQUE, _STACK, _RAISE_ALL = 1, 2, 16
#: The policy: what a second registration of the same kind, name and key means. The core knows only
#: the rules.
RULES = {
    LIBRARY: _UNIQUE,
    DEF: _UNIQUE,
    IMPL: _STACK,
    FALLBACK: _UNIQUE | _RAISE_ALL,
    PYSTUB: _STACK,
    NAME: _STACK,
}

#: In place of an interpreter's number: a program that embeds Python. (mdispatch.h, MD_HOST)
HOST = -1
MAIN, WORKER, PEER = 1, 2, 3
ROLE_NAMES = {MAIN: "main", WORKER: "worker", PEER: "peer"}


class Elected(Exception):
    """Ends a wait: this interpreter is the registrar now, and nobody else will register it."""


# As written, too: where the same text comes again, nothing has to be parsed.
_LONGEST_WRITTEN = 1024

#: Longer waits than this (about 31 years) are waits without end.
_LONGEST = 1e9


def check_timeout(timeout: float | None) -> float | None:
    """The timeout, if it is one: seconds, 0 or more, or None to wait without end. Else
    InvalidArgumentError.
    """
    if timeout is None:
        return None
    if (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout >= 0
    ):  # NaN is not
        return timeout if timeout <= _LONGEST else None
    from .._nearest import shown

    raise InvalidArgumentError(
        f"timeout={shown(timeout)}: give a number of seconds, 0 or more, or None to wait "
        "without end"
    )


def def_text(canonical: str, written: str, attributes: str = "", generation: int = 0) -> str:
    """The text of a DEF fact: the canonical schema, then, in lines of their own and only if one of
    them says something, the attributes, the generation and the schema as it was written.

    ``attributes`` is the kind of alias analysis ("" for that of the schema) and the tags, with a
    space before each. ``generation`` is that of the definition that this one takes the place of.
    """
    if written == canonical or len(written) > _LONGEST_WRITTEN:
        written = ""
    if not (written or attributes or generation):
        return canonical
    return f"{canonical}\n{attributes}\n{generation or ''}\n{written}"


def who(pid: int, interpreter: int) -> str:
    """A member, for people: a program that embeds interpreters is one beside them."""
    at = "the program itself" if interpreter == HOST else f"interpreter {interpreter}"
    return f"pid {pid}, {at}"


def impl_text(label: str, signature: str = "") -> str:
    """The text of an IMPL fact: the kernel's label and, if it has one, its signature."""
    return f"{label}\n{signature}" if signature else label


def _field(place: int) -> Any:
    return property(itemgetter(place))


class Registration(tuple[object, ...]):
    """One fact: who registered what, from where. A value; it does not know whether it was struck
    out since.
    """

    # A tuple, as the bindings hand it out: thousands are made at once.
    __slots__ = ()

    ref: int = _field(0)
    seq: int = _field(1)
    kind: int = _field(2)
    key: int = _field(3)
    name: str = _field(4)
    text: str = _field(5)
    where: str = _field(6)
    pid: int = _field(7)
    interpreter: int = _field(8)

    def __new__(
        cls,
        ref: int,
        seq: int,
        kind: int,
        key: int,
        name: str,
        text: str,
        where: str,
        pid: int,
        interpreter: int,
    ) -> Registration:
        return tuple.__new__(cls, (ref, seq, kind, key, name, text, where, pid, interpreter))

    @property
    def what(self) -> tuple[int, int, str]:
        """Kind, key and name."""
        return self.kind, self.key, self.name

    @property
    def body(self) -> str:
        """The canonical schema of a definition, the label of a kernel."""
        return self.text.partition("\n")[0] if self.kind in (DEF, IMPL) else self.text

    @property
    def attributes(self) -> str:
        """What a definition says beside its schema: see ``def_text``."""
        return self._line(1)

    @property
    def alias_analysis(self) -> str:
        """What a definition says of aliasing: FROM_SCHEMA, CONSERVATIVE or PURE_FUNCTION."""
        return self.attributes.partition(" ")[0] or "FROM_SCHEMA"

    @property
    def tags(self) -> tuple[str, ...]:
        """A definition's tags, sorted."""
        return tuple(self.attributes.split(" ")[1:])

    @property
    def generation(self) -> int:
        """What handles of an operator hold on to: the number of its definition, or of the one
        that it took the place of (a module imported again).
        """
        return int(self._line(2) or self.seq)

    @property
    def signature(self) -> str:
        """The kernel's own schema, where it was registered with one, else ""."""
        return self._line(1)

    def _line(self, number: int) -> str:
        lines = self.text.split("\n", number + 1)
        return lines[number] if len(lines) > number else ""

    def is_written(self, schema: str, attributes: str = "") -> bool:
        """Whether a definition was made with just this text, so that no parsing is needed."""
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

    def __repr__(self) -> str:
        return (
            f"Registration({KIND_NAMES.get(self.kind, self.kind)} {self.name!r} key={self.key} "
            f"at {self.where} by {who(self.pid, self.interpreter)})"
        )


class Waited:
    """How a wait went: seconds asleep, times asleep, and what ended each sleep."""

    __slots__ = ("seconds", "sleeps", "wakes", "slices", "by_lease")

    def __init__(
        self,
        seconds: float = 0.0,
        sleeps: int = 0,
        wakes: int = 0,
        slices: int = 0,
        by_lease: int = 0,
    ) -> None:
        self.seconds = seconds
        self.sleeps = sleeps
        self.wakes = wakes
        self.slices = slices
        self.by_lease = by_lease

    def __repr__(self) -> str:
        return (
            f"Waited(seconds={self.seconds:.6f}, sleeps={self.sleeps}, wakes={self.wakes}, "
            f"slices={self.slices}, by_lease={self.by_lease})"
        )


if TYPE_CHECKING:

    class Struck(Protocol):
        """What names a fact that is to be struck out."""

        @property
        def ref(self) -> int: ...
        @property
        def seq(self) -> int: ...

    class RegistryProtocol(Protocol):
        """What everything above the registry relies on. Errors are those of
        :mod:`mdispatch.errors`.
        """

        @property
        def role(self) -> int:
            """MAIN where registrations are made, WORKER where they are verified, PEER where that is
            decided for each namespace.
            """

        @property
        def label(self) -> str:
            """The registry's name or address, for messages."""

        def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
            """Adds a fact. Raises DuplicateRegistrationError, RegistryFullError,
            RegistryClosedError.
            """

        def strike(self, registration: Struck) -> bool:
            """Strikes a fact out; False when it is gone, or not this member's to strike."""

        def find(self, kind: int, key: int, name: str) -> Registration | None:
            """The newest live fact of exactly this kind, key and name."""

        def has(self, kind: int, key: int, name: str) -> bool:
            """Whether there is such a fact."""

        def await_fact(
            self,
            kind: int,
            key: int,
            name: str,
            at_least: int,
            timeout: float | None,
            ticket: int = 0,
            or_elect: bool = False,
        ) -> tuple[Registration | None, Waited]:
            """Waits until ``at_least`` such facts are there: the newest, or None after ``timeout``
            seconds. With ``or_elect`` it raises Elected when it is this member's turn to register
            them.
            """

        def await_change(
            self, seq: int, timeout: float | None, ticket: int = 0
        ) -> tuple[int, Waited]:
            """Waits until the registry's sequence differs from ``seq``: the present one, which is
            ``seq`` itself after ``timeout`` seconds. It is never 0. Every registration and every
            strike raises it; the facts with a smaller number are all there to be listed, so
            whoever takes the sequence before the facts misses no change.
            """

        def cancel(self, ticket: int = 0) -> None:
            """Ends the waits of this interpreter that carry the ticket, or all of them."""

        def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
            """(version, node, live facts oldest first) of one name, or of all names (version and
            node 0).
            """

        def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
            """How many facts of a kind are live, and those of them with this number or a greater
            one: who knows the others can tell whether one of them has gone.
            """

        def claim(self, namespace: str, where: str) -> bool:
            """PEER: queues up for a namespace, if this member is not in its queue already; whether
            it is the registrar.
            """

        def release(self, namespace: str) -> None:
            """PEER: leaves the queue. The last one takes what is registered along."""

        def is_mine(self, registration: Registration) -> bool:
            """PEER: whether this very member has registered it."""

        def version(self, node: int) -> int:
            """The version word of a name's node."""

        def view(self, make: bool = True) -> View | None:
            """What keeps the registry's words in place for calls in C; None where it has none, and
            where there is none yet that is not to be made. The memory stays mapped with it.
            """

        def touch(self) -> None:
            """What calls in C know of the names defined in this interpreter is out of date."""

        def check(self) -> str:
            """The broken invariants of the registry itself, one per line; "" when none is."""

        def close(self) -> None:
            """Leaves the registry. Idempotent."""

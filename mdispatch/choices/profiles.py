"""What a caller asks for when it wants a choice, and the texts of profiles, environments and
candidates in the registry.

Two values that are equal in Python (1, 1.0 and True) have one text, since an interpreter finds a
choice that it has met by equality. A list has the text of a tuple, which is what JSON makes of
both. A text is the ``ascii`` of the value in its plain form, so each plain value has its own.
"""

from __future__ import annotations

from _operator import index

from ..errors import InvalidArgumentError
from ..facts.native.constants import MD_MAX_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

#: The scopes of a choice: whether it is to hold for all members of the registry, or whether it may
#: be another one on each host of a cluster.
REGISTRY, HOST = "registry", "host"

#: What is plain as it is. (Not bool, which is equal to an int and has another text.)
_PLAIN = frozenset((int, str, type(None)))

#: The candidates that can be compared with those of a next call.
_COMPARED = frozenset((tuple, list, dict))

_LONGEST = MD_MAX_NAME - 70  # what is left beside a digest


def plain(value: object, what: str = "profile") -> Any:
    """A value in its plain form: None, str, int, float, tuples and dicts of these, keys in order.

    InvalidArgumentError for anything else; ``what`` is the argument that it is part of.
    """
    try:
        return _plain(value, what)
    except RecursionError:
        raise InvalidArgumentError(
            f"{what}: the {type(value).__qualname__} has more in one another than Python follows\n"
            "Make it flat: what a choice depends on is some numbers and texts."
        ) from None


def _plain(value: object, what: str) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (tuple, list)):
        return tuple([_plain(each, what) for each in value])
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str.__str__(key): _plain(value[key], what) for key in sorted(value)}
    if isinstance(value, float) and value - value == 0:  # neither infinite nor NaN
        return int(value) if value == int(value) else float.__float__(value)
    try:
        return int(index(value))  # type: ignore[arg-type]  # raises where it is none
    except TypeError:
        pass
    from ..errors.words import shown

    raise InvalidArgumentError(
        f"{what}: {shown(value)} is a {kind.__qualname__}, and members of other processes could "
        "not compare it\nMake it of None, numbers, texts, and tuples, lists and dicts (with texts "
        "as keys) of these: what JSON can say."
    )


def text_of(value: object, what: str = "profile") -> str:
    """The text of a value. Raises as :func:`plain`."""
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):  # type: ignore[call-overload]
        return f"{value!a}"
    return ascii(plain(value, what))


def choice_name(operator: str, profile: object, environment: object) -> str:
    """The name of the registration that is the choice, and of the queue for it: so it has no "::".

    In place of one that is too long, its beginning and a digest: it does not end like a whole one.
    """
    around = "" if environment is None else f", {text_of(environment, 'environment')}"
    name = f"({operator!a}, {text_of(profile)}{around})".replace(":", "\\:")
    if len(name) <= MD_MAX_NAME:
        return name
    from _blake2 import blake2b

    return f"{name[:_LONGEST]}...{blake2b(name.encode(), digest_size=24).hexdigest()}"


class Asked:
    """What a caller asks for. InvalidArgumentError."""

    __slots__ = ("candidates", "decide", "environment", "given", "name", "operator", "profile")

    def __init__(
        self,
        operator: str,
        profile: object,
        candidates: Iterable[Any],
        decide: Callable[[], Any],
        environment: object,
    ) -> None:
        self.operator = operator
        self.profile = profile
        self.environment = environment
        self.decide = decide
        self.name = choice_name(operator, profile, environment)
        kind = type(candidates)
        given = candidates
        if kind is list or kind is dict:
            given = candidates.copy()  # type: ignore[attr-defined]
        #: The candidates as given, as far as they can be compared with those of a next call.
        self.given: Any = given if kind in _COMPARED else None
        self.candidates: Sequence[Any] = given if kind is list or kind is tuple else _all(given)  # type: ignore[assignment]
        if not self.candidates:
            raise InvalidArgumentError(f"choose({operator!r}): there are no candidates")
        if not callable(decide):
            raise InvalidArgumentError(f"choose({operator!r}): decide= takes a function")


def _all(candidates: Iterable[Any]) -> tuple[Any, ...]:
    if not isinstance(candidates, str):
        try:
            return tuple(candidates)
        except TypeError:
            pass
    from ..errors.words import shown

    raise InvalidArgumentError(
        f"candidates= takes a list of what can be chosen, not {shown(candidates)}"
    )

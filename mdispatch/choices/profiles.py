"""A caller's question for a choice, and the name of the registration that answers it. The texts of
profiles, environments and candidates are those of values.py.
"""

from __future__ import annotations

from ..errors import InvalidArgumentError
from ..facts.native.constants import MD_MAX_NAME
from .values import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

#: The scopes of a choice: whether it is to hold for all members of the registry, or whether it may
#: be another one on each host of a cluster.
REGISTRY, HOST = "registry", "host"

#: The candidates that can be compared with those of a next call.
_COMPARED = frozenset((tuple, list, dict))

_LONGEST = MD_MAX_NAME - 70  # what is left beside a digest


def choice_name(operator: str, profile: str, environment: str | None) -> str:
    """The name of the registration that is the choice, and of the queue for it: so it has no "::".
    ``profile`` and ``environment`` are their texts.

    In place of one that is too long, its beginning and a digest: it does not end like a whole one.
    """
    around = "" if environment is None else f", {environment}"
    name = f"({operator!a}, {profile}{around})".replace(":", "\\:")
    if len(name) <= MD_MAX_NAME:
        return name
    from _blake2 import blake2b

    return f"{name[:_LONGEST]}...{blake2b(name.encode()).hexdigest()[:48]}"


class Asked:
    """What a caller asks for. InvalidArgumentError."""

    __slots__ = (
        "candidates",
        "decide",
        "environment",
        "given",
        "name",
        "operator",
        "profile",
        "texts",
    )

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
        #: The texts of the profile, and of the environment where there is one.
        self.texts = (
            text_of(profile, "profile"),
            None if environment is None else text_of(environment, "environment"),
        )
        self.name = choice_name(operator, *self.texts)
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

"""What ``mdispatch table``, ``show`` and ``why`` share, and words and JSON for single
registrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import __version__, facts
from ..dispatch.by_type import split_types
from ..dispatch.kernels import FALLTHROUGH, Provider
from ..keys.numbers import DispatchKey
from .columns import plain, styled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from ..facts import Registration
    from . import answers


@dataclass(frozen=True, slots=True)
class Subject:
    """The operator that an answer is about: its registry and registrations, oldest first; ``stub``
    is the registration that names a Python module.
    """

    registry: str
    there: Sequence[Registration]
    stub: Registration | None = None

    @property
    def name(self) -> str:
        return self.there[0].name

    @property
    def definition(self) -> Registration | None:
        return next((fact for fact in self.there if fact.kind == facts.DEF), None)

    def head(self) -> Text:
        """The first line of every answer."""
        if self.definition is not None:
            return styled(plain(self.definition.body), style="bold")
        return styled(f"{self.name}, which is not defined", style="bold yellow")

    def common(self) -> answers.Subject:
        """The keys that the JSON of each of these answers begins with."""
        return {
            "format": 2,
            "mdispatch": __version__,
            "registry": self.registry,
            "operator": self.name,
            "schema": None if self.definition is None else self.definition.body,
        }


def key_name(number: int) -> str:
    """The name of a dispatch key, or the number itself when no key has it."""
    try:
        return DispatchKey(number).name
    except ValueError:
        return str(number)


def location_json(fact: Registration) -> answers.Location:
    return {"where": fact.where, "pid": fact.pid, "interpreter": fact.interpreter}


def location_of_fact(fact: Registration | None) -> answers.Location | None:
    return None if fact is None else location_json(fact)


def kernel_json(key: str, alias: bool, active: bool, fact: Registration) -> answers.Kernel:
    """A kernel as JSON; ``active`` says whether it is in effect at its key."""
    provider = Provider.of(fact.provider_text)
    return {
        "key": key,
        "alias": alias,
        "active": active,
        "kernel": fact.body,
        "falls_through": fact.body == FALLTHROUGH,
        "signature": fact.signature or None,
        "types": list(split_types(fact.types)),
        "provider": fact.provider or None,
        "order": None if provider is None else provider.order,
        "location": location_json(fact),
    }


def by(fact: Registration) -> str:
    return f"by {facts.who(fact.pid, fact.interpreter)}"


def kernel_text(label: str) -> Text:
    """A kernel's label, or words for a fallthrough, which has none."""
    if label == FALLTHROUGH:
        return styled("falls through", style="dim")
    return styled(plain(label))


def names(keys: Iterable[DispatchKey]) -> list[str]:
    return [key.name for key in keys]

"""What the answers of ``mdispatch table``, ``show`` and ``why`` have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from . import __version__
from . import _registry as facts
from ._columns import plain
from ._kernels import FALLTHROUGH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._keys import DispatchKey
    from ._registry import Registration

__all__ = ["Subject", "by", "kernel_json", "kernel_text", "names", "place_of_fact"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The operator that an answer is about: its name, what is registered, and where; ``stub`` is
    the fact by which it names a Python module.
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
            return Text(plain(self.definition.body), style="bold")
        return Text(f"{self.name}, which is not defined", style="bold yellow")

    def json(self, **more: object) -> str:
        answer = {
            "format": 1,
            "mdispatch": __version__,
            "registry": self.registry,
            "operator": self.name,
            "schema": None if self.definition is None else self.definition.body,
        }
        return json.dumps(answer | more, indent=2)


def place_of_fact(fact: Registration | None) -> dict[str, object] | None:
    if fact is None:
        return None
    return {"where": fact.where, "pid": fact.pid, "interpreter": fact.interpreter}


def kernel_json(key: str, alias: bool, active: bool, fact: Registration) -> dict[str, object]:
    """A kernel of an operator as the JSON has it; ``active`` is the newest of its key."""
    return {
        "key": key,
        "alias": alias,
        "active": active,
        "kernel": fact.body,
        "falls_through": fact.body == FALLTHROUGH,
        "signature": fact.signature or None,
        "place": place_of_fact(fact),
    }


def by(fact: Registration) -> str:
    return f"by {facts.who(fact.pid, fact.interpreter)}"


def kernel_text(label: str) -> Text:
    """A kernel's label; a fallthrough is none."""
    if label == FALLTHROUGH:
        return Text("falls through", style="dim")
    return Text(plain(label))


def names(keys: Iterable[DispatchKey]) -> list[str]:
    return [key.name for key in keys]

"""What ``mdispatch table``, ``show`` and ``why`` share, and words and JSON for single
registrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import __version__, facts
from ..dispatch import keys_in_words
from ..dispatch.by_type import split_types
from ..dispatch.kernels import FALLTHROUGH, Provider
from ..registry.catalogue import known_key
from .columns import plain, styled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from ..facts import Registration
    from ..keys.numbers import DispatchKey
    from ..registry.catalogue import Operator
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

    @property
    def takes_tensors(self) -> bool:
        return keys_in_words.takes_tensors(self.definition)

    def key_in_words(self, key: DispatchKey) -> str:
        words = keys_in_words.key_in_words(key.name, self.takes_tensors)
        return f"{words} (alias)" if words == key.name and key.is_alias else words

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


def operator_json(operator: Operator) -> answers.Operator:
    """An operator as ``mdispatch ls --json`` has it."""
    there, stub = operator.definition, operator.stub
    return {
        "operator": operator.name,
        "namespace": operator.namespace,
        "overload": operator.overload,
        "position": operator.position,
        "schema": None if there is None else there.body,
        "defined": location_of_fact(there),
        "alias_analysis": None if there is None else there.alias_analysis,
        "tags": [] if there is None else list(there.tags),
        "python_module": None if stub is None else stub.body.partition("\n")[0],
        "dangling": operator.dangling,
        "kernels": [
            kernel_json(kernel.key, kernel.alias, kernel.active, kernel.fact)
            for kernel in operator.kernels
        ],
        "names": [location_json(fact) for fact in operator.holds],
    }


def other_json(fact: Registration) -> answers.Other:
    """A registration of another kind as ``mdispatch ls --json`` has it."""
    kind = facts.kind_of(fact.kind)
    return {
        "kind": kind.listed_as or kind.name,
        "name": kind.called(fact.name)[0],
        "text": kind.body(fact.text),
        "location": location_json(fact),
    }


def fallback_json(fact: Registration) -> answers.Fallback:
    """A fallback as ``mdispatch ls --json`` has it."""
    return {
        "key": known_key(fact.key),
        "kernel": fact.body,
        "falls_through": fact.body == FALLTHROUGH,
        "location": location_json(fact),
    }

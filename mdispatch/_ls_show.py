"""How ``mdispatch ls`` answers: in columns for people, or as JSON.

The JSON is one object; its keys are stable (new ones may come).

    format          1
    mdispatch       version
    registry        its address
    operators       one object for each that was asked for, by name
    fallbacks       one object for each backend fallback, which serves all operators: key, kernel
                    (label), falls_through, place

    an operator     operator (the name, ns::name or ns::name.overload), namespace, overload ("" for
                    the one without a name), schema (the definition's; null when it is not defined),
                    defined (place of the definition, or null), alias_analysis (FROM_SCHEMA,
                    CONSERVATIVE or PURE_FUNCTION; null when it is not defined), tags,
                    python_module (that has its fake kernels, or null), dangling (whether there are
                    kernels and no definition), kernels, names (places at which the name is held
                    without more)
    kernels         one object each, alias keys last, of each key the newest first: key, alias,
                    active (the newest of its key), kernel (label), falls_through, signature (or
                    null), place

A place is an object: where ("file:line"), pid, interpreter (its id; -1: the program that embeds
interpreters).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from . import __version__
from ._catalogue import fallback_json, operator_json
from ._columns import fit, number_of, place_text, plain, say, say_columns
from ._doctor import key_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ._catalogue import Operator
    from ._columns import Row
    from ._registry import Registration

__all__ = ["Listing"]


@dataclass(frozen=True, slots=True)
class Listing:
    """What ``mdispatch ls`` answers: the operators that were asked for. ``schemas`` says whether
    people see these in place of the names.
    """

    registry: str
    operators: Sequence[Operator]
    fallbacks: Sequence[Registration]
    schemas: bool = False

    def json(self) -> str:
        answer = {
            "format": 1,
            "mdispatch": __version__,
            "registry": self.registry,
            "operators": [operator_json(each) for each in self.operators],
            "fallbacks": [fallback_json(fact) for fact in self.fallbacks],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        what = "schema" if self.schemas else "operator"
        rows = [self._cells(each) for each in self.operators]
        say_columns(console, (what, "kernels at", "defined at"), rows)
        say(console)
        say(console, self._summary())
        if self.fallbacks:
            keys = ", ".join(key_name(fact.key) for fact in self.fallbacks)
            say(console, f"Fallbacks, for all operators, at {keys}.")

    def _cells(self, operator: Operator) -> Row:
        there = operator.definition
        name = operator.name if there is None or not self.schemas else there.body
        if there is not None:
            place = Text(place_text(there.where), style="dim")
        else:
            words = "not defined" if operator.dangling else "not defined: a name that is held"
            place = Text(words, style="yellow")
        return Text(plain(name), style="bold"), _kernels_text(operator), place

    def _summary(self) -> str:
        defined = [each for each in self.operators if each.definition is not None]
        kernels = sum(len(each.kernels) for each in self.operators)
        spaces = {each.namespace for each in self.operators}
        told = [f"{number_of(len(defined), 'operator')} in {number_of(len(spaces), 'namespace')}"]
        if len(defined) < len(self.operators):
            told.append(number_of(len(self.operators) - len(defined), "name") + " not defined")
        return f"{', '.join([*told, number_of(kernels, 'kernel')])}."


def _kernels_text(operator: Operator) -> Text:
    """The keys that have kernels, those with several with their number."""
    count: dict[str, int] = {}
    for kernel in operator.kernels:
        count[kernel.key] = count.get(kernel.key, 0) + 1
    told = [key if number == 1 else f"{key} ({number})" for key, number in count.items()]
    return Text(", ".join(told)) if told else Text("-", style="dim")

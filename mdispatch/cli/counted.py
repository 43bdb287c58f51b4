"""How often providers ran, as the commands show it: what the members that count have told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .columns import number_of, plain, say, say_columns, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..facts.counted import Counted
    from . import answers

__all__ = ["counted_json", "counted_text", "provider_name", "say_counted"]

_MOST_SHOWN = 3


def provider_name(name: str) -> str:
    return name or "(no name)"


def counted_json(counted: Counted | None) -> answers.Counted | None:
    if counted is None:
        return None
    return {
        "members": counted.members,
        "left_out": counted.left_out,
        "runs": [
            {
                "operator": each.operator,
                "key": each.key,
                "provider": each.provider or None,
                "runs": each.runs,
                "fell_back": each.fell_back,
            }
            for each in counted.runs
        ],
    }


def say_counted(console: Console, counted: Counted | None) -> None:
    """Prints how often the providers of an operator ran, where somebody has counted some."""
    if counted is None or not counted.runs:
        return
    rows = [
        (
            styled(plain(provider_name(each.provider))),
            styled(plain(each.key)),
            styled(f"{each.runs:,}"),
            styled(f"{each.fell_back:,}"),
        )
        for each in counted.runs
    ]
    say(console)
    say_columns(console, ("provider", "key", "ran", "fell back"), rows, range(2, 4))
    say(console)
    said = f"Counted by {number_of(counted.members, 'member')}."
    if counted.left_out:
        said += f" {number_of(counted.left_out, 'provider')} had no room in their notes."
    say(console, said)


def counted_text(counted: Counted) -> Text:
    """The most frequent providers, in a line."""
    most = sorted(counted.runs, key=lambda each: -each.runs)[:_MOST_SHOWN]
    told = [
        f"{provider_name(each.provider)} of {each.operator} at {each.key} {each.runs:,}"
        + f" ({each.fell_back:,} fell back)" * bool(each.fell_back)
        for each in most
    ]
    if more := len(counted.runs) - len(most) + counted.left_out:
        told.append(f"{more:,} more")
    return styled(plain("; ".join(told)), style="dim")

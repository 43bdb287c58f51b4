"""``mdispatch verify --job``: the verdict of the last roll call of a job that is running."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from click.exceptions import Exit

from ... import __version__
from ...choices.looking import roll_calls
from ..asking import answering, opened
from ..columns import fit, location_text, number_of, plain, say, styled
from ..console import complain, standard_output, write
from ..roll_calls import as_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...choices.looking import RollCall
    from ...registry import Registry
    from .. import answers


def tell(name: str, timeout: float, wants_json: bool) -> None:
    """Waits for the verdict of the last roll call in a registry, and writes it. Ends the command
    with status 1 if there is none in time, or if not all agree.
    """
    output = standard_output()
    with answering():
        with opened((), name) as registry:
            last = _awaited(registry, timeout)
            address = registry.address
        if last is None:
            complain(f"no member of {address} has called the roll (mdispatch.roll_call).")
            raise Exit(1)
        write(Answer(address, last), output, wants_json)
    verdict = last.verdict
    raise Exit(0 if verdict is not None and verdict.agrees else 1)


def _awaited(registry: Registry, timeout: float) -> RollCall | None:
    """The last roll call, with its verdict if that comes in time."""
    facts, ends = registry.dispatcher.facts, monotonic() + timeout
    while True:
        seq, _ = facts.await_change(0, 0.0)
        # The members of a round without a verdict are there, so it is later than one with one.
        calls = sorted(roll_calls(registry=registry), key=lambda each: each.verdict is None)
        left = ends - monotonic()
        if (calls and calls[-1].verdict is not None) or left <= 0:
            return calls[-1] if calls else None
        facts.await_change(seq, left)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer: a roll call."""

    registry: str
    call: RollCall

    def json(self) -> str:
        verdict = self.call.verdict
        answer: answers.Job = {
            "format": 1,
            "mdispatch": __version__,
            "registry": self.registry,
            "agree": verdict is not None and verdict.agrees,
            "called": len(self.call.posts) if verdict is None else 0,
            "expected": self.call.expected if verdict is None else verdict.expected,
            "verdict": None if verdict is None else as_json(verdict),
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        verdict, call = self.call.verdict, self.call
        say(console, styled(plain(f"roll call {call.name!r}, round {call.round!r}"), style="bold"))
        if verdict is None:
            called = number_of(len(call.posts), "member")
            say(console, f"No verdict yet: {called} of {call.expected} have called.")
            for each in call.posts:
                say(console, plain(f"{each}  {location_text(each.where)}"), indent=2)
            return
        for at, group in enumerate(verdict.groups):
            if at == verdict.right:
                continue
            for each in verdict.of(at):
                its = styled(plain(f"{each} differs {group.differs}"), style="bold red")
                say(console, its, indent=2)
                say(console, styled(location_text(each.where), style="dim"), indent=4)
            for part in group.fields:
                text = f"{part.path}: {part.here} there, {part.there} at the others"
                say(console, plain(text), indent=4)
        style = "bold green" if verdict.agrees else "bold yellow"
        say(console, styled(plain(f"{verdict}."), style=style))

"""How ``mdispatch stress`` answers: the suite's own table for people, or JSON.

The JSON is one object; its keys are stable (new ones may come).

    format          1
    mdispatch       version
    suite           folder of the suite that was run
    passed          whether every scenario held: exit status 0
    about           seed, seconds, workers, Python, mdispatch, system (texts)
    scenarios       one object each: scenario (title), place (the test), result ("ok", "failed",
                    "skipped"), rounds, operations, definitions, kills, forks, interpreters
                    (numbers of them), per_second (operations of one process), latencies, skipped
                    (reasons), failures
    latencies       objects: what, count, p50_ns, p90_ns, p99_ns, max_ns
    failures        objects: worker, again (the command that makes the same choices again)

With --list it has format, mdispatch, suite, and of scenarios the title and the place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import __version__
from ._columns import fit, plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Stressed", "listing_json"]


def listing_json(suite: str, scenarios: dict[str, str]) -> str:
    """The scenarios that there are, by title, each with its place."""
    answer = {
        "format": 1,
        "mdispatch": __version__,
        "suite": suite,
        "scenarios": [
            {"scenario": title, "place": scenarios[title]} for title in sorted(scenarios)
        ],
    }
    return json.dumps(answer, indent=2)


@dataclass(frozen=True, slots=True)
class Stressed:
    """What a run of the suite has come to; ``told`` are the figures that it wrote."""

    suite: str
    passed: bool
    told: dict[str, Any]

    def json(self) -> str:
        answer = {
            "format": 1,
            "mdispatch": __version__,
            "suite": self.suite,
            "passed": self.passed,
            "about": self.told["about"],
            "scenarios": self.told["scenarios"],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        for line in self.told["text"][1:]:
            console.print(plain(line), soft_wrap=True)

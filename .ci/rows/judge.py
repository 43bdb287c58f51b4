"""What the tests of a row came to: counts, skips that the table allows, and flaky tests."""

from __future__ import annotations

import datetime
import fnmatch
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from row import Row

#: More red tests than these are one fault, which a second run would not change.
MOST_AGAIN = 20
#: More flaky tests than these, and the table hides faults.
MOST_FLAKY = 10


@dataclass(frozen=True, slots=True)
class Test:
    """One test of a row, as tests/support/figures.py has recorded it."""

    outcome: str
    cpu: float = 0.0
    wall: float = 0.0
    reason: str = ""


LOST = Test("lost")


@dataclass
class Counted:
    """How many tests of a row passed, failed and were skipped, and which."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    tests: dict[str, Test] = field(default_factory=dict)

    @property
    def failed_tests(self) -> list[str]:
        return [name for name, test in self.tests.items() if test.outcome == "failed"]

    @property
    def skips(self) -> dict[str, str]:
        """The reason of each skip."""
        return {name: each.reason for name, each in self.tests.items() if each.outcome == "skipped"}


def count(row: Row, log: Path, record: Path) -> Counted:
    """From the record of pytest or, where there is none, from lines like "3 passed, 0 failed". Of
    programs that print none, each that ran is one.
    """
    counted = Counted()
    if record.exists():
        for line in record.read_text().splitlines():
            name, outcome, cpu, wall, reason = json.loads(line)
            counted.tests[name] = Test(outcome, cpu, wall, reason)
        outcomes = [test.outcome for test in counted.tests.values()]
        counted.passed = outcomes.count("passed")
        counted.failed = outcomes.count("failed")
        counted.skipped = outcomes.count("skipped")
    elif row.counts:
        text = log.read_text(errors="replace")
        lines = re.findall(
            r"^(?:=+ )?(\d+) passed(?:, (\d+) failed)?(?:, (\d+) skipped)?", text, re.MULTILINE
        )
        for numbers in lines:
            passed, failed, skipped = (int(number or 0) for number in numbers)
            counted.passed += passed
            counted.failed += failed
            counted.skipped += skipped
        if not lines:
            counted.passed = len(re.findall("^== ", text, re.MULTILINE))
    return counted


def failed_programs(row: Row, log: Path) -> list[str]:
    """The names that programs print behind FAILED, each behind that of its row."""
    found = re.findall(r"^FAILED:? +(\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return [f"{row.name}::{name}" for name in dict.fromkeys(found or ["?"])]


class Skips:
    """The table of skips: which reasons a row allows, and why. Any other skip makes the row red."""

    def __init__(self, file: Path) -> None:
        self._allowed = tomllib.loads(file.read_text())["skip"]

    def complaint(self, row: str, skips: dict[str, str]) -> str:
        """What is skipped for a reason that the table does not have; "" if there is nothing."""
        reasons = [
            re.compile(each["reason"])
            for each in self._allowed
            if any(fnmatch.fnmatchcase(row, pattern) for pattern in each["rows"])
        ]
        bad = [
            f"  {name}: {why}"
            for name, why in skips.items()
            if not any(reason.search(why) for reason in reasons)
        ]
        if not bad:
            return ""
        return "\n".join(["skipped, and .ci/skips.toml does not allow the reason here:", *bad[:40]])


class Flaky:
    """tests/flaky.toml: the tests that were red once and not again, with the cause once known.

    A test in it that is red again makes its row red.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = tomllib.loads(file.read_text()).get("flaky", [])
        #: What this run has found.
        self.found: list[str] = []

    def __contains__(self, name: str) -> bool:
        return any(each["test"] == name for each in self._entries)

    def file(self, names: list[str], row: str, outputs: str, *, add: bool) -> tuple[str, str]:
        """Files tests that were red once: the row's result, and what a person has to read."""
        day = datetime.date.today().isoformat()
        entries = "".join(
            f'\n[[flaky]]\ntest = {json.dumps(name)}\ndate = {day}\ncause = "not known yet"\n'
            for name in names
        )
        self.found += [f"{name} (in {row})" for name in names]
        if add:
            with self._file.open("a") as file:
                file.write(entries)
        self._entries += [{"test": name} for name in names]
        text = f"{outputs}\n\n---- red once and not again. For tests/flaky.toml:\n{entries}"
        if len(self._entries) > MOST_FLAKY:
            return "FAILED", f"{text}\nThat makes {len(self._entries)} entries: find a cause first."
        return "FLAKY", text

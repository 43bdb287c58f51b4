"""What each test costs and comes to. ``pytest --record=FILE`` writes a line of JSON for each: its
name, "passed", "failed" or "skipped", CPU seconds of the test and its children, seconds, the reason
of a skip.

In the long form the run ends with the tests that used more CPU than their tier allows.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiers

CPU = "cpu"
TIER = "tier"
_BEFORE = pytest.StashKey[float]()


def used() -> float:
    """CPU seconds of this process and of its children that have ended."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


class Meter:
    """Where tests run: measures them, and puts the figures into the report of their end."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_BEFORE] = used()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((CPU, round(used() - item.stash[_BEFORE], 4)))
            report.user_properties.append((TIER, tiers.tier(item)))
        return report


class Record:
    """Where the reports arrive: one line for each test, and what was too dear."""

    def __init__(self, config: pytest.Config) -> None:
        file = config.getoption("--record")
        self._file = Path(file).open("w", buffering=1) if file else None  # noqa: SIM115
        self._budgets = tiers.BUDGETS if config.getoption("--long") else {}
        self._open: dict[str, tuple[str, float, str]] = {}
        self._skipped_files: set[str] = set()
        self._too_dear: list[tuple[float, str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds, reason = self._open.pop(report.nodeid, ("passed", 0.0, ""))
        seconds += report.duration
        if report.failed:
            outcome = "failed"
        elif report.skipped and outcome == "passed":
            # What is expected to fail, and does, is no skip.
            outcome = "passed" if hasattr(report, "wasxfail") else "skipped"
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if report.when in ("setup", "call"):
            self._open[report.nodeid] = outcome, seconds, reason
            return
        # The end of a test, or that of its worker.
        told = dict(report.user_properties)
        self._write(report.nodeid, outcome, told.get(CPU, 0.0), seconds, reason)
        tier = str(told.get(TIER))
        if told.get(CPU, 0.0) > self._budgets.get(tier, float("inf")):
            self._too_dear.append((told[CPU], tier, report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that is skipped as a whole, which every worker tells, or cannot be read."""
        if report.passed or report.nodeid in self._skipped_files:
            return
        self._skipped_files.add(report.nodeid)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        self._write(report.nodeid, report.outcome, 0.0, 0.0, reason)

    def _write(self, name: str, outcome: str, cpu: float, seconds: float, reason: str) -> None:
        if self._file:
            print(json.dumps([name, outcome, cpu, round(seconds, 4), reason]), file=self._file)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._too_dear:
            terminalreporter.section("dearer than their tier allows")
        for cpu, tier, name in sorted(self._too_dear, reverse=True):
            terminalreporter.line(f"{cpu:6.2f} CPU s, {tier} has {tiers.BUDGETS[tier]}: {name}")

    def pytest_unconfigure(self) -> None:
        if self._file:
            self._file.close()

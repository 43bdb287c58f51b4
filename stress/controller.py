"""The process that controls a run: it starts the registrar, gathers what came out, and shows it.

It does not register itself. A registering main needs threads that answer many scenarios at once;
beside the event loop of pytest-xdist they would wait for it and it for them, and a fault of either
would look like one of the other.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import plot
import pytest
import report
from mains import Main
from measure import Figures

FIGURES, ABOUT = "stress-figures", "stress-about"


class Controller:
    """A plugin of the controlling process: of pytest-xdist's, or of the only one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.main: Main | None = None
        self.results: dict[str, report.Result] = {}
        if config.option.plot:
            plot.check(config.option.plot)

    def place(self) -> dict:
        """What a worker has to know."""
        where = (self.main.address, self.main.path) if self.main else ("", "")
        return {"stress_seed": self.config.option.seed, "stress_main": where}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if not self.config.option.collectonly:
            os.environ.pop("MDISPATCH_REGISTRY", None)
            self.main = Main(f"stress-{os.getpid()}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        node.workerinput.update(self.place())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.pytest_unconfigure()

    def pytest_unconfigure(self) -> None:
        if self.main is not None:
            self.main.leave()
            self.main = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = dict(report.user_properties).get(ABOUT)
        if about is None and (report.when != "???" or "stress" not in report.nodeid):
            return  # not one of these; a worker that crashed has told nothing of itself
        self._note(report, json.loads(about) if about else {})

    def _note(self, made: pytest.TestReport, about: dict) -> None:
        title = about.get("title", made.nodeid)
        result = self.results.setdefault(title, report.Result(title, made.nodeid))
        result.workers.add(about.get("worker", "?"))
        values = dict(made.user_properties).get(FIGURES)
        if made.when == "call" and values:
            loaded = json.loads(values)
            result.figures.merge(Figures.from_dict(loaded))
            result.took += loaded["took"]
        if made.skipped and isinstance(made.longrepr, tuple):
            result.skipped.append(made.longrepr[2].removeprefix("Skipped: "))
        elif made.failed:
            again = about.get("again") or (
                f"pytest '{made.nodeid}' --seed {self.config.option.seed} "
                f"--seconds {self.config.option.seconds:g}"
            )
            result.failures.append((about.get("worker", "?"), again))
        elif made.when == "call":
            result.passed += 1

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter) -> None:
        if not self.results:
            return
        results = sorted(self.results.values(), key=lambda result: result.place)
        about = report.about_run(self.config)
        if self.config.option.figures:  # whoever asked for them shows them
            Path(self.config.option.figures).write_text(json.dumps(report.figures(results, about)))
        else:
            for line in report.lines(results, about):
                terminalreporter.write_line(line)
        if self.config.option.plot:
            plot.draw(results, about, self.config.option.plot)
            terminalreporter.write_line(f"drawn: {Path(self.config.option.plot).resolve()}")

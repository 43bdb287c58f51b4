"""What jobs have in common: pyperf measures, and a table of ratios says what came out.

A job is a script of pyperf's and has its options. pyperf starts the script anew for each process
that measures, and there runs one benchmark of it. So a benchmark prepares what it needs when it
runs first, and not before.

What is no function that could be called again and again (a wake of many processes, bytes), the job
measures by itself; pyperf keeps the values.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import cache
from math import hypot
from timeit import Timer
from typing import TYPE_CHECKING

import pyperf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    #: Seconds that so many repetitions took.
    Work = Callable[[int], float]
    #: Two of which a ratio is made. None where one was left out, or in a process that measures.
    Pair = tuple[pyperf.Benchmark | None, pyperf.Benchmark | None]

__all__ = ["Job"]

#: Of each process. A value is much shorter than a time slice: on a busy machine most values are not
#: disturbed, and the median is one of these.
_VALUES, _QUICK_VALUES = 40, 20
_SECONDS = 0.5e-3


class Job:
    """One job. Its benchmarks are pyperf's Benchmark objects, which are there in the process that
    the user started; in those that measure they are None, and comparisons do nothing.
    """

    def __init__(self, **arguments: str) -> None:
        """Reads the command line. ``arguments`` are options with a value: name and help."""
        os.environ.pop("MDISPATCH_REGISTRY", None)
        module = sys.modules["__main__"].__spec__.name
        self.name = module.rpartition(".")[2].replace("_", "-")
        self._runner = pyperf.Runner(
            processes=5,
            values=_VALUES,
            warmups=5,
            min_time=_SECONDS,
            program_args=("-m", module),
            add_cmdline_args=self._pass_on,
        )
        add = self._runner.argparser.add_argument
        add("--quick", action="store_true", help="few values of one process, small numbers: rough")
        add("--left-out", action="append", default=[], help=argparse.SUPPRESS)
        self._own = [*arguments]
        for name, told in arguments.items():
            add(f"--{name}", default="", help=told)
        self.args = self._runner.parse_args()
        self.measures = bool(self.args.worker)
        self.args.quiet = not self.args.verbose  # the table shows what is unsteady
        self.quick = bool(self.args.quick)
        if self.quick and not self.measures:
            self.args.processes, self.args.values = 1, _QUICK_VALUES
        # What chooses the binding, or calls in Python, holds in the processes that measure, too.
        own = [name for name in os.environ if name.startswith("MDISPATCH_")]
        self.args.inherit_environ = [*(self.args.inherit_environ or ()), *own]
        self._left_out: dict[str, str] = {}
        self._rows: list[tuple[str, ...]] = []
        self._missed = self._aims = 0

    def _pass_on(self, command: list[str], args: argparse.Namespace) -> None:
        """Adds to the command of a process that measures what it has to know."""
        command.extend(["--quick"] * self.quick)
        for name in self._own:
            command.extend([f"--{name}", getattr(args, name)])
        for who in self._left_out:
            command.extend(["--left-out", who])

    def rounds(self, usual: int) -> int:
        """The rounds of what the job measures by itself."""
        return max(3, usual // 10) if self.quick else usual

    # --- measuring --------------------------------------------------------------------------------

    def statement(
        self,
        what: str,
        statement: str,
        names: str,
        prepare: Callable[[], Any],
        *,
        times: int = 1,
        aim: float | None = None,
    ) -> pyperf.Benchmark | None:
        """Measures a statement in code of its own, which has these local names of what ``prepare``
        returns. The loop around it is measured, too, unless the statement is written down several
        ``times`` in it. An aim is the largest number of seconds wanted.
        """
        setup, space = f"{names} = made()", {"made": cache(prepare)}
        time = Timer("\n".join([statement] * times), setup, globals=space).timeit
        name = self._full(what)
        return self._aimed(self._runner.bench_time_func(name, time, inner_loops=times), aim)

    def seconds(
        self, what: str, prepare: Callable[[], Work], *, aim: float | None = None
    ) -> pyperf.Benchmark | None:
        """Measures by a function that says how many seconds so many repetitions took."""
        made = cache(prepare)
        name = self._full(what)
        return self._aimed(self._runner.bench_time_func(name, lambda count: made()(count)), aim)

    def values(
        self, what: str, values: Iterable[float], unit: str = "second", *, aim: float | None = None
    ) -> pyperf.Benchmark | None:
        """Keeps values that the job has measured: seconds, or of unit "byte" or "integer"."""
        if self.measures:
            return None
        name = self._full(what)
        run = pyperf.Run([*map(float, values)], metadata={"name": name, "unit": unit})
        bench = pyperf.Benchmark([run])
        if file := self.args.append or self.args.output:
            pyperf.add_runs(file, bench)
        self._say(bench, aim)
        return bench

    def can(self, who: str, attempt: Callable[[], object]) -> bool:
        """Whether ``attempt`` works here. What does not is told under the table."""
        if self.measures:
            return who not in self.args.left_out
        try:
            attempt()
        except Exception as error:
            self.left_out(who, f"{type(error).__name__}: {error}")
            return False
        return True

    def left_out(self, who: str, why: str) -> None:
        self._left_out[who] = why

    def _full(self, what: str) -> str:
        """Of all jobs: their values may be in one file."""
        return f"{self.name}: {what}"

    def _aimed(self, bench: pyperf.Benchmark | None, aim: float | None) -> pyperf.Benchmark | None:
        """pyperf has printed it; what has an aim is in the table, too."""
        if self.measures:
            return None
        if aim is not None:
            self._say(bench, aim)
        return bench

    def _say(self, bench: pyperf.Benchmark, aim: float | None) -> None:
        what = bench.get_name().removeprefix(f"{self.name}: ")
        say = _number if bench.get_unit() == "integer" else bench.format_value
        self._row(what, *_itself(bench), say, aim)

    # --- comparing --------------------------------------------------------------------------------

    def ratio(
        self,
        what: str,
        these: pyperf.Benchmark | None,
        those: pyperf.Benchmark | None,
        *,
        aim: float | None = None,
        at_least: bool = False,
        factor: float = 1.0,
    ) -> None:
        """How many times as much as those these are: medians, and the smallest of both."""
        if these is None or those is None:
            return
        found = [factor * each for each in _over(these, those)]
        self._row(what, *found, _number, aim, at_least)

    def more(
        self,
        what: str,
        these: pyperf.Benchmark | None,
        first: pyperf.Benchmark | None,
        *,
        aim: float | None = None,
    ) -> None:
        """By how much these are more than the first ones."""
        if these is None or first is None:
            return
        self._row(what, *_above(_itself(these), _itself(first)), these.format_value, aim)

    def above(
        self,
        what: str,
        these: Pair,
        first: Pair,
        *,
        aim: float | None = None,
    ) -> None:
        """By how much the ratio of these is more than that of the first ones."""
        if None in these or None in first:
            return
        self._row(what, *_above(_over(*these), _over(*first)), "{:+.2f}".format, aim)

    def _row(
        self,
        what: str,
        median: float,
        spread: float,
        best: float,
        say: Callable[[float], str],
        aim: float | None,
        at_least: bool = False,
    ) -> None:
        told, verdict = "", ""
        if aim is not None:
            missed = median < aim if at_least else median > aim
            told, verdict = (
                f"{'>=' if at_least else '<='} {say(aim)}",
                "missed" if missed else "met",
            )
            self._aims, self._missed = self._aims + 1, self._missed + missed
        self._rows.append(
            (what, say(median), f"+- {say(spread).lstrip('+')}", say(best), told, verdict)
        )

    def end(self) -> None:
        """Prints the table, in the process that the user started."""
        if self.measures:
            return
        rows = [("", "median", "spread", "best", "aim", ""), *self._rows]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        print()
        for what, *cells in rows:
            shown = (f"{cell:>{width}}" for cell, width in zip(cells, others, strict=True))
            print(f"{what:<{first}}  {'  '.join(shown)}".rstrip())
        print(f"{self._missed} of {self._aims} aims missed{'; rough: --quick' * self.quick}")
        for who, why in self._left_out.items():
            print(f"left out: {who}: {why}")


def _itself(these: Any) -> tuple[float, float, float]:
    """Median, spread and the smallest."""
    return these.median(), these.median_abs_dev(), min(these.get_values())


def _over(these: Any, those: Any) -> tuple[float, float, float]:
    """The same of a ratio."""
    (a, a_spread, a_best), (b, b_spread, b_best) = _itself(these), _itself(those)
    return a / b, a / b * hypot(a_spread / a, b_spread / b), a_best / b_best


def _above(
    a: tuple[float, float, float], b: tuple[float, float, float]
) -> tuple[float, float, float]:
    """The same of a difference."""
    return a[0] - b[0], hypot(a[1], b[1]), a[2] - b[2]


def _number(value: float) -> str:
    """A number with three significant digits."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.5 else f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"

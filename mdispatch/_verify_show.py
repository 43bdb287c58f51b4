"""How the result of ``mdispatch verify`` is shown: a table and explanations, or JSON.

The JSON is one object; its keys are stable (new ones may come). Times are in seconds; null stands
for what a worker did not live to tell.

    format        1
    mdispatch     version
    python        version
    own_gil       whether the sub-interpreters have a GIL of their own
    modules       names, as given
    timeout       as given
    agree         whether all workers agree: exit status 0
    main          pid, operators, kernels, import_seconds
    workers       one object each, interpreters first:
                  kind ("interpreter" or "process"), pid, interpreter (its id), agrees, operators,
                  kernels (both verified), create_seconds, mdispatch_seconds (to import mdispatch
                  and join the registry), import_seconds (the modules), longest_wait_seconds,
                  differences (indices of the list below)
    differences   one object each, equal ones of several workers only once:
                  category ("schema", "key", "name", "late", "missing", "failed", "killed",
                  "silent"), error (a class of mdispatch.errors; what a failed worker raised; the
                  signal that killed it), kind ("library", "def", "impl", "fallback"), name, key,
                  here and there (places in the worker, in the main interpreter), schema_here,
                  schema_there, keys_there, nearest (names), text (for people),
                  workers (indices of the list above)
"""

from __future__ import annotations

import json
import os
import platform
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from . import __version__
from ._columns import plain
from .host import OWN_GIL
from .schema import compare, parse_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ._verify import Plan
    from ._verify_values import Difference, Row
    from .warming import WarmUp

__all__ = ["Result"]

TITLES = {
    "schema": "another schema",
    "key": "missing in main",
    "name": "missing in main",
    "late": "never arrived in main",
    "missing": "missing in the worker",
    "failed": "the import failed",
    "killed": "killed",
    "silent": "no answer",
}
DISAGREEMENTS = ("schema", "key", "name", "late", "missing")
_FIELDS = ("error", "kind", "name", "key", "here", "there", "schema_here", "schema_there")


@dataclass(frozen=True, slots=True)
class Result:
    """All that is known at the end."""

    plan: Plan
    main: WarmUp
    rows: Sequence[Row]

    @property
    def agree(self) -> bool:
        return not any(row.differences for row in self.rows)

    def differences(self) -> dict[Difference, list[int]]:
        """Each difference once, with the indices of the workers that have it."""
        found: dict[Difference, list[int]] = {}
        for index, row in enumerate(self.rows):
            for difference in row.differences:
                found.setdefault(difference, []).append(index)
        return found

    def _title(self, difference: Difference) -> str:
        title = TITLES[difference.category]
        if not difference.name:
            return title
        if difference.kind == "fallback":
            return f"fallback at {difference.key}: {title}"
        name = f"library {difference.name}" if difference.kind == "library" else difference.name
        return f"{name}{' at ' * bool(difference.key)}{difference.key}: {title}"

    def _explained(self, difference: Difference) -> list[str]:
        """What is where, named from outside, and what to do about it."""
        category = difference.category
        if category not in DISAGREEMENTS:
            came = difference.text.splitlines()
            return [*difference.summary.splitlines(), *came]
        lines = []
        there, here = difference.there, difference.here
        namespace = difference.name.partition("::")[0]
        if category == "schema":
            main, worker = (
                parse_schema(text) for text in (difference.schema_there, difference.schema_here)
            )
            lines += [compare(main, worker) or "", f"main:    {main}", f"         {there}"]
            lines += [f"worker:  {worker}", f"         {here}"]
        else:
            if category == "key":
                there += f", with kernels at {', '.join(difference.keys_there) or 'no key'}"
            elif category == "name":
                there = f"namespace {namespace} comes from {there}"
            elif category == "late":
                there = f"nothing in namespace {namespace} within {self.plan.timeout:.6g} s"
            elif category == "missing":
                here = "has imported the module without it"
            lines += [f"main:    {there}", f"worker:  {here}"]
        if difference.nearest:
            lines.append(f"nearest names in main: {', '.join(difference.nearest)}")
        return [*lines, difference.text.rpartition("\n")[2]]

    # --- for machines

    def json(self) -> str:
        differences = self.differences()
        number = {difference: i for i, difference in enumerate(differences)}
        workers = [
            {
                "kind": row.kind,
                "pid": row.pid,
                "interpreter": row.interpreter,
                "agrees": not row.differences,
                "operators": row.operators,
                "kernels": row.kernels,
                "create_seconds": row.create,
                "mdispatch_seconds": row.join,
                "import_seconds": row.importing,
                "longest_wait_seconds": row.longest_wait,
                "differences": [number[difference] for difference in row.differences],
            }
            for row in self.rows
        ]
        told = [
            {
                "category": difference.category,
                **{name: getattr(difference, name) for name in _FIELDS},
                "keys_there": list(difference.keys_there),
                "nearest": list(difference.nearest),
                "text": "\n".join([self._title(difference), *self._explained(difference)]),
                "workers": indices,
            }
            for difference, indices in differences.items()
        ]
        answer = {
            "format": 1,
            "mdispatch": __version__,
            "python": platform.python_version(),
            "own_gil": OWN_GIL,
            "modules": list(self.plan.modules),
            "timeout": self.plan.timeout,
            "agree": self.agree,
            "main": {
                "pid": os.getpid(),
                "operators": self.main.operators,
                "kernels": self.main.kernels,
                "import_seconds": self.main.import_seconds,
            },
            "workers": workers,
            "differences": told,
        }
        return json.dumps(answer, indent=2)

    # --- for people

    def show(self, console: Console) -> None:
        main = self.main
        console.print(
            f"mdispatch {__version__}, Python {platform.python_version()}, main interpreter of pid "
            f"{os.getpid()}:\n{_count(main.operators, 'operator')} and "
            f"{_count(main.kernels, 'kernel')} registered by {', '.join(self.plan.modules)} "
            f"in {_ms(main.import_seconds)} ms\n",
            soft_wrap=True,
        )
        console.print(self._table(console.width))
        differences = self.differences()
        for i, (difference, indices) in enumerate(differences.items(), 1):
            console.print()
            heading = Text(f"{i}. {plain(self._title(difference))}", style="bold red")
            heading.append(f"   {self._workers(indices)}", style="not bold default")
            console.print(heading, soft_wrap=True)
            # A terminal's lines are broken between words; elsewhere a line stays a line.
            width = console.width if console.is_terminal else sys.maxsize
            for line in self._explained(difference):
                console.print(Text(_broken(plain(line), width)), soft_wrap=True)
        console.print()
        console.print(self._verdict(len(differences)), soft_wrap=True)

    def _table(self, width: int) -> Table:
        between = ", " if width >= 100 else "\n"
        table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
        table.add_column("worker", no_wrap=True)
        for heading in ("pid", "id", "oper-\nators", "ker-\nnels"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("create", "import\nmdispatch", "import\nmodules", "longest\nwait"):
            table.add_column(f"{heading}\nms", justify="right", no_wrap=True)
        table.add_column("differs", min_width=9)
        for row in self.rows:
            counts: dict[str, int] = {}
            for difference in row.differences:
                counts[difference.category] = counts.get(difference.category, 0) + 1
            short = between.join(f"{n} {category}" for category, n in counts.items())
            table.add_row(
                row.kind,
                *(_number(figure) for figure in (row.pid, row.interpreter)),
                *(_number(figure) for figure in (row.operators, row.kernels)),
                *(_ms(t) for t in (row.create, row.join, row.importing, row.longest_wait)),
                Text(short, style="red") if short else Text("-", style="green"),
            )
        return table

    def _workers(self, indices: Sequence[int]) -> str:
        if len(indices) == len(self.rows) > 1:
            return f"(in all {len(indices)} workers)"
        names = []
        for index in indices:
            row = self.rows[index]
            number = row.interpreter if row.kind == "interpreter" else row.pid
            names.append(f"{row.kind} {_number(number)}")
        return f"(in {', '.join(names)})"

    def _verdict(self, differences: int) -> Text:
        workers = len(self.rows)
        if self.agree:
            # More may come after the import, and workers wait for that.
            registered = self.main.operators or self.main.kernels
            if not registered and not any(row.operators or row.kernels for row in self.rows):
                return Text(
                    "Nothing to verify: these modules register no operators.", style="bold yellow"
                )
            what = "The worker agrees" if workers == 1 else f"All {workers} workers agree"
            return Text(f"{what} with the main interpreter.", style="bold green")
        bad = sum(bool(row.differences) for row in self.rows)
        return Text(
            f"{bad} of {_count(workers, 'worker')} differ{'s' * (bad == 1)} from the main "
            f"interpreter: {_count(differences, 'difference')}.",
            style="bold red",
        )


def _broken(line: str, width: int) -> str:
    return textwrap.fill(
        line,
        width,
        initial_indent=" " * 3,
        subsequent_indent=" " * (12 if line.startswith(("main:", "worker:", " ")) else 3),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _number(figure: int | None) -> str:
    return "?" if figure is None else str(figure)


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.{1 if seconds < 1 else 0}f}"

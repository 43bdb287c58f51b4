"""The result of ``mdispatch verify``: a row for each worker, the differences, and the text or JSON
that is printed.
"""

from __future__ import annotations

import json
import os
import platform
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ... import __version__
from ...pool.interpreters import OWN_GIL
from ...schema import compare, parse_schema
from ..columns import fit, plain, say, say_columns, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from ...workers.warm_up import WarmUp
    from .. import answers
    from .worker import Report

# Seconds that a worker may take beyond the timeout of its waits; more for each other worker.
_GRACE, _SHARE = 5.0, 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """What to verify: ``timeout`` in seconds bounds all waits of one worker together. ``against``
    is the registry of a running process; None where the modules register here. ``torch``: what
    they register with torch.library is verified, too. ``groups`` are those of entry points.
    """

    modules: tuple[str, ...]
    interpreters: int
    processes: int
    timeout: float
    against: str | None = None
    torch: bool = False
    groups: tuple[str, ...] = ()

    @property
    def program(self) -> tuple[tuple[str, ...], tuple[str, ...], float, bool]:
        """The program of a worker depends on these."""
        return self.modules, self.groups, self.timeout, self.torch

    def limit(self, import_seconds: float) -> float:
        """Seconds after which a worker that has not reported is given up. The main interpreter took
        ``import_seconds`` for the same modules, and all workers share its cores.
        """
        workers = self.interpreters + self.processes
        return self.timeout + _GRACE + workers * (_SHARE + import_seconds)


#: The category of a difference, by the class of the error that the worker's warm-up found.
CATEGORIES = {
    "SchemaMismatchError": "schema",
    "KeyMismatchError": "key",
    "NameMismatchError": "name",
    "MainNeverArrivedError": "late",
    "NotRegisteredError": "late",
    "MissingInWorkerError": "missing",
    "TypeKeysMismatchError": "type",
    "DisagreementError": "plug-ins",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a worker differs from the main interpreter.

    ``category`` is "schema", "key", "name", "late", "missing", "type" or "plug-ins" when its
    warm-up found the difference (CATEGORIES), and "failed", "killed" or "silent" when the worker
    did not finish it.
    ``here`` and ``there`` are the locations in the worker and in the main interpreter. Equal
    differences of several workers are equal; ``waited`` and ``text`` may vary.
    """

    category: str
    error: str
    kind: str = ""
    name: str = ""
    key: str = ""
    here: str = ""
    there: str = ""
    schema_here: str = ""
    schema_there: str = ""
    keys_here: tuple[str, ...] = ()
    keys_there: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    summary: str = ""
    waited: float = field(default=0.0, compare=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Row:
    """How one worker did. A figure that it did not live to report is None. Times are in seconds."""

    kind: str
    pid: int | None
    interpreter: int | None
    differences: tuple[Difference, ...]
    create: float | None = None
    join: float | None = None
    operators: int | None = None
    kernels: int | None = None
    importing: float | None = None
    longest_wait: float | None = None


def row_of(
    kind: str,
    pid: int | None,
    interpreter: int | None,
    create: float | None,
    report: Report | None,
    ended: Difference | None,
) -> Row:
    """The row of a worker, from its report, if there is one, and from how it ended, if badly."""
    last = () if ended is None else (ended,)
    if report is None:
        return Row(kind, pid, interpreter, last, create)
    pid, interpreter, join, figures, told, failure = report
    found = [
        Difference(CATEGORIES.get(error, "failed"), error, text=text, **attributes)  # type: ignore[arg-type]
        for error, text, attributes in told
    ]
    if failure is None:
        return Row(kind, pid, interpreter, (*found, *last), create, join, *figures)
    error, text, locations = failure
    failed = Difference(
        "failed",
        error,
        here=locations[0] if locations else "",
        summary=f"{error}: {text}" if text else error,
        text="\n".join(f"at {location}" for location in locations),
    )
    return Row(kind, pid, interpreter, (failed, *last), create, join)


# --- the result -----------------------------------------------------------------------------------

TITLES = {
    "schema": "another schema",
    "key": "missing in main",
    "name": "missing in main",
    "late": "never arrived in main",
    "missing": "missing in the worker",
    "type": "a type with other keys",
    "plug-ins": "other plug-ins",
    "failed": "the import failed",
    "killed": "killed",
    "silent": "no answer",
}
_HEADINGS = (
    *("worker", "pid", "id", "oper-\nators", "ker-\nnels"),
    *("create\nms", "import\nmdispatch\nms", "import\nmodules\nms", "longest\nwait\nms", "differs"),
)
DISAGREEMENTS = ("schema", "key", "name", "late", "missing", "type")


@dataclass(frozen=True, slots=True)
class Result:
    """What ``mdispatch verify`` answers. ``facts`` is how many registrations there are: some may
    have come after the import. ``registrar_pid`` is the process that registers, 0 for none.
    """

    plan: Plan
    main: WarmUp
    rows: Sequence[Row]
    facts: int
    registrar_pid: int = 0

    @property
    def empty(self) -> bool:
        """Whether there was nothing in which a worker could have differed."""
        if self.plan.against is not None:  # what is there need not come from these modules
            return not any(row.operators or row.kernels or row.differences for row in self.rows)
        return not self.facts and not any(row.differences for row in self.rows)

    @property
    def agree(self) -> bool:
        return not self.empty and not any(row.differences for row in self.rows)

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
        """The lines that explain a difference: what each side has, and what to do about it."""
        category = difference.category
        if category not in DISAGREEMENTS:
            came = difference.text.splitlines()
            return [*difference.summary.splitlines(), *came]
        lines = []
        there, here = difference.there, difference.here
        namespace = difference.name.partition("::")[0]
        if category == "schema" and difference.kind == "torch":  # the texts are PyTorch's
            lines += [f"main:    {difference.schema_there}", f"         {there}"]
            lines += [f"worker:  {difference.schema_here}", f"         {here}"]
        elif category == "schema":
            main, worker = (
                parse_schema(text) for text in (difference.schema_there, difference.schema_here)
            )
            words = compare(main, worker, ("in main", "in the worker")) or ""
            lines += [words, f"main:    {main}", f"         {there}"]
            lines += [f"worker:  {worker}", f"         {here}"]
        elif category == "type":  # another worker may have been the first
            lines += [f"first:   {', '.join(difference.keys_there)}", f"         {there}"]
            lines += [f"worker:  {', '.join(difference.keys_here)}", f"         {here}"]
        else:
            if category == "key":
                there += f", with kernels at {', '.join(difference.keys_there) or 'no key'}"
            elif category == "name":
                there = f"namespace {namespace} comes from {there}"
            elif category == "late":
                what = f"namespace {namespace} comes from {there}, without a DEF library"
                if not there:
                    what = f"nothing in namespace {namespace}"
                there = f"{what} within {self.plan.timeout:.6g} s"
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
        workers: list[answers.VerifyWorker] = [
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
        told: list[answers.VerifyDifference] = [
            {
                "category": difference.category,
                "error": difference.error,
                "kind": difference.kind,
                "name": difference.name,
                "key": difference.key,
                "here": difference.here,
                "there": difference.there,
                "schema_here": difference.schema_here,
                "schema_there": difference.schema_there,
                "keys_here": list(difference.keys_here),
                "keys_there": list(difference.keys_there),
                "nearest": list(difference.nearest),
                "text": "\n".join([self._title(difference), *self._explained(difference)]),
                "workers": indices,
            }
            for difference, indices in differences.items()
        ]
        answer: answers.Verify = {
            "format": 2,
            "mdispatch": __version__,
            "python": platform.python_version(),
            "own_gil": OWN_GIL,
            "modules": list(self.plan.modules),
            "timeout": self.plan.timeout,
            "against": self.plan.against,
            "torch": self.plan.torch,
            "agree": self.agree,
            "empty": self.empty,
            "main": {
                "pid": os.getpid() if self.plan.against is None else self.registrar_pid,
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
        fit(console)
        main, modules = self.main, ", ".join(self.plan.modules)
        what = f"{_count(main.operators, 'operator')} and {_count(main.kernels, 'kernel')}"
        if self.plan.against is None:
            where = f"main interpreter of pid {os.getpid()}"
            what += f" registered by {modules} in {_ms(main.import_seconds)} ms"
        else:
            where = f"registry {self.plan.against}"
            where += f" of pid {self.registrar_pid}" if self.registrar_pid else ""
            what += f" there, {modules} here"
        python = platform.python_version()
        say(console, f"mdispatch {__version__}, Python {python}, {where}:\n{what}")
        say(console)
        between = ", " if console.width >= 100 else "\n"
        rows = [self._cells(row, between) for row in self.rows]
        say_columns(console, _HEADINGS, rows, right=range(1, len(_HEADINGS) - 1), gap=1)
        differences = self.differences()
        for i, (difference, indices) in enumerate(differences.items(), 1):
            say(console)
            heading = styled(f"{i}. {plain(self._title(difference))}", style="bold red")
            heading.append(f"   {self._workers(indices)}", style="not bold default")
            say(console, heading)
            for line in self._explained(difference):
                console.print(styled(_broken(plain(line), console.width)), soft_wrap=True)
        say(console)
        say(console, self._verdict(len(differences)))

    def _cells(self, row: Row, between: str) -> tuple[Text, ...]:
        counts: dict[str, int] = {}
        for difference in row.differences:
            counts[difference.category] = counts.get(difference.category, 0) + 1
        short = between.join(f"{n} {category}" for category, n in counts.items())
        figures = [row.pid, row.interpreter, row.operators, row.kernels]
        seconds = [row.create, row.join, row.importing, row.longest_wait]
        return (
            styled(row.kind),
            *(styled(_number(figure)) for figure in figures),
            *(styled(_ms(time)) for time in seconds),
            styled(short, "red") if short else styled("-", "green"),
        )

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
        if self.empty:
            return styled(
                "Nothing was verified: these modules register nothing. Name those that define "
                "operators.",
                style="bold yellow",
            )
        if self.agree:
            what = "The worker agrees" if workers == 1 else f"All {workers} workers agree"
            return styled(f"{what} with the main interpreter.", style="bold green")
        bad = sum(bool(row.differences) for row in self.rows)
        return styled(
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

"""What ``mdispatch verify`` finds out: a row for each worker, with what differs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._verify_worker import Report

__all__ = ["CATEGORIES", "Difference", "Row", "row_of"]

#: Why a worker differs, by the class of the error that its warm-up found.
CATEGORIES = {
    "SchemaMismatchError": "schema",
    "KeyMismatchError": "key",
    "NameMismatchError": "name",
    "MainNeverArrivedError": "late",
    "NotRegisteredError": "late",
    "MissingInWorkerError": "missing",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a worker differs from the main interpreter.

    ``category`` is "schema", "key", "name", "late" or "missing" for what its warm-up found
    (CATEGORIES), else "failed", "killed" or "silent" for how the worker ended without finishing it.
    ``here`` and ``there`` are the places in the worker and in the main interpreter. Equal
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
    keys_there: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    summary: str = ""
    waited: float = field(default=0.0, compare=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Row:
    """How one worker did. A figure that it did not live to report is None. Times in seconds."""

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
    """The row of a worker: what it reported, if it did, and how it ended, if not well."""
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
    error, text, places = failure
    failed = Difference(
        "failed",
        error,
        here=places[0] if places else "",
        summary=f"{error}: {text}" if text else error,
        text="\n".join(f"at {place}" for place in places),
    )
    return Row(kind, pid, interpreter, (failed, *last), create, join)

"""A row of .ci/run: one command that must succeed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

#: What is slow to make and is kept; .ci/lib.sh has the same.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mdispatch-ci"


@dataclass(frozen=True, slots=True)
class Row:
    """What a row runs, where, and beside what.

    Rows of one ``folder`` share one copy of the sources. A row starts when the rows that it
    ``needs`` are ok. ``cores`` is the number of processors that it keeps busy: a row whose tests
    wait for most of the time takes none, and runs beside others. A row that is ``alone`` runs
    beside no other one.
    """

    name: str
    #: A text for bash, run with -euo pipefail; of a row of pytest, the arguments of that.
    command: str
    folder: str
    python: str = ""
    needs: tuple[str, ...] = ()
    cores: int = 1
    alone: bool = False
    #: What counts its tests: "pytest", "readme" (pytest, as README.md calls it), "lines" of the
    #: output, or nothing.
    counts: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    #: Seconds after which the row is ended. A test has a limit of its own; this is for all else.
    limit: int = 900
    everyday: bool = True

    @property
    def is_set_up(self) -> bool:
        """Whether it makes an environment."""
        return self.name.endswith("/install")

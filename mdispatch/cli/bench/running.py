"""Runs jobs, each in processes of its own, and collects their answers."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time

from ... import __version__
from .figures import Answer, merged, reported
from .jobs import Job, checkout
from .measure import ENVIRONMENT, Settings
from .peers import PEERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Variables that a measuring process does not inherit; it starts without a parent's registry.
_LEFT_OUT = ("MDISPATCH_REGISTRY", ENVIRONMENT)
#: A machine with more work than this for each processor disturbs the measurements.
_BUSY = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """A process of a job that failed: its exit status, and its last lines of output."""

    status: int
    said: str


_NOTHING = Answer(())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job: an answer, or the reason why there is none."""

    job: Job
    answer: Answer = _NOTHING
    missing: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The results of all jobs, and the state of the machine meanwhile."""

    settings: Settings
    outcomes: tuple[Outcome, ...]
    load: tuple[float, float]
    began: float
    seconds: float
    about: dict[str, str] = field(default_factory=dict)

    @property
    def processors(self) -> int:
        return processors()

    @property
    def busy(self) -> bool:
        """Whether the machine was busy at the beginning, so that the figures are not reliable."""
        return self.load[0] > _BUSY * processors()


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_of(job: Job, asked: Settings) -> int:
    return 1 if asked.quick else job.processes


def run(jobs: Sequence[Job], asked: Settings, step: Callable[[], None]) -> Run:
    """Runs one job after the other; ``step`` is called after each process."""
    began, load = time(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as bytecode:
        outcomes = tuple(_outcome(job, asked, bytecode, step) for job in jobs)
    ended = time(), os.getloadavg()[0]
    return Run(asked, outcomes, (load, ended[1]), began, ended[0] - began, _about())


def _about() -> dict[str, str]:
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without a GIL"
    about = {
        "mdispatch": __version__,
        "Python": f"{platform.python_version()}{gil}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(processors()),
    }
    peers = {each.package: each.version for each in PEERS if each.package and not each.missing}
    return about | peers


def _outcome(job: Job, asked: Settings, bytecode: str, step: Callable[[], None]) -> Outcome:
    if job.missing:
        return Outcome(job, missing=job.missing)
    answers = []
    for number in range(processes_of(job, asked)):
        found = _answer(job, replace(asked, process=number), bytecode)
        step()
        if isinstance(found, Failure):
            return Outcome(job, failure=found)
        answers.append(found)
    return Outcome(job, merged(answers))


def _answer(job: Job, asked: Settings, bytecode: str) -> Answer | Failure:
    environment = {k: v for k, v in os.environ.items() if k not in _LEFT_OUT}
    # This package and no other, whatever lies in the current directory.
    path = [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
    environment |= {ENVIRONMENT: asked.text()}
    if not asked.quick:
        # Bytecode, whatever the caller's habits: as an installed package is imported, and not
        # compiled from source in each interpreter.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = bytecode
    folder = "" if job.module.startswith(__package__) else str(checkout())
    words = [sys.executable, "-m", "mdispatch.cli.bench.worker", job.module, folder]
    done = subprocess.run(
        [*words, *(["alone"] if job.alone else ())],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    try:
        done.check_returncode()
        return reported(done.stdout)
    except (subprocess.CalledProcessError, ValueError, TypeError, KeyError):
        said = (done.stderr or done.stdout).strip().splitlines()
        return Failure(done.returncode, "\n".join(said[-12:]))

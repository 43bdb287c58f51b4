"""What there is to measure: the jobs of ``mdispatch bench``, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["JOBS", "Job", "checkout"]


@dataclass(frozen=True, slots=True)
class Job:
    """A module with ``figures(settings)``. ``processes`` is how many take it, one after the other,
    and ``alone`` whether each stays on one processor. Those of ``benchmarks`` need a checkout of
    the repository.
    """

    name: str
    module: str
    what: str
    processes: int = 1
    alone: bool = False

    @property
    def missing(self) -> str:
        """Why it cannot be measured here; "" when it can."""
        if not self.module.startswith("benchmarks."):
            return ""
        root = checkout()
        if root is None:
            return "it is in checkouts of the repository only: run it in one"
        if not Path(root, *self.module.split(".")).with_suffix(".py").is_file():
            return f"there is no {self.module} in {root}"
        return ""


def checkout() -> Path | None:
    """The repository around this package, or the one that is the current directory."""
    for root in (Path(__file__).parents[2], Path()):
        if (root / "benchmarks").is_dir() and (root / "native" / "mdispatch.h").is_file():
            return root.resolve()
    return None


def _own(name: str, module: str, what: str, processes: int = 1, alone: bool = False) -> Job:
    return Job(name, f"mdispatch._bench.{module}", what, processes, alone)


def _of_checkout(name: str, module: str, what: str) -> Job:
    return Job(name, f"benchmarks.{module}", what)


JOBS = (
    _own("calls", "calls", "a call, of everybody who dispatches / a plain call", 4, True),
    _own("own", "own", "packets, attributes, redispatch, many operators / a plain call", 4, True),
    _own("rebuild", "rebuild", "the first call after a change", 2, True),
    _own("parallel-calls", "parallel_calls", "two interpreters or threads that call at once"),
    _own("parallel", "parallel", "two interpreters that run a kernel at once"),
    _own("find", "find", "finding and verifying an operator that is there"),
    _of_checkout("find-c", "find_c", "the same in C"),
    _of_checkout("register", "register_many", "define and impl of many operators, and closing"),
    _own("verify", "verify_many", "verifying 10,000 operators in a sub-interpreter"),
    _own("wake-up", "wake_up", "from a commit in one process to code in another one"),
    _of_checkout("wake-up-c", "wake_up_c", "the same in C"),
    _own("import", "import_cost", "import in a sub-interpreter"),
    _own("memory", "memory", "bytes for an operator"),
)

"""The jobs of ``mdispatch bench``, by name.

The package has the jobs whose figures a user wants from his own machine. The others tell the people
who change mdispatch what their change costs; they lie in ``benchmarks``, in the repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    """A module with ``figures(settings)``. ``processes`` processes run it, one after the other;
    ``alone`` keeps each of them on one processor. A module of ``benchmarks`` needs a checkout of
    the repository.
    """

    name: str
    module: str
    what: str
    processes: int = 1
    alone: bool = False

    @property
    def is_packaged(self) -> bool:
        """Whether it comes with the package."""
        return not self.module.startswith("benchmarks.")

    @property
    def missing(self) -> str:
        """Why it cannot be measured here; "" when it can."""
        if self.is_packaged:
            return ""
        root = checkout()
        if root is None:
            return "it is in checkouts of the repository only: run it in one"
        if not Path(root, *self.module.split(".")).with_suffix(".py").is_file():
            return f"there is no {self.module} in {root}"
        return ""


def checkout() -> Path | None:
    """The repository around this package, or the one that is the current directory."""
    for root in (Path(__file__).parents[3], Path()):
        if (root / "benchmarks").is_dir() and (root / "native" / "mdispatch.h").is_file():
            return root.resolve()
    return None


def _own(name: str, module: str, what: str, processes: int = 1, alone: bool = False) -> Job:
    return Job(name, f"mdispatch.cli.bench.{module}", what, processes, alone)


def _of_checkout(name: str, module: str, what: str, processes: int = 1, alone: bool = False) -> Job:
    return Job(name, f"benchmarks.{module}", what, processes, alone)


JOBS = (
    _own("calls", "calls", "a call, of everybody who dispatches / a plain call", 4, True),
    _own("wake-up", "wake_up", "from a commit in one process to code in another one"),
    _own("import", "import_cost", "import in a sub-interpreter"),
    _of_checkout(
        "own", "own", "packets, attributes, redispatch, many operators / a plain call", 4, True
    ),
    _of_checkout("values", "values", "arrays, tensors, converted numbers / a plain call", 4, True),
    _of_checkout("context", "context", "guards, modes, observers / a plain call", 4, True),
    _of_checkout("across", "across", "calls in another interpreter, and in another process"),
    _of_checkout("rebuild", "rebuild", "the first call, and the first after a change", 2, True),
    _of_checkout(
        "parallel-calls", "parallel_calls", "two interpreters or threads that call at once"
    ),
    _of_checkout("parallel", "parallel", "two interpreters that run a kernel at once"),
    _of_checkout("find", "find", "finding and verifying an operator that is there"),
    _of_checkout("choices", "choices", "a choice that is there, and one that is made"),
    _of_checkout(
        "providers", "providers", "calls that choose among providers / a plain call", 2, True
    ),
    _of_checkout("find-c", "find_c", "the same in C"),
    _of_checkout("register", "register_many", "define and impl of many operators, and closing"),
    _of_checkout("verify", "verify_many", "verifying 10,000 operators in a sub-interpreter"),
    _of_checkout("wake-up-c", "wake_up_c", "waking up in C"),
    _of_checkout("waiters", "waiters", "waking many processes that wait for one operator"),
    _of_checkout("missing", "missing", "a wait of 10 ms that ends in an error"),
    _of_checkout("cluster", "cluster", "several hosts on a Redis server"),
    _of_checkout("memory", "memory", "bytes for an operator"),
)

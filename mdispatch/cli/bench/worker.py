"""One process of a job: ``python -m mdispatch.cli.bench.worker MODULE FOLDER [alone]`` prints its
answer.

Everything else that a module prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .figures import report
from .measure import pin, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def main(module: str, folder: str, alone: str = "") -> None:
    """Measures by a module, which may lie in a folder of its own; on one processor if it is to be
    ``alone``.
    """
    asked = settings()
    if alone:
        pin(asked.process)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    report(_imported(module, folder).figures(asked), answer)


def _imported(module: str, folder: str) -> ModuleType:
    """The folder is searched for this import only: it may hold another copy of the package."""
    if not folder:
        return import_module(module)
    sys.path.insert(0, folder)
    try:
        return import_module(module)
    finally:
        sys.path.remove(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

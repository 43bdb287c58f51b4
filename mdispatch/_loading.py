"""Which module brings an operator that the registry knows and this interpreter has not loaded, and
importing it where the user allows that.

The module is the one that the operator names (set_python_module), else the one whose file
registered it, as far as that file is found on this interpreter's path.
"""

from __future__ import annotations

import sys

from . import _registry as facts
from ._logs import calls_log
from .errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._registry import Registration, RegistryProtocol

__all__ = ["ImportPolicy", "modules_bringing", "modules_of_file"]


def modules_bringing(registry: RegistryProtocol, fact: Registration) -> list[str]:
    """The modules to import for what ``fact`` registers, the likeliest first: the one that the
    operator names, which may have only some of its kernels, and that of the file.
    """
    stub = registry.find(facts.PYSTUB, 0, fact.name)
    named = [] if stub is None else [stub.body.partition("\n")[0]]
    found = modules_of_file(fact.where.rpartition(":")[0])
    # The label of a kernel begins with the module of its function, mostly the one that registers.
    labelled = (name for name in found if fact.body.startswith(name + "."))
    by_file = next(labelled, found[0] if found else "")
    return [*named, by_file] if by_file and by_file not in named else named


def modules_of_file(file: str) -> list[str]:
    """The names by which a source file can be imported here, the shortest first."""
    found = set()
    for folder in sys.path:
        prefix = (folder or ".").rstrip("/") + "/"
        if file.startswith(prefix) and file.endswith(".py"):
            parts = file[len(prefix) : -3].split("/")
            if len(parts) > 1 and parts[-1] == "__init__":
                parts.pop()
            if all(part.isidentifier() for part in parts):
                found.add(".".join(parts))
    return sorted(found, key=lambda name: (name.count("."), name))


class ImportPolicy:
    """Which modules a call may import because it needs their kernels: by default none.

    ``allowed`` has names of modules and packages; a package stands for all modules in it.
    """

    __slots__ = ("_tried", "allowed")

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self._tried: set[str] = set()

    def allow(self, names: tuple[str, ...]) -> None:
        for name in names:
            parts = name.split(".") if isinstance(name, str) else [""]
            if not all(part.isidentifier() for part in parts):
                from ._nearest import shown

                raise InvalidArgumentError(
                    f"{shown(name)} is no name of a module: allow modules or packages by their "
                    "full names"
                )
        self.allowed = tuple(dict.fromkeys((*self.allowed, *names)))
        self._tried = set()

    def admits(self, module: str) -> bool:
        return any(module == name or module.startswith(name + ".") for name in self.allowed)

    def load(self, registry: RegistryProtocol, fact: Registration) -> bool:
        """Imports what brings a kernel, if that is allowed and was not tried before. Whether it
        did; what the import raises comes through.
        """
        if not self.allowed:
            return False
        for module in modules_bringing(registry, fact):
            if module not in self._tried and self.admits(module):
                if calls_log.listens():
                    calls_log.tell("a call of %s imports %s for a kernel", fact.name, module)
                try:
                    __import__(module)  # a second thread waits in it for the first one
                finally:
                    self._tried.add(module)
                return True
        return False

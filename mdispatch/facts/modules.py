"""The Python module that brings an operator or its fake kernel, and importing it where allowed.

It is the module that the operator names (its *pystub*), else the module that registered it. Of a
registration that has no module's name, it is the module of its file, if this interpreter finds that
on its path.

``Library.set_python_module`` registers the pystub as a shared registration beside the definition.
So every process of the registry knows it, also for an operator that another process defined. It is
read when a call finds no kernel, and when a fake kernel runs for the first time.

(c10: Dispatcher::registerPythonModule, getPyStub, throw_abstract_impl_not_imported_error;
torch._library.utils.check_pystub)
"""

from __future__ import annotations

import os
import sys
from _imp import extension_suffixes

from ..errors import FakeKernelMissingError, InvalidArgumentError, WrongModuleError
from ..errors.locations import file_of, module_name
from .logs import calls_log
from .registration import DEF, FALLBACK, PYSTUB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

    from .abc import Facts
    from .registration import Registration

# --- the module that registered an operator, and importing it -------------------------------------


def modules_bringing(registry: Facts, fact: Registration) -> list[str]:
    """The modules that may bring the kernel of ``fact``, the likeliest first: the module that the
    operator names, which may have only some of its kernels, then the one that registered it.
    """
    stub = read_stub(registry, fact.name)
    named = [] if stub is None else [stub[0]]
    known = fact.module
    if not known:
        found = modules_of_file(file_of(fact.where))
        # A kernel's label begins with the module of its function, mostly the one that registers it.
        labelled = (name for name in found if fact.body.startswith(name + "."))
        known = next(labelled, found[0] if found else "")
    return [*named, known] if known and known not in named else named


# What Python calls code that is typed in, or given with -c. It is no module's name.
_NO_MODULES = ("<stdin>", "<string>")


def modules_of_file(file: str) -> list[str]:
    """The names by which a file can be imported here, the shortest first; for ``<module>`` that
    name.
    """
    found = set()
    if (
        file.startswith("<")
        and file not in _NO_MODULES
        and all(part.isidentifier() for part in file[1:-1].split("."))
    ):
        found.add(file[1:-1])
    file = file.replace(os.sep, "/")
    for folder in sys.path:
        prefix = (folder or ".").replace(os.sep, "/").rstrip("/") + "/"
        if file.startswith(prefix) and file.endswith((".py", *extension_suffixes())):
            above, slash, last = file[len(prefix) :].rpartition("/")
            # A compiled module's file: name.cpython-311-x86_64-linux-gnu.so
            parts = [*above.split("/")] if slash else []
            parts.append(last.partition(".")[0])
            if len(parts) > 1 and parts[-1] == "__init__":
                parts.pop()
            if all(part.isidentifier() for part in parts):
                found.add(".".join(parts))
    return sorted(found, key=lambda name: (name.count("."), name))


def sources_of_modules(names: Iterable[str]) -> set[str]:
    """The names of these modules, as far as they are imported, and their files, as locations tell
    them.
    """
    found: set[str] = set()
    for name in names:
        module = sys.modules.get(name)
        if module is None:
            continue
        found.update((name, f"<{name}>"))
        file = getattr(module, "__file__", None)
        if not file:
            continue
        found.add(file)
        if not file.endswith((".py", *extension_suffixes())):
            # Without its source, code has the name of the file that it was compiled from.
            from contextlib import suppress  # most workers do without

            with suppress(Exception):
                found.add(module.__loader__.get_code(name).co_filename)  # type: ignore[union-attr]
    return found


class ImportPolicy:
    """Which modules a call may import because it needs their kernels: by default none.

    ``allowed`` has names of modules and packages. A package stands for all modules in it.
    """

    __slots__ = ("_tried", "allowed")

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self._tried: set[str] = set()

    def allow(self, names: tuple[str, ...]) -> None:
        for name in names:
            parts = name.split(".") if isinstance(name, str) else [""]
            if not all(part.isidentifier() for part in parts):
                from ..errors.words import shown

                raise InvalidArgumentError(
                    f"{shown(name)} is not the name of a module: allow modules or packages by "
                    "their full names"
                )
        self.allowed = tuple(dict.fromkeys((*self.allowed, *names)))
        self._tried = set()

    def admits(self, module: str) -> bool:
        return any(module == name or module.startswith(name + ".") for name in self.allowed)

    def load(self, registry: Facts, fact: Registration) -> bool:
        """Imports the module that brings a kernel, if that is allowed and was not tried before.
        Returns whether it imported one. Exceptions of the import come through.
        """
        if not self.allowed:
            return False
        for module in modules_bringing(registry, fact):
            if module not in self._tried and self.admits(module):
                if calls_log.listens():
                    calls_log.tell("a call of %s imports %s for a kernel", fact.name, module)
                try:
                    __import__(module)  # a second thread waits here for the first
                finally:
                    self._tried.add(module)
                return True
        return False


# --- the module that an operator names for its fake kernel ----------------------------------------


class _StubPolicy:
    """Whether every fake kernel of this interpreter needs a stub. See require_python_modules."""

    __slots__ = ("is_strict",)

    def __init__(self) -> None:
        self.is_strict = False


stub_policy = _StubPolicy()


def read_stub(registry: Facts, name: str) -> tuple[str, str, Registration] | None:
    """Module, context and registration of the stub that is in effect for the operator; None without
    one."""
    fact = registry.find(PYSTUB, 0, name)
    if fact is None:
        return None
    module, _, context = fact.body.partition("\n")
    return module, context, fact


def module_of(frame: FrameType | None) -> str:
    """The module whose code runs in a frame. "" for a script, or for code that was only executed:
    no import finds it by that name.
    """
    name = module_name(frame) if frame is not None else ""
    return name if name != "__main__" and name in sys.modules else ""


def check_module(registry: Facts, name: str, found: str, where: str) -> None:
    """Checks that a fake kernel comes from the module that its operator names. ``found`` is the
    module that registered it, at ``where``.

    Raises WrongModuleError when it does not. Also when the operator names no module, was defined in
    another file, and require_python_modules is on.
    """
    if not found:
        return
    stub = read_stub(registry, name)
    if stub is None:
        definition = registry.find(DEF, 0, name) if stub_policy.is_strict else None
        if definition is not None and file_of(definition.where) != file_of(where):
            raise WrongModuleError(
                f"{name} has a fake kernel in module {found!r}, but its definition names no module "
                f"for it\n  fake kernel registered at {where}\n  defined at "
                f"{definition.where}\nCall set_python_module({found!r}) on the library that "
                "defines the operator, before the definition.",
                name,
                "",
                found,
            )
        return
    expected, _, fact = stub
    if expected != found:
        raise WrongModuleError(
            f"{name} names the Python module {expected!r} for its fake kernel, but the fake kernel "
            f"comes from {found!r}\n  fake kernel registered at {where}\n  module named at "
            f"{fact.where}\nEither register the fake kernel in {expected!r}, or name the right "
            f"module there: set_python_module({found!r}).",
            name,
            expected,
            found,
        )


def missing_fake(
    registry: Facts,
    name: str,
    available: Sequence[str] = (),
    listed: str = "",
    absent: Registration | None = None,
    brought_by: str = "",
) -> FakeKernelMissingError:
    """The error of a call with meta values that finds no kernel. It names the module that brings
    one, if the operator says so.

    ``available`` are the keys of the kernels that could run here; ``listed`` are the keys of all
    kernels, in words. ``absent`` is the registration of a fake kernel that the registry has and
    this interpreter lacks; ``brought_by`` is the module that registered it, if that is known.
    """
    stub = read_stub(registry, name)
    what = f"{name} was called with meta values and has no fake kernel"
    if absent is not None:
        one = "a fallback at Meta" if absent.kind == FALLBACK else "one"
        what += f" here\n  the registry has {one} ({absent.body}), registered at {absent.where} by "
        what += f"pid {absent.pid}"
    if listed:
        what += f"\n  kernels at: {listed}"
    if stub is None and absent is not None:
        advice = f"Import {brought_by or 'the module that registers it'} here too."
    elif stub is None:
        advice = f"Register one: register_fake({name!r}, ...)."
    else:
        module, context, fact = stub
        what += f"\n  its Python module is {module!r}, named at {fact.where}"
        if module in sys.modules:
            advice = (
                f"The module {module!r} is imported here, but has registered no fake kernel: add "
                f"register_fake({name!r}, ...) to it."
            )
        else:
            advice = f"Import the module {module!r}, which registers it."
        if context:
            advice += f"\n{context}"
    module, context = (brought_by, "") if stub is None else stub[:2]
    return FakeKernelMissingError(
        f"{what}\n{advice}", name, "Meta", available, module=module, context=context
    )

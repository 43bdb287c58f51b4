"""The two that a user compares: each is a registry, modules or a file, and becomes a snapshot."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import click
from click.exceptions import Exit

from ...editions.reading import Damaged, read
from ...editions.snapshot import snapshot_of
from ...errors import MdispatchError, NotSharedError
from ...errors.words import nearest, shown
from ...facts.opening import ENVIRONMENT, named_registries
from ...facts.outside import named_like
from ..asking import opened
from ..console import complain, module_names, search_here

if TYPE_CHECKING:
    from ...editions.snapshot import Snapshot

_MODULE = "module:"
#: A larger file is none that ls has written: 100,000 operators with two kernels each have 150 MB.
_MOST = 256 << 20
_A = {"registry": "a registry", "modules": "a module", "file": "a file"}


class Source(NamedTuple):
    """``kind`` is "registry", "modules" or "file"; ``name`` is it without a prefix."""

    kind: str
    name: str

    def __str__(self) -> str:
        kind = "module" if self.kind == "modules" and "," not in self.name else self.kind
        return f"the {kind} {self.name.replace(',', ', ')}"


def source_of(context: click.Context, parameter: click.Parameter, text: str) -> Source:
    """The source that a user means. Where the text can be several things it has to say which."""
    if text.startswith(_MODULE) or "," in text:
        names = tuple(text.removeprefix(_MODULE).split(","))
        return Source("modules", ",".join(module_names(context, parameter, names)))
    if ":" in text and not os.path.exists(text):
        return Source("registry", text)
    if text.endswith(".py"):
        module = os.path.normpath(text.removesuffix(".py")).strip(os.sep).replace(os.sep, ".")
        raise click.BadParameter(f"{text!r} is the source of a module. Is it {module!r}?")
    if os.sep in text or text.endswith(".json"):
        return Source("file", text)
    meant: dict[str, str] = {}
    if text in _registries():
        meant["registry"] = f"shm:{text}"
    if _is_module(text):
        meant["modules"] = f"{_MODULE}{text}"
    if os.path.exists(text) and not os.path.isdir(text):
        meant["file"] = os.path.join(os.curdir, text)
    if len(meant) == 1:
        return Source("".join(meant), text)
    if meant:
        ways = " or ".join(meant.values())
        what = " and ".join(_A[kind] for kind in meant)
        raise click.BadParameter(f"{text!r} is {what}. Say {ways}.")
    raise click.BadParameter(_nothing(text))


def _registries() -> list[str]:
    """The names of registries; none where registries are not shared."""
    try:
        return named_registries()
    except NotSharedError:
        return []


def _is_module(text: str) -> bool:
    """Whether there is a module of this name. This imports nothing, so it looks for the package of
    a module in one. A folder alone is no module.
    """
    if not all(part.isidentifier() for part in text.split(".")):
        return False
    search_here()
    try:
        found = find_spec(text.partition(".")[0])
    except (ImportError, ValueError):  # a module that is half there
        return False
    return found is not None and ("." in text or found.origin is not None)


def _nothing(text: str) -> str:
    near = [*named_like(text)] if _registries() else []
    near += nearest(text, [each for each in os.listdir() if each.endswith(".json")])
    meant = f" Did you mean {', '.join(near)}?" if near else ""
    return (
        f"there is no registry, no module and no file called {shown(text)}.{meant} mdispatch "
        "doctor lists the registries that are there."
    )


def snapshot(source: Source, side: str) -> Snapshot:
    """All that is registered there now. ``side`` is "OLD" or "NEW", for complaints: they end the
    command with status 2, unless it is an MdispatchError.
    """
    look = {"registry": _of_registry, "modules": _of_modules, "file": _of_file}[source.kind]
    try:
        found = look(source.name)
        if not found.operators:
            raise Damaged("it has no operators, so nothing could be compared")
    except Damaged as error:
        complain(f"{side}, {source}: {error}.")
    except (OSError, MdispatchError) as error:
        if isinstance(error, MdispatchError):
            raise
        complain(f"{side}, {source}: {error.strerror or error}.")
    else:
        return found
    raise Exit(2)


def _of_registry(name: str) -> Snapshot:
    with opened((), name) as registry:
        return snapshot_of(registry.dispatcher.facts.registrations()[2])


def _of_modules(names: str) -> Snapshot:
    """Imports the modules in a new process, whose registry they have for themselves: the other
    version may have modules of the same names.
    """
    words = [word for name in names.split(",") for word in ("--import", name)]
    safe = ["-P"] * sys.flags.safe_path
    done = subprocess.run(
        [sys.executable, *safe, "-m", __package__.partition(".")[0], "ls", "--json", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
    )
    if done.returncode == 1:
        raise Damaged("it registers nothing")
    if done.returncode:  # it has said why
        raise Damaged(f"the import failed in a process of its own (status {done.returncode})")
    return read(done.stdout)


def _of_file(path: str) -> Snapshot:
    with open(path, "rb") as file:
        text = file.read(_MOST + 1)
    if len(text) > _MOST:
        raise Damaged("it has more than 256 MiB, and is no answer of mdispatch ls --json")
    return read(text)

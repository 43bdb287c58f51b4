"""A registration of each kind, for the tests of the table of kinds: what the registrar does, and
what a worker does that is the same, or that differs. Processes of all hosts import this.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mdispatch as md
from mdispatch import facts
from mdispatch.choices.profiles import choice_name
from mdispatch.dispatch.kernels import FALLBACK_NAME
from mdispatch.facts.native.constants import (
    MD_CHOICE,
    MD_CLASS,
    MD_KEPT,
    MD_MATCH,
    MD_PRIORITY,
    MD_TORCH,
    MD_VALUE,
    MD_VARIANT,
)
from mdispatch.torch.registrations import hold

__all__ = ["SAMPLES", "Sample", "drive", "found", "register_all", "write_found"]

#: What is found of a kind: the error of the same registration and of another one, each as class
#: and text or None, and whether the registrar's registration is there.
Found = dict[str, tuple[Any, Any, bool]]

NAMED = "ways::f"
TILES = [16, 64]
LAST = "ways::last"
HANDLES: dict[type, list[Any]] = {}


def kernel(*args: object) -> object:
    return args[0]


def never() -> int:
    raise AssertionError("nobody has to decide here")


class Thing:
    def turn(self, by: int) -> int:
        return by


class Here:
    """A member, and what it has to keep."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.kept: list[object] = []
        self.registry = md.default_registry()
        self.backing = self.registry.dispatcher.facts

    def lib(self, timeout: float | None = None, space: str = "ways", kind: str = "FRAGMENT") -> Any:
        seconds = self.timeout if timeout is None else timeout
        made = md.Library(space, kind, timeout=seconds)
        self.kept.append(made)
        return made

    def torch(self, schema: str) -> None:
        name = f"torch.library::{NAMED}"
        where = "/ops/ways.py:1"
        self.kept.append(hold(self.registry.dispatcher, name, schema, where, self.timeout))

    def thing(self, schema: str) -> None:
        methods = {"turn": schema}
        md.register_class("ways.Thing", methods=methods, timeout=self.timeout)(Thing)

    def ask(self, tiles: list[int], decide: Callable[[], int], **more: Any) -> None:
        assert md.choose(NAMED, (8, 8), tiles, decide, **more) == 16

    def tell(self, kind: int, name: str) -> None:
        self.backing.register(kind, 0, name, "told", "/ops/ways.py:1")

    def type(self, cls: type, key: str) -> None:
        """A child of a fork has its parent's types, so it ends that of the class first."""
        for each in HANDLES.pop(cls, ()):
            each.close()
        HANDLES[cls] = [md.register_type(cls, key)]

    def priority(self, name: str) -> None:
        self.kept.append(md.set_priority(NAMED, [name], timeout=self.timeout))


@dataclass(frozen=True)
class Sample:
    """``name`` is that of the registration. A worker that does ``other`` is told so by
    ``error``."""

    name: str
    main: Callable[[Here], object]
    same: Callable[[Here], object]
    other: Callable[[Here], object] = kernel
    error: str = ""


def _alike(
    name: str, both: Callable[[Here], object], other: Callable[[Here], object], error: str
) -> Sample:
    return Sample(name, both, both, other, error)


SAMPLES = {
    facts.LIBRARY: _alike(
        "opened",
        lambda here: here.lib(space="opened", kind="DEF"),
        lambda here: here.lib(0, "unopened", "DEF"),
        "MainNeverArrivedError",
    ),
    facts.DEF: _alike(
        NAMED,
        lambda here: here.lib().define("f(int x) -> int"),
        lambda here: here.lib().define("f(str x) -> int"),
        "SchemaMismatchError",
    ),
    facts.IMPL: _alike(
        NAMED,
        lambda here: here.lib().impl("f", kernel, "CPU"),
        lambda here: here.lib(0).impl("f", kernel, "CUDA"),
        "KeyMismatchError",
    ),
    facts.FALLBACK: _alike(
        FALLBACK_NAME,
        lambda here: here.lib(space="_", kind="IMPL").fallback(kernel, "CPU"),
        lambda here: here.lib(0, "_", "IMPL").fallback(kernel, "CUDA"),
        "KeyMismatchError",
    ),
    facts.PYSTUB: _alike(
        NAMED,
        lambda here: here.lib().register_python_module("f", "doors_fakes"),
        lambda here: here.lib().register_python_module("f", "other_fakes"),
        "PystubMismatchError",
    ),
    facts.NAME: _alike(
        "ways::named",
        lambda here: here.lib().register_name("named"),
        lambda here: here.lib(0).register_name("unnamed"),
        "NameMismatchError",
    ),
    MD_TORCH: _alike(
        f"torch.library::{NAMED}",
        lambda here: here.torch(f"{NAMED}(Tensor x) -> Tensor"),
        lambda here: here.torch(f"{NAMED}(Tensor y) -> Tensor"),
        "SchemaMismatchError",
    ),
    MD_PRIORITY: _alike(
        NAMED,
        lambda here: here.priority("fast"),
        lambda here: here.priority("slow"),
        "PriorityMismatchError",
    ),
    MD_CLASS: _alike(
        "ways::Thing",
        lambda here: here.thing("(int by) -> int"),
        lambda here: here.thing("(str by) -> int"),
        "ClassMismatchError",
    ),
    facts.TYPE: Sample(
        "builtins.bytes",
        lambda here: [here.type(each, "CPU") for each in (bytes, bytearray)],
        lambda here: here.type(bytes, "CPU"),
        lambda here: here.type(bytearray, "CUDA"),
        "TypeKeysMismatchError",
    ),
    facts.CLAIM: Sample(
        "(ways)",
        lambda here: here.backing.claim("(ways)", "/ops/ways.py:1"),
        lambda here: here.backing.claim("(ways)", "/ops/ways.py:1"),
    ),
    facts.NOTE: Sample(
        "ways.note",
        lambda here: here.tell(facts.NOTE, "ways.note"),
        lambda here: here.tell(facts.NOTE, "ways.note"),
    ),
    MD_VARIANT: Sample(
        NAMED,
        lambda here: here.tell(MD_VARIANT, NAMED),
        lambda here: here.tell(MD_VARIANT, NAMED),
    ),
    # Under another name than its own: members of this registry have to be the same.
    MD_MATCH: Sample(
        "ways.match",
        lambda here: here.tell(MD_MATCH, "ways.match"),
        lambda here: here.backing.find(MD_MATCH, 0, "ways.match"),
    ),
    facts.STANDING: Sample(
        "ways.standing",
        lambda here: here.tell(facts.STANDING, "ways.standing"),
        lambda here: here.backing.find(facts.STANDING, 0, "ways.standing"),
    ),
    MD_CHOICE: Sample(
        choice_name(NAMED, "[8,8]", None),
        lambda here: here.ask(TILES, lambda: 16, scope="host"),
        lambda here: here.ask(TILES, never),
        lambda here: here.ask([32, 64], never),
        "NotACandidateError",
    ),
    MD_VALUE: Sample(
        "(agree ways)",
        lambda here: md.agree("ways", [1], scope="host"),
        lambda here: md.agree("ways", [1]),
        lambda here: md.agree("ways", [2]),
        "DisagreementError",
    ),
    MD_KEPT: Sample(
        "(agree ways that stay)",
        lambda here: md.agree("ways that stay", [1], keep=True, scope="host"),
        lambda here: md.agree("ways that stay", [1]),
        lambda here: md.agree("ways that stay", [2]),
        "DisagreementError",
    ),
}


def register_all(timeout: float) -> Here:
    """In the registrar: one of each kind, and then what workers elsewhere can wait for. From then
    on they are told at once what is missing.
    """
    here = Here(timeout)
    for sample in SAMPLES.values():
        sample.main(here)
    here.lib().define("last() -> ()")
    md.seal()
    return here


def found(timeout: float) -> Found:
    """In a worker, by the name of the kind."""
    here, me = Here(timeout), os.getpid()
    md.wait_for_def(LAST, timeout)
    there = {}
    for kind, sample in SAMPLES.items():
        its = [each for each in here.backing.registrations(sample.name)[2] if each.kind == kind]
        there[kind] = any(each.pid != me for each in its)
    return {
        facts.kind_of(kind).name: (
            _outcome(sample.same, here),
            _outcome(sample.other, here) if sample.error else None,
            there[kind],
        )
        for kind, sample in SAMPLES.items()
    }


def _outcome(do: Callable[[Here], object], here: Here) -> Any:
    try:
        do(here)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


# --- the ways of one host ------------------------------------------------------------------------


def write_found(file: str, timeout: float) -> None:
    """What a worker process does."""
    Path(file).write_text(json.dumps(found(timeout)))


def drive(folder: str, timeout: float) -> None:
    """What the registrar does: it has a worker come through each way of this host."""
    here = register_all(timeout)
    for way in ("fork", "spawn"):
        context = multiprocessing.get_context(way)
        worker = context.Process(target=write_found, args=(f"{folder}/{way}", timeout))
        worker.start()
        worker.join()
    program = "import sys, kinds_everywhere as k; k.write_found(sys.argv[1], float(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", program, f"{folder}/same host", str(timeout)], check=True)
    assert here.kept

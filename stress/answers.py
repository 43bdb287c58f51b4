"""Operators that are defined otherwise again and again, choices that are withdrawn and made anew,
registrars that others replace; and the answers that callers get meanwhile.

Every answer says which kernel gave it, and what that kernel got for ``x`` and ``by``. So the judge
(answers_judge.py) looks at answers and not at registrations.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from measure import PATIENCE, Dice

import mdispatch as md
from mdispatch import choices, errors
from mdispatch.facts import interpreter_id

#: The texts that a name has in turn. By name, ``x`` and ``by`` mean the same in each of them.
TEXTS = (
    "(int x, int by) -> int[]",
    "(int by, int x) -> int[]",
    "(int x, int by=7) -> int[]",
    "(float x, int by) -> int[]",
)
NAMES = 4
PROVIDERS = ("left", "right")
#: The providers that come first, in turn.
ORDERS = (("left", "right"), ("right", "left"))
#: What is chosen for each of so many profiles. Two choices after each other are seldom the same.
PROFILES, CANDIDATES = 4, list(range(200))

#: A call: the pid of the registrar; its name, path, begin, end, x and by; the text, provider, x
#: and by of its answer.
CALL = struct.Struct("<IBBQQhhbbhh")
#: Where a registry's stat() has the registrar.
MAIN_PID = 7
PATHS = ("position", "name", "default", "handle", "packet", "pickle", "torch", "route")
#: The paths by which a caller goes on with an operator that it has found before.
HOLDING = ("handle", "packet", "pickle")

#: The errors that a call may raise while its operator changes, and those of single paths.
REFUSALS = (errors.OperatorNotFoundError, errors.OperatorGoneError, errors.MissingKernelError)
REFUSALS_BY = {
    "default": (errors.ArgumentError,),  # a text without a default
    "pickle": (errors.SchemaMismatchError,),
    "torch": (AttributeError,),  # PyTorch's, until it is exported
    "route": (errors.OwnerGoneError, errors.ArgumentError),  # a text that changes on the way
}
#: What may be raised when nobody has the registry: between a registrar and its successor.
NOBODY = (errors.RegistrarGoneError, errors.RegistryNotFoundError, errors.RegistryClosedError)


def kernel(text: int, provider: int) -> Callable[..., list[int]]:
    """A kernel for one of the texts, in whose order it gets its arguments."""
    if text == 1:
        return lambda by, x: [text, provider, int(x), int(by)]
    return lambda x, by: [text, provider, int(x), int(by)]


def register(library: md.Library, name: str, text: int, serve: bool | str = False) -> None:
    """What a module does for a name, in the version that has this text."""
    library.define(f"{name}{TEXTS[text]}")
    for number, provider in enumerate(PROVIDERS):
        library.impl(name, kernel(text, number), provider=provider, serve=serve)


class Log:
    """A file of lines. What was written is there, also after a SIGKILL."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)
        self.close = self._file.close

    def note(self, *words: object) -> None:
        self._file.write((" ".join(map(str, words)) + "\n").encode())


class Changes:
    """The registrar's part: a thread that defines each name otherwise for ever. It writes down
    what it does, with the time, into a file that has its pid for a name:

        define NAME TEXT, defined NAME      before, and when the kernels are there as well
        close NAME, closed NAME             before and after the end of these
        order NUMBER, ordered NUMBER        before and after a priority is set
        unordered NUMBER                    after its end
    """

    def __init__(
        self, registry: md.Registry, namespace: str, seed: int, pause_ms: int, history: str
    ) -> None:
        self.registry, self.namespace = registry, namespace
        self.dice, self.pause_ms = Dice(seed), pause_ms
        self.counts = {"rounds": 0, "definitions": 0}
        self.failed = ""
        self._stop = threading.Event()
        self._log = Log(Path(history, str(os.getpid())))
        self.thread = threading.Thread(target=self._run, name=f"changes {namespace}")
        self.thread.start()

    def _run(self) -> None:
        try:
            self._go_on()
        except md.errors.RegistryClosedError:
            pass  # the registrar leaves
        except BaseException:
            self.failed = traceback.format_exc()

    def _go_on(self) -> None:
        there: dict[int, md.Library] = {}
        order: tuple[int, md.PriorityHandle] | None = None
        while not self._stop.is_set():
            name, text = self.dice.below(NAMES), self.dice.below(len(TEXTS))
            if name in there:
                self._end(name, there.pop(name))
            self._note("define", name, text)
            there[name] = md.Library(self.namespace, "FRAGMENT", registry=self.registry)
            register(there[name], f"f{name}", text, serve="host")
            self._note("defined", name)
            self.counts["definitions"] += 1
            if not self.dice.below(4):
                before, order = order, self._ordered()
                self._end_order(before)
            self._stop.wait(self.dice.below(self.pause_ms * 1000 + 1) / 1e6)
            self.counts["rounds"] += 1
        for name, library in there.items():
            self._end(name, library)
        self._end_order(order)

    def _ordered(self) -> tuple[int, md.PriorityHandle]:
        number, pattern = self.dice.below(len(ORDERS)), f"{self.namespace}::*"
        self._note("order", number)
        handle = md.set_priority(pattern, ORDERS[number], registry=self.registry)
        self._note("ordered", number)
        return number, handle

    def _end_order(self, order: tuple[int, md.PriorityHandle] | None) -> None:
        if order is not None:
            order[1].close()
            self._note("unordered", order[0])

    def _end(self, name: int, library: md.Library) -> None:
        self._note("close", name)
        library.close()
        self._note("closed", name)

    def _note(self, *words: object) -> None:
        self._log.note(*words, time.monotonic_ns())

    def end(self) -> None:
        self._stop.set()
        self.thread.join()
        self._log.close()


class Caller:
    """A member that calls all names through its paths until it is time, registers what is there by
    now from time to time, chooses, and writes down each answer: of calls into ``file``, and the
    rest beside it, each line with the pid of the registrar:

        attached MAIN BEGAN RETURNED
        decided MAIN PROFILE VALUE TIME                   in decide(), so before the choice is there
        chosen MAIN PROFILE VALUE BEGAN RETURNED          the answer of choose()
        withdrawn MAIN PROFILE VALUE BEGAN RETURNED
    """

    def __init__(
        self,
        attach: Callable[[], md.Registry],
        namespace: str,
        seed: int,
        file: Path,
        paths: list[str],
        follows: bool,
        is_far: bool,
    ) -> None:
        """``follows``: it attaches to the successors of the registrar. ``is_far``: the registrar is
        on another host, so the members of this one serve each other, and choose for this host.
        """
        self.attach, self.namespace, self.follows = attach, namespace, follows
        self.dice, self.paths, self.is_far = Dice(seed), paths, is_far
        self.serve: bool | str = is_far and (True if interpreter_id else "host")
        self.calls, self.log = file.open("wb"), Log(notes_of(file))
        self.counts = {"answers": 0, "refused": 0, "verified": 0, "choices": 0}
        #: What it has registered, and by which text: that of its module.
        self.libraries: dict[int, md.Library] = {}
        self.texts: dict[int, int] = {}
        #: What it holds since some time, with the registrar of its registry: the older, the more
        #: can have changed.
        self.held: dict[tuple[int, str], tuple[object, int]] = {}
        #: What a call may raise by any path, and everything else. What is held of a former registry
        #: is of one that was closed.
        self.refusals: tuple[type[Exception], ...] = REFUSALS
        self.nobody: tuple[type[Exception], ...] = ()
        if follows:
            self.refusals, self.nobody = (*REFUSALS, errors.RegistryClosedError), NOBODY
        self.torch: object = None
        if "torch" in paths:
            import torch

            self.torch = torch
        self.registry: md.Registry | None = None
        while not self._attach():
            time.sleep(0.01)

    def run(self, until: int, *, registers: bool) -> dict[str, int]:
        """At least until it has got an answer, which takes long on a busy machine, within limits.
        Without ``registers`` it has no kernels, and asks those who have.
        """
        at_last = until + int(PATIENCE * 1e9)
        while (now := time.monotonic_ns()) < until or (
            now < at_last and not self.counts["answers"]
        ):
            if self.follows and not self.dice.below(20):
                self._attach()
            name = self.dice.below(NAMES)
            if registers and not self.dice.below(8):
                self._register(name, self._text_there(name))
            for path in self.dice.shuffled(self.paths):
                self._call(name, path)
            if not self.dice.below(3):
                self._choose()
        self.registry.close()
        self.calls.close()
        self.log.close()
        return self.counts

    def _attach(self) -> bool:
        """Attaches anew, and registers there what it has: the registrar may be another one, whose
        texts are others. What it holds of the former registry it still holds. False when nobody is
        there just now.
        """
        began = time.monotonic_ns()
        try:
            registry = self.attach()
        except self.nobody:
            return False
        if self.registry is not None:
            self.registry.close()
            self.libraries.clear()
        self.registry, self.main = registry, registry.dispatcher.facts.stat()[MAIN_PID]
        self._note("attached", began, time.monotonic_ns())
        for name, text in self.texts.items():
            self._register(name, text)
        return True

    def _note(self, what: str, *numbers: int) -> None:
        self.log.note(what, self.main, *numbers)

    def _register(self, name: int, text: int | None) -> None:
        """As a module that is imported, in the version that has this text."""
        if text is None:
            return
        if name in self.libraries:
            self.libraries.pop(name).close()
        try:
            library = md.Library(self.namespace, "FRAGMENT", registry=self.registry, timeout=0.0)
        except self.nobody:
            return
        try:
            register(library, f"f{name}", text, serve=self.serve)
            if self.torch is not None:
                md.torch.export(f"{self.namespace}::f{name}", registry=self.registry)
        except (errors.VerificationError, *REFUSALS, *self.nobody):
            library.close()  # the registrar has another text, or none
            return
        self.libraries[name], self.texts[name] = library, text
        self.counts["verified"] += 1

    def _text_there(self, name: int) -> int | None:
        """That of the registrar at this moment."""
        full = f"{self.namespace}::f{name}"
        for fact in self.registry.registrations(full):
            signature = fact.body.removeprefix(full)
            if signature in TEXTS:
                return TEXTS.index(signature)
        return None

    def _found(self, name: int, path: str) -> tuple[object, int]:
        """The operator by this path, mostly one that was found before; and its registrar."""
        if path in HOLDING and self.dice.below(50) and (name, path) in self.held:
            held, main = self.held[name, path]
            return pickle.loads(held) if path == "pickle" else held, main  # type: ignore[arg-type]
        ops = self.torch.ops if path == "torch" else self.registry.ops  # type: ignore[attr-defined]
        packet = getattr(getattr(ops, self.namespace), f"f{name}")
        found = packet.default if path in ("handle", "pickle") else packet
        if path in HOLDING:
            self.held[name, path] = pickle.dumps(found) if path == "pickle" else found, self.main
        return found, self.main

    def _call(self, name: int, path: str) -> None:
        x, by = self.dice.below(100), self.dice.below(100)
        for _ in range(1 + self.dice.below(20)):
            began = time.monotonic_ns()
            try:
                found, main = self._found(name, path)
                if path == "position":
                    answer = found(x, by)  # type: ignore[operator]
                elif path == "default":
                    answer = found(x=x)  # type: ignore[operator]
                elif path == "route":
                    with md.routing(self.namespace):
                        answer = found(x=x, by=by)  # type: ignore[operator]
                else:
                    answer = found(by=by, x=x)  # type: ignore[operator]
            except (*self.refusals, *REFUSALS_BY.get(path, ())):
                self.counts["refused"] += 1
                self.held.pop((name, path), None)
                return
            returned = time.monotonic_ns()
            number = PATHS.index(path)
            self.calls.write(CALL.pack(main, name, number, began, returned, x, by, *answer))
            self.counts["answers"] += 1

    def _choose(self) -> None:
        """Asks for a choice, and withdraws what it finds now and then."""
        profile, operator = self.dice.below(PROFILES), f"{self.namespace}::tile"

        def decide() -> int:
            value = self.dice.below(len(CANDIDATES))
            self._note("decided", profile, value, time.monotonic_ns())
            return value

        scope = "host" if self.is_far else "registry"
        more = {"timeout": PATIENCE, "scope": scope, "registry": self.registry}
        for _ in range(1 + self.dice.below(20)):
            began = time.monotonic_ns()
            try:
                value = md.choose(operator, profile, CANDIDATES, decide, **more)
            except self.nobody:
                return
            self._note("chosen", profile, value, began, time.monotonic_ns())
            self.counts["choices"] += 1
        if self.dice.below(8):
            return
        for each in choices.made(operator, registry=self.registry):
            began = time.monotonic_ns()
            if each.profile == profile and choices.withdraw(each, registry=self.registry):
                self._note("withdrawn", profile, each.value, began, time.monotonic_ns())


def notes_of(file: Path) -> Path:
    """What a Caller writes beside its calls."""
    return file.with_suffix(".notes")

"""What the victims of kill_python.py do with a registry until they are killed.

Runs in main interpreters and in sub-interpreters: nothing is imported here but mdispatch and what
every interpreter has. Each victim writes down what it does, one line and one system call each, so
that the lines of the dead are there and whole: `word name numbers...`.

    begun NAME                  a definition of the registrar, before the call
    defined NAME BEGAN RETURNED the same, after it
    refused NAME                a definition for which there was no room, say: it is not there
    closing, closed NAMESPACE   the end of a library with all that it has defined, before and after
    waited OUTCOME BEGAN CAME RETURNED QUEUED   times in ns; CAME is 0 where the killer knows it
    missing                     no registry of that name: right when the registrar has left
    failed TEXT                 what must not be

A definition says when it began in the default of one of its arguments: so whoever has waited for it
knows its own delay.
"""

from __future__ import annotations

import os
import time
import traceback

from measure import Dice, queued_ns, queued_since

import mdispatch as md

NAMESPACES = 3
OPERATORS = 8
STABLE = "stable::f"


class Diary:
    """The lines of one victim."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def run(self, body, *args) -> None:
        """Whatever a body raises, other than that the registrar is gone, is a failure."""
        try:
            body(self, *args)
        except (md.errors.RegistrarGoneError, md.errors.RegistryClosedError):
            self.write("ended")
        except md.errors.RegistryNotFoundError:
            self.write("missing")
        except BaseException:
            self.write("failed", traceback.format_exc().replace("\n", " | "))


class Tensor:
    """A value with a dispatch key."""

    __dispatch_keys__ = "CPU"


def scale(x):
    return x


# --- the registrar ------------------------------------------------------------------------------


def define_stable(registry: md.Registry) -> md.Library:
    """What workers verify and call: the same text and location in every interpreter."""
    library = md.Library("stable", "FRAGMENT", registry=registry, timeout=5.0)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", scale, "CPU")
    return library


def churn(
    diary: Diary,
    registry: md.Registry,
    number: int,
    seed: int,
    refusals: tuple[type[BaseException], ...] = (),
) -> None:
    """Defines and closes a namespace's operators for ever. ``refusals`` are the errors that a
    definition may meet; then it is not there.
    """
    dice = Dice(seed)
    namespace = f"k{number}"
    while True:
        library = md.Library(namespace, "DEF", registry=registry)
        for i in range(OPERATORS):
            if dice.below(3) == 0:
                continue
            name = f"{namespace}::f{i}"
            diary.write("begun", name)
            began = time.monotonic_ns()
            try:
                library.define(f"f{i}(Tensor x, int began={began}) -> Tensor")
            except refusals:
                diary.write("refused", name)
                continue
            diary.write("defined", name, began, time.monotonic_ns())
            library.impl(f"f{i}", lambda x, began: began, "CPU")
        time.sleep(dice.below(5) / 1000)  # what is there at once is waited for by nobody
        diary.write("closing", namespace)
        library.close()
        diary.write("closed", namespace)
        time.sleep(dice.below(5) / 1000)


# --- the others -----------------------------------------------------------------------------------


def wait(diary: Diary, registry: md.Registry, seed: int) -> None:
    """Waits for what comes and goes, until the registrar is gone."""
    dice = Dice(seed)
    while True:
        timeout = None if dice.below(3) == 0 else dice.below(20) / 1000
        name = f"k{dice.below(NAMESPACES)}::f{dice.below(OPERATORS)}"
        if dice.below(8) == 0:
            name, timeout = "never::comes", dice.below(20) / 1000
        queued, began = queued_ns(), time.monotonic_ns()
        came, gone = 0, None
        try:
            found = md.wait_for_def(name, timeout, registry=registry)
            outcome = "fact"
            came = int(found.body.partition("began=")[2].partition(")")[0])
        except md.errors.NotRegisteredError:
            outcome, came = "deadline", began + int(timeout * 1e9)
        except md.errors.RegistrarGoneError as error:
            outcome, gone = "killed", error
        except md.errors.RegistryClosedError as error:
            outcome, gone = "left", error
        returned = time.monotonic_ns()
        diary.write("waited", outcome, began, came, returned, queued_since(queued))
        if gone is not None:
            raise gone


def verify(diary: Diary, registry: md.Registry, seed: int) -> None:
    """Verifies what stays, calls it, calls what comes and goes, until the registrar is gone."""
    dice = Dice(seed)
    value = Tensor()
    while True:
        library = define_stable(registry)
        for _ in range(dice.below(20)):
            if registry.ops.stable.f(value) is not value:
                diary.write("failed", "a call gave another answer")
        namespace = getattr(registry.ops, f"k{dice.below(NAMESPACES)}")
        try:
            getattr(namespace, f"f{dice.below(OPERATORS)}")(value)
            diary.write("failed", "a kernel that is not here was called")
        except (
            md.errors.OperatorNotFoundError,
            md.errors.OperatorGoneError,
            md.errors.MissingKernelError,
        ):
            pass
        library.close()
        try:
            md.wait_for_def("never::comes", 0.001, registry=registry)
        except md.errors.NotRegisteredError:
            diary.write("verified")


def attach(diary: Diary, name: str, seed: int) -> None:
    """Attaches by name, looks, closes, until the registrar is gone."""
    while True:
        with md.Registry.attach(name, timeout=0) as registry:
            registry.operators()
            try:
                md.wait_for_def("never::comes", 0, registry=registry)
            except md.errors.NotRegisteredError:
                diary.write("attached")


def listen(diary: Diary, registry: md.Registry) -> None:
    """Hears of all definitions, until the registrar is gone."""

    class Listener:
        def on_operator_registered(self, registration: md.Registration) -> None:
            if registration.name.startswith("k"):
                came = int(registration.body.partition("began=")[2].partition(")")[0])
                diary.write("heard", came, time.monotonic_ns())

        def on_registry_gone(self, error: md.errors.RegistryError) -> None:
            gone.release()

    from _thread import allocate_lock

    gone = allocate_lock()
    gone.acquire()
    with registry.add_listener(Listener(), everywhere=True):
        gone.acquire()
    diary.write("ended")


LOOPS = {"wait": wait, "verify": verify}


def loop(what: str, name: str, path: str, seed: int) -> None:
    """One loop in an interpreter that has no registry open yet."""

    def body(diary: Diary) -> None:
        if what == "attach":
            attach(diary, name, seed)
        with md.Registry.attach(name, timeout=0) as registry:
            LOOPS[what](diary, registry, seed)

    Diary(path).run(body)

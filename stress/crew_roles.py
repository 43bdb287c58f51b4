"""What a member of the crew does: in a thread, in a sub-interpreter or in a process of its own.

It reads lines of words from one pipe and writes lines to another, which all of a crew share (a line
shorter than PIPE_BUF comes whole): `NUMBER WORD MORE...`.

    ready                                    what follows may block
    done ERROR BEGAN RETURNED QUEUED MORE    how it ended: the class of what it raised, or "ok"
    failed TEXT                              what must not be

Roles that go on by themselves report each wait that was `late`, then `count`, `times` and `end`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback

from measure import ALLOWED_NS, Dice, Figures, queued_ns, queued_since

import mdispatch as md
from mdispatch.facts import interpreter_id

GONE = (md.errors.OperatorNotFoundError, md.errors.OperatorGoneError, md.errors.MissingKernelError)


class Tensor:
    """A value with a dispatch key."""

    __dispatch_keys__ = "CPU"


class Channel:
    """The two pipes of one member of the crew."""

    def __init__(self, number: int, read: int, write: int) -> None:
        self._number = number
        self._read = read
        self._write = write
        self._left = b""

    def say(self, *words: object) -> None:
        text = " ".join(map(str, (self._number, *words)))
        os.write(self._write, text.encode()[:4000].replace(b"\n", b"\r") + b"\n")

    def hear(self) -> list[str]:
        """The words of the next line; none at the end."""
        while b"\n" not in self._left:
            more = os.read(self._read, 4096)
            if not more:
                return []
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return line.decode().split(" ")


def seconds(text: str) -> float | None:
    return None if text == "none" else float(text)


def came_of(registration: md.Registration) -> int:
    """When a definition began that says so."""
    return int(registration.body.partition("began=")[2].partition(")")[0])


# --- as told --------------------------------------------------------------------------------------


class Obedient:
    """Does one thing for each line, and says how it went."""

    def __init__(self, channel: Channel, address: str) -> None:
        self.channel = channel
        self.address = address
        self.registry: md.Registry | None = None

    def run(self) -> None:
        while words := self.channel.hear():
            queued = queued_ns()
            self.channel.say("ready")
            began = time.monotonic_ns()
            more: object = ""
            try:
                more = getattr(self, words[0])(*words[1:])
                ended = "ok"
            except md.MdispatchError as error:
                ended, more = type(error).__name__, getattr(error, "pid", "")
            returned = time.monotonic_ns()
            self.channel.say("done", ended, began, returned, queued_since(queued), more)
        if self.registry is not None:
            self.registry.close()

    def there(self) -> md.Registry:
        if self.registry is None:
            self.registry = md.Registry.attach(self.address)
        return self.registry

    def attach(self, address: str, timeout: str) -> None:
        """Another registry from now on."""
        if self.registry is not None:
            self.registry.close()
            self.registry = None
        self.registry = md.Registry.attach(address, timeout=seconds(timeout))

    def wait(self, name: str, timeout: str) -> int:
        found = md.wait_for_def(name, seconds(timeout), registry=self.there())
        return came_of(found) if "began=" in found.body else 0

    def verify(self, namespace: str, timeout: str, variant: str) -> str:
        """Verifies three operators and calls one; a variant differs from the registrar's."""
        registry = self.there()
        schema = "f(Tensor x, int y=3) -> Tensor"
        wrong = {"schema": "f(Tensor x, int y=4) -> Tensor", "name": "ff(Tensor x) -> Tensor"}
        if variant == "namespace":
            namespace = "nobody_" + namespace
        value = Tensor()
        library = None
        try:
            library = md.Library(namespace, "DEF", registry=registry, timeout=seconds(timeout))
            library.define(wrong.get(variant, schema))
            library.impl("f", lambda x, y: x, "CUDA" if variant == "key" else "CPU")
            for other in ("g", "h"):
                library.define(f"{other}(Tensor x) -> Tensor")
                library.impl(other, lambda x: x, "CPU")
            operators = getattr(registry.ops, namespace)
            if operators.f(value) is not value or operators.g(value) is not value:
                raise RuntimeError("a call gave another answer")
        except md.MdispatchError as error:
            # What did not verify is not called: there is no kernel of this interpreter.
            try:
                getattr(registry.ops, namespace).f(value)
            except GONE:
                raise error from None
            raise RuntimeError("what did not verify was called") from error
        finally:
            if library is not None:
                library.close()
        return ""


# --- by themselves, until the time is up ----------------------------------------------------------


class Restless:
    """Goes on until ``until`` (the clock's time in ns) and reports its figures."""

    def __init__(self, channel: Channel, address: str, seed: int, until: int, words: str) -> None:
        self.channel = channel
        self.address = address
        self.dice = Dice(seed)
        self.until = until
        self.words = words.split(",")
        self.figures = Figures()
        #: Whether this interpreter has no other part.
        self.is_alone = __name__ == "__main__" or interpreter_id != 0

    def run(self, what: str) -> None:
        getattr(self, what)()
        for each, number in self.figures.counts.items():
            self.channel.say("count", each, number)
        for each, histogram in self.figures.latencies.items():
            self.channel.say("times", each.replace(" ", "_"), histogram.as_text())
        self.channel.say("end")

    def going(self) -> bool:
        return time.monotonic_ns() < self.until

    def pick(self) -> str:
        """An operator that comes and goes: of one of the namespaces in ``words``."""
        return f"{self.words[self.dice.below(len(self.words))]}::f{self.dice.below(8)}"

    def note(self, title: str, end: int, came: int, queued: dict[str, int]) -> None:
        self.figures.count("operations")
        self.figures.latency(title, end - came)
        if end - came > ALLOWED_NS:
            missing = queued_since(queued)
            self.figures.count("late by the clock")
            if end - came - missing > ALLOWED_NS:
                self.channel.say("late", title.replace(" ", "_"), end, came, missing)

    def wait(self) -> None:
        """Waits for what comes and goes."""
        with md.Registry.attach(self.address) as registry:
            while self.going():
                timeout = self.dice.below(50) / 1000
                queued, began = queued_ns(), time.monotonic_ns()
                try:
                    found = md.wait_for_def(self.pick(), timeout, registry=registry)
                    came = max(began, came_of(found))
                    self.note("define to waiter", time.monotonic_ns(), came, queued)
                except md.errors.NotRegisteredError:
                    end = time.monotonic_ns()
                    self.note("deadline to return", end, began + int(timeout * 1e9), queued)

    def call(self) -> None:
        """Calls what comes and goes: there is no kernel of this interpreter, ever."""
        with md.Registry.attach(self.address) as registry:
            while self.going():
                namespace, _, name = self.pick().partition("::")
                try:
                    getattr(getattr(registry.ops, namespace), name)(Tensor())
                except GONE:
                    self.figures.count("operations")
                else:
                    self.channel.say("failed", "a kernel that is not here was called")
                registry.operators()

    def attach(self) -> None:
        """Attaches, looks, closes."""
        while self.going():
            with md.Registry.attach(self.address, timeout=0) as registry:
                registry.operators()
                registry.dangling_implementations()
            self.figures.count("operations")

    def verify(self) -> None:
        """Verifies what comes and goes with what is there at this moment: it is right or gone."""
        with md.Registry.attach(self.address) as registry:
            while self.going():
                name = self.pick()
                there = [f for f in registry.registrations(name) if "began=" in f.body]
                if not there:
                    continue
                library = md.Library(name.partition("::")[0], "FRAGMENT", registry=registry)
                library.timeout = 0
                try:
                    library.define(there[0].body)
                    self.figures.count("verified")
                except (md.errors.NotRegisteredError, md.errors.SchemaMismatchError):
                    pass  # it went, or another came in its place
                library.close()
                self.figures.count("operations")

    def close_while_waiting(self) -> None:
        """Closes a registry that another thread of this interpreter waits in."""
        from _thread import allocate_lock
        from threading import Thread

        def wait_in(registry: md.Registry) -> None:
            ended = ""
            try:
                begun.release()
                md.wait_for_def("never::comes", None, registry=registry)
            except md.MdispatchError as error:
                ended = type(error).__name__
            ends.append((time.monotonic_ns(), ended))

        while self.going():
            begun, ends = allocate_lock(), []
            begun.acquire()
            queued = queued_ns()
            registry = md.Registry.attach(self.address)
            thread = Thread(target=wait_in, args=(registry,))
            thread.start()
            begun.acquire()
            for _ in range(self.dice.below(4)):  # before the wait, at its beginning, in it
                time.sleep(self.dice.below(300) / 1e6)
            came = time.monotonic_ns()
            registry.close()
            thread.join()  # who ends an interpreter before its threads aborts the process
            self.note("close to waiter", ends[0][0], came, queued)
            if ends[0][1] != "RegistryClosedError":
                self.channel.say("failed", f"a wait in a closed registry: {ends[0][1]}")

    def answer(self, *, registers: bool = True) -> None:
        """Calls what is defined otherwise again and again, and writes down the answers."""
        from pathlib import Path

        from answers import PATHS, Caller

        namespace, file, *how = self.words
        has_default = self.is_alone and "follow" not in how
        if has_default:  # what is pickled is of the default registry
            os.environ["MDISPATCH_REGISTRY"] = self.address
        attach = functools.partial(md.Registry.attach, self.address, timeout=0.0)
        without = {"pickle"} if not has_default else set()
        if "torch" not in how:
            without.add("torch")
        caller = Caller(
            md.default_registry if has_default else attach,
            namespace,
            self.dice.below(1 << 30),
            Path(file),
            [path for path in PATHS[:-1] if path not in without] if registers else ["route"],
            "follow" in how,
            "far" in how,
        )
        self.channel.say("ready")
        until = int(self.channel.hear()[0])
        counts = caller.run(until, registers=registers)
        for name, number in counts.items():
            self.figures.count(name, number)

    def answer_in_child(self) -> None:
        """The same in the child of a fork."""
        child = os.fork()
        if not child:
            status = 1
            try:
                self.answer()
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status:
            self.channel.say("failed", "the child ended with", status)

    def ask(self) -> None:
        """The same without kernels: the registrar answers."""
        self.answer(registers=False)

    def listen(self) -> None:
        """Hears of all definitions. What it believes is there at the end must be what is there."""
        told: dict[str, int] = {}
        listener = Listener(self, told)
        with md.Registry.attach(self.address) as registry:
            with registry.add_listener(listener, everywhere=True):
                while self.going():
                    time.sleep(0.005)
                self.channel.say("ready")  # now the registrar does no more
                self.channel.hear()
                end = time.monotonic() + 30
                while set(told) != (there := self._there(registry)) and time.monotonic() < end:
                    time.sleep(0.001)
            if set(told) != there:
                self.channel.say("failed", f"heard of {sorted(told)}, there are {sorted(there)}")

    def _there(self, registry: md.Registry) -> set[str]:
        return {n for n in registry.operators() if n.partition("::")[0] in self.words}


class Listener:
    """Keeps what is there by what it is told."""

    def __init__(self, role: Restless, told: dict[str, int]) -> None:
        self.role = role
        self.told = told
        self.heard = 0

    def on_operator_registered(self, registration: md.Registration) -> None:
        if registration.name.partition("::")[0] not in self.role.words:
            return
        if registration.name in self.told:
            self.role.channel.say("failed", f"told of {registration.name} twice")
        self.told[registration.name] = registration.seq
        self.role.figures.count("operations")
        self.role.figures.latency("define to listener", time.monotonic_ns() - came_of(registration))
        self.heard += 1
        if self.heard % 500 == 0:
            time.sleep(0.005)  # a slow one: nobody but itself waits for it

    def on_operator_deregistered(self, registration: md.Registration) -> None:
        if registration.name.partition("::")[0] not in self.role.words:
            return
        if self.told.pop(registration.name, 0) != registration.seq:
            self.role.channel.say("failed", f"told of an end of {registration.name}, not a begin")
        self.role.figures.count("operations")


def run(what: str, number: int, address: str, read: int, write: int, *more: object) -> None:
    """One member of the crew, from its beginning to its end."""
    channel = Channel(number, read, write)
    try:
        if what == "obey":
            Obedient(channel, address).run()
        else:
            Restless(channel, address, *more).run(what)
    except BaseException:
        channel.say("failed", traceback.format_exc().strip())
    finally:
        os.close(read)


if __name__ == "__main__":  # as a process of its own
    role, *arguments = sys.argv[1:]
    number, address, read, write, *more = arguments
    extra = [int(each) if each.isdigit() else each for each in more]
    run(role, int(number), address, int(read), int(write), *extra)

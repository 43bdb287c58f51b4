"""A registrar: a process that creates a registry and registers in it what it is told to.

    python stress/registrar.py NAME CAPACITY SOCKET

NAME is that of the registry, or the address of a cluster, which the process then leads.

One of them serves the whole run: the process that controls the tests starts it, all of them tell
it over a socket what they need. So the one member that may register is nobody's test process: it
has no event loop of pytest-xdist beside it, can be looked at alone, and many scenarios at once make
it work in many threads. Scenarios that kill the registrar, fill the registry or close it start
one of their own.

A line of JSON is a request, another one its answer; each connection has a thread and libraries of
its own, which end with it. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback

from answers import Changes
from measure import Dice

import mdispatch as md


class Churn:
    """A thread that defines and closes the operators of a namespace for ever, as fast as it can
    but for short pauses: what is gone at once is waited for by nobody.
    """

    def __init__(
        self, registry: md.Registry, namespace: str, operators: int, seed: int, pause_ms: int
    ) -> None:
        self.registry = registry
        self.namespace = namespace
        self.operators = operators
        self.dice = Dice(seed)
        self.pause_ms = pause_ms
        self.counts = {"rounds": 0, "definitions": 0}
        self.returned: dict[int, int] = {}  # of each definition, by the time it began
        self.failed = ""
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"churn {namespace}")
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except md.errors.RegistryClosedError:
            pass  # the registrar leaves
        except BaseException:
            self.failed = traceback.format_exc()

    def _turn(self) -> None:
        library = md.Library(self.namespace, "DEF", registry=self.registry)
        for i in self.dice.shuffled(list(range(self.operators))):
            if self.dice.below(3) == 0:
                continue
            began = time.monotonic_ns()
            library.define(f"f{i}(Tensor x, int began={began}) -> Tensor")
            self.returned[began] = time.monotonic_ns()
            library.impl(f"f{i}", lambda x, began: began, "CPU")
            self.counts["definitions"] += 1
        while len(self.returned) > 200_000:
            self.returned.pop(next(iter(self.returned)))
        self._stop.wait(self.dice.below(self.pause_ms + 1) / 1000)
        library.close()
        self.counts["rounds"] += 1
        self._stop.wait(self.dice.below(self.pause_ms + 1) / 1000)

    def end(self) -> None:
        self._stop.set()
        self.thread.join()


class Client:
    """One connection. A method ``do_x`` answers the request ``x``; what it raises is told."""

    def __init__(self, registry: md.Registry, connection: socket.socket) -> None:
        self.registry = registry
        self.connection = connection
        self.libraries: dict[str, md.Library] = {}
        self.churns: dict[str, Churn | Changes] = {}

    def serve(self) -> None:
        with self.connection, self.connection.makefile("rw") as stream:
            for line in stream:
                request = json.loads(line)
                try:
                    answer = getattr(self, "do_" + request.pop("do"))(**request)
                except Exception as error:
                    text = traceback.format_exc()
                    answer = {"error": type(error).__name__, "text": text}
                try:
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
                except OSError:
                    break
            for churn in self.churns.values():
                churn.end()
            for library in self.libraries.values():
                library.close()

    def do_open(self, namespace: str) -> dict:
        self.libraries[namespace] = md.Library(namespace, "DEF", registry=self.registry)
        return {}

    def do_define(self, namespace: str, schemas: list[str], key: str = "CPU") -> dict:
        """Definitions and kernels; {AT} in a schema becomes the time. [began, returned] of each."""
        library, times = self.libraries[namespace], {}
        for schema in schemas:
            began = time.monotonic_ns()
            library.define(schema.replace("{AT}", str(began)))
            name = schema.partition("(")[0]
            times[name] = [began, time.monotonic_ns()]
            if key:
                library.impl(name, lambda x, *more: x, key)
        return {"times": times}

    def do_close(self, namespace: str) -> dict:
        began = time.monotonic_ns()
        self.libraries.pop(namespace).close()
        return {"times": [began, time.monotonic_ns()]}

    def do_churn(self, namespace: str, operators: int, seed: int, pause_ms: int) -> dict:
        self.churns[namespace] = Churn(self.registry, namespace, operators, seed, pause_ms)
        return {}

    def do_change(self, namespace: str, seed: int, pause_ms: int, history: str) -> dict:
        """As ``churn``: definitions, kernels and priorities that change (answers.py), which are
        written down in the folder ``history``.
        """
        self.churns[namespace] = Changes(self.registry, namespace, seed, pause_ms, history)
        return {}

    def do_stop(self, namespace: str) -> dict:
        """Ends a churn, or changes; nothing of it is left."""
        churn = self.churns.pop(namespace)
        churn.end()
        if churn.failed:
            raise RuntimeError(churn.failed)
        return churn.counts

    def do_returned(self, began: int) -> dict:
        """When the definition returned that began then; 0 for one that is not known (any more)."""
        churns = (each for each in self.churns.values() if isinstance(each, Churn))
        found = (churn.returned.get(began, 0) for churn in churns)
        return {"returned": max(found, default=0)}

    def do_fill(self, namespace: str, limit: int) -> dict:
        """Defines until the registry is full, and returns how many there were."""
        for i in range(limit):
            try:
                self.libraries[namespace].define(f"g{i:05}(Tensor x) -> Tensor")
            except md.errors.RegistryFullError:
                break
        else:
            raise RuntimeError(f"{limit} definitions did not fill the registry")
        there = self.do_operators(namespace)["operators"]
        if there != [f"{namespace}::g{each:05}" for each in range(i)]:
            raise RuntimeError(f"{i} definitions were acknowledged, there are {there}")
        return {"defined": i}

    def do_check(self) -> dict:
        self.registry.check_invariants()
        return {}

    def do_operators(self, namespace: str) -> dict:
        names = [n for n in self.registry.operators() if n.startswith(namespace + "::")]
        return {"operators": names}

    def do_members(self) -> dict:
        """How many members each process has."""
        found: dict[int, int] = {}
        for _, pid, *_ in self.registry.dispatcher.facts.members():
            found[pid] = found.get(pid, 0) + 1
        return {"of": found}

    def do_stat(self) -> dict:
        names = ("capacity", "committed", "used", "facts", "names", "seq", "recoveries")
        names += ("registrar_pid", "registrar_state", "processes", "members", "policy", "idle")
        names += ("made",)
        return dict(zip(names, self.registry.dispatcher.facts.stat(), strict=True))


def main(name: str, capacity: str, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(256)
        if name.startswith("cluster:"):
            os.environ["MDISPATCH_REGISTRY"] = name
            registry = md.default_registry()
        else:
            registry = md.Registry.create(name or None, capacity=int(capacity))
        print(registry.address, flush=True)

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=Client(registry, connection).serve, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.buffer.read()
        registry.close()
        os._exit(0)  # whoever is still connected finds out by that


if __name__ == "__main__":
    main(*sys.argv[1:])

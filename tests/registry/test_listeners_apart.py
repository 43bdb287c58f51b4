"""Listeners in several interpreters and processes, with their ends and forks."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from kinds import INTERPRETERS, KINDS, run_main
from patience import limit

HEARING = """
import threading
import mdispatch as md
from mdispatch.facts.listeners import Listeners

class Hearing:
    def __init__(self):
        self.heard, self.gone = [], []
        self.enough, self.ended = threading.Event(), threading.Event()
    def on_operator_registered(self, fact):
        self.note("+" + fact.name)
    def on_operator_deregistered(self, fact):
        self.note("-" + fact.name)
    def note(self, name):
        self.heard.append(name)
        if name == "+a::last":
            self.enough.set()
    def on_registry_gone(self, error):
        import time
        self.gone.append((type(error).__name__, getattr(error, "pid", 0), time.monotonic()))
        self.ended.set()

listeners = Listeners(md.default_registry().dispatcher.facts)
hearing = Hearing()
handle = listeners.add(hearing, everywhere=True)
before = list(hearing.heard)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_every_kind_hear_what_the_main_interpreter_defines(kind, tmp_path) -> None:
    text = (
        HEARING + "arrived(1)\nassert hearing.enough.wait(limit(60))\nhandle.close()\n"
        "report(before=before, heard=hearing.heard, gone=hearing.gone)"
    )
    got = run_main(
        """
        kind, text, folder = args
        md.default_registry()
        lib = md.Library("a", "DEF")
        lib.define("f() -> ()")
        workers = start(kind, text, 3, Path(folder))
        until_arrived(workers, 1)
        lib.define("g(Tensor x) -> Tensor")
        lib.impl("g", len, "CPU")
        lib.define("last() -> ()")
        done(heard=results(workers), check=md.default_registry().dispatcher.facts.check())
        """,
        kind,
        text,
        str(tmp_path),
    )
    assert got["check"] == ""
    for worker in got["heard"]:
        assert worker["before"] == ["+a::f"]
        assert worker["heard"] == ["+a::f", "+a::g", "+a::last"]
        assert worker["gone"] == []


@pytest.mark.waits
@pytest.mark.parametrize("how", [signal.SIGKILL, 0], ids=["killed", "left"])
@pytest.mark.parametrize("kind", ["fork", "spawn", "subprocess"])
def test_the_end_of_the_registrar_is_heard_after_all_that_it_defined(kind, how, tmp_path) -> None:
    text = (
        HEARING + "arrived(1)\nassert hearing.ended.wait(limit(60))\nhandle._watch._thread.join()\n"
        "report(heard=hearing.heard, gone=hearing.gone, closed=handle.closed)"
    )
    got = run_main(
        """
        kind, text, folder, how = args
        read, write = os.pipe()
        registrar_pid = os.fork()
        if registrar_pid == 0:
            lib = md.Library("a", "DEF")
            lib.define("f() -> ()")
            workers = start(kind, text, 3, Path(folder))
            until_arrived(workers, 1)
            lib.define("last() -> ()")
            os.write(write, b"x")
            if not how:
                md.default_registry().close()
                os._exit(0)
            signal.pause()
        assert os.read(read, 1) == b"x"
        ended = time.monotonic()
        if how:
            os.kill(registrar_pid, how)
        os.waitpid(registrar_pid, 0)
        until(lambda: all((Path(folder) / str(i)).exists() for i in range(3)))
        heard = [eval((Path(folder) / str(i)).read_text()) for i in range(3)]
        done(main=registrar_pid, heard=heard, ended=ended)
        """,
        kind,
        text,
        str(tmp_path),
        int(how),
    )
    for worker in got["heard"]:
        assert worker["heard"] == ["+a::f", "+a::last"]
        assert worker["closed"]
        ((error, pid, at),) = worker["gone"]
        if how:
            assert (error, pid) == ("RegistrarGoneError", got["main"])
            assert at - got["ended"] < limit(30)  # a loaded machine may be slow to run us
        else:
            assert error == "RegistryClosedError"


def test_a_process_exits_at_once_with_a_listener_for_everywhere_open() -> None:
    began = time.monotonic()
    got = run_main(
        HEARING.replace("Hearing()", "Hearing()\nhearing.on_registry_gone = print")
        + "done(end='reached')",
        timeout=30,
    )
    assert got["end"] == "reached"
    assert time.monotonic() - began < limit(30)
    assert [line for line in got["stdout"].splitlines() if not line.startswith("DONE")] == []


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="3.11 ends no interpreter that has another thread"
)
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_ends_at_once_with_a_listener_for_everywhere_open(kind) -> None:
    got = run_main(
        """
        kind, text = args
        registry = md.default_registry()
        interpreter = md.create_interpreter(own_gil=kind == "own-gil")
        interpreter.exec(text)
        until(lambda: any(m[4] for m in registry.dispatcher.facts.members()))
        interpreter.close()
        done(members=len(registry.dispatcher.facts.members()))
        """,
        kind,
        HEARING,
        timeout=30,
    )
    assert got["members"] == 1


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_can_be_ended_as_soon_as_its_handles_are_closed(kind) -> None:
    got = run_main(
        """
        kind, text = args
        registry = md.default_registry()
        for _ in range(5):
            interpreter = md.create_interpreter(own_gil=kind == "own-gil")
            interpreter.exec(text)
            interpreter.close()
        done(members=len(registry.dispatcher.facts.members()))
        """,
        kind,
        HEARING + "listeners.close()",
        timeout=30,
    )
    assert got["members"] == 1


def test_no_listener_for_everywhere_is_added_after_the_shutdown_began() -> None:
    got = run_main(
        """
        import atexit, threading
        from mdispatch.facts.listeners import Listeners
        listeners = Listeners(md.default_registry().dispatcher.facts)
        listeners.add(Heard := type("L", (), {"on_operator_registered": print})(), everywhere=True)
        def late():
            try:
                listeners.add(Heard, everywhere=True)
            except md.errors.WaitCancelledError:
                print("REFUSED", threading.active_count(), flush=True)
        atexit.register(late)
        done(end="reached")
        """,
        timeout=30,
    )
    assert "REFUSED 1" in got["stdout"]


@pytest.mark.shared
def test_in_the_child_of_a_fork_all_handles_are_closed_and_new_ones_can_be_added() -> None:
    got = run_main(
        """
        import threading, warnings
        from mdispatch.facts.listeners import Listeners
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        registry = md.default_registry()
        listeners = Listeners(registry.dispatcher.facts)
        registry.dispatcher.facts.after_fork = listeners.forked
        class Hearing:
            def __init__(self, then=None):
                self.heard, self.then = [], then
            def on_operator_registered(self, fact):
                self.heard.append(fact.name)
                if self.then is not None:
                    self.then(fact.name)
        def define(name, inside=lambda: None):
            def commit():
                inside()
                return registry.dispatcher.facts.register(2, 0, name, "", "")
            return listeners.registered(commit)

        # One thread is in a listener, another one holds the lock, a third watches: none of them
        # comes along.
        told, go = threading.Event(), threading.Event()
        def hold(name):
            told.set()
            go.wait(limit(60))
        here, there = Hearing(hold), Hearing()
        handles = [listeners.add(here), listeners.add(there, everywhere=True)]
        threads = [threading.Thread(target=define, args=("s::f",))]
        threads[0].start()
        told.wait(limit(60))
        locked = threading.Event()
        def inside():
            locked.set()
            go.wait(limit(60))
        threads.append(threading.Thread(target=define, args=("s::g", inside)))
        threads[1].start()
        locked.wait(limit(60))
        until(lambda: there.heard == ["s::f"])

        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            closed = [handle.closed for handle in handles]
            for handle in handles:
                handle.close()
            mine = Hearing()
            with listeners.add(mine), listeners.add(Hearing(), everywhere=True):
                fact = registry.dispatcher.facts.find(2, 0, "s::f")
                listeners.removed(fact, lambda: registry.dispatcher.facts.remove(fact))
                listeners.registered(lambda: fact)
            os.write(write, repr((closed, mine.heard, here.heard, there.heard)).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        go.set()
        for thread in threads:
            thread.join()
        until(lambda: there.heard == ["s::f", "s::g"])
        child = eval(os.read(read, 1000))
        done(child=child, parent=here.heard, open=[not handle.closed for handle in handles])
        """
    )
    assert got["child"] == ([True, True], ["s::f"], ["s::f"], ["s::f"])
    assert got["parent"] == ["s::f", "s::g"]
    assert got["open"] == [True, True]

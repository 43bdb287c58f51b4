"""Ctrl-C and the end of a process: both end a wait at once."""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

pytestmark = pytest.mark.shared

INTERRUPTED = """
where, = args
read, write = os.pipe()
registrar_pid = os.getpid()
text = textwrap.dedent('''
import mdispatch as md, os, _thread
registry = md.default_registry()
os.write(%d, str(_thread.get_native_id()).encode())
try:
    registry.dispatcher.facts.await_fact(2, 0, "never::comes", 1, 60.0)
except KeyboardInterrupt:
    os.write(%d, b"interrupted")
    raise
''' % (write, write))

# The process that presses Ctrl-C is forked before there is any interpreter.
presser = os.fork()
if presser == 0:
    tid = os.read(read, 100).decode()
    def asleep():
        call = Path(f"/proc/{registrar_pid}/task/{tid}/syscall").read_text().split()
        return call[0] == "449" or (call[0] == "202" and int(call[2], 16) == 9)
    until(asleep)
    if where == "handled":
        os.kill(registrar_pid, signal.SIGUSR1)
        until(asleep)
    os.kill(registrar_pid, signal.SIGINT)
    os._exit(0)

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
md.default_registry()
began = time.monotonic()
try:
    if where in ("main", "handled"):
        exec(text)
    else:
        interpreter = md.create_interpreter(own_gil=where == "own-gil")
        interpreter.exec(text)
except BaseException as error:
    raised = repr(error)
else:
    raised = "nothing"
took = time.monotonic() - began
os.waitpid(presser, 0)
done(raised=raised, told=os.read(read, 100).decode(), took=took, seen=seen)
"""


@pytest.mark.parametrize("where", ["main", *INTERPRETERS])
def test_ctrl_c_interrupts_a_wait_of_the_main_thread_wherever_it_is(where) -> None:
    # Up to 3.12, when exec() of source ends with KeyboardInterrupt, the process ends by SIGINT
    # later, even if the exception was handled.
    got = run_main(INTERRUPTED, where, check=False)
    assert got["told"] == "interrupted"
    assert "KeyboardInterrupt" in got["raised"]
    assert got["took"] < limit(30)  # not after the timeout of 60 s


def test_a_signal_with_a_handler_runs_it_and_the_wait_goes_on() -> None:
    got = run_main(INTERRUPTED, "handled", check=False)
    assert got["seen"] == ["usr1"]
    assert got["told"] == "interrupted"


def test_a_wait_in_one_thread_stops_no_other_thread() -> None:
    got = run_main(
        """
        import threading
        registry = md.default_registry()
        ended = []
        waiter = threading.Thread(
            target=lambda: ended.append(registry.dispatcher.facts.await_fact(2, 0, "late::op", 1,
            60.0)))
        waiter.start()
        until(lambda: registry.dispatcher.facts.members()[0][4] == 1)
        turns = sum(1 for _ in range(100_000))
        still_waiting = not ended
        md.Library("late", "DEF").define("op() -> ()")
        waiter.join()
        done(turns=turns, still_waiting=still_waiting)
        """
    )
    assert got["turns"] == 100_000
    assert got["still_waiting"]


ASLEEP_AT_EXIT = """
import threading
daemon, where = args
text = textwrap.dedent('''
import os, threading, mdispatch as md
registry = md.default_registry()
def wait():
    try:
        registry.dispatcher.facts.await_fact(2, 0, "never::comes", 1, None)
    except md.errors.MdispatchError as error:
        # CPython aborts where it finds a daemon thread in a buffered write as it ends.
        os.write(1, f"ENDED {type(error).__name__}\\\\n".encode())
waiter = threading.Thread(target=wait, daemon=%r)
waiter.start()
import select
while not any(m[4] for m in registry.dispatcher.facts.members()):
    select.select([], [], [], 0.001)
''' % daemon)
if where == "main":
    exec(text, {})
else:
    interpreter = md.create_interpreter(own_gil=where == "own-gil")
    interpreter.exec(text)
    if not daemon:
        interpreter.close()
done(end="reached")
"""


@pytest.mark.parametrize("where", ["main", *[i for i in INTERPRETERS if i == "own-gil"]])
def test_a_process_with_waiters_still_asleep_exits_when_it_is_asked_to(where) -> None:
    got = run_main(ASLEEP_AT_EXIT, False, where)
    assert got["end"] == "reached"
    assert "ENDED WaitCancelledError" in got["stdout"]


def test_a_daemon_thread_that_waits_does_not_keep_the_process() -> None:
    assert run_main(ASLEEP_AT_EXIT, True, "main")["end"] == "reached"


def test_no_wait_begins_after_the_shutdown_began() -> None:
    got = run_main(
        """
        import atexit
        registry = md.default_registry()
        def late():
            try:
                md.wait_for_def("never::comes", None)
            except md.errors.MdispatchError as error:
                print("REFUSED", type(error).__name__, flush=True)
        atexit.register(late)
        done(end="reached")
        """
    )
    assert got["end"] == "reached"
    assert "REFUSED WaitCancelledError" in got["stdout"]


def test_a_thread_that_waits_again_and_again_does_not_outlast_the_end() -> None:
    got = run_main(
        """
        import threading
        registry = md.default_registry()
        def wait():
            for turn in range(3):
                try:
                    registry.dispatcher.facts.await_fact(2, 0, "never::comes", 1, None)
                except md.errors.WaitCancelledError:
                    print("ENDED", turn, flush=True)
        threading.Thread(target=wait).start()
        until(lambda: registry.dispatcher.facts.members()[0][4])
        done(end="reached")
        """,
        timeout=30,
    )
    assert [line for line in got["stdout"].splitlines() if line.startswith("ENDED")] == [
        "ENDED 0",
        "ENDED 1",
        "ENDED 2",
    ]


def test_waits_that_begin_while_the_end_begins_end_too() -> None:
    got = run_main(
        """
        import threading
        registry = md.default_registry()
        def wait():
            while True:
                try:
                    registry.dispatcher.facts.await_fact(2, 0, "never::comes", 1, 0.0)
                    registry.dispatcher.facts.await_fact(2, 0, "never::comes", 1, None)
                except md.errors.WaitCancelledError:
                    return
        for _ in range(20):
            threading.Thread(target=wait).start()
        done(end="reached")
        """,
        timeout=30,
    )
    assert got["end"] == "reached"

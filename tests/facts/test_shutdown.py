"""Waits that begin after their interpreter has begun to end."""

from __future__ import annotations

import pytest
from kinds import run_main

pytestmark = pytest.mark.shared


def test_no_wait_begins_once_the_interpreter_shuts_down_however_often_it_is_tried() -> None:
    """The very first wait finds that nothing could end it any more; so do the waits after it."""
    got = run_main(
        """
        import threading
        md.default_registry()

        def wait():
            while not threading._SHUTTING_DOWN:
                time.sleep(0.001)
            for _ in range(3):
                try:
                    md.wait_for_def("never::comes", None)
                except md.MdispatchError as error:
                    heard.append(type(error).__name__)
            done(heard=heard)

        heard = []
        threading.Thread(target=wait).start()
        """,
        timeout=30,
    )
    assert got["heard"] == ["WaitCancelledError"] * 3


def test_a_wait_that_begins_while_the_end_is_being_noted_is_refused() -> None:
    """Its thread has asked to be told of the end, and is stopped in the midst of that: the end
    comes, tells those that are on the list, and goes on to join the threads.
    """
    got = run_main(
        """
        import threading
        md.default_registry()
        asked, ended = threading.Event(), threading.Event()
        threading._register_atexit(ended.set)  # called when the list is gone through

        def trace(frame, event, argument):
            if frame.f_code is threading._register_atexit.__code__:
                if event == "line" and not threading._SHUTTING_DOWN:
                    last = max(
                        line for *_, line in frame.f_code.co_lines() if line)
                    if frame.f_lineno == last:  # where it goes on the list
                        asked.set()
                        ended.wait()
                return trace
            return None

        def wait():
            sys.settrace(trace)
            try:
                md.wait_for_def("never::comes", None)
            except md.MdispatchError as error:
                done(heard=type(error).__name__)

        threading.Thread(target=wait).start()
        asked.wait()
        """,
        timeout=30,
    )
    assert got["heard"] == "WaitCancelledError"


def test_a_child_that_a_signal_handler_forks_in_a_wait_ends() -> None:
    """The wait goes on in the child, which did not begin it: its end counts it out of the parent's
    waits. Else the end of the child would look for ever for one that is left.
    """
    got = run_main(
        """
        import signal, threading
        from mdispatch.facts.living import waits
        md.default_registry()
        children = []

        def fork(*_):
            if waits.under_way:
                children.append(os.fork())

        def wait():
            try:
                md.wait_for_def("never::comes", 0.2)
            except md.MdispatchError:
                pass

        signal.signal(signal.SIGALRM, fork)
        while not children:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # once: no second one during the fork
            wait()
        if children == [0]:
            wait()
            sys.exit(0)
        done(status=os.waitpid(children[0], 0)[1])
        """,
        timeout=60,
    )
    assert got["status"] == 0

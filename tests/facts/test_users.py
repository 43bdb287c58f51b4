"""A process that changes its user, as servers do that start as root."""

from __future__ import annotations

import os

import pytest
from kinds import run_main

pytestmark = [
    pytest.mark.shared,
    pytest.mark.either_binding,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

NOBODY = 65534


def test_a_child_that_drops_its_rights_calls_and_looks_and_is_told_what_to_do() -> None:
    """Registering and waiting raise the same error each time, and its parent is none the worse."""
    got = run_main(
        """
        import difflib, json, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        lib = md.Library("shop", "DEF")
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x + 1, "CompositeImplicitAutograd")
        md.ops.shop.f(3)
        read, write = os.pipe()
        # Beside a thread the fork loads all modules: that user may not read their files.
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        pid = os.fork()
        if pid == 0:
            os.setresuid(args[0], args[0], args[0])
            told = {"call": md.ops.shop.f(3), "found": md.ops.find("shop::f").name}
            def refused(function):
                try:
                    function()
                except md.errors.RegistryOwnerError as error:
                    return str(error)
                return "not refused"
            waits = lambda: md.wait_for_def("shop::g", timeout=5.0)
            told["refused"] = [
                refused(waits),
                refused(lambda: md.Library("shop", "FRAGMENT").define("g(int x) -> int")),
                refused(waits),
            ]
            lib.close()  # of its parent's facts nothing is ended
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        go.set()
        thread.join()
        assert os.waitpid(pid, 0)[1] == 0
        told = json.loads(os.read(read, 65536))
        assert md.ops.shop.f(4) == 5
        md.default_registry().check_invariants()
        done(**told)
        """,
        NOBODY,
    )
    assert (got["call"], got["found"]) == (4, "shop::f")
    first, *others = got["refused"]
    assert "open the registry after the change of user" in first.replace("\n", " ")
    assert others == [first, first]


def test_who_joined_and_then_changes_its_user_is_told_once() -> None:
    got = run_main(
        """
        import difflib, warnings
        def wait_in_vain():
            try:
                md.wait_for_def("shop::g", timeout=0.0)
            except md.errors.NotRegisteredError:
                pass
        wait_in_vain()  # loads what that user may not read
        os.setresuid(args[0], args[0], args[0])
        told = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                wait_in_vain()
                told.append(len(caught))
        done(told=told, text=str(caught[0].message))
        """,
        NOBODY,
    )
    assert got["told"] == [1, 1]
    assert "as user 0 and is user 65534 now" in got["text"]

"""Uses mdispatch where registries belong to one process: `python .ci/alone.py`, run against wheels
for other systems. `python .ci/alone.py darwin` (or win32, musl) first takes Linux for that system:
its name, and without the modules, the functions and the files that the other one lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial

MODULES = ["_cffi_backend", "_posixshmem", "cffi", "fcntl", "grp", "pwd", "resource", "termios"]
FUNCTIONS = ["confstr", "fork", "geteuid", "memfd_create", "register_at_fork", "sched_yield"]


def become(system: str) -> None:
    """What of another system Python code can see, as far as Linux can be made to lack it."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)

    def without_proc(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and str(args[0]).startswith("/proc"):
            raise FileNotFoundError(args[0])

    sys.addaudithook(without_proc)
    if system != "musl":
        sys.platform = system


def in_a_child(code: str) -> str:
    # The child is not made another system: it is told to be alone.
    env = {**os.environ, "MDISPATCH_BINDING": "none"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def refuses(call: Callable[[], object], error: type[Exception], words: str) -> None:
    told = ""
    try:
        call()
    except error as refused:
        told = str(refused)
    assert words in told, told


def main() -> None:
    import mdispatch as md
    from mdispatch.errors import NameMismatchError, NotSharedError, OperatorGoneError

    assert md.is_main_interpreter()
    assert md.register_or_verify() == "register"
    assert md.default_registry().address == f"local:{os.getpid()}"

    class Grid:
        __dispatch_keys__ = "PrivateUse1"

    @md.custom_op("shop::double", mutates_args=())
    def double(x: float) -> float:
        return 2 * x

    lib = md.Library("shop", "FRAGMENT")
    lib.define("area(Tensor grid, int factor=2) -> int")
    lib.define("area.plain(int side) -> int")
    lib.impl("area", lambda grid, factor: 6 * factor, "PrivateUse1")
    lib.impl("area.plain", lambda side: side * side, "CompositeExplicitAutograd")
    area = md.ops.shop.area
    assert (area(Grid()), area(Grid(), factor=3), area(4)) == (12, 18, 16)
    assert area.overloads() == ["default", "plain"]
    keys = md.DispatchKeySet("PrivateUse1")
    assert area.default.redispatch(keys, Grid(), 5) == 30
    assert double(1.5) == md.ops.shop.double(1.5) == 3.0
    seen: list[str] = []
    with md.observe_calls(lambda call: seen.append(call.operator)):
        assert area.plain(3) == 9
    assert seen == ["shop::area.plain"]
    assert "area" in dir(md.ops.shop)
    md.default_registry().check_invariants()

    # A wait in one thread ends by a registration in another.
    found: list[object] = []
    waiter = threading.Thread(
        target=lambda: found.append(md.wait_for_def("shop::late", timeout=60))
    )
    waiter.start()
    while not md.default_registry().dispatcher.facts.members()[0][4]:
        time.sleep(0.001)
    lib.define("late(int x) -> int")
    waiter.join(60)
    assert found, "the wait did not end"
    never = partial(md.wait_for_def, "shop::never", timeout=0.05)
    refuses(never, NameMismatchError, "shop::never")
    ended = area.default
    lib.close()
    refuses(lambda: ended(Grid()), OperatorGoneError, "shop::area")

    for call in (
        lambda: md.Registry.create("shop"),
        lambda: md.Registry.attach("shop"),
        lambda: md.Registry.elect("shop"),
        lambda: md.ops.load_library(__file__),
        md.create_interpreter,
    ):
        refuses(call, NotSharedError, "docs/other-systems.md")

    child = "import mdispatch as md; lib = md.Library('shop', 'DEF'); lib.define('f(int x) -> int')"
    told = in_a_child(f"{child}; lib.define('g(int x) -> int'); print(md.register_or_verify())")
    assert told.count("NotSharedWarning") == 1, told
    assert "register\n" in told, told
    print(f"alone: {sys.platform}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    warnings.simplefilter("error")
    if sys.argv[1:]:
        become(sys.argv[1])
    main()

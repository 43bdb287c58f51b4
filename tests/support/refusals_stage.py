"""Runs a scenario in Python under native/refusals/shim.c (preloaded), which makes each system call
of the library that can fail do so in turn. Prints how many were refused. If something happens that
must not, prints it to stderr and ends with exit code 1.

    LD_PRELOAD=shim.so python refusals_stage.py SCENARIO             # in one way
    LD_PRELOAD=shim.so python refusals_stage.py SCENARIO --each-way
    LD_PRELOAD=shim.so python refusals_stage.py SCENARIO --on        # and from then on
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
import traceback

from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.facts import IMPL
from mdispatch.facts.native import native

FOLDER = os.fsdecode(native.folder()[1])

shim = ctypes.CDLL(None)
shim.shim_arm.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int)


class Report(ctypes.Structure):
    _fields_ = [
        ("calls", ctypes.c_long),
        ("refused", ctypes.c_int),
        ("kinds", ctypes.c_int),
        ("error", ctypes.c_int),
        ("call", ctypes.c_char_p),
    ]


def kernel(x):
    return x + 1


def use(registry):
    """Registers, waits for something that exists and something that does not, calls, and ends
    all.
    """
    library = md.Library("shop", "DEF", registry=registry)
    try:
        library.define("inc(int x) -> int")
        library.impl("inc", kernel, "CompositeExplicitAutograd")
        assert registry.ops.shop.inc(1) == 2
        md.wait_for_def("shop::inc", timeout=1.0, registry=registry)
        with contextlib.suppress(errors.NotRegisteredError):
            md.wait_for_def("shop::none", timeout=0.001, registry=registry)
    finally:
        library.close()


def an_anonymous_registry():
    with md.Registry.create(capacity=1 << 20) as registry:
        use(registry)


def a_named_registry():
    name = f"refusals-{os.getpid()}"
    with md.Registry.create(name, capacity=1 << 20) as registry:
        use(registry)
        with md.Registry.attach(name, timeout=0.0) as again:
            assert not again.is_main
        with contextlib.suppress(errors.RegistryExistsError):
            md.Registry.create(name, capacity=1 << 20).close()


def another_thread():
    raised = []

    def run():
        try:
            an_anonymous_registry()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised.pop()


def a_registry_that_grows():
    with md.Registry.create(capacity=1 << 19) as registry:
        for key in range(40):
            try:
                registry.dispatcher.facts.register(IMPL, key, "shop::inc", "x" * 40000, "here")
            except errors.RegistryFullError:
                return
        raise AssertionError("the registry was never full")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (an_anonymous_registry, a_named_registry, another_thread, a_registry_that_grows)
}


def belongings():
    gc.collect()
    with open("/proc/self/maps") as maps:
        regions = sum("memfd:mdispatch" in line or FOLDER in line for line in maps)
    # A thread that was joined is still listed for a moment.
    until = time.monotonic() + limit(2)
    while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < until:
        time.sleep(0)
    return len(os.listdir("/proc/self/fd")), regions, threads


def run(scenario, nth, kind, on):
    """The report of one run, and its outcome: None or the exception."""
    raised = None
    report = Report()
    shim.shim_arm(nth, kind, on)
    try:
        scenario()
    except BaseException as error:
        raised = error
    shim.shim_disarm(ctypes.byref(report))
    return report, raised


def main(name, each_way, on):
    scenario = SCENARIOS[name]
    refused = wrong = 0
    if name != "an_anonymous_registry":  # there, calls that are made only once are refused, too
        scenario()
    gc.freeze()  # what is there already does not change, and each turn collects
    start = None
    nth = 0
    while True:
        nth += 1
        kind, kinds = 0, 1
        while kind < kinds:
            report, raised = run(scenario, nth, kind, on)
            if not report.refused:
                break
            what = f"{name}: call {nth}, {report.call.decode()}, errno {report.error}"
            refused += 1
            kinds = report.kinds if each_way else 1
            kind += 1
            if raised is not None and not isinstance(raised, (md.MdispatchError, MemoryError)):
                wrong += 1
                print(f"{what}: raised", file=sys.stderr)
                traceback.print_exception(raised)
            raised = None
            try:
                scenario()  # now it succeeds, in the same process
            except Exception:
                wrong += 1
                print(f"{what}: fails afterwards", file=sys.stderr)
                traceback.print_exc()
            now = belongings()
            start = start or now
            if now != start:
                wrong += 1
                print(f"{what}: {start} before, {now} now", file=sys.stderr)
                start = now
        if not kind:
            break
    print(refused)
    return wrong != 0


if __name__ == "__main__":
    ON = "--on" in sys.argv
    sys.exit(main(sys.argv[1], ON or "--each-way" in sys.argv, int(ON)))

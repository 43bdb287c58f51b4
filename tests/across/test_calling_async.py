"""Routed calls as coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import weakref

import pytest
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch.across import calling_async
from mdispatch.across.transports.transport import Interrupt
from mdispatch.context import ExcludeDispatchKeyGuard, excluded_keys

pytestmark = [pytest.mark.shared, pytest.mark.needs("across")]

#: An owner that is a process of its own; the main part calls it. Its kernels begin, wait for a
#: line of the caller's pipe, or until nobody waits for their call.
SHOP = """
import asyncio, gc, subprocess, tempfile, threading
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
lib = md.Library("shop", "DEF")
for schema in ("whole(int n, *, int more=0) -> int", "gate(str fifo) -> str",
               "until_cancelled(str name) -> ()", "fail() -> ()", "end() -> ()"):
    name = lib.define(schema)
    lib.impl(name, lambda *args, **kwargs: None, "CompositeExplicitAutograd")
OWNER = '''
import os, sys, time
import mdispatch as md
folder = sys.argv[1]
lib = md.Library("shop", "IMPL")
def served(function):
    lib.impl(function.__name__, function, "CompositeExplicitAutograd", serve="host")
def journal(word):
    with open(f"{folder}/journal", "a") as file:
        file.write(f"{word}\\\\n")
@served
def whole(n, more):
    journal("whole")
    return n + more
@served
def gate(fifo):
    with open(fifo) as file:
        return file.readline()
@served
def until_cancelled(name):
    journal(f"{name}-began")
    while not md.cancelled():
        time.sleep(0.001)
    journal(f"{name}-cancelled")
@served
def fail():
    raise LookupError("none")
@served
def end():
    raise StopIteration
journal("ready")
sys.stdin.read()
'''
def journaled():
    path = folder / "journal"
    return path.read_text().split() if path.exists() else []
command = [sys.executable, "-c", textwrap.dedent(OWNER), str(folder)]
serving = subprocess.Popen(command, stdin=subprocess.PIPE)
until(lambda: "ready" in journaled())
CALLER = '''
import asyncio, gc, os, signal, sys, threading
from pathlib import Path
import mdispatch as md
from kinds import is_stopped, until
from patience import limit
folder = Path(sys.argv[1])
pid = int(sys.argv[2])
shop = md.ops.shop
def journaled():
    return (folder / "journal").read_text().split()
async def heard(word):
    while word not in journaled():
        await asyncio.sleep(0.001)
def files(kind=""):
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            pass  # that of the listing
    return sum(kind in each for each in found)
def left():
    until(lambda: not files("eventfd"))  # no thread waits for an answer
    gc.collect()
    return files(), threading.active_count()
def within(main):
    with md.routing("shop", timeout=limit(60.0)):
        return asyncio.run(main)
'''
def asked(text):
    code = f"import sys; sys.path.insert(0, {SUPPORT!r})\\n{textwrap.dedent(CALLER)}\\n"
    code += textwrap.dedent(text)
    command = [sys.executable, "-W", "error", "-c", code, str(folder), str(serving.pid)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit(60.0))
    assert ran.returncode == 0, ran.stdout
    return eval(ran.stdout)
"""


def shop(text: str) -> dict:
    return run_main(SHOP + text + "\nserving.kill()\nserving.communicate()\n")


def test_a_call_is_awaited_and_its_loop_goes_on_meanwhile():
    got = shop("""
got = asked('''
os.mkfifo(folder / "gate")
ticks = []
async def main():
    # The kernel reads what the loop writes after some ticks: a loop that stood still would wait
    # for ever.
    inside = asyncio.create_task(md.call_async(shop.gate, str(folder / "gate")))
    while not inside.done():
        await asyncio.sleep(0)
        ticks.append(len(ticks))
        if len(ticks) == 100:
            file = await asyncio.to_thread(open, folder / "gate", "w")
            print("through", file=file, flush=True)
            file.close()
    many = await asyncio.gather(*(md.call_async("shop::whole", n, more=1) for n in range(20)))
    try:
        await md.call_async(shop.fail)
    except LookupError as error:
        failed = isinstance(error, md.errors.RoutedError)
    try:
        await md.call_async(shop.end)
    except RuntimeError as error:
        ended = str(error)
    return (await inside).strip(), many, failed, ended
print([*within(main()), len(ticks) >= 100])
''')
done(got=got)
""")["got"]
    assert got[0] == "through"
    assert got[1] == list(range(1, 21))
    assert got[2]
    assert "the call raised StopIteration" in got[3]
    assert got[4]


@pytest.mark.thorough
def test_a_task_that_is_cancelled_cancels_its_call_and_leaves_nothing():
    got = shop("""
got = asked('''
async def cancel_one(name):
    task = asyncio.create_task(md.call_async(shop.until_cancelled, name))
    await heard(f"{name}-began")
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        await heard(f"{name}-cancelled")
        return True
async def nested():
    try:
        async with asyncio.timeout(limit(60.0)):
            try:
                async with asyncio.timeout(None) as inner:
                    task = asyncio.create_task(heard("inner-began"))
                    task.add_done_callback(lambda _: inner.reschedule(0.0))
                    await md.call_async(shop.until_cancelled, "inner")
            except TimeoutError:
                await heard("inner-cancelled")
                return await md.call_async(shop.whole, 5)
    except TimeoutError:
        return "outer"
first = within(cancel_one("a"))
before = left()
again = within(cancel_one("b"))
after = left()
inner = within(nested())
print([first, again, inner, before, after])
''')
done(got=got)
""")["got"]
    assert got[:3] == [True, True, 5]
    assert got[3] == got[4]


@pytest.mark.thorough
def test_a_loop_that_ends_ends_its_calls():
    got = shop("""
got = asked('''
async def main():
    loop.append(asyncio.get_running_loop())
    left_over.append(asyncio.create_task(md.call_async(shop.until_cancelled, "left")))
    await heard("left-began")
loop, left_over = [], []
within(main())  # cancels what is left over
until(lambda: "left-cancelled" in journaled())
left()
# A loop that is closed without that: nobody is told of the answer.
loop = asyncio.new_event_loop()
with md.routing("shop", timeout=1.0):
    task = loop.create_task(md.call_async(shop.until_cancelled, "lost"))
    loop.run_until_complete(heard("lost-began"))
task._log_destroy_pending = False
loop.close()
until(lambda: "lost-cancelled" in journaled())
left()
print([left_over[0].cancelled(), task.done()])
''')
done(got=got)
""")["got"]
    assert got == [True, False]


@pytest.mark.thorough
def test_a_call_to_an_owner_that_is_stopped_is_taken_back():
    got = shop("""
got = asked('''
async def main(count):
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    tasks = [asyncio.create_task(md.call_async(shop.whole, 1)) for _ in range(count)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    left()  # their threads do not wait for the owner
    os.kill(pid, signal.SIGCONT)
    return [type(each).__name__ for each in found]
with md.routing("shop", timeout=None):
    one = asyncio.run(main(3))  # lines that are not there yet
    shop.whole(1)
    two = asyncio.run(main(1))  # a line that is
    print([one, two, shop.whole(2)])
''')
done(got=got, ran=journaled().count("whole"))
""")
    assert got["got"] == [["CancelledError"] * 3, ["CancelledError"], 2]
    assert got["ran"] == 2


@pytest.mark.thorough
def test_each_task_has_its_own_routing():
    got = shop("""
got = asked('''
os.mkfifo(folder / "never")
async def call(timeout):
    try:
        with md.routing("shop", timeout=timeout):
            return await md.call_async(shop.gate, str(folder / "never"))
    except md.errors.CallTimeoutError as error:
        return error.timeout
async def main():
    try:
        await md.call_async(shop.whole, 1)
    except md.errors.LocalKernelMissingError:
        return await asyncio.gather(call(0.2), call(0.1))
print(asyncio.run(main()))
''')
done(got=got)
""")
    assert got["got"] == [0.2, 0.1]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_methods_of_handles_are_awaited(kind):
    got = run_main(
        """
import asyncio, pickle, threading
file = Path(__file__).with_name("handle")
other = md.create_interpreter(own_gil=args[0] == "own-gil")
def run(text):
    thread = threading.Thread(target=other.exec, args=(textwrap.dedent(text),))
    thread.start()
    thread.join()
run('''
import pickle
import mdispatch as md
class Counter:
    def twice(self, n):
        return 2 * n
handle = md.share(Counter())
with open(FILE, "wb") as file:
    pickle.dump(handle, file)
'''.replace("FILE", repr(str(file))))
handle = pickle.loads(file.read_bytes())
got = asyncio.run(md.call_async(handle.twice, 4))
del handle
other.close()
done(got=got)
""",
        kind,
    )
    assert got["got"] == 8


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_whose_tasks_have_called_ends(kind):
    got = run_main(
        """
lib = md.Library("shop", "DEF")
lib.define("twice(int n) -> int")
lib.impl("twice", lambda n: 2 * n, "CompositeExplicitAutograd", serve=True)
file = Path(__file__).with_name("got")
other = md.create_interpreter(own_gil=args[0] == "own-gil")
text = '''
import asyncio
import mdispatch as md
async def main():
    calls = (md.call_async("shop::twice", n) for n in range(5))
    return await asyncio.gather(*calls)
with md.routing("shop"):
    got = asyncio.run(main())
with open(FILE, "w") as file:
    file.write(repr(got))
'''.replace("FILE", repr(str(file)))
import asyncio
async def before():  # see create_interpreter, on 3.12.3
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
asyncio.run(before())
# Not in a thread of its own: CPython before 3.13 waits for ever for that where asyncio is loaded.
other.exec(textwrap.dedent(text))
other.close()
done(got=eval(file.read_text()))
""",
        kind,
    )
    assert got["got"] == [0, 2, 4, 6, 8]


# --- what the thread of a call has of the task ----------------------------------------------------


@pytest.fixture
def seen(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("look() -> ()")
    found = []
    lib.impl(
        "look",
        lambda: found.append((variable.get(), excluded_keys().raw, threading.get_ident())),
        "CompositeExplicitAutograd",
    )
    return registry.ops.t.look, found


variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


def test_the_call_has_the_context_variables_and_the_keys_of_its_task(seen):
    look, found = seen

    async def main():
        variable.set(7)
        with ExcludeDispatchKeyGuard("Tracer"):
            await md.call_async(look)
            return excluded_keys().raw

    keys = asyncio.run(main())
    assert found[0][:2] == (7, keys)
    assert found[0][2] != threading.get_ident()
    assert excluded_keys().raw != keys


def test_a_mode_that_would_not_be_asked_is_refused(seen):
    look, found = seen

    class Mode(md.context.DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return op(*args, **kwargs)

    async def main():
        with Mode():
            await md.call_async(look)

    with pytest.raises(md.errors.ModeStackError, match="does not come to the mode"):
        asyncio.run(main())
    assert found == []


def test_an_error_is_no_garbage_of_a_cycle(registry, monkeypatch):
    # Its own thread, which ends here: without a GIL, an object whose last reference another thread
    # dropped lives until its own thread does something.
    monkeypatch.setattr(calling_async, "_pool", None)
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("fail() -> ()")

    class Error(Exception):
        pass

    def fail():
        raise Error

    lib.impl("fail", fail, "CompositeExplicitAutograd")

    async def main():
        try:
            await md.call_async(registry.ops.t.fail)
        except Error as error:
            return weakref.ref(error)

    gc.disable()
    try:
        loop = asyncio.new_event_loop()
        error = loop.run_until_complete(main())
        loop.close()
        calling_async._pool.shutdown()
        assert error() is None
    finally:
        gc.enable()


def test_an_interrupt_that_was_set_before_anybody_waits_can_be_read_at_once():
    its = Interrupt(KeyboardInterrupt)
    its.set()
    its.set()
    assert os.eventfd_read(its.fileno()) == 1
    its.close()
    its.close()
    its.set()
    assert its.fileno() == -1

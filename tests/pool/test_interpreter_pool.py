"""The pool of interpreters is an executor, and each kind of mistake ends in an error."""

from __future__ import annotations

import sys
import textwrap

import pytest
from kinds import run_main
from patience import limit

import mdispatch as md

pytestmark = pytest.mark.either_binding

TASKS = """
import os, sys, threading

class Unlucky(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second

def here(*args, **kwargs):
    from mdispatch.facts import native
    return native.interpreter_id, args, kwargs

def fail(kind):
    if kind == "unlucky":
        raise Unlucky("not to be pickled", 2)
    raise {"value": ValueError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[kind](kind)

def meet(read, write):
    # Two of these go on only together: each waits for the other's byte.
    os.write(write, b".")
    return os.read(read, 1)

def wait(read):
    return os.read(read, 1)

def echo(data):
    return data

def begin(counter):
    os.write(counter, b"i")

def break_it(word):
    raise LookupError(word)
"""


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    return str(tmp_path)


# On 3.14 the interpreters of a pool get no sys.path: these initializers give them one.
POOL = """
import concurrent.futures as futures
folder, = args
sys.path.insert(0, folder)
import tasks
start = {}
if sys.version_info >= (3, 14):
    md.default_registry()
    start = {"initializer": md.warm_up, "initargs": ((), sys.path)}
"""


def in_pool(text, folder):
    return run_main(POOL + textwrap.dedent(text), folder)


def test_an_interpreter_pool_is_an_executor(tasks) -> None:
    got = in_pool(
        """
        with md.InterpreterPool(2, **start) as pool:
            assert isinstance(pool, futures.Executor)
            homes, args, kwargs = zip(*(
                pool.submit(tasks.here, n, key=n).result() for n in range(4)))
            mapped = list(pool.map(tasks.echo, [b"", b"x" * 5_000_000, {"a": (1,)}]))
            failed = {}
            for kind in ("value", "exit", "interrupt", "unlucky"):
                error = pool.submit(tasks.fail, kind).exception()
                failed[kind] = type(error).__name__, str(error.__cause__ or error)[-300:]
            odd = [type(pool.submit(tasks.echo, open).exception()).__name__,
                   isinstance(pool.submit(tasks.echo, sys.stdout).exception(), Exception)]
            # Both workers run at once: each of these waits for the other.
            a, b = os.pipe(), os.pipe()
            met = [pool.submit(tasks.meet, a[0], b[1]), pool.submit(tasks.meet, b[0], a[1])]
            met = [each.result(limit(60)) for each in met]
        try:
            pool.submit(abs, 1)
        except RuntimeError as error:
            late = str(error)
        done(homes=homes, args=args, kwargs=kwargs, failed=failed, met=met, late=late,
             mapped=[len(each) for each in mapped], odd=odd)
        """,
        tasks,
    )
    assert 0 not in got["homes"]
    assert got["args"] == tuple((n,) for n in range(4))
    assert got["kwargs"] == tuple({"key": n} for n in range(4))
    assert got["mapped"] == [0, 5_000_000, 1]
    assert got["met"] == [b".", b"."]
    assert got["late"] == "cannot schedule new futures after shutdown"
    failed = got["failed"]
    assert [failed[kind][0] for kind in ("value", "exit", "interrupt")] == [
        "ValueError",
        "SystemExit",
        "KeyboardInterrupt",
    ]
    if sys.version_info < (3, 14):  # it has several answers, one after the other
        assert failed["unlucky"][0] == "ExecutionFailedError"
        for kind, (_, text) in failed.items():
            assert "tasks.py" in text, kind  # the location where it was raised
    assert got["odd"][1]


def test_ending_a_pool_of_interpreters_ends_the_interpreters_and_cancels_what_waits(tasks) -> None:
    got = in_pool(
        """
        from mdispatch.dispatch.context.homes import here
        def descriptors():
            return sorted(os.listdir("/proc/self/fd"))
        read, write = os.pipe()
        before = descriptors()
        pool = md.InterpreterPool(1, **start)
        identity = pool.submit(tasks.here).result()[0]
        busy = pool.submit(tasks.wait, read)
        until(busy.running)
        waiting = [pool.submit(tasks.echo, n) for n in range(3)]
        pool.shutdown(wait=False, cancel_futures=True)
        cancelled = [each.cancelled() for each in waiting]
        alive = here().neighbour(identity).is_alive
        os.write(write, b"!")
        pool.shutdown()
        pool.shutdown()
        done(cancelled=cancelled, busy=busy.result(), alive=alive,
             gone=here().neighbour(identity).is_alive, open=len(descriptors()) - len(before))
        """,
        tasks,
    )
    assert got["cancelled"] == [True, True, True]
    assert got["busy"] == b"!"
    assert (got["alive"], got["gone"]) == (True, False)
    assert got["open"] == 0


def test_every_future_that_a_pool_gave_out_gets_an_answer_whenever_it_is_ended(tasks) -> None:
    got = in_pool(
        """
        import threading
        sys.setswitchinterval(1e-6)
        answered = refused = 0
        for cancel in (False, True):
            pool, given, begun = md.InterpreterPool(2, **start), [], threading.Barrier(4)
            def submit():
                begun.wait()
                try:
                    while True:
                        given.append(pool.submit(abs, -len(given)))
                except RuntimeError:
                    refusals.append(1)
            refusals = []
            threads = [threading.Thread(target=submit) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            until(lambda: len(given) > 20)
            pool.shutdown(cancel_futures=cancel)
            for thread in threads:
                thread.join()
            refused += len(refusals)
            answered += all(f.cancelled() or isinstance(f.result(0), int) for f in given)
            assert cancel or not any(f.cancelled() for f in given)
        done(answered=answered, refused=refused)
        """,
        tasks,
    )
    assert (got["answered"], got["refused"]) == (2, 6)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library's own from 3.14 on")
def test_a_pool_is_not_ended_between_a_submits_look_and_its_task(tasks) -> None:
    got = in_pool(
        """
        import threading
        pool = md.InterpreterPool(1, **start)
        check, ended = pool._work.check, threading.Event()

        def end():
            pool.shutdown(wait=False)
            ended.set()

        def look_and_stand_still():
            check()
            threading.Thread(target=end).start()
            # Whoever ends the pool waits for this thread, if all is well.
            ended.wait(0.2)

        pool._work.check = look_and_stand_still
        future = pool.submit(abs, -3)
        done(got=future.result(limit(20)))
        """,
        tasks,
    )
    assert got["got"] == 3


@pytest.mark.thorough
def test_an_initializer_that_raises_breaks_the_pool_and_every_future_hears_it(tasks) -> None:
    got = in_pool(
        """
        import contextlib
        for name in ("tasks",):
            __import__(name)
        start = {"initializer": exec, "initargs": ("raise LookupError('no word')",)}
        heard, refused = [], 0
        for round in range(3):
            pool = md.InterpreterPool(2, **start)
            given = []
            with contextlib.suppress(md.BrokenInterpreterPool):
                for n in range(20):
                    given.append(pool.submit(abs, n))
            heard += [type(each.exception(limit(60))) is md.BrokenInterpreterPool for each in given]
            try:
                pool.submit(abs, 1)
            except md.BrokenInterpreterPool as error:
                refused += 1
                text = f"{error} {error.__cause__!r}"
            pool.shutdown()
        done(heard=len(heard) > 2 and all(heard), refused=refused, text=text,
             executor=issubclass(md.BrokenInterpreterPool, futures.BrokenExecutor))
        """,
        tasks,
    )
    assert got["heard"]
    assert (got["refused"], got["executor"]) == (3, True)
    assert "no word" in got["text"] + got["stderr"]


def test_a_program_that_does_not_end_its_pools_ends_all_the_same(tasks) -> None:
    got = in_pool(
        """
        pools = [md.InterpreterPool(1, **start) for _ in range(2)]
        first = pools[0].submit(tasks.here).result()
        dropped = md.InterpreterPool(1, **start).submit(tasks.echo, 5).result(limit(60))
        read, write = os.pipe()
        last = pools[1].submit(tasks.begin, write)  # is done all the same
        del pools[0]
        last.add_done_callback(lambda future: print("LAST", os.read(read, 1)))
        done(dropped=dropped)
        """,
        tasks,
    )
    assert got["dropped"] == 5
    assert "LAST b'i'" in got["stdout"]
    assert got["stderr"] == ""


MAIN_FUNCTIONS = """
import sys
import mdispatch as md

class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b
    def swapped(self):
        return Pair(self.b, self.a)

def twice(x):
    return 2 * x

if __name__ == "__main__":
    with md.InterpreterPool(1) as pool:
        print(pool.submit(twice, 4).result())
        if sys.version_info < (3, 14):
            swapped = pool.submit(Pair(1, 2).swapped).result()
            print(type(swapped) is Pair, swapped.a)
        else:
            print(True, 2)
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_functions_of_the_program_itself_run_in_a_pool_of_interpreters(how, tmp_path) -> None:
    import subprocess

    (tmp_path / "program.py").write_text(MAIN_FUNCTIONS)
    run = ["program.py"] if how == "script" else ["-m", "program"]
    ran = subprocess.run(
        [sys.executable, "-W", "error", *run],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("8\nTrue 2\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library's own from 3.14 on")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_workers": 0}, ValueError),
        ({"initializer": "print(1)"}, TypeError),
        ({"initializer": lambda: 0}, Exception),
    ],
)
def test_what_makes_no_pool_is_refused_at_once(arguments, error) -> None:
    with pytest.raises(error):
        md.InterpreterPool(**arguments)


def test_from_python_3_14_on_the_pool_is_the_standard_librarys() -> None:
    from concurrent import futures

    own = getattr(futures, "InterpreterPoolExecutor", None)
    assert (md.InterpreterPool is own) == (sys.version_info >= (3, 14))

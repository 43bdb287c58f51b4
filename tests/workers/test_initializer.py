"""Pools whose workers differ: the callers of the tasks hear why, whichever initializer there is.

Every pool in every layout of a program: test_pool_table.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
from multiprocessing.process import BaseProcess

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

import mdispatch as md

pytestmark = pytest.mark.either_binding

ODD = """
import mdispatch as md
lib = md.Library("odd", "DEF")
lib.define("f(int x) -> int" if md.is_main_interpreter() else "f(int x, int y=2) -> int")
lib.impl("f", lambda x, y=2: x * y, "CompositeExplicitAutograd")
"""

PROGRAM = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import mdispatch as md
import odd_ops

HEAR = {hear!r}

def begin():
    try:
        md.warm_up("odd_ops", timeout=0.2)
    except md.errors.WarmUpError as error:
        if HEAR == "handle":
            return
        if HEAR == "replace":
            raise LookupError("in its place") from error
        raise

def outcome(ask):
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error), [type(e).__name__ for e in
                                                  getattr(error, "differences", ())]

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with {pool} as pool:
        if hasattr(pool, "submit"):
            tasks = [pool.submit(abs, -n).result for n in range(5)]
        else:
            tasks = [pool.apply_async(abs, (-n,)).get for n in range(5)]
        print(repr([outcome(each) for each in tasks]))
"""

POOLS = {
    "Pool": "spawn.Pool(2, initializer=begin)",
    "ProcessPoolExecutor": "ProcessPoolExecutor(2, spawn, initializer=begin)",
}


#: Whether a process of multiprocessing runs its finalizers while its error is on its way out. From
#: Python 3.13 on it prints the error before.
ENDS_WITH_THE_ERROR = "_exit_function" in inspect.getsource(BaseProcess._bootstrap)


def run(folder, pool, hear):
    """What the callers of five tasks got, and standard error."""
    (folder / "odd_ops.py").write_text(ODD)
    (folder / "program.py").write_text(PROGRAM.format(pool=POOLS[pool], hear=hear))
    program = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, heard = program.communicate(timeout=limit(60))
    finally:
        # Workers that are replaced for ever would outlive a test that fails.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    return eval(out), heard


@pytest.mark.parametrize("pool", POOLS)
def test_an_initializer_of_ones_own_that_warms_up_tells_each_task(pool, tmp_path) -> None:
    got, heard = run(tmp_path, pool, "raise")
    for name, text, differences in got:
        assert (name, differences) == ("WarmUpError", ["SchemaMismatchError"])
        assert "odd_ops.py:4" in text
    # Of a pool of multiprocessing nobody needs it; later Pythons print it all the same.
    is_silent = pool == "Pool" and ENDS_WITH_THE_ERROR
    assert heard.count("Traceback") <= (0 if is_silent else 2)  # at most one for each worker


@pytest.mark.parametrize("pool", POOLS)
def test_an_initializer_that_handles_the_error_has_its_way(pool, tmp_path) -> None:
    got, heard = run(tmp_path, pool, "handle")
    assert got == [0, 1, 2, 3, 4]
    assert heard == ""


def test_an_initializer_that_raises_something_else_in_its_place_ends_no_worker(tmp_path) -> None:
    got, _ = run(tmp_path, "Pool", "replace")
    if ENDS_WITH_THE_ERROR:
        assert {each[:2] for each in got} == {("LookupError", "in its place")}
    else:  # what was raised in its place cannot be had there
        assert {each[0] for each in got} == {"WarmUpError"}


# --- mdispatch.initializer ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_where_nobody_hears_an_initializer_each_call_of_an_operator_raises(kind, tmp_path) -> None:
    (tmp_path / "odd_ops.py").write_text(ODD)
    (tmp_path / "well_ops.py").write_text(
        "import mdispatch as md\nlib = md.Library('well', 'DEF')\nlib.define('f(int x) -> int')\n"
        "lib.impl('f', abs, 'CompositeExplicitAutograd')\n"
    )
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        md.warm_up(["odd_ops", "well_ops"])
        text = '''
        import mdispatch as md, pickle, sys
        begin = pickle.loads(bytes.fromhex(BEGIN))
        def outcome(ask, *args):
            try:
                return ask(*args)
            except Exception as error:
                return type(error).__name__, str(error)
        import well_ops
        before = md.ops.well.f(-1)
        begin()
        calls = [outcome(md.ops.well.f, -1), outcome(md.ops.well.f, -1), outcome(md.ops.odd.f, 1)]
        unknown = outcome(lambda: md.ops.odd.g)
        del sys.modules["odd_ops"]
        import pathlib
        file = pathlib.Path(FOLDER, "odd_ops.py")
        file.write_text(file.read_text().replace(", int y=2", ""))
        warm = outcome(md.warm_up, "odd_ops")
        report(before=before, calls=calls, unknown=unknown, after=md.ops.well.f(-1),
               warm=getattr(warm, "differences", warm))
        '''
        import pickle
        data = pickle.dumps(md.initializer("odd_ops", timeout=0.2)).hex()
        text = textwrap.dedent(text).replace("BEGIN", repr(data))
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        str(tmp_path),
    )
    assert (got["before"], got["after"], got["warm"]) == (1, 1, ())
    assert [name for name, _ in got["calls"]] == ["WarmUpError"] * 3
    assert all("1 difference from the main interpreter" in text for _, text in got["calls"])
    assert got["unknown"][0] == "OperatorNotFoundError"
    assert "1 difference from the main interpreter" in got["unknown"][1]


def test_it_brings_the_address_and_the_path_of_the_process_that_made_it(tmp_path) -> None:
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "far_ops.py").write_text(ODD.replace(", int y=2", ""))
    got = run_main(
        """
        import subprocess, pickle
        sys.path.insert(0, args[0])
        import far_ops
        begin = pickle.dumps(md.initializer(["far_ops"], timeout=limit(20)))
        alone = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
        code = (f"import pickle; pickle.loads({begin!r})()\\n"
                "import mdispatch as md; print(md.register_or_verify(), md.ops.odd.f(3))")
        ran = subprocess.run([sys.executable, "-c", code], env=alone, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        done(out=ran.stdout, err=ran.stderr)
        """,
        str(tmp_path / "apart"),
    )
    assert got["err"] == ""
    assert got["out"] == "verify 6\n"


def test_in_the_main_interpreter_a_failure_breaks_the_pool(tmp_path) -> None:
    got = run_main(
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1, initializer=md.initializer("no_such_module")) as pool:
            error = pool.submit(abs, -1).exception()
        done(name=type(error).__name__, role=md.register_or_verify())
        """
    )
    assert (got["name"], got["role"]) == ("BrokenThreadPool", "register")
    assert re.search("ModuleNotFoundError.*no_such_module", got["stderr"])


RAY = """
import ray
from odd_ops import job

import mdispatch as md

def outcome(task):
    try:
        return ray.get(task)
    except md.errors.WarmUpError as error:
        return type(error).__name__, [type(each).__name__ for each in error.differences], str(error)

if __name__ == "__main__":
    hook = md.initializer("odd_ops", timeout=0.2)
    ray.init(num_cpus=1, include_dashboard=False,
             runtime_env={"worker_process_setup_hook": hook})
    print("GOT", repr([outcome(ray.remote(job).remote()) for _ in range(2)]))
    ray.shutdown()
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_with_ray_the_caller_of_a_task_hears_why(tmp_path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    (tmp_path / "odd_ops.py").write_text(f"{ODD}\ndef job():\n    return md.ops.odd.f(3)\n")
    (tmp_path / "program.py").write_text(RAY)
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=limit(120),
        check=False,
    )
    found = re.search("^GOT (.*)$", ran.stdout, re.MULTILINE)
    assert found is not None, ran.stderr
    for name, differences, text in eval(found[1]):
        assert name == "RayTaskError(WarmUpError)"
        assert differences == ["SchemaMismatchError"]
        assert "odd_ops.py:4" in text


@pytest.mark.parametrize("modules", [5, [5], [""]])
def test_what_names_no_module_is_refused_before_a_pool_is_made(modules) -> None:
    with pytest.raises(md.errors.InvalidArgumentError):
        md.initializer(modules)

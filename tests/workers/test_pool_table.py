"""The table of docs/pools.md: every pool, whatever goes wrong, wherever the operators are imported.

Each case is a program laid out as users lay theirs out, in a folder of its own. What a task's
caller gets is compared with the table, word for word. ``python tests/workers/test_pool_table.py``
runs all of them and writes the table.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from patience import limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.either_binding

BEGIN, END = "<!-- made by tests/workers/test_pool_table.py -->", "<!-- end of what is made -->"
PAGE = Path(__file__).parents[2] / "docs" / "pools.md"

#: What goes wrong: the module of operators, which each process imports.
OPERATORS = """
import mdispatch as md

is_main = md.is_main_interpreter()
library = md.Library("shop", "DEF")
factor = FACTOR
library.define(f"scale(int x, int factor={factor}) -> int")
library.impl("scale", lambda x, factor: x * factor, "CompositeExplicitAutograd")
if GATE:
    lib = md.Library("extra", "DEF")
    lib.define("add(int x) -> int")
    lib.impl("add", lambda x: x + 1, "CompositeExplicitAutograd")


def job(x):
    return md.ops.shop.scale(x), md.ops.extra.add(x)
"""

SITUATIONS = {
    "agrees": {"FACTOR": "2", "GATE": "True"},
    "differs": {"FACTOR": "2 if is_main else 3", "GATE": "True"},
    "lacks an operator": {"FACTOR": "2", "GATE": "is_main"},
    "main never registers": {"FACTOR": "2", "GATE": "not is_main"},
    "main dies": {"FACTOR": "2", "GATE": "True"},
}

#: Made by these expressions in the program; ``**start`` is the initializer, or nothing.
POOLS = {
    "Pool, fork": "get_context('fork').Pool(1, **start)",
    "Pool, forkserver": "get_context('forkserver').Pool(1, **start)",
    "Pool, spawn": "get_context('spawn').Pool(1, **start)",
    "ProcessPoolExecutor, fork": "ProcessPoolExecutor(1, get_context('fork'), **start)",
    "ProcessPoolExecutor, forkserver": "ProcessPoolExecutor(1, get_context('forkserver'), **start)",
    "ProcessPoolExecutor, spawn": "ProcessPoolExecutor(1, get_context('spawn'), **start)",
    "InterpreterPool": "md.InterpreterPool(1, **start)",
    "joblib": "get_reusable_executor(1, **start)",
}

LAYOUTS = {
    "at the top, with an initializer": ("from my_ops import job", "", True),
    "at the top, without one": ("from my_ops import job", "", False),
    "inside `main`, with one": ("", "from my_ops import job", True),
    "inside `main`, without one": ("", "from my_ops import job", False),
}

PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import mdispatch as md
AT_THE_TOP


def outcome(ask):
    try:
        return "answers", ask()
    except Exception as error:
        return type(error).__name__, str(error)


if __name__ == "__main__":
    INSIDE
    print("READY", flush=True)
    sys.stdin.readline()
    start = START
    if "reusable" in "POOL":
        from joblib.externals.loky import get_reusable_executor
    with POOL as pool:
        if hasattr(pool, "submit"):
            tasks = [pool.submit(job, x) for x in (1, 2)]
            got = [outcome(lambda: each.result()) for each in tasks]
        else:
            tasks = [pool.apply_async(job, (x,)) for x in (1, 2)]
            got = [outcome(lambda: each.get()) for each in tasks]
    print("GOT", repr(got), flush=True)
"""

MAIN = """
import sys
import mdispatch as md
import my_ops
print("READY", md.default_registry().address, flush=True)
sys.stdin.readline()
"""


def _start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """The program is the last of the words; before it come options of Python."""
    program = words[-1]
    kept = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    with (folder / f"{program}.stderr").open("w") as heard:
        return subprocess.Popen(
            [sys.executable, "-W", "error", *words],
            cwd=folder,
            env=kept | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=heard,
            text=True,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[str]) -> None:
    """The process and its children, whatever they do."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _ready(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("READY"), (line, [p.read_text() for p in folder.glob("*.stderr")])
    return line.removeprefix("READY").strip()


def run_case(
    folder: Path,
    pool: str,
    situation: str,
    layout: str,
    start: str = '{"initializer": md.initializer("my_ops", timeout=0.5)}',
    options: tuple[str, ...] = (),
) -> tuple[list, str, float]:
    """What the callers of two tasks got, standard error, and the seconds from the pool's start.
    ``start`` are the pool's arguments in a layout that has an initializer, ``options`` Python's.
    """
    top, inside, with_one = LAYOUTS[layout]
    text = OPERATORS
    for word, value in SITUATIONS[situation].items():
        text = text.replace(word, value)
    (folder / "my_ops.py").write_text(text)
    program = PROGRAM.replace("AT_THE_TOP", top).replace("INSIDE", inside or "pass")
    program = program.replace("POOL", POOLS[pool]).replace("START", start if with_one else "{}")
    (folder / "program.py").write_text(program)
    (folder / "main.py").write_text(MAIN)
    started = []
    try:
        environment = {}
        if situation == "main dies":
            started.append(_start(folder, "main.py"))
            environment["MDISPATCH_REGISTRY"] = _ready(started[0], folder)
        started.append(_start(folder, *options, "program.py", **environment))
        _ready(started[-1], folder)
        if situation == "main dies":
            _end(started[0])
        began = time.monotonic()
        out, _ = started[-1].communicate("\n", timeout=limit(60))
        took = time.monotonic() - began
    finally:
        for process in started:
            _end(process)
    heard = (folder / "program.py.stderr").read_text()
    found = re.search(r"^GOT (.*)$", out, re.MULTILINE)
    assert found, f"{out}\n{heard}"
    return ast.literal_eval(found[1]), heard, took


#: The columns of the table, and the pools whose callers get the same.
COLUMNS = {
    "by fork": ["Pool, fork", "ProcessPoolExecutor, fork"],
    "by forkserver or spawn, joblib": [
        *("Pool, forkserver", "Pool, spawn"),
        *("ProcessPoolExecutor, forkserver", "ProcessPoolExecutor, spawn", "joblib"),
    ],
    "`InterpreterPool`": ["InterpreterPool"],
}
#: What the page says for Python 3.11 to 3.13, and a sentence under the table for later versions.
IN_OLDER_INTERPRETERS = ("`SchemaMismatchError`", "`MainNeverArrivedError`")
EVERY_DAY = ("Pool, spawn", "InterpreterPool")
CASES = [
    pytest.param(pool, *case, marks=() if pool in EVERY_DAY else pytest.mark.long)
    for pools in COLUMNS.values()
    for pool in pools
    for case in itertools.product(SITUATIONS, LAYOUTS)
]


def cell(got: list[tuple[str, object]]) -> str:
    """What the callers of the two tasks got, in words."""
    kinds = [kind for kind, _ in got]
    assert kinds[0] == kinds[1], got
    return "right answers" if kinds[0] == "answers" else f"`{kinds[0]}`"


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def in_the_table(pool: str, situation: str, layout: str) -> str:
    """What docs/pools.md says."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    head = ["", "operators are imported", *COLUMNS]
    assert table_row(head).strip("| ").split(" | ") in rows
    column = next(i for i, pools in enumerate(COLUMNS.values(), 2) if pool in pools)
    (found,) = [row[column] for row in rows if row[:2] == [situation, layout]]
    return found


@pytest.mark.waits
@pytest.mark.parametrize(("pool", "situation", "layout"), CASES)
def test_the_callers_of_tasks_get_what_the_page_says(pool, situation, layout, tmp_path) -> None:
    if pool == "joblib":
        pytest.importorskip("joblib", reason="joblib is not installed")
    got, heard, _ = run_case(tmp_path, pool, situation, layout)
    expected = in_the_table(pool, situation, layout)
    if sys.version_info >= (3, 14) and expected in IN_OLDER_INTERPRETERS:
        expected = "`WarmUpError`"
    assert cell(got) == expected
    for kind, value in got:
        if kind == "answers":
            assert value in [(2, 2), (4, 3)]
        elif kind == "WarmUpError":
            assert "my_ops.py" in value or "the registrar" in value
    assert heard.count("Traceback") <= 3  # no worker was replaced again and again


#: Ways to give a pool its initializer.
STARTS = {
    "initializer": '{"initializer": md.initializer("my_ops")}',
    "warm_up": '{"initializer": md.warm_up, "initargs": ("my_ops", sys.path)}',
}


@pytest.mark.waits
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("layout", [name for name, (*_, with_one) in LAYOUTS.items() if with_one])
@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool != "InterpreterPool"])
def test_where_nothing_is_shared_each_process_registers_for_itself(
    pool, layout, start, tmp_path, monkeypatch
) -> None:
    if pool == "joblib":
        pytest.importorskip("joblib", reason="joblib is not installed")
    monkeypatch.setenv("MDISPATCH_BINDING", "none")
    its_warning = ("-W", "always:process:RuntimeWarning")
    got, heard, _ = run_case(tmp_path, pool, "agrees", layout, STARTS[start], its_warning)
    assert [kind for kind, _ in got] == ["answers", "answers"], got
    assert [value for _, value in got] == [(2, 2), (4, 3)]
    # A child of fork goes on with a copy, and registers nothing.
    assert ("NotSharedWarning" in heard) == ("fork" not in pool.split(", ")), heard
    assert "Traceback" not in heard


def main() -> None:
    """Runs every case, and writes the table into the page."""
    lines = [table_row(["", "operators are imported", *COLUMNS]), "|" + "---|" * (2 + len(COLUMNS))]
    for situation, layout in itertools.product(SITUATIONS, LAYOUTS):
        cells = []
        for pools in COLUMNS.values():
            found = set()
            for pool in pools:
                with tempfile.TemporaryDirectory() as folder:
                    got, _, took = run_case(Path(folder), pool, situation, layout)
                found.add(cell(got))
                said = f"{took:6.2f} s  {cell(got)}"
                print(f"{situation:22} {layout:33} {pool:32} {said}", flush=True)
            cells.append(" or ".join(sorted(found)))
        lines.append(table_row([situation, layout, *cells]))
    before, after = PAGE.read_text().split(BEGIN)[0], PAGE.read_text().split(END)[1]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]))


if __name__ == "__main__":
    main()

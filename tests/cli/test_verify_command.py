"""The command ``mdispatch verify``, as users run it: what it prints, where, and its exit status."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch, on_terminal, without_style
from commands import environment
from patience import limit
from rich.console import Console

import mdispatch as md
from mdispatch import WarmUp
from mdispatch.cli.verify.result import Difference, Plan, Result, Row

pytestmark = pytest.mark.either_binding

AGREEING = """
import mdispatch as md

lib = md.Library("agreeing", "DEF")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor")
lib.define("shift(Tensor x, float by) -> Tensor")
lib.impl("scale", lambda x, factor: x, "CPU")
lib.impl("scale", lambda x, factor: x, "CUDA")
lib.impl("shift", lambda x, by: x, "CPU")
print("a module that prints")
"""

DIVERGENT = """
import mdispatch as md

in_main = md.register_or_verify() == "register"
lib = md.Library("divergent", "DEF")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor" if in_main else
           "scale(Tensor x, int factor=2) -> Tensor")
lib.define("shift(Tensor x) -> Tensor")
lib.impl("shift", lambda x: x, "CPU" if in_main else "CUDA")
lib.define("normalize(Tensor x) -> Tensor" if in_main else "normalise(Tensor x) -> Tensor")
if in_main:
    lib.define("clip(Tensor x) -> Tensor")
else:
    md.Library("nowhere", "DEF")
md.register_type(bytes, "CPU" if in_main else ("CUDA", "AutogradCUDA"))
"""

SLOW = """
import select
import threading
import mdispatch as md

def register():
    lib = md.Library("slow", "DEF")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")

if md.is_main_interpreter():
    # The main interpreter registers only when a worker waits for it.
    def when_somebody_waits():
        members = md.default_registry().dispatcher.facts.members
        # Letting go of the GIL: up to 3.12, a thread that wants it asks only threads of its own
        # interpreter to drop it.
        while not any(member[-1] == b"slow" for member in members()):
            select.select([], [], [], 0.001)
        register()
    threading.Thread(target=when_somebody_waits, daemon=True).start()
else:
    register()
"""

# Does something in workers only, by kind: interpreters have the pid of the main interpreter.
IN_WORKERS = """
import os, signal, sys, time
import mdispatch as md

md.Library({name!r}, "DEF")
registrar_pid = md.default_registry().dispatcher.facts.registrations()[2][0].pid
in_process = os.getpid() != registrar_pid
in_interpreter = not in_process and not md.is_main_interpreter()
{action}
"""


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mdispatch", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: its sub-interpreters join the one default registry of a process."""
    return mdispatch(*arguments, cwd=folder, process=True)


def verify_json(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run(folder, "verify", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "agreeing.py").write_text(AGREEING)
    (folder / "divergent.py").write_text(DIVERGENT)
    (folder / "slow.py").write_text(SLOW)
    actions = {
        "killed": "if in_process: print('on the brink', flush=True), os.kill(os.getpid(), 9)",
        "leaves": "if in_process: os._exit(0)",
        "raises": "if in_interpreter: raise ValueError('not \\x1b[31m here')",
        "exits": "if in_process or in_interpreter: sys.exit('no')",
        "hangs": "if in_process or in_interpreter: time.sleep(600)",
        "speaks": """
if in_process:
    pipe = open("alive", "w")
    print("begun", file=pipe, flush=True)
    time.sleep(600)
""",
    }
    for name, action in actions.items():
        (folder / f"{name}.py").write_text(IN_WORKERS.format(name=name, action=action))
    (folder / "fails.py").write_text("import mdispatch\nraise RuntimeError('never works')\n")
    (folder / "needs.py").write_text("import something_that_is_not_there\n")
    return folder


@pytest.fixture(scope="module")
def divergent(modules: Path) -> tuple[int, dict[str, Any]]:
    return verify_json(modules, "divergent", "--timeout", "0.4")


# --- agreement ------------------------------------------------------------------------------------


def test_agreeing_modules_give_status_0_and_one_row_per_worker(modules: Path) -> None:
    done = run(modules, "verify", "agreeing", "--interpreters", "3", "--processes", "2")
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith(" -")]
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in rows] == ["interpreter"] * 3 + ["process"] * 2
    assert all(row[3:5] == ["2", "3"] for row in rows), "operators and kernels verified"
    assert "2 operators and 3 kernels registered by agreeing" in done.stdout
    assert "All 5 workers agree with the main interpreter." in done.stdout


def test_standard_output_holds_the_answer_only(modules: Path) -> None:
    done = run(modules, "verify", "agreeing", "--interpreters", "1")
    assert "a module that prints" not in done.stdout
    assert "a module that prints" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "warming up" not in done.stdout + done.stderr


def test_json_has_the_documented_keys_and_nothing_beside_it(modules: Path) -> None:
    status, answer = verify_json(modules, "agreeing", "--interpreters", "1", "--timeout", "3.5")
    assert status == 0
    assert answer["agree"] is True
    assert answer["format"] == 2
    assert answer["modules"] == ["agreeing"]
    assert answer["timeout"] == 3.5
    assert answer["own_gil"] is (sys.version_info >= (3, 12))
    assert answer["main"].keys() == {"pid", "operators", "kernels", "import_seconds"}
    assert answer["differences"] == []
    interpreter, process = answer["workers"]
    assert (interpreter["kind"], process["kind"]) == ("interpreter", "process")
    assert interpreter["pid"] == answer["main"]["pid"] != process["pid"]
    assert interpreter["interpreter"] > 0 == process["interpreter"]
    for worker in answer["workers"]:
        assert worker["agrees"] is True
        assert (worker["operators"], worker["kernels"]) == (2, 3)
        times = ("create", "mdispatch", "import", "longest_wait")
        assert all(worker[f"{name}_seconds"] >= 0 for name in times)
        assert worker["create_seconds"] > 0 < worker["import_seconds"]


@pytest.mark.thorough
@pytest.mark.waits
def test_workers_wait_for_what_the_main_interpreter_registers_later(modules: Path) -> None:
    arguments = ("slow", "--interpreters", "1", "--processes", "0")
    status, answer = verify_json(modules, *arguments, "--timeout", "60")
    (worker,) = answer["workers"]
    assert status == 0
    assert answer["main"]["operators"] == 0
    assert (worker["operators"], worker["kernels"]) == (1, 1)
    assert worker["longest_wait_seconds"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [(), ("--processes", "0")], ids=["all", "interpreters"])
def test_modules_that_register_nothing_are_no_success(
    modules: Path, workers: tuple[str, ...]
) -> None:
    status, answer = verify_json(modules, "string", "--interpreters", "1", *workers)
    assert (status, answer["agree"], answer["empty"], answer["differences"]) == (5, False, True, [])
    done = run(modules, "verify", "string", "--interpreters", "1", *workers)
    assert done.returncode == 5
    assert "Nothing was verified: these modules register nothing." in done.stdout


@pytest.mark.waits
@pytest.mark.parametrize("name", ["spoken_for", "slow"])
def test_modules_without_operators_may_have_something_to_verify(modules: Path, name: str) -> None:
    (modules / "spoken_for.py").write_text(
        "import mdispatch as md\nlib = md.Library('_', 'IMPL')\n"
        "lib.fallback(lambda *args: None, 'CUDA')\n"
    )
    status, answer = verify_json(modules, name, "--interpreters", "1")
    assert (status, answer["main"]["operators"]) == (0, 0)
    assert (answer["agree"], answer["empty"]) == (True, False)


# --- differences ----------------------------------------------------------------------------------


@pytest.mark.dear
def test_every_difference_is_told_once_with_the_workers_that_have_it(
    divergent: tuple[int, dict[str, Any]],
) -> None:
    status, answer = divergent
    assert status == 1
    assert answer["agree"] is False
    told = {(d["category"], d["kind"], d["name"], d["key"]) for d in answer["differences"]}
    assert told == {
        ("schema", "def", "divergent::scale", ""),
        ("key", "impl", "divergent::shift", "CUDA"),
        ("name", "def", "divergent::normalise", ""),
        ("late", "library", "nowhere", ""),
        ("missing", "impl", "divergent::shift", "CPU"),
        ("missing", "def", "divergent::normalize", ""),
        ("missing", "def", "divergent::clip", ""),
        ("type", "type", "builtins.bytes", ""),
    }
    assert len(answer["differences"]) == len(told)
    assert all(d["workers"] == [0, 1, 2] for d in answer["differences"])
    assert all(len(worker["differences"]) == len(told) for worker in answer["workers"])


def test_another_schema_is_told_with_both_texts_and_places(
    modules: Path, divergent: tuple[int, dict[str, Any]]
) -> None:
    (schema,) = (d for d in divergent[1]["differences"] if d["category"] == "schema")
    assert schema["error"] == "SchemaMismatchError"
    assert schema["schema_there"] == "divergent::scale(Tensor x, float factor=2.) -> Tensor"
    assert schema["schema_here"] == "divergent::scale(Tensor x, int factor=2) -> Tensor"
    for place in (schema["here"], schema["there"]):
        file, _, line = place.rpartition(":")
        assert Path(file).resolve() == (modules / "divergent.py").resolve()
        assert int(line) in (6, 7)


def test_what_is_there_instead_is_told(divergent: tuple[int, dict[str, Any]]) -> None:
    by_category = {d["category"]: d for d in divergent[1]["differences"]}
    assert by_category["key"]["keys_there"] == ["CPU"]
    assert by_category["name"]["nearest"][0] == "divergent::normalize"
    assert by_category["late"]["error"] == "MainNeverArrivedError"
    assert by_category["type"]["keys_there"] == ["CPU"]
    assert by_category["type"]["keys_here"] == ["CUDA", "AutogradCUDA"]


def test_people_read_what_is_where_and_what_to_do(modules: Path) -> None:
    done = run(modules, "verify", "divergent", "--timeout", "0.2", "--interpreters", "1")
    assert done.returncode == 1
    for words in (
        "divergent::scale: another schema",
        "main:    divergent::scale(Tensor x, float factor=2.) -> Tensor",
        "worker:  divergent::scale(Tensor x, int factor=2) -> Tensor",
        "divergent::shift at CUDA: missing in main",
        "divergent.py:8, with kernels at CPU",
        "divergent::normalise: missing in main",
        "nearest names in main: divergent::normalize",
        "library nowhere: never arrived in main",
        "nothing in namespace nowhere within 0.2 s",
        "divergent::clip: missing in the worker",
        "builtins.bytes: a type with other keys",
        "worker:  CUDA, AutogradCUDA",
        "(in all 2 workers)",
        "2 of 2 workers differ from the main interpreter: 8 differences.",
    ):
        assert words in done.stdout, f"{words!r} in\n{done.stdout}"


@pytest.mark.thorough
def test_a_table_fits_80_columns(modules: Path) -> None:
    arguments = ("verify", "divergent", "--timeout", "0", "--interpreters", "1")
    done = on_terminal(*arguments, columns=80, cwd=modules, process=True)
    table = without_style(done.stdout).partition("\n\n")[2].partition("\n\n")[0]
    assert "interpreter" in table
    assert max(map(len, table.splitlines())) <= 80


def differing() -> Result:
    """A result with every kind of difference, and workers that did not live to report."""
    missing = Difference(
        *("missing", "MissingInWorkerError", "impl", "a_long_namespace::normalize.with_epsilon"),
        key="AutogradPrivateUse1",
        there="/srv/releases/2026-11-22/site-packages/a_long_namespace/normalization.py:1234",
        nearest=("a_long_namespace::normalise", "a_long_namespace::normalize"),
        text="Import it there, too.",
    )
    schema = Difference(
        *("schema", "SchemaMismatchError", "def", "shop::scale"),
        here="ops.py:12",
        there="ops.py:13",
        schema_here="shop::scale(Tensor x, int factor=2) -> Tensor",
        schema_there="shop::scale(Tensor x, float factor=2.) -> Tensor",
        text="Make both the same.",
    )
    other = Difference(
        *("type", "TypeKeysMismatchError", "type", "shop.arrays.Array"),
        here="arrays.py:12",
        there="arrays.py:14",
        keys_here=("CUDA", "AutogradCUDA"),
        keys_there=("CPU",),
        text="Make both the same.",
    )
    killed = Difference("killed", "SIGKILL", summary="killed by SIGKILL", text="on the brink")
    late = Difference("late", "MainNeverArrivedError", "library", "nowhere", here="ops.py:3")
    failed = Difference("failed", "ValueError", summary="ValueError: no", text="at ops.py:1")
    rows = [
        Row("interpreter", 1307886, 1, (), 0.0519, 0.1163, 9123, 15456, 0.1313, 0.0001),
        Row("interpreter", 1307886, 2, (missing, schema, other, late), 0.2, 1.5, 9, 15, 123.4, 4.9),
        Row("process", 1307912, 0, (failed,), 0.07, 0.09),
        Row("process", 1307913, None, (killed,), 0.0677),
    ]
    main = WarmUp(9123, 15456, 0.01951, 0.0, ())
    return Result(Plan(("shop.ops", "a_long_namespace.ops"), 2, 2, 5.0), main, rows, 24579)


def words_of(text: str) -> str:
    """The text without what differs by width: line ends, indentation, the lines of a table."""
    return " ".join(text.replace("─", " ").split())


@pytest.mark.thorough
def test_no_fact_is_lost_at_any_width() -> None:
    for columns in range(40, 201):
        tell_all(columns)


def tell_all(columns: int) -> None:
    result = differing()
    answer = json.loads(result.json())
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, markup=False)
    with console.capture() as shown:
        result.show(console)
    lines = without_style(shown.get()).splitlines()
    told = words_of("\n".join(lines))
    # Only a word that is longer than a line goes beyond it.
    assert all(len(line.rstrip()) <= columns or len(line.split()) == 1 for line in lines), lines
    for part in (str(answer["main"]["operators"]), "15456 kernels", "19.5 ms", *answer["modules"]):
        assert part in told
    for difference in answer["differences"]:
        for line in difference["text"].splitlines():
            assert words_of(line) in told
    for worker, row in zip(answer["workers"], result.rows, strict=True):
        facts = [worker["kind"], "?" if row.interpreter is None else str(worker["interpreter"])]
        facts += [str(worker[what] or "?") for what in ("pid", "operators", "kernels")]
        facts += [each.category for each in row.differences]
        for seconds in ("create", "mdispatch", "import", "longest_wait"):
            time = worker[f"{seconds}_seconds"]
            facts.append("?" if time is None else f"{time * 1e3:.{1 if time < 1 else 0}f}")
        assert all(fact in told.split() for fact in map(str, facts)), (facts, told)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_has_every_figure_of_every_worker(modules: Path, columns: int) -> None:
    arguments = ("verify", "divergent", "--timeout", "0", "--interpreters", "1")
    done = on_terminal(*arguments, columns=columns, cwd=modules, process=True)
    told = words_of(without_style(done.stdout))
    assert re.search(r"interpreter pid \d+ id [1-9]\d* operators \d+ kernels \d+ create ms ", told)
    assert re.search(
        r"process pid \d+ id 0 operators \d+ kernels \d+ create ms [\d.]+ import ", told
    )
    assert "differs 1 schema" in told


def test_the_timeout_bounds_the_waits(divergent: tuple[int, dict[str, Any]]) -> None:
    """The waits of a worker take 0.4 s together, and would take the 5 s of the default."""
    for worker in divergent[1]["workers"]:
        assert 0 < worker["longest_wait_seconds"] < 5


# --- workers that do not come to an end -----------------------------------------------------------


def test_a_killed_process_is_a_row_with_its_last_words(modules: Path) -> None:
    status, answer = verify_json(modules, "killed", "--interpreters", "1")
    (killed,) = answer["differences"]
    assert status == 1
    assert [worker["agrees"] for worker in answer["workers"]] == [True, False]
    assert (killed["category"], killed["error"]) == ("killed", "SIGKILL")
    assert "on the brink" in killed["text"]


def test_a_process_that_leaves_without_a_word_differs(modules: Path) -> None:
    status, answer = verify_json(modules, "leaves", "--interpreters", "0")
    assert status == 1
    assert answer["differences"][0]["category"] == "failed"
    assert "before it reported" in answer["differences"][0]["text"]


def test_an_import_that_fails_in_an_interpreter_is_told_with_its_place(modules: Path) -> None:
    done = run(modules, "verify", "raises")
    assert done.returncode == 1
    assert "ValueError: not \\x1b[31m here" in done.stdout, "nothing steers the terminal"
    assert f"{modules / 'raises.py'}:9" in done.stdout
    assert "(in interpreter 1, interpreter 2)" in done.stdout
    assert "2 of 3 workers differ" in done.stdout


def test_a_module_that_exits_in_workers_differs(modules: Path) -> None:
    status, answer = verify_json(modules, "exits", "--interpreters", "1")
    assert status == 1
    assert [d["error"] for d in answer["differences"]] == ["SystemExit"]
    assert answer["differences"][0]["workers"] == [0, 1]


@pytest.mark.thorough
@pytest.mark.waits
def test_a_worker_that_hangs_is_given_up_and_its_place_told(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its Python begins late, as on a loaded machine."""
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(1.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Time to begin; on a loaded machine, the five seconds after the timeout are not enough.
    timeout = str(limit(1))
    done = run(modules, "verify", "hangs", "--timeout", timeout, "--interpreters", "1")
    assert done.returncode == 1
    assert "the interpreter was left behind" in done.stdout
    assert "the process was killed" in done.stdout
    assert f'File "{modules / "hangs.py"}", line 9' in done.stdout


def test_ctrl_c_ends_it_at_once_and_kills_its_processes(modules: Path) -> None:
    os.mkfifo(modules / "alive")
    with start(modules, "verify", "speaks", "--interpreters", "1") as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        with open(modules / "alive") as pipe:
            assert pipe.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert pipe.read() == "", "the pipe ends when the worker that holds it is gone"
        output, complaints = process.communicate()
        watchdog.cancel()
    assert process.returncode == 130
    assert (output, complaints) == ("", "")


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "MODULE"),
        (["no_such_module"], "no_such_module"),
        (["string.nothing"], "string.nothing"),
        (["folder/module.py"], "'folder.module'"),
        (["a..b"], "'a..b'"),
        (["agreeing", "--interpreters", "-1"], "-1"),
        (["agreeing", "--processes", "1000000"], "1000000"),
        (["agreeing", "--processes", "many"], "--processes"),
        (["agreeing", "--timeout", "-0.5"], "-0.5"),
        (["agreeing", "--timeout", "nan"], "nan"),
        (["agreeing", "--timeout", "inf"], "inf"),
        (["agreeing", "--interpreters", "0", "--processes", "0"], "nothing to verify"),
        (["fails"], "RuntimeError: never works"),
        (["needs"], "something_that_is_not_there"),
        (["agreeing", "--jsen"], "--jsen"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unusable_arguments_give_status_2_and_a_reason(
    modules: Path, arguments: list[str], words: str
) -> None:
    done = mdispatch("verify", *arguments, cwd=modules)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_the_version_is_told(modules: Path) -> None:
    done = mdispatch("--version")
    assert (done.returncode, done.stdout) == (0, f"mdispatch {md.__version__}\n")


def test_a_missing_extra_is_told_with_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no', name='click')")
    done = run(tmp_path, "verify", "string")
    assert done.returncode == 2
    assert "pip install 'mdispatch[cli]'" in done.stderr


RUNNING = """
import sys
import mdispatch as md
registry = md.Registry.create(sys.argv[1])
lib = md.Library("against", "DEF", registry=registry)
lib.define("scale(Tensor x, float factor=2.0) -> Tensor")
lib.impl("scale", lambda x, factor: x, "CPU")
lib.define("other(Tensor x) -> Tensor")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.waits
@pytest.mark.thorough
def test_a_version_is_compared_with_one_that_is_running(tmp_path: Path) -> None:
    module = RUNNING.replace("md.Registry.create(sys.argv[1])", "md.default_registry()")
    module = module.partition("print")[0]
    (tmp_path / "same.py").write_text(module)
    (tmp_path / "newer.py").write_text(module.replace("2.0", "3.0"))
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "running.py").write_text(RUNNING)
    name = f"against-{os.getpid()}"
    running = subprocess.Popen(
        [sys.executable, "running.py", name],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            against = ("--against", name, "--interpreters", "1")
            assert run(tmp_path, "verify", "empty", *against).returncode == 5
            status, answer = verify_json(tmp_path, "newer", *against)
            assert status == 1
            assert (answer["against"], answer["main"]["pid"]) == (name, running.pid)
            assert (answer["main"]["operators"], answer["main"]["kernels"]) == (2, 1)
            (schema,) = (d for d in answer["differences"] if d["category"] == "schema")
            assert schema["workers"] == [0, 1]
            assert schema["there"].endswith("running.py:6")
            assert schema["here"].endswith("newer.py:6")
            same = run(tmp_path, "verify", "same", *against)
            assert same.returncode == 0, same.stdout
            assert f"registry {name} of pid {running.pid}" in same.stdout
        finally:
            running.communicate("end\n", timeout=limit(60))
    gone = mdispatch("verify", "same", "--against", name, cwd=tmp_path)
    assert gone.returncode == 2
    assert name in gone.stderr


@pytest.mark.thorough
def test_a_module_that_imports_threading_leaves_no_dead_members(tmp_path: Path) -> None:
    """The end of an interpreter waits for the thread that imported threading there."""
    module = RUNNING.replace("md.Registry.create(sys.argv[1])", "md.default_registry()")
    (tmp_path / "same.py").write_text("import threading\n" + module.partition("print")[0])
    (tmp_path / "running.py").write_text(RUNNING)
    name = f"threads-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "running.py", name],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        done = run(tmp_path, "verify", "same", "--against", name, "--interpreters", "2")
        seen = json.loads(mdispatch("doctor", name, "--json").stdout)["registries"][0]
        running.communicate("end\n", timeout=limit(60))
    assert done.returncode == 0, done.stdout
    assert (seen["processes"], seen["problems"]) == ({"alive": 1, "dead": 0}, [])


ENDING = """
import sys
import mdispatch as md
lib = md.Library("against", "DEF")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor")
ended = open("ended", "w")  # until this process ends
print("ready", flush=True)
open("stop").read()
"""


@pytest.mark.waits
@pytest.mark.thorough
def test_a_registry_whose_members_end_meanwhile_is_not_called_the_same(tmp_path: Path) -> None:
    """The worker would be the registrar, and register what it has."""
    version = ENDING.partition("ended =")[0].replace("2.0", "3.0")
    ends = 'open("stop", "w").close()\nopen("ended").read()\n'
    (tmp_path / "running.py").write_text(ENDING)
    (tmp_path / "newer.py").write_text(ends + version)
    for name in ("stop", "ended"):
        os.mkfifo(tmp_path / name)
    name = f"ending-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "running.py"],
        cwd=tmp_path,
        env=environment(MDISPATCH_REGISTRY=f"elect:{name}"),
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        # Opened both ways, a pipe keeps nobody waiting; this end is closed before anybody reads.
        other = os.open(tmp_path / "ended", os.O_RDWR)
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.close(other)
        workers = ("--interpreters", "0", "--processes", "1")
        done = run(tmp_path, "verify", "newer", "--against", name, *workers)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"has ended in registry {name} while this compared with it" in done.stderr


def test_the_registry_of_a_parent_is_not_used(modules: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mdispatch", "verify", "agreeing", "--interpreters", "1"],
        cwd=modules,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(MDISPATCH_REGISTRY="memfd:1:1:1"),
    ) as process:
        _, complaints = process.communicate(timeout=limit(60))
    assert process.returncode == 0, complaints

"""The commands ``mdispatch table``, ``show`` and ``why``, as users run them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch, on_terminal, without_style
from commands import environment
from patience import limit

import mdispatch as md
from mdispatch.keys.numbers import RUNTIME_KEYS

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

SHOP = """
import mdispatch as md

lib = md.Library("shop", "DEF")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor", tags=["pointwise", "core"])  #: scale
lib.define("scale.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
lib.set_python_module("shop.fakes", "pip install shop")
lib.define("norm(Tensor x) -> Tensor", alias_analysis="PURE_FUNCTION")

def older(x, factor): ...
def cpu(x, factor): ...
def graded(x, factor): ...
def anything(x): ...
def fallback(op, *args): ...

lib.impl("scale", older, "CPU")  #: older
lib.impl("scale", cpu, "CPU", signature="(Tensor x, float factor) -> Tensor")  #: cpu
lib.impl("scale", graded, "Autograd")  #: graded
lib.impl("scale", md.fallthrough_kernel, "SparseCPU")  #: sparse
lib.impl("norm", anything)
lib.impl("norm", anything, "SparseCUDA")
lib.impl("nobody", anything, "CPU")
lib.register_name("held")  #: held
md.Library("_", "IMPL").fallback(fallback, "Conjugate")  #: fallback
print("a module that prints")
"""
PLACES = {
    text.partition("  #: ")[2]: f"shop.py:{number}"
    for number, text in enumerate(SHOP.splitlines(), 1)
    if "  #: " in text
}

OTHER = """
import mdispatch as md
md.Library("shop", "FRAGMENT").impl("scale", lambda x, factor: x, "CUDA")
"""

ODD = """
import mdispatch as md
def kernel(x): ...
kernel.__qualname__ = "red\\x1b[31m"
lib = md.Library("odd", "DEF")
lib.define("f(Tensor x) -> ()")
lib.impl("f", kernel)
"""

ODD_TWICE = """
from odd import kernel, lib
for _ in range(2):
    lib.impl("f", kernel, "CPU", allow_override=False)
"""

RUNNING = """
import os, sys
sys.path.insert(0, sys.argv[2])
import mdispatch as md
import shop
named = md.Registry.create(sys.argv[1])
lib = md.Library("job", "DEF", registry=named)
lib.define("run(Tensor x) -> int")
lib.impl("run", len, "CPU")
os.write(int(sys.argv[3]), f"{md.default_registry().address} {os.getpid()}\\n".encode())
for line in sys.stdin:
    alive = [member for member in named.dispatcher.facts.members() if member[3]]
    os.write(int(sys.argv[3]), f"{len(alive)}\\n".encode())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "shop.py").write_text(SHOP)
    (folder / "other.py").write_text(OTHER)
    (folder / "odd.py").write_text(ODD)
    (folder / "odd_twice.py").write_text(ODD_TWICE)
    (folder / "fails.py").write_text("raise RuntimeError('never works')\n")
    (folder / "hangs.py").write_text(
        "import time\npipe = open('alive', 'w')\nprint('begun', file=pipe, flush=True)\n"
        "time.sleep(600)\n"
    )
    return folder


def run(folder: Path, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    return mdispatch(*arguments, cwd=folder, **changes)


def shop(folder: Path, *arguments: str) -> str:
    """The answer of a command about a module's operators."""
    done = run(folder, *arguments, "--import", "shop")
    assert done.returncode == 0, done.stderr
    return done.stdout


def shop_json(folder: Path, *arguments: str) -> dict[str, Any]:
    answer = json.loads(shop(folder, *arguments, "--json"))
    assert (answer["format"], answer["mdispatch"]) == (2, md.__version__)
    return answer


def rows(text: str) -> dict[str, list[str]]:
    """The rows of a printed table by their first cell."""
    lines = text.partition("──\n")[2].partition("\n\n")[0].splitlines()
    cells = [re.split(" {2,}", line) for line in lines]
    assert all(len(row) == len(cells[0]) for row in cells)
    assert len({row[0] for row in cells}) == len(cells)
    return {row[0]: row[1:] for row in cells}


class Main:
    """A running process with a named registry, and with shop in its default registry."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNING, name, str(folder), str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(write,),
            text=True,
            env=environment(),
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self.address, self.pid = self._answers.readline().split()

    def members(self) -> int:
        assert self.process.stdin is not None
        print("?", file=self.process.stdin, flush=True)
        return int(self._answers.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._answers.close()
        # The file that a killed registrar leaves is replaced by the next one of its name.
        md.Registry.create(self.name).close()


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Main]:
    main = Main(folder, f"test-explain-{os.getpid()}")
    yield main
    main.kill()


# --- table ----------------------------------------------------------------------------------------


def test_a_table_has_the_kernel_the_rule_and_the_place_of_each_key(folder: Path) -> None:
    text = shop(folder, "table", "shop::scale", "--all")
    table = rows(text)
    assert text.startswith("shop::scale(Tensor x, float factor=2.) -> Tensor\n")
    assert table["CPU"] == ["kernel", "shop.cpu", PLACES["cpu"]]
    assert table["AutogradCPU"] == ["autograd kernel", "shop.graded", PLACES["graded"]]
    assert table["Conjugate"] == ["backend fallback", "shop.fallback", PLACES["fallback"]]


def test_keys_that_fall_through_are_told_from_kernels(folder: Path) -> None:
    table = rows(shop(folder, "table", "shop::scale", "--all"))
    assert table["SparseCPU"] == ["kernel", "falls through", PLACES["sparse"]]
    assert table["BackendSelect"] == ["backend fallback", "falls through", "built in"]
    slots = {slot["key"]: slot for slot in shop_json(folder, "table", "shop::scale")["slots"]}
    assert [slots[key]["falls_through"] for key in ("CPU", "SparseCPU")] == [False, True]
    assert [slots[key]["kernel"] for key in ("CPU", "SparseCPU")] == ["shop.cpu", None]
    assert slots["BackendSelect"]["location"] is None


def test_a_slot_that_refuses_calls_is_told_from_kernels(folder: Path) -> None:
    table = rows(shop(folder, "table", "shop::norm"))
    assert table["AutogradOther"] == ["ambiguous autogradother", "nothing: a call is refused", "-"]


@pytest.mark.dear
def test_only_keys_that_have_something_are_shown_unless_all_are_asked_for(folder: Path) -> None:
    some, everything = (
        rows(shop(folder, "table", "shop::scale", *more)) for more in ([], ["--all"])
    )
    assert list(everything) == [key.name for key in RUNTIME_KEYS]
    assert everything["CUDA"] == ["missing", "-", "-"]
    lines: dict[tuple[str, ...], list[str]] = {}  # keys with one answer have one line
    for key, row in everything.items():
        if row[0] != "missing":
            lines.setdefault(tuple(row), []).append(key)
    assert some == {
        ", ".join(keys[:3]) + f" and {len(keys) - 3} more" * (len(keys) > 3): [*row]
        for row, keys in lines.items()
    }
    assert len(some) < len(everything) // 4


def test_the_counts_under_a_table_are_those_of_its_keys(folder: Path) -> None:
    text = shop(folder, "table", "shop::scale", "--all")
    table = rows(text)
    missing = sum(row[0] == "missing" for row in table.values())
    passed = sum(row[1] == "falls through" for row in table.values())
    run = len(table) - missing - passed
    expected = f"Of {len(RUNTIME_KEYS)} keys, lowest priority first: {run} run a kernel, "
    assert text.splitlines()[-1] == f"{expected}{passed} fall through, {missing} have nothing."


def test_a_table_is_restricted_to_the_keys_that_are_asked_for(folder: Path) -> None:
    table = rows(shop(folder, "table", "shop::scale", "--key", "CUDA", "--key", "CPU"))
    assert list(table) == ["CPU", "CUDA"]
    assert table["CUDA"] == ["missing", "-", "-"]


def test_the_json_of_a_table_has_the_documented_keys(folder: Path) -> None:
    answer = shop_json(folder, "table", "shop::scale", "--all")
    assert answer["operator"] == "shop::scale"
    assert answer["schema"] == "shop::scale(Tensor x, float factor=2.) -> Tensor"
    assert answer["keys"] == len(answer["slots"]) == len(RUNTIME_KEYS)
    slot = next(slot for slot in answer["slots"] if slot["key"] == "CPU")
    place = slot.pop("location")
    assert slot == {
        "key": "CPU",
        "reason": "kernel",
        "kernel": "shop.cpu",
        "falls_through": False,
    }
    assert place.keys() == {"where", "pid", "interpreter"}
    assert place["where"] == f"{folder}/{PLACES['cpu']}"
    assert place["interpreter"] == 0


# --- show -----------------------------------------------------------------------------------------


def test_show_prints_the_definition_and_every_registration_with_its_place(folder: Path) -> None:
    text = shop(folder, "show", "shop::scale")
    assert re.search(rf"^defined at +{PLACES['scale']} by pid \d+, interpreter 0$", text, re.M)
    assert re.search(r"^tags +core, pointwise$", text, re.M)
    assert re.search(r"^other overloads +shop::scale\.out$", text, re.M)
    assert re.search(r"^4 kernels, 3 of them active, registered by pid \d+", text, re.M)
    assert re.search(rf"^CPU +active +shop\.cpu +{PLACES['cpu']}$", text, re.M)
    assert re.search(rf"^CPU +inactive +shop\.older +{PLACES['older']}$", text, re.M)
    assert re.search(r"^ +\(Tensor x, float factor\) -> Tensor$", text, re.M)
    assert re.search(r"^SparseCPU +active +falls through ", text, re.M)


def test_alias_keys_are_in_show_and_not_in_the_table(folder: Path) -> None:
    assert re.search(r"^Autograd \(alias\) +active", shop(folder, "show", "shop::scale"), re.M)
    assert "Autograd" not in rows(shop(folder, "table", "shop::scale", "--all"))


def test_the_json_of_show_has_the_documented_keys(folder: Path) -> None:
    answer = shop_json(folder, "show", "shop::scale")
    assert answer["defined"]["where"] == f"{folder}/{PLACES['scale']}"
    assert answer["alias_analysis"] == "FROM_SCHEMA"
    assert answer["tags"] == ["core", "pointwise"]
    assert answer["overloads"] == ["shop::scale", "shop::scale.out"]
    assert (answer["dangling"], answer["names"]) == (False, [])
    told = [(k["key"], k["alias"], k["active"], k["kernel"]) for k in answer["kernels"]]
    assert told == [
        ("CPU", False, True, "shop.cpu"),
        ("CPU", False, False, "shop.older"),
        ("SparseCPU", False, True, "fallthrough"),
        ("Autograd", True, True, "shop.graded"),
    ]
    assert answer["kernels"][0]["signature"] == "(Tensor x, float factor) -> Tensor"
    assert answer["kernels"][1]["signature"] is None
    assert [kernel["falls_through"] for kernel in answer["kernels"]] == [False, False, True, False]


def test_the_module_that_an_operator_names_is_told(folder: Path) -> None:
    named = shop_json(folder, "show", "shop::norm")["python_module"]
    assert (named["module"], named["context"]) == ("shop.fakes", "pip install shop")
    assert re.search(r"^fake kernels in +shop\.fakes$", shop(folder, "show", "shop::norm"), re.M)
    assert shop_json(folder, "show", "shop::scale")["python_module"] is None


def test_an_alias_analysis_is_told(folder: Path) -> None:
    assert shop_json(folder, "show", "shop::norm")["alias_analysis"] == "PURE_FUNCTION"
    assert "PURE_FUNCTION" in shop(folder, "show", "shop::norm")


def test_kernels_without_a_definition_are_said_to_dangle(folder: Path) -> None:
    text = shop(folder, "show", "shop::nobody")
    answer = shop_json(folder, "show", "shop::nobody")
    assert text.startswith("shop::nobody, which is not defined\ndangling ")
    assert "shop.anything" in text
    assert (answer["dangling"], answer["schema"], answer["defined"]) == (True, None, None)


def test_a_name_that_is_only_held_is_shown_with_its_place(folder: Path) -> None:
    text = shop(folder, "show", "shop::held")
    answer = shop_json(folder, "show", "shop::held")
    assert re.search(rf"^name held at +{PLACES['held']} by pid", text, re.M)
    assert "No kernels." in text
    assert [place["where"] for place in answer["names"]] == [f"{folder}/{PLACES['held']}"]
    assert answer["dangling"] is False


# --- why ------------------------------------------------------------------------------------------


def test_why_prints_the_steps_the_rules_and_the_kernel_with_its_place(folder: Path) -> None:
    text = shop(folder, "why", "shop::scale", "CPU", "SparseCPU", "AutocastCPU")
    for words in (
        "called with CPU, SparseCPU, AutocastCPU",
        "arguments carry      CPU, SparseCPU, AutocastCPU",
        "the thread adds      BackendSelect, ADInplaceOrView",
        "the thread excludes  AutocastCPU",
        "fall through         SparseCPU, BackendSelect, ADInplaceOrView",
        "left                 CPU",
        "highest              CPU",
        "rules at CPU, up to the one that decides\n  kernel  a kernel at CPU",
        f"runs shop.cpu\n     registered at {PLACES['cpu']} by pid",
    ):
        assert words in text, f"{words!r} in\n{text}"


def test_each_rule_that_was_tried_is_told_with_what_was_found(folder: Path) -> None:
    answer = shop_json(folder, "why", "shop::scale", "CPU", "AutogradCPU")
    assert [rule["rule"] for rule in answer["rules"]] == [
        "kernel",
        "default backend kernel",
        "default backend kernel",
        "nested kernel",
        "math kernel",
        "autograd kernel",
    ]
    assert answer["rules"][-1] == {
        "rule": "autograd kernel",
        "found": "a kernel at Autograd",
        "decides": True,
    }
    assert [rule["decides"] for rule in answer["rules"]].count(True) == 1
    assert answer["runs"]["kernel"] == "shop.graded"
    assert answer["error"] is None


def test_a_call_without_keys_is_explained_too(folder: Path) -> None:
    answer = shop_json(folder, "why", "shop::norm")
    assert (answer["asked"], answer["carried"], answer["highest"]) == ([], [], "Undefined")
    assert answer["runs"]["kernel"] == "shop.anything"
    assert "called with no key" in shop(folder, "why", "shop::norm")


def test_the_error_that_a_call_would_raise_is_told(folder: Path) -> None:
    for arguments, name, words in (
        (("shop::scale", "CUDA"), "MissingKernelError", "has no kernel that serves CUDA"),
        (("shop::norm", "AutogradOther"), "AmbiguousKernelError", "SparseCUDA"),
        (("shop::nobody", "CPU"), "OperatorNotFoundError", "shop::nobody is not defined"),
    ):
        text = shop(folder, "why", *arguments)
        answer = shop_json(folder, "why", *arguments)
        assert f"a call raises {name}\n" in text
        assert words in text
        assert answer["runs"] is None
        assert answer["error"]["class"] == name
        assert words in answer["error"]["text"]
        assert "not loaded here" not in text, "that is for whoever calls to find out"


def test_keys_that_nobody_put_into_the_set_are_explained(folder: Path) -> None:
    text = shop(folder, "why", "shop::scale", "CPU", "AutogradCUDA")
    answer = shop_json(folder, "why", "shop::scale", "CPU", "AutogradCUDA")
    assert "each functionality goes with each backend" in text
    assert answer["asked"] == ["CPU", "AutogradCUDA"]
    assert answer["carried"] == ["CPU", "CUDA", "AutogradCPU", "AutogradCUDA"]


def test_the_json_of_why_has_the_documented_keys(folder: Path) -> None:
    answer = shop_json(folder, "why", "shop::scale", "CPU")
    common = {"format", "mdispatch", "registry", "operator", "schema"}
    steps = {"asked", "carried", "added", "excluded", "fall_through", "left", "highest"}
    assert answer.keys() == common | steps | {"rules", "providers", "runs", "error", "offers"}
    assert answer["runs"].keys() == {"kernel", "location"}


# --- which registry -------------------------------------------------------------------------------


def test_several_modules_are_imported_in_their_order(folder: Path) -> None:
    done = run(folder, "table", "shop::scale", "--import", "shop", "--import", "other")
    assert rows(done.stdout)["CUDA"] == ["kernel", "other.<lambda>", "other.py:3"]


def test_a_running_process_is_asked_by_the_name_of_its_registry(
    tmp_path: Path, running: Main
) -> None:
    done = run(tmp_path, "show", "job::run", "--registry", running.name, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert answer["registry"] == f"shm:{running.name}"
    assert answer["kernels"][0]["kernel"] == "builtins.len"
    assert answer["defined"]["pid"] == int(running.pid)


def test_a_running_process_is_asked_by_an_address_and_no_module_of_it_is_imported(
    tmp_path: Path, running: Main
) -> None:
    done = run(tmp_path, "table", "shop::scale", "--registry", running.address)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout)["CPU"][:2] == ["kernel", "shop.cpu"]
    assert done.stderr == ""


def test_without_an_option_the_environment_names_the_registry(
    tmp_path: Path, running: Main
) -> None:
    done = run(tmp_path, "why", "shop::norm", "CPU", MDISPATCH_REGISTRY=running.address)
    assert done.returncode == 0, done.stderr
    assert "runs shop.anything" in done.stdout


def test_options_come_before_the_environment(folder: Path, running: Main) -> None:
    elsewhere = {"MDISPATCH_REGISTRY": running.address}
    done = run(folder, "show", "job::run", "--registry", running.name, **elsewhere)
    assert done.returncode == 0, done.stderr
    done = run(folder, "show", "shop::scale", "--import", "shop", "--json", **elsewhere)
    assert json.loads(done.stdout)["defined"]["pid"] != int(running.pid)


@pytest.mark.thorough
def test_whoever_looks_leaves_no_trace_in_the_registry(tmp_path: Path, running: Main) -> None:
    before = running.members()
    for command in ("table", "show", "why"):
        words = ("job::run", "--registry", running.name)
        assert run(tmp_path, command, *words, process=True).returncode == 0
    assert running.members() == before


def test_every_command_says_the_same_of_a_module_here_and_in_a_running_process(
    folder: Path, running: Main
) -> None:
    for command in ("table", "show", "why"):
        here = shop_json(folder, command, "shop::scale")
        there = json.loads(
            run(folder, command, "shop::scale", "--registry", running.address, "--json").stdout
        )
        assert nameless(here) == nameless(there)


def nameless(value: Any) -> Any:
    """Removes the parts that differ between processes."""
    if isinstance(value, dict):
        return {k: nameless(v) for k, v in value.items() if k not in ("pid", "registry")}
    return [nameless(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("by", ["name", "address", "environment"])
def test_a_killed_registrar_is_told_within_moments(folder: Path, tmp_path: Path, by) -> None:
    main = Main(folder, f"test-explain-killed-{by}-{os.getpid()}")
    main.process.kill()
    main.process.wait()
    options = ["--registry", main.name if by == "name" else main.address]
    changes = {"MDISPATCH_REGISTRY": main.address} if by == "environment" else {}
    began = time.monotonic()
    done = run(tmp_path, "show", "job::run", *([] if changes else options), **changes)
    took = time.monotonic() - began
    main.kill()
    assert (done.returncode, done.stdout) == (2, "")
    assert "died" in done.stderr
    assert main.name in done.stderr or main.address in done.stderr
    assert ("MDISPATCH_REGISTRY" in done.stderr) == (by == "environment")
    assert "Traceback" not in done.stderr
    assert took < limit(20)  # half a second, and the start of a Python


# --- what cannot be answered ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("shop::scael", "did you mean shop::scale"),
        ("scale", "did you mean shop::scale, shop::scale.out?"),
        ("shop::norm.out", "did you mean shop::norm?"),
        ("shoop::norm", "did you mean shop::norm?"),
        ("shop::something_else", "namespace shop has shop::held, shop::nobody, shop::norm"),
        ("nowhere::at_all", "there are operators in shop"),
    ],
)
def test_an_operator_that_is_not_there_gives_status_1_and_what_is(
    folder: Path, operator: str, words: str
) -> None:
    for command in ("table", "show", "why"):
        done = run(folder, command, operator, "--import", "shop", "--json")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"there is no operator {operator}" in done.stderr
        assert words in done.stderr


def test_an_operator_that_another_process_does_not_have_gives_status_1(
    tmp_path: Path, running: Main
) -> None:
    done = run(tmp_path, "why", "job::rnu", "CPU", "--registry", running.name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean job::run?" in done.stderr


def test_the_overload_without_a_name_may_be_called_default(folder: Path) -> None:
    assert shop_json(folder, "show", "shop::scale.default")["operator"] == "shop::scale"


HERE = ("--import", "shop")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table",), "OP"),
        (("show", "a b", *HERE), "a b"),
        (("show", "shop::", *HERE), "'OP': '' is not an identifier"),
        (("show", "shop::scale"), "--import MODULE"),
        (("show", "shop::scale"), "--registry NAME"),
        (("show", "shop::scale", *HERE, "--registry", "x"), "not both"),
        (("show", "shop::scale", "--registry", "no-such-registry"), "no-such-registry"),
        (("show", "shop::scale", "--registry", ""), "name"),
        (("show", "shop::scale", "--registry", "a/b"), "a/b"),
        (("show", "shop::scale", "--import", "no_such_module"), "no_such_module"),
        (("show", "shop::scale", "--import", "shop.py"), "'shop'"),
        (("show", "shop::scale", "--import", "fails"), "RuntimeError: never works"),
        (("why", "shop::scale", "CPUU", *HERE), "did you mean CPU"),
        (("why", "shop::scale", "Autograd", *HERE), "no argument carries it"),
        (("table", "shop::scale", "--key", "AutogradCPUU", *HERE), "AutogradCPU"),
        (("table", "shop::scale", "--key", "Sparse", *HERE), "SparseCPU"),
        (("table", "shop::scale", "--key", "Autograd", *HERE), "AutogradCPU"),
        (("table", "shop::scale", "--jsen", *HERE), "--jsen"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_unusable_arguments_give_status_2_and_a_reason(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert ("Traceback" in done.stderr) == ("fails" in arguments)


def test_a_current_directory_that_was_removed_is_no_obstacle(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'rmdir "$PWD" && exec "$@"'
    command = [sys.executable, "-m", "mdispatch", "show", "shop::norm", *HERE]
    # Without a directory Python itself does not start with relative paths.
    paths = os.pathsep.join([str(folder), *filter(os.path.isabs, sys.path)])
    done = subprocess.run(
        ["/bin/sh", "-c", script, "-", *command],
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=paths),
        timeout=limit(60),
    )
    assert done.returncode == 0, done.stderr
    assert f"{folder}/shop.py" in done.stdout


def test_ctrl_c_ends_it_at_once(folder: Path) -> None:
    os.mkfifo(folder / "alive")
    with subprocess.Popen(
        [sys.executable, "-m", "mdispatch", "show", "shop::scale", "--import", "hangs"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        with open(folder / "alive") as pipe:
            assert pipe.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
        output, complaints = process.communicate()
        watchdog.cancel()
    assert (process.returncode, output, complaints) == (130, "", "")


@pytest.mark.parametrize("command", ["table", "show", "why"])
def test_the_help_says_the_exit_statuses_and_where_to_look(folder: Path, command: str) -> None:
    text = run(folder, command, "--help").stdout
    for words in ("--import", "--registry", "MDISPATCH_REGISTRY", "Exit status", "  130  "):
        assert words in text


# --- where it goes --------------------------------------------------------------------------------


def test_standard_output_holds_the_answer_only(folder: Path) -> None:
    for more in ((), ("--json",)):
        done = run(folder, "show", "shop::scale", *HERE, *more)
        assert done.stderr == "a module that prints\n"
        assert "a module that prints" not in done.stdout
        assert "\x1b" not in done.stdout


def test_in_a_pipe_a_row_stays_a_line_and_no_line_ends_with_blanks(folder: Path) -> None:
    module = folder / "a_module_with_quite_a_long_name_for_such_a_small_module.py"
    module.write_text(SHOP)
    for command in ("table", "show", "why"):
        text = run(folder, command, "shop::scale", "--import", module.stem).stdout
        assert max(map(len, text.splitlines())) > 100 or command == "why"
        assert text == re.sub(" +$", "", text, flags=re.M)
        assert f"{module.stem}.cpu" in text or command == "why"


def terminal(folder: Path, columns: int, *arguments: str, **changes: Any) -> str:
    done = on_terminal(*arguments, columns=columns, cwd=folder, **changes)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("columns", [30, 45, 60, 80, 120])
@pytest.mark.parametrize("command", ["table", "show", "why"])
def test_a_terminal_of_any_width_gets_lines_that_fit_and_all_there_is_to_say(
    folder: Path, command: str, columns: int
) -> None:
    arguments = (command, "shop::scale", "--import", "shop")
    shown = without_style(terminal(folder, columns, *arguments))
    assert max(map(len, shown.splitlines())) <= columns
    words = {
        "table": ("shop.fallback", PLACES["fallback"]),
        "show": ("shop.older", PLACES["older"]),
        "why": ("MissingKernelError",),
    }
    assert all(word in shown for word in words[command])


def test_a_wide_terminal_has_a_line_for_each_row(folder: Path) -> None:
    words = ("table", "shop::scale", "--import", "shop")
    shown = without_style(terminal(folder, 120, *words, process=True))
    table = rows(shown)
    assert table == rows(shop(folder, "table", "shop::scale"))


def test_colours_are_for_terminals_and_for_who_wants_them(folder: Path) -> None:
    arguments = ("why", "shop::scale", "CUDA", "--import", "shop")
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(terminal(folder, 80, *arguments))
    assert not colour.search(terminal(folder, 80, *arguments, NO_COLOR="1"))
    assert "\x1b" not in run(folder, *arguments).stdout


def test_what_modules_call_their_things_steers_no_terminal(folder: Path) -> None:
    for command in ("table", "show", "why"):
        done = run(folder, command, "odd::f", "--import", "odd")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\\x1b[31m" in done.stdout
    done = run(folder, "show", "odd::f", "--import", "odd_twice")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "a kernel at CPU already" in done.stderr
    assert "\\x1b[31m" in done.stderr


def test_who_reads_the_first_line_only_hears_of_no_error(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mdispatch", "table", "shop::norm", "--all", *HERE],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b"a module that prints\n"
    assert process.returncode == 0


def test_an_answer_that_cannot_be_written_gives_status_2(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mdispatch", "show", "shop::norm", *HERE],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 2
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr

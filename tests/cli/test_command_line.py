"""The rules for every command: its answer and nothing else on standard output, documented JSON,
documented exit statuses, NO_COLOR, nearest names, completion; and the page about the command line
is true.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import mdispatch, on_terminal, without_style
from commands import environment
from json_keys import strangers
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.cli import stress
from mdispatch.cli.app import GROUPS, MODULES, command
from mdispatch.cli.ls import chosen
from mdispatch.facts.native.constants import MD_VALUE
from mdispatch.registry import opened_default
from mdispatch.registry.catalogue import Catalogue, catalogue

ROOT = Path(__file__).parents[2]
STRESS = ROOT / "stress"
PAGE = (ROOT / "docs" / "command-line.md").read_text()
COMMANDS: dict[str, Any] = {name: command(name) for name in MODULES}
NAME = f"k{secrets.token_hex(5)}"  # like no other

#: A module that prints, writes to descriptor 1 and warns.
LOUD = """
import os, sys, warnings
import mdispatch as md
print("said by print")
os.write(1, b"said to descriptor 1\\n")
warnings.warn("said by a warning")
lib = md.Library("loud", "DEF")
lib.define("f(Tensor x) -> Tensor", tags=["quiet"])
lib.impl("f", len, "CPU")
if hasattr(md, "choose"):
    md.choose("loud::f", (8, "f32"), ["narrow", "wide"], lambda: "wide")
    md.agree("loud", {"size": 8}, ignore=["rank"])
"""

SCENARIO = """
import pytest

@pytest.mark.scenario("short")
def test_short(scenario):
    for _ in scenario.rounds():
        break
    print("said by a test")
"""

HERE = ("--import", "loud")

#: Arguments for each command.
ASKED = {
    "verify": ("loud", "--interpreters", "1", "--processes", "1"),
    "diff": ("loud", "loud"),
    "ls": HERE,
    "show": ("loud::f", *HERE),
    "table": ("loud::f", *HERE),
    "why": ("loud::f", "CPU", *HERE),
    "stubs": ("loud",),
    "choices": HERE,
    "agree": HERE,
    "report": HERE,
    "doctor": (NAME,),
    "top": (NAME, "--count", "1"),
    "stress": ("--suite", "suite", "--seconds", "1", "--rounds", "1"),
}
#: The commands that need an engine: see tests/cluster/test_hosts.py and docs/cluster.md.
OF_ENGINES = {"bridge", "cluster"} & set(COMMANDS)
for _command in {"agree", "choices", "diff"} - set(COMMANDS):  # their features were left out
    del ASKED[_command]
#: The same in this process: sub-interpreters would join the one default registry that it may have.
ASKED_HERE = {**ASKED, "verify": ("loud", "--interpreters", "0", "--processes", "1")}
#: The commands that import modules here.
IMPORTING = {name for name, words in ASKED.items() if "loud" in words}

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "loud.py").write_text(LOUD)
    (folder / "suite").mkdir()
    for file in STRESS.glob("*.py"):
        if not file.name.startswith("test_"):
            shutil.copy(file, folder / "suite")
    (folder / "suite" / "test_short.py").write_text(SCENARIO)
    (folder / "pytest.ini").write_text("[pytest]\n")
    with md.Registry.create(NAME) as registry:
        lib = md.Library("work", "DEF", registry=registry)
        lib.define("size(Tensor x) -> int")
        lib.impl("size", len, "CPU")
        yield folder


@pytest.fixture(autouse=True, scope="module")
def played_once() -> Iterator[None]:
    """What stress has played by processes of its own, commands in this process show in several
    ways: the same is played once.
    """
    played = cache(stress.play)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stress, "play", lambda suite, words: played(suite, tuple(words)))
        yield


def test_every_command_is_asked_something_here() -> None:
    assert set(COMMANDS) - set(ASKED) == OF_ENGINES
    assert set(ASKED) <= set(COMMANDS)


every_command = pytest.mark.parametrize("command", [each for each in COMMANDS if each in ASKED])


def test_without_a_standard_error_the_status_is_the_same(folder: Path) -> None:
    shell = ("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "mdispatch")
    for words, status in ((("--import", "nowhere"), 2), (HERE, 0)):
        done = subprocess.run(
            [*shell, "ls", "--json", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=limit(110),
        )
        assert done.returncode == status
        assert bool(done.stdout) == (status == 0)


# --- what is loaded for it ------------------------------------------------------------------------


LOADED = """
import sys
from mdispatch.__main__ import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        (("--version",), {"mdispatch"}, {"click", "json", "rich", "mdispatch.cli"}),
        (("--help",), {"click"}, {"rich", "mdispatch.cli.console", "mdispatch.cli.explain"}),
        (("ls", "--json", *HERE), {"click", "mdispatch.cli.ls"}, {"rich", "mdispatch.cli.answers"}),
        (
            ("ls", *HERE),
            {"click", "rich.console", "rich.table", "mdispatch.cli.ls"},
            {"asyncio", "email", "importlib.metadata", "logging", "pydantic", "subprocess", "typer"}
            | {"mdispatch.cli.doctor", "mdispatch.cli.explain", "rich.progress"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_loads_what_it_needs_and_no_other_command(
    folder: Path, words: tuple[str, ...], there: set[str], absent: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=limit(60),
    )
    loaded = set(done.stderr.split())
    assert (there - loaded, absent & loaded) == (set(), set())


@every_command
def test_the_list_of_commands_says_what_their_own_helps_say_first(command: str) -> None:
    _, sentence = MODULES[command]
    assert re.fullmatch(r"[A-Z][^.]+\.", sentence)
    assert f"{' '.join(COMMANDS[command].help.split())} ".startswith(f"{sentence} ")


@pytest.mark.needs("choices", "cluster")
def test_the_list_of_commands_has_whole_sentences_at_80_columns(folder: Path) -> None:
    shown = on_terminal("-h", columns=80, process=True).stdout
    lines = shown.splitlines()
    for name, (_, sentence) in MODULES.items():
        assert [name, *sentence.split()] in [line.split() for line in lines]
    assert [line for line in lines if line.endswith(":")] == [
        "Options:",
        *(f"{group}:" for group in GROUPS),
    ]


@pytest.mark.parametrize("words", [(), *((name,) for name in MODULES)], ids=" ".join)
def test_no_help_is_wider_than_80_columns(folder: Path, words: tuple[str, ...]) -> None:
    short, long = (on_terminal(*words, option, columns=80) for option in ("-h", "--help"))
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert max(map(len, short.stdout.splitlines())) <= 80
    assert "-h, --help" in short.stdout


@pytest.mark.parametrize("words", [("--version",), ("--version", "ls")], ids=" ".join)
def test_the_version_is_told_without_click_as_with_it(folder: Path, words: tuple[str, ...]) -> None:
    assert mdispatch(*words).stdout == f"mdispatch {md.__version__}\n"


# --- the answer -----------------------------------------------------------------------------------


@cache
def in_a_process_of_its_own(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return mdispatch(command, *ASKED[command], "--json", cwd=folder, process=True)


@every_command
def test_json_is_all_that_is_on_standard_output_and_every_key_is_documented(
    folder: Path, command: str
) -> None:
    done = in_a_process_of_its_own(folder, command)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines() if command == "top" else [done.stdout]
    for answer in map(json.loads, answers):
        assert answer["format"] == 2
        assert strangers(command, answer) == []
    if command in IMPORTING:
        for words in ("said by print", "said to descriptor 1", "said by a warning"):
            assert words in done.stderr


def keys_of(answer: Any, path: str = "") -> Iterator[str]:
    """The location of every key in an answer, without numbers of lists."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield f"{path}.{key}"
            yield from keys_of(value, f"{path}.{key}")
    for value in answer if isinstance(answer, list) else ():
        yield from keys_of(value, path)


@every_command
def test_a_command_in_this_process_says_what_it_says_in_one_of_its_own(
    folder: Path, command: str
) -> None:
    """So that most tests may ask it here."""
    alone = in_a_process_of_its_own(folder, command)
    here = mdispatch(command, *ASKED_HERE[command], "--json", cwd=folder)
    assert here.returncode == alone.returncode
    answers = [json.loads(each.stdout) for each in (here, alone)]
    assert {*keys_of(answers[0])} == {*keys_of(answers[1])}
    if command in IMPORTING:
        assert {*here.stderr.splitlines()} == {*alone.stderr.splitlines()}


def test_a_command_in_this_process_leaves_nothing_of_it(folder: Path) -> None:
    def state() -> list[Any]:
        descriptors = [os.fstat(number) for number in range(3)]
        places = [(each.st_dev, each.st_ino) for each in descriptors]
        streams = [sys.stdin, sys.stdout, sys.stderr, *map(signal.getsignal, (2, 15))]
        there = [*sys.path], dict(os.environ), os.getcwd(), [*warnings.filters], sys.argv
        return [places, streams, there, opened_default(), len(os.listdir("/proc/self/fd"))]

    on_terminal("ls", *HERE, cwd=folder)  # what is loaded once stays
    before = state()
    for words in (("ls", *HERE), ("ls", "--import", "nowhere"), ("top", NAME, "--count", "1")):
        mdispatch(*words, cwd=folder, NO_COLOR="1")
        on_terminal(*words, cwd=folder)
        assert state() == before
    assert "loud" not in sys.modules


@every_command
def test_people_get_the_answer_only_and_no_colours_with_no_color(
    folder: Path, command: str
) -> None:
    """On a terminal, where there would be colours."""
    words = [command, *ASKED_HERE[command], *(["page.html"] if command == "report" else [])]
    done = on_terminal(*words, columns=100, cwd=folder, apart=True, NO_COLOR="1")
    text = done.stdout
    assert done.returncode == 0, done.stderr
    assert bool(text) == (command != "report"), "that of report is the file"
    assert "said" not in text
    assert not re.search(r"\x1b\[[0-9;]*(?:3|4|9|10)[0-7]m", text)


#: The heading and a cell of each column of a command's table.
COLUMNS = {
    "verify": {"worker": "process", "create": r"\d\.\d", "wait": r"\d\.\d", "differs": "-"},
    "ls": {"operator": "loud::f", "kernels at": "CPU", "defined at": r"loud\.py:\d+"},
    "show": {"key": "CPU", "state": "active", "kernel": "len", "registered at": r"loud\.py:\d+"},
    "table": {"key": "CPU", "rule": "kernel", "runs": "len", "registered at": r"loud\.py:\d+"},
    "why": {"arguments carry": "CPU", "highest": "CPU", "runs": "len"},
    "choices": {
        "operator": "loud::f",
        "profile": r"\[8,",
        "choice": ".wide.",
        "made": r"20\d\d-",
        "took": r"\d",
        "waited": "0",
        "by": r"pid \d+",
        "asked at": r"loud\.py:\d+",
    },
    "agree": {
        "agreement": "loud",
        "value": r"\{.size.:",
        "by": r"pid \d+",
        "rank": "",
        "since": r"20\d\d-",
        "asked at": r"loud\.py:\d+",
    },
    "doctor": {
        "registry": NAME,
        "state": "open",
        "registrar": r"\d+",
        "members": "1",
        "processes": "1",
        "operators": "1",
        "registered": r"\d+",
        "waiting": "0",
    },
    "top": {
        "registry": NAME,
        "state": "open",
        "registrar": r"\d+",
        "members": "1",
        "operators": "1",
        "registered": r"\d+",
        "used": r"\d+K",
        "free": r"\d+M",
        "changes/s": "-",
        "waiting": "0",
    },
}


@pytest.mark.parametrize("command", [each for each in COLUMNS if each in COMMANDS])
@pytest.mark.parametrize("columns", [60, 80, 150])
def test_a_table_of_any_width_has_all_columns(folder: Path, command: str, columns: int) -> None:
    """A row that does not fit is shown as a list, which may leave out the first heading."""
    done = on_terminal(command, *ASKED_HERE[command], columns=columns, cwd=folder, apart=True)
    assert done.returncode == 0, done.stderr
    shown = re.sub(r"\x1b\[\??\d*[A-Za-z]", "", without_style(done.stdout))  # top redraws in place
    lines = [line for line in shown.splitlines() if not line.startswith("loud::f(")]
    text = "\n".join(lines)
    for number, (heading, cell) in enumerate(COLUMNS[command].items()):
        assert heading in text or number == 0, f"{heading} in\n{text}"
        assert re.search(cell, text), f"{cell} in\n{text}"
    if command != "verify":
        assert max(map(len, text.splitlines())) <= columns
    assert "\u2026" not in text


@every_command
def test_an_answer_that_cannot_be_written_gives_status_2_and_no_traceback(
    folder: Path, command: str
) -> None:
    with open("/dev/full", "w") as full:
        done = mdispatch(command, *ASKED_HERE[command], "--json", cwd=folder, stdout=full)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


# --- what cannot be answered ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "why", "stubs", "doctor", "top"])
def test_a_registry_that_is_not_there_brings_the_nearest_one_that_is(
    folder: Path, command: str
) -> None:
    wrong = f"{NAME[:-1]}x"
    positional = command in ("doctor", "top")
    words = ["work::size"] if command == "why" else []
    done = mdispatch(command, *words, *([wrong] if positional else ["--registry", wrong]))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no registry {wrong!r}" in done.stderr
    assert f"Did you mean {NAME}?" in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("shwo",), "show"),
        (("ls", "--registri", "x"), "--registry"),
        (("doctor", "--chek"), "--check"),
        (("ls", "laud", *HERE), "did you mean loud?"),
        (("ls", "g", *HERE), "there are operators in loud"),
        (("ls", "--key", "CPPU", *HERE), "CPU"),
        (("stress", "--suite", "suite", "shrt"), "Did you mean 'short'?"),
        (("stress", "--suite", "."), "comes with the sources"),
        (("stress", "--suite", "suite", "--seconds", "nan"), "not a number of seconds"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_was_probably_meant_is_told(folder: Path, words: tuple[str, ...], meant: str) -> None:
    done = mdispatch(*words, cwd=folder, COLUMNS="300")
    assert done.returncode == (1 if words[0] == "ls" and words[1] in ("laud", "g") else 2)
    assert done.stdout == ""
    assert meant in done.stderr
    assert "Traceback" not in done.stderr


# --- ls -------------------------------------------------------------------------------------------


MANY = """
import mdispatch as md
shop, text = md.Library("shop", "DEF"), md.Library("text", "DEF")
shop.define("scale(Tensor x) -> Tensor", tags=["core"])
shop.define("scale.out(Tensor x) -> Tensor")
text.define("split(Tensor x) -> Tensor", tags=["slow"])
text.define("scale(Tensor x) -> Tensor")
shop.impl("scale", len, "CPU")
shop.impl("scale", max, "CPU")
text.impl("split", len)
text.impl("nobody", len, "CUDA")
"""


@pytest.fixture(scope="module")
def many(folder: Path) -> Iterator[Catalogue]:
    (folder / "many.py").write_text(MANY)
    with md.Registry.create() as registry:
        code = MANY.replace('"DEF")', '"DEF", registry=registry)')
        exec(compile(code, "many.py", "exec"), {"__name__": "many", "registry": registry})
        yield catalogue(registry)


@pytest.mark.parametrize(
    ("patterns", "options", "expected"),
    [
        ("*", {}, "shop::scale shop::scale.out text::nobody text::scale text::split"),
        ("shop", {}, "shop::scale shop::scale.out"),
        ("shop::scale", {}, "shop::scale shop::scale.out"),
        ("scale.out", {}, "shop::scale.out"),
        ("scale", {}, "shop::scale shop::scale.out text::scale"),
        ("*l?t nobody", {}, "text::nobody text::split"),
        ("*", {"keys": ["CPU"]}, "shop::scale"),
        ("*", {"keys": ["CompositeImplicitAutograd", "CUDA"]}, "text::nobody text::split"),
        ("*", {"tags": ["core", "slow"]}, "shop::scale text::split"),
        ("*", {"at": "many.py:4"}, "shop::scale"),
        ("*", {"dangling": True}, "text::nobody"),
        ("text", {"tags": ["slow"]}, "text::split"),
        ("Scale", {}, ""),
    ],
    ids=str,
)
def test_ls_lists_what_was_asked_for(
    many: Catalogue, patterns: str, options: dict[str, Any], expected: str
) -> None:
    assert [each.name for each in chosen(many, patterns.split(), **options)] == expected.split()


def test_every_filter_is_one_of_the_command(folder: Path, many: Catalogue) -> None:
    words = ["split", "--tag", "slow", "--at", "many.py", "--key", "CompositeImplicitAutograd"]
    done = mdispatch("ls", *words, "--json", "--import", "many", cwd=folder)
    assert [each["operator"] for each in json.loads(done.stdout)["operators"]] == ["text::split"]
    done = mdispatch("ls", "--dangling", "--json", "--import", "many", cwd=folder)
    assert [each["operator"] for each in json.loads(done.stdout)["operators"]] == ["text::nobody"]


def test_ls_tells_how_many_kernels_a_key_has_and_what_is_not_defined(
    folder: Path, many: Catalogue
) -> None:
    text = mdispatch("ls", "--import", "many", cwd=folder).stdout
    assert re.search(r"^shop::scale +CPU \(2\) +many\.py:4$", text, re.M)
    assert re.search(r"^text::nobody +CUDA +not defined$", text, re.M)
    assert text.endswith("4 operators in 2 namespaces, 1 name not defined, 4 kernels.\n")
    schemas = mdispatch("ls", "split", "--schemas", "--import", "many", cwd=folder).stdout
    assert "text::split(Tensor x) -> Tensor" in schemas


# --- choices --------------------------------------------------------------------------------------


@pytest.mark.needs("choices")
@pytest.mark.shared
def test_choices_are_listed_exported_and_withdrawn_from_outside(folder: Path) -> None:
    name = f"{NAME}-choices"
    with md.Registry.create(name, capacity=1 << 20) as registry:
        for size in (1, 2):
            md.choose("a::f", size, [16, 32], lambda: 32, registry=registry)
        md.choose("a::g", 1, ["x"], lambda: "x", environment="new", registry=registry)
        words = ("a::f", "--registry", name, "--export", "f.json", "--json")
        done = mdispatch("choices", *words, cwd=folder)
        listed = json.loads(done.stdout)["choices"]
        assert [(c["profile"], c["choice"], c["withdrawn"]) for c in listed] == [
            (1, 32, False),
            (2, 32, False),
        ]
        assert "wrote f.json: 2 choices" in done.stderr
        done = mdispatch("choices", "*::g", "--registry", name, "--withdraw", process=True)
        assert done.stdout.endswith("1 choice. 1 choice withdrawn: members decide anew.\n")
        assert [c.operator for c in md.choices.made(registry=registry)] == ["a::f"] * 2
        done = mdispatch("choices", "a::g", "--registry", name)
        assert (done.returncode, done.stdout) == (1, "")
        assert "nobody has chosen anything for a::g" in done.stderr
        with md.Registry.local() as other:
            file = folder / "f.json"
            assert md.choices.load(file, "a::f", [16, 32], registry=other) == 2


# --- verify --job ---------------------------------------------------------------------------------


@pytest.mark.needs("choices")
@pytest.mark.shared
def test_the_verdict_of_a_job_is_told_from_outside(folder: Path) -> None:
    name = f"{NAME}-job"
    with md.Registry.create(name, capacity=1 << 20) as registry:
        done = mdispatch("verify", "--job", name, "--timeout", "0")
        assert done.returncode == 1
        assert "no member of" in done.stderr
        with suppress(errors.RollCallError):
            md.roll_call(expected=2, timeout=0, registry=registry)
        done = mdispatch("verify", "--job", name)
        assert done.returncode == 1
        assert done.stdout == "roll call 'job', round '0'\n1 agrees; 1 of 2 is absent.\n"
        done = mdispatch("doctor", name, "--json")
        (seen,) = json.loads(done.stdout)["registries"]
        assert [each["verdict"] for each in seen["roll_calls"]] == ["1 agrees; 1 of 2 is absent"]
        assert any("not all are the same in the roll call 'job'" in it for it in seen["problems"])
        md.roll_call(expected=1, registry=registry)
        done = mdispatch("verify", "--job", name, "--json")
        told = json.loads(done.stdout)
        assert (done.returncode, told["agree"], told["verdict"]["round"]) == (0, True, "1")
        (group,) = told["verdict"]["groups"]
        assert group["members"][0]["pid"] == os.getpid()
        done = mdispatch("doctor", name)
        assert "roll call  'job', round '1': 1 agrees\n" in done.stdout


@pytest.mark.needs("choices")
@pytest.mark.shared
def test_a_roll_call_that_is_under_way_has_no_verdict(folder: Path) -> None:
    name = f"{NAME}-underway"
    with md.Registry.create(name, capacity=1 << 20) as registry:
        thread = threading.Thread(
            target=md.roll_call, kwargs={"expected": 2, "timeout": None, "registry": registry}
        )
        thread.start()
        while not md.choices.roll_calls(registry=registry):
            registry.dispatcher.facts.await_change(0, 0.0)
        done = mdispatch("verify", "--job", name, "--timeout", "0")
        assert done.returncode == 1
        assert "No verdict yet: 1 member of 2 have called.\n" in done.stdout
        done = mdispatch("verify", "--job", name, "--timeout", "0", "--json")
        told = json.loads(done.stdout)
        assert (told["agree"], told["called"], told["expected"]) == (False, 1, 2)
        script = f"""
import mdispatch as md
with md.Registry.attach({name!r}) as registry:
    print(md.roll_call(expected=2, registry=registry))
"""
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
        )
        assert done.stdout == "2 agree\n"
        thread.join()


@pytest.mark.parametrize(
    "more", [["audio_ops"], ["--entry-points", "x"], ["--against", "x"], ["--torch"]]
)
def test_a_job_is_asked_for_alone(more: list[str]) -> None:
    done = mdispatch("verify", "--job", "x", *more)
    assert done.returncode == 2
    assert "--job takes no modules, no --entry-points, no --against and no --torch." in done.stderr


# --- agree ----------------------------------------------------------------------------------------


@pytest.mark.needs("choices")
@pytest.mark.shared
def test_agreements_are_listed_with_those_that_differ(folder: Path) -> None:
    name = f"{NAME}-agree"
    with md.Registry.create(name, capacity=1 << 20) as registry:
        md.agree("a.config", {"size": 1}, keep=True, registry=registry)
        done = mdispatch("agree", "--registry", name)
        assert done.returncode == 0
        assert "a.config: it stays as long as the registry\n" in done.stdout
        assert done.stdout.endswith("1 agreement. 0 members with another value.\n")
        script = f"""
import mdispatch as md
with md.Registry.attach({name!r}) as registry:
    md.agree("b", [1], registry=registry)
    try:
        md.agree("a.config", {{"size": 2}}, registry=registry)
    except md.errors.DisagreementError:
        input()
"""
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, env=environment()
        )
        registry.dispatcher.facts.await_fact(MD_VALUE, 1, "(agree a.config)", 1, limit(60))
        done = mdispatch("agree", "a.*", "--registry", name, "--json", process=True)
        assert done.returncode == 1
        (found,) = json.loads(done.stdout)["agreements"]
        assert (found["name"], found["value"], found["kept"]) == ("a.config", "{'size': 1}", True)
        told = [(each["agrees"], each["value"]) for each in found["members"]]
        assert told == [(True, "{'size': 1}"), (False, "{'size': 2}")]
        assert found["members"][1]["location"]["pid"] == other.pid
        assert [each.name for each in md.choices.agreements(registry=registry)] == ["a.config", "b"]
        other.communicate(b"\n")
        done = mdispatch("agree", "b", "--registry", name)
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no agreement of b in" in done.stderr


# --- stress ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.dear
def test_a_scenario_that_fails_gives_status_1_and_the_command_that_plays_it_again(
    folder: Path,
) -> None:
    shutil.copytree(folder / "suite", folder / "failing" / "stress")
    (folder / "failing" / "pytest.ini").write_text("[pytest]\n")
    (folder / "failing" / "stress" / "test_short.py").write_text(
        'import pytest\n\n@pytest.mark.scenario("wrong")\ndef test_wrong(scenario):\n    assert 0\n'
    )
    words = ("--seed", "7", "--json", "--suite", ".")
    done = mdispatch("stress", *words, cwd=folder / "failing")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["passed"]) == (1, False)
    (scenario,) = answer["scenarios"]
    assert (scenario["scenario"], scenario["result"]) == ("wrong", "failed")
    assert "--seed 7" in scenario["failures"][0]["again"]


def test_the_scenarios_of_the_suite_are_found_by_their_titles(folder: Path) -> None:
    done = mdispatch("stress", "--suite", str(ROOT), "--list", "--json")
    found = {each["scenario"]: each["location"] for each in json.loads(done.stdout)["scenarios"]}
    marks = re.findall(r"mark\.scenario\(", "".join(f.read_text() for f in STRESS.glob("test_*")))
    assert len(found) == len(marks) > 10
    assert found["full registry"].startswith("stress/test_limits.py::test_")


# --- completion -----------------------------------------------------------------------------------


def completed(line: str) -> list[str]:
    """The completions that bash gets at the end of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = mdispatch(_MDISPATCH_COMPLETE="bash_complete", **asked)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_keys_and_registries_are_completed(folder: Path) -> None:
    assert completed("mdispatch st") == ["stubs", "stress"]
    assert completed("mdispatch ls --reg") == ["--registry"]
    assert completed(f"mdispatch ls --registry {NAME[:-1]}") == [NAME]
    assert completed(f"mdispatch doctor {NAME[:-1]}") == [NAME]
    assert "AutogradCPU" in completed("mdispatch why shop::f CPU Autogr")
    assert completed("mdispatch table f --key SparseCsrCP") == ["SparseCsrCPU"]


def test_bash_completes_with_what_show_completion_prints(folder: Path) -> None:
    script = mdispatch("--show-completion", "bash").stdout
    called = 'COMP_WORDS=(mdispatch doc) COMP_CWORD=1; _mdispatch_completion "$0"; echo $COMPREPLY'
    wrapper = folder / "mdispatch"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m mdispatch "$@"\n')
    wrapper.chmod(0o755)
    done = subprocess.run(
        ["bash", "-ec", f"{script}\n{called}", str(wrapper)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=limit(60),
    )
    assert (done.stdout, done.stderr) == ("doctor\n", "")


# --- the page -------------------------------------------------------------------------------------

SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def help_of(command: str) -> str:
    context = click.Context(COMMANDS[command], info_name=command)
    return COMMANDS[command].get_help(context)


def rows_of(section: str, heading: str) -> dict[str, str]:
    """The table in the section under a heading, by the first cell of each row."""
    text = section.partition(f"| {heading} | |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = (line.strip("| ").split(" | ", 1) for line in text.splitlines())
    return dict(cells)


@pytest.mark.needs("choices", "cluster", "editions")
def test_every_command_has_a_section_and_stands_in_the_table() -> None:
    listed = set(re.findall(r"^\| \[`(\w+)`\]\(#\1\) ", PAGE, re.M))
    assert set(SECTIONS) - {"What"} == listed
    assert listed == set(ASKED)


@every_command
def test_the_page_has_every_option_and_no_other(command: str) -> None:
    told = " ".join(rows_of(SECTIONS[command], "option"))
    told_options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", told))
    told_arguments = set(re.findall(r"`([A-Z]+)`", told))
    parameters = [p for p in COMMANDS[command].params if p.name != "help"]
    there = {o for p in parameters if p.param_type_name == "option" for o in p.opts}
    arguments = {p for p in parameters if p.param_type_name == "argument"}
    assert told_options == there
    assert told_arguments == {(p.metavar or p.name).strip("[].").upper() for p in arguments}
    assert f"[JSON of {command}](#json-of-{command})" in SECTIONS[command]
    assert f"'JSON of {command}'" in " ".join(help_of(command).split())


@pytest.mark.needs("across", "choices", "cluster")
def test_the_page_has_every_key_of_the_json() -> None:
    """If this fails, run python docs/keys.py."""
    spec = importlib.util.spec_from_file_location("keys", ROOT / "docs" / "keys.py")
    assert spec is not None
    assert spec.loader is not None
    keys = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(keys)
    assert keys.page(PAGE) == PAGE
    for links in set(re.findall(r"\(#(json-[\w-]+)\)", PAGE)):
        heading = links.removeprefix("json-").replace("-", " ")
        title = f"JSON {heading}" if heading.startswith("of ") else f"JSON: {heading}"
        assert f"\n### {title}\n" in PAGE


@every_command
def test_the_exit_statuses_of_the_page_are_those_of_the_help(command: str) -> None:
    text = help_of(command).partition("Exit status:")[2].partition("Positional arguments:")[0]
    text = text.partition("Options:")[0]
    found = re.findall(r"^ +(\d+) +(.*?)(?=^ +\d+ |\n\n|\Z)", text, re.M | re.S)
    there = {status: " ".join(words.split()) for status, words in found}
    told = rows_of(SECTIONS[command], "exit status")
    assert {status: words.replace("`", "") for status, words in told.items()} == there
    assert "2" in there


TRANSCRIPTS = [
    (command, output, int(status))
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)
    for command, output, status in re.findall(
        r"^\$ mdispatch (.*?)\n(.*?)^\[(\d+)\]$", block, re.M | re.S
    )
]
#: Their figures belong to one run and one machine.
FIGURES = {"verify", "doctor", "top", "stress", "stubs", "report"}


def same(text: str, figures: bool) -> list[str]:
    """The parts that are the same in every run."""
    text = re.sub(r"pid \d+", "pid N", text)
    if figures:
        text = re.sub(r"[▁▂▃▄▅▆▇█]+", "", text)
        text = re.sub(r"\d[\d.,]*( ?([KMG]i?B?|ns|us|ms|s|bytes)\b)?", "N", text)
    lines = (re.sub(r"─+", "─", " ".join(line.split())) for line in text.splitlines())
    return [re.sub(r"( N)+", " N", line) for line in lines if line]


@pytest.mark.parametrize(
    ("command", "expected", "status"), TRANSCRIPTS, ids=[each[0] for each in TRANSCRIPTS]
)
def test_a_transcript_of_the_page_is_what_comes_out(
    folder: Path, tmp_path: Path, command: str, expected: str, status: int
) -> None:
    words = [
        word.replace("jobs", NAME).replace("jbos", f"{NAME}x") for word in shlex.split(command)
    ]
    words = [str(tmp_path / word) if word.endswith((".html", ".pyi")) else word for word in words]
    done = mdispatch(*words, cwd=ROOT, process=words[0] == "verify")
    assert done.returncode == status, done.stderr
    said = (
        (done.stdout or done.stderr)
        .replace(f"{tmp_path}/", "")
        .replace(f"{NAME}x", "jbos")
        .replace(NAME, "jobs")
    )
    figures = words[0] in FIGURES
    assert same(said, figures) == same(expected, figures)
    assert status == 0 or done.stdout == ""


def test_there_is_a_transcript_of_each_command() -> None:
    assert {command.split()[0] for command, _, _ in TRANSCRIPTS} >= set(ASKED)

"""Named registries lie in the folder that MDISPATCH_FOLDER names. A run of this suite has a folder
of its own: it and this user's registries in /dev/shm do not disturb each other.

native/tests/test_folder.c tests what the C library itself promises about the variable.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import mdispatch
from commands import environment
from kinds import SUPPORT
from patience import limit
from registries import FOLDER, main_of

import mdispatch as md
from mdispatch.facts.native import which

pytestmark = pytest.mark.shared

VARIABLE = "MDISPATCH_FOLDER"
TESTS = Path(__file__).parents[1]
USER = f"mdispatch-{os.geteuid()}"


def told_by(script: str, folder: object, *arguments: object) -> object:
    """The JSON that a script prints when it runs with this value of the variable."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
        cwd=SUPPORT,
        env=environment(**{VARIABLE: str(folder), "MDISPATCH_BINDING": which}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place(tmp_path: Path):
    """A folder on the file system of this run's folder, since its path has to be short."""
    made = FOLDER.parent / f"place-{os.getpid()}"
    made.mkdir(0o700)
    yield made
    shutil.rmtree(made)


# --- the suite ------------------------------------------------------------------------------------


def test_this_run_works_in_a_folder_of_its_own() -> None:
    own = Path(os.environ[VARIABLE])
    assert own.parent == Path("/dev/shm")
    assert own.name.startswith("mdispatch-tests-")
    assert own / USER == FOLDER
    with md.Registry.create(f"own-{os.getpid()}"):
        assert (FOLDER / f"own-{os.getpid()}").exists()


CONFTEST = """
from mdispatch.workers.pytest_plugin import own_folder
def pytest_configure(config):
    own_folder(config)
"""
NESTED = """
import os, pathlib, pytest
import mdispatch as md
from mdispatch.facts.native import native
HERE = pathlib.Path(__file__).parent
@pytest.mark.parametrize("turn", range(4))
def test_that_fails(turn):
    with md.Registry.create(f"nested-{turn}"):
        own = os.environ["MDISPATCH_FOLDER"]
        assert native.folder() == (0, f"{own}/mdispatch-{os.geteuid()}/".encode())
        (HERE / f"{os.getpid()}-{turn}").write_text(own)
    assert turn != 2
"""


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_all_processes_of_a_run_share_one_folder_which_goes_with_the_run(
    workers: int, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_nested.py").write_text(NESTED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"-n{workers}", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in environment().items() if not k.startswith("PYTEST")},
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    told = {file.read_text() for file in tmp_path.glob("[0-9]*")}
    assert len(told) == 1
    (folder,) = told
    assert folder.startswith("/dev/shm/mdispatch-tests-")
    assert folder != os.environ[VARIABLE]
    assert not os.path.exists(folder)


APART = ["unshare", "--mount", "--propagation", "private"]
BESIDE = """
import fcntl, json, os, pathlib, subprocess, sys
folder = pathlib.Path(f"/dev/shm/mdispatch-{os.geteuid()}")
folder.mkdir(0o755)
folder.joinpath("in-use").touch()
folder.chmod(0o555)
fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
def seen():
    of = folder.stat()
    return of.st_ino, of.st_mode, of.st_mtime_ns, of.st_ctime_ns, os.listdir(folder)
before, around = seen(), os.listdir("/dev/shm")
words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]
done = subprocess.run(words, capture_output=True, text=True)
told = done.stdout[-2000:] + done.stderr
print(json.dumps([done.returncode, told, before == seen(), around == os.listdir("/dev/shm")]))
"""


def may_be_apart() -> bool:
    """Whether this process can have a /dev/shm of its own."""
    if not shutil.which("unshare"):
        return False
    mount = ["mount", "-t", "tmpfs", "none", "/dev/shm"]
    return subprocess.run([*APART, *mount], capture_output=True, check=False).returncode == 0


@pytest.mark.thorough
@pytest.mark.skipif(not may_be_apart(), reason="may not make namespaces here")
def test_a_run_goes_on_while_this_users_folder_is_locked_and_has_other_rights() -> None:
    kept = {k: v for k, v in environment().items() if not k.startswith("PYTEST") and k != VARIABLE}
    some = [
        "registry/test_bad_input.py::test_a_name_that_is_taken_is_refused",
        "facts/test_elect_edges.py::test_an_address_whose_registry_is_closed_is_answered_in_time",
        "facts/test_hostile_files.py::test_whose_file_was_deleted_goes_on_and_the_name_is_free",
        "facts/test_folder.py::test_this_run_works_in_a_folder_of_its_own",
    ]
    mount = 'mount -t tmpfs none /dev/shm && exec "$@"'
    done = subprocess.run(
        [*APART, "sh", "-c", mount, "sh", sys.executable, "-c", BESIDE, *some],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(100),
        cwd=TESTS,
        env=kept,
    )
    assert done.returncode == 0, done.stderr
    code, told, untouched, nothing_left = json.loads(done.stdout)
    assert (code, untouched, nothing_left) == (0, True, True), told


# --- what cannot be used --------------------------------------------------------------------------

ASKS = """
import json
import mdispatch as md
from mdispatch.facts.outside import folder_problem
try:
    md.default_registry()
except md.errors.MdispatchError as error:
    print(json.dumps([type(error).__name__, str(error), folder_problem()]))
"""


def asked_for(script: str = "", *before: str, begin: str = "", **changes: str) -> list[str]:
    """What a process is told that asks for elect:asked, after a script of the shell."""
    asks = ASKS.replace("try:", f"{begin}try:")
    done = subprocess.run(
        [*before, "sh", "-c", f'{script} exec "$@"', "sh", sys.executable, "-c", asks],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
        env=environment(MDISPATCH_REGISTRY="elect:asked", **changes),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MOUNTED = {
    "read-only": (
        "-o ro",
        "Read-only file system",
        "is on a file system that is mounted read-only",
    ),
    "full": ("-o size=64k", "No space left on device", "is full: make room there, or make it"),
}


@pytest.mark.thorough
@pytest.mark.skipif(not may_be_apart(), reason="may not make namespaces here")
@pytest.mark.parametrize("kind", MOUNTED)
@pytest.mark.parametrize("variable", [None, "in MDISPATCH_FOLDER"])
def test_a_folder_that_takes_no_registry_is_named_with_the_cause_and_the_remedy(
    kind, variable, place
) -> None:
    options, system, cause = MOUNTED[kind]
    at = str(place) if variable else "/dev/shm"
    changes = {"MDISPATCH_FOLDER": at if variable else ""}
    name, text, problem = asked_for(f"mount -t tmpfs {options} none {at} &&", *APART, **changes)
    head, file, *advice = text.split("\n")
    assert (name, head) == ("SystemCallError", f"registry elect:asked cannot be used: {system}")
    assert file == f"  its file: {at}/{USER}/asked"
    assert advice[0].startswith(("The file system of ", "")[kind == "read-only"] + at)
    assert cause in advice[0]
    assert "let MDISPATCH_FOLDER" in advice[0]
    assert advice[1:] == [
        "MDISPATCH_REGISTRY=elect:asked in the environment asks for it. Unset it to work alone."
    ]
    # doctor has nothing to say of a full one: what is there can be read, and ends by itself.
    assert (problem is not None) == (kind == "read-only")
    if problem is not None:
        assert problem.startswith(f"no named registry can be made: {at} is read-only, or this user")


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("here", "is no absolute path"),
        ("/nowhere/at/all", "does not exist"),
        (__file__, "is no folder"),
        ("/proc", "takes no new folders"),
        (f"/{'d' * 200}", "is longer than 160 bytes"),
    ],
)
def test_a_folder_that_is_none_is_named_with_what_is_wrong(folder: str, why: str) -> None:
    name, text, problem = asked_for(MDISPATCH_FOLDER=folder)
    head, *rest = text.split("\n")
    assert name == "RegistryAccessError"
    start = "there is no folder for named registries: MDISPATCH_FOLDER="
    assert head.startswith(start + folder[:160])
    assert f" in the environment {why}. Give the absolute path" in head
    assert len(rest) == 1
    assert problem == (None if folder == "/proc" else head)  # to look there is no mistake


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["folder", "file", "a link"])
def test_whose_the_file_or_the_folder_is_is_told(what: str, place: Path) -> None:
    folder, file = place / USER, place / USER / "asked"
    folder.mkdir(0o700)
    file.write_bytes(bytes(5000))
    file.chmod(0o600)
    told = {
        "folder": f"the folder {folder} is user 4242's, and this process is user 0's.",
        "file": f"the file {file} is user 4242's, and this process is user 0's.",
        "a link": f"{folder} is a symbolic link, and not the folder itself. Remove the link",
    }[what]
    if what == "a link":
        folder.rename(place / "other")
        folder.symlink_to(place / "other")
    else:
        os.chown({"folder": folder, "file": file}[what], 4242, -1)
    name, text, _ = asked_for(MDISPATCH_FOLDER=str(place))
    assert name == "RegistryOwnerError"
    assert text.startswith(f"registry elect:asked is not used: {told}")


def test_a_folder_in_which_this_user_may_not_write_is_named(place: Path) -> None:
    place.chmod(0o555)
    begin = "" if os.geteuid() else "import os; os.setegid(4242); os.seteuid(4242)\n"
    name, text, problem = asked_for(begin=begin, MDISPATCH_FOLDER=str(place))
    assert name == "SystemCallError"
    assert f"\nThis process may not make files in {place}: give its user the right." in text
    assert problem is not None
    assert problem.startswith(f"no named registry can be made: {place} is read-only, or this user")


# --- the variable ---------------------------------------------------------------------------------

REFUSED = """
import json, os
import mdispatch as md
def why(function):
    try:
        function()
    except md.errors.RegistryAccessError as error:
        return str(error)
def by_default():
    os.environ["MDISPATCH_REGISTRY"] = "elect:name"
    try:
        md.default_registry()
    finally:
        del os.environ["MDISPATCH_REGISTRY"]
named = [why(lambda: md.Registry.create("name")), why(lambda: md.Registry.elect("name")),
         why(lambda: md.Registry.attach("name", timeout=5)), why(by_default)]
with md.Registry.create() as registry, md.Registry.attach(registry.address):
    lib = md.Library("shop", "DEF", registry=registry)
    lib.define("f(int x) -> int")
    lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
    print(json.dumps([named, registry.ops.shop.f(1)]))
"""
WORDS = re.compile(
    r"MDISPATCH_FOLDER=.+ in the environment (is|does) [\w ]+\. Give the absolute path, of at "
    "most 160 bytes, "
)


@pytest.mark.parametrize("what", ["relative", "too long", "missing", "a file", "a link to nothing"])
def test_what_is_no_folder_is_refused_by_name_and_by_name_only(what: str, place: Path) -> None:
    (place / "file").touch()
    (place / "link").symlink_to(place / "nothing")
    value = {
        "relative": "tests",
        "too long": f"{place}/{'/' * (160 - len(str(place)))}",  # it exists
        "missing": place / "missing",
        "a file": place / "file",
        "a link to nothing": place / "link",
    }[what]
    named, called = told_by(REFUSED, value)
    assert len(named) == 4
    assert all(WORDS.search(text) for text in named), named
    assert called == 2
    assert sorted(os.listdir(place)) == ["file", "link"]
    assert not os.path.lexists(Path(SUPPORT) / "tests")


LIES = """
import json, os, sys
import mdispatch as md
with md.Registry.create("name"):
    print(json.dumps(os.listdir(sys.argv[1])))
"""


@pytest.mark.parametrize("what", ["plain", "160 bytes", "a link", "no UTF-8", "odd"])
def test_registries_lie_in_the_folder_that_is_named(what: str, place: Path) -> None:
    (place / "link").symlink_to(place)
    value = {
        "plain": str(place),
        "160 bytes": str(place) + "/" * (160 - len(str(place))),
        "a link": f"{place}/link",
        "no UTF-8": os.fsdecode(os.fsencode(place) + b"/\xff"),
        "odd": f"{place}/a %s\n",
    }[what]
    os.makedirs(value, exist_ok=True)
    assert told_by(LIES, value, f"{value}/{USER}") == ["name"]
    assert os.listdir(f"{value}/{USER}") == []
    assert not os.path.lexists(FOLDER / "name")


def test_a_later_change_has_no_effect(place: Path) -> None:
    script = """
import json, os, sys
import mdispatch as md
from mdispatch.facts.native import native
before = native.folder()[1].decode()
os.environ["MDISPATCH_FOLDER"] = sys.argv[1]
with md.Registry.create("name"):
    print(json.dumps([before, native.folder()[1].decode(), os.listdir(before)]))
"""
    (place / "first").mkdir()
    (place / "second").mkdir()
    before, after, names = told_by(script, place / "first", place / "second")
    assert before == after == f"{place}/first/{USER}/"
    assert names == ["name"]
    assert os.listdir(place / "second") == []


INHERITED = """
import json, multiprocessing, sys
import mdispatch as md
def look(name):
    from mdispatch.facts.native import native
    with md.Registry.attach(name, timeout=0) as registry:
        return native.folder()[1].decode(), registry.namespaces()
if __name__ == "__main__":
    with md.Registry.create("name") as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("f(int x) -> int")
        told = [look("name")]
        for method in ("spawn", "fork", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                told.append(pool.apply(look, ("name",)))
        with md.InterpreterPool(1, initargs=(sys.path,)) as pool:
            told.append(pool.submit(look, "name").result())
        print(json.dumps(told))
"""


@pytest.mark.filterwarnings("ignore")
def test_children_of_every_kind_and_interpreters_look_in_the_same_folder(
    place: Path, tmp_path: Path
) -> None:
    script = tmp_path / "inherited.py"
    script.write_text(INHERITED)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
        env=environment(**{VARIABLE: str(place), "MDISPATCH_BINDING": ""}),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[f"{place}/{USER}/", ["shop"]]] * 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_in_another_users_folder_nothing_is_made(place: Path) -> None:
    script = """
import json, os, sys
sys.path.insert(0, os.getcwd())
import mdispatch as md
from hostile_stage import become, create, timed
become(int(sys.argv[1]))
print(json.dumps(timed(lambda: create("name"), 1)[::2]))
"""
    outcome, words = told_by(script, place, 50_000)  # root's, and closed to all others
    assert outcome == "SystemCallError"
    assert "Permission denied" in words
    assert os.listdir(place) == []


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_doctor_looks_in_the_folder_of_its_own_environment(place: Path) -> None:
    name = f"seen-{os.getpid()}"
    with main_of(name) as main:
        assert mdispatch("doctor", name, process=True).returncode == 0
        elsewhere = mdispatch("doctor", name, process=True, **{VARIABLE: str(place)})
        assert elsewhere.returncode == 2
        assert "there is no registry" in elsewhere.stderr
        main.do("registry.close()")


def test_doctor_finds_a_deleted_file_also_where_a_link_leads_to_the_folder(place: Path) -> None:
    (place / "link").symlink_to(FOLDER.parent)
    name = f"deleted-{os.getpid()}"
    with main_of(name) as main:
        (FOLDER / name).unlink()
        told = mdispatch("doctor", "--json", process=True, **{VARIABLE: str(place / "link")})
        found = json.loads(told.stdout)["registries"]
        assert main.pid in [each["registrar"]["pid"] for each in found if each["registrar"]], found


@pytest.mark.parametrize("value", ["relative", "/dev/shm/not/there"])
def test_doctor_says_so_where_there_can_be_no_folder(value: str) -> None:
    told = mdispatch("doctor", "--json", process=True, **{VARIABLE: value})
    assert told.returncode == 1
    assert WORDS.search(json.loads(told.stdout)["folder_problem"])

"""Where a module registers something else in two members, the error looks for the reason, and says
what to do about that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.registry.versions import remedy, was_changed

pytestmark = pytest.mark.shared

MODULE = """
import os
import mdispatch as md
lib = md.Library("pricing", "DEF")
lib.define("gross(float net, float tax=0.19) -> float")
lib.define("net(float gross) -> float" if os.environ.get("NET") else "other() -> int")
"""
MAIN = """
import sys, pricing, mdispatch as md
print(md.default_registry().address, flush=True)
input()
"""
WORKER = """
import pickle, sys
import mdispatch.errors
try:
    import pricing
except mdispatch.errors.MdispatchError as error:
    sys.stdout.buffer.write(pickle.dumps(error))
"""


@pytest.fixture
def main(tmp_path: Path):
    """A process that has imported the module from the folder v1."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "pricing.py").write_text(MODULE)
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", MAIN],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "v1")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.address = process.stdout.readline().strip()
    with process:
        yield process
        process.kill()


def refused(main, folder: Path, **changes: str) -> list[str]:
    """The last lines, which say what to do, of what a worker is told that imports from a folder."""
    import pickle

    done = subprocess.run(
        [sys.executable, "-B", "-c", WORKER],
        env=os.environ | {"PYTHONPATH": str(folder), "MDISPATCH_REGISTRY": main.address} | changes,
        capture_output=True,
        timeout=limit(60),
        check=True,
    )
    return str(pickle.loads(done.stdout)).split("\n")


DEPLOY = "Where a new version is to take the place of an old one (a deploy), end the old processes"


def test_a_file_that_was_changed_since_is_called_so(main, tmp_path: Path) -> None:
    file = tmp_path / "v1" / "pricing.py"
    file.write_text(MODULE.replace("0.19", "0.16"))
    *_, last = refused(main, tmp_path / "v1")
    start = f"The file {file} was changed after process {main.pid} had started, which may have"
    assert last.startswith(start)
    assert f"{DEPLOY} first, or make the new ones an edition" in last
    assert "MDISPATCH_REGISTRY=elect:NAME@{env:RELEASE}" in last


def test_so_is_one_that_was_moved_there_with_an_old_time(main, tmp_path: Path) -> None:
    new = tmp_path / "pricing.py"
    new.write_text(MODULE.replace("float net, float tax", "float tax, float net"))
    os.utime(new, (1_000_000_000, 1_000_000_000))
    new.replace(tmp_path / "v1" / "pricing.py")
    assert " was changed after process " in refused(main, tmp_path / "v1")[-1]


def test_so_it_is_where_an_operator_came_and_where_one_went(main, tmp_path: Path) -> None:
    file = tmp_path / "v1" / "pricing.py"
    file.write_text(MODULE.replace("gross(", "gross_of("))
    head, *_, last = refused(main, tmp_path / "v1")
    assert "did not define pricing::gross_of" in head
    assert last.startswith(f"The file {file} was changed after process {main.pid}")


def test_two_release_folders_are_called_two_files(main, tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "pricing.py").write_text(MODULE.replace("0.19", "0.16"))
    *_, last = refused(main, tmp_path / "v2")
    assert last.startswith("They come from two files: make both import the same version")
    assert DEPLOY in last


def test_one_file_that_looks_at_the_environment_is_called_one(main, tmp_path: Path) -> None:
    head, *_, last = refused(main, tmp_path / "v1", NET="1")
    assert "did not define pricing::net" in head
    assert last == "Check the spelling, and that both import the same version of the module."
    text = remedy(f"{tmp_path}/v1/pricing.py:3", f"{tmp_path}/v1/pricing.py:4", main.pid)
    assert text.startswith("Both come from one file: does it look at something that differs")


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_of_the_same_process_is_told_to_import_anew(kind, tmp_path: Path) -> None:
    (tmp_path / "pricing.py").write_text(MODULE)
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        import pricing
        file = Path(folder, "pricing.py")
        file.write_text(file.read_text().replace("0.19", "0.16"))
        text = '''
        import sys
        sys.dont_write_bytecode = True
        import mdispatch as md
        try:
            import pricing
        except md.errors.SchemaMismatchError as error:
            report(last=str(error).rpartition("\\\\n")[2])
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        kind,
        str(tmp_path),
    )
    assert got["last"] == (
        f"The file {tmp_path}/pricing.py was changed after this process had started, so one of the "
        "two may have an older version: import it anew in both."
    )


PLAIN = "Make both import the same version of the module."


@pytest.mark.parametrize(
    ("here", "there", "starts"),
    [
        ("<cell>:1", "/srv/pricing.py:3", PLAIN),
        ("pricing.py:1", "/srv/pricing.py:3", PLAIN),
        ("here[12]:/srv/pricing.py:3", "there[13]:/srv/pricing.py:3", PLAIN),
        ("/srv/a.py:3", "/srv/b.py:3", "They come from two files: register it in one module"),
        ("/srv/v1/a.py:3", "/srv/v2/a.py:3", "They come from two files: make both import"),
        ("/srv/v1/a.py:3", "/srv/v1/a.py:4", "Both come from one file: does it look at"),
    ],
)
def test_where_nothing_can_be_seen_the_possible_reasons_are_named(here, there, starts) -> None:
    assert remedy(here, there, 1).startswith(starts)


def test_of_a_process_that_has_ended_nothing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file.touch()
    later = os.stat(file).st_mtime + 10
    os.utime(file, (later, later))
    assert was_changed(str(file), ended.pid) != ""
    ended.communicate(b"\n")
    assert was_changed(str(file), ended.pid) == ""
    assert was_changed(str(tmp_path / "never.py"), os.getpid()) == ""


def test_a_library_is_missed_only_where_nothing_is_in_its_namespace(registry, worker) -> None:
    def is_defined():
        return md.Library("si", "DEF", registry=worker, timeout=0)

    with pytest.raises(errors.MainNeverArrivedError, match="there: nothing in namespace 'si'"):
        is_defined()
    md.Library("si", "FRAGMENT", registry=registry).define("f() -> int")
    with pytest.raises(errors.MainNeverArrivedError) as caught:
        is_defined()
    assert f"namespace 'si' comes from {__file__}:" in str(caught.value)
    assert "without a DEF library" in str(caught.value)
    assert "Open it as 'FRAGMENT' here, or as 'DEF' in both" in str(caught.value)

"""The promises of libraries without one tensor: three of twenty operators each are registered, are
verified in the workers of each kind of pool, give their answers there, and are typed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md

LIBRARIES = Path(__file__).parents[1] / "support" / "libraries"

MAIN = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import mdispatch as md
import plain_uses

NAMES = ["plain_texts", "plain_web", "plain_tables"]


def told(_):
    return repr(plain_uses.answers())


def pool(kind):
    hook = md.initializer(NAMES)
    if kind == "thread":
        return ThreadPoolExecutor(2)
    if kind == "interpreter":
        return md.InterpreterPool(2, initializer=hook)
    if kind == "executor":
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(2, context, initializer=hook)
    return multiprocessing.get_context(kind).Pool(2, initializer=hook)


if __name__ == "__main__":
    with pool(sys.argv[1]) as workers:
        found = [*workers.map(told, range(4))]
    assert found == [told(0)] * 4, found
    names = [each for name in ("texts", "web", "tables") for each in dir(getattr(md.ops, name))]
    print(len(found))
"""


@pytest.fixture
def folder(tmp_path):
    for each in LIBRARIES.glob("*.py"):
        shutil.copy(each, tmp_path)
    (tmp_path / "main.py").write_text(MAIN)
    return tmp_path


def run(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=limit(60),
    )


KINDS = ["thread", "fork", "spawn", "forkserver", "executor", "interpreter"]


@pytest.mark.shared
@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_each_pool_have_the_operators_and_their_answers(folder, kind):
    if kind == "interpreter" and sys.version_info < (3, 13):
        pytest.skip("CPython before 3.13 shares the objects of decimal between interpreters")
    ran = run(folder, "main.py", kind)
    assert ran.stdout == "4\n", ran.stderr


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("plain_texts.py", 'by: str = " "', 'by: str = "-"', "default of 'by'"),
        (
            "plain_web.py",
            "method: Method = Method.GET, **",
            "method: Method = Method.POST, **",
            "default of 'method' is",
        ),
        ("plain_tables.py", "Sequence[Number]) -> float", "list[Number]) -> float", "tables::mean"),
        ("plain_web.py", "**headers: str", "**headers: str | None", "the arguments with stars"),
        ("plain_texts.py", '"utf-16", "ascii"', '"ascii"', "Literal"),
    ],
)
def test_a_worker_with_another_version_is_refused(folder, tmp_path_factory, file, old, new, words):
    other = tmp_path_factory.mktemp("other")
    for each in folder.glob("*.py"):
        shutil.copy(each, other)
    text = (other / file).read_text()
    assert text.count(old) >= 1
    (other / file).write_text(text.replace(old, new, 1))
    code = (
        "import subprocess, sys, plain_uses\n"
        f"ran = subprocess.run([sys.executable, '-c', 'import plain_uses'], cwd={str(other)!r})\n"
        "print(ran.returncode)"
    )
    ran = run(folder, "-c", code)
    assert ran.stdout == "1\n"
    assert "SchemaMismatchError" in ran.stderr
    assert words in ran.stderr


@pytest.mark.thorough
def test_type_checkers_see_the_authors_types():
    pytest.importorskip("mypy", reason="mypy is not installed here")
    package = Path(md.__file__).parents[1]
    environment = {} if "site-packages" in package.parts else {"MYPYPATH": str(package)}
    ran = run(
        LIBRARIES,
        *("-m", "mypy", "--strict", "--warn-unused-ignores", "--cache-dir", os.devnull),
        "plain_uses.py",
        **environment,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.shared
def test_a_refusal_shows_the_two_versions_and_not_the_way_through_mdispatch(folder):
    (folder / "other.py").write_text(
        "import mdispatch as md\n@md.custom_op('s::f')\ndef f(x=1): ...\n"
    )
    code = (
        "import subprocess, sys, other\n"
        "text = open('other.py').read().replace('=1', '=2')\n"
        "subprocess.run([sys.executable, '-c', text])\n"
    )
    ran = run(folder, "-c", code)
    assert "the default of 'x' is 2 here, 1 there" in ran.stderr
    frames = [line for line in ran.stderr.splitlines() if line.startswith('  File "')]
    assert len(frames) == 3, ran.stderr  # the program, custom_op, and the method that raises

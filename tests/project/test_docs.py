"""The Python in the documentation runs as it stands, each page from its top to its end.

A snippet whose comment says that it is from a file of the examples has to be in that file, word for
word; examples/run.py runs the file if its packages are installed. test_pytest_plugin.py runs the
snippets that are files of tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
#: What others run: embedding has texts in C, too (tests/c_kernels/test_embedding.py), the overview
#: needs the examples (test_overview.py), and the quick start is followed (test_readme.py).
ELSEWHERE = {"embedding", "overview", "quick-start"}


#: What a page needs that is not there where nothing is shared (docs/other-systems.md), and what it
#: ends with there. It runs up to that.
ONLY_SHARED = {
    "calling-across": ("sub-interpreters", "NotSharedError: A sub-interpreter needs"),
    "calls": ("calls that C makes", 'assert scale.caller == "__main__"'),
    "coming-from-torchdeploy": ("sub-interpreters", "NotSharedError: A sub-interpreter needs"),
    "everybody-has-the-same": ("others to agree with", "NotSharedWarning: this value is compared"),
    "python-layer": ("sub-interpreters", "NotSharedError: A sub-interpreter needs"),
    "teams": ("a team", "NotSharedError: Registry.elect needs"),
    "tutorial": ("sub-interpreters", "NotSharedError: A sub-interpreter needs"),
}

BLOCK = re.compile(r"^(?:<!-- (\S+)[^\n]* -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snippets(page):
    return [code for source, code in BLOCK.findall(page.read_text()) if not source]


def copies(page):
    return [(source, code) for source, code in BLOCK.findall(page.read_text()) if source]


RUN_HERE = [page for page in PAGES if snippets(page) and page.stem not in ELSEWHERE]


def run_page(page, folder, **more):
    script = folder / "page.py"
    script.write_text("\n".join(snippets(page)))
    if "\nimport numpy" in script.read_text():
        pytest.importorskip("numpy")
    if "\nfrom tape import" in page.read_text():  # which the page has its reader copy
        shutil.copy(ROOT / "examples" / "tape.py", folder)
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
        env={"PATH": "/usr/bin:/bin", "MDISPATCH_FOLDER": os.environ["MDISPATCH_FOLDER"], **more},
    )


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
def test_each_page_runs(page, tmp_path):
    ran = run_page(page, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
def test_each_page_runs_where_nothing_is_shared_or_is_in_the_table(page, tmp_path):
    ran = run_page(page, tmp_path, MDISPATCH_BINDING="none")
    _, end = ONLY_SHARED.get(page.stem, ("", ""))
    if end:
        assert ran.returncode == 1, "it runs: take it out of the table"
        assert end in ran.stderr
    else:
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.lint
def test_the_table_of_pages_that_need_sharing_names_pages():
    assert ONLY_SHARED.keys() <= {page.stem for page in RUN_HERE}


@pytest.mark.lint
@pytest.mark.parametrize(
    "page", [page for page in PAGES if copies(page)], ids=lambda page: page.stem
)
def test_what_is_copied_from_an_example_stands_there(page):
    for source, code in copies(page):
        if source != "pytest:":
            assert code in (ROOT / source).read_text(), source


@pytest.mark.lint
def test_the_page_of_pools_has_every_example_of_one():
    shown = {source for source, _ in copies(ROOT / "docs" / "pools.md")}
    assert {f"examples/pools/{path.name}" for path in (ROOT / "examples/pools").glob("*.py")} == (
        shown - {"pytest:"}
    )


@pytest.mark.lint
def test_the_page_of_servers_names_every_program_that_starts_one():
    page = (ROOT / "docs" / "servers.md").read_text()
    programs = [*(ROOT / "examples/servers").glob("*_server.py")]
    named = [path.name for path in programs if f"servers/{path.name}" in page]
    assert sorted(named) == sorted(p.name for p in programs if p.name != "ask_server.py")


@pytest.mark.lint
def test_there_are_pages_with_snippets():
    assert "dispatcher" in {page.stem for page in PAGES if snippets(page)}


def location_of(page, link):
    """The installed package may be tested, without its folder beside docs/."""
    if link.startswith("../mdispatch/"):
        return Path(md.__file__).parent / link.removeprefix("../mdispatch/")
    return page.parent / link


@pytest.mark.lint
@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page):
    """Links to files of this repository, and test files named as evidence."""
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [link for link in links if not location_of(page, link).exists()]
    missing += [
        path for path in re.findall(r"`(tests/[\w/]+\.py)`", text) if not (ROOT / path).exists()
    ]
    assert missing == []


@pytest.mark.lint
@pytest.mark.parametrize("page", ["reliability", "security"])
def test_tests_that_are_named_as_evidence_are_there(page):
    """A word in code with five parts or more is the name of a test, in Python or in C."""
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "native" / "tests").glob("*.c")]
    tests = "\n".join(source.read_text() for source in sources)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    names = set(re.findall(r"`((?:[a-z0-9]+_){4,}[a-z0-9]+)`", text))
    assert names
    assert [name for name in names if not re.search(rf"(?:def |TEST\(){name}\b", tests)] == []

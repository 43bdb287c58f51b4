"""The pages for people who work on mdispatch name only things that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mdispatch as md

pytestmark = pytest.mark.lint

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(md.__file__).resolve().parent
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PATH = r"(?<![\w/.<])((?:[\w.-]+/)+[\w.-]+\.(?:py|c|h|md|toml))\b"
#: Files of the dispatcher that this one follows, and of CPython.
THEIRS = (
    "linux/",
    "sys/",
    "torch/",
    "aten/",
    "c10/",
    "Modules/",
    "Python/",
    "Include/",
    "Objects/",
)


def there(path: str, beside: Path = ROOT) -> bool:
    """Whether a path of the repository exists: whole, inside the package, or beside its text."""
    if path.startswith("mdispatch/"):
        path = path.removeprefix("mdispatch/")
    places = (ROOT, PACKAGE, ROOT / "native", ROOT / "native" / "bind", beside)
    return any((place / path).exists() for place in places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_for_contributors_names_only_what_exists(page):
    text = page.read_text()
    assert [path for path in re.findall(PATH, text) if not there(path, page.parent)] == []
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for package in re.findall(r"`((?:mdispatch|native|tests|docs)/[\w/]*)`", text):
        assert there(package) or (ROOT / package).is_dir(), package


def test_the_map_has_every_package():
    text = PAGES[0].read_text()
    packages = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert [package for package in packages if f"| `{package}` |" not in text] == []


def sources() -> list[Path]:
    found = [*PACKAGE.rglob("*.py"), *(ROOT / "native").rglob("*.[ch]")]
    return [path for path in found if "build" not in path.parts and path.name != "_cffi.c"]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_every_file_that_the_code_names_exists(path):
    named = [each for each in re.findall(PATH, path.read_text()) if not each.startswith(THEIRS)]
    assert [each for each in named if not there(each, path.parent)] == []


def test_one_module_knows_roles():
    """The registrations have a role, a host stands by those of its members, and the command line
    shows them; whoever else asks, asks roles.py."""
    asks = re.compile(r"\.role\b|\b(MAIN|WORKER|PEER)\b")
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    found = {path for path in found if asks.search((PACKAGE / path).read_text())}
    assert {path for path in found if path.split("/")[0] not in ("facts", "cluster", "cli")} == {
        "registry/roles.py"
    }


def test_the_walks_pass_the_files_that_the_map_tells():
    # In a process of its own: what other tests leave in this one, as registered types, adds files.
    command = [sys.executable, str(ROOT / "docs" / "walks.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    walks = {
        name: files.split()
        for name, files in re.findall(r"^(\w+): \d+\n((?:  .+\n)+)", shown, re.M)
    }
    assert walks.keys() == {"define", "slow_call", "attach", "wait", "implement"}
    assert {"registry/library.py", "registry/register.py", "registry/roles.py"} <= {
        *walks["define"]
    }
    told = dict(re.findall(r"^\| (\w+) \| (\d+) \|", PAGES[0].read_text(), re.MULTILINE))
    assert told.keys() == walks.keys()
    assert [name for name, files in walks.items() if len(files) > int(told[name])] == []
    assert {"dispatch/call_py.py", "dispatch/entry.py"} <= {*walks["slow_call"]}
    assert {"registry/waiting.py", "facts/shared.py"} <= {*walks["wait"]}

"""docs/coming-from-pytorch.md accounts for every name of PyTorch's dispatcher; what it names here
is there, a test uses it, and each row is shown to be true.

tests/data/pytorch_names.txt has the names, by source file; tests/data/coming_from_pytorch.toml has
the rows, with the statements that show them.
"""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import coming_from_page  # noqa: E402

sys.path.pop(0)

PAGE = coming_from_page.PAGE.read_text()
MARKS = ("*inside*", "*storage*")
SAME = "torch_compat.*"

# --- the page and the inventory -------------------------------------------------------------------


def names_of(text):
    """``{source file: names}``."""
    found = {}
    for line in text.splitlines():
        if not line.startswith(("#", " ")) and line:
            section = found.setdefault(line, set())
        elif line.startswith(" "):
            section.update(line.split())
    return found


INVENTORY = names_of((ROOT / "tests" / "data" / "pytorch_names.txt").read_text())


ROWS = {
    heading: [
        (re.findall(r"`([^`]+)`", row["there"]), re.findall(r"`([^`]+)`", row["here"]), row["here"])
        for row in rows
    ]
    for heading, rows in coming_from_page.TABLES.items()
}


def unaccounted(inventory, rows):
    """What the inventory has and the page does not."""
    return {
        (file, name)
        for file, names in inventory.items()
        for name in names - {each for theirs, _, _ in rows.get(file, ()) for each in theirs}
    }


def test_the_page_has_the_tables_of_the_file():
    """If this fails, run python docs/coming_from_page.py."""
    assert coming_from_page.page(PAGE) == PAGE


def test_a_table_without_a_place_in_the_page_is_missed():
    with pytest.raises(ValueError, match=r"torch/_ops\.py"):
        coming_from_page.page(PAGE.replace("## torch/_ops.py", "## elsewhere"))


def test_the_page_accounts_for_every_name():
    assert unaccounted(INVENTORY, ROWS) == set()


@pytest.mark.parametrize("file", INVENTORY)
def test_a_file_or_a_name_that_is_dropped_from_the_page_is_missed(file):
    assert unaccounted(INVENTORY, {**ROWS, file: []}) == {(file, name) for name in INVENTORY[file]}
    assert unaccounted(INVENTORY, {**ROWS, file: ROWS[file][1:]}) != set()


def test_the_inventory_has_the_five_source_files():
    assert {Path(file).name for file in INVENTORY} == {
        *("Dispatcher.cpp", "python_dispatch.cpp", "_ops.py", "library.py", "_python_dispatcher.py")
    }
    assert all(len(names) > 10 for names in INVENTORY.values())


@pytest.mark.parametrize("heading", ROWS)
def test_each_row_has_a_name_or_says_why_not(heading):
    for theirs, ours, here in ROWS[heading]:
        assert theirs, here
        assert bool(ours) != (here in MARKS), (theirs, here)


# --- what it names exists -------------------------------------------------------------------------

CONTRACT = (ROOT / "native" / "mdispatch.h").read_text()
PACKAGE = "\n".join(path.read_text() for path in sorted(Path(md.__file__).parent.rglob("*.py")))


def resolved(name):
    """Whether there is such a name: of the package, of the C library, or in the environment."""
    if name.startswith("md_"):
        return re.search(rf"^int\w* {name}\(", CONTRACT, re.MULTILINE) is not None
    if name.isupper():
        return f'"{name}"' in PACKAGE
    first, *rest = name.split(".")
    found = getattr(md, first, None)
    if found is None:
        try:
            found = importlib.import_module(f"mdispatch.{first}")
        except ImportError:
            return False
    for part in rest:
        found = getattr(found, part, None)
    return found is not None


def ours_of(rows):
    """The names of the second column; of ``torch_compat.*`` those of the first."""
    return sorted(
        {
            name
            for theirs, ours, _ in rows
            for each in ours
            for name in ([f"torch_compat.{n}" for n in theirs] if each == SAME else [each])
        }
    )


OURS = ours_of([row for rows in ROWS.values() for row in rows])


@pytest.mark.needs("across")
@pytest.mark.parametrize("name", OURS)
def test_what_the_page_names_exists(name):
    assert resolved(name)


@pytest.mark.parametrize(
    "name",
    [
        *("Libary", "Library.defien", "keys.nope", "nope.Library", "torch_compat._dispatch_nope"),
        *("md_nope", "MDISPATCH_NOPE", "ObservedCall.nope"),
    ],
)
def test_a_name_that_is_nowhere_is_noticed(name):
    assert not resolved(name)


@pytest.mark.needs("across", "choices", "cluster", "providers", "torch")
def test_names_in_the_text_of_the_page_exist():
    for name in set(re.findall(r"`mdispatch\.([A-Za-z_.]+)`", PAGE)):
        assert resolved(name), name


# --- what it says is so ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raised():
    """What the statements of each row raised, or an empty text."""
    environment = {key: each for key, each in os.environ.items() if key != "MDISPATCH_REGISTRY"}
    ended = subprocess.run(
        [
            sys.executable,
            ROOT / "tests/support/table_rows.py",
            coming_from_page.ROWS,
            str(int(limit(60))),
        ],
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    return json.loads(ended.stdout)


def there_after_all(theirs):
    """Which names of a row that has none here are there, with the arguments of PyTorch or not."""
    places = (md, importlib.import_module("mdispatch.torch_compat"))
    return [name for name in theirs if any(hasattr(place, name) for place in places)]


SHOWN = [row for rows in coming_from_page.TABLES.values() for row in rows]


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=row["there"], marks=[pytest.mark.shared] * row.get("shared", False))
        for number, row in enumerate(SHOWN)
    ],
)
def test_a_row_is_true(number, raised):
    row = SHOWN[number]
    # What is about PyTorch's memory can only be shown not to be there.
    assert "shown" in row or row["here"] == "*storage*"
    if row["here"] in MARKS:
        assert there_after_all(re.findall(r"`([^`]+)`", row["there"])) == []
    assert raised[number] == ""


def test_a_name_that_is_there_after_all_is_noticed():
    names = ["hermetic", "_dispatch_keys", "_get_nested_int"]
    assert there_after_all(names) == ["hermetic", "_dispatch_keys"]


# --- and is used by a test ------------------------------------------------------------------------


class Used:
    """The names that code uses: ``names`` anywhere, ``attributes`` after a dot."""

    def __init__(self):
        self.names = set()
        self.attributes = set()
        self.recorded = set()  # what recordings of PyTorch call by its name

    def add(self, source):
        tree = ast.parse(source)
        texts = docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                self.names.add(node.id)
            elif isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
                self.attributes.add(node.name)  # a hook that a test fills in
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.names.update(alias.name.rpartition(".")[2] for alias in node.names)
            elif isinstance(node, ast.Constant) and id(node) not in texts:
                self.add_text(str(node.value))

    def add_text(self, text):
        """Code that a test gives to another interpreter, or a name that it looks up."""
        if text.isidentifier():
            self.names.add(text)
            self.attributes.add(text)
        self.attributes.update(re.findall(r"\.(\w+)", text))
        for names in re.findall(r"\bimport ([\w, ]+)", text):
            self.names.update(names.replace(",", " ").split())

    def has(self, name):
        *owner, last = name.split(".")
        # What is looked up in a class or in a module may also be imported from it.
        is_member = owner and owner[-1][:1].isupper()
        is_recorded = owner == ["torch_compat"] and last in self.recorded
        return last in self.attributes or is_recorded or (not is_member and last in self.names)


def docstrings(tree):
    """Which strings say something about code and are none."""
    blocks = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, blocks)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from strings_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)


@pytest.fixture(scope="module")
def used():
    found = Used()
    oracle = ROOT / "tests" / "oracle"  # uses PyTorch itself
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__) and oracle not in path.parents:
            found.add(path.read_text())
    # Replayed by test_oracle_*.py beside this file, which look the names up.
    recorded = json.loads(gzip.decompress((ROOT / "tests/oracle/compat.json.gz").read_bytes()))
    found.recorded.update(strings_in(recorded))
    return found


def c_calls():
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "native/tests").glob("*.c")))
    return set(re.findall(r"\b(md_\w+)\s*\(", re.sub(r"/\*.*?\*/", "", sources, flags=re.DOTALL)))


@pytest.mark.thorough
@pytest.mark.lint
@pytest.mark.parametrize("name", OURS)
def test_what_the_page_names_is_used_by_a_test(name, used):
    if name.startswith("md_"):
        assert name in c_calls()
    else:
        assert used.has(name)


def test_a_name_that_no_test_uses_is_noticed():
    code = Used()
    code.add(
        '"""nothing.said here"""\n# nor.here\nfrom mdispatch import a\na.b\nrun("import c; c.d()")'
    )
    assert all(code.has(name) for name in ("a", "X.b", "c", "modul.d"))
    assert not any(code.has(name) for name in ("X.a", "said", "nothing.said", "X.here", "e"))

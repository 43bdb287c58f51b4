"""The core knows no feature: not by an import (the contracts in pyproject.toml), not by a string,
and not by loading one. Each point of the seam has its home.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

import mdispatch as md
from mdispatch import seam

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mdispatch"
CORE = ("errors", "keys", "schema", "facts", "dispatch", "registry", "forking.py", "seam.py")
FEATURES = ("across", "choices", "cluster", "editions", "observing", "pool", "providers", "torch")

pytestmark = pytest.mark.lint


def files(*names):
    for name in names:
        path = PACKAGE / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def strings(file):
    """The strings of a file that are no docstrings, with their lines."""
    tree = ast.parse(file.read_text())
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documents:
            yield node.lineno, node.value


def test_no_string_of_the_core_names_a_module_of_a_feature():
    named = re.compile(rf"\bmdispatch\.({'|'.join(FEATURES)})\b|\b({'|'.join(FEATURES)})\.\w+:\w+")
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text!r}"
        for file in files(*CORE)
        for line, text in strings(file)
        if named.search(text)
    ]
    assert found == []


def test_c_imports_no_module_of_the_package():
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in sorted((ROOT / "native" / "bind").rglob("*.[ch]"))
        for line in file.read_text().splitlines()
        if re.search(r'PyImport_\w+\([^)]*"mdispatch', line)
    ]
    assert found == []


def points_that_are_asked():
    for file in files("."):
        for point in re.findall(r'seam\.(?:at|perhaps)\(\s*"([^"]+)"', file.read_text()):
            yield point
        for point in re.findall(r"seam\.(?:at|perhaps)\(\s*'([^']+)'", file.read_text()):
            yield point
    for file in (ROOT / "native" / "bind").rglob("*.c"):
        yield from re.findall(r'seam_at\("([^"]+)"\)', file.read_text())


def test_each_point_has_a_home_and_is_asked_for():
    kinds = {point for point in seam.homes if re.fullmatch(r"kind \d+", point)}
    assert set(seam.homes) - kinds == set(points_that_are_asked())


@pytest.mark.parametrize("point", seam.homes)
def test_a_home_is_what_it_says(point):
    module, name = seam.homes[point].split(":")
    assert module.split(".")[0] in FEATURES
    assert getattr(importlib.import_module(f"mdispatch.{module}"), name) is seam.at(point)


FIRST = """
import sys
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("f(int x, str how='fast') -> int")
lib.impl("f", lambda x, how: x, "CompositeExplicitAutograd")
assert md.ops.shop.f(1) == 1 == md.ops.shop.f(1, how="slow")
print(*(name.split(".")[1] for name in sys.modules if name.startswith("mdispatch.")))
"""


def test_a_library_a_kernel_and_a_call_load_no_feature():
    ran = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=str(ROOT)),
    )
    assert set(ran.stdout.split()) & {*FEATURES, "authoring", "workers", "torch_compat"} == set()


LEFT_OUT = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("f(int x) -> int")
for ask in (lambda: md.choose, lambda: md.choices, lambda: md.set_priority):
    try:
        ask()
    except AttributeError as error:
        print(error)
try:
    lib.impl("f", len, "CPU", provider="fast")
except md.errors.FeatureMissingError as error:
    print(error, error.feature)
print("choose" in dir(md), "choose" in md.__all__, "define" in md.__all__)
"""


def test_a_feature_that_was_left_out_is_named(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "mdispatch", symlinks=True)
    for feature in ("choices", "providers"):
        shutil.rmtree(tmp_path / "mdispatch" / feature)
    ran = subprocess.run(
        [sys.executable, "-c", LEFT_OUT],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
    )
    assert ran.stdout.splitlines() == [
        "module 'mdispatch' has no attribute 'choose' here: mdispatch.choices is not installed",
        "module 'mdispatch' has no attribute 'choices' here: mdispatch.choices is not installed",
        "module 'mdispatch' has no attribute 'set_priority' here: mdispatch.providers is not "
        "installed",
        "this needs mdispatch.providers, which is not installed here (impl(provider=)) "
        "mdispatch.providers",
        "False False True",
    ]
    assert "choose" in md.__all__

"""Makes mdispatch-stubs from mdispatch/__init__.py: what that loads late, for type checkers.

    python .ci/stubs.py

The package writes each public name once, in the table by which it loads it, and no type checker can
read that. The stubs have the names as imports; and a module for each path that users know, where
the package has no file. A test compares them with what this script would write.
"""

from __future__ import annotations

import ast
from pathlib import Path

import mdispatch as md

__all__ = ["FOLDER", "stubs"]

FOLDER = Path(__file__).resolve().parents[1] / "mdispatch-stubs"
NOTE = "# Made by .ci/stubs.py from mdispatch/__init__.py.\n"


def defined(node: ast.stmt) -> str:
    """A function of the package, without what only runs."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef):
            each.body = [ast.Expr(ast.Constant(...))]
    return ast.unparse(node)


def face() -> str:
    """The stub of the package itself."""
    imports, rest = [], []
    for node in ast.parse(Path(md.__file__).read_text()).body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.ImportFrom) and node.level:
            place = f"mdispatch.{node.module}" if node.module else "mdispatch"
            imports += [f"from {place} import {each.name} as {each.name}" for each in node.names]
        elif name in md.__all__:
            rest.append(defined(node))
    for home, names in md._LATE.items():
        imports += [f"from mdispatch.{home} import {name} as {name}" for name in names.split()]
    for name, home in md._MOVED.items():
        room, _, module = home.rpartition(".")
        imports.append(f"from mdispatch.{room} import {module} as {name}")
    return "\n".join([*sorted(imports), "", "__version__: str", *rest, ""])


def stubs() -> dict[str, str]:
    """The text of each file by its name."""
    made = {"py.typed": "partial\n", "__init__.pyi": NOTE + face()}
    for name, home in md._MOVED.items():
        made[f"{name}.pyi"] = f"{NOTE}from mdispatch.{home} import *\n"
    return made


if __name__ == "__main__":
    for old in FOLDER.iterdir():
        old.unlink()
    for name, text in stubs().items():
        (FOLDER / name).write_text(text)

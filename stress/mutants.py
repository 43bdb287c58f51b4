"""Which mistakes the tests notice: small ones are put in, one at a time, and the nearest tests run.

    python stress/mutants.py --count 15 --seed 7            # in Python and in C
    python stress/mutants.py --count 40 --seed 7 --only python

The places are drawn by the seed from all lines of native/core, native/bind and four rooms of the
package. Each mutant is made in a copy of the checkout. A comparison is turned or shifted by one, a
condition is negated, a number is one more, a statement is left out. What is printed: each mutant,
what noticed it, and the part that was noticed, with its interval of 95 % (Wilson's). A mutant that
cannot be told from the original counts as not noticed: look at the survivors.

The tests that are used run without a mistake first, and have to pass.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = ("facts", "dispatch", "registry", "schema")
#: By the beginning of a file's path: the tests to be run, the nearest first.
NEAREST = {
    **{f"mdispatch/{room}/": (f"tests/{room}", "tests/registry") for room in ROOMS},
    "native/core/": ("make", "tests/facts"),
    "native/bind/call/": ("tests/dispatch",),
    "native/bind/ext/": ("tests/c_kernels", "tests/facts"),
}
#: Seconds; whoever has not ended by then hangs, and has been noticed.
LIMIT = 900


class Mutant(NamedTuple):
    path: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def told(self, text: str) -> str:
        old = " ".join(text[self.start : self.end].split())
        return f"{self.path}:{self.line}: {old[:70]}  ->  {self.new[:70] or 'nothing'}"


# --- in Python ------------------------------------------------------------------------------------

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def changed(node: ast.AST) -> str | None:
    """The text of the node with a mistake in it."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.unparse(ast.Compare(node.left, [TURNED[type(node.ops[0])]()], node.comparators))
    if isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return f"({ast.unparse(ast.BoolOp(other, node.values))})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"bool({ast.unparse(node.operand)})"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return str(node.value + 1)
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        return "pass"
    if isinstance(node, ast.AugAssign):
        return "pass"
    return None


def in_python(path: str) -> Iterator[Mutant]:
    text = (ROOT / path).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    nodes = [ast.parse(text)] if text.isascii() else []  # columns are counted in bytes
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for name, below in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                several = below if isinstance(below, list) else [below]
                nodes += [each for each in several if isinstance(each, ast.AST)]
        new = changed(node)
        if new is not None:
            start = starts[node.lineno - 1] + node.col_offset
            yield Mutant(
                path, node.lineno, start, starts[node.end_lineno - 1] + node.end_col_offset, new
            )


# --- in C -----------------------------------------------------------------------------------------

IN_C = [
    (re.compile(r"(?<=\w |\) |\] )(<=|>=|==|!=|<|>|&&|\|\|)(?= )"), None),
    (re.compile(r"(?<=[+-] )1\b(?!\.)"), "2"),
    (re.compile(r"(?<=\bif \()(?!UNLIKELY|LIKELY)([^()]*(?:\([^()]*\)[^()]*)*)(?=\) )"), "!({})"),
    (re.compile(r"^ +[a-z]\w*\([^;]*\);$", re.MULTILINE), ";"),
    (re.compile(r"^ +[a-z][\w.>\[\]-]*(?: [|+-]?= |\+\+)[^;]*;$", re.MULTILINE), ";"),
]
TURNED_IN_C = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||"}
TURNED_IN_C["||"] = "&&"
NO_CODE = re.compile(
    r'/\*.*?\*/|^#(?:[^\n]*\\\n)*[^\n]*|"(?:[^"\\]|\\.)*"', re.DOTALL | re.MULTILINE
)


def in_c(path: str) -> Iterator[Mutant]:
    text = (ROOT / path).read_text()
    code = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for pattern, new in IN_C:
        for found in pattern.finditer(code):
            made = TURNED_IN_C[found[0]] if new is None else new.format(found[0])
            yield Mutant(path, code.count("\n", 0, found.start()) + 1, *found.span(), made)


# --- running --------------------------------------------------------------------------------------


def candidates(only: str) -> list[Mutant]:
    files = subprocess.run(
        ["git", "ls-files", *NEAREST], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    python = [
        each
        for path in files
        if path.endswith(".py") and only != "c"
        for each in in_python(path)
        if path.startswith("mdispatch/")
    ]
    c = [each for path in files if path.endswith(".c") and only != "python" for each in in_c(path)]
    return python + c


def copied(folder: Path) -> Path:
    copy = folder / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


def place_of(mutant: Mutant) -> str:
    return next(each for each in NEAREST if mutant.path.startswith(each))


def built(copy: Path, folder: Path) -> bool:
    """Gives the copy binaries of its own; false if they cannot be built."""
    made = folder / "installed"
    shutil.rmtree(made, ignore_errors=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(made),
        ".",
    ]
    if not succeeds(install, copy):
        return False
    take_binaries(made, copy)
    return True


def take_binaries(source: Path, copy: Path) -> None:
    for each in (source / "mdispatch/facts/native").glob("*.so*"):
        shutil.copy2(each, copy / "mdispatch/facts/native")


def failing(place: str, copy: Path) -> str:
    """Those of the nearest tests that fail first; "" when none does."""
    pytest = str(Path(sys.executable).with_name("pytest"))
    for tests in NEAREST[place]:
        command = ["make", "-C", "native", "test"]
        if tests != "make":
            command = [pytest, "-q", "-x", "-p", "no:cacheprovider", tests]
        if not succeeds(command, copy):
            return tests
    return ""


def noticed_by(mutant: Mutant, copy: Path, folder: Path) -> str:
    text = (ROOT / mutant.path).read_text()
    (copy / mutant.path).write_text(mutant.applied(text))
    try:
        if mutant.path.endswith(".c") and not built(copy, folder):
            return "the compiler"
        return failing(place_of(mutant), copy)
    finally:
        (copy / mutant.path).write_text(text)
        take_binaries(ROOT, copy)


def succeeds(command: list[str], copy: Path) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("MDISPATCH_REGISTRY", None)
    running = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return running.wait(timeout=LIMIT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if running.poll() is None:
            os.killpg(running.pid, 9)
            running.wait()


def wilson(noticed: int, tried: int) -> tuple[float, float]:
    """The interval of 95 % for a part."""
    z, part = 1.96, noticed / tried
    middle = part + z * z / (2 * tried)
    wide = z * (part * (1 - part) / tried + z * z / (4 * tried * tried)) ** 0.5
    return (middle - wide) / (1 + z * z / tried), (middle + wide) / (1 + z * z / tried)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", choices=["python", "c"], default="")
    asked = parser.parse_args()
    places = candidates(asked.only)
    chosen = random.Random(asked.seed).sample(places, min(asked.count, len(places)))
    print(f"{len(chosen)} of {len(places)} mutants, seed {asked.seed}", flush=True)
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for place in sorted(set(map(place_of, chosen))):
            by = failing(place, copy)
            if by:
                print(f"{by} fails without a mistake: nothing can be said")
                return 1
        for mutant in chosen:
            by = noticed_by(mutant, copy, Path(folder))
            noticed += bool(by)
            told = f"noticed by {by}" if by else "SURVIVES"
            print(f"{told}: {mutant.told((ROOT / mutant.path).read_text())}", flush=True)
    low, high = wilson(noticed, len(chosen))
    print(
        f"{noticed} of {len(chosen)} noticed, {noticed / len(chosen):.0%} ({low:.0%} to {high:.0%})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

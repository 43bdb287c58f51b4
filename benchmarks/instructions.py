"""Whether a change makes operations slower, told by the instructions that the processor executes.

    python -m benchmarks.instructions                # against the merge base with origin/main
    python -m benchmarks.instructions --base HEAD~3
    python -m benchmarks.instructions --history      # the last counts of this Python and machine

Callgrind counts the operations of operations.py, once for the checkout as it lies here and once for
the base, both in this run. Other processes change seconds, and no count. An operation that takes
over 1 % more is red unless a commit after the base says why, in a line of its body:

    Instructions: call, keyword: what it does more, and why that is worth it

Addresses change counts, too: CPython finds methods by a cache whose locations are made of
addresses, and any change moves them. What is over 1 % is therefore counted in another layout of
memory, too, and is red when it is over 1 % there as well.

What was built is kept by a digest of its sources, the Python and the compiler. Beside it lies the
history. Nothing is judged by it: another processor or another libc gives other counts.

Needs valgrind with its headers, a C compiler, Python's headers, git, and cffi and NumPy in the
Python that runs it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    #: The instructions of each operation, or why it could not run.
    Counts = Mapping[str, float | str]

__all__ = ["compared", "main", "reasons"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mdispatch-ci")
KEPT = CACHE / "instructions"
HISTORY = KEPT / "history.jsonl"

#: By how much an operation may become slower without a reason.
LIMIT = 0.01
#: How many packages are kept, and how many builds of what is compiled in them.
_KEEP = 20
#: How many counts `--history` shows.
_SHOWN = 8
#: What the compiled files of a package depend on. All else in it is Python.
_COMPILED_FROM = ("native", "setup.py", "pyproject.toml")

_COMPILER = os.environ.get("CC") or "cc"


class Unfit(Exception):
    """Nothing can be counted here. The text says why."""


def _said(*words: str | Path, folder: Path = ROOT) -> str:
    """What a command prints. Unfit with what it said if it fails."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Unfit(f"{error}: apt install valgrind gcc libc6-dev git") from error
    if done.returncode:
        raise Unfit(f"{' '.join(map(str, words))}:\n{(done.stderr or done.stdout)[-3000:]}")
    return done.stdout.strip()


# --- the two packages -----------------------------------------------------------------------------


def _base() -> str:
    """The merge base with origin/main. The commit before this one where that has nothing to compare
    with: the checkout is what origin/main has.
    """
    try:
        found = _said("git", "merge-base", "HEAD", "origin/main")
    except Unfit:
        found = ""
    if found and (found != _said("git", "rev-parse", "HEAD") or _said("git", "status", "-s")):
        return found
    try:
        return _said("git", "rev-parse", "HEAD^")
    except Unfit as error:
        raise Unfit("There is no commit before this one to compare with: see --base.") from error


def _sources(revision: str | None, into: Path) -> Path:
    """The files of a commit; those of the checkout, committed or not, for None."""
    if revision is None:
        for name in _said("git", "ls-files", "-zco", "--exclude-standard").split("\0"):
            if name and (ROOT / name).is_file():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, into / name)
    else:
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            _said("git", "archive", "-o", archive.name, revision)
            _said("tar", "-xf", archive.name, "-C", into)
    return into


def _digest(folder: Path, names: Iterable[str], also: str) -> str:
    """The digest of these files and folders, and of a text."""
    found = hashlib.sha256(also.encode())
    for name in names:
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        for path in sorted(files) or [folder / name]:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(folder)} {content}\n".encode())
    return found.hexdigest()[:16]


def _made(name: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder of that name among those that are kept; ``make`` is asked for it the first time,
    and given a folder to fill and the name that it will have. A half-made one never has its name.
    """
    kept = KEPT / name
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="made-") as folder:
            full = Path(folder, "full")
            full.mkdir()
            make(full, kept)
            try:
                full.rename(kept)
            except OSError:
                if not kept.exists():  # another run was faster
                    raise
    kept.touch()
    return kept


def _tidied() -> None:
    """Removes what was not used for the longest time."""
    for kind in ("package-*", "compiled-*"):
        by_use = sorted(KEPT.glob(kind), key=lambda path: path.stat().st_mtime)
        for path in by_use[:-_KEEP]:
            shutil.rmtree(path, ignore_errors=True)


def _package(sources: Path, toolchain: str) -> Path:
    """The folder of the installed package. What is compiled is built with pip; the modules in
    Python are copied, so that a change of them builds nothing.
    """
    compiled_from = _digest(sources, _COMPILED_FROM, toolchain)

    def install(folder: Path, kept: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
        with tempfile.TemporaryDirectory() as target:
            _said(*pip, "--disable-pip-version-check", "--target", target, sources)
            for path in Path(target, "mdispatch").rglob("*"):
                name = path.relative_to(target)
                if path.is_file() and not (sources / name).exists():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, folder / name)

    def assemble(folder: Path, kept: Path) -> None:
        shutil.copytree(_made(f"compiled-{compiled_from}", install), folder, dirs_exist_ok=True)
        shutil.copytree(
            sources / "mdispatch",
            folder / "mdispatch",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.so.*"),
        )
        # Bytecode that is believed, so that no source is read; it names the location it will have.
        words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        _said(sys.executable, *words, "-s", folder, "-p", kept, folder)

    return _made(f"package-{_digest(sources, ['mdispatch'], compiled_from)}", assemble)


# --- counting -------------------------------------------------------------------------------------


def _beside(folder: Path) -> list[Path]:
    """What Python finds beside the package: the module by which operations.py speaks to callgrind,
    made in that folder, cffi and NumPy.
    """
    _said("valgrind", "--version")
    found = [folder]
    for module in ("_cffi_backend", "numpy"):
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise Unfit(f"{sys.executable} has no {module}: pip install cffi numpy")
        found.append(Path(spec.origin).parents[1 if spec.submodule_search_locations else 0])
    module, include = str(folder / "counting.so"), f"-I{sysconfig.get_path('include')}"
    source = str(HERE / "counting.c")
    _said(*_COMPILER.split(), "-O2", "-fPIC", "-shared", include, "-o", module, source)
    return list(dict.fromkeys(found))


def _counted(
    package: Path, beside: Sequence[Path], layout: int, names: Sequence[str] = ()
) -> Counts:
    """The instructions of the operations of these names, or of all, with that package. Nothing of
    the environment comes through: its size would move the stack.
    """
    folders = os.pathsep.join(map(str, [beside[0], package, *beside[1:]]))
    with tempfile.TemporaryDirectory() as folder:
        words = ["env", "-i", "PYTHONHASHSEED=0", "OPENBLAS_NUM_THREADS=1", "PATH=/usr/bin:/bin"]
        words += ["setarch", "-R", str(shutil.which("valgrind")), "-q", "--tool=callgrind"]
        # The pipes of vgdb would have the number of the process in their names.
        words += ["--vgdb=no", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        words += [sys.executable, "-s", "-S", "-P", "-B", str(HERE / "operations.py")]
        words += [folders, str(layout), *names]
        told = ast.literal_eval(_said(*words, folder=package))
        found: dict[str, float | str] = {}
        number = 0
        for name, repeats, problem in told:
            if problem:
                found[name] = problem
                continue
            number += 1
            text = Path(folder, f"out.{number}").read_text()
            found[name] = int(re.findall(r"^summary: (\d+)", text, re.M)[0]) / repeats
        return found


# --- comparing ------------------------------------------------------------------------------------


def _more(base: Counts, head: Counts, name: str) -> float:
    """By what share head takes more than base; negative if it takes less, 0 if one has no count."""
    before, after = base.get(name), head.get(name)
    if isinstance(before, str) or isinstance(after, str) or not before or after is None:
        return 0.0
    return after / before - 1


def slower(
    pair: Callable[[int, Sequence[str]], tuple[Counts, Counts]],
) -> tuple[Counts, Counts, dict[str, float]]:
    """The counts of base and head, which ``pair`` takes in a layout of memory; and of what is over
    the limit, by how much more it takes in another layout.
    """
    base, head = pair(0, ())
    over = [name for name in head if _more(base, head, name) > LIMIT]
    again = pair(1, over) if over else (base, head)
    return base, head, {name: _more(*again, name) for name in over}


def reasons(bodies: str) -> dict[str, str]:
    """Why operations became slower, as these bodies of commits say."""
    return dict(re.findall(r"^Instructions: (.+?): (\S.*)$", bodies, re.M))


def compared(
    base: Counts, head: Counts, over: Mapping[str, float], why: Mapping[str, str]
) -> tuple[list[str], int]:
    """The lines of the table, and how many operations are red."""
    lines, red = [f"{'operation':<48}{'base':>14}{'head':>14}{'more':>12}"], 0
    for name, after in head.items():
        before = base.get(name, "not there")
        if isinstance(after, str):
            red += 1
            lines.append(f"{name:<48}  RED: it cannot run: {after}")
            continue
        if isinstance(before, str):
            lines.append(f"{name:<48}{'new':>14}{after:>14,.1f}              ({before})")
            continue
        line = f"{name:<48}{before:>14,.1f}{after:>14,.1f}{100 * _more(base, head, name):>+10.4f} %"
        if name in over:
            line += f", in another layout of memory {100 * over[name]:+.4f} %"
            if over[name] > LIMIT and name in why:
                line += f", because: {why[name]}"
            elif over[name] > LIMIT:
                red += 1
                line += "  RED"
        lines.append(line)
    return lines, red


# --- the history ----------------------------------------------------------------------------------


def _machine(toolchain: str) -> dict[str, str]:
    """What counts depend on beside the sources."""
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    libc = " ".join(platform.libc_ver())
    name = f"{processor[1] if processor else platform.machine()}, {libc}"
    return {"toolchain": toolchain, "machine": name}


def _note(commit: str, head: Counts, machine: Mapping[str, str]) -> None:
    row = {"time": int(time.time()), "commit": commit, **machine, "counts": head}
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _history(machine: Mapping[str, str]) -> None:
    """Prints the last counts that were taken with this Python and compiler on such a machine."""
    lines = HISTORY.read_text(encoding="utf-8").splitlines() if HISTORY.exists() else []
    rows = [row for row in map(json.loads, lines) if machine.items() <= row.items()][-_SHOWN:]
    print(f"{machine['toolchain']}, {machine['machine']}: {len(rows)} counts")
    if not rows:
        return
    print(f"{'':<48}" + "".join(f"{row['commit'][:12]:>14}" for row in rows))
    for name in rows[-1]["counts"]:
        found = [row["counts"].get(name) for row in rows]
        words = [f"{each:,.1f}" if isinstance(each, float) else "-" for each in found]
        print(f"{name:<48}" + "".join(f"{word:>14}" for word in words))


# --- the command ----------------------------------------------------------------------------------


def _row(revision: str | None, toolchain: str) -> int:
    """Counts, prints and returns the exit status."""
    began = time.monotonic()
    base = _said("git", "rev-parse", "--verify", f"{revision or _base()}^{{commit}}")
    commit = _said("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(2) as both,
    ):
        places = [Path(folder, name) for name in ("base", "head", "tools")]
        for place in places:
            place.mkdir()
        sides = list(both.map(_sources, (base, None), places))
        packages = [_package(sources, toolchain) for sources in sides]
        print(f"base {base[:12]}, head {commit}; {toolchain}", flush=True)
        if packages[0] == packages[1]:
            print("The two have the same sources, so they take the same instructions.")
            print("1 passed, 0 failed")
            return 0
        beside = _beside(places[2])
        built = time.monotonic()

        def pair(layout: int, names: Sequence[str]) -> tuple[Counts, Counts]:
            first, second = both.map(
                lambda package: _counted(package, beside, layout, names), packages
            )
            return first, second

        counts = slower(pair)
    _tidied()
    _note(commit, counts[1], _machine(toolchain))
    why = reasons(_said("git", "log", "--format=%B", f"{base}..HEAD"))
    lines, red = compared(*counts, why)
    print("\n".join(lines))
    if red:
        print("\nWhere that is meant, say why in the body of the commit:")
        print("    Instructions: OPERATION: REASON")
    print(f"\n{built - began:.0f} s of making both, {time.monotonic() - built:.0f} s of counting")
    print(f"{len(lines) - 1 - red} passed, {red} failed")
    return 1 if red else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the instructions of two commits.")
    parser.add_argument("--base", metavar="REV", help="default: the merge base with origin/main")
    parser.add_argument("--history", action="store_true", help="show the last counts, take none")
    asked = parser.parse_args()
    try:
        compiler = _said(*_COMPILER.split(), "--version").splitlines()[0]
        toolchain = f"Python {platform.python_version()} {platform.python_build()[1]}, {compiler}"
        if asked.history:
            _history(_machine(toolchain))
            return 0
        return _row(asked.base, toolchain)
    except Unfit as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

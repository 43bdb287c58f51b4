"""What has changed since the last commit that main shares with this tree, and what that can break.

The packages import downwards only, which lint/imports checks. So a change in a package can
break that package and those above it. In any doubt, everything is looked at.
"""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

#: The lowest package whose change does not make the whole suite run, and those above it.
UPPER = "authoring"
#: The folders of the tests of packages and modules, where they have another name. A folder
#: tests/torch would be what `import torch` finds where PyTorch is not installed.
FOLDERS = {
    "context": "dispatch",
    "torch": "pytorch",
    "fake": "authoring",
    "telemetry": "workers",
}


@dataclass(frozen=True)
class Change:
    """The packages whose tests have to run; None if these are all, and then ``reason`` says why.
    ``files`` are those that have changed, None if nobody can tell.
    """

    packages: frozenset[str] | None
    reason: str
    files: frozenset[str] | None = None

    def touches(self, *beginnings: str) -> bool:
        """Whether a file whose name begins so has changed, or may have."""
        return self.files is None or any(file.startswith(beginnings) for file in self.files)

    def has(self, *names: str) -> bool:
        return self.packages is None or not self.packages.isdisjoint(names)

    def folders(self, sources: Path) -> tuple[str, ...]:
        """The folders of tests that have to run."""
        if self.packages is None:
            return ("tests",)
        wanted = sorted({FOLDERS.get(name, name) for name in self.packages} | {"project"})
        return tuple(f"tests/{name}" for name in wanted if (sources / "tests" / name).is_dir())


EVERYTHING = Change(None, "asked for")


def layers(root: Path) -> list[list[str]]:
    """The packages, from the top down; those of one layer do not know each other."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    return [[package.strip() for package in line.split("|")] for line in contract["layers"]]


def git(root: Path, *words: str) -> str | None:
    """What git says of the tree; None if it fails."""
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def changed_since(root: Path, base: str) -> list[str]:
    files = git(root, "diff", "--name-only", base) or ""
    files += "\n" + (git(root, "ls-files", "--others", "--exclude-standard") or "")
    return files.split()


def changed_files(root: Path) -> list[str] | str:
    """The files that differ from main's, or why nobody can tell."""
    if git(root, "rev-parse", "--is-shallow-repository") != "false":
        return "the clone is shallow, or none"
    main = git(root, "rev-parse", "--verify", "-q", "origin/main")
    base = git(root, "merge-base", "HEAD", main) if main else None
    if not base:
        return "there is no origin/main that shares a commit with HEAD"
    if git(root, "rev-list", "--merges", f"{base}..HEAD"):
        return "there is a merge since main"
    return changed_since(root, base) or "this is main itself"


def changed_since_good(root: Path, good: Path) -> frozenset[str] | None:
    """The files that differ from those of the last good run on this machine; None without one."""
    base = good.read_text().strip() if good.exists() else ""
    if not base or git(root, "merge-base", "--is-ancestor", base, "HEAD") is None:
        return None
    return frozenset(changed_since(root, base))


def change(root: Path, good: Path) -> Change:
    files = changed_files(root)
    if isinstance(files, str):
        return Change(None, files, changed_since_good(root, good))
    changed = frozenset(files)
    from_the_roof = layers(root)
    upper: dict[str, frozenset[str]] = {}
    above: set[str] = set()
    for names in from_the_roof:
        upper |= {name: frozenset({name, *above}) for name in names}
        above.update(names)
        if UPPER in names:
            break
    packages: set[str] = set()
    for file in files:
        top, _, rest = file.partition("/")
        package = rest.partition("/")[0].removesuffix(".py")
        if top == "docs" or ("/" not in file and file.endswith(".md")):
            continue
        if top in ("mdispatch", "tests") and package in upper:
            packages |= upper[package] if top == "mdispatch" else {package}
        elif (
            top == "tests"
            and "/" in rest
            and package not in ("support", "data", "golden", "oracle")
        ):
            packages.add(package)
        else:
            return Change(None, f"{file} can break anything", changed)
    return Change(frozenset(packages), f"{len(files)} files have changed", changed)

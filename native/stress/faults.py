"""Compiles two dozen mistakes into the core, one at a time, and says what notices each of them:
`faults.py [NAME ...]`, from native/. Exit status 1 when one goes unnoticed."""

import os
import re
import subprocess
import sys
from pathlib import Path

CORE = Path("core")
#: Name to words.
FAULTS = dict(re.findall(r"MD_FAULT_(\w+), +/\* (.+) \*/", (CORE / "ground/fault.h").read_text()))
TESTS = ("register", "wait", "change", "readers", "names", "death", "space", "killed")
# Asked first, to be done sooner; whoever is not named here is asked in the order above.
FIRST = {
    "CHANGE_NOT_RUNG": "change",
    "VERSION_NOT_COMPARED": "readers",
    "INDEX_GROWS_WITH_LOSS": "space",
    "DEAD_NOT_SWEPT": "death",
    "LOCK_TAKEN_WITHOUT_REPAIR": "killed",
    "RECOVERY_KEEPS_SEQUENCE": "change",
    "LEASE_WAKES_ONE": "death",
    "IDLE_NOT_RAISED": "names",
    "VERSION_BEGINS_ANEW": "names",
    "MOVES_NOT_TOLD": "names",
    "ENTRIES_LEFT_OVER": "names",
}
CFLAGS = ["-std=c11", "-O1", "-g", "-w", "-D_GNU_SOURCE", "-pthread"]
CC = os.environ.get("CC", "cc")
OUT = Path(os.environ.get("OUT", "build"), "faults")
SECONDS = 150  # a test that hangs ends itself after 120


def build(source: str, core: Path) -> Path:
    program = OUT / Path(source).stem
    subprocess.run([CC, *CFLAGS, "-o", program, source, core], check=True)
    return program


def run(*command: object) -> str:
    """The last words of a program that failed, or "" when all was well."""
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired as late:
        said_so_far = (late.stdout or b"").decode(errors="replace")
        failed = [x for x in said_so_far.splitlines() if "FAILED" in x]
        return f"{failed[0][:80]}, then it hangs" if failed else f"not done in {SECONDS} s"
    lines = (done.stdout + done.stderr).splitlines() or ["it dies"]
    said = ("FAILED", "round of", "waits ended late")
    failed = [x for x in lines if any(words in x for words in said)] or lines[-1:]
    return failed[0][:90] if done.returncode else ""


def catcher(name: str) -> tuple[str, str]:
    core = OUT / "core.o"
    sources = sorted(CORE.rglob("*.c"))
    flags = [*CFLAGS, f"-DMD_WITH_FAULT=MD_FAULT_{name}"]
    objects = []
    for s in sources:
        objects.append(OUT / f"{'_'.join(s.parts)}.o")
        subprocess.run([CC, *flags, "-c", "-o", objects[-1], s], check=True)
    subprocess.run(["ld", "-r", "-o", core, *objects], check=True)
    history, data = build("stress/history.c", core), OUT / "history.bin"
    seed = os.environ.get("SEED", "1")
    words = run(history, "--ops", 60000, "--seed", seed, "--out", data)
    words = words or run(sys.executable, "stress/check_history.py", data)
    if words:
        return "histories", words
    for test in sorted(TESTS, key=lambda t: t != FIRST.get(name)):
        if words := run(build(f"tests/test_{test}.c", core)):
            return f"test_{test}", words
    return "nothing", ""


def main(names: list[str]) -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    unnoticed = 0
    print("| fault | noticed by | what it said |\n|---|---|---|")
    for name in names or FAULTS:
        who, words = catcher(name)
        unnoticed += who == "nothing"
        print(f"| {name}: {FAULTS[name]} | {who} | {words.replace('|', '/')} |", flush=True)
    print(f"{unnoticed} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

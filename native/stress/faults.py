"""Compiles twenty mistakes into the core, one at a time, and says what notices each of them:
`faults.py [N ...]`, from native/. Exit status 1 when one goes unnoticed."""

import os
import subprocess
import sys
from pathlib import Path

FAULTS = {
    1: "a commit does not wake those who wait for its name",
    2: "a commit does not wake those who wait for any change",
    3: "a ring wakes one sleeper and not all",
    4: "a waiter does not say in the event word that it is there",
    5: "the fact is published before its bytes are written",
    6: "a new fact forgets the older ones of its name",
    7: "the version word is not raised",
    8: "a reader does not look at the version again",
    9: "a strike does not raise the sequence",
    10: "the count of facts is not raised",
    11: "the count of bytes in use is not lowered",
    12: "a new name is not entered into the index",
    13: "a growing index loses a part of its entries",
    14: "a wrong bound: at_least is satisfied by one too few",
    15: "a unique fact is registered beside another",
    16: "dead members are not swept",
    17: "a dead holder's lock is taken without a repair",
    18: "a recovery does not raise the sequence",
    19: "who is woken by the lease does not wake the rest",
    20: "a strike cuts off the older facts as well",
}
TESTS = ("register", "wait", "change", "readers", "death", "space", "killed")
# Asked first, to be done sooner; whoever is not named here is asked in the order above.
FIRST = {2: "change", 8: "readers", 13: "space", 16: "death", 19: "death"}
FIRST |= {17: "killed", 18: "change"}
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


def catcher(number: int) -> tuple[str, str]:
    core = OUT / "core.o"
    sources = sorted(Path("core").glob("*.c"))
    flags = [*CFLAGS, f"-DMD_FAULT={number}"] if number else CFLAGS
    objects = []
    for s in sources:
        objects.append(OUT / f"{s.stem}.o")
        subprocess.run([CC, *flags, "-c", "-o", objects[-1], s], check=True)
    subprocess.run(["ld", "-r", "-o", core, *objects], check=True)
    history, data = build("stress/history.c", core), OUT / "history.bin"
    seed = os.environ.get("SEED", "1")
    words = run(history, "--ops", 60000, "--seed", seed, "--out", data)
    words = words or run(sys.executable, "stress/check_history.py", data)
    if words:
        return "histories", words
    for test in sorted(TESTS, key=lambda t: t != FIRST.get(number)):
        if words := run(build(f"tests/test_{test}.c", core)):
            return f"test_{test}", words
    return "nothing", ""


def main(numbers: list[int]) -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    unnoticed = 0
    print("| fault | noticed by | what it said |\n|---|---|---|")
    for n in numbers or FAULTS:
        who, words = catcher(n)
        unnoticed += who == "nothing"
        print(f"| {n}: {FAULTS.get(n, 'none')} | {who} | {words.replace('|', '/')} |", flush=True)
    print(f"{unnoticed} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main([int(a) for a in sys.argv[1:]]))

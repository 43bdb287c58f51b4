"""Runs rows: see .ci/run, which starts this."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import judge
import ledger
from change import EVERYTHING, change, git
from row import CACHE, Row
from rows import PYTHONS, rows, shard

ROOT = Path(__file__).resolve().parents[2]
#: The commit of the last good everyday run on this machine.
GOOD = CACHE / "good"
#: CI ends a run after 90 minutes without a word; this ends it before.
DEADLINE = 4800
#: How many lines the summary repeats of each red row.
SHOWN = 40
CORES = os.cpu_count() or 2
#: Debian's packages that rows use, by the beginning of their names.
DEBIAN = {
    "": "git gcc make libc6-dev libffi-dev pkgconf systemtap-sdt-dev gdb ccache",
    "lint": "shellcheck chromium",
    "lint/axe": "npm chromium",
    "native": "clang libclang-rt-dev",
    "native/model": "spin",
    "counts": "valgrind",
    "suite": "redis-server openssl faketime iproute2 chromium",
    "servers": "apache2 libapache2-mod-wsgi-py3 uwsgi-core uwsgi-plugin-python3 python3-venv "
    "python3-dev",
}
#: Where a Python comes from that Debian 12 does not have: the argument of .ci/pythons.
MADE = {"3.14": "sid", "3.15": "sid", "3.13t": "3.13t"}


@dataclass
class Result:
    """How a row ended."""

    row: Row
    word: str
    seconds: float = 0.0
    cpu: float = 0.0
    counted: judge.Counted = field(default_factory=judge.Counted)
    #: What a person has to read.
    text: str = ""

    @property
    def is_ok(self) -> bool:
        return self.word in ("ok", "FLAKY")


class Run:
    """One run: the rows that were asked for, a copy of the sources for each folder, the results."""

    def __init__(self, asked: list[Row], work: Path, stop: bool) -> None:
        self.asked = asked
        self.work = work
        self.out = work / "out"
        self.stop = stop
        self.began = time.monotonic()
        self.results: dict[str, Result] = {}
        self.changed = threading.Condition()
        self.running: dict[str, Row] = {}
        self.folders: dict[str, threading.Lock] = {row.folder: threading.Lock() for row in asked}
        self.skips = judge.Skips(ROOT / ".ci" / "skips.toml")
        self.flaky = judge.Flaky(ROOT / "tests" / "flaky.toml")
        self.pythons: dict[str, str] = {}
        self.first_red: float | None = None
        #: Seconds of what a machine needs once.
        self.set_up: dict[str, float] = {}

    # --- what has to be there ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Debian's packages and the Pythons. The slow ones come in the background."""
        for what in {MADE[row.python] for row in self.asked if row.python in MADE}:
            threading.Thread(target=self.make_python, args=(what,), daemon=True).start()
        packages = {
            package
            for prefix, names in DEBIAN.items()
            if any(row.name.startswith(prefix) for row in self.asked)
            for package in names.split()
            if shutil.which(package) is None  # it may have come another way
        }
        began = time.monotonic()
        done = self.bash(f"source .ci/lib.sh; apt_install {' '.join(sorted(packages))}", ROOT)
        self.set_up["Debian's packages"] = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stdout)

    def make_python(self, what: str) -> None:
        began = time.monotonic()
        done = self.bash(f".ci/pythons {what}", ROOT)
        with self.changed:
            self.set_up[f"Python of {what}"] = time.monotonic() - began
            self.pythons[what] = done.stdout if done.returncode not in (0, 3) else ""
            self.changed.notify_all()

    def bash(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    # --- order ------------------------------------------------------------------------------------

    def go(self) -> None:
        threads = []
        waiting = list(self.asked)
        with self.changed:
            while waiting:
                if self.stop and self.first_red is not None:
                    break
                row = next((row for row in waiting if self.may_start(row, waiting)), None)
                if row is None:
                    self.changed.wait(5)
                    continue
                waiting.remove(row)
                ended = self.why_not(row)
                if ended:
                    self.report(Result(row, ended))
                    continue
                self.running[row.name] = row
                threads.append(threading.Thread(target=self.do, args=(row,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def may_start(self, row: Row, waiting: list[Row]) -> bool:
        """Whether there is room for a row now: a processor that no other row keeps busy. A row of
        two may share one of them for a while, else rows of one would always come first. One that
        runs alone waits until all others have ended.
        """
        if any(need not in self.results for need in row.needs if need in self.names()):
            return False
        if row.python in MADE and MADE[row.python] not in self.pythons:
            return False
        if any(other.alone for other in self.running.values()):
            return False
        if row.alone:
            return not self.running and all(other.alone for other in waiting)
        if row.cores == 0:
            return not any(other.cores == 0 for other in self.running.values())
        return sum(other.cores for other in self.running.values()) < CORES

    def names(self) -> set[str]:
        return {row.name for row in self.asked}

    def why_not(self, row: Row) -> str:
        """Why a row is not run after all; "" if it is."""
        if time.monotonic() - self.began > DEADLINE:
            return "MISSING"
        needed = [self.results[need] for need in row.needs if need in self.results]
        if any(result.word == "UNAVAILABLE" for result in needed):
            return "UNAVAILABLE"
        if any(not result.is_ok for result in needed):
            return "MISSING"
        found = self.bash(f"source .ci/lib.sh; find_python {row.python or 3.11}", ROOT)
        if found.returncode:
            broken = self.pythons.get(MADE.get(row.python, ""), "")
            return "FAILED" if broken else "UNAVAILABLE"
        return ""

    # --- one row ----------------------------------------------------------------------------------

    def do(self, row: Row) -> None:
        try:
            result = self.judged(row)
        except Exception as error:  # a mistake of this program must not look like a green row
            result = Result(row, "FAILED", text=repr(error))
        with self.changed:
            del self.running[row.name]
            self.report(result)
            self.changed.notify_all()

    def folder(self, row: Row) -> Path:
        """The row's copy of the sources, made for the first row that uses it."""
        folder = self.work / row.folder.replace("/", "-")
        with self.folders[row.folder]:
            if not folder.exists():
                shutil.copytree(self.work / "snapshot", folder, symlinks=True)
        return folder

    def judged(self, row: Row) -> Result:
        began, load = time.monotonic(), os.getloadavg()[0]
        log = self.out / f"{row.name.replace('/', '-')}.log"
        record = log.with_suffix(".jsonl")
        code, cpu = self.run(row, log, record)
        counted = judge.count(row, log, record)
        word, text = "ok", ""
        if code:
            word = "TIMEOUT" if code in (124, 137) else "FAILED"
            text = "\n".join(log.read_text(errors="replace").splitlines()[-400:])
        elif row.counts == "lines":  # tables and the like
            text = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        if word == "FAILED" and counted.failed_tests:
            word, text = self.again(row, counted.failed_tests, text)
        elif word == "FAILED" and row.counts == "lines" and counted.failed:
            word, text = self.again(row, judge.failed_programs(row, log), text)
        if word == "ok":
            complaint = self.skips.complaint(row.name, counted.skips)
            if complaint:
                word, text = "SKIPPED", complaint
            elif row.counts and not counted.passed:
                # What dies, or finds no tests, must not look like a row without tests.
                word, text = "FAILED", "no test has passed"
        result = Result(row, word, time.monotonic() - began, cpu, counted, text)
        ledger.keep(CACHE, row.name, word, result.seconds, cpu, load, counted.tests)
        return result

    def command(self, row: Row, log: Path, record: Path, arguments: str) -> str:
        if row.counts == "pytest":
            return f".venv/bin/python -m pytest -q --record={record} {arguments}"
        return arguments

    def run(
        self, row: Row, log: Path, record: Path, arguments: str | None = None
    ) -> tuple[int, float]:
        """Runs a row's command, or the same with other arguments. Returns its exit status and the
        CPU seconds of all its processes.
        """
        command = self.command(row, log, record, row.command if arguments is None else arguments)
        # .ci/environment enters that Python by itself.
        inside = row.python and not row.is_set_up
        before = [f"{ROOT}/.ci/in-python", row.python] if inside else []
        environment = {**os.environ, **row.environment, "RECORD": str(record)}
        environment |= {"CHECKOUT": str(ROOT), "CACHE": str(CACHE)}
        if row.counts == "readme" and "--record" not in command:
            more = environment.get("PYTEST_ADDOPTS", "")
            environment["PYTEST_ADDOPTS"] = f"{more} --record={record}"
        left = max(1.0, DEADLINE - (time.monotonic() - self.began))
        with log.open("wb") as file:
            timed = ["timeout", "-k", "20", str(int(min(row.limit, left)))]
            with subprocess.Popen(
                [*timed, *before, "bash", "-euo", "pipefail", "-c", command],
                cwd=self.folder(row),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, used.ru_utime + used.ru_stime

    def again(self, row: Row, names: list[str], text: str) -> tuple[str, str]:
        """Runs what was red once more, alone: tests of pytest by their names, else the whole row.
        Red twice is red; red once is flaky, and is filed.
        """
        if len(names) > judge.MOST_AGAIN:
            return "FAILED", text
        known = [name for name in names if name in self.flaky]
        log = self.out / f"{row.name.replace('/', '-')}.again.log"
        record = log.with_suffix(".jsonl")
        arguments = " ".join(f"'{name}'" for name in names)
        if row.counts == "lines":
            arguments = row.command
        elif row.counts == "readme":
            arguments = f".venv/bin/python -m pytest -q {arguments}"
        code, _ = self.run(row, log, record, arguments)
        second = judge.count(row, log, record)
        if row.counts == "lines":
            red = names if code else []
        else:
            red = [name for name in names if second.tests.get(name, judge.LOST).outcome != "passed"]
        both = f"{text}\n\n---- again, alone: exit status {code}\n{log.read_text(errors='replace')}"
        if red:
            return "FAILED", both
        if known:
            return "FAILED", f"flaky already, see tests/flaky.toml: {', '.join(known)}\n{both}"
        with self.changed:
            return self.flaky.file(names, row.name, both, add=not os.environ.get("CI"))

    # --- what people read -------------------------------------------------------------------------

    def report(self, result: Result) -> None:
        """Under ``changed``."""
        self.results[result.row.name] = result
        after = time.monotonic() - self.began
        counted = result.counted
        print(
            f"==== {result.row.name}: {result.word}, {result.seconds:.0f} s, "
            f"{result.cpu:.0f} CPU s, {counted.passed} passed, {counted.failed} failed, "
            f"{counted.skipped} skipped (after {after:.0f} s)"
        )
        if result.text:
            print(result.text)
        if not result.is_ok and result.word != "UNAVAILABLE" and self.first_red is None:
            self.first_red = after
            print(f"==== the first red row, after {after:.0f} s: {result.row.name}")
        sys.stdout.flush()

    def summary(self) -> bool:
        print(f"\n==== summary, after {time.monotonic() - self.began:.0f} s")
        heads = ("seconds", "CPU s", "passed", "failed", "skipped")
        print(f"{'row':24} {'result':11}", *(f"{head:>8}" for head in heads))
        bad = 0
        total = judge.Counted()
        for row in self.asked:
            result = self.results.get(row.name) or Result(row, "MISSING")
            counted = result.counted
            print(
                f"{row.name:24} {result.word:11} {result.seconds:8.0f} {result.cpu:8.0f} "
                f"{counted.passed:8} {counted.failed:8} {counted.skipped:8}"
            )
            bad += not result.is_ok and result.word != "UNAVAILABLE"
            total.passed += counted.passed
            total.failed += counted.failed if result.word != "FLAKY" else 0
            total.skipped += counted.skipped
        missing = sorted({row.python for row in self.asked if self.word(row) == "UNAVAILABLE"})
        if missing:
            print(f"\n!!!! NOT TESTED: Python {', '.join(missing)} could not be had here.")
            print("!!!! That is no failure, but this run says nothing about them.")
        self.set_up["environments"] = sum(
            result.seconds for result in self.results.values() if result.row.is_set_up
        )
        told = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in self.set_up.items())
        print(f"set-up, within that: {told}")
        print(ledger.slower(CACHE, [row.name for row in self.asked]))
        if any(not row.everyday for row in self.asked):
            print(ledger.unrun(CACHE, self.work / "snapshot" / "tests"))
        for name in self.flaky.found:
            print(f"FLAKY: {name}")
        for result in self.results.values():
            # Who reads a long log, or only the end of it, finds here what to repair.
            if not result.is_ok and result.word != "UNAVAILABLE":
                print(f"---- the end of {result.row.name}, {result.word}")
                print("\n".join(result.text.splitlines()[-SHOWN:]))
        if bad:
            print(f"{bad} of {len(self.asked)} rows FAILED")
            total.failed = max(total.failed, bad)
        print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
        return bad == 0

    def word(self, row: Row) -> str:
        return self.results[row.name].word if row.name in self.results else "MISSING"


def snapshot(folder: Path) -> None:
    """A clone of the commit or, while somebody works here, what it would be if all were committed.
    Taken once, so that every row sees the same.
    """
    status = subprocess.check_output(
        ["git", "-C", ROOT, "status", "--porcelain"],
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    subprocess.check_call(["git", "clone", "-q", ROOT, folder])
    if not status:
        return
    listed = subprocess.check_output(
        ["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"], text=True
    )
    for name in filter(None, listed.split("\0")):
        if not (ROOT / name).exists():
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    subprocess.check_call(["git", "-C", folder, "add", "--all"])  # lint/packages asks git


def chosen(all_rows: list[Row], given: argparse.Namespace) -> list[Row]:
    if given.rows:
        wanted = [
            row
            for row in all_rows
            if any(f"{row.name}/".startswith(f"{word.rstrip('/')}/") for word in given.rows)
        ]
        if not wanted:
            raise SystemExit("no such row; .ci/run --list shows them")
        names = {row.name: row for row in all_rows}
        for row in wanted:  # grows while it is walked
            wanted += [names[need] for need in row.needs if names[need] not in wanted]
        return [row for row in all_rows if row in wanted]
    if given.shard:
        return [row for row in all_rows if shard(row) == given.shard]
    return [row for row in all_rows if given.all or row.everyday]


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/run", allow_abbrev=False)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--shard", type=int)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("-x", dest="stop", action="store_true")
    given = parser.parse_args()
    what = (
        EVERYTHING if given.all or given.shard or given.rows or given.list else change(ROOT, GOOD)
    )
    if given.list:
        for row in rows(ROOT, what):
            print(shard(row), row.name)
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    # What runs examples or programs meets no registries but this run's. Tests make folders of their
    # own.
    shared = tempfile.mkdtemp(prefix="mdispatch-ci.", dir="/dev/shm")
    os.environ["MDISPATCH_FOLDER"] = shared
    os.environ["CCACHE_DIR"] = str(CACHE / "ccache")
    # A limit of time in a test is for a machine with little else to do.
    os.environ["MDISPATCH_TEST_PATIENCE"] = "4"
    work = Path(tempfile.mkdtemp(prefix="mdispatch-ci."))
    work.chmod(0o755)  # Apache's processes read it as another user
    good = False
    try:
        (work / "out").mkdir()
        snapshot(work / "snapshot")
        os.environ["PIP_CONSTRAINT"] = f"{work}/snapshot/.ci/constraints.txt"
        run = Run(chosen(rows(work / "snapshot", what), given), work, given.stop)
        print(f"==== {len(run.asked)} rows: {what.reason}; Pythons {', '.join(PYTHONS)}")
        run.prepare()
        run.go()
        good = run.summary()
        if good and not given.rows and not given.shard and not git(ROOT, "status", "--porcelain"):
            GOOD.write_text(git(ROOT, "rev-parse", "HEAD") or "")
    finally:
        shutil.rmtree(shared, ignore_errors=True)
        if good or os.environ.get("CI"):
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"logs: {work}/out")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Plants mistakes, one at a time in a clone, and tells which row of .ci/run finds each, and when:

    python3 .ci/planted.py [NAME...]

Exit status 1 when one is not found.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def append(file: str, text: str) -> Callable[[Path], None]:
    def plant(clone: Path) -> None:
        with (clone / file).open("a") as opened:
            opened.write(text)

    return plant


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def plant(clone: Path) -> None:
        text = (clone / file).read_text()
        assert text.count(old) == 1, f"{file} does not have {old!r} once"
        (clone / file).write_text(text.replace(old, new))

    return plant


#: Fails in every second run of it, wherever that is.
FLAKY = """from pathlib import Path


def test_planted():
    mark = Path("{mark}")
    if mark.exists():
        mark.unlink()
    else:
        mark.touch()
        raise AssertionError("planted")
"""

#: A name, what is planted, and the row that has to find it.
PLANTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a format mistake": (append("mdispatch/cli/ls.py", "\n\n\nplanted  = 1\n"), "lint/format"),
    "a type error": (
        append("mdispatch/cli/ls.py", '\n\ndef planted() -> int:\n    return "text"\n'),
        "lint/mypy",
    ),
    "an import upwards": (
        append(
            "mdispatch/keys/numbers.py",
            "\n\ndef planted() -> object:\n    from ..cli import ls\n\n    return ls\n",
        ),
        "lint/imports",
    ),
    "a failing test in cli": (
        append("tests/cli/test_planted.py", "def test_planted():\n    assert not 1\n"),
        "",
    ),
    "a wrong line of C": (
        replace(
            "native/core/ground/fault.h",
            "#define MD_WITH_FAULT MD__NO_FAULT",
            "#define MD_WITH_FAULT MD_FAULT_ONE_SLEEPER_WOKEN",
        ),
        "",
    ),
    "a test that fails every second time": (
        append("tests/cli/test_planted.py", FLAKY.format(mark="/dev/shm/mdispatch-planted")),
        "FLAKY",
    ),
    "a missing server": (
        replace(
            "tests/support/redis_server.py",
            'shutil.which("redis-server")',
            'shutil.which("redis-server-that-is-missing")',
        ),
        "",
    ),
    "a call that is slower": (
        replace(
            "native/bind/call/call.c",
            "    return unprobed_call(self, args, nargsf, kwnames);\n",
            "    for (volatile int i = 0; i < 3; i++) {\n    }\n"
            "    return unprobed_call(self, args, nargsf, kwnames);\n",
        ),
        "counts",
    ),
}


def found(clone: Path) -> tuple[str, float]:
    """The first row that is red or flaky, and the seconds until then."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    with subprocess.Popen(
        ["bash", ".ci/run", "-x"],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                ended = re.match(
                    r"==== (\S+): (FAILED|SKIPPED|TIMEOUT|FLAKY),.*\(after (\d+) s\)", line
                )
                if ended:
                    return f"{ended[1]} ({ended[2]})", float(ended[3])
        finally:
            os.killpg(run.pid, signal.SIGTERM)
    return "nothing", 0.0


def main() -> int:
    bad = 0
    for name in sys.argv[1:] or PLANTED:
        plant, row = PLANTED[name]
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder, "clone")
            subprocess.check_call(["git", "clone", "-q", ROOT, clone])
            plant(clone)
            where, after = found(clone)
        good = row in where and where != "nothing"
        bad += not good
        print(f"{name}: {where} after {after:.0f} s{'' if good else ', which is wrong'}")
        sys.stdout.flush()
    print(f"{len(sys.argv[1:] or PLANTED) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

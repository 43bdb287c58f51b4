"""A short run of fuzz/: replays the inputs that its targets have kept, and some random changes of
them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit
from seeds import seed_of

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

FUZZ = Path(__file__).parents[2] / "fuzz"


@pytest.mark.parametrize(("target", "runs"), [("schema", 1000), ("api", 60)])
def test_kept_inputs_and_changes_of_them_raise_nothing_that_is_not_documented(
    target: str, runs: int, long_form: bool
) -> None:
    command = [sys.executable, str(FUZZ / f"fuzz_{target}.py"), "--plain"]
    command += ["--runs", str(runs), "--seed", str(seed_of(long_form))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(110))
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    executions = int(done.stdout.split()[0])
    assert executions > runs + 20, "the kept inputs are there"


def test_a_wrong_answer_is_noticed_and_its_input_printed() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(FUZZ)!r}); import driver\n"
        "def target(data): assert b'Tensor' not in data\n"
        "driver.plain('schema', target, (), 0, 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 1
    assert "replay: python fuzz/fuzz_schema.py --input" in done.stderr

"""The tutorial is true: its file runs as a program and, everywhere, as a module, and each prompt
shows its real output.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit
from places import PLACES, run_at

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# The reader's file, as test_docs.py runs it.
VEC_OPS = "\n".join(text for kind, text in BLOCKS if kind == "python")

# Runs the file block by block, and between them the prompts, as the reader does. The lines of a
# block have the numbers that they have in the file: errors show them.
_READER = r"""
import doctest, re, sys

class Checker(doctest.OutputChecker):
    # What Python itself adds to an AttributeError differs from version to version.
    def check_output(self, want, got, flags):
        got = re.sub(r"\. Did you mean: '\w+'\?", "", got)
        got = re.sub(r"<(\w+: )?doctest .*?>", "<stdin>", got)
        return super().check_output(want, got, flags)

runner = doctest.DocTestRunner(
    Checker(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
)
space = {"__name__": "vec_ops", "__file__": "vec_ops.py"}
sys.modules["vec_ops"] = type(sys)("vec_ops")
lines = 0
for kind, text in BLOCKS:
    if kind == "python":
        exec(compile("\n" * lines + text, "vec_ops.py", "exec"), space)
        lines += text.count("\n") + 1
    elif kind == "pycon":
        test = doctest.DocTestParser().get_doctest(text, {}, "prompt", None, 0)
        test.globs = space
        runner.run(test, clear_globs=False)
print(runner.tries, runner.failures)
"""

# A worker that leaves out the import, in a process and in an interpreter.
_FORGETS = """
import subprocess, sys, vec_ops
import mdispatch as md

SOURCE = '''
import sys
sys.path[:] = {path!r}
import mdispatch as md

class Mine:
    __dispatch_keys__ = "CPU"

try:
    md.ops.vec.scale(Mine())
except md.MdispatchError as error:
    print(type(error).__name__ + ":", error, flush=True)
'''.format(path=sys.path)

subprocess.run([sys.executable, "-c", SOURCE], check=True)
interpreter = md.create_interpreter()
interpreter.exec(SOURCE)
interpreter.close()
"""


def run(script: Path) -> str:
    """The script's output. It must not fail or warn."""
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
        cwd=script.parent,
        env=environment,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout


def words(text: str) -> list[str]:
    """Removes the parts that differ between runs and pages: pids, the ends of lines."""
    return re.sub(r"\b(process|pid) \d+", r"\1 N", text).split()


def shown_after(sentence: str) -> str:
    """The text block that follows this sentence of the page."""
    return re.findall(r"^```text\n(.*?)^```", PAGE.split(sentence)[1], re.DOTALL | re.MULTILINE)[0]


@pytest.fixture(autouse=True)
def tape(tmp_path: Path) -> Path:
    """The example that the page has its reader copy."""
    return Path(shutil.copy(EXAMPLES / "tape.py", tmp_path))


@pytest.fixture
def vec_ops(tmp_path: Path) -> Path:
    file = tmp_path / "vec_ops.py"
    file.write_text(VEC_OPS)
    return file


def test_each_prompt_of_the_page_shows_what_comes_out(tmp_path):
    script = tmp_path / "reader.py"
    script.write_text(f"BLOCKS = {BLOCKS!r}\n{_READER}")
    prompts = sum(text.count(">>> ") for kind, text in BLOCKS if kind == "pycon")
    printed = run(script)
    assert prompts > 30
    assert printed.splitlines()[-1] == f"{prompts} 0", printed


def test_the_command_of_the_page_copies_the_example(tape):
    (command,) = [text for kind, text in BLOCKS if kind == "sh" and "tape.py" in text]
    tape.unlink()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", command], cwd=tape.parent, env={**os.environ, "PATH": path}, check=True
    )
    assert tape.read_text() == (EXAMPLES / "tape.py").read_text()


def test_the_file_run_as_a_program_prints_what_the_page_says(vec_ops):
    assert words(run(vec_ops)) == words(shown_after("Run it, with"))


def test_a_worker_that_forgets_to_import_the_file_hears_what_the_page_says(vec_ops):
    (vec_ops.parent / "forgets.py").write_text(_FORGETS)
    said = words(shown_after("If a worker forgets").replace("vec_ops.py", str(vec_ops)))
    # In workers the file is a module; the page has its program elsewhere.
    said = [word.replace("__main__.", "vec_ops.") for word in said]
    heard = words(run(vec_ops.parent / "forgets.py"))
    assert heard[: len(said)] == said
    assert heard.count("LocalKernelMissingError:") == 2


@pytest.mark.waits
@pytest.mark.thorough
def test_the_command_of_the_page_finds_that_all_workers_agree(vec_ops):
    pytest.importorskip("click", reason="the commands need click")
    (command,) = re.findall(r"`(mdispatch verify vec_ops [^`]*)`", PAGE)
    ran = subprocess.run(
        [sys.executable, "-m", *command.split()],
        capture_output=True,
        text=True,
        timeout=limit(120),
        cwd=vec_ops.parent,
        env={k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"},
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert ran.stdout.endswith("All 6 workers agree with the main interpreter.\n")


@pytest.mark.parametrize("place", PLACES)
def test_what_the_file_defines_works_in_every_kind_of_interpreter(place, tmp_path):
    body = """
        import feature, mdispatch as md
        Vector = feature.Vector
        x = Vector([1, 2])
        with feature.CountCalls() as mode:
            calls = [md.ops.vec.scale(x, 3), md.ops.vec.scale(x, [3, 4]), feature.square(x)]
        with md.context.IncludeDispatchKeyGuard("Tracer"):
            md.ops.vec.scale(x)
        result = {
            "calls": [y.items for y in calls],
            "shape": md.ops.vec.scale(md.MetaTensor([3])).shape,
            "gradients": [
                feature.gradient_of(lambda x: md.ops.vec.scale(x, 3), x).items,
                feature.gradient_of(feature.square, x).items,
            ],
            "counts": mode.counts,
            "log": feature.log,
        }
    """
    assert run_at(place, VEC_OPS, body, tmp_path) == {
        "calls": [[3.0, 6.0], [3.0, 8.0], [1.0, 4.0]],
        "shape": (3,),
        "gradients": [[3.0, 3.0], [2.0, 4.0]],
        "counts": {"vec::scale": 1, "vec::scale.each": 1, "vec::square": 1},
        "log": ["vec::scale(Vector([1.0, 2.0]), 2.0)"],
    }


@pytest.mark.parametrize("place", PLACES)
def test_the_hermetic_call_of_a_worker(place, tmp_path):
    """A parcel of another home is refused; one that was pickled in the guard opens only inside
    it.
    """
    module = f"""{VEC_OPS}
PARCEL = Path(__file__).with_name("parcel")
if md.is_main_interpreter():
    PARCEL.write_bytes(pickle.dumps(md.SafeObject(Vector([5, 6]))))
"""
    body = """
        import feature
        result = feature.work(feature.PARCEL.read_bytes())
    """
    found = run_at(place, module, body, tmp_path)
    if place == "main":  # at home
        assert found["refusal"] == "none: Vector([25.0, 36.0])"
    else:
        assert "vec::square(): an object of Vector belongs to interpreter 0" in found["refusal"]
    assert found["results"] == [[2.0, 4.0], [2.0, 4.0]]
    assert found["counts"] == {"vec::scale": 1}
    assert found["later"] == "an object of Vector is gone"

"""Cells that are run again where people run them: IPython, a Jupyter kernel, ``%autoreload``."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from patience import limit

CELL = """
import mdispatch as md

class Array:
    __dispatch_keys__ = "CPU"

lib = md.Library("nb", "DEF")
lib.define("f(Tensor x) -> str")

@lib.impl("f", dispatch_key="CPU")
def kernel(x):
    return WORD

@md.register_op("nb::one(Tensor x) -> str", "CPU")
def one(x):
    return WORD

@md.custom_op("nb::custom", mutates_args=(), schema="(Tensor x) -> str")
def custom(x):
    return WORD
"""

FRAGMENT = """
more = md.Library("nb", "FRAGMENT")
more.define("g(Tensor x) -> str")
impls = md.Library("nb", "IMPL", "CPU")

@impls.impl("g")
def _(x):
    return WORD
"""

SHOW = """
print([str(f(Array())) for f in (md.ops.nb.f, md.ops.nb.one, md.ops.nb.custom, md.ops.nb.g)],
      [len(md.default_registry().registrations("nb::" + name)) for name in ("f", "one", "g")])
"""

TWICE = "md.Library('nb2', 'DEF')\nmd.Library('nb2', 'DEF')"


def cells() -> list[str]:
    """A session: each cell as it is, again, and edited."""
    session = []
    for word in ("first", "first", "second"):
        # An edited cell has other lines, too.
        above = "# edited\n" if word == "second" else ""
        session += [above + each.replace("WORD", repr(word)) for each in (CELL, FRAGMENT)]
        session.append(SHOW)
    return session


#: The cells of a session, each of which opens a DEF library, and what the last one prints.
ADDING = [
    """
import mdispatch as md
lib = md.Library("nb3", "DEF")
lib.define("f(int x) -> int")
lib.impl("f", lambda x: x)
""",
    """
other = md.Library("nb3", "DEF")
other.define("g(int x) -> int")
other.impl("g", lambda x: -x)
""",
    "lib.define('h(int x) -> int'); lib.impl('h', lambda x: x + 1)",
    "print('[added]', md.ops.nb3.f(2), md.ops.nb3.g(2), md.ops.nb3.h(2))",
]
ADDED = "[added] 2 -2 3"

SHOWN = [
    f"{[word] * 4} [2, 2, 2]".replace('"', "'") for word in ("first", "first", "second")
]  # a definition and a kernel of each


def run(text: str, folder: Path, *args: str) -> str:
    script = folder / "session.py"
    script.write_text(textwrap.dedent(text))
    ran = subprocess.run(
        [sys.executable, str(script), *args],
        capture_output=True, text=True, cwd=folder, timeout=limit(100),
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


SHELL = """
import json, os, sys
os.environ["IPYTHONDIR"] = os.path.join(os.getcwd(), "ipython")
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("colors", "nocolor")
def cell(text):
    result = shell.run_cell(text, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        raise error
"""


def test_in_ipython_cells_are_run_again(tmp_path):
    pytest.importorskip("IPython")
    out = run(
        SHELL
        + """
for text in json.loads(sys.argv[1]):
    cell(text)
result = shell.run_cell(sys.argv[2], store_history=True)
print("refused:", type(result.error_in_exec).__name__, str(result.error_in_exec).count("nb2"))
""",
        tmp_path,
        json.dumps([*cells(), *ADDING, *ADDING[:2], ADDING[3]]),
        TWICE,
    )
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert lines == [*SHOWN, ADDED, ADDED]
    assert "refused: DuplicateRegistrationError" in out


@pytest.mark.parametrize("changed", ["moved", "kernel", "both"])
def test_autoreload_replaces_what_a_module_registered(tmp_path, changed):
    pytest.importorskip("IPython")
    text = CELL + FRAGMENT
    (tmp_path / "loaded_ops.py").write_text(text.replace("WORD", "'first'"))
    word = "first" if changed == "moved" else "second"
    above = "" if changed == "kernel" else "# a line\n"
    out = run(
        SHELL
        + """
show = "from loaded_ops import Array\\n" + sys.argv[1]
for text in ("%load_ext autoreload", "%autoreload 2", "import mdispatch as md, loaded_ops", show):
    cell(text)
for turn in range(2):
    with open("loaded_ops.py", "w") as file:
        file.write("# a line" * turn + sys.argv[2])
    later = os.stat("loaded_ops.py").st_mtime + 10 * (turn + 1)
    os.utime("loaded_ops.py", (later, later))
    cell(show)
""",
        tmp_path,
        SHOW,
        above + text.replace("WORD", repr(word)),
    )
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert lines == [SHOWN[0], *[f"{[word] * 4} [2, 2, 2]"] * 2], out


def test_in_a_jupyter_kernel_cells_are_run_again(tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    out = run(
        """
        import json, os, sys
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            os.environ[name] = os.path.join(os.getcwd(), name)
        import nbclient, nbformat
        notebook = nbformat.v4.new_notebook()
        texts = json.loads(sys.argv[1])
        notebook.cells = [nbformat.v4.new_code_cell(text) for text in texts]
        client = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3")
        with client.setup_kernel():
            for number, each in enumerate(notebook.cells):
                client.execute_cell(each, number)
            # The very first cells again, as they are.
            for number in (0, 1, 2):
                client.execute_cell(notebook.cells[number], number)
        for each in [*notebook.cells[3:], notebook.cells[2]]:
            for output in each.outputs:
                print(output.get("text", output))
        """,
        tmp_path,
        json.dumps(cells()),
    )
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert lines == [SHOWN[1], SHOWN[2], SHOWN[0]], out

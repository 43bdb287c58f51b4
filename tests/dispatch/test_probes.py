"""The probes of native/bind/call/probes.h, as a tool that attaches sees them: with gdb."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

from mdispatch.facts.native import _call

pytestmark = pytest.mark.shared

LIBRARY = Path(_call.__file__)

PROGRAM = """
import os, signal
import mdispatch as md


class Value: ...
md.register_type(Value, "CPU")
lib = md.Library("probes", "DEF", registry=md.Registry.create())
for name in ("f", "outer", "broken"):
    lib.define(f"{name}(Tensor x, float y=1.0) -> int")
ops = lib.registry.ops.probes
lib.impl("f", lambda x, y: 42, "CPU")
lib.impl("outer", lambda x, y: ops.f.default.redispatch(md.DispatchKeySet("CPU"), x, y), "CPU")
lib.impl("broken", lambda x, y: 1 // 0, "CPU")

def use():
    value = Value()
    assert ops.f.default(value, 2.0) == 42
    assert ops.f(value) == 42  # by its packet
    assert ops.f(value, 2) == 42  # in Python: an int for a float
    assert ops.outer(value) == 42
    try:
        ops.broken(value)
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError
use()
os.kill(os.getpid(), signal.SIGTRAP)  # here gdb attaches to the probes
use()
os.kill(os.getpid(), signal.SIGTRAP)  # and here it lets go of them
use()
print("used")
"""

ATTACH = """
set pagination off
set debuginfod enabled off
set confirm off
handle SIGTRAP stop nopass
run
break -probe-stap mdispatch:operator_start
commands
silent
printf "seen start %s\\n", (char *)$_probe_arg0
continue
end
break -probe-stap mdispatch:operator_end
commands
silent
printf "seen end %s %d\\n", (char *)$_probe_arg0, $_probe_arg1
continue
end
continue
delete
continue
"""


@functools.cache
def gdb():
    """The command that runs gdb. Skips the test when there is no gdb that may trace."""
    found = shutil.which("gdb")
    if found is None:
        return None
    command = [found, "-nx", "-nw", "-batch"]
    true = [*command, "-ex", "set debuginfod enabled off", "-ex", "run", "/bin/true"]
    done = subprocess.run(true, capture_output=True, text=True, check=False, timeout=limit(60))
    return command if "exited normally" in done.stdout else None


def test_probes_are_built_where_the_header_is():
    compiled = subprocess.run(
        ["cc", "-E", "-x", "c", "-"],
        input="#include <sys/sdt.h>",
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
    )
    has_probes = b"stapsdt" in LIBRARY.read_bytes()
    if compiled.returncode == 0 and not has_probes:
        pytest.skip("built without sys/sdt.h, which is here now: built elsewhere, or before")
    if not has_probes:
        pytest.skip("no sys/sdt.h here")
    for name in (b"mdispatch\0operator_start\0", b"mdispatch\0operator_end\0"):
        assert name in LIBRARY.read_bytes()


def test_the_documentation_attaches_as_the_test_does():
    page = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text()
    (script,) = re.findall(r"^```text\n(break .*?)^continue\n```", page, re.DOTALL | re.MULTILINE)
    assert script in ATTACH


@pytest.mark.thorough
def test_who_attaches_sees_every_call_begin_and_end(tmp_path):
    if b"stapsdt" not in LIBRARY.read_bytes():
        pytest.skip("built without sys/sdt.h: there are no probes")
    if gdb() is None:
        pytest.skip("no gdb here that may trace")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "attach").write_text(ATTACH)
    done = subprocess.run(
        [*gdb(), "-x", tmp_path / "attach", "--args", sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(100),
    )
    seen = re.findall(r"^seen (.*)$", done.stdout, re.MULTILINE)
    call = ["start probes::f", "end probes::f 0"]
    assert seen == [
        *call * 3,
        "start probes::outer",
        *call,
        "end probes::outer 0",
        "start probes::broken",
        "end probes::broken 1",
    ], done.stdout + done.stderr
    assert "used" in done.stdout
    assert "exited normally" in done.stdout

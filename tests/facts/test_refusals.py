"""When a system call fails, Python gets one of our exceptions or a MemoryError; nothing hangs,
nothing is kept, and the next call succeeds. (native/refusals shows the same for C, with more
scenarios.)
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import SUPPORT
from patience import limit

from mdispatch.facts import native

pytestmark = pytest.mark.shared

NATIVE = Path(__file__).parents[2] / "native"
SCENARIOS = ["an_anonymous_registry", "a_named_registry", "another_thread", "a_registry_that_grows"]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    source = NATIVE / "refusals" / "shim.c"
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE"]
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, *flags, "-o", made, source, "-ldl"], check=True)
    return made


def figures_of(script, *args, **environment):
    """The number that the script printed last."""
    env = {**os.environ, "MDISPATCH_BINDING": native.which, **environment}
    env.pop("MDISPATCH_REGISTRY", None)
    done = subprocess.run(
        [sys.executable, Path(SUPPORT) / script, *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=limit(100),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[-1])


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_refused_call_ends_in_an_exception_of_ours_and_nothing_is_kept(shim, scenario):
    assert figures_of("refusals_stage.py", scenario, LD_PRELOAD=str(shim)) > 20


@pytest.mark.long
@pytest.mark.parametrize("how", ["--each-way", "--on"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_so_does_each_way_to_refuse_it_once_and_from_then_on(shim, scenario, how):
    assert figures_of("refusals_stage.py", scenario, how, LD_PRELOAD=str(shim)) > 50


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", ["opened", "taken_over", "removing", "ended"])
def test_a_process_that_dies_at_any_call_leaves_nothing_of_its_edition(shim, scenario, long_form):
    """Opening an edition, taking one over, removing dead ones, ending one."""
    one_in = 2 if long_form else 8
    deaths = figures_of("killed_stage.py", scenario, str(one_in), LD_PRELOAD=str(shim))
    assert deaths > 100 // one_in


@pytest.mark.thorough
def test_an_allocation_of_pythons_that_fails_in_the_extension_has_changed_nothing():
    pytest.importorskip("_testcapi", reason="this Python comes without _testcapi")
    assert figures_of("no_memory_stage.py") > 20


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="CPython ends by SIGSEGV: the dict of a new type looks at a name that it did not get",
)
def test_an_allocation_of_pythons_that_fails_while_calls_in_c_are_imported_is_told():
    pytest.importorskip("_testcapi", reason="this Python comes without _testcapi")
    assert figures_of("no_memory_import.py") > 10

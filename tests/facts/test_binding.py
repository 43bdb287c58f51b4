"""Which binding is chosen: the interpreter decides, or MDISPATCH_BINDING where both can load."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest
from kinds import INTERPRETERS, run_main

from mdispatch import errors
from mdispatch.facts import native

pytestmark = pytest.mark.shared

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
HAS_CFFI = not (FREE_THREADED and sys.version_info < (3, 14))

WHICH = """
import os
FORCED = {forced!r}
os.environ.pop("MDISPATCH_BINDING", None)
if FORCED:
    os.environ["MDISPATCH_BINDING"] = FORCED
try:
    import mdispatch.facts.native as native
except ImportError as error:
    report(which="", error=type(error).__name__, text=str(error))
else:
    report(which=native.which, interpreter=native.interpreter_id)
"""


@pytest.mark.parametrize(
    ("asked", "interpreter", "free_threaded", "version", "expected"),
    [
        ("", 0, False, (3, 11), "cffi"),
        ("", 0, True, (3, 14), "cffi"),
        ("", 0, True, (3, 13), "ext"),
        ("", 1, False, (3, 11), "ext"),
        ("", 7, False, (3, 15), "ext"),
        ("ext", 0, False, (3, 12), "ext"),
        ("cffi", 1, False, (3, 12), "cffi"),
    ],
)
def test_the_interpreter_decides_unless_one_is_asked_for(
    asked, interpreter, free_threaded, version, expected
) -> None:
    assert native.choose(asked, interpreter, free_threaded, version) == expected


def test_an_unknown_binding_is_refused() -> None:
    with pytest.raises(errors.BindingError, match="ctypes"):
        native.choose("ctypes", 0, False, (3, 12))


@pytest.mark.parametrize("forced", ["", "cffi", "ext"])
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_sub_interpreters_are_served_by_the_extension_or_told_why_not(
    kind, forced, tmp_path
) -> None:
    got = run_main(
        """
        kind, text, folder = args
        md.default_registry()
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        WHICH.format(forced=forced),
        str(tmp_path),
    )
    if forced != "cffi":
        assert got["which"] == "ext"
        assert got["interpreter"] > 0
    elif kind == "shared-gil" and HAS_CFFI and not FREE_THREADED:
        assert got["which"] == "cffi"
    else:
        assert got["error"] == "BindingError"
        assert "the extension serves in every interpreter" in got["text"]


@pytest.mark.parametrize("forced", ["cffi", "ext"])
def test_the_main_interpreter_takes_the_one_it_is_told(forced) -> None:
    if forced == "cffi" and not HAS_CFFI:
        pytest.skip("cffi does not support free-threaded 3.13")
    environment = {**os.environ, "MDISPATCH_BINDING": forced}
    code = "import mdispatch.facts.native as n; print(n.which, n.native.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout.split()[0] == forced


def test_all_interpreters_share_one_library_and_so_one_default_registry(tmp_path) -> None:
    got = run_main(
        """
        text = "import mdispatch as md; report(address=md.default_registry().address)"
        folder, = args
        here = md.default_registry().address
        there = [results(start(kind, text, 1, Path(folder)))[0]["address"] for kind in INTERPRETERS]
        done(same=[address == here for address in there], kinds=INTERPRETERS)
        """,
        str(tmp_path),
    )
    assert got["same"] == [True] * len(INTERPRETERS)


def test_a_fork_beside_live_interpreters_is_warned_of() -> None:
    got = run_main(
        """
        import warnings
        md.default_registry()
        interpreter = md.create_interpreter()
        interpreter.exec("import mdispatch as md; md.default_registry()")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pid = os.fork()
            if pid == 0:
                os._exit(0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        interpreter.close()
        with warnings.catch_warnings(record=True) as later:
            warnings.simplefilter("always")
            pid = os.fork()
            if pid == 0:
                os._exit(0)
        os.waitpid(pid, 0)
        words = lambda found: [str(w.message) for w in found if w.category is RuntimeWarning]
        done(words=words(caught), later=words(later))
        """
    )
    assert len(got["words"]) == 1
    assert "Fork first" in got["words"][0]
    assert got["later"] == []

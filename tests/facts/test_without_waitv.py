"""Where a sandbox does not let processes use futex_waitv, waits end as they do elsewhere."""

from __future__ import annotations

import errno
import platform

import pytest
from kinds import run_main

pytestmark = pytest.mark.shared

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# A filter of seccomp's own: futex_waitv (449 everywhere) is refused with the error, all else goes.
FORBID = """
import ctypes, struct
number, architecture, error = args
load, equal, give = 0x20, 0x15, 0x06
program = b"".join(struct.pack("HBBI", *line) for line in (
    (load, 0, 0, 4), (equal, 0, 3, architecture),
    (load, 0, 0, 0), (equal, 0, 1, number),
    (give, 0, 0, 0x50000 | error), (give, 0, 0, 0x7FFF0000),
))
text = ctypes.create_string_buffer(program)
filters = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
if libc.prctl(22, 2, filters) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    done(skip="this system has no seccomp filters")
assert libc.syscall(number, None, 0, 0, None, 0) == -1 and ctypes.get_errno() == error
"""


@pytest.mark.skipif(
    platform.machine() not in ARCHITECTURES, reason="no number of the architecture is known here"
)
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_waits_end_by_registration_timeout_and_death_without_futex_waitv(error) -> None:
    got = run_main(
        FORBID
        + """
import signal, subprocess, threading
main = subprocess.Popen(
    [sys.executable, "-c", "import sys, mdispatch as md\\n"
     "r = md.Registry.create()\\nprint(r.address, flush=True)\\nsys.stdin.readline()\\n"
     "lib = md.Library('s', 'DEF', registry=r)\\nlib.define('f() -> ()')\\nsys.stdin.read()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
registry = md.Registry.attach(main.stdout.readline().strip())
heard = []
def wait(name, timeout):
    try:
        heard.append(md.wait_for_def(name, timeout=timeout, registry=registry).name)
    except md.MdispatchError as error:
        heard.append(type(error).__name__)
waiter = threading.Thread(target=wait, args=("s::f", 60))
waiter.start()
main.stdin.write("\\n")
main.stdin.flush()
waiter.join()
wait("s::g", 0.01)
waiter = threading.Thread(target=wait, args=("s::g", 60))
waiter.start()
main.kill()
waiter.join()
main.wait()
done(heard=heard)
""",
        449,
        ARCHITECTURES[platform.machine()],
        getattr(errno, error),
    )
    if "skip" in got:
        pytest.skip(got["skip"])
    assert got["heard"] == ["s::f", "NameMismatchError", "RegistrarGoneError"]

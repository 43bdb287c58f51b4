"""Scenes in which one process loses something and then does something, for
tests/facts/test_losses.py.

Each process of a scene does what the test sends it, one line at a time, and answers what came of
it. So the test decides who does what, and when. A process that does not answer hangs.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Any

from commands import environment
from kinds import until
from patience import limit
from registries import until_stopped

__all__ = ["LOSSES", "Actor", "Scene"]

_PROGRAM = """
import json, os, resource, signal, sys, threading, time, warnings

def serve(asked, told):
    for line in open(asked):
        globals()["answer"] = None
        try:
            exec(json.loads(line), globals())
            came = ["", answer]
        except BaseException as error:
            came = [type(error).__name__, str(error)]
        os.write(told, json.dumps(came).encode() + b"\\n")
    os._exit(0)

name, *pipes = sys.argv[1:]
pipes = [int(fd) for fd in pipes]
"""
#: A parent that is not the registrar: it begins the program and stays until it is killed.
_PARENT = "import os, signal\nif os.fork():\n    while True:\n        signal.pause()\n"
_BEGIN = """
warnings.simplefilter("ignore")  # of forks beside threads, and of changed users
import mdispatch as md
"""
_MAIN = """
registry = md.Registry.create(name, capacity=1 << 26)
lib = md.Library("shop", "DEF", registry=registry)
lib.define("old(Tensor x) -> Tensor")
serve(*pipes[:2])
"""
_WORKER = "registry = md.Registry.attach(name)\nserve(*pipes[:2])\n"
_FORK = "if os.fork() == 0:\n    serve(*pipes[2:4])\n"

# What each loss does in the process that it befalls. It needs nothing from files afterwards that
# another user may not read, so the rest of the package is loaded first, as a fork beside a thread
# does. Its time and its parent are taken from outside.
LOSSES = {
    "its descriptor": """
for fd in os.listdir("/proc/self/fd"):
    try:
        if "/mdispatch" in os.readlink(f"/proc/self/fd/{fd}"):
            os.close(int(fd))
    except FileNotFoundError:
        pass  # that of the listing
""",
    "its rights": """
import difflib
from mdispatch import forking
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
forking.load_the_rest()
go.set()
thread.join()
os.setresuid(65534, 65534, 65534)
""",
    # No address space beyond 8 MiB, and no mapping of a file: mmap with MAP_SHARED is refused.
    "its memory": """
import ctypes, struct
number, architecture = {mmap}
load, equal, has_bits, give = 0x20, 0x15, 0x45, 0x06
program = b"".join(struct.pack("HBBI", *line) for line in (
    (load, 0, 0, 4), (equal, 0, 5, architecture),
    (load, 0, 0, 0), (equal, 0, 3, number),
    (load, 0, 0, 40), (has_bits, 0, 1, 1),
    (give, 0, 0, 0x50000 | 12), (give, 0, 0, 0x7FFF0000),
))
text = ctypes.create_string_buffer(program)
filters = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * os.sysconf("SC_PAGESIZE") + (8 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filters) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
""".replace("{mmap}", repr({"x86_64": (9, 0xC000003E)}.get(platform.machine(), (222, 0xC00000B7)))),
    "its time": "",
    "its main thread": """
import ctypes
def go_on():
    stat = f"/proc/self/task/{os.getpid()}/stat"
    while open(stat).read().rpartition(") ")[2][0] != "Z":
        time.sleep(0.001)
    os.write(pipes[1], b'["", null]\\n')
    serve(*pipes[:2])
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
""",
    "its parent": "",
}


class Actor:
    """A process of a scene: what it is asked, and what it answers."""

    def __init__(self, ask: int, hear: int) -> None:
        self._ask = ask
        self._hear = hear
        self._unread = b""
        self.pid = 0

    def begin(self, code: str) -> None:
        os.write(self._ask, json.dumps(code).encode() + b"\n")

    def end(self) -> tuple[str, Any]:
        """What came of it: the name of an exception's class and its text, or "" and ``answer``."""
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._hear], [], [], limit(30))
            assert ready, f"process {self.pid} hangs"
            piece = os.read(self._hear, 65536)
            assert piece, f"process {self.pid} ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        name, value = json.loads(line)
        return name, value

    def attempt(self, code: str) -> tuple[str, Any]:
        self.begin(code)
        return self.end()

    def do(self, code: str) -> Any:
        name, value = self.attempt(code)
        assert name == "", f"{code}\n{name}: {value}"
        return value

    def until_asleep(self) -> None:
        """Until one of its threads sleeps in a wait of the registry, or that has ended already."""
        until(lambda: self._is_asleep() or select.select([self._hear], [], [], 0)[0])

    def _is_asleep(self) -> bool:
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with suppress(OSError), open(f"/proc/{self.pid}/task/{task}/syscall") as file:
                call = file.read().split()
                if call[0] == "449" or (call[0] in ("202", "98") and int(call[2], 16) == 9):
                    return True
        return False

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        until_stopped(self.pid)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Scene:
    """The processes around one named registry. All are killed at its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ends = ExitStack()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    def _actor(self) -> tuple[Actor, tuple[int, int]]:
        (asked, ask), (hear, told) = os.pipe(), os.pipe()
        for fd in (ask, hear):
            self._ends.callback(os.close, fd)
        return Actor(ask, hear), (asked, told)

    def _start(self, program: str) -> tuple[subprocess.Popen[bytes], Actor, Actor]:
        """Runs the program. Returns the process, its actor, and that of a child it may fork."""
        (actor, theirs), (child, childs) = self._actor(), self._actor()
        pipes = theirs + childs
        command = [sys.executable, "-c", program, self.name, *map(str, pipes)]
        process = subprocess.Popen(command, pass_fds=pipes, env=environment())
        for fd in pipes:
            os.close(fd)
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        actor.pid = actor.do("answer = os.getpid()")
        self._ends.callback(actor.kill)
        return process, actor, child

    def main(self) -> tuple[Actor, Actor]:
        """The registrar of the registry, which it makes; and the worker that ``fork`` begins."""
        return self._start(_PROGRAM + _BEGIN + _MAIN)[1:]

    def orphan(self) -> tuple[Actor, Actor]:
        """The same, whose parent has died since."""
        parent, *actors = self._start(_PARENT + _PROGRAM + _BEGIN + _MAIN)
        parent.kill()
        parent.wait()
        until(lambda: actors[0].do("answer = os.getppid()") != parent.pid)
        return actors[0], actors[1]

    def worker(self) -> Actor:
        """A process that has attached to the registry."""
        return self._start(_PROGRAM + _BEGIN + _WORKER)[1]

    def fork(self, parent: Actor, child: Actor) -> None:
        """Has the parent fork a child, which does what its actor is told."""
        parent.do(_FORK)
        child.pid = child.do("answer = os.getpid()")
        self._ends.callback(child.kill)

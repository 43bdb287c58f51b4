"""Registrars, as those use them who told them to start, or found them: see registrar.py."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import HANG_SECONDS

PROGRAM = Path(__file__).with_name("registrar.py")
CAPACITY = 256 * 1024 * 1024


class RefusedError(Exception):
    """The registrar raised an exception: ``kind`` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"in the registrar:\n{text}")
        self.kind = kind


class MainClient:
    """A connection to a registrar. ``address`` is that of its registry."""

    def __init__(self, address: str, path: str) -> None:
        self.address = address
        self.place = (address, path)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(2 * HANG_SECONDS)
        self._socket.connect(path)
        self._stream = self._socket.makefile("rw")

    def tell(self, do: str, **more: object) -> dict:
        """Makes it do something, and returns the answer. RefusedError when it raised."""
        self._stream.write(json.dumps({"do": do, **more}) + "\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise ConnectionError("the registrar is gone")
        answer: dict = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"], answer["text"])
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be dead
            self._stream.close()
        self._socket.close()


class Main:
    """A registrar that was started here, and its registry."""

    def __init__(self, name: str = "", capacity: int = CAPACITY) -> None:
        self.folder = tempfile.mkdtemp(prefix="mdispatch-stress-")
        self.path = str(Path(self.folder, "main"))
        environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAM), name, str(capacity), self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        if not self.address:
            self.leave()
            raise RuntimeError("the registrar did not start: it has said why")

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self) -> MainClient:
        return MainClient(self.address, self.path)

    def kill(self) -> tuple[int, int]:
        """SIGKILL; the times before it and when the process was gone."""
        before = time.monotonic_ns()
        self.process.kill()
        self.process.wait()
        return before, time.monotonic_ns()

    def leave(self) -> tuple[int, int]:
        """It closes its registry and ends. Idempotent. The times before and after."""
        before = time.monotonic_ns()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(HANG_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        return before, time.monotonic_ns()

    def __enter__(self) -> Main:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

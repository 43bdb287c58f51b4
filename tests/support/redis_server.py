"""A Redis server of a test's own: a process with a folder and a port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from patience import limit

__all__ = ["RedisServer"]


class RedisServer:
    """Started at once; stores what it acknowledges only by :meth:`save`."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("redis", reason="redis-py is not installed")
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed")
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(
        self, run: str, lease: float = 1.0, password: str = "", user: str = "", port: int = 0
    ) -> str:
        """``port`` is that of a line to the server (tcp_proxy.py)."""
        who = f"{user}:{password}@" if password else ""
        where = f"127.0.0.1:{port or self.port}"
        return f"redis://{who}{where}/0?run={run}&lease={lease * _slow():g}"

    def start(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                *options,
            ],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            env=os.environ | (environment or {}),
        )
        deadline = time.monotonic() + limit(20)
        while True:  # there is no other sign of a server than that it answers
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not start"
                time.sleep(0.02)

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Ends it with all that it has."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self):  # type: ignore[no-untyped-def]
        import redis

        return redis.Redis(port=self.port)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.kill()


def _slow() -> float:
    """A lease is a limit of time, too: on a busy machine a leader must not lose it."""
    return min(4.0, limit(1))

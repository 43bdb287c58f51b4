"""Hosts of a cluster as processes: each host has a folder for registries of its own, and a name."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from patience import limit

__all__ = ["Host", "Program"]

# Reads a program on each line, runs it, and answers with what it left in `result`.
_AGENT = """
import json, sys
scope = {}
for line in sys.stdin:
    scope["result"] = error = None
    try:
        exec(compile(json.loads(line), sys.argv[1], "exec"), scope)
    except Exception as raised:
        error = [type(raised).__name__, str(raised)]
    print(json.dumps([scope["result"], error]), flush=True)
"""


class Program:
    """A process of a host, which runs what it is told."""

    def __init__(self, host: Host, registry: str, file: str = "/ops/shop.py") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AGENT, file],
            env=host.environment() | {"MDISPATCH_REGISTRY": registry},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        host.processes.append(self.process)
        self.pid = self.process.pid

    def begin(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[Any, list[str] | None]:
        """What the code left in ``result``, and class and text of what it raised."""
        assert self.process.stdout is not None
        result, error = json.loads(self.process.stdout.readline())
        return result, error

    def do(self, code: str) -> Any:
        self.begin(code)
        result, error = self.end()
        assert error is None, error[1]
        return result

    def fails(self, code: str) -> tuple[str, str]:
        self.begin(code)
        _, error = self.end()
        assert error is not None
        return error[0], error[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


class Host:
    """Its processes end with it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(mode=0o700)
        self.processes: list[subprocess.Popen[str]] = []
        self.said: queue.Queue[str] = queue.Queue()
        self.heard: list[str] = []

    def environment(self) -> dict[str, str]:
        return os.environ | {"MDISPATCH_FOLDER": str(self.folder), "MDISPATCH_HOST": self.name}

    def program(self, registry: str) -> Program:
        return Program(self, registry)

    def bridge(self, url: str, *options: str) -> subprocess.Popen[str]:
        """A bridge, once it is there."""
        process = subprocess.Popen(
            [sys.executable, "-m", "mdispatch", "bridge", "-", *options],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(url + "\n")
        process.stdin.close()

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self.said.put(line)

        threading.Thread(target=listen, daemon=True).start()
        self.hears("MDISPATCH_REGISTRY=")
        return process

    def hears(self, text: str) -> str:
        """Waits until the bridge says this."""
        while True:
            line = self.said.get(timeout=limit(30))
            self.heard.append(line)
            if text in line:
                return line

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mdispatch", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=limit(60),
        )

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

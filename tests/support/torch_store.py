"""A real TCPStore of PyTorch in a process of its own, for the tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

__all__ = ["TorchStore"]

_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class TorchStore:
    """Ends with its standard input. Skips the test where PyTorch is not installed."""

    def __init__(self) -> None:
        if importlib.util.find_spec("torch") is None:
            pytest.skip("PyTorch is not installed")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, run: str, lease: float = 10) -> str:
        return f"torch://127.0.0.1:{self.port}?run={run}&lease={lease}"

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:  # sent is not stopped: its threads may answer still
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

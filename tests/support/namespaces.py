"""Nodes of a cluster on one machine: processes with a folder of their own for registries, or, where
root may, in namespaces of their own: a network with an address, a /dev/shm, and process ids.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["Node", "namespaced", "two_nodes"]

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Node:
    """One host. ``inside`` is the command that runs another one in its namespaces."""

    def __init__(
        self, name: str, folder: Path, address: str = "127.0.0.1", inside: tuple[str, ...] = ()
    ) -> None:
        self.name, self.address, self.inside = name, address, inside
        self.folder = folder / name
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port: int = one.getsockname()[1]

    def environment(self) -> dict[str, str]:
        own = {"MDISPATCH_HOST": self.name}
        if not self.inside:
            own["MDISPATCH_FOLDER"] = str(self.folder)
        taken = ("MDISPATCH_REGISTRY", "MDISPATCH_FOLDER")
        return {k: v for k, v in os.environ.items() if k not in taken} | own

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.inside, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def namespaced(folder: Path, count: int) -> Iterator[list[Node]]:
    """So many nodes on one bridge of the kernel, 10.77.X.1 and so on. Skips the test, and warns,
    where that is not allowed.
    """
    if shutil.which("ip") is None:
        pytest.skip("no namespaces here: iproute2 is not installed")
    me = f"{os.getpid() % 10000}x{next(_numbers)}"
    bridge, net = f"mdb{me}", os.getpid() % 250
    made: list[str] = []
    try:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
            nodes = []
            for number in range(count):
                space, outer, inner = f"md{me}n{number}", f"mo{me}{number}", f"mi{me}{number}"
                _ip("netns", "add", space)
                made.append(space)
                _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
                _ip("link", "set", outer, "master", bridge, "up")
                address = f"10.77.{net}.{number + 1}"
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", inner)
                _ip("-n", space, "link", "set", inner, "up")
                _ip("-n", space, "link", "set", "lo", "up")
                inside = ("ip", "netns", "exec", space, "unshare", "-m", "-p", "-f")
                inside += ("--kill-child", "--mount-proc", "sh", "-ec")
                inside += ('mount -t tmpfs none /dev/shm; exec "$@"', "sh")
                nodes.append(Node(f"node-{number}", folder, address, inside))
            subprocess.run([*nodes[0].inside, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or error
            warnings.warn(f"no namespaces here: {why}", RuntimeWarning, stacklevel=2)
            pytest.skip(f"no namespaces here: {why}")
        yield nodes
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


@contextmanager
def two_nodes(folder: Path, how: str) -> Iterator[list[Node]]:
    if how == "namespaces":
        with namespaced(folder, 2) as nodes:
            yield nodes
    else:
        yield [Node(f"node-{number}", folder) for number in range(2)]

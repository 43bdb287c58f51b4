"""What ``MDISPATCH_REGISTRY=cluster:URL`` means in a process: it leads, or it is a worker, and the
first workers of a host bring the host's bridge along.

``role=leader`` or ``role=worker`` in the URL says which. Else a launcher's ``RANK`` does: the
process of rank 0 leads, and so does one without a rank. ``cluster:torchrun`` is the URL of the job
that torchrun has started.

A bridge is a child process of the worker (beside.py). In the worker itself it would wait for a GIL
that others hold, and a call of a client library that does not come back, PyTorch's store has such
calls, would end the worker by SIGABRT when its interpreter ends.
"""

from __future__ import annotations

import os
import subprocess
import sys

from ..errors import RegistryError, RegistryNotFoundError
from ..facts.opening import ENVIRONMENT
from ..facts.shared import SharedRegistry
from .beside import BRIDGES, IS_THERE, NOT_NEEDED
from .engine import parse_url
from .hosts import bridges
from .leading import lead
from .torchrun import url_of_job

#: Seconds that a worker beside the leader waits for its registry: rank 0 may import as long.
_PATIENCE = 120.0

#: The bridge that this process brought. It ends when the other end of its standard input is closed.
_bridge: subprocess.Popen[str] | None = None


def joined(text: str) -> SharedRegistry:
    """Opens this host's registry of the run that the URL names, as its leader or as a worker.
    Raises as :func:`lead`; in a worker, as Registry.attach, and RegistryError where a bridge that
    it brings ends at its start.
    """
    if text == "cluster:torchrun":
        text = url_of_job(os.environ)
    url = parse_url(text)
    role = url.acts_as or ("worker" if os.environ.get("RANK", "0") != "0" else "leader")
    if role == "leader":
        return lead(text)
    # On the host of rank 0 the leader's own registry is the one to wait for.
    if os.environ.get("GROUP_RANK") != "0" and not _has_enough(url.run):
        _bring_a_bridge(text)
    return SharedRegistry.attach(url.run, max(_PATIENCE, 2 * url.lease))


def _has_enough(name: str) -> bool:
    """Whether this host has the leader, or bridges enough. Of those that several workers bring at
    once some end at once (beside.py).
    """
    try:
        registry = SharedRegistry.attach(name, 0.0)
    except RegistryNotFoundError:
        return False
    try:
        there = bridges(registry)
    finally:
        registry.close()
    return there is None or there >= BRIDGES


def _bring_a_bridge(text: str) -> None:
    global _bridge
    if _bridge is not None and _bridge.poll() is None:
        return
    # The waits of PyTorch's store time out as a matter of course; it would warn of each.
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ
    environment.pop(ENVIRONMENT, None)
    _bridge = subprocess.Popen(
        [sys.executable, "-m", "mdispatch.cluster.beside"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert _bridge.stdin is not None
    assert _bridge.stdout is not None
    with _bridge.stdout as answers:
        try:
            _bridge.stdin.write(text + "\n")
            _bridge.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and said why
        if answers.readline().strip() not in (IS_THERE, NOT_NEEDED):
            raise RegistryError(
                "the bridge of this host, a process that this one started, has ended at its start: "
                "it said why on standard error"
            )

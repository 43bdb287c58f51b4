"""``MDISPATCH_REGISTRY=cluster:torchrun``: the cluster of a job that torchrun has started.

The engine is the store that torchrun's own agent keeps for the job, at MASTER_ADDR and MASTER_PORT;
this makes no store. Rank 0 leads. On each other node, local rank 0 starts the bridge as a child
process, which ends when that rank does. All others are workers. A group of workers that torchrun
starts anew is a run of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from ..errors import InvalidArgumentError, RegistryError
from ..facts.opening import ENVIRONMENT
from ..facts.shared import SharedRegistry
from .leading import lead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..facts.abc import Facts

__all__ = ["join", "url_of_job"]

#: Seconds that a worker waits for its host's registry: others of its node import as long.
_PATIENCE = 120.0
_NEEDED = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
]

#: The bridge's process. It ends when the other end of its standard input is closed.
_bridge: subprocess.Popen[str] | None = None


def url_of_job(environment: Mapping[str, str]) -> str:
    """The URL of the job's cluster, from torchrun's environment. InvalidArgumentError."""
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise InvalidArgumentError(
            f"{ENVIRONMENT}=cluster:torchrun, and {', '.join(missing)} is not in the environment: "
            "torchrun sets it for the processes that it starts. Start this one by torchrun, or "
            "name an engine: cluster:redis://host:6379/0?run=train-7"
        )
    if environment["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        raise InvalidArgumentError(
            f"{ENVIRONMENT}=cluster:torchrun, and torchrun's agent keeps no store for this job "
            "(TORCHELASTIC_USE_AGENT_STORE is not True). Unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE, "
            "or name an engine: cluster:redis://host:6379/0?run=train-7"
        )
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    job = re.sub(r"[^A-Za-z0-9_-]", "-", environment["TORCHELASTIC_RUN_ID"])[:80]
    restart = environment["TORCHELASTIC_RESTART_COUNT"]
    named = f"[{host}]" if ":" in host else host
    return f"torch://{named}:{port}?run=torchrun-{job}-{port}-{restart}"


def join() -> Facts:
    """Opens this host's registry as what torchrun made this process: leader or worker. Raises what
    :func:`lead` raises, and RegistryError where this host's registry does not come.
    """
    url = url_of_job(os.environ)
    if os.environ["RANK"] == "0":
        return lead(url)
    if os.environ["GROUP_RANK"] != "0" and os.environ["LOCAL_RANK"] == "0":
        _start_bridge(url)
    return SharedRegistry.attach(url.partition("?run=")[2], _PATIENCE)


def _start_bridge(url: str) -> None:
    global _bridge
    if _bridge is not None and _bridge.poll() is None:
        return
    # Its waits time out as a matter of course; PyTorch would warn of each.
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ
    environment.pop(ENVIRONMENT)
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
            _bridge.stdin.write(url + "\n")
            _bridge.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and said why
        if answers.readline() != "ready\n":
            raise RegistryError(
                "the bridge of this host, a process that this one started, has ended at its start: "
                "it said why on standard error"
            )

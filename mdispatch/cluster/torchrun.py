"""``MDISPATCH_REGISTRY=cluster:torchrun``: the cluster of a job that torchrun has started.

The engine is the store that torchrun's own agent keeps for the job, at MASTER_ADDR and MASTER_PORT;
this makes no store. Who leads and who brings a bridge along: see joining.py. A group of workers
that torchrun starts anew is a run of its own.
"""

from __future__ import annotations

import re

from ..errors import InvalidArgumentError
from ..facts.opening import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
]


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

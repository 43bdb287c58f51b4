"""What ``MDISPATCH_REGISTRY=cluster:URL`` means in a process: it leads, or it is a worker, and the
first workers of a host bring the host's bridge along.

``role=leader`` or ``role=worker`` in the URL says which. Else a launcher's ``RANK`` does: the
process of rank 0 leads, and so does one without a rank. ``cluster:torchrun`` is the URL of the job
that torchrun has started.
"""

from __future__ import annotations

import os
import threading

from ..errors import MdispatchError, RegistryExistsError
from ..facts.logs import registry_log
from ..facts.registration import BRIDGE
from ..facts.shared import SharedRegistry
from .bridge import Bridge
from .engine import parse_url
from .leading import lead
from .torchrun import url_of_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .engine import ClusterURL

__all__ = ["joined"]

#: Bridges of a host at most that workers bring along: one serves, the others wait.
_BRIDGES = 3
#: Seconds that a worker beside the leader waits for its registry: rank 0 may import as long.
_PATIENCE = 120.0


def joined(text: str) -> SharedRegistry:
    """Opens this host's registry of the run that the URL names, as its leader or as a worker.
    Raises as :func:`lead`; in a worker, as Bridge and Registry.attach.
    """
    if text == "cluster:torchrun":
        text = url_of_job(os.environ)
    url = parse_url(text)
    role = url.acts_as or ("worker" if os.environ.get("RANK", "0") != "0" else "leader")
    if role == "leader":
        return lead(text)
    # On the host of rank 0 the leader's own registry is the one to wait for.
    if os.environ.get("GROUP_RANK") != "0":
        _bring_a_bridge(url)
    return SharedRegistry.attach(url.run, max(_PATIENCE, 2 * url.lease))


def _bring_a_bridge(url: ClusterURL) -> None:
    try:
        bridge = Bridge(url)
    except RegistryExistsError:
        return  # this host has the leader
    there = sum(member[2] == BRIDGE and member[3] for member in bridge.book.members())
    if there > _BRIDGES:  # with this one
        bridge.close()
        return
    thread = threading.Thread(target=_run, args=(bridge,), name="mdispatch bridge", daemon=True)
    thread.start()


def _run(bridge: Bridge) -> None:
    """Until the interpreter ends, or the bridge cannot go on; then another one of the host takes
    over.
    """
    try:
        bridge.run(lambda text: registry_log.tell("bridge: %s", text))
    except MdispatchError as error:
        registry_log.tell("bridge: it has ended: %s", error)

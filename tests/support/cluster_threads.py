"""Leaders, bridges and workers of a cluster as threads of one process, each with a registry of its
own: hosts that cost little.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

from patience import limit

import mdispatch as md
from mdispatch.cluster.bridge import Bridge
from mdispatch.cluster.leading import LeaderRegistry, Publisher

__all__ = ["WAIT", "arrives", "changes_until", "comes", "define", "goes", "host", "leader"]

WAIT = limit(30)


@contextmanager
def leader(url, name):
    """A leader of the run whose registry has another name, so that one process can have several."""
    backing = LeaderRegistry.made(name, 1 << 24)
    backing.publisher = Publisher(url, backing)
    registry = md.Registry(backing)
    try:
        backing.publisher.begin()
        yield registry
    finally:
        registry.close()


@contextmanager
def host(url, name):
    """A host with a bridge; its worker."""
    bridge = Bridge(url, name)
    said: list[str] = []
    thread = threading.Thread(target=bridge.run, args=(said.append,))
    thread.start()
    try:
        with md.Registry.attach(name) as worker:
            worker.said = said
            yield worker
    finally:
        bridge.ended.set()
        thread.join()


def define(registry, name, schema="(int x) -> int"):
    library = md.Library("s", "FRAGMENT", registry=registry)
    library.define(f"{name}{schema}")
    return library


def arrives(worker, name):
    return md.wait_for_def(f"s::{name}", WAIT, registry=worker)


def comes(worker, name):
    """Waits until an operator is there, also when the run is sealed and waits end at once."""
    changes_until(worker, lambda: f"s::{name}" in worker.operators())


def goes(worker, name):
    """Waits until an operator has gone."""
    changes_until(worker, lambda: f"s::{name}" not in worker.operators())


def changes_until(worker, is_so):
    seq, _ = worker.dispatcher.facts.await_change(0, 0)
    while not is_so():
        seq, waited = worker.dispatcher.facts.await_change(seq, WAIT)
        assert waited.seconds < WAIT

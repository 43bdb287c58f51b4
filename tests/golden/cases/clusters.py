"""Golden errors: clusters of several hosts."""

from __future__ import annotations

from golden_stage import Stage, case
from patience import limit

import mdispatch as md
from mdispatch import choices
from mdispatch.cluster import parse_url
from mdispatch.cluster.leading import lead
from mdispatch.cluster.memory import Store, stores


def store_of(stage: Stage) -> tuple[str, Store]:
    url = f"cluster:memory:golden?run={stage.name}"
    return url, stores.setdefault(parse_url(url).shown, Store())


@case("InvalidArgumentError: the URL of a cluster without a run")
def _(stage: Stage) -> None:
    lead("cluster:redis://user:secret@host:6379/0")


@case("InvalidArgumentError: no engine for the URL of a cluster")
def _(stage: Stage) -> None:
    lead(f"cluster:rediz://user:secret@host:6379/0?run={stage.name}")


@case("EngineUnreachableError: the engine does not answer a leader")
def _(stage: Stage) -> None:
    url, store = store_of(stage)
    store.is_cut = True
    try:
        lead(url)
    finally:
        store.is_cut = False


@case("FencedError: another leader has taken over")
def _(stage: Stage) -> None:
    url, store = store_of(stage)
    backing = lead(url)
    publisher = backing.publisher
    assert publisher is not None
    with md.Registry(backing) as registry:
        lib = md.Library("far", "DEF", registry=registry)
        with store.lock:
            store.epoch, store.token = store.epoch + 1, b"another"
            store.leader = b'{"host": "node-2", "pid": 4242}'
            store.lease = float("inf")  # that of the first one may end before it looks
        lib.define("published(int x) -> int")
        publisher._thread.join(limit(30))
        try:
            lib.define("refused(int x) -> int")
        finally:
            store.lease = 0.0


@case("ChoiceScopeError: choose, on a host of a cluster")
def _(stage: Stage) -> None:
    with md.Registry(lead(store_of(stage)[0])) as registry:
        md.choose("shop::scale", (128, "f32"), [16, 32], lambda: 16, registry=registry)


@case("AgreementScopeError: agree, on a host of a cluster")
def _(stage: Stage) -> None:
    with md.Registry(lead(store_of(stage)[0])) as registry:
        md.agree("engine", {"size": 1}, registry=registry)


@case("ChoiceScopeError: choices.load, on a host of a cluster")
def _(stage: Stage) -> None:
    with md.Registry(lead(store_of(stage)[0])) as registry:
        choices.load("/srv/choices.json", "shop::scale", [16, 32], registry=registry)

"""Choices on the hosts of a cluster: each host would choose for itself, so that has to be said."""

from __future__ import annotations

import asyncio

import pytest
from cluster_threads import arrives, define, host, leader
from patience import limit

import mdispatch as md
from mdispatch import choices, errors
from mdispatch.choices.kind import CHOICE
from mdispatch.cluster import parse_url
from mdispatch.cluster.leading import LeaderRegistry, Publisher
from mdispatch.cluster.memory import Store, stores
from mdispatch.cluster.region import HostRegistry
from mdispatch.facts import CLAIM

pytestmark = [pytest.mark.shared, pytest.mark.specification]

TILES = [16, 64]


@pytest.fixture
def url(run):
    return parse_url(f"memory:choices?run={run}&lease={min(4.0, limit(1))}")


def never():
    raise AssertionError("nobody has to decide")


def ask(registry, decide=never, **more):
    return md.choose("s::gemm", (512, 512), TILES, decide, registry=registry, **more)


def ask_async(registry, decide=never, **more):
    async def asks():
        return await md.choose_async(
            "s::gemm", (512, 512), TILES, decide, registry=registry, **more
        )

    return asyncio.run(asks())


def of_choices(registry):
    """The choices in a registry, and the claims on them."""
    there = registry.dispatcher.facts.registrations()[2]
    return [fact for fact in there if fact.kind in (CHOICE, CLAIM) and fact.name.startswith("(")]


@pytest.fixture
def both(url, run):
    """The registries of the leader and of a worker on another host."""
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        library = define(main, "gemm")
        arrives(worker, "gemm")
        yield {"leader": main, "worker": worker}
        library.close()


@pytest.mark.parametrize("how", [ask, ask_async])
@pytest.mark.parametrize("who", ["leader", "worker"])
def test_on_a_host_of_a_cluster_nobody_decides_unless_the_host_is_meant(both, who, how):
    registry = both[who]
    with pytest.raises(errors.ChoiceScopeError) as caught:
        how(registry)
    error = caught.value
    assert (error.operator, error.profile) == ("s::gemm", (512, 512))
    assert error.registry == registry.dispatcher.facts.label
    assert error.here.startswith(__file__)
    assert error.here in str(error)
    assert 'scope="host"' in str(error)
    assert of_choices(registry) == []


def test_what_the_host_has_chosen_holds_there_and_only_for_who_says_so(both):
    main, worker = both["leader"], both["worker"]
    assert ask(main, lambda: 16, scope="host") == 16
    assert ask(worker, lambda: 64, scope="host") == 64
    for registry, tile in ((main, 16), (worker, 64)):
        for how in (ask, ask_async):
            assert how(registry, scope="host") == tile
            with pytest.raises(errors.ChoiceScopeError):  # also where the interpreter knows it
                how(registry)
        assert [each.value for each in choices.made(registry=registry)] == [tile]


def test_a_file_is_loaded_for_a_host_only_where_that_is_said(both, tmp_path):
    main, worker = both["leader"], both["worker"]
    ask(main, lambda: 64, scope="host")
    file = tmp_path / "choices.json"
    assert choices.export(file, registry=main) == 1
    with pytest.raises(errors.ChoiceScopeError) as caught:
        choices.load(file, "s::gemm", TILES, registry=worker)
    assert caught.value.operator == "s::gemm"
    assert str(file) in str(caught.value)
    assert of_choices(worker) == []
    assert choices.load(file, "s::gemm", TILES, registry=worker, scope="host") == 1
    assert ask(worker, scope="host") == 64


@pytest.mark.parametrize("made", [md.Registry.local, md.Registry.create])
def test_where_there_is_one_host_the_two_scopes_are_one(made, tmp_path):
    with made() as registry:
        assert ask(registry, lambda: 16, scope="host") == 16
        assert ask(registry) == ask(registry, scope="registry") == 16
        assert choices.export(tmp_path / "file", registry=registry) == 1
        choices.withdraw(choices.made(registry=registry)[0], registry=registry)
        assert choices.load(tmp_path / "file", "s::gemm", TILES, registry=registry) == 1
        assert ask(registry, scope="host") == 16


@pytest.mark.parametrize("scope", ["rack", "", None, 1, ["host"], "HOST"])
def test_a_scope_that_is_none_is_refused_whatever_is_known(scope, tmp_path):
    with md.Registry.local() as registry:
        for _ in range(2):
            for how in (ask, ask_async):
                with pytest.raises(errors.InvalidArgumentError, match="scope="):
                    how(registry, scope=scope)
            with pytest.raises(errors.InvalidArgumentError, match="scope="):
                choices.load(tmp_path / "none", "s::gemm", TILES, registry=registry, scope=scope)
            ask(registry, lambda: 16)


def test_a_host_whose_bridge_has_not_spoken_yet_is_one_of_a_cluster(run):
    backing = HostRegistry.opened(run, 1 << 24)
    try:
        with md.Registry.attach(run) as worker, pytest.raises(errors.ChoiceScopeError):
            ask(worker)
    finally:
        backing.close()


def test_a_process_that_waits_for_the_lead_is_on_a_host_of_a_cluster_already(run):
    url = parse_url(f"memory:choices?run={run}&lease=0.5")
    store = stores.setdefault(url.shown, Store())
    store.token, store.lease = b"another", float("inf")
    backing = LeaderRegistry.made(run, 1 << 24)
    with md.Registry(backing) as registry:
        with pytest.raises(errors.RegistryExistsError):
            Publisher(url, backing).begin()
        with pytest.raises(errors.ChoiceScopeError):
            ask(registry)

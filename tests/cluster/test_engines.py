"""The engines that mdispatch has, by the checks for every engine."""

from __future__ import annotations

import tracemalloc

import pytest
from redis_server import RedisServer
from torch_store import TorchStore

from mdispatch.cluster import Unreachable, connect, parse_url
from mdispatch.cluster.conformance import CHECKS

pytestmark = [pytest.mark.shared, pytest.mark.specification]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_in_memory(check, run):
    url = parse_url(f"memory:conformance?run={run}")
    check(lambda: connect(url))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_redis(check, run, a_server: RedisServer):
    url = parse_url(a_server.url(run, lease=10))
    check(lambda: connect(url))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_store_of_pytorch(check, run, a_store: TorchStore):
    url = parse_url(a_store.url(run))
    check(lambda: connect(url))


def test_an_answer_that_is_too_long_is_refused_while_it_comes(
    run, a_server: RedisServer, monkeypatch
):
    url = parse_url(a_server.url(run, lease=10))
    from mdispatch.cluster import redis_engine  # redis-py is there, since the server is

    monkeypatch.setattr(redis_engine, "_LONGEST_ANSWER", 1 << 20)
    engine = connect(url)
    a_server.client().xadd(f"mdispatch:{{{run}}}:log", {"e": bytes(8 << 20)}, "1-1")
    tracemalloc.start()
    try:
        with pytest.raises(Unreachable, match="longer than"):
            engine.read((0, 0), 10, 0)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert engine.get("nothing") is None  # the connection is made anew
    engine.close()

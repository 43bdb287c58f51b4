"""The engines that mdispatch has, by the checks for every engine."""

from __future__ import annotations

import pytest
from redis_server import RedisServer

from mdispatch.cluster import connect, parse_url
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

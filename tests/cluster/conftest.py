"""Clusters: servers and hosts of a test's own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from redis_server import RedisServer
from torch_store import TorchStore

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.waits]

_runs = itertools.count()


@pytest.fixture(scope="session")
def a_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that many tests use, each a run of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def server(tmp_path) -> Iterator[RedisServer]:  # type: ignore[no-untyped-def]
    """A server that the test may kill."""
    server = RedisServer(tmp_path)
    yield server
    server.close()


@pytest.fixture(scope="session")
def a_store() -> Iterator[TorchStore]:
    """A TCPStore that many tests use, each a run of its own."""
    store = TorchStore()
    yield store
    store.close()


@pytest.fixture
def run() -> str:
    return f"run-{os.getpid()}-{next(_runs)}"

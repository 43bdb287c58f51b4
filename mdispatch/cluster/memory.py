"""An engine in the memory of one process, for tests. ``memory:NAME?run=RUN``: engines of one name
and run are one.
"""

from __future__ import annotations

import copy
from threading import Condition
from time import monotonic

from .engine import LONGEST, ClusterURL, Fenced, Forgot, Status, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Store:
    """What engines of one name share. ``lock`` guards all of it and is rung at each change."""

    def __init__(self) -> None:
        self.lock = Condition()
        self.is_cut = False  # nobody gets an answer
        self.epoch = 0
        self.token = self.leader = self.accepted = b""
        self.lease = 0.0
        self.tail = (0, 0)
        self.log: list[tuple[int, int, bytes]] = []
        self.values: dict[str, bytes] = {}
        self.records: dict[str, tuple[float, bytes]] = {}

    def backup(self) -> dict[str, object]:
        """What is stored now, for :meth:`restore`."""
        with self.lock:
            kept = dict(vars(self))
            del kept["lock"], kept["is_cut"]
            return copy.deepcopy(kept)

    def restore(self, backup: dict[str, object]) -> None:
        """Forgets all that came since."""
        with self.lock:
            vars(self).update(copy.deepcopy(backup))
            self.lock.notify_all()


#: By name and run. A test ends with its process.
stores: dict[str, Store] = {}


class MemoryEngine:
    """See :class:`Engine`."""

    def __init__(self, url: ClusterURL) -> None:
        self.store = stores.setdefault(url.shown, Store())

    def _answers(self) -> None:
        if self.store.is_cut:
            raise Unreachable("it was cut off")

    def _fence(self, epoch: int, token: bytes) -> None:
        self._answers()
        store = self.store
        if store.epoch < epoch:
            raise Forgot
        if store.epoch > epoch or store.token != token:
            raise Fenced

    def acquire(self, token: bytes, leader: bytes, ttl: float, above: int) -> int | None:
        store = self.store
        with store.lock:
            self._answers()
            if store.token != token and store.lease > monotonic():
                return None
            store.epoch = max(store.epoch, above) + 1
            store.token, store.leader, store.lease = token, leader, monotonic() + ttl
            return store.epoch

    def renew(self, epoch: int, token: bytes, ttl: float, tail: tuple[int, int]) -> None:
        with self.store.lock:
            self._fence(epoch, token)
            if self.store.tail != tail:
                raise Forgot
            self.store.lease = monotonic() + ttl

    def release(self, epoch: int, token: bytes) -> None:
        with self.store.lock:
            self._fence(epoch, token)
            self.store.lease = 0.0

    def append(
        self, epoch: int, token: bytes, after: tuple[int, int] | None, seq: int, entry: bytes
    ) -> None:
        store = self.store
        with store.lock:
            self._fence(epoch, token)
            if store.tail == (epoch, seq) and store.log and store.log[-1] == (epoch, seq, entry):
                return
            if store.tail >= (epoch, seq) or (after is not None and store.tail != after):
                raise Forgot
            store.log.append((epoch, seq, entry))
            store.tail = (epoch, seq)
            store.lock.notify_all()

    def read(
        self, after: tuple[int, int], limit: int, timeout: float
    ) -> list[tuple[int, int, bytes]]:
        store, deadline = self.store, monotonic() + timeout
        with store.lock:
            while True:
                self._answers()
                found = [*(each for each in store.log if each[:2] > after)]
                left = deadline - monotonic()
                if found or left <= 0:
                    return found[:limit]
                store.lock.wait(left)

    def put(self, epoch: int, token: bytes, key: str, value: bytes) -> None:
        with self.store.lock:
            self._fence(epoch, token)
            self.store.values[key] = value

    def get(self, key: str) -> bytes | None:
        with self.store.lock:
            self._answers()
            value = self.store.values.get(key)
            return None if value is None or len(value) > LONGEST else value

    def drop(self, epoch: int, token: bytes, keys: Sequence[str]) -> None:
        with self.store.lock:
            self._fence(epoch, token)
            for key in keys:
                self.store.values.pop(key, None)

    def trim(self, epoch: int, token: bytes, upto: tuple[int, int]) -> None:
        with self.store.lock:
            self._fence(epoch, token)
            self.store.log = [*(each for each in self.store.log if each[:2] > upto)]

    def status(self) -> Status:
        with self.store.lock:
            self._answers()
            store = self.store
            leader = store.leader if store.lease > monotonic() else b""
            return Status(store.epoch, leader, store.tail, store.accepted)

    def accept(self, record: bytes) -> None:
        with self.store.lock:
            self._answers()
            self.store.accepted = record

    def announce(self, host: str, record: bytes, ttl: float) -> None:
        with self.store.lock:
            self._answers()
            self.store.records[host] = monotonic() + ttl, record

    def hosts(self) -> dict[str, bytes]:
        with self.store.lock:
            self._answers()
            now = monotonic()
            living = (each for each in self.store.records.items() if each[1][0] > now)
            return {name: kept for name, (_, kept) in living}

    def close(self) -> None:
        pass

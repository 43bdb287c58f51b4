"""PyTorch's Store as an engine: ``torch://HOST:PORT?run=RUN``, the TCPStore that a job has anyhow.

A Store changes one key in one step (``compare_set``), keeps no time and forgets nothing by itself.
So all that has to hold together is the value of one key, ``lead``: the epoch, its token, how often
it was renewed, and how many entries the log has. Whoever writes first writes what that will lead
to, then ``lead`` itself:

    lead        see _Lead: the fence. An entry is in the log once ``lead`` counts it.
    log/N       the entry of number N, 1 for the first: epoch, sequence, token, bytes
    bell/N      set when ``lead`` counts N entries; for waiting only
    value/KEY   epoch and token of who wrote it, and the bytes; empty where it was dropped
    hosts       the names of hosts, one on each line
    host/NAME   how long the record holds, a number that changes, and the record

A former leader, however late it goes on, changes nothing that anybody reads: each of its writes is
a ``compare_set`` on what it had seen before it looked at the fence. Whoever leads after it has
changed ``lead``, and changes each slot and value that it uses.

Nobody's clock is in the store. Who looks notes since when, by its own clock, a value has not
changed; so somebody that has just come takes a lease, or a host's record, for alive until as long
as it lasts has passed.

A wait for ``bell/N`` that nobody rings (the leader died before it) ends with its time, and then
``lead`` is read: late by that, never lost.

A call to a Store has no time limit of its own where the server is stopped. So each call of the
engine runs in a thread of the engine, one after the other; where that gives no answer in time, the
thread and its connection are left behind, and the next call makes new ones. ``compare_set`` with
nothing and nothing is how to read a key without waiting for it: PyTorch gives what is there.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..errors import InvalidArgumentError
from .engine import LONGEST, ClusterURL, Fenced, Forgot, Status, Unreachable
from .log import Garbled, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_T = TypeVar("_T")

_ENTRY = struct.Struct(">QQ16s")  # epoch, sequence, token
_VALUE = struct.Struct(">Q16s")  # epoch, token
_RECORD = struct.Struct(">dQ")  # seconds, what changes
_LONGEST_LEAD, _MOST_HOSTS, _MOST_LEFT = 1 << 16, 10_000, 8


@dataclass(frozen=True, slots=True)
class _Lead:
    """The value of ``lead``. ``starts`` has, for each epoch that has entries, its number, and
    number and sequence of its first entry that is there: within an epoch both go up by one.
    """

    epoch: int = 0
    token: str = ""
    leader: str = ""
    ttl: float = 0.0  # 0: it was given back
    beat: int = 0
    count: int = 0  # the number of the last entry
    first: int = 1  # that of the first that is not trimmed
    tail: tuple[int, int] = (0, 0)
    starts: tuple[tuple[int, int, int], ...] = ()

    def packed(self) -> bytes:
        told = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def read(cls, data: bytes) -> _Lead:
        """Garbled."""
        if not data:
            return cls()
        told = read_json(data, _LONGEST_LEAD)
        try:
            numbers = {key: int(told[key]) for key in ("epoch", "beat", "count", "first")}  # type: ignore[call-overload]
            epoch, seq = map(int, told["tail"])  # type: ignore[call-overload]
            starts = tuple((int(e), int(n), int(s)) for e, n, s in told["starts"])  # type: ignore[attr-defined]
            ttl = float(told["ttl"])  # type: ignore[arg-type]
            bytes.fromhex(str(told["token"])), bytes.fromhex(str(told["leader"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Garbled("the record of who leads is none") from None
        if not 0 <= ttl <= 3600 or min(*numbers.values(), epoch, seq) < 0:
            raise Garbled("the record of who leads is none")
        token, leader = str(told["token"]), str(told["leader"])
        return cls(**numbers, token=token, leader=leader, ttl=ttl, tail=(epoch, seq), starts=starts)

    def number_behind(self, after: tuple[int, int]) -> int:
        """The number of the first entry behind a position that is there."""
        behind = self.count + 1
        for epoch, number, seq in reversed(self.starts):
            if epoch < after[0]:
                break
            if epoch == after[0]:
                return min(behind, number + max(0, after[1] - seq + 1))
            behind = number
        return behind


class _Caller:
    """A connection, and the thread that alone uses it."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._asked: SimpleQueue[Callable[[Any], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mdispatch store", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def ask(self, call: Callable[[Any], _T], timeout: float) -> _T:
        self._asked.put(call)
        try:
            found, error = self._answers.get(timeout=timeout)
        except Empty:
            self.end()  # it ends once its call has
            raise Unreachable(f"no answer within {timeout:.0f} s") from None
        if error is not None:
            raise error
        answer: _T = found
        return answer

    def end(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        store: Any = None
        while (call := self._asked.get()) is not None:
            try:
                if store is None:
                    store = self._connect()
                self._answers.put((call(store), None))
            except BaseException as error:
                self._answers.put((None, error))


class TorchEngine:
    """See :class:`Engine`."""

    def __init__(self, url: ClusterURL) -> None:
        try:
            distributed = import_module("torch.distributed")
        except ImportError as error:
            raise ImportError(f"{url.shown} needs PyTorch: {error}") from None
        if not distributed.is_available():
            raise ImportError(f"{url.shown} needs torch.distributed, and this PyTorch has none")
        self._torch: Any = distributed
        try:
            parts = urlsplit(url.engine)
            self._address = parts.hostname or "", parts.port or 0
        except ValueError:
            self._address = "", 0
        if not all(self._address):
            raise InvalidArgumentError(f"{url.shown}: it is torch://HOST:PORT?run=NAME")
        self._run, self._lease = url.run, url.lease
        self._caller: _Caller | None = None
        self._left: list[_Caller] = []
        #: Since when a key has had its value, as far as is known here.
        self._since: dict[str, tuple[bytes, float]] = {}

    def _connect(self) -> Any:
        host, port = self._address
        store = self._torch.TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._lease),
        )
        return self._torch.PrefixStore(f"mdispatch/{self._run}", store)

    def _ask(self, call: Callable[[Any], _T], timeout: float = 0.0) -> _T:
        if self._caller is None:
            self._left = [each for each in self._left if each.is_running]
            if len(self._left) >= _MOST_LEFT:
                raise Unreachable(f"{_MOST_LEFT} connections wait for an answer")
            self._caller = _Caller(self._connect)
        try:
            return self._caller.ask(call, timeout + self._lease)
        except Unreachable:
            self._left.append(self._caller)
            self._caller = None
            raise
        except Garbled as error:
            raise Unreachable(f"what it has makes no sense: {error}") from None
        except (RuntimeError, OSError, ValueError) as error:
            self._end()
            why = str(error).partition("\n")[0][:300]
            raise Unreachable(f"{type(error).__name__}: {why}") from None

    def _end(self) -> None:
        if self._caller is not None:
            self._caller.end()
            self._caller = None

    # --- steps: what the thread does with the store

    def _held(self, store: Any) -> tuple[bytes, _Lead]:
        data = _get(store, "lead")
        return data, _Lead.read(data)

    def _fenced(self, store: Any, epoch: int, token: bytes) -> tuple[bytes, _Lead]:
        data, held = self._held(store)
        if held.epoch < epoch:
            raise Forgot
        if held.epoch > epoch or held.token != token.hex():
            raise Fenced
        return data, held

    def _change(self, epoch: int, token: bytes, changed: Callable[[_Lead], _Lead]) -> None:
        def call(store: Any) -> None:
            while True:
                data, held = self._fenced(store, epoch, token)
                if _set(store, "lead", data, changed(held).packed()):
                    return

        self._ask(call)

    def _is_over(self, key: str, data: bytes, ttl: float) -> bool:
        """Whether a value has not changed for so long, as far as was seen from here."""
        now = monotonic()
        known, since = self._since.get(key, (b"", now))
        if known != data:
            since = now
        self._since[key] = data, since
        return now - since >= ttl

    # --- the engine

    def acquire(self, token: bytes, leader: bytes, ttl: float, above: int) -> int | None:
        def call(store: Any) -> int | None:
            data, held = self._held(store)
            is_mine = held.token == token.hex()
            if held.ttl and not is_mine and not self._is_over("lead", data, held.ttl):
                return None
            epoch = max(held.epoch, above) + 1
            new = replace(
                held, epoch=epoch, token=token.hex(), leader=leader.hex(), ttl=ttl, beat=0
            )
            return epoch if _set(store, "lead", data, new.packed()) else None

        return self._ask(call)

    def renew(self, epoch: int, token: bytes, ttl: float, tail: tuple[int, int]) -> None:
        def changed(held: _Lead) -> _Lead:
            if held.tail != tail:
                raise Forgot
            return replace(held, ttl=ttl, beat=held.beat + 1)

        self._change(epoch, token, changed)

    def release(self, epoch: int, token: bytes) -> None:
        self._change(epoch, token, lambda held: replace(held, ttl=0.0, beat=held.beat + 1))

    def append(
        self, epoch: int, token: bytes, after: tuple[int, int] | None, seq: int, entry: bytes
    ) -> None:
        packed = _ENTRY.pack(epoch, seq, token) + entry

        def call(store: Any) -> None:
            while True:
                data, held = self._fenced(store, epoch, token)
                if held.tail == (epoch, seq):
                    if _get(store, f"log/{held.count}") != packed:
                        raise Forgot
                    store.set(f"bell/{held.count}", b"")  # the call before may have come this far
                    return
                has_gap = held.tail[0] == epoch and seq != held.tail[1] + 1
                if (
                    held.tail > (epoch, seq)
                    or has_gap
                    or (after is not None and held.tail != after)
                ):
                    raise Forgot
                number = held.count + 1
                # What is there was never counted: a former leader's, or our last attempt's.
                slot = _get(store, f"log/{number}")
                if _get(store, "lead") != data:  # looked at after the slot: see above
                    continue
                if slot != packed and not _set(store, f"log/{number}", slot, packed):
                    continue
                new = replace(held, count=number, tail=(epoch, seq), beat=held.beat + 1)
                if not held.starts or held.starts[-1][0] != epoch:
                    new = replace(new, starts=(*held.starts, (epoch, number, seq)))
                if _set(store, "lead", data, new.packed()):
                    store.set(f"bell/{number}", b"")
                    return

        self._ask(call)

    def read(
        self, after: tuple[int, int], limit: int, timeout: float
    ) -> list[tuple[int, int, bytes]]:
        timeout = min(timeout, self._lease)

        def call(store: Any) -> list[tuple[int, int, bytes]]:
            held = self._held(store)[1]
            first = held.number_behind(after)
            if first <= held.count:
                return self._entries(store, held, first, min(limit, 32))
            if timeout <= 0:
                return []
            number = held.count + 1
            try:
                store.wait([f"bell/{number}"], timedelta(seconds=max(timeout, 0.001)))
            except self._torch.DistStoreError:
                held = self._held(store)[1]  # a bell that nobody rang
                number = held.number_behind(after)
                if number > held.count:
                    return []
                return self._entries(store, held, number, min(limit, 32))
            # The bell says that it was counted, so it is what it will be.
            found = _entry(_get(store, f"log/{number}"))
            return [found] if found is not None and found[:2] > after else []

        return self._ask(call, timeout)

    def _entries(
        self, store: Any, held: _Lead, first: int, limit: int
    ) -> list[tuple[int, int, bytes]]:
        numbers = range(first, min(held.count, first + limit - 1) + 1)
        found = [_entry(_get(store, f"log/{number}")) for number in numbers]
        return [each for each in found if each is not None]  # None: trimmed meanwhile

    def put(self, epoch: int, token: bytes, key: str, value: bytes) -> None:
        self._put(epoch, token, {key: _VALUE.pack(epoch, token) + value})

    def _put(self, epoch: int, token: bytes, values: dict[str, bytes]) -> None:
        def call(store: Any) -> None:
            for key, value in values.items():
                while True:
                    before = _get(store, f"value/{key}")
                    self._fenced(store, epoch, token)  # after that was read
                    if before == value or _set(store, f"value/{key}", before, value):
                        break

        self._ask(call)

    def get(self, key: str) -> bytes | None:
        value = self._ask(lambda store: _get(store, f"value/{key}"))
        size = len(value) - _VALUE.size
        return value[_VALUE.size :] if 0 <= size <= LONGEST else None

    def drop(self, epoch: int, token: bytes, keys: Sequence[str]) -> None:
        self._put(epoch, token, dict.fromkeys(keys, b""))

    def trim(self, epoch: int, token: bytes, upto: tuple[int, int]) -> None:
        trimmed = range(0)

        def changed(held: _Lead) -> _Lead:
            nonlocal trimmed
            first = max(held.first, min(held.number_behind(upto), held.count + 1))
            trimmed = range(held.first, first)
            starts = [each for each in held.starts if each[1] >= first]
            cut = [each for each in held.starts if each[1] < first]
            if cut and first <= held.count and not (starts and starts[0][1] == first):
                last, number, seq = cut[-1]
                starts.insert(0, (last, first, seq + first - number))
            return replace(held, first=first, starts=tuple(starts), beat=held.beat + 1)

        self._change(epoch, token, changed)

        def forget(store: Any) -> None:
            for number in trimmed:  # nobody counts them any more
                store.delete_key(f"log/{number}")
                store.delete_key(f"bell/{number}")

        self._ask(forget)

    def status(self) -> Status:
        def call(store: Any) -> Status:
            data, held = self._held(store)
            is_over = not held.ttl or self._is_over("lead", data, held.ttl)
            leader = b"" if is_over else bytes.fromhex(held.leader)
            return Status(held.epoch, leader, held.tail, _get(store, "accepted"))

        return self._ask(call)

    def accept(self, record: bytes) -> None:
        self._ask(lambda store: store.set("accepted", record))

    def announce(self, host: str, record: bytes, ttl: float) -> None:
        beat = int.from_bytes(os.urandom(7))

        def call(store: Any) -> None:
            store.set(f"host/{host}", _RECORD.pack(ttl, beat) + record)
            while True:
                data = _get(store, "hosts")
                names = data.decode("ascii", "replace").split("\n")
                if (host in names) == (ttl > 0):
                    return
                if ttl > 0:
                    names = [*names[-_MOST_HOSTS:], host]
                else:
                    names.remove(host)
                if _set(store, "hosts", data, "\n".join(names).encode()):
                    return

        self._ask(call)

    def hosts(self) -> dict[str, bytes]:
        def call(store: Any) -> dict[str, bytes]:
            names = _get(store, "hosts").decode("ascii", "replace").split("\n")[-_MOST_HOSTS:]
            keys = [f"host/{name}" for name in names if name]
            # A name is added after its record, and no record's key is ever deleted.
            found: dict[str, bytes] = {}
            for key, data in zip(keys, store.multi_get(keys) if keys else (), strict=True):
                if len(data) < _RECORD.size:
                    continue
                ttl = _RECORD.unpack_from(data)[0]
                if 0 < ttl <= 3600 and not self._is_over(key, data, ttl):
                    found[key.removeprefix("host/")] = data[_RECORD.size :]
            return found

        return self._ask(call)

    def close(self) -> None:
        self._end()


def _get(store: Any, key: str) -> bytes:
    """The value of a key, b"" where there is none: without waiting for it."""
    found: bytes = store.compare_set(key, b"", b"")
    return found


def _set(store: Any, key: str, before: bytes, value: bytes) -> bool:
    """Sets a key that has this value. Whether it did."""
    return bool(store.compare_set(key, before, value) == value) and before != value


def _entry(data: bytes) -> tuple[int, int, bytes] | None:
    if len(data) < _ENTRY.size:
        return None
    epoch, seq, _ = _ENTRY.unpack_from(data)
    return epoch, seq, data[_ENTRY.size :]

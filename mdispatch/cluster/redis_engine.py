"""Redis and Valkey as an engine, by redis-py: ``pip install 'mdispatch[redis]'``.

The log is a stream whose ids are ``epoch-sequence``. A script looks at the fence and writes, in one
step of the server. Keys begin with ``mdispatch:{RUN}:``; the braces keep the keys of one run on one
node. The client's URL has the password, TLS and the rest, as redis-py reads it.

An answer is refused before it is kept where it would be longer than ``_LONGEST_ANSWER``: the bytes
that come between two commands are counted where they are received. So is the time: who sends a byte
now and then does not answer.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.retry import Retry

from .engine import LONGEST, ClusterURL, Fenced, Forgot, Status, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_ANSWER = 64 * LONGEST
#: Bytes of an answer that have to come in each second beyond the socket's timeout.
_SLOWEST = 1 << 16

# Of what writes, KEYS are lead, lease, log, and of _ANNOUNCE hosts, seen; ARGV[1], [2] are epoch
# and token, where there is a fence. Of what only reads they are in ARGV: a user who may only read
# the keys may run no script with KEYS.
_FENCE = """
local held = redis.call('HMGET', KEYS[1], 'epoch', 'token', 'tail')
local epoch, tail = tonumber(held[1] or '0'), held[3] or '0-0'
if epoch < tonumber(ARGV[1]) then return 'FORGOT' end
if epoch > tonumber(ARGV[1]) or held[2] ~= ARGV[2] then return 'FENCED' end
"""
_ACQUIRE = """
local lease = redis.call('GET', KEYS[2])
if lease and string.sub(lease, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local held = redis.call('HGET', KEYS[1], 'epoch')
local epoch = math.max(tonumber(held or '0'), tonumber(ARGV[4])) + 1
redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch), 'token', ARGV[1])
redis.call('SET', KEYS[2], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return epoch
"""
_RENEW = (
    _FENCE
    + """
if tail ~= ARGV[4] then return 'FORGOT' end
redis.call('SET', KEYS[2], ARGV[2] .. ARGV[5], 'PX', ARGV[3])
return 'OK'
"""
)
_RELEASE = _FENCE + "redis.call('DEL', KEYS[2]) return 'OK'"
_APPEND = (
    _FENCE
    + """
if tail == ARGV[4] then
    local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
    if last and last[1] == ARGV[4] and last[2][2] == ARGV[5] then return 'OK' end
    return 'FORGOT'
end
if ARGV[3] ~= '' and tail ~= ARGV[3] then return 'FORGOT' end
local added = redis.pcall('XADD', KEYS[3], ARGV[4], 'e', ARGV[5])
if type(added) == 'table' and added.err then return 'FORGOT' end
redis.call('HSET', KEYS[1], 'tail', ARGV[4])
return 'OK'
"""
)
_PUT = _FENCE + "redis.call('SET', ARGV[3], ARGV[4]) return 'OK'"
_DROP = _FENCE + "for i = 3, #ARGV do redis.call('DEL', ARGV[i]) end return 'OK'"
_TRIM = _FENCE + "redis.call('XTRIM', KEYS[3], 'MINID', ARGV[3]) return 'OK'"
_STATUS = """
local held = redis.call('HMGET', ARGV[1], 'epoch', 'tail')
return {held[1] or '0', redis.call('GET', ARGV[2]) or '', held[2] or '0-0',
    redis.call('GETRANGE', ARGV[3], 0, 4096)}
"""
# The engine's clock, and no other.
_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
_ANNOUNCE = (
    _NOW
    + """
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
    redis.call('HDEL', KEYS[1], name)
    redis.call('ZREM', KEYS[2], name)
end
if tonumber(ARGV[3]) <= 0 then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
end
return 'OK'
"""
)
_HOSTS = (
    _NOW
    + """
local found = {}
local names = redis.call('ZRANGEBYSCORE', ARGV[2], '(' .. now, '+inf', 'LIMIT', 0, 10000)
for _, name in ipairs(names) do
    local record = redis.call('HGET', ARGV[1], name)
    if record and #record <= 65536 then
        found[#found + 1] = name
        found[#found + 1] = record
    end
end
return found
"""
)


class _Counted:
    """A socket that refuses to receive more between two sends than an answer may have, or for
    longer than it may take.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._begin()

    def _begin(self) -> None:
        self._left, self._asked = _LONGEST_ANSWER, monotonic()

    def sendall(self, *args: Any) -> Any:
        self._begin()
        return self._sock.sendall(*args)

    def recv(self, size: int, *args: Any) -> Any:
        data = self._sock.recv(size, *args)
        self._count(len(data))
        return data

    def recv_into(self, *args: Any) -> Any:
        size = self._sock.recv_into(*args)
        self._count(size)
        return size

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ConnectionError(f"the answer is longer than {_LONGEST_ANSWER} bytes")
        took, came = monotonic() - self._asked, _LONGEST_ANSWER - self._left
        if took > (self._sock.gettimeout() or took) + came / _SLOWEST:
            raise ConnectionError(f"of the answer {came} bytes came within {took:.0f} s")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Plain(Connection):
    def _connect(self) -> Any:
        return _Counted(super()._connect())  # type: ignore[no-untyped-call]


class _Tls(SSLConnection):
    def _connect(self) -> Any:
        return _Counted(super()._connect())  # type: ignore[no-untyped-call]


class _Unix(UnixDomainSocketConnection):
    def _connect(self) -> Any:
        return _Counted(super()._connect())  # type: ignore[no-untyped-call]


_CLASSES: dict[Any, type] = {SSLConnection: _Tls, UnixDomainSocketConnection: _Unix}


class RedisEngine:
    """See :class:`Engine`."""

    def __init__(self, url: ClusterURL) -> None:
        self.shown = url.shown
        self._patience = url.lease
        prefix = f"mdispatch:{{{url.run}}}:"
        self._prefix = prefix
        self._written = [prefix + name for name in ("lead", "lease", "log")]
        self._told = [prefix + name for name in ("hosts", "seen")]
        self._read = [prefix + name for name in ("lead", "lease", "accepted")]
        self._record = b""
        options: dict[str, Any] = dict(parse_url(url.engine))  # type: ignore[no-untyped-call]
        options["connection_class"] = _CLASSES.get(options.get("connection_class"), _Plain)
        options.setdefault("socket_connect_timeout", url.lease)
        # Longer than any wait in read(): see there.
        options.setdefault("socket_timeout", 2 * url.lease)
        options["decode_responses"] = False
        # This module's caller repeats what it has to.
        options["retry"] = Retry(NoBackoff(), 0)
        self._pool = ConnectionPool(**options)
        self._connection: Any = None

    def _ask(self, *command: Any) -> Any:
        try:
            if self._connection is None:
                self._connection = self._pool.get_connection()
            # Not by the client: what it does around these two takes longer than they do. After
            # disconnect() the connection connects again by itself.
            self._connection.send_command(*command)
            return self._connection.read_response()
        except (redis.RedisError, OSError) as error:
            self._pool.disconnect()
            # Its text, and not the error: the frames behind that one know the password.
            raise Unreachable(f"{type(error).__name__}: {error}") from None

    def _run(self, script: str, keys: Sequence[str], *args: Any) -> Any:
        return self._ask("EVAL", script, len(keys), *keys, *args)

    def _fenced(self, script: str, *args: Any) -> None:
        answer = self._run(script, self._written, *args)
        if answer == b"FENCED":
            raise Fenced
        if answer == b"FORGOT":
            raise Forgot
        if answer != b"OK":
            raise Unreachable("it gave an answer that makes no sense")

    def acquire(self, token: bytes, leader: bytes, ttl: float, above: int) -> int | None:
        self._record = leader
        epoch = self._run(_ACQUIRE, self._written, token, leader, int(ttl * 1000), above)
        return int(epoch) or None

    def renew(self, epoch: int, token: bytes, ttl: float, tail: tuple[int, int]) -> None:
        self._fenced(_RENEW, epoch, token, int(ttl * 1000), _id(tail), self._record)

    def release(self, epoch: int, token: bytes) -> None:
        self._fenced(_RELEASE, epoch, token)

    def append(
        self, epoch: int, token: bytes, after: tuple[int, int] | None, seq: int, entry: bytes
    ) -> None:
        follows = "" if after is None else _id(after)
        self._fenced(_APPEND, epoch, token, follows, _id((epoch, seq)), entry)

    def read(
        self, after: tuple[int, int], limit: int, timeout: float
    ) -> list[tuple[int, int, bytes]]:
        command: list[Any] = ["XREAD", "COUNT", min(limit, 32)]
        if timeout > 0:
            # Less than the time that the socket waits for an answer.
            command += ["BLOCK", max(1, int(min(timeout, self._patience) * 1000))]
        answer = self._ask(*command, "STREAMS", self._written[2], _id(after))
        if not answer:
            return []
        try:
            # A list of streams, or a mapping: by the version of the protocol.
            streams = answer.values() if isinstance(answer, dict) else [each[1] for each in answer]
            (entries,) = streams
            while len(entries) == 1 and entries[0] and isinstance(entries[0][0], (list, tuple)):
                entries = entries[0]
            return [(*_position(each[0]), _only_value(each[1])) for each in entries]
        except (TypeError, ValueError, IndexError, KeyError):
            raise Unreachable("it gave entries that make no sense") from None

    def put(self, epoch: int, token: bytes, key: str, value: bytes) -> None:
        self._fenced(_PUT, epoch, token, self._prefix + key, value)

    def get(self, key: str) -> bytes | None:
        value: bytes = self._ask("GETRANGE", self._prefix + key, 0, LONGEST)
        return None if not value or len(value) > LONGEST else value

    def drop(self, epoch: int, token: bytes, keys: Sequence[str]) -> None:
        self._fenced(_DROP, epoch, token, *(self._prefix + key for key in keys))

    def trim(self, epoch: int, token: bytes, upto: tuple[int, int]) -> None:
        self._fenced(_TRIM, epoch, token, _id((upto[0], upto[1] + 1)))

    def status(self) -> Status:
        epoch, lease, tail, accepted = self._run(_STATUS, (), *self._read)
        try:
            return Status(int(epoch), lease[_TOKEN:], _position(tail), accepted)
        except ValueError:
            raise Unreachable("it gave a status that makes no sense") from None

    def accept(self, record: bytes) -> None:
        self._ask("SET", self._read[2], record)

    def announce(self, host: str, record: bytes, ttl: float) -> None:
        self._run(_ANNOUNCE, self._told, host, record, int(ttl * 1000))

    def hosts(self) -> dict[str, bytes]:
        found: list[bytes] = self._run(_HOSTS, (), *self._told)
        names = [name.decode("ascii", "replace") for name in found[::2]]
        return dict(zip(names, found[1::2], strict=False))

    def close(self) -> None:
        self._pool.disconnect()


_TOKEN = 16  # bytes: leading.py makes them


def _id(position: tuple[int, int]) -> str:
    return f"{position[0]}-{position[1]}"


def _position(stream_id: bytes) -> tuple[int, int]:
    epoch, _, seq = stream_id.partition(b"-")
    return int(epoch), int(seq)


def _only_value(fields: Any) -> bytes:
    value = fields[b"e"] if isinstance(fields, dict) else fields[1]
    if not isinstance(value, bytes):
        raise TypeError
    return value

"""What keeps the log of a cluster: the interface of an engine, and how one is found.

An engine is chosen by the scheme of its URL, among the entry points of the group
``mdispatch.engines``: a callable that takes a :class:`ClusterURL` and returns an :class:`Engine`.
``conformance.py`` has the checks that a driver must pass.

All that an engine has to do in one step is the *fence*: to look at epoch and token and to write, or
not to write. Nothing else above it relies on the engine's memory: what it forgets is found by the
chain (log.py) and by the tail (:meth:`Engine.renew`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..errors import InvalidArgumentError
from ..errors.words import nearest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClusterURL", "Engine", "Fenced", "Forgot", "Status", "Unreachable", "connect"]
__all__ += ["parse_url"]

#: What an engine's value has at most, in bytes: an entry, a chunk, a manifest, a host's record.
LONGEST = 1 << 20

_RUN = re.compile(r"(?=.{1,128}$)[A-Za-z0-9_-][A-Za-z0-9_.-]*(@[A-Za-z0-9_.+-]+)?")
_SECRETS = ("password", "ssl_password")
_OURS = ("run", "lease", "role", "policy")


class Fenced(Exception):
    """Another leader holds the engine: nothing was written."""


class Forgot(Exception):
    """The engine does not have what it had acknowledged: nothing was written."""


class Unreachable(Exception):
    """The engine did not answer, or not in time. What was asked for may have been done."""


@dataclass(frozen=True, slots=True, repr=False)
class ClusterURL:
    """An engine and a run in it. Its texts for people have no password."""

    scheme: str
    engine: str  #: the URL for the client, password and all
    shown: str  #: the same without password
    run: str
    lease: float  #: seconds after which a leader that is silent has lost its lead
    acts_as: str = ""  #: "leader" or "worker": what a process is that has it in its environment
    holds: bool = True  #: whether a bridge holds a leader of other code until a person accepts it

    def __repr__(self) -> str:
        return f"ClusterURL({self.shown})"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Status:
    """What an engine says of a run: the highest epoch, the record of who leads now (empty: nobody
    does), epoch and sequence of the last entry, and what a person has accepted last.
    """

    epoch: int
    leader: bytes
    tail: tuple[int, int]
    accepted: bytes = b""


class Engine(Protocol):
    """Keeps the log of one run. Each call ends within about the lease, or raises Unreachable; any
    call may. One thread uses an engine at a time.

    ``token`` tells leaders apart: an engine that forgot may give one epoch twice. A call with a
    ``token`` raises Fenced where the engine's epoch is higher, or as high with another token, and
    Forgot where it is lower; then nothing was written.
    """

    def acquire(self, token: bytes, leader: bytes, ttl: float, above: int) -> int | None:
        """Takes the lead for ``ttl`` seconds. Returns the epoch, higher than all before it and than
        ``above``; None where somebody else leads. ``leader`` is his record in :meth:`status`.
        """

    def renew(self, epoch: int, token: bytes, ttl: float, tail: tuple[int, int]) -> None:
        """Keeps the lead. Forgot, where ``tail`` is not epoch and sequence of the last entry."""

    def release(self, epoch: int, token: bytes) -> None:
        """Ends the lead; the epoch stays."""

    def append(
        self, epoch: int, token: bytes, after: tuple[int, int] | None, seq: int, entry: bytes
    ) -> None:
        """Adds an entry. ``after`` is the tail that it follows, None for the first one of an epoch,
        which follows any. The same call again is no change. Forgot, where the tail is another.
        """

    def read(
        self, after: tuple[int, int], limit: int, timeout: float
    ) -> list[tuple[int, int, bytes]]:
        """Up to ``limit`` entries behind a position, in their order, with epoch and sequence. Waits
        up to ``timeout`` seconds for the first; [] when none came.
        """

    def put(self, epoch: int, token: bytes, key: str, value: bytes) -> None:
        """Stores a value under a key."""

    def get(self, key: str) -> bytes | None:
        """The value, None where there is none or it has more than ``LONGEST`` bytes."""

    def drop(self, epoch: int, token: bytes, keys: Sequence[str]) -> None:
        """Forgets values."""

    def trim(self, epoch: int, token: bytes, upto: tuple[int, int]) -> None:
        """Forgets the entries up to this one and this one; the tail stays."""

    def status(self) -> Status:
        """Who leads, how far the log is, and what was accepted."""

    def accept(self, record: bytes) -> None:
        """Keeps what a person has accepted, in place of what he had before."""

    def announce(self, host: str, record: bytes, ttl: float) -> None:
        """Keeps a host's record for ``ttl`` seconds; 0 takes it away."""

    def hosts(self) -> dict[str, bytes]:
        """The records that are kept."""

    def close(self) -> None:
        """Ends the connection. Idempotent."""


def parse_url(text: str) -> ClusterURL:
    """Reads ``[cluster:]ENGINE-URL?run=NAME[&lease=SECONDS][&role=ROLE][&policy=POLICY]``. The
    policy is hold unless it is follow. InvalidArgumentError; no password is in its text.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"the URL of a cluster is a str, not {type(text).__name__}")
    try:
        parts = urlsplit(text.removeprefix("cluster:"))
        query = parse_qsl(parts.query, keep_blank_values=True)
        host = parts.netloc.rpartition("@")[2]
        user = "" if parts.username is None or "@" not in parts.netloc else f"{parts.username}@"
    except ValueError:
        raise InvalidArgumentError("the URL of a cluster cannot be read: " + _EXAMPLE) from None
    ours = {key: value for key, value in query if key in _OURS}
    rest = [(key, value) for key, value in query if key not in ours]
    open_ = [(key, value) for key, value in rest if key not in _SECRETS]
    run, lease = ours.get("run", ""), _seconds(ours.get("lease", "10"))
    if not parts.scheme or not _RUN.fullmatch(run):
        raise InvalidArgumentError(
            f"run={shown(run)} in the URL of a cluster: its scheme names an engine, and run= the "
            f"run, by 1 to 128 of A-Z a-z 0-9 _ - . (not first), as NAME or NAME@EDITION: "
            + _EXAMPLE
        )
    role = ours.get("role", "")
    if role not in ("", "leader", "worker"):
        raise InvalidArgumentError(
            f"role={shown(role)} in the URL of a cluster: it is leader or worker"
        )
    policy = ours.get("policy", "")
    if policy not in ("", "hold", "follow"):
        raise InvalidArgumentError(
            f"policy={shown(policy)} in the URL of a cluster: it is hold or follow"
        )
    return ClusterURL(
        parts.scheme,
        urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(rest), "")),
        urlunsplit((parts.scheme, user + host, parts.path, urlencode([*open_, ("run", run)]), "")),
        run,
        lease,
        role,
        policy != "follow",
    )


_EXAMPLE = "redis://host:6379/0?run=train-7"


def _seconds(text: str) -> float:
    try:
        lease = float(text)
    except ValueError:
        lease = 0.0
    if not 0.5 <= lease <= 3600:  # refuses NaN too
        raise InvalidArgumentError(
            f"lease={shown(text)} in the URL of a cluster: give 0.5 to 3600 seconds"
        )
    return lease


def connect(url: ClusterURL) -> Engine:
    """The engine of a URL. InvalidArgumentError where no driver is installed for its scheme; the
    driver's own ImportError where its client library is missing.
    """
    from importlib.metadata import entry_points

    drivers = {each.name: each for each in entry_points(group="mdispatch.engines")}
    driver = drivers.get(url.scheme)
    if driver is None:
        near = nearest(url.scheme, sorted(drivers))
        raise InvalidArgumentError(
            f"no engine for {url.shown}: there is none for {shown(url.scheme)}"
            + (f", but for {', '.join(near)}" if near else "")
            + f". Installed are drivers for {', '.join(sorted(drivers)) or 'nothing'}; others are "
            "entry points of the group 'mdispatch.engines'."
        )
    engine: Engine = driver.load()(url)
    return engine

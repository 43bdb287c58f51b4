"""How often each provider ran in this interpreter, and how often because others had refused; and
telling the other members of it.
"""

from __future__ import annotations

from _thread import _local
from contextlib import suppress
from time import monotonic

from ..dispatch.context.observers import FELL_BACK, ObserverHandle, observe_calls
from ..errors import InvalidArgumentError, MdispatchError
from ..errors.places import caller, place_of
from ..facts import Handle
from ..facts.counted import ProviderRuns, tell
from .registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ..dispatch.context.observers import ObservedCall

    #: By operator, name of the key, provider, and whether it fell back.
    _Counts: TypeAlias = dict[tuple[str, str, str, bool], int]

__all__ = ["ProviderCounts", "count_providers"]

#: How many forks lead to this process.
_forks = 0


def forked() -> None:
    """See Note [Locks across a fork] in facts/forking.py. What was counted is the parent's."""
    global _forks
    _forks += 1


class _Here(_local):
    """The counts of a thread, which no other thread changes: so none is lost, without a lock."""

    def __init__(self, everywhere: list[_Counts]) -> None:  # runs once in each thread
        self.counts: _Counts = {}
        self.everywhere = everywhere
        everywhere.append(self.counts)


class ProviderCounts(Handle):
    """Counts until ``close()`` or the end of a ``with`` block; what it has counted stays."""

    __slots__ = ("_due", "_every", "_has_told", "_heres", "_observer", "_registry", "_where")

    def __init__(self, every: float | None, registry: Registry | None, where: str) -> None:
        self._every = every
        self._due = 0.0  # with ``every``: when the next call publishes
        self._has_told = False
        self._registry = registry
        self._where = where
        self._heres: dict[int, _Here] = {}  # by _forks
        self._observer: ObserverHandle = observe_calls(after=self._count)

    def _here(self) -> _Here:
        # Two threads may come here at once: setdefault is one step, and has one of them win.
        return self._heres.get(_forks) or self._heres.setdefault(_forks, _Here([]))

    def _count(self, call: ObservedCall) -> None:
        if call.provider or call.how == "provider":
            counts = self._here().counts
            which = call.operator, call.key.name, call.provider, call.reason == FELL_BACK
            counts[which] = counts.get(which, 0) + 1
            if self._every is not None and monotonic() >= self._due:
                with suppress(MdispatchError):  # the next one tries again
                    self.publish()

    def runs(self) -> tuple[ProviderRuns, ...]:
        """What was counted until now, by operator, key and name."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for counts in tuple(self._here().everywhere):
            for (*which, fell_back), runs in counts.copy().items():
                both = found.setdefault((which[0], which[1], which[2]), [0, 0])
                both[0] += runs
                both[1] += runs * fell_back
        return tuple(ProviderRuns(*each, *both) for each, both in sorted(found.items()))

    def publish(self) -> None:
        """Tells the other members what was counted until now, in place of what this interpreter has
        told before: the commands show the sum over all members. It stands until this member ends.
        Where there are too many providers, it tells of the most frequent.

        Raises RegistryFullError, RegistryClosedError.
        """
        # At first: threads that call meanwhile need not publish, too. If two do, the counts of the
        # one that registers last stand until the next time. So no lock is held.
        self._due = monotonic() + (self._every or 0)
        facts = given_or_default(self._registry).dispatcher.facts
        tell(facts, self.runs(), self._where)
        self._has_told = True

    def __str__(self) -> str:
        """A line for each provider."""
        return "\n".join(
            f"{each.operator} at {each.key}: {each.provider or '(no name)'} ran {each.runs} times, "
            f"{each.fell_back} of them after others had refused"
            for each in self.runs()
        )

    def close(self) -> None:
        """Counts no more calls. Where it has published, it publishes the last counts, if the
        registry still takes them. Idempotent.
        """
        self._observer.close()
        if self._has_told:
            with suppress(MdispatchError):
                self.publish()
            self._has_told = False


def count_providers(
    *, every: float | None = None, registry: Registry | None = None
) -> ProviderCounts:
    """Counts how often each provider runs in this interpreter, and how often it runs because those
    before it have refused, until the handle is closed::

        with mdispatch.count_providers() as counts:
            ...
        print(counts)

    It observes calls (:func:`observe_calls`): they cost more as long as it counts, and nothing
    otherwise. Calls of operators of all registries are counted, by the operators' names.

    ``counts.publish()`` tells the other members of a registry, the default one unless ``registry``
    is given. With ``every``, a call that it counts that many seconds or more after the last time
    publishes by itself; if that fails, the call does not hear of it.

    Raises InvalidArgumentError.
    """
    if every is not None and not (isinstance(every, (int, float)) and every >= 0):
        raise InvalidArgumentError(f"every= takes a number of seconds, not {every!r}")
    if every is not None or registry is not None:
        registry = given_or_default(registry)
    return ProviderCounts(every, registry, place_of(caller()))

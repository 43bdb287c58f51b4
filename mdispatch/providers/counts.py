"""How often each provider ran in this interpreter, and how often because others had refused."""

from __future__ import annotations

from _thread import _local
from typing import NamedTuple

from ..dispatch.context.observers import FELL_BACK, ObserverHandle, observe_calls
from ..facts import Handle
from ..forking import in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ..dispatch.context.observers import ObservedCall

    #: By operator, name of the key, provider, and whether it fell back.
    _Counts: TypeAlias = dict[tuple[str, str, str, bool], int]

__all__ = ["ProviderCounts", "ProviderRuns", "count_providers"]

#: How many forks lead to this process.
_forks = 0


@in_child
def _renew() -> None:
    """What was counted is the parent's."""
    global _forks
    _forks += 1


class _Here(_local):
    """The counts of a thread, which no other thread changes: so none is lost, without a lock."""

    def __init__(self, everywhere: list[_Counts]) -> None:  # runs once in each thread
        self.counts: _Counts = {}
        self.everywhere = everywhere
        everywhere.append(self.counts)


class ProviderRuns(NamedTuple):
    """One provider: of which operator, at which key, its name ("" for a kernel without one that
    comes after providers), how often it ran, and how many of these times since the predicates of
    providers before it had refused.
    """

    operator: str
    key: str
    provider: str
    runs: int
    fell_back: int


class ProviderCounts(Handle):
    """Counts until ``close()`` or the end of a ``with`` block; what it has counted stays."""

    __slots__ = ("_heres", "_observer")

    def __init__(self) -> None:
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

    def runs(self) -> tuple[ProviderRuns, ...]:
        """What was counted until now, by operator, key and name."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for counts in tuple(self._here().everywhere):
            for (*which, fell_back), runs in counts.copy().items():
                both = found.setdefault((which[0], which[1], which[2]), [0, 0])
                both[0] += runs
                both[1] += runs * fell_back
        return tuple(ProviderRuns(*each, *both) for each, both in sorted(found.items()))

    def __str__(self) -> str:
        """A line for each provider."""
        return "\n".join(
            f"{each.operator} at {each.key}: {each.provider or '(no name)'} ran {each.runs} times, "
            f"{each.fell_back} of them after others had refused"
            for each in self.runs()
        )

    def close(self) -> None:
        """Counts no more calls. Idempotent."""
        self._observer.close()


def count_providers() -> ProviderCounts:
    """Counts how often each provider runs in this interpreter, and how often it runs because those
    before it have refused, until the handle is closed::

        with mdispatch.count_providers() as counts:
            ...
        print(counts)

    It observes calls (:func:`observe_calls`): they cost more as long as it counts, and nothing
    otherwise. Calls of operators of all registries are counted, by the operators' names. The child
    of a fork counts from zero.
    """
    return ProviderCounts()

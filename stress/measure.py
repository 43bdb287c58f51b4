"""What every part of the suite measures with: dice, the time without a processor, histograms.

Imported in sub-interpreters and in processes that are killed, so it imports next to nothing
itself. All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a time
namespace.
"""

from __future__ import annotations

import os

#: A wait has to return within this time of its outcome, the time not counted in which the threads
#: of its process were ready to run and had no processor.
ALLOWED_NS = 300_000_000

#: What does not come within this many seconds hangs.
HANG_SECONDS = 30.0 * float(os.environ.get("MDISPATCH_TEST_PATIENCE") or 1)

#: How long those wait who get what they wait for: longer, so that a hang is seen as one.
PATIENCE = 1.5 * HANG_SECONDS


class Dice:
    """Random numbers: the module random would be most of an interpreter's start."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 0x9E3779B97F4A7C15 + 1

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit

    def shuffled(self, things: list) -> list:
        """The same things in another order."""
        things = list(things)
        return [things.pop(self.below(len(things))) for _ in range(len(things))]


def queued_ns() -> dict[str, int]:
    """How long each thread of this process was ready to run and had no processor, in nanoseconds:
    any of them may have the GIL that a waiter needs to return.
    """
    queued = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                queued[task] = int(file.read().split()[1])
        except (OSError, IndexError):
            pass  # it has ended, or this kernel does not count
    return queued


def queued_since(before: dict[str, int]) -> int:
    return sum(ns - before.get(task, 0) for task, ns in queued_ns().items())


class Histogram:
    """Times in buckets whose width grows with them: eight to each doubling, so that a figure read
    from them is at most an eighth too large.
    """

    __slots__ = ("buckets", "worst")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.worst = 0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, ns: int) -> None:
        ns = max(ns, 1)
        octave = ns.bit_length() - 1
        bucket = octave * 8 + (((ns << 3) >> octave) & 7)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.worst = max(self.worst, ns)

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.worst = max(self.worst, other.worst)

    def quantile(self, part: float) -> int:
        """The time that this part of all did not exceed: the end of its bucket."""
        wanted, seen = part * self.count, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(end_of(bucket), self.worst)
        return 0

    def as_text(self) -> str:
        counts = ",".join(f"{bucket}:{count}" for bucket, count in sorted(self.buckets.items()))
        return f"{self.worst};{counts}"

    @classmethod
    def from_text(cls, text: str) -> Histogram:
        made = cls()
        worst, _, counts = text.partition(";")
        made.worst = int(worst)
        for each in counts.split(",") if counts else ():
            bucket, _, count = each.partition(":")
            made.buckets[int(bucket)] = int(count)
        return made


def end_of(bucket: int) -> int:
    """Where a bucket ends, in nanoseconds."""
    octave, eighth = divmod(bucket, 8)
    return ((9 + eighth) << octave) >> 3


class Figures:
    """What one scenario has counted and timed. ``counts`` by what was counted, ``latencies`` by
    what was timed; the first of these stands in the table.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.latencies: dict[str, Histogram] = {}

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def latency(self, what: str, ns: int) -> None:
        self.latencies.setdefault(what, Histogram()).add(ns)

    def merge(self, other: Figures) -> None:
        for what, number in other.counts.items():
            self.count(what, number)
        for what, histogram in other.latencies.items():
            self.latencies.setdefault(what, Histogram()).merge(histogram)

    def as_dict(self) -> dict:
        latencies = {what: each.as_text() for what, each in self.latencies.items()}
        return {"counts": self.counts, "latencies": latencies}

    @classmethod
    def from_dict(cls, values: dict) -> Figures:
        made = cls()
        made.counts = dict(values["counts"])
        for what, text in values["latencies"].items():
            made.latencies[what] = Histogram.from_text(text)
        return made

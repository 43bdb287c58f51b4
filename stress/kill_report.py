"""What a run of kill_python.py has come to, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from measure import ALLOWED_NS, Figures

BOUNDS_MS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300)
OUTCOMES = {
    "fact": "fact there",
    "deadline": "deadline",
    "killed": "main killed",
    "left": "main left",
}


@dataclass
class Totals:
    """Counts, delays in nanoseconds, and what must not be."""

    rounds: int = 0
    kills: int = 0
    mains: int = 0
    acknowledged: int = 0
    compared: int = 0
    heard: int = 0
    verified: int = 0
    attached: int = 0
    excused: int = 0
    beyond: int = 0
    times: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in OUTCOMES})
    failures: list[str] = field(default_factory=list)
    allowed_ns: int = ALLOWED_NS  # from the outcome of a wait to its return

    def note_wait(
        self, who: str, outcome: str, end: int, queued: int, came: int, sure: int
    ) -> None:
        """One wait: its outcome was there at ``came`` at the earliest, at ``sure`` at the latest
        (a registering thread may long for the GIL itself before and after its commit).
        """
        took = max(end - came, 0)
        self.times[outcome].append(took)
        if took <= self.allowed_ns:
            return
        self.beyond += 1
        if end - sure - queued <= self.allowed_ns:
            self.excused += 1
        else:
            self.failures.append(
                f"{who}: a wait ({outcome}) returned {took / 1e6:.1f} ms after its outcome, "
                f"{(end - sure) / 1e6:.1f} ms after it was there for sure, {queued / 1e6:.1f} ms "
                "of them without a processor"
            )

    def figures(self) -> Figures:
        """The same for the table of the whole suite."""
        made = Figures()
        made.count("rounds", self.rounds)
        made.count("kills", self.kills)
        made.count("definitions", self.acknowledged)
        made.count("late by the clock", self.beyond)
        waits = sum(len(each) for each in self.times.values())
        counted = (self.acknowledged, self.heard, self.verified, self.attached, waits)
        made.count("operations", sum(counted))
        for outcome, times in self.times.items():
            for took in times:
                made.latency(f"{OUTCOMES[outcome]} to waiter", took)
        return made

    def report(self, seed: int, seconds: float, how: str = "") -> None:
        print("from the outcome to the waiter's return, numbers of waits (columns: at most ms)")
        print(f"{'':12}", *(f"{bound:>6g}" for bound in BOUNDS_MS), "beyond  worst ms")
        for outcome, title in OUTCOMES.items():
            columns = [0] * (len(BOUNDS_MS) + 1)
            for took in self.times[outcome]:
                columns[sum(took > bound * 1e6 for bound in BOUNDS_MS)] += 1
            worst = max(self.times[outcome], default=0) / 1e6
            print(f"{title:12}", *(f"{count:>6}" for count in columns), f"{worst:9.2f}")
        print(
            f"{self.beyond} beyond 300 ms, {self.excused} of them for want of a processor or by "
            "the registering thread"
        )
        print(
            f"seed {seed}: {self.kills} kills ({self.mains} of registrars) in {seconds:.1f} s, "
            f"{self.rounds} rounds\n{self.acknowledged} acknowledged definitions, "
            f"{self.compared} names compared, {self.verified} verified and called, "
            f"{self.heard} told to listeners, {self.attached} attached"
        )
        for failure in self.failures[:10]:
            print("FAILED:", failure)
        if self.failures:
            again = f"--seed {seed} --rounds {self.rounds + 1}{how}"
            print(f"again: python stress/kill_python.py {again}")

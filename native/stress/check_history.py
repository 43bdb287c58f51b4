"""Judges what stress/history recorded: `check_history.py FILE`.

Every round is judged by sequence numbers: they account for every change, agree with real time, and
no answer speaks of a fact that was not there, or is silent about one that was there all the time.
Short rounds of one name are also searched, after Wing and Gong, for one order of all operations
that explains every answer; that search trusts no number. Prints each violation; exit status 1 when
there is one.
"""

import bisect
import heapq
import itertools
import struct
import sys
from collections import Counter
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

REGISTER, STRIKE, FIND, LIST, AWAIT = range(1, 6)
KINDS = ("", "register", "strike", "find", "list", "await")
OK, ETIMEDOUT, EEXIST, ENOENT = 0, -5, -8, -9  # as in mdispatch.h
LATE_NS = 60_000_000  # an answer that comes later although it could be given was not woken for
SEARCHED = 64  # operations at most in a round that is searched
HEAD = struct.Struct("=8s4Q2I")
OP = struct.Struct("=qqQQQIi8BI24I4x")
NEVER = 1 << 62


class Op(NamedTuple):
    begin: int
    end: int
    seq: int
    version: int
    node: int
    id: int
    rc: int
    kind: int
    actor: int
    name: int
    key: int
    unique: int
    bad: int
    at_least: int
    slices: int
    ids: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{KINDS[self.kind]} n{self.name}/{self.key} by {self.actor} "
            f"[{self.begin}, {self.end}] rc={self.rc} id={self.id} seq={self.seq} "
            f"version={self.version}@{self.node} ids={list(self.ids)}"
        )


class Round(NamedTuple):
    seed: int
    next_seq: int
    facts: int
    damaged: int
    names: int
    ops: list[Op]


class Fact(NamedTuple):
    """A fact's life: [made.begin, made.end] it came, [gone_begin, gone_end] it went."""

    made: Op
    gone_begin: int
    gone_end: int

    def there_throughout(self, begin: int, end: int) -> bool:
        return self.made.end < begin and self.gone_begin > end

    def there_sometime(self, begin: int, end: int) -> bool:
        return self.made.begin < end and self.gone_end > begin


def read_rounds(file: BinaryIO):
    while head := file.read(HEAD.size):
        magic, seed, count, next_seq, facts, damaged, names = HEAD.unpack(head)
        assert magic == b"history\0"
        ops = []
        for o in OP.iter_unpack(file.read(OP.size * count)):
            n = o[14]
            ops.append(Op(*o[:14], o[15], o[16 : 16 + n]))
        yield Round(seed, next_seq, facts, damaged, names, ops)


def check_sequence(r: Round, changes: list[Op]):
    """The numbers of registrations are as real time has it, and strikes fill the gaps."""
    made = sorted((o for o in changes if o.kind == REGISTER), key=lambda o: o.seq)
    strikes = [o for o in changes if o.kind == STRIKE]
    numbers = [o.seq for o in made]
    if len(set(numbers)) != len(numbers):
        yield "a sequence number was given out twice"
    if r.next_seq != 1 + len(changes):
        yield f"the sequence ends at {r.next_seq} after {len(changes)} changes"
    latest = NEVER
    for o in reversed(made):  # who has a greater number must not have ended before o began
        if latest < o.begin:
            yield f"numbered before one that had ended: {o}"
        latest = min(latest, o.end)
    by_end = sorted(made, key=lambda o: o.end)
    ends = [o.end for o in by_end]
    highest, top = [], 0
    for o in by_end:
        highest.append(top := max(top, o.seq))
    by_begin = sorted(made, key=lambda o: o.begin)
    begins = [o.begin for o in by_begin]
    lowest, low = [], r.next_seq
    for o in reversed(by_begin):
        lowest.append(low := min(low, o.seq))
    lowest.reverse()
    windows = []
    for o in strikes:
        i = bisect.bisect_left(ends, o.begin)
        j = bisect.bisect_right(begins, o.end)
        windows.append(
            (max(o.seq, highest[i - 1] if i else 0), lowest[j] if j < len(lowest) else r.next_seq)
        )
    windows.sort()
    taken, waiting, k = set(numbers), [], 0
    for gap in (n for n in range(1, r.next_seq) if n not in taken):
        while k < len(windows) and windows[k][0] < gap:
            heapq.heappush(waiting, windows[k][1])
            k += 1
        if not waiting or heapq.heappop(waiting) <= gap:
            yield f"no strike can have had the number {gap}"
            return


def check_answer(o: Op, facts: dict[int, Fact], live: list[Fact]):
    """One answer against the facts that are there when it begins (`live`)."""
    if o.bad:
        yield "a record with other bytes than were registered"
    if o.rc not in (OK, ENOENT, ETIMEDOUT, EEXIST):
        yield "an error that has no reason"
    for i in o.ids:
        f = facts.get(i)
        if f is None or f.made.name != o.name:
            yield f"fact {i} was never registered under this name"
        elif not f.there_sometime(o.begin, o.end):
            yield f"fact {i} was not there at that time"
    steady = [f for f in live if f.gone_begin > o.end and (o.kind == LIST or f.made.key == o.key)]
    answered = [facts[i] for i in o.ids if i in facts]
    if o.kind == LIST:
        if o.rc == OK:
            low = max([o.begin, *(f.made.begin for f in answered)])
            high = min([o.end, *(f.gone_end for f in answered)])
            if low > high:
                yield "facts that were never there together"
            listed = set(o.ids)
            lost = [f for f in live if f.made.id not in listed]
            if any(f.there_throughout(low, high) for f in lost):
                yield "a fact is missing that was there all the time"
            seqs = [f.made.seq for f in answered]
            if seqs != sorted(seqs):
                yield "not oldest first"
    elif o.kind in (FIND, AWAIT) or (o.kind == REGISTER and o.rc == EEXIST):
        if o.rc in (OK, EEXIST):
            if len(answered) == 1:
                f = answered[0]
                if f.made.key != o.key or f.made.seq != o.seq:
                    yield "another key or number than was registered"
                if any(g.made.seq > f.made.seq for g in steady):
                    yield "not the newest"
        elif o.rc == ENOENT and steady:
            yield "nothing found although something was there all the time"
        elif o.rc == ETIMEDOUT and len(steady) >= o.at_least:
            yield "timed out although enough was there all the time"
    elif o.kind == REGISTER and o.rc == OK and o.unique and steady:
        yield "registered beside one where there can be one only"
    elif o.kind == STRIKE and o.rc != OK:
        yield "could not be struck"


def check_reads(r: Round, facts: dict[int, Fact], changes: list[Op], late: Counter):
    events = [(o.begin, 2, i) for i, o in enumerate(r.ops)]
    events += [(f.made.end, 0, i) for i, f in facts.items()]
    events += [(f.gone_begin, 3, i) for i, f in facts.items() if f.gone_begin < NEVER]
    live: list[dict[int, Fact]] = [{} for _ in range(r.names)]
    for _, what, i in sorted(events):
        if what == 0:
            live[facts[i].made.name][i] = facts[i]
        elif what == 3:
            live[facts[i].made.name].pop(i, None)
        else:
            o = r.ops[i]
            mine = [f for f in live[o.name].values() if f.made.end < o.begin]
            for words in check_answer(o, facts, mine):
                yield f"{words}: {o}"
            if o.kind == AWAIT and o.rc == OK:
                late["awaits"] += 1
                since = o.end - LATE_NS
                late["late"] += since > o.begin and o.at_least <= sum(
                    f.made.key == o.key
                    and f.made.name == o.name
                    and f.there_throughout(since, o.end)
                    for f in facts.values()
                )
    if r.facts != sum(f.gone_begin == NEVER for f in facts.values()):
        yield f"{r.facts} facts are said to be left"


def highest_so_far(numbers: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(numbers, max))


def check_versions(r: Round, changes: list[Op]):
    """Who remembers a node and its version hears of every change of the name, and of the next name.

    The version of a node never falls, is raised by every change of its name, and is never the same
    for two names.
    """
    lists = [o for o in r.ops if o.kind == LIST and o.rc == OK]
    names: dict[tuple[int, int], int] = {}
    by_node: dict[int, list[Op]] = {}
    by_end = sorted(lists, key=lambda o: o.end)
    for o in by_end:
        if (o.version == 0) != (o.node == 0) or (o.ids and not o.node):
            yield f"a node without a version, or facts without a node: {o}"
        elif o.node:
            by_node.setdefault(o.node, []).append(o)
            if names.setdefault((o.node, o.version), o.name) != o.name:
                yield f"a node has the same version for two names: {o}"
    told = [
        sorted((o for o in changes if o.name == n), key=lambda o: o.end) for n in range(r.names)
    ]
    ends = [[o.end for o in each] for each in told]
    latest = [highest_so_far(o.begin for o in each) for each in told]
    for there in by_node.values():
        there_ends = [o.end for o in there]
        highest = highest_so_far(o.version for o in there)
        for o in there:
            before = bisect.bisect_left(there_ends, o.begin)
            if before and highest[before - 1] > o.version:
                yield f"the version of a node has fallen: {o}"
            # Lists of this node that had ended before a change of the name, which had ended, too.
            change = bisect.bisect_left(ends[o.name], o.begin)
            since = latest[o.name][change - 1] if change else 0
            before = bisect.bisect_left(there_ends, since)
            if before and highest[before - 1] >= o.version:
                yield f"a change did not raise the version: {o}"


def follows(o: Op, state: tuple[tuple[int, int], ...]):
    """The state after `o`, when its answer is right in this one; else None. Oldest first."""
    same = [i for i, key in state if key == o.key]
    if o.kind == REGISTER:
        if o.rc == EEXIST:
            return state if same and same[-1] == o.ids[0] else None
        return None if o.unique and same else (*state, (o.id, o.key))
    if o.kind == STRIKE:
        left = tuple(s for s in state if s[0] != o.id)
        return left if len(left) < len(state) else None
    if o.kind == LIST:
        return state if tuple(i for i, _ in state) == o.ids else None
    if o.rc == OK:
        return state if len(same) >= max(1, o.at_least) and same[-1] == o.ids[0] else None
    return state if len(same) < max(1, o.at_least) else None


def has_order(ops: list[Op]) -> bool:
    """Whether one order of all operations, within real time, explains every answer."""
    ops = sorted(ops, key=lambda o: o.begin)
    everything, seen = (1 << len(ops)) - 1, set()
    stack: list[tuple[int, tuple[tuple[int, int], ...]]] = [(0, ())]
    while stack:
        done, state = node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if done == everything:
            return True
        bound = NEVER
        for i, o in enumerate(ops):
            if done >> i & 1:
                continue
            if o.begin > bound:
                break
            bound = min(bound, o.end)
            after = follows(o, state)
            if after is not None:
                stack.append((done | 1 << i, after))
    return False


def check(r: Round, seen: Counter, late: Counter):
    changes = [o for o in r.ops if o.kind in (REGISTER, STRIKE) and o.rc == OK]
    strikes = {o.id: o for o in changes if o.kind == STRIKE}
    facts = {
        o.id: Fact(o, *((s.begin, s.end) if (s := strikes.get(o.id)) else (NEVER, NEVER)))
        for o in changes
        if o.kind == REGISTER
    }
    if r.damaged:
        yield "an invariant is broken at the end"
    yield from check_sequence(r, changes)
    yield from check_reads(r, facts, changes, late)
    yield from check_versions(r, changes)
    seen["by number"] += len(r.ops)
    if r.names == 1 and len(r.ops) <= SEARCHED:
        seen["searched"] += len(r.ops)
        seen["searched histories"] += 1
        if not has_order(r.ops):
            yield "no order of the operations explains the answers"


def main(path: str) -> int:
    seen: Counter[str] = Counter()
    late: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    broken = rounds = bad = 0
    with open(path, "rb") as file:
        for r in read_rounds(file):
            kinds.update(f"{KINDS[o.kind]} {o.rc}" for o in r.ops)
            before, rounds = broken, rounds + 1
            for words in check(r, seen, late):
                broken += 1
                if broken <= 10:
                    print(f"round of seed {r.seed}: {words}")
            bad += broken > before
    if late["late"] > 2 and late["late"] * 20 > late["awaits"]:
        broken += 1
        print(f"waits ended late, nobody woke them: {late['late']} of {late['awaits']}")
    print(", ".join(f"{k}: {n}" for k, n in sorted(kinds.items())))
    print(", ".join(f"{k}: {n}" for k, n in seen.items()), f", late waits: {late['late']}")
    print(f"{broken} violations\n{rounds - bad} passed, {bad} failed")
    return 1 if broken or not rounds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

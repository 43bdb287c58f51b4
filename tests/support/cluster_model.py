"""The protocol of docs/cluster.md as a model that is searched: every order of every step, two
leaders, two bridges, an engine that forgets.

A state is a tuple; :func:`search` visits each state that can be reached, breadth first, so the
first trace to a broken promise is a shortest one. ``Rules`` says which rules are kept: without the
chain, or without the epoch, the search has to find what they are there for.

What is promised, in each state:

- no fork: what a host has is what one leader had when it wrote the entry, or the snapshot, that the
  host applied last;
- no way back: a host never goes from a later leadership to an earlier one;
- no hang: where nothing more can happen and a leader leads, all hosts have what it has.

Each entry carries, unseen by the rules, what its writer had then and the number of its leadership.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Broken", "Budget", "Rules", "search"]


class Rules(NamedTuple):
    """Which rules are kept."""

    chain: bool = True  # each entry continues the one before it, and each epoch has a root
    epoch: bool = True  # the engine refuses, and hosts ignore, what a former leader writes
    position: bool = True  # a bridge that takes over goes on from where the one before it was


class Budget(NamedTuple):
    """How often what is not up to the protocol may happen."""

    facts: int = 3
    lapses: int = 1
    crashes: int = 1
    losses: int = 1
    bridges: int = 0  # that die


class Entry(NamedTuple):
    epoch: int
    seq: int
    chain: object
    said: object  # the registration; of the first entry of an epoch its leadership
    is_start: bool
    had: tuple[object, ...]  # unseen
    leadership: int  # unseen


class Snapshot(NamedTuple):
    epoch: int
    root: object
    seq: int
    chain: object
    facts: tuple[object, ...]
    leadership: int  # unseen


class Engine(NamedTuple):
    epoch: int = 0
    token: int = 0  # of who acquired it: an engine that forgot may give a number twice
    lease: int | None = None
    log: tuple[Entry, ...] = ()
    tail: tuple[int, int] = (0, 0)  # of the last entry, also after it was trimmed
    snapshot: Snapshot | None = None


class Leader(NamedTuple):
    step: str = "idle"  # acquired, stored, leads, sent, fenced, dead
    is_again: bool = False  # it has led before: it knows what it has
    epoch: int = 0
    root: object = None
    seq: int = 0
    chain: object = None
    facts: tuple[object, ...] = ()
    leadership: int = 0  # unseen


class Host(NamedTuple):
    epoch: int = 0
    root: object = None
    seq: int = 0
    chain: object = None
    facts: tuple[object, ...] = ()
    leadership: int = 0  # unseen
    is_new: bool = False  # its bridge has taken over, and has only the registry and its position


class State(NamedTuple):
    engine: Engine
    backup: Engine | None
    leaders: tuple[Leader, ...]
    hosts: tuple[Host, ...]
    budget: Budget
    acquired: int = 0  # unseen: counts leaderships


class Broken(Exception):
    """A promise is broken; ``trace`` are the steps that lead there."""

    def __init__(self, promise: str, trace: list[str]) -> None:
        super().__init__(f"{promise}\n  " + "\n  ".join(trace))
        self.promise = promise
        self.trace = trace


def search(
    rules: Rules, budget: Budget, leaders: int = 2, hosts: int = 2, but: str = "nothing"
) -> int:
    """Visits every state. Returns how many there are; raises Broken. ``but`` is the promise that is
    not looked at: "fork", "way back" or "hang".
    """
    first = State(Engine(), None, (Leader(),) * leaders, (Host(),) * hosts, budget)
    came: dict[State, tuple[State | None, str]] = {first: (None, "")}
    waiting = deque([first])

    def trace(state: State | None, last: str = "") -> list[str]:
        steps = [last] if last else []
        while state is not None:
            state, step = came[state]
            steps.append(step)
        return [each for each in reversed(steps) if each]

    while waiting:
        state = waiting.popleft()
        is_last = True
        for step, after, broken in _steps(state, rules):
            if broken and not broken.startswith(but):
                raise Broken(broken, trace(state, step))
            is_last = is_last and after == state
            if after not in came:
                came[after] = state, step
                waiting.append(after)
        if is_last and but != "hang":
            for leader in state.leaders:
                if leader.step == "leads" and any(
                    set(host.facts) != set(leader.facts) for host in state.hosts
                ):
                    raise Broken("hang: a host never has what the leader has", trace(state))
    return len(came)


#: Each chain and what was said after it, by a number: comparing numbers is fast.
_chains: dict[object, int] = {}


def _next(chain: object, said: object, rules: Rules) -> object:
    return _chains.setdefault((chain, said), len(_chains)) if rules.chain else None


_Step = tuple[str, State, str]


def _steps(state: State, rules: Rules) -> Iterator[_Step]:
    yield from _world(state)
    for i in range(len(state.leaders)):
        for step, after in _leader(state, i, rules):
            yield f"leader {i} {step}", after, ""
    for i in range(len(state.hosts)):
        yield from _host(state, i, rules)


def _world(state: State) -> Iterator[_Step]:
    budget, engine = state.budget, state.engine
    if budget.lapses and engine.lease is not None:
        spent = budget._replace(lapses=budget.lapses - 1)
        yield (
            "the lease runs out",
            state._replace(engine=engine._replace(lease=None), budget=spent),
            "",
        )
    if budget.losses and state.backup is None and engine.epoch:
        yield "the engine is copied", state._replace(backup=engine), ""
    if budget.losses and state.backup not in (None, engine):
        spent = budget._replace(losses=budget.losses - 1)
        assert state.backup is not None
        yield (
            "the engine comes back as it was when it was copied",
            state._replace(engine=state.backup, backup=None, budget=spent),
            "",
        )
    if budget.bridges:
        spent = budget._replace(bridges=budget.bridges - 1)
        for i, host in enumerate(state.hosts):
            if not host.is_new:
                new = _with(state.hosts, i, host._replace(is_new=True))
                yield f"the bridge of host {i} dies", state._replace(hosts=new, budget=spent), ""
    if budget.crashes:
        spent = budget._replace(crashes=budget.crashes - 1)
        for i, leader in enumerate(state.leaders):
            if leader.step not in ("idle", "dead", "fenced"):
                # Its lease runs out by itself.
                lease = None if engine.lease == i else engine.lease
                dead = _with(state.leaders, i, Leader("dead"))
                changed = engine._replace(lease=lease)
                yield (
                    f"leader {i} dies in step {leader.step!r}",
                    state._replace(leaders=dead, budget=spent, engine=changed),
                    "",
                )


def _leader(state: State, i: int, rules: Rules) -> Iterator[tuple[str, State]]:
    me, engine, budget = state.leaders[i], state.engine, state.budget

    def after(
        leader: Leader, engine: Engine = engine, budget: Budget = budget, n: int = state.acquired
    ) -> State:
        leaders = _with(state.leaders, i, leader)
        return state._replace(engine=engine, leaders=leaders, budget=budget, acquired=n)

    def acquire(above: int) -> State:
        if engine.lease not in (None, i) and me.is_again:
            return after(Leader("fenced"))
        epoch = max(engine.epoch, above) + 1 if rules.epoch else 1
        n = state.acquired + 1
        got = me._replace(step="acquired", epoch=epoch, leadership=n)
        return after(got, engine._replace(epoch=epoch, token=n, lease=i), n=n)

    is_mine = (engine.epoch, engine.token) == (me.epoch, me.leadership) or not rules.epoch
    if me.step == "idle" and engine.lease is None:
        yield "acquires", acquire(0)
    elif me.step == "acquired":
        if not is_mine:
            yield "is fenced", _again_or_fenced(me, engine, after, acquire)
            return
        if me.is_again:
            known = me
        else:
            read = _read_all(engine, rules)
            seq = max(read.seq, engine.tail[1])
            known = me._replace(seq=seq, chain=read.chain, facts=read.facts)
        chain = _next(known.chain, ("start", me.leadership), rules)
        seq = known.seq + 1
        snapshot = Snapshot(me.epoch, chain, seq, chain, known.facts, me.leadership)
        # Before the entry: an engine that forgets the snapshot has forgotten the entry, too.
        stored = known._replace(step="stored", root=chain, seq=seq, chain=chain, is_again=True)
        yield "stores a snapshot", after(stored, engine._replace(snapshot=snapshot))
    elif me.step == "stored":
        if not is_mine:
            yield "is fenced", _again_or_fenced(me, engine, after, acquire)
            return
        said = ("start", me.leadership)
        entry = Entry(me.epoch, me.seq, me.chain, said, True, me.facts, me.leadership)
        written = engine._replace(log=(*engine.log, entry), tail=(me.epoch, me.seq))
        yield "starts its epoch", after(me._replace(step="leads"), written)
    elif me.step == "leads":
        if budget.facts:
            yield "appends", _append(state, i, rules, after, acquire)
        if is_mine and engine.log and engine.log[-1].seq == me.seq:
            snapshot = Snapshot(me.epoch, me.root, me.seq, me.chain, me.facts, me.leadership)
            trimmed = engine._replace(snapshot=snapshot, log=())
            yield "stores a snapshot and trims", after(me, trimmed)
        tail = (me.epoch, me.seq)
        if rules.epoch and (not is_mine or (rules.chain and engine.tail != tail)):
            yield "renews", _again_or_fenced(me, engine, after, acquire)
        for host in state.hosts:
            if rules.epoch and (
                host.epoch > me.epoch or (host.epoch == me.epoch and host.root != me.root)
            ):
                yield "sees a host that follows another", acquire(max(host.epoch, me.epoch))
    elif me.step == "sent":
        yield "hears that it is stored", after(me._replace(step="leads"))


def _again_or_fenced(me, engine, after, acquire):  # type: ignore[no-untyped-def]
    """What a refusal means: another leads, or the engine has forgotten."""
    if engine.epoch >= me.epoch and engine.token != me.leadership:
        return after(Leader("fenced"))
    return acquire(me.epoch)


def _append(state, i, rules, after, acquire):  # type: ignore[no-untyped-def]
    me, engine, budget = state.leaders[i], state.engine, state.budget
    if rules.epoch and (engine.epoch, engine.token) != (me.epoch, me.leadership):
        return _again_or_fenced(me, engine, after, acquire)
    if rules.chain and engine.tail != (me.epoch, me.seq):
        if not rules.epoch:
            return after(Leader("fenced"))
        return acquire(me.epoch)
    fact = (i, budget.facts)
    chain, facts = _next(me.chain, fact, rules), (*me.facts, fact)
    entry = Entry(me.epoch, me.seq + 1, chain, fact, False, facts, me.leadership)
    written = engine._replace(log=(*engine.log, entry), tail=(me.epoch, me.seq + 1))
    sent = me._replace(step="sent", seq=me.seq + 1, chain=chain, facts=facts)
    return after(sent, written, budget._replace(facts=budget.facts - 1))


def _read_all(engine: Engine, rules: Rules) -> Host:
    """What a new leader reads: all that a host would apply."""
    host = Host()
    while True:
        after, _ = _applied(host, engine, rules)
        if after == host:
            return host
        host = after


def _applied(host: Host, engine: Engine, rules: Rules) -> tuple[Host, Entry | Snapshot | None]:
    """The host after its next step, and what it applied."""
    there = engine.snapshot
    is_ahead = there is not None and (
        not rules.epoch
        or there.epoch > host.epoch
        or ((there.epoch, there.root) == (host.epoch, host.root) and there.seq > host.seq)
    )
    for entry in engine.log:
        if rules.epoch and (entry.epoch, entry.seq) <= (host.epoch, host.seq):
            continue
        if not rules.epoch and entry.seq <= host.seq:
            continue
        fits = entry.seq == host.seq + 1 and (
            entry.epoch > host.epoch
            if entry.is_start and rules.epoch
            else entry.epoch == host.epoch
        )
        if rules.chain:
            fits = fits and entry.chain == _next(host.chain, entry.said, rules)
        if not fits:
            break
        facts = host.facts if entry.is_start else (*host.facts, entry.said)
        root = entry.chain if entry.is_start else host.root
        return Host(entry.epoch, root, entry.seq, entry.chain, facts, entry.leadership), entry
    else:
        # Nothing to read: the snapshot may still be ahead, where all behind it was trimmed.
        if not rules.epoch:
            is_ahead = there is not None and there.seq > host.seq
    if is_ahead and there is not None:
        return Host(*there), there
    return host, None


def _host(state: State, i: int, rules: Rules) -> Iterator[_Step]:
    before = state.hosts[i]
    if before.is_new:
        yield from _take_over(state, i, rules)
        return
    host, by = _applied(before, state.engine, rules)
    if by is None:
        return
    broken = ""
    had = by.had if isinstance(by, Entry) else by.facts
    if host.facts != had:
        broken = f"fork: host {i} has {host.facts}, and the writer had {had}"
    elif host.leadership < before.leadership:
        broken = f"way back: host {i} follows leadership {host.leadership} after a later one"
    what = f"entry ({by.epoch}, {by.seq})" if isinstance(by, Entry) else "the snapshot"
    yield f"host {i} applies {what}", state._replace(hosts=_with(state.hosts, i, host)), broken


def _take_over(state: State, i: int, rules: Rules) -> Iterator[_Step]:
    """following.py: resume; region.py: adopt. A registry that the dead bridge had left in the midst
    of a batch agrees with its position here; adopt makes it so.
    """
    before, read = state.hosts[i], _read_all(state.engine, rules)
    is_same = (read.epoch, read.root) == (before.epoch, before.root) and read.seq >= before.seq
    if rules.position and read.epoch <= before.epoch and not is_same:
        return
    broken = ""
    if read.leadership < before.leadership:
        broken = f"way back: host {i} follows leadership {read.leadership} after a later one"
    elif is_same and read.facts[: len(before.facts)] != before.facts:
        broken = f"fork: host {i} had {before.facts}, and goes on with {read.facts}"
    hosts = _with(state.hosts, i, read)
    yield f"the next bridge of host {i} takes over", state._replace(hosts=hosts), broken


def _with(items, i, item):  # type: ignore[no-untyped-def]
    return (*items[:i], item, *items[i + 1 :])

"""Judges the history of a cluster: what its leaders meant to write, and what its hosts had.

It knows the protocol from docs/cluster.md and the format from the head of
mdispatch/cluster/log.py, and imports neither: entries are unpacked, chained and added up here once
more. An event is a dict with ``t`` in seconds and ``what``:

    led         a leader took an epoch
    registered  the program of a leader registered or removed a registration (``name``, ``text``,
    None)
    meant       a leader made an entry: its ``kind``, ``said``, its ``chain`` and that ``before`` it
    acked       an append of a leader that ``began`` then was acknowledged
    lost        the engine forgot what it had acknowledged
    killed      a bridge of a host was, perhaps in the midst of a batch
    stands      a host's bridge told how far it is, and these registrations were in the host's
    registry

Each entry is a node in a tree: the chain before it names its parent. Every host must at each moment
have what its node adds up to, whoever wrote it and however it came there.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from typing import NamedTuple

__all__ = ["Unjust", "judge"]

_START, _BATCH, _SEAL = 1, 2, 3
_ROOT = bytes(16).hex()
_HEAD = struct.Struct(">QQBiIqHIH")


class Unjust(AssertionError):
    """A promise was broken. ``promise`` is "fork", "way back", "two writers", "chain" or "lost"."""

    def __init__(self, promise: str, words: str) -> None:
        super().__init__(f"{promise}: {words}")
        self.promise = promise


class Node(NamedTuple):
    """What a log adds up to behind one entry."""

    leadership: int  # counted by the acquisitions
    leader: int  # the number that the START entry gives
    sealed: bool
    facts: dict[tuple[int, int], tuple]  # by leader and number: kind, key, name, text


def contents(kind: int, key: int, name: str, text: str, definition: int) -> tuple:
    """What a registration says, without the generation that a host gives it."""
    lines = text.split("\n", 3)
    if kind == definition and len(lines) == 4:
        text = "\n".join([lines[0], *lines[1:2], *lines[3:]]).rstrip("\n")
    return kind, key, name, text


def judge(history: list[dict], definition: int, unique: set[int]) -> dict[str, int]:
    """Counts of what was judged. ``definition`` is the number of that kind of registration,
    ``unique`` are the kinds of which a name has one. Raises Unjust.
    """
    nodes = {_ROOT: Node(0, 0, False, {})}
    leaderships: dict[str, int] = {}  # of each leader, its last
    hosts: dict[str, tuple[int, int, Counter]] = {}
    killed: set[str] = set()
    ever: dict[tuple, set[int]] = {}  # who has written a registration at all
    programs: dict[str, list] = {}
    written: dict[str, int] = {}
    led: list[tuple[float, str]] = []
    lost: list[float] = []
    late = ""
    counts = {"entries": 0, "positions": 0, "leaderships": 0}
    for event in history:
        what = event["what"]
        if what == "led":
            led.append((event["t"], event["leader"]))
            leaderships[event["leader"]] = len(led)
            counts["leaderships"] += 1
        elif what == "lost":
            lost.append(event["t"])
        elif what == "registered":
            programs.setdefault(event["leader"], []).append((event["name"], event["text"]))
        elif what == "meant":
            before = nodes.get(event["before"])
            if before is None:
                raise Unjust("chain", f"{event['leader']} goes on from what nobody has written")
            said = bytes.fromhex(event["said"])
            kind = event["kind"]
            chain = hashlib.sha256(bytes.fromhex(event["before"]) + bytes((kind,)) + said)
            if chain.digest()[:16].hex() != event["chain"]:
                raise Unjust("chain", f"{event['leader']} has computed another chain")
            leadership = leaderships[event["leader"]]
            node = _after(before, kind, said, leadership, definition, unique)
            nodes[event["chain"]] = node
            for (leader, _), fact in node.facts.items():
                ever.setdefault(fact, set()).add(leader)
            counts["entries"] += 1
            if kind == _BATCH:
                _compare_with_program(event["leader"], said, programs, written)
        elif what == "acked":
            late = late or _late(event, led, lost)
        elif what == "stands":
            counts["positions"] += 1
            is_next = event["host"].partition(",")[0] in killed
            _stands(event, nodes, hosts, definition, ever if is_next else {})
            killed.discard(event["host"].partition(",")[0])
        elif what == "killed":
            killed.add(event["host"])
    if late:
        raise Unjust("two writers", late)
    return counts


def _after(
    before: Node, kind: int, said: bytes, leadership: int, definition: int, unique: set[int]
) -> Node:
    if kind == _START:
        number = json.loads(said)["number"]
        sealed = before.sealed and number == before.leader
        return Node(leadership, number, sealed, before.facts)
    facts, me = dict(before.facts), before.leader
    if kind == _SEAL:
        return Node(leadership, me, True, {k: v for k, v in facts.items() if k[0] == me})
    removed, added = _read(said)
    for number in removed:
        facts.pop((me, number), None)
    for leader, number, fact in added:
        fact = contents(*fact, definition)
        left = [k for k, v in facts.items() if k[0] != me]
        same = [k for k in left if facts[k] == fact]
        if same:
            del facts[same[0]]
        elif fact[0] in unique:
            for k in left:
                if facts[k][:3] == fact[:3]:
                    del facts[k]
        facts[leader, number] = fact
    return Node(leadership, me, before.sealed, facts)


def _read(said: bytes) -> tuple[list[int], list[tuple[int, int, tuple]]]:
    (count,) = struct.unpack_from(">I", said)
    removed = list(struct.unpack_from(f">{count}Q", said, 4))
    at = 4 + 8 * count
    (count,) = struct.unpack_from(">I", said, at)
    at += 4
    added = []
    for _ in range(count):
        leader, number, kind, key, _, _, n, t, w = _HEAD.unpack_from(said, at)
        at += _HEAD.size
        name, text = said[at : at + n].decode(), said[at + n : at + n + t].decode()
        at += n + t + w
        added.append((leader, number, (kind, key, name, text)))
    return removed, added


def _compare_with_program(leader: str, said: bytes, programs: dict, written: dict) -> None:
    """Batches have the program's registrations in its order. What was registered and removed
    between two looks is in none.
    """
    program, at = programs.get(leader, []), written.get(leader, 0)
    for _, _, (_, _, name, text) in _read(said)[1]:
        wanted = name, text.split("\n")[0]
        while at < len(program) and program[at] != wanted:
            at += 1
        if at == len(program):
            raise Unjust("lost", f"{leader} has written {wanted}, which it did not register then")
        at += 1
    written[leader] = at


def _late(event: dict, led: list[tuple[float, str]], lost: list[float]) -> str:
    """In words, an append that was acknowledged though it began when another one led, and the
    engine had not forgotten him.
    """
    mine = max((t for t, who in led if who == event["leader"]), default=-1.0)
    for t, who in led:
        is_later = who != event["leader"] and mine < t < event["began"]
        if is_later and not any(t <= when <= event["t"] for when in lost):
            return f"{event['leader']} wrote after {who} led: {event}"
    return ""


def _stands(event: dict, nodes: dict, hosts: dict, definition: int, ever: dict) -> None:
    who, at = event["host"], (event["epoch"], event["seq"])
    node = nodes.get(event["chain"])
    if node is None:
        raise Unjust("chain", f"{who} stands at {at}, which nobody has written")
    has = Counter(contents(*each, definition) for each in event["facts"])
    before = hosts.get(who, (0, 0, Counter()))
    wanted = Counter(node.facts.values())
    more, less = has - wanted, wanted - has
    if less:
        raise Unjust("fork", f"{who} at {at} lacks {sorted(less)}, and has {sorted(has)}")
    # It may still have what former leaders left, until the seal and as long as nothing says other.
    taken = {fact[:3] for fact in wanted if fact[0] == definition}
    for fact in more:
        # A bridge that was killed in a batch has not told of what it had registered.
        is_left = fact in before[2] or ever.get(fact, set()) - {node.leader}
        if node.sealed or not is_left or fact[:3] in taken:
            raise Unjust("fork", f"{who} at {at} has {fact}, which the writer had not")
    if (node.leadership, event["seq"]) < before[:2]:
        was = f"leadership {before[0]}, sequence {before[1]}"
        now = f"leadership {node.leadership}, sequence {event['seq']}"
        raise Unjust("way back", f"{who} went from {was} to {now}")
    hosts[who] = node.leadership, event["seq"], has

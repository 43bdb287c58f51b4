"""The bytes of a log: what was written is read, what nobody has written is refused, at no cost."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib

import pytest
from our_kinds import OURS as KINDS

import mdispatch as md
from mdispatch import facts
from mdispatch.cluster.engine import parse_url
from mdispatch.cluster.following import Follower, Position
from mdispatch.cluster.hosts import OPEN
from mdispatch.cluster.hosts import read as read_standing
from mdispatch.cluster.log import (
    BATCH,
    NO_CHAIN,
    SEAL,
    START,
    Entry,
    Fact,
    Garbled,
    Leader,
    batches,
    pack,
    pack_batch,
    pack_bytes,
    pack_facts,
    read_batch,
    read_facts,
    read_json,
    unpack,
    unpack_bytes,
)
from mdispatch.cluster.memory import MemoryEngine
from mdispatch.cluster.records import Record, read_record
from mdispatch.cluster.state import Manifest, State, start_bytes
from mdispatch.facts.kinds import COMPARED
from mdispatch.facts.native.constants import MD_TORCH, MD_UNIQUE

pytestmark = [pytest.mark.shared, pytest.mark.specification]

LEADER = Leader(7, "node-0", 42)


def fact(number, name="s::f", text="s::f(int x) -> int", kind=facts.DEF):
    return Fact(7, number, kind, 0, 42, 0, name, text, "/a/ops.py:1")


def packed_batches(removed, there):
    return [pack_batch(*each) for each in batches(removed, there)]


def batch(removed, there):
    (said,) = packed_batches(removed, there)
    return entry(said)


def entry(said, what=BATCH):
    return Entry(what, NO_CHAIN, said)


def begun():
    state = State()
    state.apply(entry(start_bytes(LEADER), START))
    return state


def test_what_was_packed_is_read():
    there = [
        fact(1),
        fact(2, "ns::ü", "ns::ü()\nPURE_FUNCTION tag\n12\nü()"),
        fact(3, kind=facts.IMPL),
    ]
    (said,) = packed_batches([5, 6], there)
    packed, chain = pack(BATCH, NO_CHAIN, said)
    found = unpack(packed)
    assert (found.what, found.chain, found.said) == (BATCH, chain, said)
    assert read_batch(found.said) == ((5, 6), there)
    assert pack(BATCH, chain, said)[1] != chain


TRAVELS = [number for number, kind in KINDS.items() if kind.hosts == COMPARED]
STACKS = [number for number in TRAVELS if not KINDS[number].rule & MD_UNIQUE]


def host_of(state, changes, there=()):
    """What a registry has after these changes: the texts, the newest last. As Region.apply."""
    there = [each for each in there if each.id not in changes.remove]
    renamed = dict(changes.rename)
    assert renamed.keys() <= {each.id for each in there}
    return [renamed.get(each.id, each) for each in there] + changes.add


@pytest.mark.parametrize("before", ["", "a", "ab", "aba", "abc"])
@pytest.mark.parametrize("after", ["a", "b", "ab", "ba", "baa", "cab", "abc", "acb", "bac"])
@pytest.mark.parametrize("kind", STACKS, ids=lambda number: KINDS[number].name)
@pytest.mark.parametrize("how", ["entry by entry", "by a snapshot"])
def test_of_what_stands_one_on_another_the_newest_is_the_leaders(before, after, kind, how):
    state = begun()
    first = [fact(n, text=text, kind=kind) for n, text in enumerate(before, 1)]
    there = host_of(state, state.change([], first))
    second = [fact(n, text=text, kind=kind)._replace(leader=8) for n, text in enumerate(after, 1)]
    if how == "entry by entry":
        state.apply(entry(start_bytes(LEADER._replace(number=8)), START))
        for each in second:
            there = host_of(state, state.change([], [each]), there)
            assert [f.text for f in there if f.leader == 8][-1] == each.text
        there = host_of(state, state.apply(entry(b'{"versions": {}}', SEAL)), there)
    else:
        later = State()
        later.leaders, later.leader = {8: LEADER._replace(number=8)}, 8
        later.facts = {each.id: each for each in second}
        later.is_sealed = True
        there = host_of(state, state.replaced_by(later), there)
    assert [f.text for f in there] == list(after)
    if how == "entry by entry":  # a leader that registers as the one before it changes nothing
        state.apply(entry(start_bytes(LEADER._replace(number=9)), START))
        changes = state.change([], [each._replace(leader=9) for each in second])
        assert (changes.remove, changes.add) == ([], [])
        assert [f.leader for f in host_of(state, changes, there)] == [9] * len(after)


@pytest.mark.parametrize("kind", TRAVELS, ids=lambda number: KINDS[number].name)
def test_a_fact_of_each_kind_that_travels_is_read(kind):
    there = [fact(1, "s::f", "line", kind)]
    (said,) = packed_batches([], there)
    assert read_batch(said) == ((), there)
    assert begun().apply(entry(said)).add == there


def test_two_facts_of_torch_library_say_the_same_whatever_place_they_replace():
    first, again = (fact(1, text=f"{each}\nreplaces /{each}.py:1", kind=MD_TORCH) for each in "ab")
    assert first.content == again._replace(text="a\nreplaces /b.py:1").content
    assert first.content != again.content


def test_many_facts_become_several_entries_that_fit():
    many = [fact(n, f"s::f{n}", random.Random(n).randbytes(20000).hex()) for n in range(60)]
    said = packed_batches(list(range(100_000)), many)
    assert len(said) > 2
    assert all(len(pack(BATCH, NO_CHAIN, each)[0]) < 1 << 20 for each in said)
    read = [read_batch(each) for each in said]
    assert [n for removed, _ in read for n in removed] == list(range(100_000))
    assert [each for _, some in read for each in some] == many


def test_every_cut_and_every_changed_byte_of_an_entry_is_refused_or_read_whole():
    (said,) = packed_batches([5], [fact(1), fact(2)])
    packed, _ = pack(BATCH, NO_CHAIN, said)
    some = random.Random(7)
    wrong = [packed[:size] for size in range(len(packed))] + [packed + b"x"]
    for at in range(len(packed)):
        wrong.append(
            packed[:at] + bytes([packed[at] ^ (1 << some.randrange(8))]) + packed[at + 1 :]
        )
    for data in wrong:
        try:
            found = unpack(data)
        except Garbled:
            continue
        assert found.said == said  # the chain, or what it is: compared by who follows
    for _ in range(3000):  # what is inside is not protected by the length
        changed = bytearray(said)
        changed[some.randrange(len(said))] = some.randrange(256)
        try:
            begun().apply(entry(bytes(changed)))
        except Garbled:
            continue


@pytest.mark.parametrize(
    "data",
    [
        b"md\x01\x02" + bytes(16) + struct.pack(">I", 1 << 31) + zlib.compress(bytes(100)),
        b"md\x01\x02" + bytes(16) + struct.pack(">I", 100) + zlib.compress(bytes(64 << 20), 9),
    ],
    ids=["declares much", "unpacks to much"],
)
def test_a_bomb_is_refused_before_memory_is_taken(data):
    tracemalloc.start()
    try:
        with pytest.raises(Garbled):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", 1 << 31),
        struct.pack(">II", 0, 1 << 13),
        *[
            struct.pack(">I", 0) + pack_facts([fact(1, kind=kind)])
            for kind in (*KINDS, 0, 15, 99)
            if kind not in TRAVELS
        ],
        struct.pack(">I", 0) + pack_facts([fact(1, name="")]),
        struct.pack(">I", 0) + pack_facts([fact(1, name="x" * 2000)]),
        struct.pack(">I", 0) + pack_facts([fact(1, text="s::f()\n\nmany\n")]),
        struct.pack(">I", 0) + pack_facts([fact(1, text="s::f()\n\n" + "9" * 5000 + "\n")]),
        struct.pack(">I", 0) + pack_facts([fact(1)._replace(leader=8)]),
    ],
)
def test_a_batch_that_no_leader_writes_changes_nothing(said):
    state = begun()
    with pytest.raises(Garbled):
        state.apply(entry(said))
    assert state.facts == {}


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100000,
        b'{"number": -1}',
        b'{"number": 1e999}',
        b'{"number": 7, "host": "a\\u001b[2J", "pid": 1}',
        b'{"number": true, "host": "a", "pid": 1}',
    ],
)
def test_a_start_that_no_leader_writes_changes_nothing(said):
    state = State()
    with pytest.raises(Garbled):
        state.apply(entry(said, START))
    assert state.leaders == {}


def test_manifests_chunks_and_records_of_anybody_are_refused():
    state = begun()
    for n in range(3):
        state.apply(batch([], [fact(n, f"s::f{n}")]))
    chunks = state.chunks()
    data = Manifest(1, NO_CHAIN, 4, NO_CHAIN, tuple(chunks), ()).packed(state)
    there, read = Manifest.read(data)
    for name, chunk in chunks.items():
        read.read_chunk(name, chunk)
    assert read.facts == state.facts
    assert (there.seq, read.leader, read.leaders) == (4, 7, {7: LEADER})
    name, chunk = chunks.popitem()
    with pytest.raises(Garbled):
        read.read_chunk(name, chunk + b"x")
    with pytest.raises(Garbled):
        unpack_bytes(pack_bytes(b"x")[:-1])
    some = random.Random(7)
    for _ in range(3000):
        changed = bytearray(data)
        changed[some.randrange(len(data))] = some.randrange(256)
        for read_it in (Manifest.read, read_record, read_json):
            try:
                read_it(bytes(changed))
            except Garbled:
                continue


def test_a_later_leader_takes_over_what_is_alike_and_the_seal_ends_the_rest():
    state = begun()
    old = [fact(1, "s::a"), fact(2, "s::b"), fact(3, "s::c"), fact(4, "s::a", "k", facts.IMPL)]
    state.apply(batch([], old))
    later = Leader(8, "node-1", 1)
    assert state.apply(entry(start_bytes(later), START)).remove == []
    new = [
        fact(1, "s::a")._replace(leader=8),
        fact(2, "s::b", "s::b(str x) -> int")._replace(leader=8),
    ]
    changes = state.apply(batch([], new))
    assert changes.rename == [((7, 1), new[0])]
    assert changes.remove == [(7, 2)]
    assert changes.add == [new[1]]
    sealed = state.apply(entry(b'{"versions":{}}', 3))
    assert sealed.remove == [(7, 3), (7, 4)]
    assert list(state.facts.values()) == new


def test_a_definition_that_the_next_leader_ended_can_be_registered_again():
    """It is no change where the former leader's is still there, and else a new definition."""
    state = begun()
    state.apply(batch([], [fact(1)]))
    state.apply(entry(start_bytes(LEADER._replace(number=8)), START))
    texts = ["s::f(str x) -> int", "s::f(int x) -> int"]
    theirs = [fact(n, text=text)._replace(leader=8) for n, text in enumerate(texts)]
    assert state.apply(batch([], theirs[:1])).remove == [(7, 1)]
    assert state.apply(batch([0], [])).remove == [(8, 0)]
    assert state.apply(batch([], theirs[1:])).add == theirs[1:]
    assert list(state.facts) == [(8, 1)]


def test_a_chunk_is_the_one_that_its_name_says():
    """Another one of the same leader, which could be read, is not."""
    state = begun()
    some = [pack_bytes(pack_facts([fact(n)])) for n in range(2)]
    names = [f"chunk:{hashlib.sha256(each).hexdigest()}" for each in some]
    with pytest.raises(Garbled, match="not the one that its snapshot names"):
        state.read_chunk(names[0], some[1])
    assert state.facts == {}
    state.read_chunk(names[0], some[0])
    assert list(state.facts.values()) == [fact(0)]


@pytest.mark.parametrize(
    "more", [b"\0", b"x" * 64, pack_facts([]), pack_facts([fact(2)])], ids=range(4)
)
def test_bytes_behind_the_facts_are_refused(more):
    said = pack_facts([fact(1)])
    assert read_facts(said) == [fact(1)]
    with pytest.raises(Garbled, match="something follows"):
        read_facts(said + more)
    with pytest.raises(Garbled, match="something follows"):
        read_batch(pack_batch([], [fact(1)]) + more)


def test_what_is_struck_out_again_and_again_ends_once():
    state = begun()
    state.apply(batch([], [fact(1), fact(2)]))
    assert state.apply(batch([1, 1, 99, 1], [])).remove == [(7, 1)]
    assert state.apply(batch([1], [])).remove == []
    later = LEADER._replace(number=8)
    state.apply(entry(start_bytes(later), START))
    assert state.apply(batch([2], [])).remove == []  # it is the former leader's
    texts = ["s::f(str x) -> int", "s::f(bool x) -> int"]
    theirs = [fact(n, text=text)._replace(leader=8) for n, text in enumerate(texts)]
    assert state.apply(batch([], theirs)).remove == [(7, 2)]
    assert state.apply(entry(b'{"versions":{}}', 3)).remove == []


def test_what_a_later_leader_has_taken_the_place_of_is_not_struck_out_for_it():
    state = begun()
    state.apply(batch([], [fact(1)]))
    state.apply(entry(start_bytes(LEADER._replace(number=8)), START))
    texts = ["s::f(int x) -> int", "s::f(str x) -> int"]
    theirs = [fact(n, text=text)._replace(leader=8) for n, text in enumerate(texts)]
    assert state.apply(batch([], theirs[:1])).rename == [((7, 1), theirs[0])]
    changes = state.apply(batch([0], theirs[1:]))
    assert (changes.remove, changes.rename, changes.add) == ([(8, 0)], [], theirs[1:])


# --- the types in a host's record -----------------------------------------------------------------


class Array:
    pass


def record_of(registry):
    record = Record.of("bridge", "x", Position(), 1, OPEN)
    return record.of_workers(registry.dispatcher.facts, {})


@pytest.mark.shared
def test_a_record_has_the_types_of_workers_and_can_be_read_however_many_there_are(
    registry, tmp_path
):
    program = tmp_path / "many_types.py"
    program.write_text("""
import mdispatch as md
md.Library("s", "FRAGMENT")
for number in range(1000):
    cls = type(f"{'é' * 20}{number}", (), {})
    globals()[cls.__name__] = cls
    md.register_type(cls, "CPU")
print("there", flush=True)
input()
""")
    md.register_type(Array, "CPU").close()
    env = os.environ | {"MDISPATCH_REGISTRY": registry.address}
    with subprocess.Popen([sys.executable, str(program)], env=env, stdin=-1, stdout=-1) as worker:
        assert worker.stdout.readline() == b"there\n"
        read = read_record(record_of(registry).packed())
        worker.communicate(b"\n")
    assert 50 < len(read.types) < 1000
    assert {each.pid for each in read.types} == {worker.pid}
    assert read.types[0].name.endswith("é0")
    assert [each.keys for each in read.types] == ["CPU"] * len(read.types)


@pytest.mark.parametrize(
    "types",
    [
        {},
        [1],
        [[1, "a", "CPU"]],
        [[-1, "a", "CPU", "f:1"]],
        [[1, "", "CPU", "f:1"]],
        [[1, "a\n", "CPU", "f:1"]],
        [[1, "a", ["CPU"], "f:1"]],
        [[1, "a", "CPU", "f" * 5000]],
        [[1, "a", "CPU", "f:1"]] * 1001,
    ],
)
def test_types_of_a_record_that_are_none_are_refused(types):
    record = json.loads(Record.of("bridge", "x", Position(), 1, OPEN).packed())
    with pytest.raises(Garbled):
        read_record(json.dumps(record | {"types": types}).encode())
    good = [[1, "a.B", "CPU, CUDA", "f.py:1"]]
    read = read_record(json.dumps(record | {"types": good}).encode())
    assert read.types == [(1, "a.B", "CPU, CUDA", "f.py:1")]


@pytest.mark.parametrize(
    "differences", [{}, [1], [[1]], [["1", "text"]], [[1, 2]], [[1, "text"]] * 17]
)
def test_differences_of_a_record_that_are_none_are_refused(differences):
    record = json.loads(Record.of("bridge", "x", Position(), 1, OPEN).packed())
    with pytest.raises(Garbled):
        read_record(json.dumps(record | {"differences": differences}).encode())
    read = read_record(json.dumps(record | {"differences": [[1, "text"]] * 16}).encode())
    assert read.differences == [(1, "text")] * 16


def test_the_record_of_a_leader_has_64_kib_at_most():
    record = start_bytes(LEADER)
    fits = record + b" " * ((1 << 16) - len(record))
    State().apply(entry(fits, START))
    with pytest.raises(Garbled):
        State().apply(entry(fits + b" ", START))


def test_an_epoch_that_no_leader_has_is_refused_in_a_record():
    record = json.loads(Record.of("bridge", "x", Position(), 1, OPEN).packed())
    highest = (1 << 48) - 1
    assert read_record(json.dumps(record | {"epoch": highest}).encode()).epoch == highest
    with pytest.raises(Garbled):
        read_record(json.dumps(record | {"epoch": highest + 1}).encode())


def test_a_follower_that_cannot_go_on_says_where_the_other_one_was(run):
    at = Position(3, b"r" * 32, 7, b"c" * 32)
    follower = Follower(MemoryEngine(parse_url(f"memory:gone?run={run}")))
    assert not follower.resume(at)
    assert follower.at == at
    assert follower.astray


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", "1.5", ""])
def test_how_a_host_stands_is_read_whatever_a_member_has_written(number):
    assert read_standing(f"open\nredis\nnode-0[7]\n{number}\n12").epoch == 0
    assert read_standing(f"open\nredis\nnode-0[7]\n3\n{number}").seq == 0

"""The table of kinds (KINDS in facts/registration.py), one test for each of its cells: a
registration of each kind, through each way.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import kinds_everywhere
import pytest
from cluster_hosts import Host
from commands import environment
from kinds_everywhere import SAMPLES
from our_kinds import OURS as KINDS
from patience import limit
from redis_server import RedisServer
from torch_store import TorchStore

import mdispatch as md
from mdispatch import choices, errors, facts
from mdispatch.facts.kinds import AGREED, COMPARED, REFUSED, SEEN, STAYS
from mdispatch.facts.native.constants import MD_CHOICE

pytestmark = [pytest.mark.shared, pytest.mark.specification]

SUPPORT = Path(kinds_everywhere.__file__).parent
ROOT = SUPPORT.parents[1]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda number: KINDS[number].name)


def test_every_kind_has_a_sample():
    assert SAMPLES.keys() == KINDS.keys()


def test_the_page_has_the_table():
    """If this fails, run python docs/kinds.py."""
    spec = importlib.util.spec_from_file_location("kinds_page", ROOT / "docs" / "kinds.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.page(page.PAGE.read_text()) == page.PAGE.read_text()


def judge(word, kind, found):
    """Asserts that what a worker has found is what the table says."""
    same, other, is_there = found[facts.kind_of(kind).name]
    assert is_there == (word in (COMPARED, AGREED, SEEN))
    if word == REFUSED:
        assert same[0] in ("AgreementScopeError", "ChoiceScopeError")
        return
    assert same is None, same[1]
    if word in (COMPARED, AGREED):
        assert other is not None, "nobody has compared"
        assert other[0] == SAMPLES[kind].error, other[1]
        assert "kinds_everywhere.py:" in other[1] or "/ops/ways.py:1" in other[1]
    else:
        assert word in (SEEN, STAYS)


# --- the ways of one host ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_one_host(tmp_path_factory):
    """What a worker has found that came through each way."""
    folder = tmp_path_factory.mktemp("ways")
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import kinds_everywhere; kinds_everywhere.drive({str(folder)!r}, {limit(20)})",
        ],
        env=environment() | {"PYTHONPATH": str(SUPPORT)},
        check=True,
        timeout=limit(60),
    )
    return {each.name: json.loads(each.read_text()) for each in folder.iterdir()}


@pytest.mark.dear
@pytest.mark.parametrize("way", ["same host", "fork", "spawn"])
@kinds
def test_another_member_of_the_host(kind, way, on_one_host):
    judge(KINDS[kind].members, kind, on_one_host[way])


# --- other hosts ----------------------------------------------------------------------------------


def on_another_host(url, run, folder):
    """What a worker on another host has found, and the process of the leader."""
    hosts = [Host(f"node-{n}", folder) for n in range(2)]
    begin = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import kinds_everywhere\n"
    try:
        leader = hosts[0].program(f"cluster:{url}")
        leader.do(f"{begin}here = kinds_everywhere.register_all({limit(20)})")
        hosts[1].bridge(url)
        worker = hosts[1].program(run)
        return worker.do(f"{begin}result = kinds_everywhere.found({limit(20)})"), leader.pid
    finally:
        for host in hosts:
            host.close()


@pytest.fixture(scope="module")
def over_redis(a_server: RedisServer, tmp_path_factory):
    # A run of its own: a worker that comes back to this module makes the fixture again.
    folder = tmp_path_factory.mktemp("redis")
    run = f"kinds-{os.getpid()}-{folder.name}"
    return on_another_host(a_server.url(run, lease=10), run, folder)


@pytest.fixture(scope="module")
def over_torch(a_store: TorchStore, tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    run = f"kinds-{os.getpid()}-{folder.name}"
    return on_another_host(a_store.url(run), run, folder)


@pytest.mark.dear
@pytest.mark.parametrize("engine", ["over_redis", "over_torch"])
@kinds
def test_another_host(kind, engine, request):
    found, leader = request.getfixturevalue(engine)
    word = KINDS[kind].hosts
    judge(word, kind, found)
    if word == COMPARED:  # the error names the leader's host, process and location
        text = found[facts.kind_of(kind).name][1][1]
        if SAMPLES[kind].error != "MainNeverArrivedError":
            assert f"node-0[{leader}]:" in text
            assert f"pid {leader} on node-0" in text or "within" in text


SHOP = """
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={timeout})
lib.define("norm() -> str")
for each in ("exact", "fast"):
    lib.impl("norm", lambda each=each: each, provider=each)
"""


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(2)]
    yield made
    for host in made:
        host.close()


@pytest.fixture
def begun(hosts, a_server: RedisServer, run):
    """The leader, and a worker of another host."""
    url, shop = a_server.url(run), SHOP.format(timeout=limit(20))
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(shop)
    hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(shop)
    return leader, worker, url


def catches_up(leader, worker, name):
    """Until the other host has all that the leader has registered so far."""
    leader.do(f"lib.define('{name}() -> ()')")
    worker.do(f"md.wait_for_def('shop::{name}', {limit(20)})")


@pytest.mark.thorough
def test_a_priority_of_the_leader_holds_on_all_hosts_until_it_ends(begun):
    leader, worker, _ = begun
    call = "result = md.ops.shop.norm()"
    assert leader.do(call) == worker.do(call) == "fast"
    leader.do("handle = md.set_priority('shop::norm', ['exact'])")
    catches_up(leader, worker, "one")
    assert leader.do(call) == worker.do(call) == "exact"
    worker.do("own = md.set_priority('shop::norm', ['exact'])")
    kind, text = worker.fails("md.set_priority('shop::norm', ['fast'])")
    assert kind == "PriorityMismatchError"
    assert f"there: node-0[{leader.pid}]:/ops/shop.py:1 (pid {leader.pid} on node-0)" in text
    leader.do("handle.close()")
    catches_up(leader, worker, "two")
    assert leader.do(call) == worker.do(call) == "fast"


@pytest.mark.thorough
def test_errors_of_calls_name_the_leaders_process(begun):
    leader, worker, _ = begun
    leader.do("lib.impl(lib.define('late(int x) -> int'), lambda x: x)")
    catches_up(leader, worker, "one")
    process = f"(pid {leader.pid} on node-0)"
    kind, text = worker.fails("md.ops.shop.late(1)")
    assert kind == "LocalKernelMissingError"
    assert f"registered at node-0[{leader.pid}]:/ops/shop.py:1 by {process[1:-1]}" in text
    told = worker.do("result = md.default_registry().dump('shop::late')")
    assert f"/ops/shop.py:1, {process[1:-1]}" in told


@pytest.mark.thorough
def test_hosts_have_the_leaders_types_and_of_others_those_that_the_leader_has_taken_over(
    hosts, begun, run
):
    leader, worker, url = begun
    beside = hosts[0].program(run)
    beside.do(SHOP.format(timeout=limit(20)))
    leader.do("kept = md.register_type(bytes, 'CPU')")
    beside.do("md.register_type(bytes, 'CPU'); md.register_type(bytearray, 'CUDA')")
    catches_up(leader, worker, "one")
    worker.do(UNTIL_TAKEN_OVER.format(name="builtins.bytearray"))
    kind, text = worker.fails("md.register_type(bytearray, 'CPU')")
    assert kind == "TypeKeysMismatchError"
    assert f"type builtins.bytearray is registered for CUDA in pid {beside.pid} on node-0" in text
    there = """
from mdispatch.facts import TYPE
backing = md.default_registry().dispatcher.facts
result = [(fact.name, fact.pid) for fact in backing.registrations_since(TYPE, 0)[1]]
"""
    first = hosts[1].processes[0].pid
    both = "builtins.bytearray", "builtins.bytes"
    assert sorted(worker.do(there)) == [[name, first] for name in both]
    # They end with their bridge, and come again with the next one.
    hosts[1].processes[0].kill()
    hosts[1].processes[0].wait()
    second = hosts[1].bridge(url).pid
    catches_up(leader, worker, "two")
    assert sorted(worker.do(there)) == [[name, second] for name in both]
    beside.kill()  # it was first on that host
    leader.do("kept.close(); md.register_type(bytearray, 'CPU')")
    catches_up(leader, worker, "three")
    worker.do("md.register_type(bytearray, 'CPU'); md.warm_up([])")
    assert sorted(worker.do(there)) == [
        ["builtins.bytearray", pid] for pid in sorted((worker.pid, second))
    ]


@pytest.mark.thorough
def test_the_leaders_own_type_takes_the_place_of_one_that_it_has_taken_over(on_three):
    leader, one, two, _ = on_three
    one.do("kept = md.register_type(bytes, 'CPU')")
    two.do(UNTIL_TAKEN_OVER.format(name="builtins.bytes"))
    leader.do("own = md.register_type(bytes, 'CUDA')")
    catches_up(leader, one, "here")
    kind, text = one.fails("md.warm_up([])")
    assert kind == "WarmUpError"
    assert f"type builtins.bytes is registered for CUDA in pid {leader.pid} on node-0" in text
    assert two.fails("md.register_type(bytes, 'CPU')")[0] == "TypeKeysMismatchError"
    leader.do("own.close()")  # what the worker has had all the time counts again
    two.do(
        UNTIL_TAKEN_OVER.format(name="builtins.bytes").replace(
            "not keys_there()", "keys_there() != ['CPU']"
        )
    )
    one.do("md.warm_up([])")


#: Until another host's type, or the leader's, is in this host's registry.
UNTIL_TAKEN_OVER = """
import os
import mdispatch as md
from mdispatch.facts import AS_BRIDGE, TYPE
backing = md.default_registry().dispatcher.facts
def keys_there():
    return [
        fact.body for fact in backing.registrations_since(TYPE, 0)[1]
        if fact.name == {name!r} and (fact.interpreter == AS_BRIDGE or fact.pid != os.getpid())
    ]
seq = 0
while not keys_there():
    seq, _ = backing.await_change(seq, 1)
result = keys_there()
"""
ENDED = UNTIL_TAKEN_OVER.replace("while not", "while")


@pytest.fixture
def on_three(hosts, begun, tmp_path):
    """Workers of two hosts, of which neither has the leader, beside it and a worker there."""
    leader, one, url = begun
    third = Host("node-2", tmp_path)
    hosts.append(third)
    third.bridge(url)
    run = url.partition("run=")[2].partition("&")[0]
    two, beside = third.program(run), hosts[0].program(run)
    for each in (two, beside):
        each.do(SHOP.format(timeout=limit(20)))
    return leader, one, two, beside


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["to a host", "back", "to the leader's host", "from there"])
def test_a_type_of_two_hosts_and_not_of_the_leader_is_told_on_the_second(on_three, way):
    _, one, two, beside = on_three
    first, second, node = {
        "to a host": (one, two, 1),
        "back": (two, one, 2),
        "to the leader's host": (one, beside, 1),
        "from there": (beside, two, 0),
    }[way]
    first.do("kept = md.register_type(bytes, 'CPU')")
    assert second.do(UNTIL_TAKEN_OVER.format(name="builtins.bytes")) == ["CPU"]
    kind, text = second.fails("md.register_type(bytes, 'CUDA')")
    assert kind == "TypeKeysMismatchError"
    told = f"type builtins.bytes is registered for CPU in pid {first.pid} on node-{node}, and here"
    assert told in text
    assert f"there: node-{node}[{first.pid}]:/ops/shop.py:1 (CPU)" in text
    second.do("own = md.register_type(bytes, 'CPU'); md.warm_up([])")  # the same is welcome
    first.do("md.warm_up([])")


@pytest.mark.thorough
def test_a_type_that_was_taken_over_stays_as_it_is_while_others_come(on_three):
    _, one, two, _ = on_three
    number = (
        UNTIL_TAKEN_OVER + "result = [f.seq for f in backing.registrations('builtins.bytes')[2]]"
    )
    one.do("kept = [md.register_type(bytes, 'CPU')]")
    first = two.do(number.format(name="builtins.bytes"))
    for cls in ("bytearray", "memoryview"):
        one.do(f"kept.append(md.register_type({cls}, 'CPU'))")
        assert two.do(number.format(name=f"builtins.{cls}")) == first


@pytest.mark.thorough
def test_a_type_that_two_hosts_register_at_once_is_told_by_a_warm_up_of_one_of_them(on_three):
    _, one, two, _ = on_three
    for worker, key in ((one, "CPU"), (two, "CUDA")):
        worker.begin(f"kept = md.register_type(bytes, {key!r})")
    errors = [each.end()[1] for each in (one, two)]
    for worker in (one, two):
        worker.do(UNTIL_TAKEN_OVER.format(name="builtins.bytes"))
        worker.begin("md.warm_up([])")
    told = [each.end()[1] for each in (one, two)]
    assert [each is None for each in told].count(False) == 1, (errors, told)
    assert "type builtins.bytes is registered for " in next(filter(None, told))[1]


@pytest.mark.thorough
def test_a_type_that_was_taken_over_ends_with_its_worker_and_the_next_one_counts(on_three):
    leader, one, two, _ = on_three
    one.do("kept = md.register_type(bytes, 'CPU')")
    two.do(UNTIL_TAKEN_OVER.format(name="builtins.bytes"))
    one.do("kept.close()")
    two.do(ENDED.format(name="builtins.bytes"))
    two.do("kept = md.register_type(bytes, 'CUDA')")
    until = UNTIL_TAKEN_OVER.replace("not keys_there()", "keys_there() != ['CUDA']")
    one.do(until.format(name="builtins.bytes"))  # its own host may have the former one for longer
    assert one.fails("md.register_type(bytes, 'CPU')")[0] == "TypeKeysMismatchError"
    assert leader.do("result = md.default_registry().check_invariants()") is None


@pytest.mark.thorough
def test_a_type_of_a_worker_that_has_ended_holds_no_leader(on_three, begun, hosts):
    leader, one, two, beside = on_three
    one.do("kept = md.register_type(bytes, 'CPU')")
    two.do(UNTIL_TAKEN_OVER.format(name="builtins.bytes"))
    for each in (leader, one, beside):
        each.kill()
    new = hosts[0].program(f"cluster:{begun[2]}")
    new.do(SHOP.format(timeout=limit(20)))
    catches_up(new, two, "again")
    new.do("md.seal()")
    two.do(ENDED.format(name="builtins.bytes"))


@pytest.mark.thorough
def test_a_type_that_the_leader_registers_later_is_compared_by_the_next_warm_up(begun):
    leader, worker, _ = begun
    worker.do("md.register_type(bytes, 'CUDA')")
    leader.do("md.register_type(bytes, 'CPU')")
    catches_up(leader, worker, "one")
    kind, text = worker.fails("md.warm_up([])")
    assert kind == "WarmUpError"
    assert f"type builtins.bytes is registered for CPU in pid {leader.pid} on node-0" in text
    assert f"there: node-0[{leader.pid}]:/ops/shop.py:1 (CPU)" in text


# --- a kind that a stranger has written -----------------------------------------------------------


@pytest.mark.thorough
def test_a_kind_that_does_not_go_to_other_hosts_is_refused_on_all(begun):
    """The toy of support/toy.py, whose kind says so."""
    leader, worker, _ = begun
    code = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import toy\n"
        "toy.greet('ann', 'hello', timeout=0.1)"
    )
    kind, text = leader.fails(code)
    assert kind == "NotSharedError"
    assert "the greeting of ann cannot be registered in" in text
    assert "Register it in a registry of one host." in text
    kind, text = worker.fails(code)
    assert (kind, "did not greet ann" in text) == ("MainNeverArrivedError", True)


# --- a wait for what a library in C++ registers ---------------------------------------------------

#: As the watch verifies what it found: the location, in C++ or in Python, and the seconds of the
#: wait.
VERIFY = """
import mdispatch as md
from mdispatch.torch.kind import torch_name
from mdispatch.torch.registrations import hold
hold(
    md.default_registry().dispatcher, torch_name("engine::step"), "engine::step() -> ()",
    {place!r}, timeout={timeout},
)
"""
CPP = "csrc/bindings.cpp:12, in /srv/engine/_C.so"
CAUSE = "A wait makes the leader look on the leader's host only: have node-0["


@pytest.mark.thorough
@pytest.mark.parametrize("place", [CPP, "csrc/bindings.cpp:12"])
def test_a_wait_for_cpp_on_another_host_names_the_cause_and_what_to_do(begun, place):
    leader, worker, _ = begun
    kind, text = worker.fails(VERIFY.format(place=place, timeout=0.1))
    assert kind == "MainNeverArrivedError"
    assert f"  here:  {place}" in text
    assert f"{CAUSE}{leader.pid}] load the library by torch.ops.load_library" in text
    leader.do(VERIFY.format(place=CPP, timeout=0.1))
    worker.do(VERIFY.format(place=place, timeout=limit(20)))


@pytest.mark.thorough
def test_a_wait_that_can_have_no_such_cause_does_not_name_it(hosts, begun, run):
    _, worker, _ = begun
    kind, text = worker.fails(VERIFY.format(place="/ops/shop.py:5", timeout=0.1))
    assert (kind, CAUSE in text) == ("MainNeverArrivedError", False)
    beside = hosts[0].program(run)  # on the leader's host, where it can ask
    kind, text = beside.fails(VERIFY.format(place=CPP, timeout=0.1))
    assert (kind, CAUSE in text) == ("MainNeverArrivedError", False)


# --- pickles and files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_of_each():
    """The registrations by kind of a registry that has one of each."""
    there = {}
    with md.Registry.local() as registry:
        backing = registry.dispatcher.facts
        for kind, each in KINDS.items():
            if each.rule:
                there[kind] = backing.register(
                    kind, 0, f"ways::{each.name}", "text", "/ops/ways.py:1"
                )
        backing.claim("(ways)", "/ops/ways.py:1")
        [there[facts.CLAIM]] = backing.registrations("(ways)")[2]
        yield there


@kinds
def test_a_pickle(kind, one_of_each, tmp_path):
    fact = one_of_each[kind]
    for how in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled") as caught:
            how(fact)
        assert fact.name in str(caught.value)
        assert fact.where in str(caught.value)
    word = KINDS[kind].pickles
    assert ("the operator itself" in str(caught.value)) == (word == COMPARED)
    if word != COMPARED:
        assert word == REFUSED
        return
    same, other = operators_from_a_pickle(tmp_path)
    assert same == "7"
    assert other.startswith("SchemaMismatchError: ways::f has another schema where it was pickled")


LOADS = """
import pickle, sys
import mdispatch as md
lib = md.Library("ways", "DEF")
lib.define(f"f({sys.argv[2]} x) -> {sys.argv[2]}")
lib.impl("f", lambda x: x)
file, text = sys.argv[1], sys.argv[2]
if sys.argv[3] == "dump":
    open(file, "wb").write(pickle.dumps(md.ops.ways.f.default))
else:
    operator = pickle.load(open(file, "rb"))
    try:
        print(operator(7))
    except md.errors.MdispatchError as error:
        print(f"{type(error).__name__}: {error}")
"""


def operators_from_a_pickle(folder):
    """What a pickled operator says where the definition is the same, and where it is another."""
    said = []
    for schema, what in (("int", "dump"), ("int", "load"), ("str", "load")):
        ran = subprocess.run(
            [sys.executable, "-c", LOADS, str(folder / "pickle"), schema, what],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=limit(60),
        )
        said.append(ran.stdout.strip())
    return said[1:]


def test_what_ends_something_of_an_interpreter_says_that_it_is_not_pickled():
    with md.Registry.local() as registry:
        handles = [
            md.set_priority("ways::f", ["fast"], registry=registry),
            md.priority("ways::f", ["fast"], registry=registry),
            md.register_type(type("Thing", (), {}), "CPU"),
        ]
        for handle in handles:
            with handle, pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(handle)
        md.choose("ways::f", 1, [16], lambda: 16, registry=registry)
        with pytest.raises(TypeError, match=r"a file \(mdispatch.choices.export\)"):
            pickle.dumps(choices.made(registry=registry)[0])


@kinds
def test_a_file(kind, one_of_each, tmp_path):
    file = tmp_path / "choices.json"
    word = KINDS[kind].files
    if word == REFUSED:
        with pytest.raises(errors.InvalidArgumentError) as caught:
            choices.export(file, [one_of_each[kind]])
        assert one_of_each[kind].name in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        return
    assert (word, kind) == (COMPARED, MD_CHOICE)
    with md.Registry.local() as before, md.Registry.local() as after:
        md.choose("ways::f", 1, [16, 64], lambda: 64, registry=before)
        assert choices.export(file, registry=before) == 1
        with pytest.raises(errors.ChoicesFileError, match="other candidates"):
            choices.load(file, "ways::f", [16, 32], registry=after)
        assert choices.load(file, "ways::f", [16, 64], registry=after) == 1
        assert md.choose("ways::f", 1, [16, 64], kinds_everywhere.never, registry=after) == 64

"""A leader that restarts with other code, and hosts without policy=follow: they stay as they are
until a person accepts it. Real processes, and one real Redis.
"""

from __future__ import annotations

import json

import pytest
from cluster_hosts import Host
from json_keys import strangers
from patience import limit
from redis_server import RedisServer

from mdispatch.cluster import connect, parse_url
from mdispatch.errors import InvalidArgumentError

pytestmark = [pytest.mark.shared, pytest.mark.specification]

WAIT = limit(30)

SHOP = """
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={wait})
lib.define("scale(int x, int by={by}) -> int")
lib.impl("scale", lambda x, by={by}: x * by, "CompositeExplicitAutograd")
"""
CALL = "result = handle(3)"


def shop(by=2):
    return SHOP.format(wait=WAIT, by=by)


def add(name):
    return f"lib.define('{name}(int x) -> int')\n"


def wait(name, timeout=WAIT):
    return f"md.wait_for_def('shop::{name}', {timeout})"


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(3)]
    yield made
    for host in made:
        host.close()


@pytest.fixture
def url(a_server: RedisServer, run):
    return a_server.url(run)


@pytest.fixture
def held(hosts, url, run):
    """A leader with by=2 that was killed, another one with by=5, and a host that holds it; its
    worker has the first one's operator as ``handle``. On the third host another leader is followed.
    """
    first = hosts[0].program(f"cluster:{url}")
    first.do(shop() + add("old"))
    hosts[1].bridge(url)
    hosts[2].bridge(f"{url}&policy=follow")
    worker = hosts[1].program(run)
    worker.do(shop() + wait("old") + "\nhandle = md.ops.shop.scale.default")
    hosts[2].hears("is open")
    first.kill()
    second = hosts[0].program(f"cluster:{url}")
    second.do(shop(by=5) + add("new"))
    return first, second, worker, hosts[1].hears("is held")


def test_the_policy_is_hold_unless_it_is_follow():
    url = "redis://there/0?run=x"
    assert parse_url(url).holds
    assert parse_url(f"{url}&policy=hold").holds
    assert not parse_url(f"{url}&policy=follow").holds
    with pytest.raises(InvalidArgumentError, match="hold or follow"):
        parse_url(f"{url}&policy=none")


@pytest.mark.thorough
def test_a_leader_with_other_code_is_held_until_a_person_accepts_it(hosts, url, run, held):
    first, second, worker, said = held
    assert f"node-0[{second.pid}]" in said
    assert "would end def shop::scale" in said
    follows = hosts[2].program(run)
    follows.do(shop(by=5) + wait("new"))
    # The host is as the first leader left it.
    assert worker.do(CALL) == 6
    kind, text = hosts[1].program(run).fails(shop(by=5))
    assert kind == "SchemaMismatchError"
    assert f"(pid {first.pid} on node-0)" in text
    kind, text = worker.fails(wait("new", 0.2))
    assert kind == "NameMismatchError"
    assert "is held since" in text
    assert "`mdispatch cluster accept`" in text
    while True:  # the record of the host comes with the next third of the lease
        told = hosts[2].command("cluster", url)
        assert told.returncode == 1, told.stderr
        if "is held" in told.stdout:
            break
    assert "mdispatch cluster accept" in told.stdout
    answer = json.loads(hosts[2].command("cluster", "--json", url).stdout)
    assert strangers("cluster", answer) == []
    [there] = [each for each in answer["hosts"] if each["host"] == "node-1"]
    assert (there["state"], there["behind"]) == ("held", True)
    assert "would end def shop::scale" in there["why"]

    told = hosts[2].command("cluster", "--json", "accept", url)
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert strangers("cluster", answer) == []
    assert answer["leader"] == f"node-0[{second.pid}]"
    hosts[1].hears("is open")
    worker.do(wait("new"))
    assert worker.fails(CALL)[0] == "OperatorGoneError"
    kind, text = worker.fails("md.ops.shop.scale(3)")
    assert kind == "KernelOutdatedError"
    assert "by=5" in text
    again = hosts[1].program(run)
    again.do(shop(by=5))
    assert again.do("result = md.ops.shop.scale(3)") == 15
    # What a later leader with the same code registers is no change, and nobody asks again.
    heard = len(hosts[1].heard)
    second.kill()
    third = hosts[0].program(f"cluster:{url}")
    third.do(shop(by=5) + add("new") + add("more"))
    hosts[1].hears("is open")  # before that nobody may seem to lead, which ends waits
    again.do(wait("more"))
    assert not any("is held" in line for line in [*hosts[1].heard[heard:], *hosts[1].said.queue])


@pytest.mark.thorough
def test_the_former_code_ends_the_hold(hosts, url, held):
    _, second, worker, _ = held
    second.kill()
    third = hosts[0].program(f"cluster:{url}")
    third.do(shop() + add("old") + add("more"))
    hosts[1].hears("is open")
    worker.do(wait("more"))
    # Of the one that was held nothing has come here, so the seal ends nothing.
    is_new_here = "result = 'shop::new' in md.default_registry().operators()"
    assert not worker.do(is_new_here)
    hosts[1].bridge(url)
    hosts[1].hears("waits to take over")
    hosts[1].heard.clear()
    hosts[1].processes[0].kill()
    hosts[1].hears("takes over at epoch")
    third.do(add("most"))
    worker.do(wait("most"))
    assert not worker.do(is_new_here)
    third.do("md.seal()")
    hosts[1].hears("is sealed")
    assert worker.do(CALL) == 6
    assert not any("is held" in line for line in hosts[1].heard)


@pytest.mark.thorough
def test_what_the_seal_would_end_is_held_and_a_restart_alike_is_not(hosts, url, run):
    first = hosts[0].program(f"cluster:{url}")
    first.do(shop() + add("old") + "md.seal()")
    hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(shop() + "handle = md.ops.shop.scale.default")
    first.kill()
    second = hosts[0].program(f"cluster:{url}")
    second.do(shop() + add("old") + add("more") + "md.seal()")
    worker.do("while 'shop::more' not in md.default_registry().operators(): pass")
    second.kill()
    third = hosts[0].program(f"cluster:{url}")
    third.do(shop() + add("new"))
    # What is new ends nothing. A wait would end at once where the host has heard of the second
    # leader's seal, and not of the third leader yet.
    worker.do("while 'shop::new' not in md.default_registry().operators(): pass")
    third.do("md.seal()")
    assert "would end def shop::old and 1 more" in hosts[1].hears("is held")
    names = "result = sorted(md.default_registry().operators())"
    assert worker.do(names) == ["shop::more", "shop::new", "shop::old", "shop::scale"]
    third.do(add("old") + add("more"))  # registered late: the same code after all
    hosts[1].hears("is sealed")
    assert worker.do(names) == ["shop::more", "shop::new", "shop::old", "shop::scale"]
    assert worker.do(CALL) == 6
    assert not any("is held" in line for line in hosts[1].heard[:-2])


@pytest.mark.thorough
def test_a_bridge_that_takes_over_holds_as_well(hosts, url, held):
    _, second, worker, _ = held
    hosts[1].bridge(url)
    hosts[1].hears("waits to take over")
    hosts[1].processes[0].kill()
    hosts[1].hears("takes over at epoch")
    assert f"node-0[{second.pid}]" in hosts[1].hears("is held")
    assert worker.do(CALL) == 6
    assert worker.fails(wait("new", 0.2))[0] == "NameMismatchError"
    hosts[2].command("cluster", "accept", url)
    hosts[1].hears("is open")
    assert worker.fails(CALL)[0] == "OperatorGoneError"


@pytest.mark.thorough
def test_what_is_accepted_is_one_leader_and_no_words_of_anybody(hosts, url, run, held):
    worker = held[2]
    engine = connect(parse_url(url))
    for record in (b"\xff", b"{}", b'{"leader": 0}', b'{"leader": 17}', b"[" * 9000):
        engine.accept(record)
    engine.close()
    hosts[1].processes[0].kill()
    hosts[1].bridge(url)
    hosts[1].hears("is held")
    assert worker.do(CALL) == 6
    nobody = hosts[2].command("cluster", "accept", url.replace("run=", "run=x"))
    assert nobody.returncode == 2
    assert "nobody has led this run" in nobody.stderr

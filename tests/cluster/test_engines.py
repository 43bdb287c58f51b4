"""The engines that mdispatch has, by the checks for every engine."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest
from redis_server import RedisServer
from torch_store import TorchStore

from mdispatch.cluster import Unreachable, connect, parse_url
from mdispatch.cluster.conformance import CHECKS
from mdispatch.cluster.engine import Forgot
from mdispatch.cluster.memory import MemoryEngine

pytestmark = [pytest.mark.shared, pytest.mark.specification]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_in_memory(check, run):
    url = parse_url(f"memory:conformance?run={run}")
    check(lambda: connect(url))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_redis(check, run, a_server: RedisServer):
    url = parse_url(a_server.url(run, lease=10))
    check(lambda: connect(url))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_store_of_pytorch(check, run, a_store: TorchStore):
    url = parse_url(a_store.url(run))
    check(lambda: connect(url))


def test_an_answer_that_is_too_long_is_refused_while_it_comes(
    run, a_server: RedisServer, monkeypatch
):
    url = parse_url(a_server.url(run, lease=10))
    from mdispatch.cluster import redis_engine  # redis-py is there, since the server is

    monkeypatch.setattr(redis_engine, "_LONGEST_ANSWER", 1 << 20)
    engine = connect(url)
    a_server.client().xadd(f"mdispatch:{{{run}}}:log", {"e": bytes(8 << 20)}, "1-1")
    tracemalloc.start()
    try:
        with pytest.raises(Unreachable, match="longer than"):
            engine.read((0, 0), 10, 0)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert engine.get("nothing") is None  # the connection is made anew
    engine.close()


# --- engines that are wrong in one way ------------------------------------------------------------


class FollowsAnything(MemoryEngine):
    def append(self, epoch, token, after, seq, entry):
        super().append(epoch, token, None, seq, entry)


class TakesTheSameEntryTwice(MemoryEngine):
    def append(self, epoch, token, after, seq, entry):
        self._fence(epoch, token)
        self.store.log.append((epoch, seq, entry))
        self.store.tail = (epoch, seq)


class RenewsNoLeaderWithEntries(MemoryEngine):
    def renew(self, epoch, token, ttl, tail):
        super().renew(epoch, token, ttl, tail if tail == (0, 0) else (epoch, 0))


class RenewsWhateverTheTail(MemoryEngine):
    def renew(self, epoch, token, ttl, tail):
        super().renew(epoch, token, ttl, self.store.tail)


class DoesNotRenew(MemoryEngine):
    def renew(self, epoch, token, ttl, tail):
        self._fence(epoch, token)


class LetsAllLead(MemoryEngine):
    def acquire(self, token, leader, ttl, above):
        self.store.lease = 0.0
        return super().acquire(token, leader, ttl, above)


class ForgetsWhatIsAbove(MemoryEngine):
    def acquire(self, token, leader, ttl, above):
        return super().acquire(token, leader, ttl, 0)


class KeepsTheLeaderOfBefore(MemoryEngine):
    def release(self, epoch, token):
        self._fence(epoch, token)


class FencesNobody(MemoryEngine):
    def _fence(self, epoch, token):
        pass


class KnowsNoToken(MemoryEngine):
    def _fence(self, epoch, token):
        super()._fence(epoch, self.store.token)


class GivesTheNewestFirst(MemoryEngine):
    def read(self, after, limit, timeout):
        return super().read(after, limit, timeout)[::-1]


class GivesEntriesAgain(MemoryEngine):
    def read(self, after, limit, timeout):
        return super().read((after[0], after[1] - 1), limit, timeout)


class GivesNoMoreThanTwo(MemoryEngine):
    def read(self, after, limit, timeout):
        return super().read(after, 2, timeout)


class DoesNotWait(MemoryEngine):
    def read(self, after, limit, timeout):
        return super().read(after, limit, 0)


class KeepsWhatIsTrimmed(MemoryEngine):
    def trim(self, epoch, token, upto):
        self._fence(epoch, token)


class TrimsTheTail(MemoryEngine):
    def trim(self, epoch, token, upto):
        super().trim(epoch, token, upto)
        if not self.store.log:
            self.store.tail = (0, 0)


class KeepsWhatIsDropped(MemoryEngine):
    def drop(self, epoch, token, keys):
        self._fence(epoch, token)


class KeepsTheFirstValue(MemoryEngine):
    def put(self, epoch, token, key, value):
        super().put(epoch, token, key, self.store.values.get(key, value))


class GivesWhatIsTooLong(MemoryEngine):
    def get(self, key):
        return self.store.values.get(key)


class AcceptsOnce(MemoryEngine):
    def accept(self, record):
        super().accept(self.store.accepted or record)


class StartsWithALeader(MemoryEngine):
    def status(self):
        return dataclasses.replace(super().status(), leader=b"somebody")


FAULTS = [
    ("an_empty_engine_has_nothing", StartsWithALeader),
    ("one_leads_at_a_time", LetsAllLead),
    ("one_leads_at_a_time", KeepsTheLeaderOfBefore),
    ("a_leader_may_lead_again_in_a_higher_epoch", ForgetsWhatIsAbove),
    ("who_renews_keeps_the_lead", DoesNotRenew),
    ("what_a_former_leader_writes_is_refused", FencesNobody),
    ("an_epoch_of_the_same_number_is_not_the_same", KnowsNoToken),
    ("an_engine_that_forgot_an_epoch_says_so", FencesNobody),
    ("an_entry_follows_the_tail", FollowsAnything),
    ("an_entry_follows_the_tail", RenewsNoLeaderWithEntries),
    ("an_entry_follows_the_tail", RenewsWhateverTheTail),
    ("the_same_entry_again_is_no_change", TakesTheSameEntryTwice),
    ("entries_are_read_in_their_order_from_any_place", GivesTheNewestFirst),
    ("entries_are_read_in_their_order_from_any_place", GivesEntriesAgain),
    ("entries_are_read_in_their_order_from_any_place", GivesNoMoreThanTwo),
    ("a_read_ends_with_an_entry_or_with_its_time", DoesNotWait),
    ("a_trimmed_log_keeps_its_tail", KeepsWhatIsTrimmed),
    ("a_trimmed_log_keeps_its_tail", TrimsTheTail),
    ("values_are_kept_until_they_are_dropped", KeepsWhatIsDropped),
    ("values_are_kept_until_they_are_dropped", KeepsTheFirstValue),
    ("a_value_that_is_too_long_is_none", GivesWhatIsTooLong),
    ("what_is_accepted_is_in_the_status", AcceptsOnce),
]


@pytest.mark.parametrize(
    ("check", "wrong"), FAULTS, ids=lambda each: getattr(each, "__name__", each)
)
def test_an_engine_that_is_wrong_in_one_way_is_refused(check, wrong, run):
    checks = {each.__name__: each for each in CHECKS}
    url = parse_url(f"memory:faulty?run={run}")
    with pytest.raises((AssertionError, Forgot)):
        checks[check](lambda: wrong(url))


def test_an_engine_shows_no_secret_of_its_address():
    url = parse_url("redis://somebody:secret@example.com:6379/0?run=shown")
    assert repr(url) == f"ClusterURL({url.shown})"
    assert "secret" not in repr(url)

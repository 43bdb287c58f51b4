"""The protocol as a model, searched; and that the search finds what each rule is there for."""

from __future__ import annotations

import pytest
from cluster_model import Broken, Budget, Rules, search

pytestmark = [pytest.mark.either_binding, pytest.mark.specification]


@pytest.mark.dear
@pytest.mark.parametrize(
    "budget",
    [
        pytest.param(Budget(facts=2, lapses=1, crashes=1, losses=0), id="a leader dies"),
        pytest.param(Budget(facts=1, lapses=0, crashes=0, losses=2), id="the engine forgets"),
        pytest.param(Budget(facts=1, lapses=1, crashes=0, losses=1), id="two leaders"),
        pytest.param(Budget(facts=1, lapses=1, crashes=0, losses=1, bridges=1), id="a bridge dies"),
    ],
)
def test_no_fork_no_way_back_and_no_hang_in_any_order_of_steps(budget):
    assert search(Rules(), budget, hosts=1) > 100


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("budget", "hosts"),
    [(Budget(facts=2), 1), (Budget(facts=1, crashes=0), 2)],
    ids=["all at once", "two hosts"],
)
def test_the_same_with_more_at_once(budget, hosts):
    assert search(Rules(), budget, hosts=hosts) > 10000


@pytest.mark.thorough
@pytest.mark.dear
def test_without_the_chain_the_search_finds_a_fork():
    with pytest.raises(Broken) as caught:
        search(Rules(chain=False), Budget(facts=1, crashes=0), hosts=1, but="hang")
    assert caught.value.promise.startswith("fork")
    assert "the engine comes back as it was when it was copied" in caught.value.trace


def test_without_the_epoch_the_search_finds_a_host_that_follows_a_former_leader():
    with pytest.raises(Broken) as caught:
        search(Rules(epoch=False), Budget(facts=2, crashes=0, losses=0), hosts=1)
    assert caught.value.promise.startswith("way back")


def test_without_its_position_a_bridge_that_takes_over_goes_back():
    with pytest.raises(Broken) as caught:
        search(
            Rules(position=False),
            Budget(facts=1, lapses=1, crashes=0, losses=1, bridges=1),
            hosts=1,
            but="hang",
        )
    assert caught.value.promise.startswith("way back")
    assert "the bridge of host 0 dies" in caught.value.trace


def test_without_either_two_leaders_make_a_fork():
    with pytest.raises(Broken) as caught:
        search(
            Rules(chain=False, epoch=False),
            Budget(facts=2, crashes=0, losses=0),
            hosts=1,
            but="way back",
        )
    assert caught.value.promise.startswith("fork")

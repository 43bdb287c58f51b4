"""What every engine must do: checks for a driver, its own or another's.

Each of :data:`CHECKS` takes a function that makes a new engine of one run, always of the same one,
and ends with an AssertionError, or with an error of the driver, where the driver is wrong. With
pytest::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_engine(check, my_server):
        check(lambda: MyEngine(parse_url(my_server.new_url())))
"""

from __future__ import annotations

import threading
from contextlib import closing
from time import monotonic

from .engine import LONGEST, Fenced, Forgot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from .engine import Engine

    Make: TypeAlias = Callable[[], Engine]

_A, _B = b"a" * 16, b"b" * 16


def _raises(error: type[Exception], call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except error:
        return
    raise AssertionError(f"{call.__name__}{args} does not raise {error.__name__}")


def _led(engine: Engine, token: bytes = _A, ttl: float = 60.0, above: int = 0) -> int:
    epoch = engine.acquire(token, b"its record", ttl, above)
    assert epoch is not None
    return epoch


def _follows_nothing(engine: Engine, epoch: int) -> None:
    engine.append(epoch, _A, None, 1, b"first")


def an_empty_engine_has_nothing(make: Make) -> None:
    with closing(make()) as engine:
        status = engine.status()
        assert (status.epoch, status.leader, status.tail) == (0, b"", (0, 0))
        assert engine.read((0, 0), 10, 0) == []
        assert engine.get("snapshot") is None
        assert engine.hosts() == {}


def _comes_true(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline


def _stays_true(condition: Callable[[], bool], seconds: float) -> None:
    end = monotonic() + seconds
    while monotonic() < end:
        assert condition()


def one_leads_at_a_time(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        assert _led(engine) == 1
        assert other.acquire(_B, b"other", 60, 0) is None
        assert engine.status().leader == b"its record"
        engine.release(1, _A)
        assert engine.status().leader == b""
        assert other.acquire(_B, b"other", 60, 0) == 2


def a_leader_may_lead_again_in_a_higher_epoch(make: Make) -> None:
    with closing(make()) as engine:
        assert _led(engine) == 1
        assert _led(engine, above=7) == 8
        assert _led(engine) == 9


def a_lease_runs_out(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        _led(engine, ttl=0.05)
        _comes_true(lambda: other.acquire(_B, b"other", 60, 0) is not None)
        assert other.status().epoch == 2


def who_renews_keeps_the_lead(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        epoch = _led(engine, ttl=0.3)
        engine.renew(epoch, _A, 60, (0, 0))
        _stays_true(lambda: other.acquire(_B, b"other", 60, 0) is None, 0.5)


def what_a_former_leader_writes_is_refused(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        epoch = _led(engine)
        _follows_nothing(engine, epoch)
        engine.release(epoch, _A)
        later = _led(other, _B)
        other.append(later, _B, None, 2, b"second")
        _raises(Fenced, engine.append, epoch, _A, (epoch, 1), 2, b"late")
        _raises(Fenced, engine.append, epoch, _A, None, 2, b"late")
        _raises(Fenced, engine.put, epoch, _A, "snapshot", b"late")
        _raises(Fenced, engine.drop, epoch, _A, ["snapshot"])
        _raises(Fenced, engine.trim, epoch, _A, (later, 2))
        _raises(Fenced, engine.renew, epoch, _A, 60, (epoch, 1))
        _raises(Fenced, engine.release, epoch, _A)
        assert [entry for _, _, entry in other.read((0, 0), 10, 0)] == [b"first", b"second"]
        assert other.get("snapshot") is None


def an_epoch_of_the_same_number_is_not_the_same(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        _raises(Fenced, engine.append, epoch, _B, None, 1, b"another's")


def an_engine_that_forgot_an_epoch_says_so(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        _raises(Forgot, engine.append, epoch + 1, _A, None, 1, b"it never gave this epoch")
        _raises(Forgot, engine.renew, epoch + 1, _A, 60, (0, 0))


def an_entry_follows_the_tail(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        _follows_nothing(engine, epoch)
        engine.append(epoch, _A, (epoch, 1), 2, b"second")
        _raises(Forgot, engine.append, epoch, _A, (epoch, 3), 4, b"fourth")
        _raises(Forgot, engine.renew, epoch, _A, 60, (epoch, 3))
        engine.renew(epoch, _A, 60, (epoch, 2))
        assert engine.status().tail == (epoch, 2)


def the_same_entry_again_is_no_change(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        for _ in range(3):
            _follows_nothing(engine, epoch)
        _raises(Forgot, engine.append, epoch, _A, None, 1, b"another one")
        assert engine.read((0, 0), 10, 0) == [(epoch, 1, b"first")]


def entries_are_read_in_their_order_from_any_place(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        _follows_nothing(engine, epoch)
        for seq in range(2, 12):  # 10 is behind 9
            engine.append(epoch, _A, (epoch, seq - 1), seq, b"%d" % seq)
        later = _led(engine)
        engine.append(later, _A, None, 12, b"\0\xff\r\n")
        whole = engine.read((0, 0), 20, 0)
        assert [each[:2] for each in whole] == [(epoch, n) for n in range(1, 12)] + [(later, 12)]
        assert whole[-1][2] == b"\0\xff\r\n"
        assert engine.read((0, 0), 3, 0) == whole[:3]
        assert engine.read((epoch, 9), 20, 0) == whole[9:]
        assert engine.read((later, 12), 20, 0) == []
        assert engine.read((later, 5), 20, 0) == whole[-1:]


def a_read_ends_with_an_entry_or_with_its_time(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        epoch = _led(engine)
        began = monotonic()
        assert other.read((0, 0), 10, 0.1) == []
        assert monotonic() - began > 0.05
        found: list[object] = []
        while True:  # entered before or after the append: both end with it
            if found:
                break
            reader = threading.Thread(target=lambda: found.extend(other.read((0, 0), 10, 0.4)))
            reader.start()
            _follows_nothing(engine, epoch)
            reader.join()
        assert found == [(epoch, 1, b"first")]


def a_trimmed_log_keeps_its_tail(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        _follows_nothing(engine, epoch)
        engine.append(epoch, _A, (epoch, 1), 2, b"second")
        engine.trim(epoch, _A, (epoch, 1))
        assert engine.read((0, 0), 10, 0) == [(epoch, 2, b"second")]
        engine.trim(epoch, _A, (epoch, 2))
        assert engine.read((0, 0), 10, 0) == []
        assert engine.status().tail == (epoch, 2)
        engine.append(epoch, _A, (epoch, 2), 3, b"third")
        assert engine.read((epoch, 2), 10, 0) == [(epoch, 3, b"third")]


def values_are_kept_until_they_are_dropped(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        epoch = _led(engine)
        engine.put(epoch, _A, "chunk:1", b"\0" * 1000)
        engine.put(epoch, _A, "chunk:1", b"\xff\r\n")
        assert other.get("chunk:1") == b"\xff\r\n"
        engine.drop(epoch, _A, ["chunk:1", "chunk:2"])
        assert other.get("chunk:1") is None


def a_value_that_is_too_long_is_none(make: Make) -> None:
    with closing(make()) as engine:
        epoch = _led(engine)
        engine.put(epoch, _A, "most", bytes(LONGEST))
        engine.put(epoch, _A, "more", bytes(LONGEST + 1))
        found = engine.get("most")
        assert found is not None
        assert len(found) == LONGEST
        assert engine.get("more") is None


def records_of_hosts_end_by_themselves(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        engine.announce("node-1:7", b"{}", 60)
        engine.announce("node-2:7", b"{}", 0.05)
        engine.announce("node-3:7", b"{}", 60)
        engine.announce("node-3:7", b"", 0)
        _comes_true(lambda: other.hosts() == {"node-1:7": b"{}"})


def what_is_accepted_is_in_the_status(make: Make) -> None:
    with closing(make()) as engine, closing(make()) as other:
        assert other.status().accepted == b""
        engine.accept(b"first")
        engine.accept(b"second \xff")
        assert other.status().accepted == b"second \xff"


CHECKS = [
    an_empty_engine_has_nothing,
    one_leads_at_a_time,
    a_leader_may_lead_again_in_a_higher_epoch,
    a_lease_runs_out,
    who_renews_keeps_the_lead,
    what_a_former_leader_writes_is_refused,
    an_epoch_of_the_same_number_is_not_the_same,
    an_engine_that_forgot_an_epoch_says_so,
    an_entry_follows_the_tail,
    the_same_entry_again_is_no_change,
    entries_are_read_in_their_order_from_any_place,
    a_read_ends_with_an_entry_or_with_its_time,
    a_trimmed_log_keeps_its_tail,
    values_are_kept_until_they_are_dropped,
    a_value_that_is_too_long_is_none,
    records_of_hosts_end_by_themselves,
    what_is_accepted_is_in_the_status,
]

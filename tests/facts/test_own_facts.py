"""Registrations that any member registers, for itself or for all, and registries of other
formats."""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, run_main
from registries import FOLDER

import mdispatch as md
from mdispatch.facts.native.constants import MD_FORMAT
from mdispatch.facts.registration import TYPE

pytestmark = pytest.mark.shared

WORKER = """
from mdispatch.facts.registration import TYPE
import mdispatch as md
backing = md.default_registry().dispatcher.facts
i_am_here()
mine = backing.register(TYPE, 0, "np.ndarray", "CUDA", "worker.py:1")
try:
    backing.register(TYPE, 0, "np.ndarray", "CPU", "worker.py:2")
    first = ""
except md.errors.DuplicateRegistrationError as error:
    first = error.first
newest = backing.register(TYPE, 0, "own", "CPU", "worker.py:4")
theirs = backing.await_fact(TYPE, 0, "of.main", 1, 60.0)[0]
report(first=first, role=backing.role, removed_theirs=backing.remove(theirs),
       removed=backing.remove(newest))
"""

MAIN = """
kind, count, folder, text = args
from mdispatch.facts.registration import TYPE
backing = md.default_registry().dispatcher.facts
workers = start(kind, text, count, Path(folder))
until_asleep(workers)
types = [f.where for f in backing.registrations("np.ndarray")[2]]
own = backing.register(TYPE, 0, "of.main", "CPU", "main.py:1")
for worker in workers:
    worker.join()
backing.register(TYPE, 0, "the.last", "CPU", "main.py:2")  # finds those that did not leave
left = [f.name for f in backing.registrations()[2]]
done(types=types, left=left, check=backing.check(),
     workers=[worker.result() for worker in workers])
"""


@pytest.mark.parametrize(
    ("kind", "count"),
    [(kind, 2) for kind in INTERPRETERS] + [("fork", 3), ("spawn", 2)],
)
def test_members_of_every_kind_register_their_own_and_take_it_with_them(
    kind, count, tmp_path
) -> None:
    got = run_main(MAIN, kind, count, str(tmp_path), WORKER)
    assert got["types"] == ["worker.py:1"] * count
    assert sorted(got["left"]) == ["of.main", "the.last"]
    assert got["check"] == ""
    for worker in got["workers"]:
        assert worker["first"] == "worker.py:1"
        assert (worker["removed_theirs"], worker["removed"]) == (False, True)


KILLED = """
folder, text = args
from mdispatch.facts.registration import TYPE
backing = md.default_registry().dispatcher.facts
workers = start("spawn", text, 2, Path(folder))
until_asleep(workers)
before = len(backing.registrations("np.ndarray")[2])
os.kill(workers[0].pid, signal.SIGKILL)
workers[0].join()
own = backing.register(TYPE, 0, "of.main", "CPU", "main.py:1")  # finds the death
after = len(backing.registrations("np.ndarray")[2])
workers[1].join()
done(before=before, after=after, check=backing.check(), result=workers[1].result())
"""


@pytest.mark.thorough
def test_those_of_a_killed_worker_are_struck_and_the_others_stay(tmp_path) -> None:
    got = run_main(KILLED, str(tmp_path), WORKER)
    assert (got["before"], got["check"]) == (2, "")
    assert got["after"] <= 1  # the other one may have left by then
    assert got["result"]["removed"]


def test_the_second_type_of_a_member_is_refused(registry) -> None:
    backing = registry.dispatcher.facts
    first = backing.register(TYPE, 0, "np.ndarray", "CPU", "a.py:1")
    with pytest.raises(md.errors.DuplicateRegistrationError, match=r"type 'np\.ndarray'"):
        backing.register(TYPE, 0, "np.ndarray", "CUDA", "a.py:2")
    assert backing.remove(first)
    assert backing.registrations("np.ndarray")[2] == []


FORMAT_AT = 8  # in the header, behind the magic


@pytest.mark.parametrize("how", ["attach", "create", "elect"])
def test_a_registry_of_another_format_is_refused_in_words_that_name_both(how) -> None:
    name = f"of-another-format-{how}"
    with md.Registry.create(name, capacity=1 << 20) as made:
        path = FOLDER / name
        data = bytearray(path.read_bytes())
        made_address = made.address
    assert made_address == f"shm:{name}"
    data[FORMAT_AT : FORMAT_AT + 4] = (5).to_bytes(4, "little")
    path.write_bytes(data)
    path.chmod(0o600)
    try:
        with pytest.raises(md.errors.RegistryFormatError) as caught:
            getattr(md.Registry, how)(name)
    finally:
        path.unlink()
    assert caught.value.formats == (5, MD_FORMAT)
    assert f"it has format 5, and this one uses format {MD_FORMAT}" in str(caught.value)
    assert "mdispatch doctor --reap" in str(caught.value)

"""Choices of members apart: threads, interpreters, processes; deaths, stops, Ctrl-C, forks."""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, KINDS, run_main

pytestmark = pytest.mark.shared

ASKING = """
import os
import mdispatch as md
TILES = [16, 32, 64, 128]
PROFILES = [(size, "f32") for size in range(20)]
decided = []

def decider(profile):
    def decide():
        decided.append(profile)
        return TILES[(INDEX + profile[0]) % len(TILES)]
    return decide

md.default_registry()
arrived(0)
order = PROFILES[INDEX:] + PROFILES[:INDEX]
got = {p: md.choose("shop::gemm", p, TILES, decider(p), timeout=limit(60)) for p in order}
again = {p: md.choose("shop::gemm", p, TILES, print) for p in order}
report(got=got, again=again, decided=decided)
"""

ALL_AGREE = """
kind, count, folder, text = args
registry = md.default_registry()
workers = start(kind, text, count, Path(folder))
got = results(workers)
from mdispatch import choices
made = {tuple(c.profile): c.value for c in choices.made("shop::gemm")}
facts = registry.dispatcher.facts
done(got=got, made=made, check=facts.check(), claims=facts.registrations_since(7, 0)[0],
     later=md.choose("shop::gemm", (3, "f32"), [16, 32, 64, 128], print))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "count"), [(kind, 4) for kind in KINDS])
def test_members_of_every_kind_agree_and_each_choice_outlives_them(kind, count, tmp_path) -> None:
    got = run_main(ALL_AGREE, kind, count, str(tmp_path), ASKING)
    made = got["made"]
    assert len(made) == 20
    decided = []
    for member in got["got"]:
        assert member["got"] == made
        assert member["again"] == made
        decided += member["decided"]
    assert sorted(decided) == sorted(made)  # each once
    assert got["later"] == made[3, "f32"]
    assert (got["check"], got["claims"]) == ("", 0)


DECIDES_FOR_EVER = """
import mdispatch as md, os, select
registry = md.default_registry()
def decide():
    arrived(0)
    select.select([], [], [])
md.choose("shop::gemm", 1, [16, 32], decide)
"""

WAITS = """
import mdispatch as md
registry = md.default_registry()
def decide():
    return 32
i_am_here()
report(got=md.choose("shop::gemm", 1, [16, 32], decide, timeout=limit(60)))
"""

DIES = """
deciders, waiters, folder, dies, waits = args
import mdispatch.choices as choices
registry = md.default_registry()
Path(folder, "1").mkdir(); Path(folder, "2").mkdir()
first, = start(deciders, dies, 1, Path(folder, "1"))
until_arrived([first], 0)
workers = start(waiters, waits, 3, Path(folder, "2"))
until_asleep(workers)
began = time.monotonic()
os.kill(first.pid, signal.SIGKILL)
first.join()
got = [each["got"] for each in results(workers)]
choice, = choices.made()
done(got=got, took=time.monotonic() - began, waited=choice.waited, pid=choice.pid,
     first=first.pid, check=registry.dispatcher.facts.check())
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("decider", "waiters"),
    [
        ("spawn", "spawn"),
        ("fork", "subprocess"),
        ("subprocess", "fork"),
        ("spawn", INTERPRETERS[-1]),
    ],
)
def test_when_the_decider_is_killed_the_next_decides(decider, waiters, tmp_path) -> None:
    got = run_main(DIES, decider, waiters, str(tmp_path), DECIDES_FOR_EVER, WAITS)
    assert got["got"] == [32] * 3
    assert got["pid"] != got["first"]
    assert got["waited"] <= 2
    assert got["check"] == ""


STOPPED = """
folder, dies, waits = args
registry = md.default_registry()
first, = start("spawn", dies, 1, Path(folder))
until_arrived([first], 0)
os.kill(first.pid, signal.SIGSTOP)
os.waitpid(first.pid, os.WUNTRACED)
try:
    md.choose("shop::gemm", 1, [16, 32], lambda: 16, timeout=0.3)
except md.errors.ChoiceTimeoutError as error:
    told, pid = str(error), error.pid
os.kill(first.pid, signal.SIGKILL)
after = md.choose("shop::gemm", 1, [16, 32], lambda: 16, timeout=limit(60))
os.waitpid(first.pid, 0)
done(told=told, is_its=pid == first.pid, after=after)
"""


def test_a_stopped_decider_is_waited_for_until_the_deadline_and_named(tmp_path) -> None:
    got = run_main(STOPPED, str(tmp_path), DECIDES_FOR_EVER, WAITS)
    assert got["is_its"]
    assert "is stopped" in got["told"]
    assert "kill -CONT" in got["told"]
    assert got["after"] == 16


RAISES = """
import mdispatch as md
registry = md.default_registry()
decided = []
def decide():
    decided.append(INDEX)
    arrived(0)
    while not os.path.exists(FOLDER + "/go"):
        select.select([], [], [], 0.001)
    if INDEX == 0:
        raise LookupError("no device")
    return 64
import os, select
try:
    got = md.choose("shop::gemm", 1, [32, 64], decide, timeout=limit(60))
except LookupError as error:
    got = str(error)
report(got=got, decided=decided)
"""

HEARS = """
kind, folder, text = args
registry = md.default_registry()
first, = start(kind, text, 1, Path(folder))
until_arrived([first], 0)
from kinds import Worker
asleep = text.replace("def decide():", "i_am_here()\\ndef decide():")
others = [Worker(kind, asleep, i, Path(folder)) for i in (1, 2)]
until_asleep(others)
Path(folder, "go").touch()
done(got=results([first, *others]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["spawn", *INTERPRETERS])
def test_whoever_raises_hears_it_and_another_member_decides(kind, tmp_path) -> None:
    first, *others = run_main(HEARS, kind, str(tmp_path), RAISES)["got"]
    assert first == {"got": "no device", "decided": [0]}
    assert [each["got"] for each in others] == [64, 64]
    assert sum(len(each["decided"]) for each in others) == 1


INTERRUPTED = """
folder, text = args
registrar_pid, registry = os.getpid(), md.default_registry()
first, = start("spawn", text, 1, Path(folder))
until_arrived([first], 0)
presser = os.fork()
if presser == 0:
    def asleep():
        call = Path(f"/proc/{registrar_pid}/syscall").read_text().split()
        return call[0] == "449" or (call[0] == "202" and int(call[2], 16) == 9)
    until(asleep)
    os.kill(registrar_pid, signal.SIGINT)
    os._exit(0)
try:
    md.choose("shop::gemm", 1, [16, 32], lambda: 16, timeout=None)
except KeyboardInterrupt:
    raised = True
os.waitpid(presser, 0)
claims = registry.dispatcher.facts.registrations_since(7, 0)[0]
os.kill(first.pid, signal.SIGKILL)
first.join()
done(raised=raised, claims=claims, after=md.choose("shop::gemm", 1, [16, 32], lambda: 16))
"""


def test_ctrl_c_ends_a_wait_and_leaves_no_claim(tmp_path) -> None:
    got = run_main(INTERRUPTED, str(tmp_path), DECIDES_FOR_EVER)
    assert got["raised"]
    assert got["claims"] == 1  # the decider's
    assert got["after"] == 16


FORKED = """
registry = md.default_registry()
read, write = os.pipe()
def decide():
    child = os.fork()
    if child == 0:
        # A member of its own: it waits for its parent's choice, as everybody does.
        try:
            os.write(write, b"%d" % md.choose("shop::gemm", 2, [16, 32], lambda: 16))
            os.write(write, b" %d" % md.choose("shop::gemm", 1, [16, 32], lambda: 16,
                                               timeout=limit(60)))
        finally:
            os._exit(0)
    until(lambda: any(m[1] == child and m[4] for m in registry.dispatcher.facts.members()))
    return 32
parents = md.choose("shop::gemm", 1, [16, 32], decide)
os.wait()
told = os.read(read, 100).decode()
child = os.fork()
if child == 0:
    os.write(write, b"%d" % md.choose("shop::gemm", 1, [16, 32], print))
    os._exit(0)
os.waitpid(child, 0)
done(parents=parents, told=told, later=os.read(read, 100).decode(),
     check=registry.dispatcher.facts.check())
"""


def test_a_child_of_a_fork_in_decide_is_a_member_of_its_own() -> None:
    got = run_main(FORKED)
    assert got["parents"] == 32
    assert got["told"] == "16 32"
    assert got["later"] == "32"
    assert got["check"] == ""


ELECTED = """
kind, count, folder, text, name = args
os.environ["MDISPATCH_REGISTRY"] = "elect:" + name
registry = md.default_registry()
lib = md.Library("shop", "DEF")
lib.define("gemm(Tensor x) -> Tensor")
workers = start(kind, text, count, Path(folder))
got = results(workers)
from mdispatch import choices
made = {tuple(c.profile): c.value for c in choices.made("shop::gemm")}
lib.close()
left = len(choices.made())
done(got=got, made=made, left=left, registers=registry.registers(),
     check=registry.dispatcher.facts.check(), role=registry.elects)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["spawn", INTERPRETERS[-1]])
def test_a_team_without_a_registrar_agrees_too(kind, tmp_path) -> None:
    name = f"choices-{kind}-{tmp_path.name}"
    got = run_main(ELECTED, kind, 4, str(tmp_path), ASKING, name)
    assert got["role"]
    assert all(member["got"] == got["made"] for member in got["got"])
    assert len(got["made"]) == got["left"] == 20  # the end of the namespace leaves them alone
    assert got["registers"]
    assert got["check"] == ""


def test_where_a_worker_has_other_candidates_it_is_told_so(tmp_path) -> None:
    got = run_main(
        """
        folder, = args
        md.choose("shop::gemm", 1, [16, 32], lambda: 16)
        worker, = start("spawn", '''
import mdispatch as md
try:
    md.choose("shop::gemm", 1, [64, 128], lambda: 64)
except md.errors.NotACandidateError as error:
    report(here=error.candidates, there=error.candidates_there, choice=error.choice)
''', 1, Path(folder))
        done(got=results([worker])[0])
        """,
        str(tmp_path),
    )
    assert got["got"] == {"here": (64, 128), "there": (16, 32), "choice": 16}


def test_a_child_that_shares_nothing_decides_for_itself_and_is_warned() -> None:
    got = run_main(
        """
        registry = md.Registry.local()
        assert md.choose("shop::gemm", 1, [16, 32], lambda: 16, registry=registry) == 16
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            import warnings
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                copied = md.choose("shop::gemm", 1, [16, 32], print, registry=registry)
                own = md.choose("shop::gemm", 2, [16, 32], lambda: 32, registry=registry)
            os.write(write, repr((copied, own, [w.category.__name__ for w in told])).encode())
            os._exit(0)
        os.waitpid(child, 0)
        done(got=os.read(read, 1000).decode())
        """
    )
    assert got["got"] == "(16, 32, ['NotSharedWarning'])"

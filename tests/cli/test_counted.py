"""How often providers ran, as the members that count tell it and the commands sum it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch
from json_keys import strangers
from registries import FOLDER, Process, main_of, worker_of

import mdispatch as md
from mdispatch.facts import IMPL, NOTE
from mdispatch.facts.counted import COUNTS, ProviderRuns, summed, tell, told

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

#: What both processes register, and what calls one of the providers: "fast" takes small numbers.
SETUP = """
from mdispatch.facts import NOTE
from mdispatch.facts.counted import COUNTS
class A: pass
md.register_type(A, "CPU")
lib = md.Library("kit", "DEF", registry=registry)
lib.define("f(Tensor x, int n) -> str")
small = lambda x, n: n < 5
lib.impl("f", lambda x, n: "fast", "CPU", provider="fast", rank=9, supports=small)
lib.impl("f", lambda x, n: "any", "CPU", provider="any")
def calls(*numbers):
    for n in numbers:
        registry.ops.kit.f(A(), n)
"""
COUNT = "counts = md.count_providers(registry=registry)"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"cnt-{request.node.name[5:20]}-{os.getpid()}"
    yield name
    (FOLDER / name).unlink(missing_ok=True)


@pytest.fixture
def main(name: str) -> Iterator[Process]:
    with main_of(name) as main:
        main.do(SETUP)
        yield main


@pytest.fixture
def worker(main: Process, name: str) -> Iterator[Process]:
    with worker_of(f"shm:{name}") as worker:
        worker.do(SETUP)
        yield worker


def answer(*arguments: str) -> dict[str, Any]:
    done = mdispatch(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert strangers(arguments[0], found) == []
    return found


def asked(name: str) -> dict[str, Any]:
    """What each of the commands says in its JSON was counted: all the same."""
    where = ("--registry", name)
    found = answer("show", "kit::f", *where)["counted"]
    assert answer("table", "kit::f", *where)["counted"] == found
    assert answer("report", *where)["counted"] == found
    assert answer("top", name, "--count", "1")["registries"][0]["counted"] == found
    return found


def runs_of(counted: dict[str, Any]) -> dict[str | None, tuple[int, int]]:
    for each in counted["runs"]:
        assert (each["operator"], each["key"]) == ("kit::f", "CPU")
    return {each["provider"]: (each["runs"], each["fell_back"]) for each in counted["runs"]}


def test_the_commands_sum_what_members_tell_and_a_member_that_ends_takes_its_part_away(
    name: str, main: Process, worker: Process, tmp_path: Path
) -> None:
    bare = {}
    for command in ("show", "table"):
        bare[command] = mdispatch(command, "kit::f", "--registry", name).stdout
        assert "fell back" not in bare[command]
    assert asked(name) is None

    main.do(f"{COUNT}; calls(1, 2, 9); counts.publish()")
    worker.do(f"{COUNT}; calls(1, 9, 9); counts.publish(); calls(1)")
    counted = asked(name)
    assert (counted["members"], counted["left_out"]) == (2, 0)
    assert runs_of(counted) == {"any": (3, 3), "fast": (3, 0)}

    for command in ("show", "table"):
        said = mdispatch(command, "kit::f", "--registry", name).stdout
        assert said.startswith(bare[command])
        lines = [line.split() for line in said.removeprefix(bare[command]).splitlines()]
        assert lines[1] == ["provider", "key", "ran", "fell", "back"]
        assert lines[3:5] == [["any", "CPU", "3", "3"], ["fast", "CPU", "3", "0"]]
        assert " ".join(lines[-1]) == "Counted by 2 members."
    said = mdispatch("top", name, "--count", "1").stdout
    assert "ran  any of kit::f at CPU 3 (3 fell back); fast of kit::f at CPU 3\n" in said
    page = tmp_path / "page.html"
    assert mdispatch("report", str(page), "--registry", name).returncode == 0
    assert "How often providers ran, counted by 2 members</caption>" in page.read_text()
    assert page.read_text().count("How often providers ran") == 1  # of one operator

    worker.kill()
    counted = asked(name)
    assert counted["members"] == 1
    assert runs_of(counted) == {"any": (1, 1), "fast": (2, 0)}


def test_a_member_tells_anew_in_place_of_what_it_has_told(name: str, main: Process) -> None:
    main.do(f"{COUNT}; calls(1); counts.publish(); calls(1); counts.publish(); calls(9)")
    assert runs_of(asked(name)) == {"fast": (2, 0)}
    main.do("counts.close(); calls(1)")  # which tells the last counts
    assert runs_of(asked(name)) == {"any": (1, 1), "fast": (2, 0)}
    main.do(f"{COUNT}; calls(1); counts.publish()")  # the last that told counts
    assert runs_of(asked(name)) == {"fast": (1, 0)}
    main.do("assert len(registry.dispatcher.facts.registrations(COUNTS)[2]) == 1")


def test_who_never_publishes_is_not_heard_of(name: str, main: Process) -> None:
    main.do(f"{COUNT}; calls(1); counts.close()")
    assert asked(name) is None


def test_calls_publish_by_themselves_where_that_is_wanted(name: str, main: Process) -> None:
    main.do("counts = md.count_providers(every=3600, registry=registry); calls(9, 9)")
    assert runs_of(asked(name)) == {"any": (1, 1)}  # the first does, and no other in this hour
    main.do("counts.close()")
    assert runs_of(asked(name)) == {"any": (2, 2)}
    main.do("counts = md.count_providers(every=0, registry=registry); calls(9, 9, 1)")
    assert runs_of(asked(name)) == {"any": (2, 2), "fast": (1, 0)}


def test_a_child_of_a_fork_tells_its_own_counts_only(name: str, main: Process) -> None:
    main.do(f"{COUNT}; calls(1, 1); counts.publish()")
    main.do("""
import os
ready, told, asked, wait = *os.pipe(), *os.pipe()
child = os.fork()
if not child:
    calls(9)
    counts.publish()
    os.write(told, b"!")
    os.read(asked, 1)
    os._exit(0)
os.read(ready, 1)
""")
    counted = asked(name)
    assert counted["members"] == 2
    assert runs_of(counted) == {"any": (1, 1), "fast": (2, 0)}
    main.do('os.write(wait, b"!"); os.waitpid(child, 0)')
    assert runs_of(asked(name)) == {"fast": (2, 0)}


def test_notes_that_anybody_wrote_break_nothing(
    name: str, main: Process, worker: Process, tmp_path: Path
) -> None:
    good = "kit::f\tCPU\tfast\t5\t1"
    for text in (
        "",
        "no number",
        "9" * 5000,
        f"-1\n{good}",
        "\ud800",
        "\x00\x1b[31m",
    ):
        worker.do(f"note = registry.dispatcher.facts.register(NOTE, 0, COUNTS, {text!r}, '')")
        assert answer("show", "kit::f", "--registry", name)["counted"] is None
        worker.do("registry.dispatcher.facts.strike(note)")
    lines = [
        "0",
        "kit::f\tCPU\tfast\t1\t2",  # fell back more often than it ran
        "kit::f\tCPU\tfast\t1",
        "kit::f\tCPU\tfast\t1\t0\t0",
        "kit::f\tCPU\tfast\t-1\t-1",
        "kit::f\tCPU\tfast\t\u0661\t0",
        f"kit::f\tCPU\tfast\t{'9' * 5000}\t0",
        "\t\t\t0\t0",
        "<b>\tNoKey\t\x1b[31m<script>\t7\t0",
        "kit::f\tNoKey\t\x1b[31m<script>\t3\t0",
        good,
        good,
    ]
    text = "\n".join(lines)
    worker.do(f"registry.dispatcher.facts.register(NOTE, 0, COUNTS, {text!r}, '')")
    for command in ("show", "table"):
        counted = answer(command, "kit::f", "--registry", name)["counted"]
        assert [(each["key"], each["runs"]) for each in counted["runs"]] == [
            ("CPU", 10),
            ("NoKey", 3),
        ]
        said = mdispatch(command, "kit::f", "--registry", name).stdout
        assert "\x1b" not in said
        assert r"\x1b[31m<script>" in said
    assert "\x1b" not in mdispatch("top", name, "--count", "1").stdout
    assert len(answer("report", "--registry", name)["counted"]["runs"]) == 4
    page = tmp_path / "page.html"
    assert mdispatch("report", str(page), "--registry", name).returncode == 0
    assert "<script>" not in page.read_text().partition("<main")[2].rpartition("</main>")[0]


def test_of_too_many_providers_the_most_frequent_are_told() -> None:
    with md.Registry.local() as registry:
        facts = registry.dispatcher.facts
        runs = [ProviderRuns(f"a::{'f' * 100}", "CPU", f"p{n}", n, n // 2) for n in range(1000)]
        tell(facts, runs, "here")
        (note,) = facts.registrations(COUNTS)[2]
        assert len(note.text) <= 16_384
        there = told(facts)
        assert there is not None
        assert there.left_out + len(there.runs) == 1000
        assert 100 < len(there.runs) < 1000
        assert set(there.runs) == set(runs[-len(there.runs) :])


def test_of_two_notes_of_a_member_the_newer_counts_and_other_kinds_are_none() -> None:
    with md.Registry.local() as registry:
        facts = registry.dispatcher.facts
        for n in (1, 2):  # who is killed between telling and striking leaves two
            facts.register(NOTE, 0, COUNTS, f"0\na::f\tCPU\tp\t{n}\t0", "")
        facts.register(IMPL, 0, COUNTS, "0\na::f\tCPU\tp\t9\t0", "")
        there = told(facts)
        assert there is not None
        assert (there.members, there.runs) == (1, (("a::f", "CPU", "p", 2, 0),))
        assert summed(facts.registrations(COUNTS)[2], alive=set()) is None


def test_a_call_does_not_hear_that_publishing_failed(capfd: pytest.CaptureFixture[str]) -> None:
    class A:
        pass

    closed = md.Registry.local()
    with md.Registry.local() as registry:
        md.register_type(A, "CPU")
        lib = md.Library("kit", "DEF", registry=registry)
        lib.define("f(Tensor x) -> int")
        lib.impl("f", lambda x: 1, "CPU", provider="one")
        with md.count_providers(every=0, registry=closed) as counts:
            registry.ops.kit.f(A())
            closed.close()
            assert registry.ops.kit.f(A()) == 1
            with pytest.raises(md.errors.RegistryClosedError):
                counts.publish()
        assert counts.runs() == (("kit::f", "CPU", "one", 2, 0),)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("every", [-1, float("nan"), "1"])
def test_what_is_no_number_of_seconds_is_refused(every: Any) -> None:
    with pytest.raises(md.errors.InvalidArgumentError, match="every= takes a number of seconds"):
        md.count_providers(every=every)

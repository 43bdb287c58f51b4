"""Two editions that are alive side by side: the log, doctor and report say so."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import members
import pytest
from command_line import mdispatch
from json_keys import strangers
from members import Member

import mdispatch as md
from mdispatch import errors
from mdispatch.editions.joining import edition_of, name_of
from mdispatch.editions.living import ago, others
from mdispatch.facts import outside
from mdispatch.facts.opening import named_registries

pytestmark = pytest.mark.shared

SHOP = """
import os
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define(f"price(float amount, float tax={os.environ['TAX']}) -> float")
for name in os.environ.get("MORE", "").split():
    lib.define(f"{name}() -> ()")
"""


@pytest.fixture
def name() -> Iterator[str]:
    name = f"e{secrets.token_hex(5)}"
    yield name
    assert [each for each in named_registries() if name_of(each) == name] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "other.py").write_text(SHOP.replace('"shop"', '"other"'))
    return tmp_path


@contextmanager
def member(
    name: str, edition: str, folder: Path, tax: str = "0.19", more: str = ""
) -> Iterator[Member]:
    address = f"elect:{name}{'@' * bool(edition)}{edition}"
    with members.member(address, folder, TAX=tax, MORE=more) as made:
        yield made


WARM = "md.warm_up('shop')"


def test_the_member_that_makes_the_second_edition_says_so_once(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        assert old.run("md.default_registry()") == ""
        told = new.run("md.default_registry()")
        found = re.fullmatch(
            rf"mdispatch\.registry: {name}@2 was made while {name}@1 \(1 process, made \d s ago\) "
            r"is alive\. (.*)\n(.*)\n",
            told,
        )
        assert found, told
        assert found[1].startswith("Members of different editions are not compared")
        assert found[2] == f"To compare them: mdispatch diff {name}@1 {name}@2"
        with member(name, "2", folder) as next_one:
            assert next_one.run("md.default_registry()") == ""
            assert next_one.run(WARM) == ""
        with member(name, "1", folder) as another:
            assert another.run("md.default_registry()") == ""


def test_after_its_warm_up_it_says_what_differs(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder, "0.16") as new:
        old.run(WARM)
        new.run("md.default_registry()")
        told = new.run(WARM).splitlines()
        assert told == [
            f"mdispatch.verify: {name}@2 beside {name}@1: breaking, 1 difference",
            f"  shop::price: the default of 'tax' is 0.19 in {name}@1, 0.16 in {name}@2",
            f"    {name}@2: {folder}/shop.py:5",
            f"    {name}@1: {folder}/shop.py:5",
        ]
        done = mdispatch("diff", f"{name}@1", f"{name}@2", "--json")
        assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "breaking")


def test_the_first_differences_are_told_and_the_others_counted(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder, more="a b c d") as new:
        old.run(WARM)
        new.run("md.default_registry()")
        told = new.run(WARM).splitlines()
        assert told[0] == f"mdispatch.verify: {name}@2 beside {name}@1: compatible, 4 differences"
        assert [line[:9] for line in told[1::3]] == [
            "  shop::a",
            "  shop::b",
            "  shop::c",
            "  and 1 m",
        ]
        assert told[3] == f"    {name}@1: nothing"


def test_the_same_code_in_two_editions_is_told_to_be_the_same(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run(WARM)
        new.run("md.default_registry()")
        assert new.run(WARM) == f"mdispatch.verify: {name}@2 beside {name}@1: same\n"


def test_what_the_new_edition_has_not_imported_yet_is_no_difference(
    name: str, folder: Path
) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run("md.warm_up(['shop', 'other'])")
        new.run("md.default_registry()")
        assert new.run(WARM) == f"mdispatch.verify: {name}@2 beside {name}@1: same\n"


def test_nothing_is_told_where_the_other_edition_has_ended(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old:
        old.run(WARM)
        old.end()
        with member(name, "2", folder, "0.16") as new:
            assert new.run("md.default_registry()") == ""
            assert new.run(WARM) == ""


def test_an_edition_whose_processes_were_killed_is_not_alive(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old:
        old.run(WARM)
        old.process.kill()
        old.end()
        with member(name, "2", folder, "0.16") as new:
            assert new.run("md.default_registry()") == ""
            assert new.run(WARM) == ""
            there = [each for each in named_registries() if name_of(each) == name]
            assert there == [f"{name}@2"]  # the maker of an edition removes dead ones


def test_inside_an_edition_a_difference_is_refused(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "1", folder, "0.16") as new:
        old.run(WARM)
        line = "try: import shop\nexcept md.errors.SchemaMismatchError as e: print(e)"
        told = new.run(line)
        assert "the default of " in told
        assert "0.16" in told


@pytest.mark.needs("choices")
def test_members_of_two_editions_wait_verify_and_choose_apart(name: str, folder: Path) -> None:
    choose = "print(md.choose('shop::price', 1, [1, 2], lambda: {}, timeout=5))"
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run(WARM)
        line = (
            "try: md.wait_for_def('shop::price', timeout=0)\n"
            "except md.errors.MdispatchError as e: print(type(e).__name__)"
        )
        assert new.run(line).splitlines()[-1] == "MainNeverArrivedError"
        assert old.run(choose.format(1)) == "1\n"
        assert new.run(choose.format(2)) == "2\n"


def test_a_name_without_an_edition_is_one_beside_the_others(name: str, folder: Path) -> None:
    with member(name, "", folder) as old, member(name, "2", folder, "0.16") as new:
        old.run(WARM)
        assert f"was made while {name} (1 process" in new.run("md.default_registry()")
        assert f"0.19 in {name}, 0.16 in {name}@2" in new.run(WARM)


# --- doctor and report ----------------------------------------------------------------------------


def registries(name: str, **env: str) -> dict[str, dict[str, object]]:
    done = mdispatch("doctor", "--json", **env)
    answer = json.loads(done.stdout)
    assert strangers("doctor", answer) == []
    found = [each for each in answer["registries"] if name_of(each["name"] or "") == name]
    assert [each["name"] for each in found] == sorted(each["name"] for each in found)
    return {each["name"]: each for each in found}


@pytest.mark.thorough
def test_doctor_groups_editions_and_is_red_when_two_live_long(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run(WARM)
        new.run(WARM)
        there = registries(name)
        assert [each["problems"] for each in there.values()] == [[], []]
        edition = there[f"{name}@2"]["edition"]
        assert isinstance(edition, dict)
        assert edition.pop("seconds") >= 0
        assert edition == {"of": name, "edition": "2", "beside": [f"{name}@1"]}
        there = registries(name, MDISPATCH_OVERLAP="0")
        assert there[f"{name}@2"]["problems"] == []
        [problem] = there[f"{name}@1"]["problems"]
        assert problem.startswith(f"{name}@2 was made ")
        assert problem.endswith(f"mdispatch diff {name}@1 {name}@2")
        done = mdispatch("report", "--registry", f"{name}@1", "--json")
        assert json.loads(done.stdout)["problems"] == []
        done = mdispatch(
            *("report", "--registry", f"{name}@1", "--json"),
            MDISPATCH_OVERLAP="0",
        )
        [told] = json.loads(done.stdout)["problems"]
        assert re.sub(r"made \d+ s", "made 0 s", told) == re.sub(r"made \d+ s", "made 0 s", problem)
        page = folder / "page.html"
        mdispatch("report", str(page), "--registry", f"{name}@1", MDISPATCH_OVERLAP="0")
        assert f'<p class="bad">Needs attention: {name}@2 was made' in page.read_text()
        done = mdispatch("doctor", f"{name}@1")
        assert re.search(rf"edition +made \d s ago; beside it {name}@2 \(1 process", done.stdout)


def test_a_name_whose_editions_alone_are_there_is_told_with_them(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run(WARM)
        new.run(WARM)
        done = mdispatch("ls", "--registry", name)
        assert done.returncode == 2
        assert f"Did you mean {name}@1, {name}@2?" in done.stderr


@pytest.mark.parametrize("text", ["x", "-1", "inf", "nan"])
def test_an_overlap_that_is_none_is_refused(name: str, folder: Path, text: str) -> None:
    with member(name, "1", folder) as old, member(name, "2", folder) as new:
        old.run(WARM)
        new.run(WARM)
        done = mdispatch("doctor", MDISPATCH_OVERLAP=text)
        assert done.returncode == 2
        assert f"MDISPATCH_OVERLAP={text} in the environment: give seconds" in done.stderr


# --- how many -------------------------------------------------------------------------------------


def test_so_many_editions_are_alive_and_no_more(name: str) -> None:
    there = [md.Registry.elect(f"{name}@{number}") for number in range(16)]
    with pytest.raises(errors.TooManyEditionsError, match="16 other editions") as caught:
        md.Registry.elect(f"{name}@16")
    assert caught.value.registry == f"{name}@16"
    assert [each.name for each in others(f"elect:{name}@3")] == [
        f"{name}@{number}" for number in reversed(range(16)) if number != 3
    ]
    there[5].close()
    with md.Registry.elect(f"{name}@16"):
        pass
    for each in there:
        each.close()


@pytest.mark.parametrize(
    ("label", "name", "edition"),
    [
        ("elect:shop@1", "shop", "1"),
        ("shm:shop@1.4.2+g1", "shop", "1.4.2+g1"),
        ("shop", "shop", ""),
        ("shm:shop", "shop", ""),
        ("fd:1:2:3", "", ""),
        ("local:12", "", ""),
    ],
)
def test_an_address_has_a_name_and_an_edition(label: str, name: str, edition: str) -> None:
    assert (name_of(label), edition_of(label)) == (name, edition)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s ago"),
        (119, "119 s ago"),
        (600, "10 min ago"),
        (7300, "2 h ago"),
        (1e6, "12 days ago"),
    ],
)
def test_a_time_in_words(seconds: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**18
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    assert ago(now - int(seconds * 1e9)) == words


def test_a_name_in_the_folder_that_is_none_of_ours_does_no_harm(name: str, folder: Path) -> None:
    with member(name, "1", folder) as old:
        old.run(WARM)
        stranger = Path(outside.folder(), f"{name}@x")
        stranger.write_text("no registry")
        try:
            with member(name, "2", folder) as new:
                told = new.run("md.default_registry()")
                assert f"while {name}@1 (1 process" in told
                assert f"{name}@x" not in told
        finally:
            stranger.unlink()

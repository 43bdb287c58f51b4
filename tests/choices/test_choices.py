"""Choices in one interpreter: chosen, remembered, refused, withdrawn, exported and loaded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import threading
from _thread import interrupt_main
from pathlib import Path

import pytest
from kinds import until
from patience import limit

import mdispatch as md
from mdispatch import choices, errors
from mdispatch.choices import listing
from mdispatch.choices.choosing import Turns
from mdispatch.choices.kind import CHOICE
from mdispatch.facts import CLAIM

TILES = [16, 32, 64]


@pytest.fixture(params=["local", pytest.param("shared", marks=pytest.mark.shared)])
def registry(request):
    """A registry of each kind."""
    made = md.Registry.local() if request.param == "local" else md.Registry.create()
    with made:
        yield made
        assert made.dispatcher.of(Turns).deciding == {}
        assert made.dispatcher.facts.registrations_since(CLAIM, 0)[0] == 0
        assert made.dispatcher.facts.check() == ""


def never():
    raise AssertionError("nobody has to decide")


def test_the_registration_of_a_choice_has_the_line_and_the_module_that_asked(registry):
    md.choose("a::f", 1, [16, 32], lambda: 16, registry=registry)
    _, (fact,) = registry.dispatcher.facts.registrations_since(CHOICE, 0)
    assert fact.where.startswith(f"{__file__}:")
    assert fact.module == __name__


def test_the_first_decides_and_then_it_is_there(registry) -> None:
    decided = []

    def decide() -> int:
        decided.append(1)
        return 64

    for _ in range(3):
        assert md.choose("shop::gemm", (128, 64), TILES, decide, registry=registry) == 64
    registry.dispatcher.chosen.clear()
    assert md.choose("shop::gemm", (128, 64), TILES, never, registry=registry) == 64
    assert decided == [1]
    (choice,) = choices.made(registry=registry)
    assert (choice.operator, choice.profile, choice.value) == ("shop::gemm", [128, 64], 64)
    assert (choice.candidates, choice.waited) == (TILES, 0)
    assert choice.where.startswith(__file__)
    assert choice.seconds >= 0
    assert choice.at > 0


def test_each_operator_profile_and_environment_has_its_own(registry) -> None:
    asked = [
        ("a::f", (1,), None),
        ("a::f", (2,), None),
        ("a::f", 1, None),
        ("a::f", "1", None),
        ("a::g", (1,), None),
        ("a::f", (1,), "cuda 12"),
        ("a::f", (1,), ("cuda", 12)),
        ("a::f", ((1,),), None),
        ("a::f", (1, None), None),
        ("a::f", {"m": 1}, None),
        ("a::f", 1.5, None),
        ("a", ":f", None),
        ("a:", "f", None),
        ("a::f", "x" * 2000, None),
        ("a::f", "x" * 2000 + "y", None),
        ("a::f", "\\:\\\\:é\ud800", None),
    ]
    numbers = list(range(len(asked)))
    for turn in range(2):
        for number, (operator, profile, environment) in enumerate(asked):
            chosen = md.choose(
                operator,
                profile,
                numbers,
                (lambda n=number: n) if turn == 0 else never,
                environment=environment,
                registry=registry,
            )
            assert chosen == number, asked[number]
    assert len(choices.made(registry=registry)) == len(asked)
    assert len(choices.made("a::f", registry=registry)) == 13


def test_what_is_equal_in_python_is_one_profile(registry) -> None:
    same = [(1, 0, "a"), (1.0, 0, "a"), (True, False, "a"), [1, 0.0, "a"], (1, -0.0, "a")]
    for profile in same:
        assert md.choose("a::f", profile, TILES, lambda: 32, registry=registry) == 32
        registry.dispatcher.chosen.clear()
    assert len(choices.made(registry=registry)) == 1


def test_numbers_of_numpy_are_numbers(registry) -> None:
    np = pytest.importorskip("numpy")
    profile = (np.int64(8), np.float64(0.5))
    assert md.choose("a::f", profile, TILES, lambda: np.int64(32), registry=registry) == 32
    assert md.choose("a::f", (8, 0.5), TILES, never, registry=registry) == 32
    # Compared with the candidates that are remembered, an array is no truth value.
    assert md.choose("a::f", (8, 0.5), np.array(TILES), never, registry=registry) == 32


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: int
    columns: int = 8


@pytest.mark.parametrize(
    "profile",
    [float("nan"), float("inf"), {1: 2}, b"x", {1, 2}, 1j, Tile(2), Path("a"), {"#a": 1}],
)
def test_profiles_and_candidates_are_values_as_agreements_have_them(
    registry, profile, tmp_path
) -> None:
    tiles = [Tile(8), Tile(16)]
    asked = {"candidates": tiles, "decide": lambda: Tile(16), "environment": [profile]}
    for _ in range(2):
        assert md.choose("a::f", profile, **asked, registry=registry) is tiles[1]
        registry.dispatcher.chosen.clear()
    (made,) = choices.made(registry=registry)
    assert made.value["#object"][1] == {"rows": 16, "columns": 8}
    assert choices.export(tmp_path / "file", registry=registry) == 1
    assert choices.withdraw(made, registry=registry)
    number = choices.load(
        tmp_path / "file", "a::f", tiles, environment=[profile], registry=registry
    )
    assert number == 1
    asked["decide"] = never
    assert md.choose("a::f", profile, **asked, registry=registry) is tiles[1]


@pytest.mark.parametrize("profile", [object(), (1, object())])
def test_what_no_other_process_could_compare_is_refused(registry, profile) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"profile.* is of type object"):
        md.choose("a::f", profile, TILES, never, registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match="environment"):
        md.choose("a::f", 1, TILES, never, environment=profile, registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match="a candidate"):
        md.choose("a::f", 1, [profile], never, registry=registry)
    assert registry.dispatcher.facts.registrations_since(0, 0)[0] == 0


@pytest.mark.parametrize(
    ("operator", "candidates", "decide", "words"),
    [
        ("", TILES, never, "for an operator or a name"),
        (7, TILES, never, "for an operator or a name"),
        ("a::f", [], never, "there are no candidates"),
        ("a::f", "abc", never, "a list of what can be chosen"),
        ("a::f", 3, never, "a list of what can be chosen"),
        ("a::f", TILES, None, "decide= takes a function"),
        ("a::f", ["x" * 70_000], never, "short names"),
    ],
)
def test_arguments_that_nothing_can_use_are_refused(
    registry, operator, candidates, decide, words
) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        md.choose(operator, 1, candidates, decide, registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match="timeout"):
        md.choose("a::f", 1, TILES, never, timeout=-1, registry=registry)
    assert registry.dispatcher.facts.registrations_since(0, 0)[0] == 0


def test_each_gets_its_own_candidate(registry) -> None:
    first = [{"block": 64, "warps": 4}, {"block": 128, "warps": 8}]
    second = ({"warps": 8, "block": 128.0}, {"block": 32})
    assert md.choose("a::f", 1, first, lambda: first[1], registry=registry) is first[1]
    assert md.choose("a::f", 1, second, never, registry=registry) is second[0]
    kernels = {"slow": len, "fast": max}
    assert kernels[md.choose("a::g", 1, kernels, lambda: "fast", registry=registry)] is max
    assert md.choose("a::g", 1, kernels, never, registry=registry) == "fast"
    assert md.choose("a::g", 1, iter(["fast"]), never, registry=registry) == "fast"


def test_a_choice_that_is_no_candidate_here_is_an_error_with_both_lists(registry) -> None:
    md.choose("a::f", (1,), TILES, lambda: 16, registry=registry)
    with pytest.raises(errors.NotACandidateError) as caught:
        md.choose("a::f", (1,), [32, 64, 128], never, registry=registry)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.operator, error.profile, error.choice) == ("a::f", (1,), 16)
    assert error.candidates == (32, 64, 128)
    assert error.candidates_there == (16, 32, 64)
    assert error.here.startswith(__file__)
    assert error.there.startswith(__file__)
    assert "[32, 64, 128]" in str(error) or "32, 64, 128" in str(error)


def test_a_list_that_was_changed_in_place_is_looked_at_anew(registry) -> None:
    mine = list(TILES)
    md.choose("a::f", 1, mine, lambda: 16, registry=registry)
    assert md.choose("a::f", 1, mine, never, registry=registry) == 16
    mine.remove(16)
    with pytest.raises(errors.NotACandidateError):
        md.choose("a::f", 1, mine, never, registry=registry)


def test_a_decide_that_returns_no_candidate_has_chosen_nothing(registry) -> None:
    with pytest.raises(errors.NotACandidateError) as caught:
        md.choose("a::f", 1, TILES, lambda: 17, registry=registry)
    assert (caught.value.choice, caught.value.there) == (17, "")
    assert choices.made(registry=registry) == []
    assert md.choose("a::f", 1, TILES, lambda: 16, registry=registry) == 16


def test_whoever_raises_hears_it_and_the_next_decides(registry) -> None:
    with pytest.raises(ZeroDivisionError):
        md.choose("a::f", 1, TILES, lambda: 1 // 0, registry=registry)
    assert choices.made(registry=registry) == []
    assert md.choose("a::f", 1, TILES, lambda: 16, registry=registry) == 16


def test_a_decide_that_asks_for_its_own_choice_is_an_error(registry) -> None:
    def decide() -> int:
        return md.choose("a::f", 1, TILES, decide, registry=registry)

    with pytest.raises(errors.NestedChoiceError) as caught:
        md.choose("a::f", 1, TILES, decide, registry=registry)
    assert (caught.value.operator, caught.value.profile) == ("a::f", 1)


def test_a_decide_may_ask_for_another_choice_and_use_the_registry(registry) -> None:
    def decide() -> int:
        md.Library("a", "DEF", registry=registry).define("f(Tensor x) -> Tensor")
        return md.choose("a::f", 2, TILES, lambda: 32, registry=registry)

    assert md.choose("a::f", 1, TILES, decide, registry=registry) == 32


def test_an_operator_is_a_name_and_brings_its_registry(registry) -> None:
    lib = md.Library("a", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    operator = registry.ops.a.f.default
    assert md.choose(operator, 1, TILES, lambda: 16) == 16
    assert md.choose(registry.ops.a.f, 1, TILES, never) == 16
    assert md.choose("a::f", 1, TILES, never, registry=registry) == 16
    with (
        md.Registry.local() as other,
        pytest.raises(errors.InvalidArgumentError, match="give only one"),
    ):
        md.choose(operator, 1, TILES, never, registry=other)


def test_a_withdrawn_choice_is_made_anew_and_nobody_goes_on_with_it(registry) -> None:
    def ask(decide=never):
        return md.choose("a::f", 1, TILES, decide, registry=registry)

    assert ask(lambda: 16) == 16
    assert ask() == 16
    (choice,) = choices.made(registry=registry)
    assert choices.withdraw(choice, registry=registry)
    assert not choices.withdraw(choice, registry=registry)
    assert ask(lambda: 32) == 32
    assert ask() == 32


def test_threads_agree_and_one_decides(registry) -> None:
    """Each thread in turn decides first, for a profile of its own."""
    begun, decided, got = threading.Event(), [], []
    go_on = threading.Event()

    def decide() -> int:
        decided.append(threading.get_ident())
        begun.set()
        assert go_on.wait(limit(60))
        return 32

    def ask() -> None:
        got.append(md.choose("a::f", 1, TILES, decide, timeout=limit(60), registry=registry))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(limit(60))
    until(lambda: registry.dispatcher.facts.members()[0][4] == 5)
    go_on.set()
    for thread in threads:
        thread.join(limit(60))
    assert got == [32] * 6
    assert len(decided) == 1


def test_of_threads_the_next_decides_when_one_raises(registry) -> None:
    """Each hears its own exception, and the last one's choice counts."""
    count, together = 5, threading.Barrier(5)
    raised, got, decided = [], [], []

    def decide() -> int:
        decided.append(1)
        if len(decided) < count:
            raise LookupError(len(decided))
        return 16

    def ask() -> None:
        together.wait(limit(60))
        try:
            got.append(md.choose("a::f", 1, TILES, decide, timeout=limit(60), registry=registry))
        except LookupError as error:
            raised.append(error.args[0])

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit(60))
    assert sorted(raised) == [1, 2, 3, 4]
    assert got == [16]


def test_nobody_takes_a_claim_for_its_own_that_is_being_released(registry, monkeypatch) -> None:
    told = []
    kind = type(registry.dispatcher.facts)
    release = kind.release

    def ask_at_once() -> None:
        try:
            told.append(md.choose("a::f", (1,), [1, 2], lambda: 2, timeout=0, registry=registry))
        except errors.ChoiceTimeoutError:
            told.append(None)

    def released_late(facts, name) -> None:
        other = threading.Thread(target=ask_at_once)
        other.start()
        other.join(limit(30))
        release(facts, name)

    monkeypatch.setattr(kind, "release", released_late)
    with pytest.raises(ZeroDivisionError):
        md.choose("a::f", (1,), [1, 2], lambda: 1 // 0, registry=registry)
    monkeypatch.undo()
    assert told == [None]
    assert md.choose("a::f", (1,), [1, 2], lambda: 2, registry=registry) == 2


def test_a_deadline_names_who_decides(registry) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def decide() -> int:
        begun.set()
        assert go_on.wait(limit(60))
        return 16

    ask = threading.Thread(
        target=lambda: md.choose("a::f", (1, 2), TILES, decide, registry=registry)
    )
    ask.start()
    assert begun.wait(limit(60))
    for timeout in (0, 0.01):
        with pytest.raises(errors.ChoiceTimeoutError) as caught:
            md.choose("a::f", (1, 2), TILES, never, timeout=timeout, registry=registry)
    error = pickle.loads(pickle.dumps(caught.value))
    go_on.set()
    ask.join(limit(60))
    assert isinstance(error, TimeoutError)
    assert (error.pid, error.interpreter) == (registry.dispatcher.facts.pid, 0)
    assert error.waited >= 0.01
    assert "is deciding" in str(error)
    assert __file__ in str(error)


def test_ctrl_c_in_decide_leaves_the_choice_to_the_next(registry) -> None:
    def decide() -> int:
        interrupt_main()
        while True:
            threading.Event().wait(0.001)

    with pytest.raises(KeyboardInterrupt):
        md.choose("a::f", 1, TILES, decide, registry=registry)
    assert md.choose("a::f", 1, TILES, lambda: 16, registry=registry) == 16


def test_ctrl_c_while_the_turn_ends_ends_it_and_is_told(registry, monkeypatch) -> None:
    facts, release = registry.dispatcher.facts, type(registry.dispatcher.facts).release
    interrupts = [KeyboardInterrupt]

    def interrupted(self, name):
        if self is facts and interrupts:
            raise interrupts.pop()
        return release(self, name)

    monkeypatch.setattr(type(facts), "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        md.choose("a::f", 1, TILES, lambda: 16, registry=registry)
    assert interrupts == []
    assert md.choose("a::f", 1, TILES, never, registry=registry) == 16


def test_when_the_registry_closes_whoever_waits_is_told(registry) -> None:
    begun, go_on, told = threading.Event(), threading.Event(), []
    with (
        md.Registry.local() if registry.address.startswith("local") else md.Registry.create() as own
    ):

        def decide() -> int:
            begun.set()
            assert go_on.wait(limit(60))
            return 16

        def ask(how) -> None:
            try:
                md.choose("a::f", 1, TILES, how, timeout=limit(60), registry=own)
            except errors.RegistryClosedError as error:
                told.append(error)

        first = threading.Thread(target=ask, args=(decide,))
        second = threading.Thread(target=ask, args=(never,))
        first.start()
        assert begun.wait(limit(60))
        second.start()
        until(lambda: own.dispatcher.facts.members()[0][4] == 1)
        own.close()
        second.join(limit(60))
        assert len(told) == 1
        go_on.set()
        first.join(limit(60))
        assert len(told) == 2
        with pytest.raises(errors.RegistryClosedError):
            md.choose("a::f", 1, TILES, never, registry=own)


def test_what_was_remembered_is_not_used_after_the_end(registry) -> None:
    with (
        md.Registry.local() if registry.address.startswith("local") else md.Registry.create() as own
    ):
        md.choose("a::f", 1, TILES, lambda: 16, registry=own)
        md.choose("a::f", 1, TILES, never, registry=own)
    with pytest.raises(errors.RegistryClosedError):
        md.choose("a::f", 1, TILES, never, registry=own)


def test_a_claim_on_a_choice_is_no_library(registry) -> None:
    def decide() -> int:
        assert registry.registers()
        assert registry.namespaces() == []
        assert registry.operators() == []
        return 16

    md.choose("a::f", 1, TILES, decide, registry=registry)
    assert registry.dangling_implementations() == []
    registry.check_invariants()


# --- tasks


def test_tasks_agree_and_block_no_other(registry) -> None:
    decided = []

    async def main() -> list[int]:
        begun, go_on = threading.Event(), threading.Event()

        def decide() -> int:
            decided.append(1)
            begun.set()
            assert go_on.wait(limit(60))
            return 32

        asks = [
            asyncio.create_task(md.choose_async("a::f", 1, TILES, decide, registry=registry))
            for _ in range(4)
        ]
        while registry.dispatcher.facts.members()[0][4] < 3:
            await asyncio.sleep(0.001)
        go_on.set()
        return await asyncio.gather(*asks)

    assert set(asyncio.run(main())) == {32}
    assert decided == [1]


def test_a_task_that_is_cancelled_while_it_waits_ends_at_once(registry) -> None:
    async def main() -> None:
        begun, go_on = threading.Event(), threading.Event()

        def decide() -> int:
            begun.set()
            assert go_on.wait(limit(60))
            return 32

        first = asyncio.create_task(md.choose_async("a::f", 1, TILES, decide, registry=registry))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(
            md.choose_async("a::f", 1, TILES, never, timeout=None, registry=registry)
        )
        while not registry.dispatcher.facts.members()[0][4]:
            await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        go_on.set()
        assert await first == 32

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_decides_has_decided(registry) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def decide() -> int:
        begun.set()
        assert go_on.wait(limit(60))
        return 64

    async def main() -> None:
        first = asyncio.create_task(md.choose_async("a::f", 1, TILES, decide, registry=registry))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())
    assert choices.made(registry=registry) == []
    go_on.set()
    assert md.choose("a::f", 1, TILES, never, timeout=limit(60), registry=registry) == 64
    until(lambda: not registry.dispatcher.of(Turns).deciding)


def test_a_turn_is_marked_before_its_claim_is_released(registry, monkeypatch) -> None:
    facts, marks = registry.dispatcher.facts, []
    release = type(facts).release

    def released(self, name):
        if self is facts:
            marks.append([turn.ending for turn in registry.dispatcher.of(Turns).deciding.values()])
        return release(self, name)

    monkeypatch.setattr(type(facts), "release", released)
    assert md.choose("a::f", 1, TILES, lambda: 64, registry=registry) == 64
    assert marks == [[True]]


def test_what_was_withdrawn_and_chosen_anew_at_once_is_not_remembered(
    registry, monkeypatch
) -> None:
    facts, looks = registry.dispatcher.facts, []
    registrations = type(facts).registrations

    def looked(self, name=None):
        if self is facts and name is not None and choices.made(registry=registry) and not looks:
            looks.append(name)  # the choice was made, and is looked up for its version
            choices.withdraw(choices.made(registry=registry)[0], registry=registry)
            assert md.choose("a::f", 1, TILES, lambda: 32, registry=registry) == 32
            registry.dispatcher.chosen.clear()
        return registrations(self, name)

    monkeypatch.setattr(type(facts), "registrations", looked)
    assert md.choose("a::f", 1, TILES, lambda: 64, registry=registry) == 64  # as it was agreed
    assert len(looks) == 1
    assert md.choose("a::f", 1, TILES, never, registry=registry) == 32


# --- files


def three_choices(registry) -> None:
    for size, tile in ((1, 16), (2, 32), (3, 64)):
        md.choose("a::f", (size, "f32"), TILES, lambda t=tile: t, registry=registry)


def test_choices_go_through_a_file(registry, tmp_path) -> None:
    file = tmp_path / "choices.json"
    three_choices(registry)
    md.choose("a::f", 1, TILES, lambda: 16, environment={"cuda": 12}, registry=registry)
    md.choose("a::g", 1, ["x", "y"], lambda: "y", registry=registry)
    assert choices.export(file, registry=registry) == 5
    assert choices.export(tmp_path / "one.json", choices.made("a::g", registry=registry)) == 1
    with md.Registry.local() as other:
        assert md.choose("a::f", (2, "f32"), TILES, lambda: 64, registry=other) == 64
        assert choices.load(file, "a::f", TILES, registry=other) == 2  # one is there already
        assert choices.load(file, "a::f", TILES, registry=other) == 0
        asked = [md.choose("a::f", (n, "f32"), TILES, never, registry=other) for n in (1, 2, 3)]
        assert asked == [16, 64, 64]
        assert choices.load(file, "a::f", TILES, environment={"cuda": 12}, registry=other) == 1
        assert choices.load(tmp_path / "one.json", "a::g", ["x", "y"], registry=other) == 1
        loaded = choices.made("a::g", registry=other)[0]
        assert loaded.where.startswith(str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["choices.json", "one.json"]


def test_a_file_that_does_not_match_is_refused_in_words_and_changes_nothing(
    registry, tmp_path
) -> None:
    file = tmp_path / "choices.json"
    three_choices(registry)
    choices.export(file, registry=registry)
    with md.Registry.local() as other:

        def refused(words, operator="a::f", candidates=TILES, environment=None):
            with pytest.raises(errors.ChoicesFileError, match=words) as caught:
                choices.load(file, operator, candidates, environment=environment, registry=other)
            assert caught.value.path == str(file)
            return pickle.loads(pickle.dumps(caught.value))

        error = refused("other candidates", candidates=[16, 32])
        assert (error.here, error.there) == ([16, 32], TILES)
        error = refused("another environment", environment="cuda 13")
        assert (error.here, error.there) == ("cuda 13", [None])
        assert refused("none for a::h, but for a::f", "a::h").there == ["a::f"]
        whole = json.loads(file.read_text())
        whole["sets"][0]["choices"][0]["choice"] = 17
        file.write_text(json.dumps(whole))
        refused("none of its candidates")
        whole["sets"][0]["candidates"].append(17)
        file.write_text(json.dumps(whole))
        refused("its digest is another")
        whole["mdispatch choices"] = 2
        file.write_text(json.dumps(whole))
        refused("it has format 2")
        for text in ("", "{", "[]", "{}", '{"mdispatch choices": 1, "sets": [1]}', "\0\xff"):
            file.write_text(text)
            refused("it is no file of")
        file.write_bytes(b"\xff\xfe")
        refused("it is no file of")
        assert choices.made(registry=other) == []
        with pytest.raises(FileNotFoundError):
            choices.load(tmp_path / "none.json", "a::f", TILES, registry=other)


def nested(depth: int) -> object:
    made: object = 1
    for _ in range(depth):
        made = [made]
    return made


#: Stands for lists in one another that Python does not follow: json makes no such text.
DEEP = "<deep>"


def deep(text: str) -> str:
    return text.replace(json.dumps(DEEP), "[" * 2000 + "1" + "]" * 2000)


#: One set of a file, by what is put in its place; a digest that fits is added to each.
HOSTILE_SETS = [
    {"operator": ["a::f"]},
    {"operator": None},
    {"operator": {"a": 1}},
    {"operator": 7},
    {"operator": True},
    {"candidates": {"16": 1, "32": 2}},
    {"candidates": "abc"},
    {"candidates": None},
    {"candidates": [DEEP]},
    {"candidates": [float("nan")]},
    {"environment": DEEP},
    {"environment": float("inf")},
    {"choices": None},
    {"choices": 3},
    {"choices": ["profile", "choice"]},
    {"choices": [["profile", "choice"]]},
    {"choices": [{"profile": 1}]},
    {"choices": [{"profile": DEEP, "choice": 16}]},
    {"choices": [{"profile": float("nan"), "choice": 16}]},
    {"choices": [{"profile": 1, "choice": DEEP}]},
    {"choices": [{"profile": 1, "choice": [16]}]},
    {"digest": None},
    {"digest": ["a"]},
]


@pytest.mark.parametrize("number", range(len(HOSTILE_SETS) + 4))
def test_whatever_is_in_a_file_is_an_error_of_choices_and_changes_nothing(
    registry, tmp_path, number
):
    file = tmp_path / "choices.json"
    if number < len(HOSTILE_SETS):
        one = {"operator": "a::f", "environment": None, "candidates": TILES, "choices": []}
        one |= HOSTILE_SETS[number]
        try:
            digest = listing._digest(one["operator"], one["environment"], one["candidates"])
        except (TypeError, ValueError):
            digest = ""
        whole = {"mdispatch choices": 1, "sets": [{"digest": digest} | one]}
        text = deep(json.dumps(whole))
    else:
        text = [
            "[" * 900 + "]" * 900,
            "[" * 100_000,
            '{"mdispatch choices": ' + "[" * 450 + "]" * 450 + "}",
            '{"mdispatch choices": ' + "9" * 5000 + "}",
        ][number - len(HOSTILE_SETS)]
    file.write_text(text)
    for operator in ("a::f", "a::g"):
        with pytest.raises(errors.ChoicesFileError):
            choices.load(file, operator, TILES, registry=registry)
    assert choices.made(registry=registry) == []


def test_a_profile_without_end_is_refused(registry) -> None:
    deep = nested(5000)
    for asked in ((deep, TILES, None), (1, [deep], None), (1, TILES, deep)):
        with pytest.raises(errors.InvalidArgumentError, match="is more than 64 levels deep"):
            md.choose("a::f", *asked[:2], never, environment=asked[2], registry=registry)
    assert registry.dispatcher.facts.registrations_since(0, 0)[0] == 0


TOLD = {
    "operator": "a::f",
    "profile": 1,
    "environment": None,
    "candidates": TILES,
    "seconds": 0.0,
    "waited": 0,
    "at": 1.7e9,
}


def other_told(**changed: object) -> str:
    return "0 77\n" + deep(json.dumps(TOLD | changed))


#: Registrations that are no choices: none of them names a candidate.
HOSTILE_FACTS = [
    "",
    "77",
    "0 77",
    "0 77\n",
    "x 77\n" + json.dumps(TOLD),
    "-1 77\n" + json.dumps(TOLD),
    "3 77\n" + json.dumps(TOLD),
    "9" * 5000 + " 77\n" + json.dumps(TOLD),
    "\u0663 77\n" + json.dumps(TOLD),
    "0 77\n[]",
    "0 77\n3",
    "0 77\n{}",
    "0 77\n" + "[" * 30_000,
    "0 77\n{",
    other_told(operator=None),
    other_told(operator=["a"]),
    other_told(candidates={}),
    other_told(candidates=[]),
    other_told(candidates=3),
    other_told(candidates="abc"),
    other_told(candidates=[DEEP]),
    other_told(profile=DEEP),
    other_told(profile=float("nan")),
    other_told(environment=DEEP),
    other_told(seconds="1"),
    other_told(seconds=float("nan")),
    other_told(seconds=-1),
    other_told(waited=1.5),
    other_told(waited=None),
    other_told(waited=2**64),
    other_told(at=1e300),
    other_told(at=[]),
    other_told(at=-5),
]


@pytest.mark.parametrize("number", range(len(HOSTILE_FACTS)))
def test_what_another_process_writes_in_place_of_a_choice_is_an_error_of_its_own(registry, number):
    from mdispatch.choices.profiles import choice_name

    assert md.choose("a::g", 1, TILES, lambda: 32, registry=registry) == 32
    name = choice_name("a::f", "1", None)
    registry.dispatcher.facts.register(CHOICE, 0, name, HOSTILE_FACTS[number], "odd.py:1")
    for _ in range(2):
        with pytest.raises(errors.RegistryDamagedError, match="none that mdispatch has written"):
            md.choose("a::f", 1, TILES, never, registry=registry)
    assert [each.operator for each in choices.made(registry=registry)] == ["a::g"]
    assert md.choose("a::g", 1, TILES, never, registry=registry) == 32


def test_a_choice_of_another_candidate_is_told_as_before(registry) -> None:
    from mdispatch.choices.profiles import choice_name

    name = choice_name("a::f", "1", None)
    told = TOLD | {"candidates": [77]}
    registry.dispatcher.facts.register(CHOICE, 0, name, "0 77\n" + json.dumps(told), "odd.py:1")
    with pytest.raises(errors.NotACandidateError, match="77"):
        md.choose("a::f", 1, TILES, never, registry=registry)
    assert md.choose("a::f", 1, [5, 77], never, registry=registry) == 77
    assert [each.value for each in choices.made(registry=registry)] == [77]


def test_what_is_loaded_while_somebody_decides_counts(registry, tmp_path) -> None:
    file = tmp_path / "choices.json"
    with md.Registry.local() as other:
        md.choose("a::f", 1, TILES, lambda: 64, registry=other)
        choices.export(file, registry=other)

    def decide() -> int:
        assert choices.load(file, "a::f", TILES, registry=registry) == 1
        return 16

    assert md.choose("a::f", 1, TILES, decide, registry=registry) == 64
    assert [each.value for each in choices.made(registry=registry)] == [64]


def test_a_choice_is_one_fact(registry) -> None:
    md.choose("a::f", 1, TILES, lambda: 64, registry=registry)
    live, there = registry.dispatcher.facts.registrations_since(0, 0)
    assert live == 1
    assert there[0].kind == CHOICE

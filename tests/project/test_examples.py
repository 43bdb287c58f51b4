"""The example modules do real work, with the same result in every kind of interpreter."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import runpy
import subprocess
import sys
import wave
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from known_types import types_as_before
from patience import limit

import mdispatch as md
from mdispatch.registry import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
RATE = 8000


@pytest.fixture(scope="module", autouse=True)
def default_registry() -> Iterator[None]:
    """Nothing of these tests is left for others: neither the types that they register, nor the
    registry, unless somebody had one before. A process has one as its registrar once.
    """
    before = registry.default
    with types_as_before():
        yield
    if before is None and registry.default is not None:
        registry.default.close()
        registry.default = None
    vars(md.ops).clear()


def example(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    module = importlib.import_module(name)
    sys.path.remove(str(EXAMPLES))
    yield module
    module.library.close()
    del sys.modules[name]


@pytest.fixture(scope="module")
def audio() -> Iterator[ModuleType]:
    yield from example("audio_ops")


@pytest.fixture(scope="module")
def text() -> Iterator[ModuleType]:
    yield from example("text_ops")


def tone(frequency: float, count: int = 2000, rate: int = RATE) -> array[float]:
    return array("d", (math.sin(2 * math.pi * frequency * i / rate) for i in range(count)))


def run_program(*arguments: str, status: int = 0, **more: str) -> str:
    kept = {n: v for n, v in os.environ.items() if n not in ("MDISPATCH_REGISTRY", "COLUMNS")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES.parent,
        env=kept | more,
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


# --- in every kind of interpreter -----------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["audio_ops", "text_ops"])
def test_an_example_gives_the_same_answer_in_every_kind_of_interpreter(name: str) -> None:
    output = run_program(str(EXAMPLES / f"{name}.py"))
    for place in ("main interpreter", "sub-interpreter a", "sub-interpreter b", "process"):
        assert f"{place} (" in output
    assert "All answers are the same." in output


@pytest.mark.thorough
def test_the_examples_verify_in_workers() -> None:
    output = run_program("-m", "mdispatch", "verify", "examples.audio_ops", "examples.text_ops")
    assert "15 operators and 21 kernels registered" in output
    assert "All 3 workers agree" in output


def test_the_divergent_example_differs_in_every_way_there_is() -> None:
    output = run_program(
        *("-m", "mdispatch", "verify", "examples.divergent_ops", "--timeout", "0.3"), status=1
    )
    for words in (
        "divergent::scale: another schema",
        "divergent::shift at CUDA: missing in main",
        "divergent::normalise: missing in main",
        "library divergent_extra: never arrived in main",
        "divergent::shift at CPU: missing in the worker",
        "divergent::normalize: missing in the worker",
        "divergent::clip: missing in the worker",
        "builtins.bytes: a type with other keys",
    ):
        assert words in output


def test_the_divergent_example_is_refused_without_an_audit() -> None:
    output = run_program(str(EXAMPLES / "divergent_ops.py"), status=1)
    for place in ("sub-interpreter a", "sub-interpreter b", "process"):
        answer = output.partition(f"{place} (")[2].partition(" ms)")[2]
        assert "divergent::scale has another schema" in answer
    assert "The answers differ." in output


@pytest.mark.parametrize("name", ["threads", "interpreters", "processes"])
def test_a_program_of_a_pool_runs_in_a_team_as_it_is(name: str) -> None:
    """The others do in CI's row examples/team."""
    team = f"elect:examples-{os.getpid()}-{name}"
    run_program(str(EXAMPLES / "pools" / f"{name}.py"), MDISPATCH_REGISTRY=team)


# --- sound ----------------------------------------------------------------------------------------


def test_the_samples_are_what_their_program_makes(tmp_path: Path) -> None:
    sys.argv, before = ["make_samples.py", str(tmp_path)], sys.argv
    runpy.run_path(str(DATA / "make_samples.py"), run_name="__main__")
    sys.argv = before
    for name in ("pluck.wav", "voice.wav"):
        with wave.open(str(DATA / name)) as kept, wave.open(str(tmp_path / name)) as made:
            assert kept.getparams() == made.getparams()
            both = [array("h", file.readframes(file.getnframes())) for file in (kept, made)]
        # The last bit of a sine may differ from machine to machine.
        assert max(abs(a - b) for a, b in zip(*both, strict=True)) <= 1
    assert sum((DATA / name).stat().st_size for name in ("pluck.wav", "voice.wav")) < 50_000


def test_samples_survive_decoding_and_encoding(audio: ModuleType) -> None:
    pcm, rate = audio.load("pluck.wav")
    samples = md.ops.audio.decode(pcm)
    assert rate == RATE
    assert len(samples) == len(pcm) // 2
    assert 0.8 < md.ops.audio.peak(samples) < 0.9
    assert md.ops.audio.encode(samples) == bytes(pcm)


def test_what_is_too_loud_is_clipped(audio: ModuleType) -> None:
    assert md.ops.audio.encode(array("d", [2.0, -2.0])) == b"\xff\x7f\x00\x80"


def test_gain_is_in_decibels(audio: ModuleType) -> None:
    louder = md.ops.audio.gain(array("d", [0.1, -0.2]), 20.0)
    assert louder.tolist() == pytest.approx([1.0, -2.0])


def test_mix_is_the_weighted_sum_as_long_as_the_longest(audio: ModuleType) -> None:
    tracks = [array("d", [1.0, 1.0]), array("d", [3.0])]
    assert md.ops.audio.mix(tracks).tolist() == [2.0, 0.5]
    assert md.ops.audio.mix(tracks, weights=[1, 2]).tolist() == [7.0, 1.0]
    with pytest.raises(ValueError, match="2 tracks and 1 weights"):
        md.ops.audio.mix(tracks, weights=[1.0])
    with pytest.raises(md.errors.MissingKernelError):
        md.ops.audio.mix([])


def test_rms_of_a_full_sine_is_that_of_the_textbook(audio: ModuleType) -> None:
    assert md.ops.audio.rms(tone(100)) == pytest.approx(math.sqrt(0.5))
    assert md.ops.audio.rms(array("d")) == 0.0


def test_fir_convolves(audio: ModuleType) -> None:
    impulse = array("d", [0, 0, 1, 0, 0])
    assert md.ops.audio.fir(impulse, [1.0, 2.0, 3.0]).tolist() == [0, 1, 2, 3, 0]


def test_the_low_pass_keeps_low_tones_and_takes_high_ones(audio: ModuleType) -> None:
    taps = audio.low_pass(1000, RATE)
    assert math.fsum(taps) == pytest.approx(1.0)
    loudness = {f: md.ops.audio.rms(md.ops.audio.fir(tone(f), taps)) for f in (200, 3000)}
    assert loudness[200] == pytest.approx(math.sqrt(0.5), rel=0.02)
    assert loudness[3000] < 0.02


def test_resample_follows_the_curve(audio: ModuleType) -> None:
    twice = md.ops.audio.resample(array("d", [0, 1, 2, 3]), 1000, 2000)
    assert twice.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
    with pytest.raises(ValueError, match="rates are positive"):
        md.ops.audio.resample(twice, 0, 1)


def test_downsample_keeps_a_tone_and_drops_what_the_rate_cannot_carry(audio: ModuleType) -> None:
    low, high = (md.ops.audio.downsample(tone(f), RATE, 4000) for f in (200, 3600))
    expected = tone(200, 1000, 4000)
    assert max(abs(a - b) for a, b in zip(low[50:-50], expected[50:-50], strict=True)) < 0.02
    assert md.ops.audio.rms(high) < 0.02


def test_meta_kernels_know_how_long_every_result_is(audio: ModuleType) -> None:
    ops, signal = md.ops.audio, tone(300, 777)
    shape = audio.Shape(len(signal))
    assert ops.downsample(shape, RATE, 3000).length == len(ops.downsample(signal, RATE, 3000))
    assert ops.mix([shape, audio.Shape(900)]).length == 900
    assert ops.decode(audio.Shape(10, "h")).length == 10
    assert (ops.encode(shape).length, ops.encode(shape).format) == (777, "h")
    assert ops.gain(shape, 1.0).length == 777
    with pytest.raises(md.errors.MissingKernelError, match="meta values"):
        ops.rms(shape)


def test_numpy_arrays_go_in_and_come_out(audio: ModuleType) -> None:
    numpy = pytest.importorskip("numpy", minversion="2.0", reason="NumPy 2 is not installed")
    signal = tone(300, 500)
    mixed = md.ops.audio.mix([numpy.array(signal), numpy.array(signal)])
    result = md.ops.audio.downsample(mixed, RATE, 4000)
    assert isinstance(result, numpy.ndarray)
    assert result.tolist() == pytest.approx(list(md.ops.audio.downsample(signal, RATE, 4000)))


# --- text -----------------------------------------------------------------------------------------


def test_normalize_leaves_words(text: ModuleType) -> None:
    spoken = text.Text("  The gulls' STRASSE --\nis naïve, isn\N{RIGHT SINGLE QUOTATION MARK}t it?")
    assert md.ops.text.normalize(spoken) == text.Text("the gulls strasse is naïve isnt it")


def test_count_counts_the_words_of_the_story(text: ModuleType) -> None:
    story = text.load()
    words = md.ops.text.tokenize(story)
    counts = md.ops.text.count(story, len(words))
    assert sum(counts.values()) == len(words) == 316
    assert list(md.ops.text.count(story, 2).items()) == [("the", 43), ("and", 13)]


def test_ngrams_overlap(text: ModuleType) -> None:
    ropes = text.Text("a rope, a rope, a rope")
    assert md.ops.text.ngrams(ropes) == {"a rope": 3, "rope a": 2}
    assert md.ops.text.ngrams(ropes, 3) == {"a rope a": 2, "rope a rope": 2}
    assert md.ops.text.ngrams(text.Text("one"), 2) == {}
    with pytest.raises(ValueError, match="at least one word"):
        md.ops.text.ngrams(ropes, 0)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [("kitten", "sitting", 3), ("", "gull", 4), ("ferry", "ferry", 0), ("quay", "key", 3)],
)
def test_edit_distance(text: ModuleType, first: str, second: str, distance: int) -> None:
    ends = text.Text(first), text.Text(second)
    assert md.ops.text.edit_distance(*ends) == distance
    assert md.ops.text.edit_distance(*reversed(ends)) == distance


def test_similarity_does_not_mind_case_and_punctuation(text: ModuleType) -> None:
    assert md.ops.text.similarity(text.Text("The ferry!"), text.Text("the  ferry")) == 1.0
    assert md.ops.text.similarity(text.Text(""), text.Text("...")) == 1.0
    assert md.ops.text.similarity(text.Text("abc"), text.Text("xyz")) == 0.0


def test_a_plain_str_is_no_text(text: ModuleType) -> None:
    with pytest.raises(md.errors.ArgumentError, match="Tensor"):
        md.ops.text.tokenize("only a str")


# --- the table of examples, and what runs it ------------------------------------------------------


@pytest.fixture
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("examples_run", EXAMPLES / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_of_the_examples_is_in_the_table(runner: ModuleType) -> None:
    folder = Path(runner.HERE)
    readme = (folder / "README.md").read_text()
    named = set(re.findall(r"^\| `(\S+\.py)`", readme, re.MULTILINE))
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    assert there - named == {"run.py"}
    assert named <= there
    programs = set(runner.table(folder / "README.md"))
    assert {"audio_ops.py", "pools/threads.py", "pools/ray_workers.py"} <= programs
    guarded = {name for name in there if "__main__" in (folder / name).read_text()}
    helpers = {"run.py", "divergent_ops.py", "everywhere.py", "data/make_samples.py"}
    helpers.add("servers/uvicorn_main.py")  # a program that another one starts
    assert guarded - helpers == programs, "a program that no row runs"


@pytest.mark.parametrize(
    ("rows", "arguments", "code", "last"),
    [
        ({"good": ""}, [], 0, "1 passed, 0 failed, 0 skipped"),
        ({"good": "", "bad": ""}, [], 1, "1 passed, 1 failed, 0 skipped"),
        ({"good": "", "gone": ""}, [], 1, "1 passed, 1 failed, 0 skipped"),
        ({"good": "", "extra": "no_such_package"}, [], 0, "1 passed, 0 failed, 1 skipped"),
        ({"good": "", "extra": "no_such_package"}, ["--all"], 1, "1 passed, 1 failed, 0 skipped"),
        ({"good": "", "extra": "Python 9.9"}, ["--all"], 0, "1 passed, 0 failed, 1 skipped"),
        ({"good": "a shared registry: why"}, ["--all"], 0, "1 passed, 0 failed, 0 skipped"),
        (
            {"good": "", "extra": "no_such_package; Python 9.9"},
            ["--all"],
            1,
            "1 passed, 1 failed, 0 skipped",
        ),
        ({"extra": "no_such_package"}, [], 1, "0 passed, 0 failed, 1 skipped"),
        ({}, [], 1, "0 passed, 0 failed, 0 skipped"),
    ],
)
def test_an_example_that_does_not_run_is_red(
    runner: ModuleType,
    rows: dict[str, str],
    arguments: list[str],
    code: int,
    last: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "good.py").write_text("print(1)")
    (tmp_path / "bad.py").write_text("raise SystemExit('it says why')")
    (tmp_path / "extra.py").write_text("import no_such_package")
    lines = [f"| `{name}.py` | An example. | {needs} |" for name, needs in rows.items()]
    (tmp_path / "README.md").write_text("\n".join([*lines, "| `helper.py` | None. | - |", ""]))
    assert runner.main(arguments, tmp_path) == code
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == last
    assert ("it says why" in said) == ("bad" in rows)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--all",)])
def test_where_nothing_is_shared_the_pools_of_processes_run_and_others_are_left_out(
    options: tuple[str, ...],
) -> None:
    names = ("pools/processes", "pools/multiprocessing_pools", "pools/interpreters", "text_ops")
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "run.py", *options, *names],
        env={**os.environ, "MDISPATCH_BINDING": "none"},
        capture_output=True,
        text=True,
        timeout=limit(120),
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    *lines, last = ran.stdout.splitlines()
    assert last == "3 passed, 0 failed, 1 skipped"
    (left_out,) = [line for line in lines if "left out" in line]
    assert left_out.endswith("needs a shared registry: sub-interpreters")

"""The texts that users read when mdispatch says no: every error, provoked as in real life, word for
word.

The texts are in tests/golden/errors.txt, where they can be read one after the other.
``--update-golden`` writes them again: then read the changes. <...> stands for a part that differs
from run to run. The cases are in tests/golden/cases, by area.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import cases
import pytest
from cases.workers import found_in_worker
from golden_stage import CASES, Stage

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.native import native

pytestmark = pytest.mark.either_binding

WARNINGS = (errors.NotSharedWarning, errors.PystubOverrideWarning)

GOLDEN = Path(__file__).parents[1] / "golden" / "errors.txt"

# Each adds its cases to CASES.
for area in iter_modules(cases.__path__, "cases."):
    import_module(area.name)

HEAD = """\
Every error as its users read it; <...> stands for what differs from run to run. To write this file:
python -m pytest tests/project/test_golden_errors.py --update-golden
"""

#: Base classes: nothing raises them.
PURE_BASES = {"AgreementError", "ChoiceError", "VerificationError", "NotRegisteredError"}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exception]:
    """The error for each thing that a worker does differently from its main interpreter."""
    return found_in_worker(tmp_path_factory.mktemp("worker"))


# --- the golden file ------------------------------------------------------------------------------

NORMAL = (
    (re.escape(os.path.normpath(os.fsdecode(native.folder()[1]))), "<folder>"),
    (r"(?<![\w/])/[^\s:'\"]*/(?=[^/\s:'\")]+(:\d|\)))", ""),  # of a location only the file remains
    (r"(\.py):\d+", r"\1:<line>"),
    (r"\b(pid|process) \d+", r"\1 <pid>"),
    (r"\b(fd|shm):[\w:.-]+", "<address>"),
    (r"golden-\d+", "<name>"),
    (r"\b([0-9a-f]{32}|\d+) (there and) ([0-9a-f]{32}|\d+) (here)", r"<place> \2 <place> \4"),
    (r"\b(within|after) [\d.e-]+ s\b", r"\1 <time> s"),
    (r"a secret \([0-9a-f]{16}\)", "a secret (<digest>)"),
    (r"\b0x[0-9a-f]+", "0x<address>"),
    # What an interpreter executes has this name from Python 3.14 on.
    (r"<script>", "<string>"),
)


def normal(text: str) -> str:
    """Removes the parts that differ from run to run."""
    for pattern, word in NORMAL:
        text = re.sub(pattern, word, text)
    return text


def sections() -> dict[str, str]:
    """The golden texts by their titles."""
    return texts_in(GOLDEN.read_text()) if GOLDEN.exists() else {}


@cache  # hundreds of tests ask for the same file
def texts_in(golden: str) -> dict[str, str]:
    _, *parts = re.split(r"^## ", golden, flags=re.MULTILINE)
    return {title: text.rstrip("\n") for title, _, text in (p.partition("\n") for p in parts)}


def write(title: str, text: str) -> None:
    """Puts one text into the golden file, and removes texts that no case provokes."""
    texts = sections() | {title: text}
    kept = (f"\n## {title}\n{texts[title]}\n" for title in sorted(CASES) if title in texts)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(HEAD + "".join(kept))


@pytest.mark.parametrize("title", CASES)
def test_an_error_says_what_it_said(
    title: str,
    registry: md.Registry,
    tmp_path: Path,
    worker: dict[str, Exception],
    request: pytest.FixtureRequest,
) -> None:
    stage = Stage(registry, tmp_path, worker)
    with pytest.raises((errors.MdispatchError, *WARNINGS)) as caught:
        CASES[title](stage)  # where warnings are errors
    assert type(caught.value).__name__ == title.partition(":")[0]
    text = normal(str(caught.value))
    if request.config.getoption("--update-golden"):
        assert not hasattr(request.config, "workerinput"), "one writes at a time: without -n"
        write(title, text)
    assert sections().get(title) == text, "if that is as wanted: --update-golden, and read it"


@pytest.mark.lint
def test_every_class_has_a_text_and_every_text_a_case() -> None:
    classes = {title.partition(":")[0] for title in CASES}
    assert classes == set(errors.__all__) - PURE_BASES
    assert list(sections()) == sorted(CASES)


@pytest.mark.lint
@pytest.mark.parametrize("name", sorted(PURE_BASES))
def test_what_is_taken_for_a_base_has_classes_under_it(name: str) -> None:
    assert getattr(errors, name).__subclasses__()


# --- what all texts have in common ----------------------------------------------------------------

#: Texts that are made of others, or do not have the form yet.
OF_ANOTHER_FORM = {
    "WarmUpError: everything that differs",
}


def faults(text: str) -> Iterator[str]:
    """Why a text does not have the form: what happened, indented details, a sentence on what to
    do.
    """
    head, *rest = text.split("\n")
    if not head or head != head.strip():
        yield "it does not begin with what happened"
    if any(line != line.rstrip() or not line for line in rest):
        yield "it has blanks at the ends of lines, or empty lines"
    while rest and rest[0].startswith("  "):
        del rest[0]
    for line in rest:
        if not line[:1].isupper() or line[-1:] not in (".", "?"):
            yield f"{line!r} is neither a detail nor a sentence"


@pytest.mark.lint
@pytest.mark.parametrize("title", sorted(CASES))
def test_a_text_says_what_happened_then_details_then_what_to_do(title: str) -> None:
    assert bool(list(faults(sections()[title]))) == (title in OF_ANOTHER_FORM)


TWO_PLACES = (
    *("SchemaMismatch", "KeyMismatch", "NameMismatch", "SignatureMismatch", "Duplicate"),
    *("PystubMismatch", "PystubOverride", "TypeKeysMismatch", "WrongModule"),
)


@pytest.mark.lint
@pytest.mark.parametrize(
    "title", [title for title in sorted(CASES) if title.startswith(TWO_PLACES)]
)
def test_where_two_places_differ_both_are_named(title: str) -> None:
    assert sections()[title].count(".py:<line>") >= 2


@pytest.mark.lint
def test_the_golden_texts_hold_nothing_of_this_machine() -> None:
    text = GOLDEN.read_text()
    for word in (str(Path.home()), os.getcwd(), "/tmp", "/dev/shm", os.uname().nodename):
        assert len(word) < 2 or word not in text
    assert not re.search(r"(pid|process) \d|\.py:\d|0x[0-9a-f]{4}|[0-9a-f]{32}", text)

"""The English of docs, docstrings and comments gets better and never worse.

Three constructions make our text hard to read, and some words are ours alone:

- a clause stands for a noun: "What it registers is ..." for "Its registrations are ...";
- the same inside a sentence: "waits for what Python is to do";
- the passive of verbs of telling and holding: "workers are told so".

The rules find some sentences that are good English, so they forbid nothing. They count, for each
file, and the counts in tests/data/words.json can only fall. A new file may have as many as the
documentation and source of trio and pluggy have (measured: 0.2, 0.2 and 0.15 in 1,000 words), and
no dropped word. ``pytest tests/project/test_words.py --update-golden`` writes the counts that have
fallen. The pages, the docstrings and the texts of the package have none of the dropped words.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "tests" / "data" / "words.json"
FILES = sorted(
    str(file.relative_to(ROOT))
    for folder, endings in (
        (".", "README.md CONTRIBUTING.md SECURITY.md"),
        ("docs", "*.md"),
        ("mdispatch", "**/*.py"),
        ("native", "**/*.c **/*.h"),
        ("examples", "**/*.py **/*.md"),
        ("tests", "**/*.py"),
        ("stress", "**/*.py"),
    )
    for ending in endings.split()
    for file in (ROOT / folder).glob(ending)
)

_CLAUSE = "what|who|whoever|whatever|whichever"
_BEFORE = "of|for|by|with|from|than|about|in|on|to|at|and|or|is|are|was|has|have|knows|sees|finds"
_BEFORE += "|says|shows|tells|gives|takes|does|keeps|reads"
DROPPED = (
    r"\b(?:books?|facts?(?![/.]\w)|struck|strikes?|main members?|carriers?|rooms|houses?|doors?)\b"
)
_FORMS = "is|are|was|were|be|been|being|gets"
RULES = {
    "clauses that begin a sentence": (
        rf"(?:^|[.:;!?]\s+)(?:{_CLAUSE}|of (?:a|an|the|what|each))\b(?![^.?!]*\?)",
        0.2,
    ),
    "clauses inside a sentence": (rf"(?:\b(?:{_BEFORE})|[,;])\s+(?:{_CLAUSE})\b", 0.2),
    "passives of telling": (
        rf"\b(?:{_FORMS})\s+(?:not\s+)?(?:told|asked|kept|taken|put|looked for)\b",
        0.15,
    ),
    "dropped words": (DROPPED, 0.0),
}


def english(file: str) -> str:
    """The sentences of a file: without code, tables and addresses."""
    text = (ROOT / file).read_text()
    if file.endswith(".md"):
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"^(?:\||    ).*$", "", text, flags=re.MULTILINE)
        return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    if file.endswith(".py"):
        return "\n\n".join([*docstrings(text), *comments(text)])
    return "\n\n".join(
        re.sub(r"^\s*\*? ?", "", each, flags=re.MULTILINE)
        for each in re.findall(r"/\*(.*?)\*/", text, re.DOTALL)
    )


def docstrings(text: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(n) for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)]
    return [re.sub(r"``[^`]*``", "", each) for each in found if each]


def comments(text: str) -> list[str]:
    """Each comment, whose lines follow each other."""
    found: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, words = token.start[0], token.string.lstrip("#: ")
            if line == last + 1 and found:
                found[-1] += "\n" + words
            else:
                found.append(words)
            last = line
    return found


def counted(file: str) -> list[int]:
    text = english(file)
    return [len(re.findall(rule, text, re.IGNORECASE)) for rule, _ in RULES.values()]


def allowed(file: str, known: dict[str, list[int]]) -> list[int]:
    if file in known:
        return known[file]
    words = len(english(file).split())
    return [round(rate * words / 1000) for _, rate in RULES.values()]


def test_the_counts_of_no_file_have_risen(request):
    known = json.loads(COUNTS.read_text())
    now = {file: counted(file) for file in FILES}
    if request.config.getoption("--update-golden"):
        lower = {
            file: [min(pair) for pair in zip(now[file], allowed(file, known), strict=True)]
            for file in FILES
        }
        kept = {file: counts for file, counts in lower.items() if any(counts)}
        lines = ",\n".join(f"{json.dumps(file)}: {counts}" for file, counts in kept.items())
        COUNTS.write_text(f"{{\n{lines}\n}}\n")
        known = kept
    worse, better = [], []
    for file, counts in now.items():
        for name, count, limit in zip(RULES, counts, allowed(file, known), strict=True):
            if count > limit:
                worse.append(f"{file}: {count} {name}, {limit} allowed")
            elif count < limit and file in known:
                better.append(file)
    assert not worse, "\n".join(worse)
    assert not better, f"--update-golden writes the lower counts of {', '.join(better)}"
    assert not known.keys() - now.keys(), "--update-golden forgets files that are gone"


def texts(file: str) -> str:
    """The docstrings of a module of the package, and its texts of several words."""
    text = (ROOT / file).read_text()
    told = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    return "\n".join(docstrings(text) + [each for each in told if "``" not in each])


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith(("docs", "README"))])
def test_no_page_has_a_dropped_word(file):
    assert re.findall(DROPPED, english(file), re.IGNORECASE) == []


def test_no_text_of_the_package_has_a_dropped_word():
    found = {
        file: re.findall(DROPPED, texts(file), re.IGNORECASE)
        for file in FILES
        if file.startswith("mdispatch/")
    }
    assert {file: words for file, words in found.items() if words} == {}


def test_no_key_of_the_json_is_a_dropped_word():
    keys = (ROOT / "mdispatch" / "cli" / "answers.py").read_text()
    found = re.findall(r"^    (\w+):", keys, re.MULTILINE)
    assert found
    assert [key for key in found if re.search(rf"{DROPPED}|\bplace\b", key)] == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("What it registers is kept.", [1, 0, 1, 0]),
        ("It waits for what Python is to do, and is told so.", [0, 1, 1, 0]),
        ("The book is in shared memory.", [0, 0, 0, 1]),
        ("What does a call cost? You pay one comparison.", [0, 0, 0, 0]),
    ],
)
def test_the_rules_find_what_they_are_about(text, counts):
    assert [len(re.findall(rule, text, re.IGNORECASE)) for rule, _ in RULES.values()] == counts


def test_a_new_file_starts_at_the_rate_of_the_models():
    assert allowed("README.md", {}) == [0, 0, 0, 0]
    assert allowed("docs/reliability.md", {})[0] in range(2, 6)

"""The pages that a newcomer follows are true, word for word, from an empty folder. The row
lint/packages follows them once more, in new environments, where their own lines install the wheel.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from following import blocks, follow, shape

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["README.md", "docs/quick-start.md"])
def test_a_newcomer_finds_what_the_page_says(name, tmp_path):
    pytest.importorskip("click", reason="the commands need click")
    page = (ROOT / name).read_text().replace(".venv/bin/", f"{BIN}/")
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    environment["PATH"] = f"{BIN}:{os.environ['PATH']}"
    assert follow(page, tmp_path, environment, installs=False) > 0


def test_a_page_that_is_wrong_is_noticed(tmp_path):
    environment = {"PATH": os.environ["PATH"]}
    for wrong in ("```sh\necho 1\n```\n```text\n2\n```\n", "```sh\nfalse\n```\n"):
        with pytest.raises(AssertionError):
            follow(wrong, tmp_path, environment, installs=False)


@pytest.mark.lint
def test_the_landing_page_shows_the_error_of_the_readme():
    index = (ROOT / "docs" / "index.md").read_text()
    texts = [[t for kind, t in blocks(page) if kind == "text"] for page in (README, index)]
    assert len(texts[0]) == 1
    assert [*map(shape, texts[0])] == [*map(shape, texts[1])]
    assert [t for k, t in blocks(README) if k == "python"] == [
        t for k, t in blocks(index) if k == "python"
    ]


@pytest.mark.lint
def test_the_two_commands_are_marked_for_ci():
    for mark in ("setup", "test"):
        assert re.search(rf"^<!-- ci: {mark} -->\n```sh\n", README, re.MULTILINE)


@pytest.mark.lint
def test_the_picture_is_what_its_script_draws():
    drawing = runpy.run_path(str(ROOT / "docs" / "comparing.py"))["drawing"]()
    assert (ROOT / "docs" / "pictures" / "comparing.svg").read_text() == drawing

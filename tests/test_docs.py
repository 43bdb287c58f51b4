"""The Python in the documentation runs as it stands, each page from its top to its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: page.stem
)
def test_each_page_runs(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(snippets(page)))
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_there_are_pages_with_snippets():
    assert "dispatcher" in {page.stem for page in PAGES if snippets(page)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page):
    """Links to files of this repository, and test files named as evidence."""
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [
        path for path in re.findall(r"`(tests/\w+\.py)`", text) if not (ROOT / path).exists()
    ]
    assert missing == []

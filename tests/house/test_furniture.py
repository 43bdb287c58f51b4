"""What stands around the code names what there is: rows of CI, files of links, the description."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest

pytestmark = [pytest.mark.either_binding, pytest.mark.specification]

ROOT = Path(__file__).parents[2]
CI = ROOT / ".github" / "workflows" / "ci.yml"

in_checkout = pytest.mark.skipif(not CI.exists(), reason="this is not a checkout")


@in_checkout
def test_the_workflow_asks_for_every_row_once():
    listed = subprocess.run(
        ["bash", ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True
    )
    rows = set(listed.stdout.split())
    matrix = CI.read_text().split("        rows:\n")[1].split("    defaults:")[0]
    asked = [word for line in re.findall(r"- (.*)", matrix) for word in line.split()]
    assert len(asked) == len(set(asked))
    assert [
        word for word in asked if not any(f"{row}/".startswith(f"{word}/") for row in rows)
    ] == []
    assert [
        row for row in rows if not any(f"{row}/".startswith(f"{word}/") for word in asked)
    ] == []


@in_checkout
def test_an_action_is_named_by_its_commit():
    used = [
        line
        for file in CI.parent.glob("*.yml")
        for line in re.findall(r"uses: (.*)", file.read_text())
    ]
    assert len(used) >= 5
    assert [
        line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)
    ] == []


@pytest.mark.parametrize("name", ["README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"])
def test_a_page_at_the_top_links_to_what_is_there(name):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_description_on_an_index_has_no_link_that_leads_nowhere_there():
    description = metadata("mdispatch").get_payload()
    assert description.startswith("# mdispatch\n")
    assert "`docs/quick-start.md`" in description
    assert re.findall(r"\]\((?!https?:)[^)]*\)|<!--", description) == []
    for sentence in ("mdispatch notices.", "## Thirty seconds", "## Develop", "pytest -n 2"):
        assert sentence in description

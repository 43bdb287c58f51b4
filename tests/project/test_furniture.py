"""What stands around the code names what there is: rows of CI, files of links, the description."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import mdispatch as md

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[2]
CI = ROOT / ".github" / "workflows" / "ci.yml"

in_checkout = pytest.mark.skipif(not CI.exists(), reason="this is not a checkout")


@pytest.mark.thorough
@in_checkout
def test_the_workflow_asks_for_every_shard():
    listed = subprocess.run(
        ["bash", ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True
    )
    shards = {int(line.split()[0]) for line in listed.stdout.splitlines()}
    asked = re.search(r"schedule' && '(\[[\d, ]*\])'", CI.read_text())
    assert asked is not None
    assert json.loads(asked[1]) == sorted(shards)


@pytest.mark.thorough
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
    for sentence in ("mdispatch does.", "## Try it", "## Develop", "pytest -n auto"):
        assert sentence in description


def test_the_version_is_that_of_the_package_and_of_the_newest_changes():
    newest = re.search(r"^## (\S+)( \(unreleased\))?", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    assert version("mdispatch") == md.__version__ == newest[1]
    assert (".dev" in md.__version__) == bool(newest[2])


def test_an_editable_installation_is_a_path_and_no_import_hook():
    """Type checkers read paths of installations, and run no code of them."""
    assert [name for name in sys.modules if name.startswith("__editable___mdispatch")] == []

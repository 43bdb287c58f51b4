"""Pages that mdispatch makes can be read without a mouse and without eyes: what axe-core calls
serious or critical is not on them, on a telephone's width and a screen's, light and dark.

The row lint/axe runs this: MDISPATCH_AXE is the path of axe.min.js, and the site is in build/site.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, find_browser
from patience import limit

ROOT = Path(__file__).parents[2]
AXE = os.environ.get("MDISPATCH_AXE", "")
SITE = ("index", "overview", "pools", "command-line", "reference/python", "reference/c")
FOUND = """
axe.run({resultTypes: ["violations"]}).then(found => found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => `${each.id}: ${each.nodes.map(node => node.html.slice(0, 100))}`))
"""

pytestmark = [
    pytest.mark.either_binding,
    pytest.mark.skipif(not AXE, reason="MDISPATCH_AXE is not in the environment: see lint/axe"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    assert program is not None, "there is no browser"
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for words in (
        ("report", folder / "report.html", "--import", "examples.audio_ops"),
        ("stress", "full of members", "--seconds", "1", "--plot", folder / "stress.html"),
    ):
        command = [sys.executable, "-m", "mdispatch", *map(str, words)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=limit(300))
    site = {name: ROOT / "build" / "site" / f"{name}.html" for name in SITE}
    return site | {name: folder / f"{name}.html" for name in ("report", "stress")}


def serious(browser: Browser, page: Path, width: int, dark: bool) -> list[str]:
    assert page.exists(), page
    browser.open(page, width=width, dark=dark)
    browser.value(f"{Path(AXE).read_text()};true")
    return browser.value(FOUND)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", [*SITE, "report", "stress"])
def test_a_page_has_no_serious_fault(name, width, dark, browser, pages):
    assert serious(browser, pages[name], width, dark) == []


def test_a_fault_is_found(browser, tmp_path):
    page = tmp_path / "wrong.html"
    page.write_text('<html lang="en"><title>x</title><main><img src="x.png"></main></html>')
    assert serious(browser, page, 390, False)

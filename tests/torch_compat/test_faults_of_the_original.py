"""The programs of docs/faults end as docs/faults-of-the-original.md says, with the real PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from patience import limit

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

if not torch.__version__.startswith("2.13."):
    pytest.skip("the page is about another version of PyTorch", allow_module_level=True)

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import faults_page  # noqa: E402

sys.path.remove(str(DOCS))

SAID = faults_page.blocks(faults_page.PAGE.read_text())


@pytest.fixture(scope="module")
def ends(tmp_path_factory, request):
    """How each program ends. In the long form each imports PyTorch anew, as a user's does."""
    programs, folder = faults_page.PROGRAMS, tmp_path_factory.mktemp("ends")
    fresh = request.config.getoption("--long")
    found = faults_page.ends_of(programs, folder, int(limit(60)), fresh)
    return dict(zip(programs, found, strict=True))


def test_every_program_is_in_the_page_and_beside_its_twin():
    assert sorted(SAID) == faults_page.PROGRAMS
    folders = {Path(program).parent for program in SAID}
    assert set(SAID) == {f"{each}/{twin}.py" for each in folders for twin in ("theirs", "ours")}


@pytest.mark.parametrize("program", SAID)
def test_a_program_is_and_ends_as_the_page_says(program, ends):
    """If this fails, look whether it should; if so, run python docs/faults_page.py."""
    code, said = SAID[program]
    assert (DOCS.parent / program).read_text() == code
    # Who uses memory that was freed may be killed by either.
    assert ends[program].replace("SIGBUS", "SIGSEGV") in said

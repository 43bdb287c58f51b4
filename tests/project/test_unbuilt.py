"""The source tree that nobody built says what it is, instead of dying of a circular import.

Python looks beside the script, or in the current folder, before it looks where packages are
installed: whoever follows a page in a clone meets the sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md

pytestmark = pytest.mark.either_binding

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The package as git has it, in a folder of its own: without what a build puts there."""
    binaries = shutil.ignore_patterns("*.so", "*.so.*", "_cffi.c", "include", "__pycache__")
    shutil.copytree(Path(md.__file__).parent, tmp_path / "mdispatch", ignore=binaries)
    return tmp_path


def refusal(clone: Path, *words: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    ran = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=limit(60),
        cwd=clone,
        env=environment,
    )
    assert ran.returncode != 0
    return ran.stdout + ran.stderr


def says_what_to_do(text: str, clone: Path) -> None:
    assert f"source tree of mdispatch, {clone / 'mdispatch'}, and it is not built" in text
    assert f"-m pip install -e {clone}" in text
    assert "in another folder" in text
    assert "circular import" not in text


def test_a_script_beside_unbuilt_sources_is_told_so(clone):
    (clone / "shop.py").write_text("import mdispatch\n")
    says_what_to_do(refusal(clone, "shop.py"), clone)


def test_the_command_started_among_unbuilt_sources_is_told_so(clone):
    says_what_to_do(refusal(clone, "-m", "mdispatch", "verify", "json"), clone)


@pytest.mark.thorough
def test_the_stress_suite_of_an_unbuilt_checkout_is_told_so(clone):
    shutil.copytree(ROOT / "stress", clone / "stress")
    options = ("-p", "no:cacheprovider", "stress", "--seconds", "1")
    says_what_to_do(refusal(clone, "-m", "pytest", *options), clone)


def test_a_module_that_is_there_and_cannot_be_loaded_says_its_own_words(clone):
    suffix = next(Path(md.__file__).parent.glob("facts/native/_ext.*.so")).name
    (clone / "mdispatch" / "facts" / "native" / suffix).write_bytes(b"no library")
    (clone / "shop.py").write_text("import mdispatch\n")
    text = refusal(clone, "shop.py")
    assert "ImportError" in text
    assert "not built" not in text

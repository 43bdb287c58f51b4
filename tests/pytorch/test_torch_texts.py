"""Two texts of PyTorch's own run on mdispatch with one line changed, the import of torch, and come
to the same as they do on PyTorch. tests/support/torch_texts.py has the checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from patience import limit

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch

if not torch.__version__.startswith("2.13."):
    pytest.skip("the texts are of another version of PyTorch", allow_module_level=True)

TEXTS = ("custom_op_db", "registry")
#: Checks that fail in both, with the end of the error: the rule of the text takes one argument.
NEITHER = {"numpy_cat vmap": "ValueError: too many values to unpack (expected 1)"}


@cache
def outcomes(text, whose):
    script = Path(__file__).parents[1] / "support" / "torch_texts.py"
    ran = subprocess.run(
        [sys.executable, script, text, whose],
        capture_output=True,
        text=True,
        timeout=limit(110),
        check=True,
    )
    assert "Exception ignored" not in ran.stderr
    return json.loads(ran.stdout)


def failed(found):
    return {name: each.strip().splitlines()[-1] for name, each in found.items() if each}


@pytest.mark.dear
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_pytorch_runs_with_one_line_changed(text):
    found = outcomes(text, "ours")
    assert len(found) == {"custom_op_db": 82, "registry": 32}[text]
    assert failed(found) == {name: each for name, each in NEITHER.items() if name in found}


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize("text", TEXTS)
def test_the_checks_come_to_the_same_on_pytorch(text):
    theirs, ours = outcomes(text, "theirs"), outcomes(text, "ours")
    assert failed(theirs) == failed(ours)
    assert theirs.keys() == ours.keys()

"""The tape of the examples, for tests that need an engine of gradients: from tapes import Tape."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["FILE", "Tape"]

FILE = Path(__file__).parents[2] / "examples" / "tape.py"

_spec = importlib.util.spec_from_file_location("tape", FILE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["tape"] = _module
_spec.loader.exec_module(_module)
Tape = _module.Tape

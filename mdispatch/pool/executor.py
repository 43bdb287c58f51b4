"""Which pool this version of Python has: see before_314.py."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from concurrent.futures.interpreter import BrokenInterpreterPool
    from concurrent.futures.interpreter import InterpreterPoolExecutor as InterpreterPool
else:
    from .before_314 import BrokenInterpreterPool, InterpreterPool

__all__ = ["BrokenInterpreterPool", "InterpreterPool"]

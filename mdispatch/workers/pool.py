"""A pool of sub-interpreters, the same on every version of Python that has them.

From 3.14 on ``InterpreterPool`` is ``concurrent.futures.InterpreterPoolExecutor`` itself.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from concurrent.futures.interpreter import BrokenInterpreterPool
    from concurrent.futures.interpreter import InterpreterPoolExecutor as InterpreterPool
else:
    from .pool_before_314 import BrokenInterpreterPool, InterpreterPool

__all__ = ["BrokenInterpreterPool", "InterpreterPool"]

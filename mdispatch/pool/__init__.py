"""A pool of sub-interpreters, the same on every version of Python that has them.

From 3.14 on ``InterpreterPool`` is ``concurrent.futures.InterpreterPoolExecutor`` itself.
"""

from ..seam import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .executor import BrokenInterpreterPool, InterpreterPool

__all__ = ["BrokenInterpreterPool", "InterpreterPool"]

__getattr__ = late(__name__, dict.fromkeys(__all__, "executor"))

"""Errors that nobody can catch: a callback that mdispatch calls to report something has raised.

They go to ``sys.unraisablehook``, as errors of finalizers do, and stop nothing.
"""

from __future__ import annotations

import sys


def report(error: BaseException, message: str, culprit: object) -> None:
    """Hands an error to ``sys.unraisablehook``. Never raises."""
    try:
        hook = sys.unraisablehook
        if hook is sys.__unraisablehook__:
            # The built-in hook takes only an object that Python code cannot make. Print the same.
            _print(error, message, culprit)
            return
        from types import SimpleNamespace

        told = SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=message,
            object=culprit,
        )
        try:
            hook(told)
        except Exception as second:
            _print(second, "Exception ignored in sys.unraisablehook", hook)
    except Exception:  # no standard error, or a repr() that raises: nowhere left to report to
        return


def _print(error: BaseException, message: str, culprit: object) -> None:
    sys.stderr.write(f"{message}: {culprit!r}\n")
    sys.__excepthook__(type(error), error, error.__traceback__)

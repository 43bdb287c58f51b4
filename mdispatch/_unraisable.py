"""Errors that nobody is there to catch: of code that was called to be told of something, and
raised.

They go to ``sys.unraisablehook``, as those of finalizers do, and harm nobody.
"""

from __future__ import annotations

import sys

__all__ = ["report"]


def report(error: BaseException, message: str, culprit: object) -> None:
    """Tells ``sys.unraisablehook`` of an error. Never raises."""
    try:
        hook = sys.unraisablehook
        if hook is sys.__unraisablehook__:
            # It takes only an object that Python code cannot make: print what it would.
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
    except Exception:  # no standard error, a repr() that raises: there is no one left to tell
        return


def _print(error: BaseException, message: str, culprit: object) -> None:
    sys.stderr.write(f"{message}: {culprit!r}\n")
    sys.__excepthook__(type(error), error, error.__traceback__)

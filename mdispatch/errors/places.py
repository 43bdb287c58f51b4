"""Where a registration comes from: the nearest line of code that is not ours."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["caller", "label_of", "place_of", "printable"]


def caller() -> FrameType | None:
    """The frame of the user's code that called into mdispatch; None when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("mdispatch") or name[9:10] not in ("", "."):
            return frame
        frame = frame.f_back
    return None


def place_of(frame: FrameType | None) -> str:
    """``file:line`` of a frame."""
    return (
        printable(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        if frame is not None
        else "(no Python code)"
    )


def label_of(kernel: object) -> str:
    """A kernel's name for people: ``module.qualname``."""
    module = getattr(kernel, "__module__", "") or ""
    name = getattr(kernel, "__qualname__", "") or type(kernel).__qualname__
    return printable(f"{module}.{name}" if module else str(name))


def printable(text: str) -> str:
    """The text in a form that the registry can hold. Names of files and functions may contain
    lone surrogates, which cannot be encoded for another process, and line ends, which separate the
    parts of a registry's text.
    """
    if text.isascii() and "\n" not in text:
        return text
    text = text.replace("\n", " ")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

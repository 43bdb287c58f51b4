"""What stands for libmdispatch where registries belong to one process: on other systems than Linux
with the GNU C library, and with ``MDISPATCH_BINDING=none``. See docs/other-systems.md.

What is about Python has a twin here. What is about sharing raises NotSharedError.
"""

from __future__ import annotations

import sys

from ...errors import NotSharedError
from ...errors.locations import caller as calling_frame
from ...errors.locations import on_behalf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn


def not_shared(what: str, why: str, registry: str = "") -> NotSharedError:
    """The error for what needs a registry that interpreters and processes share. ``what`` begins
    its sentence, ``why`` says why there is none.
    """
    return NotSharedError(
        f"{what} needs a registry that is shared, and here each registry belongs to one process: "
        f"{why}.\nRun this part where registries are shared, or let each process register for "
        "itself. docs/other-systems.md lists what works here.",
        registry,
    )


class NotShared:
    """In place of the functions of libmdispatch: each of them raises NotSharedError."""

    def __init__(self, what: str, why: str) -> None:
        self._what = what
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_shared(self._what, self._why)

    def has_host(self) -> bool:
        """Whether a program in C has this process's default registry open."""
        return False

    def kernel_label(self, address: int) -> str | None:
        """The library and the name of a function in C: not known."""


def interpreter_number() -> int:
    """The number of this interpreter; 0 is the main one, and the only one where Python has no
    sub-interpreters.
    """
    try:
        if sys.version_info >= (3, 13):
            import _interpreters as interpreters
        else:
            import _xxsubinterpreters as interpreters
    except ImportError:
        return 0
    current = interpreters.get_current()
    return int(current[0] if isinstance(current, tuple) else current)


def caller(key: str) -> tuple[CodeType, int, dict[str, Any]] | None:
    """The code that registers, the instruction in it, and its globals; None if there is none."""
    frame = on_behalf(calling_frame())
    return None if frame is None else (frame.f_code, frame.f_lasti, frame.f_globals)

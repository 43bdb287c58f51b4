"""What the package tells ``logging``: one logger per area, debug records, silent unless asked for.

    mdispatch.registry   memberships, registrations and their ends, recoveries of a registry's lock
    mdispatch.verify     what was compared with the main interpreter's, and what came of it
    mdispatch.waits      waits that slept: for what, how long, and how they ended
    mdispatch.calls      modules that calls import; calls themselves leave no records

Nothing here loads ``logging``: where nobody has loaded it, nobody can have asked for records, and
an interpreter that is made for one import should not pay for it. Whoever tells something asks
``listens`` first.

Told outside of locks, and never in the child of a fork that is being made: handlers are other
people's code, and have locks of their own. What a handler raises harms nobody (see
_unraisable.py); what it registers, verifies or waits for leaves no records.
"""

from __future__ import annotations

from _thread import get_ident
from sys import modules

from ._keys import DispatchKey
from ._registry import FALLBACK, IMPL, KIND_NAMES
from ._unraisable import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

__all__ = ["Area", "calls_log", "described", "registry_log", "verify_log", "waits_log"]

_DEBUG = 10

#: The threads that a handler runs in.
_telling: set[int] = set()


def described(kind: int, key: int, name: str) -> str:
    """A fact in short words."""
    at = f" at {DispatchKey(key).name}" if kind in (IMPL, FALLBACK) else ""
    return f"{KIND_NAMES[kind]} {name}{at}"


class Area:
    """A logger, once there can be one."""

    __slots__ = ("_logger", "name")

    def __init__(self, name: str) -> None:
        self.name = f"mdispatch.{name}"
        self._logger: Logger | None = None

    def listens(self) -> bool:
        """Whether somebody wants what is told here."""
        logger = self._logger
        if logger is None:
            if "logging" not in modules:
                return False
            logger = self._find()
        return logger is not None and logger.isEnabledFor(_DEBUG)

    def tell(self, text: str, *values: object) -> None:
        """A debug record, as of the caller's caller."""
        logger, thread = self._logger or self._find(), get_ident()
        if logger is None or thread in _telling:
            return
        _telling.add(thread)
        try:
            logger.debug(text, *values, stacklevel=2)
        except Exception as error:
            report(error, "Exception ignored in a handler of log records", logger)
        finally:
            _telling.discard(thread)

    def _find(self) -> Logger | None:
        logging = modules.get("logging")
        if not hasattr(logging, "captureWarnings"):  # its last name: another thread imports it
            return None
        top = logging.getLogger("mdispatch")  # type: ignore[union-attr]
        if not any(isinstance(each, logging.NullHandler) for each in top.handlers):  # type: ignore[union-attr]
            top.addHandler(logging.NullHandler())  # type: ignore[union-attr]
        self._logger = logging.getLogger(self.name)  # type: ignore[union-attr]
        return self._logger


registry_log = Area("registry")
verify_log = Area("verify")
waits_log = Area("waits")
calls_log = Area("calls")

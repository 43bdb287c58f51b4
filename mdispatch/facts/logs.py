"""The package's log records: one logger per area, silent unless a program asks for it. They are of
debug level; a member that is refused leaves one warning.

    mdispatch.registry   memberships, registrations and their ends, recoveries of a registry's lock
    mdispatch.verify     comparisons with the main interpreter's registrations, and their results
    mdispatch.waits      waits that slept: for what, how long, and how they ended
    mdispatch.calls      modules that calls import; calls themselves leave no records

A record has the name of its host in a cluster as ``mdispatch_host`` (cluster/hosts.py).

Nothing here loads ``logging``. A program that has not loaded it cannot have asked for records, and
an interpreter that is made for one import should not pay for it. Callers ask ``listens`` before
they ``tell``.

Records are made outside of locks, and never in the child of a fork before it is set up: handlers
are other people's code and have locks of their own. An exception from a handler is reported and
ignored (errors/unraisable.py). Registrations, comparisons and waits that a handler causes leave no
records.
"""

from __future__ import annotations

from _thread import get_ident
from sys import modules

from .registration import kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

_DEBUG, _WARNING = 10, 30

#: The threads in which a handler runs now.
_telling: set[int] = set()


def described(kind: int, key: int, name: str) -> str:
    """A registration in a few words."""
    its = kind_of(kind)
    name, part = its.called(name)
    if its.at_keys:
        from ..keys.numbers import DispatchKey  # who tells of no kernel may need no keys

        part = DispatchKey(key).name
    return f"{its.name} {name}{' at ' * bool(part)}{part}"


class Area:
    """A logger that is made when ``logging`` is loaded."""

    __slots__ = ("_logger", "_of_host", "name")

    def __init__(self, name: str) -> None:
        self.name = f"mdispatch.{name}"
        self._logger: Logger | None = None
        self._of_host: dict[str, object] = {}

    def listens(self) -> bool:
        """Whether the program wants debug records of this area."""
        logger = self._logger
        if logger is None:
            if "logging" not in modules:
                return False
            logger = self._find()
        return logger is not None and logger.isEnabledFor(_DEBUG)

    def tell(self, text: str, *values: object) -> None:
        """Makes a debug record; its line is that of the caller."""
        self._make(_DEBUG, text, values)

    def warn(self, text: str, *values: object) -> None:
        """Makes a warning, if the program has loaded ``logging``."""
        self._make(_WARNING, text, values)

    def _make(self, level: int, text: str, values: tuple[object, ...]) -> None:
        logger, thread = self._logger or self._find(), get_ident()
        if logger is None or thread in _telling:
            return
        _telling.add(thread)
        try:
            logger.log(level, text, *values, stacklevel=3, extra=self._of_host)
        except Exception as error:
            from ..errors.unraisable import report

            report(error, "Exception ignored in a handler of log records", logger)
        finally:
            _telling.discard(thread)

    def _find(self) -> Logger | None:
        logging = modules.get("logging")
        # Its last name: without it, another thread is still importing the module.
        if not hasattr(logging, "captureWarnings"):
            return None
        top = logging.getLogger("mdispatch")  # type: ignore[union-attr]
        if not any(isinstance(each, logging.NullHandler) for each in top.handlers):  # type: ignore[union-attr]
            top.addHandler(logging.NullHandler())  # type: ignore[union-attr]
        from ..errors.locations import host  # who tells of nothing needs no name of a host

        self._of_host = {"mdispatch_host": host()}
        self._logger = logging.getLogger(self.name)  # type: ignore[union-attr]
        return self._logger


registry_log = Area("registry")
verify_log = Area("verify")
waits_log = Area("waits")
calls_log = Area("calls")

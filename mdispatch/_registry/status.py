"""Status codes of the contract become exceptions here, and nowhere else."""

from __future__ import annotations

import os

from .. import errors
from .._native import native
from .._nearest import shown
from . import check_timeout

__all__ = ["deadline_after", "error_for"]

FOREVER = -1

CLOSED, DIED, TIMED_OUT, INTERRUPTED, CANCELLED = -3, -4, -5, -6, -7
EXISTS, NOT_FOUND, ROLE, TOO_LONG, DAMAGED, LOCK, ELECTED = -8, -9, -10, -13, -21, -22, -24
SYSTEM = -1000

_EXCEPTIONS: dict[int, tuple[type[errors.MdispatchError], str]] = {
    -1: (errors.InvalidArgumentError, "the native registry was given an argument it cannot use"),
    -2: (
        errors.InvalidNameError,
        "{0!r} is no registry's name: use 1 to 128 of A-Z a-z 0-9 _ - . (not first)",
    ),
    CLOSED: (errors.RegistryClosedError, "registry {0} is closed; open or create one again"),
    DIED: (
        errors.MainMemberGoneError,
        "the main process of registry {0} died: start it again, then its workers",
    ),
    EXISTS: (
        errors.RegistryExistsError,
        "registry {0!r} exists and is alive: attach to it, or choose another name",
    ),
    NOT_FOUND: (
        errors.RegistryNotFoundError,
        "there is no registry {0!r}: create it first, or attach with a timeout",
    ),
    ROLE: (
        errors.RegistryError,
        "only its main member, or a namespace's registrar, registers in registry {0}; this "
        "interpreter verifies, or the one that registers has forked",
    ),
    -11: (
        errors.RegistryFullError,
        "registry {0} is full; nothing was changed. Create it with a larger capacity (bytes)",
    ),
    -12: (
        errors.RegistryFullError,
        "registry {0} has no slot for another process or interpreter; close some",
    ),
    TOO_LONG: (
        errors.InvalidArgumentError,
        "too long for a registry: names have at most 1023 bytes, schemas 65536, places 1024",
    ),
    -15: (
        errors.RegistryFormatError,
        "what {0} names is not an mdispatch registry; remove the file if it is in the way",
    ),
    -16: (
        errors.RegistryFormatError,
        "registry {0} was made by another version of mdispatch; use one version everywhere",
    ),
    -17: (errors.RegistryFormatError, "registry {0} was made before the last boot; create it anew"),
    -18: (
        errors.RegistryFormatError,
        "registry {0} belongs to another PID namespace (container); processes that share one "
        "must share that too",
    ),
    -19: (
        errors.RegistryOwnerError,
        "registry {0} belongs to another user, or has not the rights of a registry (its file 0600, "
        "its folder 0700); it is not used",
    ),
    -20: (
        errors.RegistryAccessError,
        "what bears the name {0!r} is a directory, link or device, not a registry's file",
    ),
    DAMAGED: (
        errors.RegistryDamagedError,
        "registry {0} is damaged; end its processes and create it anew",
    ),
    -22: (
        errors.RegistryError,
        "the lock of registry {0} is held by a process that does not go on (is it stopped?); "
        "continue or end that one",
    ),
    -23: (
        errors.RegistryFullError,
        "registry {0} was not opened: this process has 64 registries open; close some",
    ),
}


def error_for(status: int, label: str) -> Exception:
    """The exception that a status means. The one place where codes become classes."""
    if status < SYSTEM:
        number = SYSTEM - status
        error = errors.SystemCallError(
            f"registry {shown(label)} cannot be used: {os.strerror(number)}",
            label,
        )
        error.errno = number
        return error
    cls, words = _EXCEPTIONS.get(
        status, (errors.RegistryError, "registry {0}: unknown status " + str(status))
    )
    message = words.format(label)
    if issubclass(cls, errors.RegistryError):
        return cls(message, label)
    if issubclass(cls, errors.InvalidNameError):
        return cls(message, label)
    return cls(message)


def deadline_after(timeout: float | None) -> int:
    """The absolute deadline, in ns, of a wait of ``timeout`` seconds from now; None waits without
    end.

    Raises InvalidArgumentError for a negative timeout or NaN.
    """
    timeout = check_timeout(timeout)
    return FOREVER if timeout is None else native.now() + int(timeout * 1e9)

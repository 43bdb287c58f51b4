"""Turns status codes of the contract into exceptions. Nothing else does."""

from __future__ import annotations

import os

from .. import errors
from ..errors.words import shown
from .native import native
from .native.constants import (
    MD_EBOOT,
    MD_EBRACES,
    MD_EBUSY,
    MD_ECLOSED,
    MD_EDAMAGED,
    MD_EDIED,
    MD_EEDITIONS,
    MD_EEXIST,
    MD_EFOLDER,
    MD_EFORMAT,
    MD_EFULL,
    MD_EHANDLES,
    MD_EINVAL,
    MD_ELOCK,
    MD_ELOST,
    MD_EMEMBERS,
    MD_ENAME,
    MD_ENAMESPACE,
    MD_ENOENT,
    MD_ENOTFILE,
    MD_EOWNER,
    MD_EREOPEN,
    MD_EROLE,
    MD_ESYS,
    MD_ETOOLONG,
    MD_EVERSION,
    MD_FORMAT,
    MD_MAX_BODY,
    MD_MAX_EDITIONS,
    MD_MAX_NAME,
    MD_MAX_REGISTRY_NAME,
    MD_MAX_WHERE,
)
from .unusable import file_of, folder_words, owner_words, system_words

_EXCEPTIONS: dict[int, tuple[type[errors.MdispatchError], str]] = {
    MD_EINVAL: (
        errors.InvalidArgumentError,
        "the native registry was given an argument it cannot use",
    ),
    MD_ENAME: (
        errors.InvalidNameError,
        "{0!r} cannot be the name of a registry: "
        f"use 1 to {MD_MAX_REGISTRY_NAME} of A-Z a-z 0-9 _ - . (not first), as NAME or as "
        "NAME@EDITION; an edition may have + too",
    ),
    MD_EBRACES: (
        errors.InvalidNameError,
        "{0!r} has braces: replace what is in them before the name is opened",
    ),
    MD_ECLOSED: (errors.RegistryClosedError, "registry {0} is closed; open or create one again"),
    MD_EDIED: (
        errors.RegistrarGoneError,
        "the registrar of registry {0} died: start it again, then its workers",
    ),
    MD_EEXIST: (
        errors.RegistryExistsError,
        "registry {0!r} exists and is alive: attach to it, or choose another name",
    ),
    MD_ENOENT: (
        errors.RegistryNotFoundError,
        "there is no registry {0!r}: create it first, or attach with a timeout",
    ),
    MD_EROLE: (
        errors.RegistryError,
        "only its registrar may register in registry {0}, or where it elects, that of the "
        "namespace; this interpreter may only verify, or it is in a forked child of the process "
        "that registers",
    ),
    MD_EFULL: (
        errors.RegistryFullError,
        "registry {0} is full; nothing was changed. Create it with a larger capacity (bytes)",
    ),
    MD_EMEMBERS: (
        errors.RegistryFullError,
        "registry {0} has no slot for another process or interpreter; close some",
    ),
    MD_ETOOLONG: (
        errors.InvalidArgumentError,
        f"too long for a registry: names have at most {MD_MAX_NAME} bytes, schemas {MD_MAX_BODY}, "
        f"locations {MD_MAX_WHERE}",
    ),
    MD_EFORMAT: (
        errors.RegistryFormatError,
        "the file that {0} names is not an mdispatch registry; remove it if it is in the way: {1}",
    ),
    MD_EVERSION: (
        errors.RegistryFormatError,
        "registry {0} was made by another version of mdispatch",
    ),
    MD_EBOOT: (
        errors.ForeignRegistryError,
        "registry {0} was made before the last boot, on another host, or in a container with a "
        "boot id of its own: the boot is {there} there and {here} here\n"
        "If no process uses it any more, whoever creates it replaces it, and "
        "`mdispatch doctor --reap` removes it. Else use another name or MDISPATCH_FOLDER, or make "
        "the hosts a cluster (MDISPATCH_REGISTRY=cluster:URL, docs/cluster.md).",
    ),
    MD_ENAMESPACE: (
        errors.ForeignRegistryError,
        "registry {0} belongs to another PID namespace (container): its number is {there} there "
        "and {here} here\n"
        "Have these processes share one PID namespace (Kubernetes: shareProcessNamespace: true; "
        "docker and podman: --pid=container:NAME), or give those of each namespace a registry of "
        "their own (MDISPATCH_REGISTRY=elect:NAME, another NAME in each), or make them a cluster "
        "(MDISPATCH_REGISTRY=cluster:URL, docs/cluster.md).",
    ),
    MD_EOWNER: (
        errors.RegistryOwnerError,
        "registry {0} is not used: ",
    ),
    MD_ENOTFILE: (
        errors.RegistryAccessError,
        "the name {0!r} belongs to a directory, link or device, not to a registry's file; choose "
        "another name, or remove what is there: {1}",
    ),
    MD_EDAMAGED: (
        errors.RegistryDamagedError,
        "registry {0} is damaged; end its processes and create it anew",
    ),
    MD_ELOCK: (
        errors.RegistryError,
        "the lock of registry {0} is held by a process that makes no progress (is it stopped?); "
        "continue or end that process",
    ),
    MD_ELOST: (
        errors.RegistryAccessError,
        "something in this process closed its file descriptor of registry {0} (os.closerange, or "
        "code that makes it a daemon); nothing was changed. Look-ups and waits still work; to do "
        "more, open the registry again after descriptors are closed",
    ),
    MD_EREOPEN: (
        errors.RegistryOwnerError,
        "this child of a fork may not open registry {0}: its user is not its parent's, or there is "
        "no /proc. Calls and look-ups still work. To register or to wait, open the registry after "
        "the change of user, or start such processes by spawn",
    ),
    MD_EBUSY: (errors.RegistryError, "registry {0} cannot be used: "),
    MD_EHANDLES: (
        errors.RegistryFullError,
        "registry {0} was not opened: this process has 64 registries open; close some",
    ),
    MD_EEDITIONS: (
        errors.TooManyEditionsError,
        f"registry {{0}} was not made: {MD_MAX_EDITIONS} other editions of its name are alive, and "
        "no more may be. End the processes of those that are not needed any more; mdispatch doctor "
        "lists them",
    ),
    MD_EFOLDER: (
        errors.RegistryAccessError,
        "there is no folder for named registries: ",
    ),
}

_ADDRESS_OF_OTHER_BOOT = (
    "registry {0} is of another host, or from before this one was booted: the boot is {there} "
    "there and {here} here\n"
    "An address like this one leads to a process of its own host. Give the processes of each host "
    "a registry of their own (MDISPATCH_REGISTRY=elect:NAME), or make the hosts a cluster "
    "(MDISPATCH_REGISTRY=cluster:URL, docs/cluster.md)."
)


def _other_version(message: str, label: str) -> Exception:
    """The error for a registry that a build with another format has made."""
    found = native.format_of(label.encode("utf-8", "surrogateescape"))
    if found and found != MD_FORMAT:
        message += f": it has format {found}, and this one uses format {MD_FORMAT}"
    elif found:
        message += f": both use format {MD_FORMAT}, but they were built with other limits"
    message += (
        ". Use one version in all processes. When no process uses the registry any more, "
        "`mdispatch doctor --reap` removes its file"
    )
    return errors.RegistryFormatError(message, label, formats=(found, MD_FORMAT))


def _foreign(words: str, status: int, label: str) -> Exception:
    """The error for a registry, or an address, of another boot or PID namespace."""
    if status == MD_EBOOT and label.startswith("fd:"):
        words = _ADDRESS_OF_OTHER_BOOT
    _, found = native.origin(label.encode("utf-8", "surrogateescape"))
    _, ours = native.origin(b"")
    there, here = found.decode(), ours.decode()
    part = status == MD_ENAMESPACE
    differing = {
        name: each.split(":")[part] if each else "unknown"
        for name, each in (("there", there), ("here", here))
    }
    message = words.format(label, **differing)
    return errors.ForeignRegistryError(message, label, here=here, there=there)


def error_for(status: int, label: str) -> Exception:
    """The exception for a status: the one place where codes become classes."""
    if status < MD_ESYS:
        number = MD_ESYS - status
        return errors.SystemCallError(
            f"registry {shown(label)} cannot be used: {os.strerror(number)}"
            f"{system_words(number, label)}",
            label,
            errno=number,
        )
    cls, words = _EXCEPTIONS.get(
        status, (errors.RegistryError, "registry {0}: unknown status " + str(status))
    )
    if status in (MD_EBOOT, MD_ENAMESPACE):
        return _foreign(words, status, label)
    message = words.format(label, (file_of(label) or label) if "{1}" in words else "")
    if status == MD_EOWNER:
        message += owner_words(label)
    if status == MD_EFOLDER:
        message += folder_words()
    if status == MD_EBUSY:
        from .folder_lock import busy_text

        message += busy_text()
    if status == MD_EVERSION:
        return _other_version(message, label)
    if issubclass(cls, errors.RegistryError):
        return cls(message, label)
    if issubclass(cls, errors.InvalidNameError):
        return cls(message, label)
    return cls(message)

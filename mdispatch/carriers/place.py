"""Where owners of this host listen: a folder of this user's own, with a socket and a key for each.

The folder stands beside that of the named registries, and its name ends in ``.calls``. It is judged
on its descriptor, and what is in it is reached by that descriptor: it must be this user's and let
nobody else in. An owner holds a lock on its key as long as it lives. A key that can be locked
belonged to an owner that was killed, and whoever listens next removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress
from errno import ENOENT

from ..errors import RegistryOwnerError, SystemCallError
from ..facts.native import native

__all__ = ["Place", "key_of", "path_of"]

_NAME = re.compile(r"[0-9]{1,10}\.[0-9a-f]{16}")
_KEY_SIZE = 32


def _folder() -> int:
    """A descriptor of the folder, which is made if it is not there."""
    path = os.path.normpath(os.fsdecode(native.folder()[1])) + ".calls"
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise SystemCallError(
            f"calls of other processes need the folder {path}: {error.strerror}\nMake it possible "
            "to have that folder, or name another place in MDISPATCH_FOLDER.",
            path,
            errno=error.errno,
        ) from None
    told = os.fstat(folder)
    if told.st_uid != os.geteuid() or told.st_mode & 0o077:
        os.close(folder)
        raise RegistryOwnerError(
            f"the folder {path} is not this user's alone (owner {told.st_uid}, rights "
            f"{told.st_mode & 0o7777:o}), so no call of another process goes through it\nRemove "
            "it, or make it yours and 0700.",
            path,
        )
    return folder


def path_of(folder: int, name: str) -> str:
    """A path of a socket that is short enough for one, however long that of the folder is."""
    return f"/proc/self/fd/{folder}/{name}"


def key_of(name: str) -> tuple[int, bytes]:
    """The folder's descriptor, which the caller closes, and the key of the owner with this name.
    FileNotFoundError if there is none.
    """
    if not _NAME.fullmatch(name):
        raise FileNotFoundError(ENOENT, "no name of an owner", name)
    folder = _folder()
    try:
        key = os.open(name + ".key", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return folder, os.read(key, _KEY_SIZE)
        finally:
            os.close(key)
    except BaseException:
        os.close(folder)
        raise


class Place:
    """An owner's place in the folder: ``name`` is its address."""

    def __init__(self) -> None:
        self.folder = _folder()
        self._clean()
        self._pid = os.getpid()
        while True:
            self.name = f"{self._pid}.{secrets.token_hex(8)}"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            self.lock = os.open(self.name + ".key", flags, 0o600, dir_fd=self.folder)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            # Whoever cleans may have locked it before: then it is removed.
            if os.fstat(self.lock).st_nlink:
                break
            os.close(self.lock)
        self.key = secrets.token_bytes(_KEY_SIZE)
        os.write(self.lock, self.key)

    def _clean(self) -> None:
        """Removes what owners have left that were killed."""
        for file in os.listdir(self.folder):
            name = file.removesuffix(".key")
            if name == file or not _NAME.fullmatch(name):
                continue
            with suppress(OSError):
                key = os.open(file, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.folder)
                try:
                    fcntl.flock(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(self.folder, name)
                finally:
                    os.close(key)

    def close(self) -> None:
        _remove(self.folder, self.name)
        self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors: in the child of a fork, which the lock is not for."""
        os.close(self.lock)
        os.close(self.folder)


def _remove(folder: int, name: str) -> None:
    for file in (name, name + ".key"):
        with suppress(FileNotFoundError):
            os.unlink(file, dir_fd=folder)

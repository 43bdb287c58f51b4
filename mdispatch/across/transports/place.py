"""Where owners of this host listen: a folder of this user's own, with a socket and a key for each.

The folder stands beside that of the named registries, and its name ends in ``.calls``. It is judged
on its descriptor, and what is in it is reached by that descriptor: it must be this user's and let
nobody else in. An owner holds a lock on its key as long as it lives. A key that can be locked
belonged to an owner that was killed, and whoever listens next removes it.

The folder is 0700, the key and the socket 0600, whatever the umask. What has a key's name and is no
regular file is opened without waiting for anybody, and nothing is read from it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import stat
from contextlib import suppress
from errno import ENOENT, ENOSPC

from ...errors import RegistryOwnerError, SystemCallError
from ...facts.native import native

_NAME = re.compile(r"[0-9]{1,10}\.[0-9a-f]{16}")
_KEY_SIZE = 32


def _folder() -> int:
    """A descriptor of the folder, which is made if it is not there. Raises RegistryOwnerError,
    SystemCallError.
    """
    path = os.path.normpath(os.fsdecode(native.folder()[1])) + ".calls"
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        there = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            told = os.fstat(there)
            is_mine = told.st_uid == os.geteuid() and not told.st_mode & 0o077
            # A umask may have taken rights from us, and whoever made it have died before this.
            if is_mine and told.st_mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{there}", 0o700)
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=there) if is_mine else -1
        finally:
            os.close(there)
    except OSError as error:
        raise refused(path, error, "Make it possible to have that folder") from None
    if not is_mine:
        raise RegistryOwnerError(
            f"the folder {path} is not this user's alone (owner {told.st_uid}, rights "
            f"{told.st_mode & 0o7777:o}), so no call of another process goes through it\nRemove "
            "it, or make it yours and 0700.",
            path,
        )
    return folder


def refused(path: str, error: OSError, do: str) -> SystemCallError:
    """The error for what the system has refused at a path. ``do`` is a first advice."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return SystemCallError(
        f"calls of other processes need {path}: {why}\n{do}, or name another place in "
        "MDISPATCH_FOLDER.",
        path,
        errno=error.errno,
    )


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
        file = _opened(folder, name + ".key")
        try:
            key = os.read(file, _KEY_SIZE) if stat.S_ISREG(os.fstat(file).st_mode) else b""
        finally:
            os.close(file)
        if len(key) != _KEY_SIZE:
            raise FileNotFoundError(ENOENT, "no key of an owner", name)
        return folder, key
    except BaseException:
        os.close(folder)
        raise


def _opened(folder: int, name: str) -> int:
    """To be read. Whatever it is, that waits for nobody."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)


class Place:
    """An owner's place in the folder: ``name`` is its address. Raises RegistryOwnerError,
    SystemCallError; nothing is left then.
    """

    def __init__(self) -> None:
        self.folder = _folder()
        self.lock = -1
        self.name = ""
        self.key = secrets.token_bytes(_KEY_SIZE)
        try:
            self._clean()
            pid = os.getpid()
            while True:
                self.name = f"{pid}.{secrets.token_hex(8)}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                self.lock = os.open(self.name + ".key", flags, 0o600, dir_fd=self.folder)
                os.fchmod(self.lock, 0o600)
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                # Whoever cleans may have locked it before: then it is removed.
                if os.fstat(self.lock).st_nlink:
                    break
                os.close(self.lock)
                self.lock = -1
            if os.write(self.lock, self.key) != _KEY_SIZE:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except BaseException as error:
            folder = os.readlink(f"/proc/self/fd/{self.folder}")
            self.close()
            if not isinstance(error, OSError):
                raise
            path = f"{folder}/{self.name}.key"
            raise refused(path, error, "Make room there, or close files") from None

    def bind(self, listening: socket.socket) -> None:
        """Gives the place to a socket. Raises OSError."""
        listening.bind(path_of(self.folder, self.name))
        os.chmod(self.name, 0o600, dir_fd=self.folder)

    def _clean(self) -> None:
        """Removes what owners have left that were killed."""
        for file in os.listdir(self.folder):
            name = file.removesuffix(".key")
            if name == file or not _NAME.fullmatch(name):
                continue
            with suppress(OSError):
                key = _opened(self.folder, file)
                try:
                    fcntl.flock(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(self.folder, name)
                finally:
                    os.close(key)

    def close(self) -> None:
        if self.name:
            _remove(self.folder, self.name)
        self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors: in the child of a fork, which the lock is not for."""
        if self.lock >= 0:
            os.close(self.lock)
        os.close(self.folder)


def _remove(folder: int, name: str) -> None:
    for file in (name, name + ".key"):
        with suppress(FileNotFoundError):
            os.unlink(file, dir_fd=folder)

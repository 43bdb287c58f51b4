"""The registries of this user on this machine.

Named registries are files in the user's folder; anonymous ones are found among what this user's
processes have open, and so are those whose file was deleted under them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from ._inspecting import look_at
from ._native import native
from ._nearest import nearest
from ._registry.status import NOT_FOUND, error_for
from .errors import InvalidNameError, MainMemberGoneError, RegistryNotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._inspecting import Seen

__all__ = ["find_one", "find_registries", "folder_error", "named_like", "named_registries"]

_MEMFD = "/memfd:mdispatch (deleted)"  # as the core names it
_FORMAT = -15
_NONE_SUCH = (InvalidNameError, MainMemberGoneError, RegistryNotFoundError)


def folder_error() -> Exception | None:
    """Why named registries cannot be looked for; None when they can, or there is no folder yet."""
    status, path = native.folder()
    return None if status in (0, NOT_FOUND) else error_for(status, path.decode())


def find_registries() -> list[Seen]:
    """All registries of this user: named ones by name, then those that processes have open."""
    named = list(_named())
    known = {seen.identity for seen in named}
    return named + [seen for seen in _open_somewhere() if seen.identity not in known]


def find_one(label: str) -> Seen:
    """The registry of a name or an address. Raises what attaching to it would, where there is none
    (InvalidNameError, RegistryNotFoundError, MainMemberGoneError: no such process).
    """
    if label.startswith("fd:"):
        seen = look_at(label, None)
        same = (other for other in find_registries() if other.identity == seen.identity)
        seen = next(same, seen) if seen.readable else seen
    else:
        name = label.removeprefix("shm:")
        seen = look_at(f"shm:{name}", name)
    if isinstance(seen.error, _NONE_SUCH) and not seen.readable:
        raise seen.error
    return seen


def named_registries() -> list[str]:
    """The names in the folder of named registries, sorted, whatever bears them."""
    status, path = native.folder()
    if status == 0:
        with suppress(OSError):
            return sorted(os.listdir(path.decode()))
    return []


def named_like(name: str) -> tuple[str, ...]:
    """The names nearest to one that is not there, of registries in which somebody is alive."""
    near = nearest(name, named_registries(), limit=20)
    return tuple(each for each in near if look_at(f"shm:{each}", each).alive)[:3]


def _named() -> Iterator[Seen]:
    folder = native.folder()[1].decode()
    for name in named_registries():
        seen = look_at(f"shm:{name}", name)
        # What was taken away since it was listed is none.
        if seen.readable or os.path.lexists(os.path.join(folder, name)):
            yield seen


def _open_somewhere() -> Iterator[Seen]:
    """Each registry once that processes of this user have open and no file leads to."""
    holders: dict[tuple[int, int], dict[int, tuple[int, str]]] = {}
    for pid, number, link, identity in _descriptors():
        holders.setdefault(identity, {}).setdefault(pid, (number, link))
    for found in holders.values():
        names = sorted(filter(None, (_name_in(link) for _, link in found.values())))
        deleted = any(link != _MEMFD for _, link in found.values())
        for pid, (number, _) in found.items():
            seen = look_at(f"fd:{pid}:{number}", names[0] if names else None, tuple(found), deleted)
            if not seen.readable and not os.path.exists(f"/proc/{pid}/fd/{number}"):
                continue  # it was closed meanwhile
            if not _is_being_made(seen):
                yield _at_main(seen, found)
            break


def _is_being_made(seen: Seen) -> bool:
    """Whether it has no header yet, or no name yet."""
    return seen.status == _FORMAT or (seen.deleted and seen.main_state == "not joined")


def _at_main(seen: Seen, found: dict[int, tuple[int, str]]) -> Seen:
    """The same with the main member's address, which lasts longest."""
    if seen.main_pid not in found:
        return seen
    uuid = seen.address.rpartition(":")[2]
    return replace(seen, address=f"fd:{seen.main_pid}:{found[seen.main_pid][0]}:{uuid}")


def _name_in(link: str) -> str | None:
    """The name that a file of the folder had, where the link still knows it."""
    name = os.path.basename(link).removesuffix(" (deleted)")
    return None if link == _MEMFD or name.startswith("#") else name


def _descriptors() -> Iterator[tuple[int, int, str, tuple[int, int]]]:
    """(pid, descriptor, what it leads to, device and inode) of those that lead to no file's name
    and may be registries.
    """
    folder = native.folder()[1].decode()
    user = os.geteuid()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == os.getpid():
            continue
        with suppress(OSError):  # it ended, or does not let us look
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):
                    link = os.readlink(path)
                    if link != _MEMFD and not link.startswith(folder):
                        continue
                    at = os.stat(path)
                    if at.st_uid == user and not at.st_nlink:
                        yield pid, int(number), link, (at.st_dev, at.st_ino)

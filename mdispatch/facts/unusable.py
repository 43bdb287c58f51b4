"""Why the file or the folder of a registry cannot be used: the path, what is wrong with it as far
as it can be seen now, and what to do about just that.

A process that has no descriptor left loads nothing any more, and still has to say so. So this is
loaded with status.py, and needs nothing that is not loaded or built in.
"""

from __future__ import annotations

import os
import stat

from .native import native
from .native.constants import MD_MAX_FOLDER

FOLDER_VARIABLE = "MDISPATCH_FOLDER"
_ELSEWHERE = (
    f"Or let {FOLDER_VARIABLE}, in the environment of all processes that are to share it, name a "
    "folder in which they may make files (docs/security.md)."
)


def _folder() -> str:
    """This user's folder of named registries, "" where there can be none."""
    return os.path.normpath(os.fsdecode(path)) if (path := native.folder()[1]) else ""


def file_of(label: str) -> str:
    """The path of a registry's file; "" for one without a file, and where it is not known."""
    if label.startswith("fd:"):
        parts = label.split(":")
        return f"/proc/{parts[1]}/fd/{parts[2]}" if len(parts) > 2 else ""
    name = label.removeprefix("shm:").removeprefix("elect:")
    folder = _folder()
    is_name = bool(name) and not set(name) & set("/:( ")
    return os.path.join(folder, name) if is_name and folder else ""


def system_words(number: int, label: str) -> str:
    """The lines that follow on what the system has said: the path and the remedy. "" where nobody
    knows more.
    """
    import errno as code  # built in: no start needs it, and it is loaded without a descriptor

    of_process = {
        code.EMFILE: "This process has as many files open as it may: close some, or raise its "
        "limit (ulimit -n).",
        code.ENFILE: "All processes together have as many files open as the system allows: end "
        "some, or raise the limit (fs.file-max).",
        code.ENOMEM: "There is no memory or address space left for it: end other processes, or "
        "raise the limit of this one (ulimit -v) or of its container.",
    }
    if number in of_process:
        return f"\n{of_process[number]}"
    path = file_of(label)
    if not path or label.startswith("fd:"):
        return ""
    folder = nearest_folder(os.path.dirname(path))
    no_right = f"This process may not make files in {folder}: give its user the right."
    unnamed = (
        f"The file system of {folder} makes no files without a name (O_TMPFILE), which a registry "
        "needs until it is complete."
    )
    words = {
        code.EROFS: f"{folder} is on a file system that is mounted read-only: mount it for "
        "writing.",
        code.ENOSPC: f"The file system of {folder}{_size_of(folder)}. For a registry, which begins "
        "with 456 KiB and then grows in steps, it is full: make room there, or make it larger (a "
        "container's /dev/shm has 64 MiB unless you say more: docker and podman --shm-size, "
        "Kubernetes an emptyDir with medium: Memory).",
        code.EDQUOT: f"This user's share of the file system of {folder} is used up: make room "
        "there.",
        code.EACCES: no_right,
        code.EPERM: no_right,
        code.EOPNOTSUPP: unnamed,
        code.EISDIR: unnamed,
    }.get(number, f"See what is wrong with {folder}.")
    return f"\n  its file: {path}\n{words} {_ELSEWHERE}"


def _size_of(folder: str) -> str:
    """How large the file system of a folder is, as the rest of a sentence."""
    try:
        of = os.statvfs(folder)
    except OSError:
        return " has no more space"
    size, free = (f"{count * of.f_frsize >> 10:,} KiB" for count in (of.f_blocks, of.f_bavail))
    return f" has {size}, of which {free} are free"


def nearest_folder(folder: str) -> str:
    """The folder, or the one above it where it is not there yet."""
    folder = os.path.normpath(folder)
    return folder if os.path.isdir(folder) else os.path.dirname(folder)


def folder_words() -> str:
    """What is wrong with the location of the folders of all users: a sentence."""
    asked = os.environ.get(FOLDER_VARIABLE, "")
    if not asked:
        return (
            "/dev/shm is no folder here. Mount it (a tmpfs), or let "
            f"{FOLDER_VARIABLE} in the environment name another folder"
        )
    from ..errors.words import shown

    wrong = "does not exist"
    if not asked.startswith("/"):
        wrong = "is no absolute path"
    elif len(os.fsencode(asked)) > MD_MAX_FOLDER:
        wrong = f"is longer than {MD_MAX_FOLDER} bytes"
    elif os.path.isdir(asked):
        wrong = "takes no new folders"  # as /proc
    elif os.path.exists(asked):
        wrong = "is no folder"
    return (
        f"{FOLDER_VARIABLE}={shown(asked, MD_MAX_FOLDER)} in the environment {wrong}. Give the "
        f"absolute path, of at most {MD_MAX_FOLDER} bytes, of an existing folder, or unset it"
    )


def owner_words(label: str = "") -> str:
    """Who has the file or the folder, or what rights it has: a sentence, with the remedy. Without a
    label: of the folder.
    """
    path = file_of(label)
    folder = os.path.dirname(path) or _folder()
    if label.startswith("fd:"):
        looked_at = [(os.path.dirname(folder), "process", 0), (path, "file", 0)]
        remedy = ""
    else:
        remedy = (
            f": run all of them as that user, or let {FOLDER_VARIABLE} in the environment name a "
            "folder in which this one may make its own"
        )
        looked_at = [(folder, "folder", 0o700), (path, "file", 0o600)]
    for each, what, rights in looked_at:
        try:
            found = os.stat(each) if label.startswith("fd:") else os.lstat(each)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid():
            return (
                f"the {what} {each} is user {found.st_uid}'s, and this process is user "
                f"{os.geteuid()}'s. A registry is for the processes of one user{remedy}"
            )
        if stat.S_ISLNK(found.st_mode):
            return f"{each} is a symbolic link, and not the {what} itself. Remove the link"
        if rights and mode != rights and (what == "file" or mode & 0o077):
            return (
                f"the {what} {each} has the rights {mode:04o}, not {rights:04o}, so others may "
                f"have changed it. Remove it when no process uses it"
            )
    return (
        f"{path or folder} belongs to another user, or its rights are not those of a registry "
        "(file 0600, folder 0700)"
    )

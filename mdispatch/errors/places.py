"""Where a registration comes from: the nearest code that is not ours, its line and its module.

See Note [Runs of a module] in errors/runs.py for what ties it to an earlier one.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType

__all__ = ["caller", "file_of", "label_of", "loaded_by", "module_name", "origin", "place_of"]
__all__ += ["printable"]

# Code that was compiled to C has no frame. While such a module is loaded, the nearest frame is one
# of importlib's, and that knows which module it loads.
_IMPORTLIB = "<frozen importlib."


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
    """``file:line`` of a frame.

    A compiled module has no lines: it is told by its file. Code without a file is told by its
    module: ``<module>:line``, with a name that it was given in between, ``<module: name>:line``.
    """
    if frame is None:
        return "(no Python code)"
    spec = loaded_by(frame)
    if spec is not None:
        return printable(str(spec.origin) if spec.has_location else f"<{spec.name}>")
    file = frame.f_code.co_filename
    if file.startswith("<"):
        name = module_name(frame)
        if name not in ("", "__main__"):
            own = file[1:].removesuffix(">")
            file = f"<{name}>" if own in ("string", f"frozen {name}") else f"<{name}: {own}>"
    return printable(f"{file}:{frame.f_lineno}")


def origin(place: str) -> tuple[str, int] | None:
    """Host and process of a place on another host, ``host[pid]:file:line``; None for one here."""
    head, bracket, rest = place.partition("[")
    pid = rest.partition("]:")[0] if bracket else ""
    is_one = pid.isascii() and pid.isdigit() and rest.startswith(f"{pid}]:") and "/" not in head
    return (head, int(pid)) if is_one and head else None


def file_of(place: str) -> str:
    """The file of a place; of code without a file ``<module>``."""
    if "]:" in place and origin(place) is not None:
        place = place.partition("]:")[2]
    file, _, line = place.rpartition(":")
    file = file if line.isdigit() else place
    if file.startswith("<") and ": " in file:
        return file.partition(": ")[0] + ">"
    return file


def module_name(frame: FrameType) -> str:
    """The name of the module whose code runs in a frame; "" if it has none."""
    spec = loaded_by(frame)
    name = frame.f_globals.get("__name__") if spec is None else spec.name
    return name if isinstance(name, str) else ""


def loaded_by(frame: FrameType) -> ModuleSpec | None:
    """What a frame of importlib loads; None for any other frame."""
    if not frame.f_code.co_filename.startswith(_IMPORTLIB):
        return None
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename.startswith(_IMPORTLIB):
        names = outer.f_locals
        spec = names.get("spec") or getattr(names.get("module"), "__spec__", None)
        if spec is not None:
            return spec  # type: ignore[no-any-return]
        outer = outer.f_back
    return None


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

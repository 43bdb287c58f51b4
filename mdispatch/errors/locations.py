"""Where a registration comes from: its line, and the module that it belongs to.

Note [Modules of registrations]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Members compare what the same module registers in each of them. Its file may lie elsewhere in each:
in the folder of another release, in another virtual environment, behind a link, in a zip file. Its
name is the same, so a registration carries the name (:class:`Location`), which is that of the
module's ``__spec__``: ``python -m shop.main`` runs ``shop.main``, whatever its ``__name__`` is. A
script, a cell of a notebook and code that is only executed have no name under which another member
could import them. They are told by their files.

Projects register through helpers of their own: decorators, functions that a plug-in calls. Then the
module that registers is the one that is being imported, and not the helper's. Where none is being
imported, it is that of the nearest code. Who knows better says so: ``where=``.

See Note [Runs of a module] in errors/runs.py for what ties a registration to an earlier one.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any, Self

# Code that was compiled to C has no frame. While such a module is loaded, the nearest frame is one
# of importlib's, and that knows which module it loads.
_IMPORTLIB = "<frozen importlib."

_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the code of functions

_LONGEST_MODULE = 255

_MOST_DECORATORS = 100


class Location(str):
    """``file:line`` of what registers. ``module`` is the name by which any member can import it;
    "" where there is none. ``origin`` is both, as the registry keeps them. See Note [Modules of
    registrations].
    """

    __slots__ = ("module", "origin")
    module: str
    origin: str

    def __new__(cls, location: str, module: str = "") -> Self:
        made = super().__new__(cls, location)
        made.module = module
        made.origin = f"{location}\n{module}" if module else location
        return made

    def itself(self) -> Location:
        """The location, for who wants a function that finds one. (``str()`` would drop the
        module.)"""
        return self


def caller() -> FrameType | None:
    """The frame of the user's code that called into mdispatch; None when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("mdispatch") or name[9:10] not in ("", "."):
            return frame
        frame = frame.f_back
    return None


def on_behalf(frame: FrameType | None) -> FrameType | None:
    """The frame for which the code of a frame registers: the nearest one of the module that is
    being imported or, where none is, the frame itself. See Note [Modules of registrations].
    ``caller`` in native/bind/ext/ext.c is the twin in C of this and :func:`caller`.
    """
    if frame is None or not _is_function(frame) or _is_importlib(frame):
        return frame
    outer = frame.f_back
    while outer is not None and not _is_imported(outer):
        outer = outer.f_back
    if outer is None:
        return frame
    nearest: FrameType | None = frame
    while nearest is not None and nearest.f_globals is not outer.f_globals:
        nearest = nearest.f_back
    return nearest


def registrants_location(frame: FrameType | None = None) -> Location:
    """The location of the code that registers: that of the user which called into mdispatch, or of
    a frame.
    """
    frame = on_behalf(frame or caller())
    return Location(location_of(frame), "" if frame is None else _module_of(frame))


def given_location(where: object) -> Location:
    """The location of what somebody registers for: see :func:`location_of_object`.
    InvalidArgumentError for what has none.
    """
    location = location_of_object(where)
    if location is None:
        from .classes import InvalidArgumentError
        from .words import shown

        raise InvalidArgumentError(
            f"where is the function, class or module for which you register, not {shown(where)}"
        )
    return location


def location_of_object(told: object) -> Location | None:
    """The location of a function, a class or a module; None for anything else."""
    if isinstance(told, type(sys)):
        return Location(_file_of_module(told), name_in(vars(told)))
    for _ in range(_MOST_DECORATORS):  # an object may have any attribute, and so no end
        if not hasattr(told, "__wrapped__"):
            break
        told = told.__wrapped__
    code, names = getattr(told, "__code__", None), getattr(told, "__globals__", None)
    if code is not None and type(names) is dict:
        return Location(printable(f"{code.co_filename}:{code.co_firstlineno}"), name_in(names))
    name = getattr(told, "__module__", None)
    module = sys.modules.get(name) if type(name) is str else None
    if module is None or not isinstance(told, type):
        return None
    line = getattr(told, "__firstlineno__", 0)  # Python 3.13 and later
    file = _file_of_module(module)
    return Location(f"{file}:{line}" if line else file, name_in(vars(module)))


def _file_of_module(module: ModuleType) -> str:
    return printable(getattr(module, "__file__", None) or f"<{module.__name__}>")


def _is_function(frame: FrameType) -> int:
    return frame.f_code.co_flags & _OPTIMIZED


def _is_importlib(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB)


def _is_imported(frame: FrameType) -> bool:
    """Whether this is the top-level code of a module that is being imported. A loader may execute
    it by itself, so importlib is asked which modules it is at, too.
    """
    if _is_function(frame):
        return False
    spec = frame.f_globals.get("__spec__")
    return _is_importlib(frame.f_back) or getattr(spec, "_initializing", False) is True


def _module_of(frame: FrameType) -> str:
    spec = loaded_by(frame)
    return name_in(frame.f_globals) if spec is None else _known(spec.name)


def name_in(names: dict[str, Any]) -> str:
    """The name by which any member can import the module with these globals; "" without one."""
    spec = names.get("__spec__")
    name = names.get("__name__") if spec is None else getattr(spec, "name", None)
    if spec is None and getattr(sys.modules.get(str(name)), "__dict__", None) is not names:
        return ""  # nobody has imported it
    return _known(name)


def _known(name: object) -> str:
    """The name, unless it is what every program calls its own code, or could not be kept."""
    if type(name) is not str or name in ("__main__", "__mp_main__", "builtins"):
        return ""
    return name if len(name) <= _LONGEST_MODULE and name.isprintable() else ""


def location_of(frame: FrameType | None) -> str:
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


def origin(location: str) -> tuple[str, int] | None:
    """Host and process of a location on another host, ``host[pid]:file:line``; None for one
    here."""
    head, bracket, rest = location.partition("[")
    pid = rest.partition("]:")[0] if bracket else ""
    is_one = pid.isascii() and pid.isdigit() and rest.startswith(f"{pid}]:") and "/" not in head
    return (head, int(pid)) if is_one and head else None


def process_at(location: str, pid: int) -> str:
    """The process that registered at a location. One of another host is told by the location: the
    member that registered here is then the bridge.
    """
    there = origin(location)
    return f"pid {pid}" if there is None else f"pid {there[1]} on {there[0]}"


def file_of(location: str) -> str:
    """The file of a location; of code without a file ``<module>``."""
    if "]:" in location and origin(location) is not None:
        location = location.partition("]:")[2]
    file, _, line = location.rpartition(":")
    file = file if line.isdigit() else location
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


def host() -> str:
    """The name of this host: that in MDISPATCH_HOST, else the system's."""
    from os import environ
    from re import sub
    from socket import gethostname

    name = environ.get("MDISPATCH_HOST") or gethostname()
    return sub(r"[^A-Za-z0-9_.-]", "-", name)[:64] or "host"

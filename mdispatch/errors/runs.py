"""Runs of a module: whether what registers now was there before.

Note [Runs of a module]
~~~~~~~~~~~~~~~~~~~~~~~
A module may be imported again, a cell of a notebook edited and run again. What its code registers
takes the place of what its earlier run has registered, on whatever lines both stand. Twice in one
run is a mistake. Nobody tells us of runs, so a :class:`Run` keeps what tells two of them apart:

- A module that is imported or reloaded gets a new ``__spec__``.
- A module that is executed by other means gets new globals.
- What is typed or run cell by cell goes on in the same globals with new code. IPython compiles each
  statement of a cell apart; what its later lines do belongs to the same run. Nothing tells a cell
  that was edited from another one. So a cell takes the place of what it registers itself, and of
  nothing else.
- Compiled code that a program executes again starts from its beginning: an instruction of it that
  no loop surrounds runs a second time.

A function that registers belongs to its module and to the top-level code that called it: a package
may have a decorator that registers, and the module that uses it is the one that is imported again.
"""

from __future__ import annotations

from .locations import loaded_by, location_of, module_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType
    from typing import Any

#: Another module, or the same for another; one run; more code of the module, as another cell, or
#: the same cell edited; the module executed again; the module imported anew.
OTHER, SAME, MORE, AGAIN, ANEW = range(5)

_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the code of functions


class _Space:
    """The module of a frame: its name and, to tell two of one name apart, its spec and globals."""

    __slots__ = ("name", "names", "spec")

    def __init__(self, frame: FrameType) -> None:
        self.spec: ModuleSpec | None = loaded_by(frame)
        self.names: dict[str, Any] | None = None
        self.name = module_name(frame)
        if self.spec is None:
            names = self.names = frame.f_globals
            self.spec = names.get("__spec__")
            if self.name == "__main__":  # every program has one
                self.name += f" {names.get('__file__', '')}"

    def after(self, earlier: _Space) -> int:
        if self.name != earlier.name:
            return OTHER
        if self.spec is not earlier.spec and None not in (self.spec, earlier.spec):
            return ANEW
        return SAME if self.names is earlier.names else AGAIN


class Run:
    """The run of a module to which something that is registered belongs. ``module`` is its name.

    ``is_direct`` says whether the module's top-level code registers, and not one of its functions.
    """

    __slots__ = ("_at", "_cell", "_code", "_line", "_space", "_top", "is_direct", "module")

    def __init__(self, frame: FrameType) -> None:
        self._space = _Space(frame)
        # Code without a name is as good as its location.
        self.module = self._space.name = self._space.name or location_of(frame)
        top = _top_level(frame)
        self.is_direct = top is frame
        self._top: _Space | None = None
        self._code: CodeType | None = None
        self._cell: object = None
        self._at = self._line = 0
        if top is not None:
            self._top = self._space if self.is_direct else _Space(top)
            self._code, self._at = top.f_code, top.f_lasti
            if "get_ipython" in top.f_globals:
                self._cell, self._line = _cell_of(top), top.f_lineno

    def after(self, earlier: Run) -> int:
        """What this run is to an earlier one: OTHER, SAME, MORE, AGAIN or ANEW."""
        of_module = self._space.after(earlier._space)
        if of_module != SAME or self._top is None or earlier._top is None:
            return of_module
        of_top = self._top.after(earlier._top)
        if of_top != SAME or self._top.names is None:
            return of_top
        if self._code is earlier._code:
            return AGAIN if self._began_again(earlier) else SAME
        if self._cell is not None and self._cell == earlier._cell and self._line > earlier._line:
            return SAME
        return MORE

    def replaces(self, earlier: Run) -> bool:
        """Whether what is registered now takes the place of the same from an earlier run."""
        return self.after(earlier) not in (OTHER, SAME)

    def goes_on(self, later: Run) -> None:
        """Notes how far the same run has come."""
        self._code, self._at, self._line = later._code, later._at, later._line

    def _began_again(self, earlier: Run) -> bool:
        """Whether the same code has begun again: it is at an instruction at which it was before,
        and no loop explains that.
        """
        if not (self.is_direct and self._at <= earlier._at and self._code is not None):
            return False
        import dis  # hardly anybody executes the same code again

        return not any(
            "JUMP_BACKWARD" in step.opname and step.argval <= self._at <= step.offset
            for step in dis.get_instructions(self._code)
        )


def _top_level(frame: FrameType) -> FrameType | None:
    """The top-level code that runs in the frame, or that called it; None if there is none. What a
    module executes while it is imported is a part of it; in a main program each text that is
    executed stands for itself, for that may be a prompt.
    """
    top: FrameType | None = None
    outer: FrameType | None = frame
    while outer is not None and (top is None or outer.f_globals is top.f_globals):
        if _is_top_level(outer) or (top is None and loaded_by(outer) is not None):
            top = outer
            if top.f_globals.get("__name__") == "__main__":
                return top
        outer = outer.f_back
    return top


def _cell_of(frame: FrameType) -> object:
    """What IPython runs at the moment: the number and the file of a cell."""
    try:
        number = frame.f_globals["get_ipython"]().execution_count
    except Exception:  # the name is somebody else's
        return None
    return number, frame.f_code.co_filename


def _is_top_level(frame: FrameType) -> bool:
    code = frame.f_code
    # The body of a class has names of its own. Tools give the code of cells other names.
    return not code.co_flags & _OPTIMIZED and (
        code.co_name == "<module>" or frame.f_locals is frame.f_globals
    )

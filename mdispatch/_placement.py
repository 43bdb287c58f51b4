"""Where a call runs: here, or nowhere.

A kernel, a mode, a rule and an argument each belong to the interpreter that made them. What is at
home here runs here; a call that needs something from elsewhere is refused before anything ran, with
an error that names both interpreters. This is the one place that decides it: carrying such a call
over to its owner would begin here. (PyTorch: PythonKernelHolder, which asks the active mode, then
the first argument with the Python key, then takes the interpreter of the kernel)
"""

from __future__ import annotations

from ._bind import Unfit
from ._homes import foreign, here
from ._native import interpreter_id as HERE
from ._python_key import overloaded_types
from .errors import ForeignObjectError
from .guards import excluded_keys
from .keys import DispatchKey
from .modes import local
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._kernels import LocalKernel
    from ._rules import Rules

__all__ = ["HERE", "as_tensor", "check_handlers", "foreign_kernel", "refused"]


def as_tensor(value: Any) -> Any:
    """The tensor that an argument is: the object itself, or the one that a SafeObject holds.

    Unfit for anything else; ForeignObjectError for a SafeObject that is not at home here.
    """
    if raw_of(value) is not None:
        return value
    if _is_held(value):
        value = value.open()
        if raw_of(value) is not None:
            return value
    raise Unfit


def _is_held(value: object) -> bool:
    from ._hermetic import SafeObject

    return isinstance(value, SafeObject)


def check_handlers(
    name: str, rules: Rules, raw: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Before a call with the key set ``raw``, which would come to a mode or a type's rule: whether
    these are at home here.

    Raises ForeignObjectError.
    """
    stack = local.stack
    asked: list[Any] = []
    if stack.entries and raw & DispatchKey.Python.raw:
        asked.append(stack.entries[-1].mode)
    if stack.pre_dispatch and not excluded_keys().has(DispatchKey.Python):
        asked.append(stack.pre_dispatch[-1].mode)
    if rules.by_class:
        classes = [type(mode) for mode in asked]
        for cls in (*classes, *overloaded_types(args, kwargs)):
            asked += [rule.function for rule in rules.of_class(cls)]
    for each in asked:
        if _is_held(each):
            try:
                each.open()
            except ForeignObjectError as error:
                raise refused(error, name) from None


def refused(error: ForeignObjectError, operator: str) -> ForeignObjectError:
    """The same error, of a call."""
    return type(error)(f"{operator}(): {error}", error.home, error.here, operator)


def foreign_kernel(operator: str, kernel: LocalKernel) -> ForeignObjectError:
    """A kernel that another interpreter made was reached through memory that both share."""
    return foreign(f"the kernel {kernel.label}", here().neighbour(kernel.home), operator, "run")

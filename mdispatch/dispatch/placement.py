"""Where a call runs: here, or nowhere.

A kernel, a mode, a rule and an argument each belong to the interpreter that made them. Each is used
in its own interpreter only. A call that needs one of another interpreter is refused before anything
runs, with an error that names both interpreters. Only this file decides that. A handle can be asked
at its home, and so may stand for a mode of elsewhere; kernels that are served: across/routing.py.
(PyTorch: PythonKernelHolder, which asks the active mode, then the first argument with the Python
key, then takes the interpreter of the kernel)
"""

from __future__ import annotations

from ..errors import ForeignObjectError
from ..keys import DispatchKey
from .arguments import Unfit
from .context.guards import excluded_keys
from .context.homes import foreign, here
from .context.modes import local
from .context.values import is_tensor
from .handlers import overloaded_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .kernels import LocalKernel
    from .overrides import Rules


def as_tensor(value: Any) -> Any:
    """The tensor that an argument is: the object itself, or the one that a SafeObject holds.

    Unfit for anything else; ForeignObjectError for a SafeObject that is not at home here.
    """
    if is_tensor(value):
        return value
    if _is_held(value):
        value = value.open()
        if is_tensor(value):
            return value
    raise Unfit


def _is_held(value: object) -> bool:
    from .context.hermetic import SafeObject

    return isinstance(value, SafeObject)


def _is_asked_at_home(mode: object) -> bool:
    from .context.hermetic import VisitingHandle

    return isinstance(mode, VisitingHandle)


def check_handlers(
    name: str, rules: Rules, raw: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Called before a call whose key set ``raw`` leads to a mode, or to a rule for a type: refuses
    those that are not at home here.

    Raises ForeignObjectError.
    """
    stack = local.stack
    asked: list[Any] = []
    if stack.entries and raw & DispatchKey.Python.raw:
        asked.append(stack.entries[-1].mode)
    if stack.pre_dispatch and not excluded_keys().has(DispatchKey.Python):
        asked.append(stack.pre_dispatch[-1].mode)
    asked = [mode for mode in asked if not _is_asked_at_home(mode)]
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
    """The same error, with the operator that was called."""
    return type(error)(f"{operator}(): {error}", error.home, error.here, operator)


def foreign_kernel(operator: str, kernel: LocalKernel) -> ForeignObjectError:
    """The error for a kernel of another interpreter, reached through memory that both share."""
    return foreign(f"the kernel {kernel.label}", here().neighbour(kernel.home), operator, "run")

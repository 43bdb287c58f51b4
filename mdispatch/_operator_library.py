"""The library of one operator that ``custom_op`` made. It knows the defaults of the function, which
a schema has only as text: a kernel gets ``torch.float32``, and not the number that stands for it.
"""

from __future__ import annotations

from ._kernels import LocalKernel
from .library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._registering import RegistrationHandle
    from .operators import OpOverload
    from .schema import Argument, FunctionSchema

    # Where a kernel gets the argument, the schema's default, and the function's.
    Default = tuple[int | str, object, object]

__all__ = ["OperatorLibrary"]

#: Types whose values are objects of some library; a schema's default is only their number or name.
_OPAQUE = ("ScalarType", "Layout", "MemoryFormat", "QScheme", "Device")


class OperatorLibrary(Library):
    """Whatever is registered in it gets the defaults of the operator's function."""

    _defaults: list[Default]

    def take_defaults(self, schema: FunctionSchema, function: Callable[..., Any]) -> None:
        """To be called first."""
        self._defaults = _own_defaults(schema, function)

    def _impl(
        self, op: str | OpOverload, kernel: LocalKernel, allow_override: bool = True
    ) -> RegistrationHandle | None:
        if self._defaults and not kernel.is_fallthrough:
            kernel = LocalKernel(
                kernel.key,
                _with_defaults(kernel.function, self._defaults, kernel.with_keyset),
                kernel.with_keyset,
                kernel.signature,
                kernel.label,
            )
        return super()._impl(op, kernel, allow_override)


def _own_defaults(schema: FunctionSchema, function: Callable[..., Any]) -> list[Default]:
    """The defaults of the function that a schema can only describe: ``torch.float32``, of which it
    has the number, or a member of an Enum, of which it has the value.
    """
    if all(argument.default is None for argument in schema.arguments):
        return []
    import inspect  # most operators have no defaults

    try:
        parameters = inspect.signature(function).parameters
    except Exception:  # no function of Python's, or one whose annotations cannot be evaluated
        return []
    found: list[Default] = []
    positional = [each.name for each in schema.arguments if not each.kwarg_only]
    for argument in schema.arguments:
        parameter = parameters.get(argument.name)
        if parameter is not None and _describes(argument, parameter.default):
            place = argument.name if argument.kwarg_only else positional.index(argument.name)
            found.append((place, argument.default, parameter.default))
    return found


def _describes(argument: Argument, value: object) -> bool:
    """Whether the schema's default stands for ``value``, and is not of its class."""
    default = argument.default
    if default is None or value is None or type(value) is type(default):
        return False
    if isinstance(value, type(default)):
        return bool(value == default)
    # An empty parameter's default is a class.
    return str(argument.type).rstrip("?") in _OPAQUE and not isinstance(value, type)


def _with_defaults(
    function: Callable[..., Any],
    defaults: list[Default],
    with_keyset: bool,
) -> Callable[..., Any]:
    """A kernel that calls ``function`` with those defaults in the place of the schema's. (PyTorch
    drops what equals the schema's default, so that a function in Python takes its own.)
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        positional = list(args)
        for place, default, own in defaults:
            values: Any = kwargs
            if isinstance(place, int):
                values, place = positional, place + with_keyset
            if type(values[place]) is type(default) and values[place] == default:
                values[place] = own
        return function(*positional, **kwargs)

    return kernel

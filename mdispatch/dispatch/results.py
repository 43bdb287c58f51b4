"""Checks what a kernel returned: as many values as the schema says, of its types.

The caller gets None for no returns, the value itself for one, a tuple for several. Numbers are
converted as arguments are (see dispatch/arguments.py). PyTorch does not compare the number of
values, and takes None for a Tensor; here both are errors.
"""

from __future__ import annotations

from ..errors import ReturnValueError
from .arguments import Unfit, converter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from ..schema import FunctionSchema


class Returns:
    """Checks what kernels of one schema return. Made once for a schema.

    ``as_tensor`` gives the tensor that a value is, or raises Unfit.
    """

    __slots__ = ("_converters", "_one", "schema")

    def __init__(self, schema: FunctionSchema, as_tensor: Callable[[Any], Any]) -> None:
        self.schema = schema
        self._converters = tuple(converter(each.type, as_tensor) for each in schema.returns)
        self._one = len(schema.returns) == 1 and not schema.is_varret

    def check(self, result: Any, by: object = "a kernel") -> Any:
        """What the caller gets for the ``result`` of ``by``, which is a kernel, or its description.

        ReturnValueError if the result does not fit.
        """
        if self._one:
            exact, convert = self._converters[0]
            if type(result) is exact:
                return result
            try:
                converted = convert(result)
            except Unfit:
                self._fail_type(by, 0, result)
            return result if converted is result else _kept(result, converted)
        values = self.values(result, by)
        return tuple(values) if values or self.schema.is_varret else None

    def values(self, result: Any, by: object = "a kernel") -> list[Any]:
        """The same as a list with one element per value."""
        if self._one:
            return [self.check(result, by)]
        converters = self._converters
        if not converters and not self.schema.is_varret:
            if result is not None:
                self._fail(by, f"returned {_shown(result)}, not None")
            return []
        if not isinstance(result, (list, tuple)):
            self._fail(by, f"returned {_shown(result)}, not {self._wanted()}")
        if len(result) < len(converters) or (
            len(result) > len(converters) and not self.schema.is_varret
        ):
            self._fail(by, f"returned {len(result)} values, not {self._wanted()}")
        values = list(result)
        for position, (exact, convert) in enumerate(converters):
            value = values[position]
            if type(value) is not exact:
                try:
                    values[position] = _kept(value, convert(value))
                except Unfit:
                    self._fail_type(by, position, value)
        return values

    def _wanted(self) -> str:
        least = "at least " if self.schema.is_varret else ""
        return f"a tuple of {least}{len(self._converters)}"

    def _fail_type(self, by: object, position: int, value: Any) -> NoReturn:
        wanted = self.schema.returns[position].type
        which = "" if self._one else f" as value {position}"
        self._fail(by, f"returned {_shown(value)}{which}, not {wanted}")

    def _fail(self, by: object, what: str) -> NoReturn:
        name = str(self.schema.name)
        # A kernel that the call itself has loaded has no label yet.
        who = by if isinstance(by, str) else f"kernel {getattr(by, 'label', '')}".rstrip()
        raise ReturnValueError(
            f"{name}(): {who} {what}\n  declared as {self.schema}", name, self.schema
        ) from None


def _kept(value: Any, converted: Any) -> Any:
    """The kernel's own list if it fits as it is; unlike arguments, returns need no copy."""
    if type(value) is list and type(converted) is list and len(value) == len(converted):
        same = all(a is b for a, b in zip(value, converted, strict=True))
        return value if same else converted
    return converted


def _shown(value: object) -> str:
    from ..errors.words import shown

    # The repr of any other object may take long, or have effects.
    plain = value is None or type(value) in (int, float, complex, bool, str)
    if type(value) in (list, tuple):
        count = len(value)  # type: ignore[arg-type]
        return f"a {type(value).__qualname__} of {count} value{'s' * (count != 1)}"
    if type(value) is str:
        return f"the str {shown(value)}"
    return shown(value) if plain else f"an object of {type(value).__qualname__}"

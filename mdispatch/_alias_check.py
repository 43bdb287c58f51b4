"""What the kernel of an operator of ``custom_op`` may not return: its arguments, or a value twice.

Callers rely on what the schema says: a gradient, a compiler or a cache that takes two values for
independent would be wrong in silence. This looks at every call, so it asks only what is cheap to
know; opcheck looks more closely.
"""

from __future__ import annotations

import sys

from ._aliases import aliases, is_immutable
from ._place import label_of
from .errors import AliasingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from ._schema_types import AliasInfo
    from .schema import Argument, FunctionSchema

__all__ = ["AliasCheck"]


def _names(alias: AliasInfo | None) -> set[str]:
    """The alias sets that an annotation names, contained ones too."""
    if alias is None:
        return set()
    names = {*alias.before, *alias.after}
    for inner in alias.contained:
        names |= _names(inner)
    return names


def _may_share(first: Argument, second: Argument) -> bool:
    """Whether the schema says that these two may be the same memory."""
    ours, theirs = _names(first.alias_info), _names(second.alias_info)
    return bool(ours & theirs) or bool(ours and "*" in theirs) or bool(theirs and "*" in ours)


class AliasCheck:
    """Refuses what a kernel returned where it is one of its arguments, or twice the same, and the
    schema does not say so. Made once for a schema.
    """

    __slots__ = ("_inputs", "_outputs", "_pairs", "_schema", "name")

    def __init__(self, schema: FunctionSchema) -> None:
        self.name = str(schema.name)
        self._schema = schema
        positional = [a for a in schema.arguments if not a.kwarg_only]
        # Where each argument is found in a call of a kernel: by its position, or its name.
        self._inputs: list[tuple[int | str, Argument]] = [
            (a.name if a.kwarg_only else positional.index(a), a)
            for a in schema.arguments
            if a.type.is_dispatched
        ]
        self._outputs = schema.returns
        self._pairs = [
            [key for key, argument in self._inputs if not _may_share(argument, each)]
            for each in schema.returns
        ]

    def __call__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """AliasingError."""
        if len(self._outputs) == 1:
            results: Any = (result,)
        elif isinstance(result, (list, tuple)) and len(result) == len(self._outputs):
            results = result
        else:
            return  # not what the schema says: refused as such
        # Each value that was returned, with the number of its return and its place in a list.
        seen: list[tuple[int, Any]] = []
        for index, (value, keys) in enumerate(zip(results, self._pairs, strict=True)):
            for each in _flat(value):
                for key in keys:
                    given = args[key] if isinstance(key, int) else kwargs[key]
                    if any(_shares(each, one) for one in _flat(given)):
                        name = self._name_of(key)
                        self._fail(function, index, f"is argument {name!r}, or shares its memory")
                for other, earlier in seen:
                    declared = _may_share(self._outputs[other], self._outputs[index])
                    if not declared and _shares(each, earlier):
                        what = f"is return value {other}, or shares its memory"
                        if other == index:
                            what = "holds one value twice, or parts of one memory"
                        self._fail(function, index, what)
                seen.append((index, each))

    def _name_of(self, key: int | str) -> str:
        return next(argument.name for each, argument in self._inputs if each == key)

    def _fail(self, function: Callable[..., Any], index: int, what: str) -> NoReturn:
        which = f"return value {index}" if len(self._outputs) > 1 else "the return value"
        raise AliasingError(
            f"{which} of {self.name} {what}, and the schema does not say so\n  declared as "
            f"{self._schema}\n  kernel: {label_of(function)}\nReturn a copy, or declare both as "
            "Tensor(a) in the schema.",
            self.name,
        )


def _shares(first: Any, second: Any) -> bool:
    """Whether two values are one, or have the same memory as far as that is cheap to see: of
    tensors of PyTorch, and of arrays and memoryviews, which know whose memory they look at.
    """
    if first is second:
        return not is_immutable(first)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and bool(torch._C._is_alias_of(first, second))
    owner = _owner(first)
    # Parts of the same memory may lie side by side.
    return owner is not None and owner is _owner(second) and aliases(first, second)


def _owner(value: Any) -> Any:
    """What has the memory that an array or a memoryview looks at; None for other values."""
    if type(value) in (bytearray, memoryview):
        owner = value.obj if type(value) is memoryview else value
        return None if is_immutable(owner) else owner
    if not hasattr(type(value), "__array_interface__"):
        return None
    base = getattr(value, "base", None)
    return value if base is None else base


def _flat(value: Any) -> Iterator[Any]:
    if type(value) in (list, tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value

"""opcheck's first test: an operator does to its arguments' memory only what its schema says."""

from __future__ import annotations

from ...schema.types import Type
from .values import aliases, is_immutable, snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ...schema import FunctionSchema
    from ...schema.types import AliasInfo, Argument

# Every use of these changes them; no schema marks them.
_STATEFUL = ("Generator", "Stream")
# These describe a Tensor, or name something: they have no memory to look at.
_NAMES = {"ScalarType", "Layout", "MemoryFormat", "QScheme", "Device", "DeviceIndex"}
_NAMES |= {"AnyEnumType", "AnyClassType"}


class Call:
    """The arguments of a call by their declarations, as they are before it runs."""

    def __init__(
        self, schema: FunctionSchema, positional: Sequence[Any], keywords: dict[str, Any]
    ) -> None:
        by_position = [each for each in schema.arguments if not each.kwarg_only]
        by_keyword = [each for each in schema.arguments if each.kwarg_only]
        self.schema = schema
        #: Declaration, name and value. Arguments that "..." takes have no declaration.
        self.given: list[tuple[Argument | None, str, Any]] = [
            *((a, a.name, value) for a, value in zip(by_position, positional, strict=False)),
            *((a, a.name, keywords[a.name]) for a in by_keyword),
            *((None, f"...[{i}]", v) for i, v in enumerate(positional[len(by_position) :])),
        ]
        self._before = [snapshot(value) for _, _, value in self.given]

    def undeclared_writes(self) -> Iterator[str]:
        """In words, the arguments that were written to although the schema does not say so.

        If two arguments share memory, one may be written to if the other may.
        """
        written = [value for a, _, value in self.given if a is not None and _writes(a)]
        for (argument, name, value), before in zip(self.given, self._before, strict=True):
            if argument is not None and (_writes(argument) or _is_stateful(argument.type)):
                continue
            changed = before.changed()
            if changed is False or any(aliases(value, other) for other in written):
                continue
            if changed is None:
                yield (
                    f"whether {name!r} was written to cannot be told: a {type(value).__qualname__} "
                    "does not show its memory, has no == with its copy, and cannot be pickled; "
                    "give its class an __eq__ that answers with a bool, and let it be copied"
                )
            else:
                yield (
                    f"{name!r} was written to, but is declared as '{argument or '...'}': declare "
                    f"{_marked(self.schema, argument, name)}, or write to a copy"
                )


def undeclared(call: Call, returned: Sequence[Any]) -> list[str]:
    """In words, every write and every alias of a call that its schema does not declare."""
    found = list(call.undeclared_writes())
    returns: list[Argument | None] = [*call.schema.returns]
    returns += [None] * (len(returned) - len(returns))
    outputs = [
        (which, info, value)
        for which, (info, value) in enumerate(zip(returns, returned, strict=True))
        if not (is_immutable(value) or (info is not None and _is_no_memory(info.type)))
    ]
    for which, declared, value in outputs:
        what = f"return value {which}" if len(returned) > 1 else "the return value"
        found += _of_arguments(call, what, declared, value)
        for other, its, earlier in outputs:
            if other < which and aliases(earlier, value) and not _shared(its, declared):
                found.append(
                    f"return values {other} and {which} {_how(earlier, value)}, but they declare "
                    "no common alias set: return a copy, or declare both as Tensor(a)"
                )
    return found


def _of_arguments(call: Call, what: str, declared: Argument | None, value: Any) -> Iterator[str]:
    aliased = [each for each in call.given if aliases(each[2], value)]
    # An argument that shares memory with a declared one is aliased with it.
    allowed = [each[2] for each in aliased if _shared(each[0], declared)]
    for argument, name, its in aliased:
        if any(aliases(its, each) for each in allowed):
            continue
        sets = _sets(argument)
        own = next(iter(sorted(sets - {"*"})), _free(call.schema))
        yield (
            f"{what} {_how(value, its, name)}, but is declared as '{declared or '...'}', and the "
            f"argument as '{argument or '...'}': return a copy, or declare the alias set {own} for "
            f"both, as in Tensor({own})"
        )


def _how(value: object, other: object, name: str = "") -> str:
    if name:
        return f"is {name!r}" if value is other else f"shares memory with {name!r}"
    return "are one object" if value is other else "share memory"


def _writes(argument: Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.writes


def _is_stateful(type: Type) -> bool:
    return type.name in _STATEFUL or any(map(_is_stateful, type.elements))


def _is_no_memory(type: Type) -> bool:
    if type.name == Type.OPTIONAL:
        return _is_no_memory(type.elements[0])
    return type.name in _NAMES or type.name in _STATEFUL


def _shared(one: Argument | None, other: Argument | None) -> bool:
    """Whether two declarations say that their values may be aliases."""
    first, second = _sets(one), _sets(other)
    return (
        bool(first & second) or ("*" in first and bool(second)) or ("*" in second and bool(first))
    )


def _sets(argument: Argument | None) -> set[str]:
    return set() if argument is None else _all_sets(argument.alias_info)


def _all_sets(info: AliasInfo | None) -> set[str]:
    if info is None:
        return set()
    return {*info.before, *info.after}.union(*map(_all_sets, info.contained))


def _free(schema: FunctionSchema) -> str:
    """A name that no alias set of the schema has."""
    taken = {name for each in (*schema.arguments, *schema.returns) for name in _sets(each)}
    names: list[str] = [*"abcdefgh", *(f"a{i}" for i in range(len(taken) + 1))]
    return next(name for name in names if name not in taken)


def _marked(schema: FunctionSchema, argument: Argument | None, name: str) -> str:
    """The declaration that marks the argument as written to."""
    sets = sorted(_sets(argument) - {"*"})
    type = "Tensor" if argument is None else str(argument.type)
    mark = f"({'|'.join(sets) or _free(schema)}!)"
    marked = type.replace("Tensor", "Tensor" + mark, 1) if "Tensor" in type else type + mark
    return f"'{marked} {name}'"

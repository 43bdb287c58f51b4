"""PyTorch's names for looking at what is registered: dumps, tables, questions, and operators that
were found.
"""

from __future__ import annotations

from . import _registry as facts
from . import keys as _keys
from ._explain import dangling, existing, table_rows
from ._kernels import FALLBACK_NAME, FALLTHROUGH
from ._nearest import shown
from ._pairing import BUILTIN_FALLBACKS
from ._schema_names import OperatorName
from ._torch_common import _debug_of, _found, _key, _registry, _text, _theirs, using
from ._torch_keys import _key_set
from ._torch_library import _UNSET
from .errors import InvalidArgumentError
from .keys import DispatchKey
from .operators import OpOverload
from .registry import Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._explain import TableRow
    from ._registry import Registration
    from .schema import FunctionSchema

__all__ = [
    "_DispatchOperatorHandle",
    "_dispatch_call_boxed",
    "_dispatch_check_all_invariants",
    "_dispatch_check_invariants",
    "_dispatch_dump",
    "_dispatch_dump_table",
    "_dispatch_find_dangling_impls",
    "_dispatch_find_schema_or_throw",
    "_dispatch_get_all_op_names",
    "_dispatch_get_registrations_for_dispatch_key",
    "_dispatch_has_backend_fallback",
    "_dispatch_has_computed_kernel_for_dispatch_key",
    "_dispatch_has_kernel",
    "_dispatch_has_kernel_for_any_dispatch_key",
    "_dispatch_has_kernel_for_dispatch_key",
    "_dispatch_kernel_for_dispatch_key_is_fallthrough",
    "_dispatch_print_registrations_for_dispatch_key",
    "_dispatch_pystub",
    "_kernel_line",
    "_named",
    "_registered",
    "_runtime",
    "_table_line",
]


def _named(name: str, overload: str) -> OperatorName:
    return OperatorName.parse(f"{_text(name)}.{overload}" if _text(overload) else _text(name))


@_theirs
def _dispatch_dump(name: str) -> str:
    """The canonical state of an operator; "" when there is none of the name."""
    there = _found(name)
    if not there:
        return ""
    lines = [f"name: {OperatorName.parse(name)}"]
    definitions = [fact for fact in there if fact.kind == facts.DEF]
    if definitions:
        fact = definitions[-1]
        kind = "CONSERVATIVE (default)" if fact.alias_analysis == _UNSET else fact.alias_analysis
        lines += [f"schema: {fact.body}", f"debug: {_debug_of(fact)}"]
        lines.append(f"alias analysis kind: {kind}")
    else:
        lines.append("schema: (none)")
    kernels = [fact for fact in reversed(there) if fact.kind == facts.IMPL]
    for key in sorted({fact.key for fact in kernels}):
        name = DispatchKey(key).name + "[alias]" * DispatchKey(key).is_alias
        for position, fact in enumerate(fact for fact in kernels if fact.key == key):
            lines.append(f"{name}{' (inactive)' if position else ''}: {_kernel_line(fact)}")
    return "\n".join(lines) + "\n"


def _kernel_line(fact: Registration) -> str:
    kinds = " ".join(
        (
            *["fallthrough"] * (fact.body == FALLTHROUGH),
            "boxed",
            *["unboxed"] * bool(fact.signature),
        )
    )
    return f"{_debug_of(fact)} :: {fact.signature or '(none)'} [ {kinds} ]"


@_theirs
def _dispatch_dump_table(name: str) -> str:
    """The computed table of an operator; "" when there is none of the name."""
    if not _found(name):
        return ""
    rows = [row for row in table_rows(_registry(), name) if row.reason != "missing"]
    return "".join(f"{row.key}: {_table_line(row)} [{row.reason}]\n" for row in rows)


def _table_line(row: TableRow) -> str:
    if row.registration is not None:
        debug = _debug_of(row.registration)
    elif row.reason == "ambiguous autogradother":
        debug = "ambiguous_autogradother"
    else:
        debug = row.where
    return f"{'fallthrough ' if row.is_fallthrough else ''}{debug}"


@_theirs
def _dispatch_check_invariants(name: str) -> None:
    """Recomputes what is derived for an operator. RuntimeError when it is not what its
    registrations give.
    """
    _registry().check_invariants(_text(name))


@_theirs
def _dispatch_check_all_invariants() -> None:
    """The same for everything in the registry. RuntimeError likewise."""
    _registry().check_invariants()


@_theirs
def _dispatch_has_kernel(name: str) -> bool:
    """Whether there is an operator of the name, with or without kernels."""
    return bool(_found(name))


def _registered(name: str) -> dict[DispatchKey, Registration]:
    """The kernels in effect by key. Raises for an operator that is not there."""
    there = existing(_registry(), _text(name))
    return {DispatchKey(fact.key): fact for fact in there if fact.kind == facts.IMPL}


@_theirs
def _dispatch_has_kernel_for_dispatch_key(name: str, dispatch: DispatchKey | str) -> bool:
    """Whether there is a kernel at exactly this key. RuntimeError for an operator that is not
    there.
    """
    return _key(dispatch) in _registered(name)


@_theirs
def _dispatch_has_kernel_for_any_dispatch_key(name: str, key_set: _keys.DispatchKeySet) -> bool:
    """Whether there is a kernel at a key of the set; kernels of alias keys do not count.
    RuntimeError for an operator that is not there.
    """
    _key_set(key_set)
    return any(key.raw and key_set.has(key) for key in _registered(name))


def _runtime(key: DispatchKey) -> DispatchKey:
    """The key whose slot theirs looks at: of a functionality its first backend's."""
    if key.is_alias:
        raise InvalidArgumentError(f"{key} stands for other keys and has no slot in a table")
    return _keys.functionality_to_backend_keys(key)[0]


@_theirs
def _dispatch_has_computed_kernel_for_dispatch_key(name: str, dispatch: str) -> bool:
    """Whether the computed table has a kernel in the slot of this key. RuntimeError for an operator
    that is not there, and for an alias key.
    """
    key = _runtime(_key(_text(dispatch)))
    full = existing(_registry(), name)[0].name
    table = _registry().entry(full).current_table()
    return table.entries[_keys.table_index(key)].reason != "missing"


@_theirs
def _dispatch_kernel_for_dispatch_key_is_fallthrough(
    name: str, dispatch: DispatchKey | str
) -> bool:
    """Whether the kernel at exactly this key falls through. RuntimeError when there is none."""
    fact = _registered(name).get(_key(dispatch))
    if fact is None:
        raise InvalidArgumentError(f"{name} has no kernel at {dispatch}")
    return fact.body == FALLTHROUGH


def _dispatch_find_dangling_impls() -> list[str]:
    """The dumps of the operators that have kernels and no definition."""
    return [_dispatch_dump(name) for name in dangling(_registry())]


def _dispatch_get_all_op_names() -> list[str]:
    """The names of all operators that are there, also of those that are not defined."""
    return _dispatch_get_registrations_for_dispatch_key()


@_theirs
def _dispatch_get_registrations_for_dispatch_key(dispatch_key: str = "") -> list[str]:
    """The operators with a kernel at exactly this key; without one all that are there."""
    key = _key(dispatch_key) if _text(dispatch_key) else None
    _, _, there = _registry()._facts.registrations()
    kinds = (facts.DEF, facts.IMPL, facts.NAME) if key is None else (facts.IMPL,)
    return list(
        dict.fromkeys(
            fact.name for fact in there if fact.kind in kinds and (key is None or fact.key == key)
        )
    )


def _dispatch_print_registrations_for_dispatch_key(dispatch_key: str = "") -> None:
    """Prints what the function above returns, one per line."""
    for name in _dispatch_get_registrations_for_dispatch_key(dispatch_key):
        print(name)


@_theirs
def _dispatch_has_backend_fallback(key: DispatchKey | str) -> bool:
    """Whether a backend fallback serves this key."""
    runtime = _key(key)
    if runtime.is_alias:
        return False
    runtime = _runtime(runtime)
    facts_of = _registry()._facts
    return runtime in BUILTIN_FALLBACKS or facts_of.has(facts.FALLBACK, runtime, FALLBACK_NAME)


@_theirs
def _dispatch_pystub(name: str, overload: str) -> tuple[str, str] | None:
    """The Python module that an operator names for its fake kernel, and the context; None when it
    names none. RuntimeError for what is no name.
    """
    full = str(_named(name, overload))
    fact = _registry()._facts.find(facts.PYSTUB, 0, full)
    if fact is None:
        return None
    module, _, context = fact.body.partition("\n")
    return module, context


class _DispatchOperatorHandle:
    """An operator that was found, one definition."""

    def __init__(self, registry: Registry, name: OperatorName) -> None:
        self._operator = OpOverload(registry, str(name))
        self._name = str(name)
        self._registry = registry

    @_theirs
    def schema(self) -> FunctionSchema:
        """The schema. RuntimeError when the definition was closed."""
        schema: FunctionSchema = self._operator.schema
        return schema

    @_theirs
    def debug(self) -> str:
        """From where it was registered. RuntimeError when the definition was closed."""
        self._operator.schema  # noqa: B018  # raises when it is gone
        with using(self._registry):
            fact = next(fact for fact in _found(self._name) if fact.kind == facts.DEF)
        return _debug_of(fact)

    @_theirs
    def redispatch_boxed(self, key_set: _keys.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        """A call by the table with just this key set. RuntimeError where it is refused."""
        return self._operator.redispatch(key_set, *args, **kwargs)


@_theirs
def _dispatch_find_schema_or_throw(name: str, overload_name: str) -> _DispatchOperatorHandle:
    """The handle of an operator that is defined. RuntimeError when it is not."""
    full = _named(name, overload_name)
    there = _found(str(full))
    if not any(fact.kind == facts.DEF for fact in there):
        hint = "; it has kernels, but nobody defined it" if there else ""
        raise InvalidArgumentError(f"there is no schema for {full}{hint}")
    return _DispatchOperatorHandle(_registry(), full)


@_theirs
def _dispatch_call_boxed(handle: _DispatchOperatorHandle, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator by its handle. RuntimeError where the call is refused; what a kernel raises
    passes through.
    """
    if not isinstance(handle, _DispatchOperatorHandle):
        raise TypeError(f"this takes the handle of an operator, not {shown(handle)}")
    return handle._operator(*args, **kwargs)

"""PyTorch's names for looking at registrations, and for resolving calls.

The first part dumps operators and tables, answers questions about them, and finds operators. The
second part resolves calls: the key set, the key that decides, the kernel in a slot.
"""

from __future__ import annotations

from .. import facts, keys
from ..authoring.computed_kernel import ComputedKernel
from ..authoring.functions import get_kernel
from ..dispatch.context import guards
from ..dispatch.explain import are_active, dangling, existing, table_rows
from ..dispatch.kernels import FALLBACK_NAME, FALLTHROUGH
from ..dispatch.operators import OpOverload
from ..dispatch.pairing import BUILTIN_FALLBACKS
from ..errors import AmbiguousKernelError, InvalidArgumentError, MissingKernelError
from ..errors.words import shown
from ..keys import DispatchKey
from ..registry import Registry
from ..schema.names import OperatorName
from .common import _debug_of, _found, _key, _registry, _text, _theirs, using
from .keys import DispatchKeySet, _compat, _key_set, _keys_of
from .library import _UNSET
from .schemas import FunctionSchema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..dispatch.explain import TableRow
    from ..dispatch.higher_order import HigherOrderOperator
    from ..facts import Registration

__all__ = [
    "_dispatch_call_boxed",
    "_dispatch_check_all_invariants",
    "_dispatch_check_invariants",
    "_dispatch_dump",
    "_dispatch_dump_table",
    "_dispatch_find_dangling_impls",
    "_dispatch_find_schema_or_throw",
    "_dispatch_get_all_op_names",
    "_dispatch_get_computed_kernel_for_dispatch_key",
    "_dispatch_get_registrations_for_dispatch_key",
    "_dispatch_has_backend_fallback",
    "_dispatch_has_computed_kernel_for_dispatch_key",
    "_dispatch_has_kernel",
    "_dispatch_has_kernel_for_any_dispatch_key",
    "_dispatch_has_kernel_for_dispatch_key",
    "_dispatch_kernel_for_dispatch_key_is_fallthrough",
    "_dispatch_print_registrations_for_dispatch_key",
    "_dispatch_pystub",
    "_DispatchOperatorHandle",
    "key_extractor",
    "resolve_key",
]

# --- registrations --------------------------------------------------------------------------------


def _named(name: str, overload: str) -> OperatorName:
    return OperatorName.parse(f"{_text(name)}.{overload}" if _text(overload) else _text(name))


@_theirs
def _dispatch_dump(name: str) -> str:
    """The canonical state of an operator; "" if there is no operator of this name."""
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
        here = [fact for fact in kernels if fact.key == key]
        for fact, active in zip(here, are_active(here), strict=True):
            lines.append(f"{name}{'' if active else ' (inactive)'}: {_kernel_line(fact)}")
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
    """The computed table of an operator; "" if there is no operator of this name."""
    if not _found(name):
        return ""
    rows = [
        row for row in table_rows(_registry().dispatcher.facts, name) if row.reason != "missing"
    ]
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
    """Recomputes the derived state of an operator. RuntimeError if the state differs from what the
    operator's registrations give.
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
    """The newest kernel that can serve by key. Raises for an operator that is not there."""
    there = existing(_registry().dispatcher.facts, _text(name))
    return {fact.key: fact for fact in there if fact.kind == facts.IMPL and not fact.lacks}


@_theirs
def _dispatch_has_kernel_for_dispatch_key(name: str, dispatch: DispatchKey | str) -> bool:
    """Whether there is a kernel at exactly this key. RuntimeError for an operator that is not
    there.
    """
    return _key(dispatch) in _registered(name)


@_theirs
def _dispatch_has_kernel_for_any_dispatch_key(name: str, key_set: keys.DispatchKeySet) -> bool:
    """Whether there is a kernel at a key of the set; kernels of alias keys do not count.
    RuntimeError for an operator that is not there.
    """
    _key_set(key_set)
    return any(key.raw and key_set.has(key) for key in _registered(name))


def _runtime(key: DispatchKey) -> DispatchKey:
    """The key at whose slot PyTorch's function looks: for a functionality, its first backend's."""
    if key.is_alias:
        raise InvalidArgumentError(f"{key} stands for other keys and has no slot in a table")
    return keys.functionality_to_backend_keys(key)[0]


@_theirs
def _dispatch_has_computed_kernel_for_dispatch_key(name: str, dispatch: str) -> bool:
    """Whether the computed table has a kernel in the slot of this key. RuntimeError for an operator
    that is not there, and for an alias key.
    """
    key = _runtime(_key(_text(dispatch)))
    full = existing(_registry().dispatcher.facts, name)[0].name
    table = _registry().dispatcher.entry(full).current_table()
    return table.entries[keys.table_index(key)].reason != "missing"


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
    return [_dispatch_dump(name) for name in dangling(_registry().dispatcher.facts)]


def _dispatch_get_all_op_names() -> list[str]:
    """The names of all operators, including those that have kernels and no definition."""
    return _dispatch_get_registrations_for_dispatch_key()


@_theirs
def _dispatch_get_registrations_for_dispatch_key(dispatch_key: str = "") -> list[str]:
    """The operators with a kernel at exactly this key; without a key, all operators."""
    key = _key(dispatch_key) if _text(dispatch_key) else None
    _, _, there = _registry().dispatcher.facts.registrations()
    kinds = (facts.DEF, facts.IMPL, facts.NAME) if key is None else (facts.IMPL,)
    return list(
        dict.fromkeys(
            fact.name for fact in there if fact.kind in kinds and (key is None or fact.key == key)
        )
    )


def _dispatch_print_registrations_for_dispatch_key(dispatch_key: str = "") -> None:
    """Prints the names that _dispatch_get_registrations_for_dispatch_key returns, one per line."""
    for name in _dispatch_get_registrations_for_dispatch_key(dispatch_key):
        print(name)


@_theirs
def _dispatch_has_backend_fallback(key: DispatchKey | str) -> bool:
    """Whether a backend fallback serves this key."""
    runtime = _key(key)
    if runtime.is_alias:
        return False
    runtime = _runtime(runtime)
    facts_of = _registry().dispatcher.facts
    return runtime in BUILTIN_FALLBACKS or facts_of.has(facts.FALLBACK, runtime, FALLBACK_NAME)


@_theirs
def _dispatch_pystub(name: str, overload: str) -> tuple[str, str] | None:
    """The Python module that an operator names for its fake kernel, and the context; None if it
    names none. RuntimeError for a text that cannot be a name.
    """
    full = str(_named(name, overload))
    fact = _registry().dispatcher.facts.find(facts.PYSTUB, 0, full)
    if fact is None:
        return None
    module, _, context = fact.body.partition("\n")
    return module, context


class _DispatchOperatorHandle:
    """A handle of one definition of an operator."""

    def __init__(self, registry: Registry, name: OperatorName) -> None:
        self._operator = OpOverload(registry.dispatcher, str(name))
        self._name = str(name)
        self._registry = registry

    @_theirs
    def schema(self) -> FunctionSchema:
        """The schema. RuntimeError when the definition was closed."""
        return FunctionSchema(self._operator.schema)

    @_theirs
    def debug(self) -> str:
        """The location of its registration. RuntimeError when the definition was closed."""
        self._operator.schema  # noqa: B018  # raises when it is gone
        with using(self._registry):
            fact = next(fact for fact in _found(self._name) if fact.kind == facts.DEF)
        return _debug_of(fact)

    @_theirs
    def redispatch_boxed(self, key_set: keys.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        """A call by the table with just this key set. RuntimeError where it is refused."""
        return self._operator.redispatch(key_set, *args, **kwargs)


@_theirs
def _dispatch_find_schema_or_throw(name: str, overload_name: str) -> _DispatchOperatorHandle:
    """The handle of an operator that is defined. RuntimeError when it is not."""
    full = _named(name, overload_name)
    there = _found(str(full))
    if not any(fact.kind == facts.DEF for fact in there):
        hint = "; it has kernels, but no definition" if there else ""
        raise InvalidArgumentError(f"there is no schema for {full}{hint}")
    return _DispatchOperatorHandle(_registry(), full)


@_theirs
def _dispatch_call_boxed(handle: _DispatchOperatorHandle, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator by its handle. RuntimeError where the call is refused; errors of kernels
    pass through.
    """
    if not isinstance(handle, _DispatchOperatorHandle):
        raise TypeError(f"this takes the handle of an operator, not {shown(handle)}")
    return handle._operator(*args, **kwargs)


# --- resolving calls ------------------------------------------------------------------------------


@_theirs
def _dispatch_get_computed_kernel_for_dispatch_key(
    name: str, dispatch: DispatchKey | str
) -> ComputedKernel:
    """The kernel in the slot of a runtime key, to be called with ``call_boxed(key_set, ...)``.

    RuntimeError for an operator that does not exist, for an alias key, and where no kernel is in
    the slot. A slot that falls through has nothing to call and raises, too.
    """
    return get_kernel(_text(name), _key(dispatch), registry=_registry())


@_theirs
def key_extractor(tensors: Iterable[object], key_mask: keys.DispatchKeySet) -> DispatchKeySet:
    """The key set of a call with these values, limited to ``key_mask``: their keys and those that
    this thread includes, without those that it excludes. TypeError for a value without keys.
    """
    key_set = guards.included_keys()
    for tensor in tensors:
        key_set = key_set | _keys_of(tensor)
    return _compat((key_set - guards.excluded_keys()) & _key_set(key_mask))


@_theirs
def resolve_key(op: OpOverload | HigherOrderOperator, k: DispatchKey | str) -> DispatchKey:
    """The key whose kernel, or Python kernel, serves a key: the key itself or an alias key. Where a
    backend fallback serves it, the key itself.

    RuntimeError where it cannot be decided, NotImplementedError where nothing serves the key.
    """
    key = _key(k)
    if op.has_kernel_for_dispatch_key(key):
        return key
    if not key.is_alias:
        if isinstance(op, OpOverload):
            table = op.rules.merged(op.entry.current(op.generation)[0])
        else:
            table = op.rules.table()
        slot = table.entries[keys.table_index(key)]
        if slot.reason == "backend fallback":
            return key
        if slot.reason == "ambiguous autogradother":
            raise AmbiguousKernelError(
                f"{op.name} has a composite kernel and one of a backend behind AutogradOther: it "
                "is not known which of them is meant",
                op.name,
                key.name,
                [each.name for each in table.kernels],
            )
        for place, kernel in table.kernels.items():
            if kernel is slot.kernel and _serves(place, key):
                return place
    raise MissingKernelError(
        f"{op.name} has nothing that serves {key}",
        op.name,
        key.name,
        [each.name for each in op.py_kernels],
    )


def _serves(place: DispatchKey, key: DispatchKey) -> bool:
    return key is DispatchKey.Undefined or keys.is_included_in_alias(key, place)

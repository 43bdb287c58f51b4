"""What must hold between the registrations, this interpreter's callables and the tables kept from
both.

Checks recompute: the table from registrations and callables, by the code that calls rely on, and
each of its entries by the rules, one key at a time. (c10: OperatorEntry::checkInvariants,
Dispatcher::checkInvariants)
"""

from __future__ import annotations

from .. import facts
from ..keys.numbers import RUNTIME_KEYS, DispatchKey
from .by_type import ByType, same_name
from .kernels import C_LABEL, METHOD_LABEL, LocalKernel, OneOfSeveral
from .pairing import AbsentKernel, table_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..facts import Registration
    from .pairing import Choosing, Here
    from .table import DispatchTable


def faults_of_facts(
    name: str, there: list[Registration], here: Here, registers_all: bool
) -> Iterator[str]:
    """The faults of the registrations of one operator, and of the callables beside them.

    ``registers_all`` says that this interpreter has registered every registration, so that each
    callable has one.
    """
    from ..schema import parse_schema

    definitions = [f for f in there if f.kind == facts.DEF]
    if len(definitions) > 1:
        yield f"it is defined {len(definitions)} times"
    for fact in definitions:
        parsed = parse_schema(fact.body)
        if str(parsed) != fact.body or str(parsed.name) != name:
            yield f"its schema {fact.body!r} is not canonical, or that of another operator"
    if [f.seq for f in there] != sorted({f.seq for f in there}):
        yield "its registrations are not in the order of their numbers"
    live = {(f.key, f.seq) for f in there if f.kind == facts.IMPL}
    for key, kernels in here.items():
        for kernel in kernels:
            if same_name(kernel.types, kernels):
                yield f"two classes of one name choose between the kernels at {key}"
            if registers_all and (key, kernel.seq) not in live:
                yield f"{kernel!r} is here without its registration, number {kernel.seq}"


def faults_of_table(
    kept: DispatchTable | None,
    there: list[Registration],
    here: Here,
    fallbacks_there: list[Registration],
    fallbacks_here: Here,
    choosing: Choosing | None = None,
) -> Iterator[str]:
    """The faults of a table. A new one is compared with the rules; the one that is kept, if it is
    current, with the new one.
    """
    table = table_of(there, here, fallbacks_there, fallbacks_here, None, choosing)
    yield from table.faults()
    if kept is None:
        return
    if (kept.mask, kept.backend_masks) != (table.mask, table.backend_masks):
        yield "the masks that calls use are not those of its kernels"
    for key, one, other in zip(RUNTIME_KEYS, kept.entries, table.entries, strict=True):
        if one.reason != other.reason or _shown(one.kernel) != _shown(other.kernel):
            yield (
                f"at {key} calls use {one.kernel!r} ({one.reason}), the registrations give "
                f"{other.kernel!r} ({other.reason})"
            )
    for key in DispatchKey:
        exact, given = kept.at(key), table.at(key)
        if _shown(exact) != _shown(given):
            yield f"at exactly {key} calls find {exact!r}, the registrations give {given!r}"


def _shown(kernel: object) -> object:
    """What two tables of the same registrations have in common at an entry: the callable, or the
    registration that has no callable here. Each table has kernels of its own of what is made by
    labels, and for what decides between kernels.
    """
    if isinstance(kernel, OneOfSeveral):
        return kernel.only, *map(_shown, kernel.kernels)
    if isinstance(kernel, ByType):
        return tuple(map(_shown, kernel.kernels))
    if isinstance(kernel, AbsentKernel):
        return kernel.fact
    if isinstance(kernel, LocalKernel) and kernel.label.startswith((C_LABEL, METHOD_LABEL)):
        return kernel.seq, kernel.label, getattr(kernel, "direct", None)
    return kernel

"""Pairs facts with callables of this interpreter, and computes a table from the pairs.

The registry knows which kernels exist; this interpreter has callables for some of them. Everything
here is a pure function of the two, so a table can always be thrown away and computed again. The
first call of an operator loads this file.
"""

from __future__ import annotations

import sys

from .. import errors, facts
from ..facts.modules import missing_fake, modules_bringing
from ..keys import DispatchKeySet, is_included_in_alias
from ..keys.numbers import DispatchKey, table_index
from . import handlers
from .context.transforms import FRONT
from .kernels import C_LABEL, FALLTHROUGH, LocalKernel, fallthrough_kernel
from .table import DispatchTable, compute_table, fallback_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..facts import Registration
    from ..facts.abc import Facts

    Here = dict[DispatchKey, list[LocalKernel]]

__all__ = ["BUILTIN_FALLBACKS", "AbsentKernel", "active", "missing", "missing_at"]
__all__ += ["pair", "table_of"]


_ALIASES = tuple(key for key in DispatchKey.__members__.values() if key.is_alias)


class AbsentKernel:
    """A kernel of the registry for which this interpreter has no callable."""

    __slots__ = ("fact", "is_fallthrough")

    def __init__(self, fact: Registration) -> None:
        self.fact = fact
        self.is_fallthrough = fact.body == FALLTHROUGH

    def __repr__(self) -> str:
        return f"<kernel {self.fact.body} at {DispatchKey(self.fact.key).name}, not loaded here>"


def _builtin_fallbacks() -> dict[DispatchKey, LocalKernel]:
    """The fallback that serves a key until somebody registers another.

    The keys of Python and of transforms have the fallbacks of dispatch/handlers.py. Other keys are
    carried by values or added by threads, and need only the kernel below: they fall through.

    PyTorch registers the same for these keys at its start, or a fallback that has no effect on
    values without gradients. It does not for AutogradHIP, AutogradIPU, AutogradVE,
    AutogradPrivateUse2 and 3, and AutogradNestedTensor; so neither does mdispatch.
    """
    names = ["BackendSelect", "ADInplaceOrView", "AutogradOther"]
    names += [
        f"Autograd{backend}"
        for backend in ("CPU", "CUDA", "XLA", "MPS", "XPU", "HPU", "Lazy", "MTIA", "MAIA")
    ]
    names += ["AutogradPrivateUse1", "AutogradMeta"]
    found = {key: LocalKernel(key, fallthrough_kernel) for key in map(DispatchKey.parse, names)}
    for key, function, label in (
        (DispatchKey.Python, handlers.python_fallback, "modes_and_types"),
        (DispatchKey.PythonTLSSnapshot, handlers.snapshot_fallback, "keys_on_entry"),
        (DispatchKey.PreDispatch, handlers.pre_dispatch_fallback, "pre_dispatch_modes"),
        (FRONT, handlers.transform_fallback, "transforms"),
        (DispatchKey.PythonDispatcher, handlers.dispatcher_fallback, "python_kernels"),
    ):
        label = "mdispatch." + label
        found[key] = LocalKernel(key, function, with_keyset=True, label=label)
    return found


BUILTIN_FALLBACKS = _builtin_fallbacks()
_BUILTIN_ENTRIES = fallback_entries(BUILTIN_FALLBACKS)


def pair(there: list[Registration], here: list[LocalKernel]) -> LocalKernel | AbsentKernel | None:
    """The kernel that is active at one key: the newest fact's callable.

    A callable belongs to the fact it was registered with (main interpreter, and what a fork got
    from it), else, where others register, to a fact of its label, else to the first fact that is
    left: the order of imports is the same everywhere. A pure function of both lists, so nothing has
    to be kept in step when the main interpreter closes or registers again.
    """
    if not there:
        return None
    newest = there[-1]
    for kernel in here:
        if abs(kernel.seq) == newest.seq:  # by the first rule, whatever comes of the others
            return kernel
    left = list(here)
    chosen: dict[int, LocalKernel] = {}
    rules: tuple[Callable[[Registration, LocalKernel], bool], ...] = (
        lambda fact, kernel: abs(kernel.seq) == fact.seq,
        lambda fact, kernel: kernel.seq <= 0 and kernel.label == fact.body,
        lambda fact, kernel: kernel.seq <= 0,
    )
    for belongs in rules:
        for fact in there:
            if fact.seq in chosen:
                continue
            match = next((kernel for kernel in left if belongs(fact, kernel)), None)
            if match is not None:
                chosen[fact.seq] = match
                left.remove(match)
    return chosen.get(newest.seq) or AbsentKernel(newest)


def active(
    there: Sequence[Registration], kind: int, here: Here, more: Callable[[], Here] | None = None
) -> dict[DispatchKey, LocalKernel | AbsentKernel]:
    """The active kernel of each key that has facts of this kind, which come oldest first.

    ``more`` is asked for all callables when ``here`` has none that was registered with a fact.
    """
    newest = {fact.key: fact for fact in there if fact.kind == kind}  # keys are their numbers
    found: dict[DispatchKey, LocalKernel | AbsentKernel] = {}
    for number, fact in newest.items():
        seq = fact.seq
        for kernel in here.get(number, ()):  # type: ignore[call-overload]
            if kernel.seq == seq or kernel.seq == -seq:  # as pair would find it
                found[kernel.key] = kernel
                break
        else:
            if more is not None:
                here, more = more(), None
            key = DispatchKey(number)
            its = [each for each in there if each.key == number and each.kind == kind]
            paired = pair(its, here.get(key, []))
            if paired is not None:
                found[key] = paired
    return found


def table_of(
    there: Sequence[Registration],
    here: Here,
    fallbacks_there: Sequence[Registration],
    fallbacks_here: Here,
    more: Callable[[], Here] | None = None,
) -> DispatchTable:
    """The table of an operator with these facts and callables; ``more`` as for :func:`active`."""
    kernels = active(there, facts.IMPL, here, more)
    fallbacks = active(fallbacks_there, facts.FALLBACK, fallbacks_here)
    if not fallbacks:  # as nearly always
        return compute_table(kernels, BUILTIN_FALLBACKS, _BUILTIN_ENTRIES)
    return compute_table(kernels, {**BUILTIN_FALLBACKS, **fallbacks})


def missing(
    registry: Facts, name: str, table: DispatchTable, raw: int
) -> errors.MissingKernelError:
    """Why a key set leads to no kernel, and which keys would."""
    key = DispatchKeySet.from_raw(raw).highest_priority()
    slot = table.entries[table_index(key)]
    available, listed = _kernels(table)
    if slot.is_fallthrough and key is not DispatchKey.Undefined:
        return errors.MissingKernelError(
            f"{name} falls through at {key.name} ({slot.reason}): calls skip such a key, but a "
            "redispatch uses its key set as given\nTake the key out of the set: "
            f"key_set.remove({key.name!r}).",
            name,
            key.name,
            available,
        )
    absent = slot.kernel.fact if isinstance(slot.kernel, AbsentKernel) else None
    if key is DispatchKey.Meta and (absent is not None or slot.kernel is None):
        brings = modules_bringing(registry, absent) if absent is not None else []
        return missing_fake(registry, name, available, listed, absent, *brings[-1:])
    if absent is not None and not slot.is_fallthrough:
        return _not_here(registry, name, absent, key, available)
    if slot.reason == "ambiguous autogradother":
        return errors.AmbiguousKernelError(
            f"{name} has kernels at CompositeImplicitAutograd and at a backend behind "
            "AutogradOther: mdispatch cannot decide which of them runs\n  kernels at: "
            f"{listed}\nRegister one at AutogradOther.",
            name,
            key.name,
            available,
        )
    if key is DispatchKey.Undefined:
        what = f"{name} has no kernel for a call without dispatch keys"
        where = (
            "CompositeExplicitAutograd or CompositeImplicitAutograd, which also serve calls "
            "without keys"
        )
    else:
        what = f"{name} has no kernel that serves {key.name}"
        served = any(is_included_in_alias(key, alias) for alias in _ALIASES)
        where = f"{key.name}, or at an alias key that stands for it" if served else key.name
        if is_included_in_alias(key, DispatchKey.CompositeExplicitAutograd):
            where += " (CompositeExplicitAutograd for every backend)"
    return errors.MissingKernelError(
        f"{what}\n  kernels at: {listed}\nRegister one at {where}.", name, key.name, available
    )


def _kernels(table: DispatchTable) -> tuple[list[str], str]:
    """The keys of the kernels that could run here, and all keys in words."""
    here = [
        key.name for key, kernel in table.kernels.items() if not isinstance(kernel, AbsentKernel)
    ]
    listed = (
        key.name if key.name in here else f"{key.name} (not loaded here)" for key in table.kernels
    )
    return here, ", ".join(listed) or "none"


def _not_here(
    registry: Facts,
    name: str,
    fact: Registration,
    key: DispatchKey,
    available: list[str],
) -> errors.LocalKernelMissingError:
    modules = modules_bringing(registry, fact)
    module = modules[0] if modules else ""
    advice = "Import that module here too."
    if modules:
        allowed = ", ".join(map(repr, modules))
        advice = f"Import {module} here too, or let calls do it: allow_imports({allowed})."
    lacks = "this interpreter has not imported the module that registers it"
    if module in sys.modules:
        lacks = f"{module}, which is imported here, did not register it"
        advice = "A module must register the same everywhere: warm_up tells all that differs."
    if fact.body.startswith(C_LABEL):
        lacks = "this process has not loaded the library that contains it"
        advice = "Load it in any interpreter of this process: ops.load_library(path)."
    if len(modules) > 1:
        advice = f"The operator names {module}, and {modules[1]} registered the kernel. {advice}"
    return errors.LocalKernelMissingError(
        f"{name} has a kernel at {DispatchKey(fact.key).name} ({fact.body}), but {lacks}\n"
        f"  registered at {fact.where} by pid {fact.pid}\n{advice}",
        name,
        key.name,
        available,
        where=fact.where,
        module=module,
    )


def missing_at(
    registry: Facts, name: str, table: DispatchTable, key: DispatchKey
) -> errors.MissingKernelError:
    """Why nothing can be called for just this key."""
    available, listed = _kernels(table)
    kernel = table.at(key)
    if isinstance(kernel, AbsentKernel) and not kernel.is_fallthrough:
        return _not_here(registry, name, kernel.fact, key, available)
    what = "falls through" if kernel is not None else "has neither a kernel nor a fallback"
    return errors.MissingKernelError(
        f"{name} {what} at exactly {key.name}\n  kernels at: {listed}\n"
        "Redispatch with a key set to reach the kernels of alias keys.",
        name,
        key.name,
        available,
    )

"""``torch.ops`` finds the operators of mdispatch: those of the default registry are operators of
PyTorch from their definition on.

An operator is exported when somebody asks PyTorch for it: a program that a compiler has traced, a
saved program that is loaded, ``torch.ops.ns.name`` in the code of a user. So a definition costs
nothing more, and it makes no difference which calls came before. PyTorch's class of namespaces is
changed once in a process; it comes here where it has no operator of a name.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..errors import MdispatchError, OperatorGoneError
from ..registry.registry import opened_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..dispatch.operators import OpOverload


def begin() -> None:
    """From now on. Idempotent."""
    namespace: Any = sys.modules["torch._ops"]._OpNamespace
    its_own = namespace.__getattr__
    if getattr(its_own, "asks_mdispatch", False):
        return

    def find(self: Any, name: str) -> Any:
        try:
            return its_own(self, name)
        except AttributeError as error:
            if name.startswith("__") or not name.isidentifier():
                raise
            refused = export_all(f"{self.name}::{name}")
            if refused is None:
                raise
            if refused:
                raise AttributeError(f"{error}\n{refused[0]}") from refused[0]
        vars(self).pop(name, None)  # a packet that knows the overloads exported before it
        return its_own(self, name)

    find.asks_mdispatch = True  # type: ignore[attr-defined]
    namespace.__getattr__ = find


def export_all(name: str) -> list[MdispatchError] | None:
    """Exports the overloads of this name that have Tensor arguments. Returns the errors of those
    that PyTorch does not take, unless it has taken others; None where there are none.
    """
    registry = opened_default()
    if registry is None or "torch.library" not in sys.modules:
        return None
    # PyTorch asks for each name that somebody defines there, so this looks at no registration.
    found = [
        definition
        for definition in registry.dispatcher.listeners.definitions()
        if definition.name.partition(".")[0] == name
    ]
    if not found:
        return None
    from ..dispatch.keys_in_words import takes_tensors
    from ..dispatch.operators import OpOverload
    from .exported import exported, exporting

    if (get_ident(), name) in exporting:
        return None
    refused: list[MdispatchError] = []
    taken = 0
    for definition in filter(takes_tensors, found):
        try:
            exported(OpOverload(registry.dispatcher, definition.name))
            taken += 1
        except OperatorGoneError:
            continue
        except MdispatchError as error:
            refused.append(error)
    if taken:
        return []
    return refused or None


# --- __torch_function__ ---------------------------------------------------------------------------


def ask_arguments(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """The answer of ``__torch_function__``, in a tuple, for a call whose arguments are none of the
    operator's; None where no argument has one. So torch.fx traces operators with proxies.

    TorchExportError where PyTorch does not take the operator.
    """
    overrides: Any = sys.modules.get("torch.overrides")
    if overrides is None:
        return None
    leaves = sys.modules["torch"].utils._pytree.tree_leaves((args, kwargs))
    relevant = [each for each in leaves if hasattr(type(each), "__torch_function__")]
    if not overrides.has_torch_function(relevant):
        return None
    from .exported import exported

    function = exported(operator).overload
    return (overrides.handle_torch_function(function, relevant, *args, **kwargs),)

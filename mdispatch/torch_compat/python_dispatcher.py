"""A teaching tool that shows which kernel serves which key, for one operator and kernels of choice.

Four pairs of keys stand for the kinds of backends: CPU for those with autograd keys of their own,
FPGA for those that share AutogradOther, XLA and Lazy for those outside the tree. (PyTorch:
torch._python_dispatcher)
"""

from __future__ import annotations

from .. import torch_compat as C
from ..registry import default_registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..registry import Registry

__all__ = ["PythonDispatcher"]


class PythonDispatcher:
    """Defines ``__test__::foo`` in the default registry, or in ``registry``, and shows what
    registering kernels at some keys does to its table::

        dispatcher = PythonDispatcher()
        dispatcher.register(["CPU", "XLA", "CompositeImplicitAutograd"])
        print(dispatcher.dispatchTable())

    The definition and the kernels end with the object. RuntimeError while there is another one on
    the same registry. (torch: PythonDispatcher)
    """

    namespace = "__test__"
    name = "foo"
    runtime_keys = [  # noqa: RUF012  # lists there, too
        *("CPU", "AutogradCPU", "FPGA", "AutogradOther"),
        *("XLA", "AutogradXLA", "Lazy", "AutogradLazy"),
    ]
    alias_keys = ["CompositeExplicitAutograd", "Autograd", "CompositeImplicitAutograd"]  # noqa: RUF012
    supported_keys = runtime_keys + alias_keys

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry if registry is not None else default_registry()
        with C.using(self._registry):
            self.ref = C._dispatch_library("FRAGMENT", self.namespace, "")
        self.ref.def_(f"{self.name}(Tensor x) -> Tensor")

    def keys(self) -> list[str]:
        """The keys that kernels can be registered at here."""
        return self.supported_keys

    def register(self, dispatchKeys: Sequence[str]) -> None:  # their name
        """Registers a kernel ``fn_KEY`` at each of these keys.

        RuntimeError, before anything is registered, for a key that is none of :meth:`keys`, for a
        key given twice, and for CompositeImplicitAutograd beside CompositeExplicitAutograd:
        PyTorch's own operators must not have both.
        """
        keys = list(dispatchKeys)
        unknown = [key for key in keys if key not in self.supported_keys]
        if unknown:
            raise RuntimeError(f"{unknown[0]!r} is not one of the keys here: {self.supported_keys}")
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise RuntimeError(
                f"{', '.join(twice)} is there more than once: each key takes one kernel"
            )
        if {"CompositeImplicitAutograd", "CompositeExplicitAutograd"} <= set(keys):
            raise RuntimeError(
                "CompositeImplicitAutograd and CompositeExplicitAutograd together are not for "
                "PyTorch's operators: the second would hide the first"
            )
        with C.using(self._registry):
            for key in keys:
                self.ref.impl_t_t(self.name, dispatch=key, debug=f"fn_{key}")

    def rawRegistrations(self) -> str:  # their name
        """Everything that is registered for the operator."""
        with C.using(self._registry):
            return C._dispatch_dump(f"{self.namespace}::{self.name}")

    def rawDispatchTable(self) -> str:
        """The computed table with all its runtime keys."""
        with C.using(self._registry):
            return C._dispatch_dump_table(f"{self.namespace}::{self.name}")

    def registrations(self) -> str:
        """The registered kernels, runtime and alias keys, as a table for people."""
        lines = _title("Registered Kernels")
        for line in self.rawRegistrations().split("\n"):
            key, _, kernel = line.partition(": ")
            if key.removesuffix("[alias]") in self.supported_keys:
                lines += _line(key, kernel.partition(" ")[0])
        return lines

    def dispatchTable(self) -> str:
        """The computed table of the runtime keys of :meth:`keys`, for people."""
        lines = _title("Computed Dispatch Table")
        for line in self.rawDispatchTable().split("\n"):
            key, _, kernel = line.partition(": ")
            if key in self.runtime_keys:
                # A learner needs to see that a fallback serves the key, and not which one.
                is_fallback = kernel.endswith("[backend fallback]")
                lines += _line(key, "[backend fallback]" if is_fallback else kernel)
        return lines


def _title(text: str) -> str:
    return f"\n{text}\n{_line('key', 'kernel')}{'-' * 27}\n"


def _line(key: str, kernel: str) -> str:
    return f"{key:<15} {kernel}\n"

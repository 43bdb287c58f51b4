"""An operator registry and dispatcher for Python objects, shared by threads, interpreters and
processes.

The same module is imported everywhere. In the main interpreter its :class:`Library` registers
operators and kernels; in every other interpreter and process it verifies that the main one has
registered the same, and keeps its own kernels. ``ops.namespace.name(...)`` runs the kernel that the
arguments' dispatch keys select.
"""

from __future__ import annotations

from . import errors
from .errors import MdispatchError
from .registry import Registry, default_registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._kernels import fallthrough_kernel
    from ._observers import ObservedCall, observe_calls
    from ._registry import Registration
    from ._roles import DEFAULT_TIMEOUT
    from ._schema_infer import infer_schema
    from ._schema_names import OperatorName
    from ._tensor import Tensor
    from .aio import wait_for_def_async, wait_for_impl_async
    from .decorator import register_op
    from .guards import (
        AutoDispatchBelowAutograd,
        ExcludeDispatchKeyGuard,
        ForceDispatchKeyGuard,
        IncludeDispatchKeyGuard,
    )
    from .host import create_interpreter
    from .keys import DispatchKey, DispatchKeySet, rename_privateuse_backend
    from .library import Library
    from .operators import Namespace, OpOverload, OpOverloadPacket
    from .python_dispatcher import PythonDispatcher
    from .schema import FunctionSchema, parse_schema
    from .values import key_set_of, register_type
    from .waiting import wait_for_def, wait_for_impl
    from .warming import WarmUp, warm_up

__all__ = [
    "AutoDispatchBelowAutograd",
    "DEFAULT_TIMEOUT",
    "DispatchKey",
    "DispatchKeySet",
    "ExcludeDispatchKeyGuard",
    "ForceDispatchKeyGuard",
    "FunctionSchema",
    "IncludeDispatchKeyGuard",
    "Library",
    "MdispatchError",
    "ObservedCall",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorName",
    "PythonDispatcher",
    "Registration",
    "Registry",
    "Tensor",
    "WarmUp",
    "__version__",
    "create_interpreter",
    "default_registry",
    "errors",
    "fallthrough_kernel",
    "infer_schema",
    "is_main_interpreter",
    "key_set_of",
    "observe_calls",
    "ops",
    "parse_schema",
    "register_op",
    "register_or_verify",
    "register_type",
    "rename_privateuse_backend",
    "wait_for_def",
    "wait_for_def_async",
    "wait_for_impl",
    "wait_for_impl_async",
    "warm_up",
]

__version__ = "0.1.0"


def is_main_interpreter() -> bool:
    """Whether this interpreter is the one that registers in the default registry.

    That is the main interpreter of the process that created the registry; False in its
    sub-interpreters and in every process that found the registry through the environment. (PyTorch:
    isMainPyInterpreter)
    """
    return default_registry().is_main


def register_or_verify() -> str:
    """``"register"`` where this interpreter's registrations are made, ``"verify"`` where they are
    compared.

    (c10: _RegisterOrVerify)
    """
    return "register" if default_registry().is_main else "verify"


class _DefaultOps:
    """``mdispatch.ops``: the operators of the default registry, which is made or found at the first
    look.
    """

    def __getattr__(self, name: str) -> Namespace:
        namespace: Namespace = getattr(default_registry().ops, name)
        setattr(self, name, namespace)
        return namespace

    def __dir__(self) -> list[str]:
        _, _, there = default_registry()._facts.registrations()
        return sorted({fact.name.partition("::")[0] for fact in there if "::" in fact.name})

    def __repr__(self) -> str:
        return "<mdispatch.ops>"


ops = _DefaultOps()

# Where the other public names are: loaded when they are first asked for. A fresh interpreter that
# imports mdispatch pays for what it uses; the modules behind these are most of the package.
_HOME = {
    "AutoDispatchBelowAutograd": "guards",
    "DEFAULT_TIMEOUT": "_roles",
    "DispatchKey": "keys",
    "DispatchKeySet": "keys",
    "ExcludeDispatchKeyGuard": "guards",
    "ForceDispatchKeyGuard": "guards",
    "FunctionSchema": "schema",
    "IncludeDispatchKeyGuard": "guards",
    "Library": "library",
    "ObservedCall": "_observers",
    "OpOverload": "operators",
    "OpOverloadPacket": "operators",
    "OperatorName": "_schema_names",
    "PythonDispatcher": "python_dispatcher",
    "Registration": "_registry",
    "Tensor": "_tensor",
    "WarmUp": "warming",
    "create_interpreter": "host",
    "fallthrough_kernel": "_kernels",
    "infer_schema": "_schema_infer",
    "key_set_of": "values",
    "observe_calls": "_observers",
    "parse_schema": "schema",
    "register_op": "decorator",
    "register_type": "values",
    "rename_privateuse_backend": "keys",
    "wait_for_def": "waiting",
    "wait_for_def_async": "aio",
    "wait_for_impl": "waiting",
    "wait_for_impl_async": "aio",
    "warm_up": "warming",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'mdispatch' has no attribute {name!r}")
    # What a `from` statement does, with a computed name and without importlib.
    value: object = getattr(__import__(f"mdispatch.{home}", fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

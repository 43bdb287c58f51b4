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
    from ._autograd_context import AutogradContext
    from ._autograd_engines import register_autograd_engine
    from ._fakes import get_ctx
    from ._hermetic import SafeObject, hermetic
    from ._kernels import fallthrough_kernel
    from ._observers import ObservedCall, observe_calls
    from ._opcheck import opcheck
    from ._registry import Registration
    from ._roles import DEFAULT_TIMEOUT
    from ._schema_infer import infer_schema
    from ._schema_names import OperatorName
    from ._tensor import Tensor
    from .aio import wait_for_def_async, wait_for_impl_async
    from .autograd import register_autograd
    from .custom_ops import CustomOpDef, custom_op
    from .decorator import register_op
    from .fake import register_fake
    from .functions import (
        define,
        get_kernel,
        impl,
        register_autocast,
        register_dispatch_rule,
        register_kernel,
        register_vmap,
        scoped_library,
    )
    from .guards import (
        AutoDispatchBelowAutograd,
        ExcludeDispatchKeyGuard,
        ForceDispatchKeyGuard,
        IncludeDispatchKeyGuard,
        enable_python_dispatcher,
    )
    from .higher_order import HigherOrderOperator
    from .host import create_interpreter
    from .keys import DispatchKey, DispatchKeySet, rename_privateuse_backend
    from .library import Library
    from .meta import MetaTensor
    from .modes import DispatchMode, DispatchModeKey, disable_md_dispatch
    from .operators import Namespace, OpOverload, OpOverloadPacket
    from .pool import BrokenInterpreterPool, InterpreterPool
    from .pystub import python_module
    from .python_dispatcher import PythonDispatcher
    from .schema import FunctionSchema, parse_schema
    from .tape import Tape
    from .transforms import Transform, TransformType
    from .values import key_set_of, register_type
    from .waiting import wait_for_def, wait_for_impl
    from .warming import WarmUp, warm_up

__all__ = [
    "AutoDispatchBelowAutograd",
    "AutogradContext",
    "BrokenInterpreterPool",
    "CustomOpDef",
    "DEFAULT_TIMEOUT",
    "DispatchKey",
    "DispatchKeySet",
    "DispatchMode",
    "DispatchModeKey",
    "ExcludeDispatchKeyGuard",
    "ForceDispatchKeyGuard",
    "FunctionSchema",
    "HigherOrderOperator",
    "IncludeDispatchKeyGuard",
    "InterpreterPool",
    "Library",
    "MdispatchError",
    "MetaTensor",
    "ObservedCall",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorName",
    "PythonDispatcher",
    "Registration",
    "Registry",
    "SafeObject",
    "Tape",
    "Tensor",
    "Transform",
    "TransformType",
    "WarmUp",
    "__version__",
    "allow_imports",
    "create_interpreter",
    "custom_op",
    "default_registry",
    "define",
    "disable_md_dispatch",
    "enable_python_dispatcher",
    "errors",
    "fallthrough_kernel",
    "get_ctx",
    "get_kernel",
    "hermetic",
    "impl",
    "infer_schema",
    "is_main_interpreter",
    "key_set_of",
    "observe_calls",
    "opcheck",
    "ops",
    "parse_schema",
    "python_module",
    "register_autocast",
    "register_autograd",
    "register_autograd_engine",
    "register_dispatch_rule",
    "register_fake",
    "register_kernel",
    "register_op",
    "register_or_verify",
    "register_type",
    "register_vmap",
    "rename_privateuse_backend",
    "scoped_library",
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


def register_or_verify(namespace: str | None = None) -> str:
    """``"register"`` where this interpreter's registrations are made, ``"verify"`` where they are
    compared.

    Where the default registry has no main member (:meth:`Registry.elect`) that is decided for each
    ``namespace``, which must be given then: InvalidArgumentError. InvalidNameError for what is no
    namespace. (c10: _RegisterOrVerify)
    """
    registry = default_registry()
    if namespace is None and registry.elects:
        raise errors.InvalidArgumentError(
            f"registry {registry.address} has no main member: who registers is decided for each "
            "namespace; give one"
        )
    registers = registry.is_main if namespace is None else registry.registers(namespace)
    return "register" if registers else "verify"


def allow_imports(*modules: str) -> None:
    """Lets calls of this interpreter import modules whose kernels they need: see
    :meth:`Registry.allow_imports`, here of the default registry.
    """
    default_registry().allow_imports(*modules)


class _DefaultOps:
    """``mdispatch.ops``: the operators of the default registry, which is made or found at the first
    look.
    """

    def __getattr__(self, name: str) -> Namespace:
        namespace: Namespace = getattr(default_registry().ops, name)
        setattr(self, name, namespace)
        return namespace

    def __dir__(self) -> list[str]:
        return dir(default_registry().ops)

    def __repr__(self) -> str:
        return "<mdispatch.ops>"


ops = _DefaultOps()

# Where the other public names are: loaded when they are first asked for. A fresh interpreter that
# imports mdispatch pays for what it uses; the modules behind these are most of the package.
_HOME = {
    "AutoDispatchBelowAutograd": "guards",
    "AutogradContext": "_autograd_context",
    "BrokenInterpreterPool": "pool",
    "CustomOpDef": "custom_ops",
    "DEFAULT_TIMEOUT": "_roles",
    "DispatchKey": "keys",
    "DispatchKeySet": "keys",
    "DispatchMode": "modes",
    "DispatchModeKey": "modes",
    "ExcludeDispatchKeyGuard": "guards",
    "ForceDispatchKeyGuard": "guards",
    "FunctionSchema": "schema",
    "HigherOrderOperator": "higher_order",
    "IncludeDispatchKeyGuard": "guards",
    "InterpreterPool": "pool",
    "Library": "library",
    "MetaTensor": "meta",
    "ObservedCall": "_observers",
    "OpOverload": "operators",
    "OpOverloadPacket": "operators",
    "OperatorName": "_schema_names",
    "PythonDispatcher": "python_dispatcher",
    "Registration": "_registry",
    "SafeObject": "_hermetic",
    "Tape": "tape",
    "Tensor": "_tensor",
    "Transform": "transforms",
    "TransformType": "transforms",
    "WarmUp": "warming",
    "create_interpreter": "host",
    "custom_op": "custom_ops",
    "define": "functions",
    "disable_md_dispatch": "modes",
    "enable_python_dispatcher": "guards",
    "fallthrough_kernel": "_kernels",
    "get_ctx": "_fakes",
    "get_kernel": "functions",
    "hermetic": "_hermetic",
    "impl": "functions",
    "infer_schema": "_schema_infer",
    "key_set_of": "values",
    "observe_calls": "_observers",
    "opcheck": "_opcheck",
    "parse_schema": "schema",
    "python_module": "pystub",
    "register_autocast": "functions",
    "register_autograd": "autograd",
    "register_autograd_engine": "_autograd_engines",
    "register_dispatch_rule": "functions",
    "register_fake": "fake",
    "register_kernel": "functions",
    "register_op": "decorator",
    "register_type": "values",
    "register_vmap": "functions",
    "rename_privateuse_backend": "keys",
    "scoped_library": "functions",
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

"""An operator registry and dispatcher for Python objects, shared by threads, interpreters and
processes.

The same module is imported everywhere. In the main interpreter its :class:`Library` registers
operators and kernels; in every other interpreter and process it verifies that the main one has
registered the same, and keeps its own kernels. ``ops.namespace.name(...)`` runs the kernel that the
arguments' dispatch keys select.
"""

from __future__ import annotations

import sys

from . import errors
from .registry import Registry, default_registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: Said here: pyproject.toml reads this line. The changelog's first heading is the same.
__version__ = "0.2.0.dev0"


def is_main_interpreter() -> bool:
    """Whether this interpreter is the one that registers in the default registry.

    That is the main interpreter of the process that created the registry; False in its
    sub-interpreters and in every process that found the registry through the environment. Where the
    registry has no registrar for all namespaces, it is the interpreter that registers all that it
    imports: see :meth:`Registry.registers`. (PyTorch: isMainPyInterpreter)
    """
    return given_or_default(None).registers()


def register_or_verify(namespace: str | None = None) -> str:
    """``"register"`` where this interpreter's registrations are made, ``"verify"`` where they are
    compared.

    Where the default registry has no registrar for all namespaces (:meth:`Registry.elect`) that is
    decided for each namespace; without a ``namespace`` the answer is that of
    :func:`is_main_interpreter`. InvalidNameError for what is no namespace. (c10: _RegisterOrVerify)
    """
    return "register" if given_or_default(None).registers(namespace) else "verify"


def allow_imports(*modules: str) -> None:
    """Lets calls of this interpreter import modules whose kernels they need: see
    :meth:`Registry.allow_imports`, here of the default registry.
    """
    given_or_default(None).allow_imports(*modules)


# Where the other public names are: loaded when they are first asked for. A fresh interpreter that
# imports mdispatch pays for what it uses; the modules behind these are most of the package. Type
# checkers read __init__.pyi, which a test compares with this file.
_LATE = {
    "authoring.autograd": "register_autograd",
    "authoring.autograd.engines": "register_autograd_engine",
    "authoring.autograd.node": "AutogradContext",
    "authoring.custom_op": "CustomOpDef custom_op",
    "authoring.fake": "python_module register_fake",
    "authoring.functions": (
        "define get_kernel impl register_autocast register_dispatch_rule register_kernel "
        "register_op register_vmap scoped_library"
    ),
    "authoring.infer": "infer_schema",
    "authoring.meta": "MetaTensor",
    "authoring.opcheck.check": "opcheck",
    "dispatch.annotations": "Tensor",
    "dispatch.context.guards": (
        "AutoDispatchBelowAutograd ExcludeDispatchKeyGuard ForceDispatchKeyGuard "
        "IncludeDispatchKeyGuard enable_python_dispatcher"
    ),
    "dispatch.context.hermetic": "SafeObject hermetic",
    "dispatch.context.modes": "DispatchMode DispatchModeKey disable_md_dispatch",
    "dispatch.context.observers": "ObservedCall observe_calls",
    "dispatch.context.transforms": "Transform TransformType",
    "dispatch.context.values": "key_set_of register_type",
    "dispatch.higher_order": "HigherOrderOperator",
    "dispatch.kernels": "fallthrough_kernel",
    "dispatch.operators": "OpOverload OpOverloadPacket",
    "dispatch.routing": "allow_routing routing",
    "dispatch.serving": "cancelled",
    "errors.classes": "MdispatchError",
    "facts": "Registration",
    "keys": "DispatchKey DispatchKeySet rename_privateuse_backend",
    "registry.choosing": "choose",
    "registry.classes": "register_class",
    "registry.default_ops": "ops",
    "registry.fake_kernels": "get_ctx",
    "registry.library": "Library",
    "registry.priorities": "next_provider priority set_priority",
    "registry.provider_counts": "count_providers",
    "registry.sealing": "seal",
    "registry.sharing": "ObjectHandle share",
    "registry.verify": "DEFAULT_TIMEOUT",
    "registry.waiting": "wait_for_def wait_for_impl",
    "registry.waiting_async": "choose_async wait_for_def_async wait_for_impl_async",
    "schema": "FunctionSchema parse_schema",
    "schema.names": "OperatorName",
    "torch_compat.python_dispatcher": "PythonDispatcher",
    "workers.interpreters": "create_interpreter",
    "workers.pool": "BrokenInterpreterPool InterpreterPool",
    "workers.initializer": "initializer",
    "workers.warm_up": "WarmUp warm_up",
}
#: The public names that are here already.
_EARLY = (
    "Registry __version__ allow_imports default_registry errors is_main_interpreter "
    "register_or_verify"
)


# Modules that users know by another path than the one they lie at: the same module by both.
_MOVED = {
    "torch": "authoring.torch",
    "python_dispatcher": "torch_compat.python_dispatcher",
    "telemetry": "workers.telemetry",
    "warming": "workers.warm_up",
    "pool": "workers.pool",
    "host": "workers.interpreters",
    "autograd": "authoring.autograd",
    "meta": "authoring.meta",
    "pystub": "authoring.fake",
    "fake": "authoring.fake",
    "custom_ops": "authoring.custom_op",
    "decorator": "authoring.functions",
    "functions": "authoring.functions",
    "aio": "registry.waiting_async",
    "waiting": "registry.waiting",
    "choices": "registry.choices",
    "library": "registry.library",
    "transforms": "dispatch.context.transforms",
    "modes": "dispatch.context.modes",
    "guards": "dispatch.context.guards",
    "values": "dispatch.context.values",
    "higher_order": "dispatch.higher_order",
    "operators": "registry.ops",
}


class _Moved:
    """Finds and loads the modules of ``_MOVED`` by the paths that users know."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if package != __name__ or module not in _MOVED:
            return None
        return type(__spec__)(name, _Moved)  # type: ignore[arg-type]  # duck typed

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        # What is found here afterwards is what the import gives.
        place = _MOVED[module.__name__.rpartition(".")[2]]
        sys.modules[module.__name__] = __import__(f"{__name__}.{place}", fromlist=["__name__"])


sys.meta_path.append(_Moved)


def _public_names() -> list[str]:
    return sorted(" ".join([_EARLY, *_LATE.values()]).split())


def __getattr__(name: str) -> object:
    value: object
    for home, names in _LATE.items():
        if name in names.split():
            # What a `from` statement does, with a computed name and without importlib.
            value = getattr(__import__(f"mdispatch.{home}", fromlist=[name]), name)
            break
    else:
        if name in _MOVED:
            return __import__(f"mdispatch.{name}", fromlist=["__name__"])
        if name != "__all__":
            raise AttributeError(f"module 'mdispatch' has no attribute {name!r}")
        value = _public_names()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})

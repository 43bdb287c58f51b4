"""An operator registry and dispatcher for Python objects, shared by threads, interpreters and
processes.

The same module is imported everywhere. In the main interpreter its :class:`Library` registers
operators and kernels; in every other interpreter and process it verifies that the main one has
registered the same, and keeps its own kernels. ``ops.namespace.name(...)`` runs the kernel that the
arguments' dispatch keys select.
"""

from __future__ import annotations

import sys

from . import errors, forking, seam
from .registry import Registry, default_registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
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


# The homes of the points of the seam: see seam.py.
_POINTS = {
    "a class of a library in C": "across.class_facts:declare_c_class",
    "impl(serve=)": "across.serving:Offering",
    "kernels of methods": "across.methods:with_methods",
    "the offers of a kernel": "across.routing:offers",
    "the ways of a call": "across.routing:way",
    "traces of calls": "across.serving:trace_with",
    "a handle for an object of a class": "across.sharing:if_of_class",
    "a handle of an object": "across.sharing:handle_of",
    "an array of its memory": "across.arrays:array_of",
    "an object from its text": "across.by_value:decoded",
    "the memory of an array": "across.arrays:memory_of",
    "the text of an object": "across.by_value:encoded",
    "a registry at an address": "cluster.joining:joined",
    "braces in an address": "editions.joining:replaced",
    "a registry with an edition": "editions.joining:notice",
    "the end of a warm-up": "editions.joining:compare",
    "an edition beside another one": "editions.living:tell",
    "the differences of two editions": "editions.living:compare",
    "the registrations of a member": "observing.registry:backing",
    "a member that observes has joined": "observing.alone:joined",
    "a registration of a member that keeps its own": "observing.alone:registered_or_verified",
    "a difference": "observing.alone:goes_on",
    "the differences of a warm-up": "observing.alone:warmed_up",
    "all that is registered": "observing.alone:registered_by_all",
    "a difference that one call meets": "observing.alone:goes_on_alone",
    "an error in the initializer of a pool": "pool.refusal:answer_tasks_if_unhandled",
    "agree": "choices.agreeing:agree",
    "the differences of two values": "choices.looking:value_differences",
    "a roll call that differs": "observing.alone:raises_in_roll_calls",
    "the match of a registry": "observing.matching:ask",
    "a definition among others that match": "observing.matching:tell_variant",
    "what a member lacks": "observing.matching:lacking",
    "a pickle of another version": "observing.matching:takes",
    "what breaks between two versions": "editions.comparing:breaking",
    "how this host stands": "cluster.hosts:told",
    "whether this host leads": "cluster.hosts:leads",
    "a wait": "cluster.hosts:await_fact",
    "impl(provider=)": "providers.chain:checked_provider",
    "a kernel by name": "providers.chain:by_name",
    "why a provider is not available": "providers.later:lacks_here",
    "entry points of providers": "providers.later:register_all",
    "a choice among kernels": "providers.chain:Chooser",
    "Library(torch=True)": "torch.exported:held",
    "an operator in PyTorch": "torch.exported:exported",
    "torch.ops": "torch.found:begin",
    "classes in PyTorch": "torch.opaque:tell",
    "__torch_function__": "torch.found:ask_arguments",
    "a rule of PyTorch's vmap": "torch.vmap_rules:VmapRule",
    "keys of a tensor": "torch.keys:TorchKeys",
    "whether PyTorch wants a call": "torch.side:is_wanted",
    "which calls PyTorch may want": "torch.side:gate_of",
    # The kinds of registrations that features have: facts/kinds.py.
    "kind 8": "torch.kind:KIND",
    "kind 10": "providers.kind:KIND",
    "kind 11": "across.kind:KIND",
    "kind 18": "observing.kinds:VARIANTS",
    "kind 19": "choices.kind:VALUES",
    "kind 24": "choices.kind:CHOICES",
    "kind 25": "observing.kinds:MATCHES",
    "kind 26": "choices.kind:KEPT_VALUES",
}

# Where the other public names are: loaded when they are first asked for. A fresh interpreter that
# imports mdispatch pays for what it uses; the modules behind these are most of the package. Type
# checkers read __init__.pyi, which a test compares with this file.
_LATE = {
    # The core.
    "dispatch.annotations": "Tensor",
    "dispatch.context.hermetic": "SafeObject hermetic",
    "dispatch.context.observers": "ObservedCall observe_calls",
    "dispatch.context.values": "is_tensor key_set_of register_type",
    "dispatch.higher_order": "HigherOrderOperator find_higher_order higher_order_names",
    "dispatch.kernels": "fallthrough_kernel",
    "dispatch.operators": "OpOverload OpOverloadPacket",
    "errors.classes": "MdispatchError",
    "facts": "Registration",
    "keys": "DispatchKey DispatchKeySet rename_privateuse_backend",
    "registry.default_ops": "ops",
    "registry.fake_kernels": "get_ctx",
    "registry.library": "Library",
    "registry.verify": "DEFAULT_TIMEOUT",
    "registry.waiting": "wait_for_def wait_for_impl",
    "registry.waiting_async": "wait_for_def_async wait_for_impl_async",
    "schema": "FunctionSchema parse_schema",
    "schema.names": "OperatorName",
    # The features: each is a folder that can be left out.
    "across.calling_async": "call_async",
    "across.classes": "register_class",
    "across.routing": "allow_routing routing",
    "across.serving": "Serve cancelled",
    "across.sharing": "ObjectHandle share",
    "choices.agreeing": "agree",
    "choices.choosing": "choose",
    "choices.roll_call": "roll_call",
    "choices.steps": "agreeing",
    "choices.choosing_async": "choose_async",
    "cluster.sealing": "seal",
    "providers.counts": "count_providers",
    "providers.priorities": "call_all next_provider priority set_priority",
    # Above both.
    "authoring.autograd": "AutogradCall AutogradNode needs_grad register_autograd",
    "authoring.autograd.engines": "register_autograd_engine",
    "authoring.autograd.node": "AutogradContext",
    "authoring.custom_op": "CustomOpDef custom_op",
    "authoring.functions": (
        "define get_kernel impl register_autocast register_dispatch_rule register_kernel "
        "register_op register_vmap scoped_library"
    ),
    "authoring.infer": "infer_schema",
    "authoring.meta": "MetaTensor empty_like fake_call",
    "authoring.opcheck.check": "opcheck",
    "fake": "python_module register_fake",
    "pool.executor": "BrokenInterpreterPool InterpreterPool",
    "torch_compat.python_dispatcher": "PythonDispatcher",
    "workers.initializer": "initializer",
    "pool.interpreters": "OWN_GIL ExecutionFailedError create_interpreter",
    "workers.warm_up": "WarmUp warm_up",
}
# The public modules that the names above do not come from by themselves.
_MODULES = (
    "choices cluster config context fake keys pool registry schema telemetry torch torch_compat"
)
seam.homes.update(_POINTS)

# Calls may load these, so they are there before the first fork: see forking.py.
forking.parts += ("across", "authoring", "choices", "cluster/hosts.py", "cluster/sealing.py")
forking.parts += ("fake.py", "providers", "torch")
forking.apart |= {"across.calling_async", "choices.choosing_async"}
if sys.platform != "linux":  # no other system has these
    forking.apart |= {f"across.transports.{name}" for name in ("host", "messages", "place")}

#: The public names that are here already.
_EARLY = (
    "Registry __version__ allow_imports default_registry errors is_main_interpreter "
    "register_or_verify"
)


def _is_here(module: str) -> bool:
    """Whether the folder or the file that holds this module of the package is installed."""
    from importlib.util import find_spec

    return find_spec(f"{__name__}.{module.partition('.')[0]}") is not None


def _public_names() -> list[str]:
    there = [names for module, names in _LATE.items() if _is_here(module)]
    return sorted(" ".join([_EARLY, *there]).split())


def _late(module: str, name: str) -> ModuleType:
    # What a `from` statement does, with a computed name and without importlib.
    try:
        return __import__(f"{__name__}.{module}", fromlist=[name])
    except ModuleNotFoundError as error:
        feature = f"{__name__}.{module.partition('.')[0]}"
        if error.name != feature:
            raise
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r} here: {feature} is not installed"
        ) from None


def __getattr__(name: str) -> object:
    value: object
    for module, names in _LATE.items():
        if name in names.split():
            value = getattr(_late(module, name), name)
            break
    else:
        if name in _MODULES.split():
            return _late(name, name)
        if name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = _public_names()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    modules = [name for name in _MODULES.split() if _is_here(name)]
    return sorted([name for name in globals() if name[:2] == "__"] + _public_names() + modules)

# What type checkers read in place of __init__.py, which has most names in a table by which it loads
# them late. A module stands here where the documentation names its path and no file lies there.
# tests/project/test_structure.py compares the two.

from . import autograd as autograd
from . import choices as choices
from . import custom_ops as custom_ops
from . import errors
from . import fake as fake
from . import functions as functions
from . import guards as guards
from . import higher_order as higher_order
from . import host as host
from . import library as library
from . import meta as meta
from . import modes as modes
from . import operators as operators
from . import pool as pool
from . import pystub as pystub
from . import telemetry as telemetry
from . import torch as torch
from . import transforms as transforms
from . import values as values
from . import warming as warming
from .authoring.autograd import register_autograd
from .authoring.autograd.engines import register_autograd_engine
from .authoring.autograd.node import AutogradContext
from .authoring.custom_op import CustomOpDef, custom_op
from .authoring.fake import python_module, register_fake
from .authoring.functions import (
    define,
    get_kernel,
    impl,
    register_autocast,
    register_dispatch_rule,
    register_kernel,
    register_op,
    register_vmap,
    scoped_library,
)
from .authoring.infer import infer_schema
from .authoring.meta import MetaTensor
from .authoring.opcheck.check import opcheck
from .dispatch.annotations import Tensor
from .dispatch.context.guards import (
    AutoDispatchBelowAutograd,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    enable_python_dispatcher,
)
from .dispatch.context.hermetic import SafeObject, hermetic
from .dispatch.context.modes import DispatchMode, DispatchModeKey, disable_md_dispatch
from .dispatch.context.observers import ObservedCall, observe_calls
from .dispatch.context.transforms import Transform, TransformType
from .dispatch.context.values import key_set_of, register_type
from .dispatch.higher_order import HigherOrderOperator
from .dispatch.kernels import fallthrough_kernel
from .dispatch.operators import OpOverload, OpOverloadPacket
from .dispatch.routing import allow_routing, routing
from .dispatch.serving import cancelled
from .errors.classes import MdispatchError
from .facts import Registration
from .keys import DispatchKey, DispatchKeySet, rename_privateuse_backend
from .registry import Registry, default_registry
from .registry.choosing import choose
from .registry.classes import register_class
from .registry.default_ops import ops
from .registry.fake_kernels import get_ctx
from .registry.library import Library
from .registry.priorities import next_provider, priority, set_priority
from .registry.provider_counts import count_providers
from .registry.sealing import seal
from .registry.sharing import ObjectHandle, share
from .registry.verify import DEFAULT_TIMEOUT
from .registry.waiting import wait_for_def, wait_for_impl
from .registry.waiting_async import choose_async, wait_for_def_async, wait_for_impl_async
from .schema import FunctionSchema, parse_schema
from .schema.names import OperatorName
from .torch_compat.python_dispatcher import PythonDispatcher
from .workers.initializer import initializer
from .workers.interpreters import create_interpreter
from .workers.pool import BrokenInterpreterPool, InterpreterPool
from .workers.warm_up import WarmUp, warm_up

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
    "ObjectHandle",
    "ObservedCall",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorName",
    "PythonDispatcher",
    "Registration",
    "Registry",
    "SafeObject",
    "Tensor",
    "Transform",
    "TransformType",
    "WarmUp",
    "__version__",
    "allow_imports",
    "allow_routing",
    "cancelled",
    "choose",
    "choose_async",
    "count_providers",
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
    "initializer",
    "is_main_interpreter",
    "key_set_of",
    "next_provider",
    "observe_calls",
    "opcheck",
    "ops",
    "parse_schema",
    "priority",
    "python_module",
    "register_autocast",
    "register_autograd",
    "register_autograd_engine",
    "register_class",
    "register_dispatch_rule",
    "register_fake",
    "register_kernel",
    "register_op",
    "register_or_verify",
    "register_type",
    "register_vmap",
    "rename_privateuse_backend",
    "routing",
    "scoped_library",
    "seal",
    "set_priority",
    "share",
    "wait_for_def",
    "wait_for_def_async",
    "wait_for_impl",
    "wait_for_impl_async",
    "warm_up",
]

__version__: str

def is_main_interpreter() -> bool: ...
def register_or_verify(namespace: str | None = None) -> str: ...
def allow_imports(*modules: str) -> None: ...

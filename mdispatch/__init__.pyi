# What type checkers read in place of __init__.py, which has most names in a table by which it loads
# them late. tests/project/test_structure.py compares the two.

from . import choices as choices
from . import cluster as cluster
from . import config as config
from . import context as context
from . import errors
from . import fake as fake
from . import keys as keys
from . import pool as pool
from . import registry as registry
from . import schema as schema
from . import telemetry as telemetry
from . import torch as torch
from . import torch_compat as torch_compat
from .across.calling_async import call_async
from .across.classes import register_class
from .across.routing import allow_routing, routing
from .across.serving import Serve, cancelled
from .across.sharing import ObjectHandle, share
from .authoring.autograd import AutogradCall, AutogradNode, needs_grad, register_autograd
from .authoring.autograd.engines import register_autograd_engine
from .authoring.autograd.node import AutogradContext
from .authoring.custom_op import CustomOpDef, custom_op
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
from .authoring.meta import MetaTensor, empty_like, fake_call
from .authoring.opcheck.check import opcheck
from .choices.agreeing import agree
from .choices.choosing import choose
from .choices.choosing_async import choose_async
from .choices.roll_call import roll_call
from .choices.steps import agreeing
from .cluster.sealing import seal
from .dispatch.annotations import Tensor
from .dispatch.context.hermetic import SafeObject, hermetic
from .dispatch.context.observers import ObservedCall, observe_calls
from .dispatch.context.values import is_tensor, key_set_of, register_type
from .dispatch.higher_order import HigherOrderOperator, find_higher_order, higher_order_names
from .dispatch.kernels import fallthrough_kernel
from .dispatch.operators import OpOverload, OpOverloadPacket
from .errors.classes import MdispatchError
from .facts import Registration
from .fake import python_module, register_fake
from .keys import DispatchKey, DispatchKeySet, rename_privateuse_backend
from .pool.executor import BrokenInterpreterPool, InterpreterPool
from .pool.interpreters import OWN_GIL, ExecutionFailedError, create_interpreter
from .providers.counts import count_providers
from .providers.priorities import call_all, next_provider, priority, set_priority
from .registry import Registry, default_registry
from .registry.default_ops import ops
from .registry.fake_kernels import get_ctx
from .registry.library import Library
from .registry.verify import DEFAULT_TIMEOUT
from .registry.waiting import wait_for_def, wait_for_impl
from .registry.waiting_async import wait_for_def_async, wait_for_impl_async
from .schema import FunctionSchema, parse_schema
from .schema.names import OperatorName
from .torch_compat.python_dispatcher import PythonDispatcher
from .workers.initializer import initializer
from .workers.warm_up import WarmUp, warm_up

__all__ = [
    "AutogradCall",
    "AutogradContext",
    "AutogradNode",
    "BrokenInterpreterPool",
    "CustomOpDef",
    "DEFAULT_TIMEOUT",
    "DispatchKey",
    "DispatchKeySet",
    "ExecutionFailedError",
    "FunctionSchema",
    "HigherOrderOperator",
    "InterpreterPool",
    "Library",
    "MdispatchError",
    "MetaTensor",
    "OWN_GIL",
    "ObjectHandle",
    "ObservedCall",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorName",
    "PythonDispatcher",
    "Registration",
    "Registry",
    "SafeObject",
    "Serve",
    "Tensor",
    "WarmUp",
    "__version__",
    "agree",
    "agreeing",
    "allow_imports",
    "allow_routing",
    "call_all",
    "call_async",
    "cancelled",
    "choose",
    "choose_async",
    "count_providers",
    "create_interpreter",
    "custom_op",
    "default_registry",
    "define",
    "empty_like",
    "errors",
    "fake_call",
    "fallthrough_kernel",
    "find_higher_order",
    "get_ctx",
    "get_kernel",
    "hermetic",
    "higher_order_names",
    "impl",
    "infer_schema",
    "initializer",
    "is_main_interpreter",
    "is_tensor",
    "key_set_of",
    "needs_grad",
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
    "roll_call",
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

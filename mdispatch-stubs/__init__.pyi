# Made by .ci/stubs.py from mdispatch/__init__.py.
from collections.abc import Iterator
from mdispatch import errors as errors
from mdispatch.authoring import autograd as autograd
from mdispatch.authoring import custom_op as custom_ops
from mdispatch.authoring import fake as fake
from mdispatch.authoring import fake as pystub
from mdispatch.authoring import functions as decorator
from mdispatch.authoring import functions as functions
from mdispatch.authoring import meta as meta
from mdispatch.authoring import torch as torch
from mdispatch.authoring.autograd import register_autograd as register_autograd
from mdispatch.authoring.autograd import tape as tape
from mdispatch.authoring.autograd.engines import register_autograd_engine as register_autograd_engine
from mdispatch.authoring.autograd.node import AutogradContext as AutogradContext
from mdispatch.authoring.autograd.tape import Tape as Tape
from mdispatch.authoring.custom_op import CustomOpDef as CustomOpDef
from mdispatch.authoring.custom_op import custom_op as custom_op
from mdispatch.authoring.fake import python_module as python_module
from mdispatch.authoring.fake import register_fake as register_fake
from mdispatch.authoring.functions import define as define
from mdispatch.authoring.functions import get_kernel as get_kernel
from mdispatch.authoring.functions import impl as impl
from mdispatch.authoring.functions import register_autocast as register_autocast
from mdispatch.authoring.functions import register_dispatch_rule as register_dispatch_rule
from mdispatch.authoring.functions import register_kernel as register_kernel
from mdispatch.authoring.functions import register_op as register_op
from mdispatch.authoring.functions import register_vmap as register_vmap
from mdispatch.authoring.functions import scoped_library as scoped_library
from mdispatch.authoring.infer import infer_schema as infer_schema
from mdispatch.authoring.meta import MetaTensor as MetaTensor
from mdispatch.authoring.opcheck.check import opcheck as opcheck
from mdispatch.dispatch import higher_order as higher_order
from mdispatch.dispatch.annotations import Tensor as Tensor
from mdispatch.dispatch.context import guards as guards
from mdispatch.dispatch.context import modes as modes
from mdispatch.dispatch.context import transforms as transforms
from mdispatch.dispatch.context import values as values
from mdispatch.dispatch.context.guards import AutoDispatchBelowAutograd as AutoDispatchBelowAutograd
from mdispatch.dispatch.context.guards import ExcludeDispatchKeyGuard as ExcludeDispatchKeyGuard
from mdispatch.dispatch.context.guards import ForceDispatchKeyGuard as ForceDispatchKeyGuard
from mdispatch.dispatch.context.guards import IncludeDispatchKeyGuard as IncludeDispatchKeyGuard
from mdispatch.dispatch.context.guards import enable_python_dispatcher as enable_python_dispatcher
from mdispatch.dispatch.context.hermetic import SafeObject as SafeObject
from mdispatch.dispatch.context.hermetic import hermetic as hermetic
from mdispatch.dispatch.context.modes import DispatchMode as DispatchMode
from mdispatch.dispatch.context.modes import DispatchModeKey as DispatchModeKey
from mdispatch.dispatch.context.modes import disable_md_dispatch as disable_md_dispatch
from mdispatch.dispatch.context.observers import ObservedCall as ObservedCall
from mdispatch.dispatch.context.observers import observe_calls as observe_calls
from mdispatch.dispatch.context.transforms import Transform as Transform
from mdispatch.dispatch.context.transforms import TransformType as TransformType
from mdispatch.dispatch.context.values import key_set_of as key_set_of
from mdispatch.dispatch.context.values import register_type as register_type
from mdispatch.dispatch.higher_order import HigherOrderOperator as HigherOrderOperator
from mdispatch.dispatch.kernels import fallthrough_kernel as fallthrough_kernel
from mdispatch.dispatch.operators import OpOverload as OpOverload
from mdispatch.dispatch.operators import OpOverloadPacket as OpOverloadPacket
from mdispatch.dispatch.routing import allow_routing as allow_routing
from mdispatch.dispatch.routing import routing as routing
from mdispatch.dispatch.serving import cancelled as cancelled
from mdispatch.errors import MdispatchError as MdispatchError
from mdispatch.facts import Registration as Registration
from mdispatch.keys import DispatchKey as DispatchKey
from mdispatch.keys import DispatchKeySet as DispatchKeySet
from mdispatch.keys import rename_privateuse_backend as rename_privateuse_backend
from mdispatch.registry import Registry as Registry
from mdispatch.registry import choices as choices
from mdispatch.registry import default_registry as default_registry
from mdispatch.registry import given_or_default as given_or_default
from mdispatch.registry import library as library
from mdispatch.registry import opened_default as opened_default
from mdispatch.registry import ops as operators
from mdispatch.registry import waiting as waiting
from mdispatch.registry import waiting_async as aio
from mdispatch.registry.choosing import choose as choose
from mdispatch.registry.classes import register_class as register_class
from mdispatch.registry.fake_kernels import get_ctx as get_ctx
from mdispatch.registry.library import Library as Library
from mdispatch.registry.ops import Namespace
from mdispatch.registry.priorities import next_provider as next_provider
from mdispatch.registry.priorities import priority as priority
from mdispatch.registry.priorities import set_priority as set_priority
from mdispatch.registry.provider_counts import count_providers as count_providers
from mdispatch.registry.sealing import seal as seal
from mdispatch.registry.sharing import ObjectHandle as ObjectHandle
from mdispatch.registry.sharing import share as share
from mdispatch.registry.verify import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from mdispatch.registry.waiting import wait_for_def as wait_for_def
from mdispatch.registry.waiting import wait_for_impl as wait_for_impl
from mdispatch.registry.waiting_async import choose_async as choose_async
from mdispatch.registry.waiting_async import wait_for_def_async as wait_for_def_async
from mdispatch.registry.waiting_async import wait_for_impl_async as wait_for_impl_async
from mdispatch.schema import FunctionSchema as FunctionSchema
from mdispatch.schema import parse_schema as parse_schema
from mdispatch.schema.names import Named as Named
from mdispatch.schema.names import OperatorName as OperatorName
from mdispatch.torch_compat import python_dispatcher as python_dispatcher
from mdispatch.torch_compat.python_dispatcher import PythonDispatcher as PythonDispatcher
from mdispatch.workers import interpreters as host
from mdispatch.workers import pool as pool
from mdispatch.workers import telemetry as telemetry
from mdispatch.workers import warm_up as warming
from mdispatch.workers.initializer import initializer as initializer
from mdispatch.workers.interpreters import create_interpreter as create_interpreter
from mdispatch.workers.pool import BrokenInterpreterPool as BrokenInterpreterPool
from mdispatch.workers.pool import InterpreterPool as InterpreterPool
from mdispatch.workers.warm_up import WarmUp as WarmUp
from mdispatch.workers.warm_up import warm_up as warm_up

__version__: str
ops: _DefaultOps
def is_main_interpreter() -> bool:
    ...
def register_or_verify(namespace: str | None=None) -> str:
    ...
def allow_imports(*modules: str) -> None:
    ...
class _DefaultOps(Named):

    def __getattr__(self, name: str) -> Namespace:
        ...

    def __dir__(self) -> list[str]:
        ...

    def __iter__(self) -> Iterator[str]:
        ...

    def __reduce__(self) -> str:
        ...

    def __repr__(self) -> str:
        ...

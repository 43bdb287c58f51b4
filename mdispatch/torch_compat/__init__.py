"""The names by which PyTorch's own Python code and tests reach its dispatcher, over a registry of
mdispatch.

For people who come from PyTorch, and for tests written against it: the same names, arguments and
results, and a ``RuntimeError``, in other words, where PyTorch raises one. The package has no rules
of its own: it asks libraries, registries, guards and keys. ::

    from mdispatch import torch_compat as C

    m = C._dispatch_library("FRAGMENT", "test", "")
    m.def_("foo(Tensor x) -> Tensor").impl_t_t("foo", "CPU", debug="fn_cpu")
    print(C._dispatch_dump_table("test::foo"))

The names are those of ``torch._C`` (torch/csrc/utils/python_dispatch.cpp and, for modes and guards,
its neighbours), of torch/_ops.py, torch/library.py and torch/utils/_python_dispatch.py. A
key is a DispatchKey or its name. A name of no key is a RuntimeError; a value of another type is a
TypeError, as is a name that is no str. The functions document their other errors.

The functions work on the default registry, or on another one inside a ``with using(registry):``
block of this thread. As in PyTorch, a module object ends its registrations when it dies, and a
second registration does not replace the first.

Where PyTorch has a fault, the answer is the right one: the tables are always the computed ones, an
operator that does not exist is an error and no crash, the warning of an override names the kernel
that is overridden, and ``FULL_AFTER`` of a key without a place in the order is refused. Where
PyTorch asserts, this raises RuntimeError too. docs/coming-from-pytorch.md says where all other
names of PyTorch's dispatcher are.
"""

from __future__ import annotations

from ..dispatch.kernels import fallthrough_kernel
from ..keys import DispatchKey
from .common import using
from .keys import (
    DispatchKeySet,
    _additional_keys_to_prop_for_wrapper_tensors,
    _after_ADInplaceOrView_keyset,
    _after_autograd_keyset,
    _are_functorch_transforms_active,
    _dispatch_autogradother_backends,
    _dispatch_get_backend_keyset_from_autograd,
    _dispatch_is_alias_key,
    _dispatch_is_included_in_alias,
    _dispatch_isTensorSubclassLike,
    _dispatch_key_for_device,
    _dispatch_key_name,
    _dispatch_key_parse,
    _dispatch_key_set,
    _dispatch_keys,
    _dispatch_keyset_full,
    _dispatch_keyset_full_after,
    _dispatch_keyset_to_string,
    _dispatch_num_backends,
    _functionality_to_backend_keys,
    _parse_dispatch_key,
    _to_functionality_key,
)
from .library import _dispatch_library, _DispatchModule
from .looking import (
    _dispatch_call_boxed,
    _dispatch_check_all_invariants,
    _dispatch_check_invariants,
    _dispatch_dump,
    _dispatch_dump_table,
    _dispatch_find_dangling_impls,
    _dispatch_find_schema_or_throw,
    _dispatch_get_all_op_names,
    _dispatch_get_computed_kernel_for_dispatch_key,
    _dispatch_get_registrations_for_dispatch_key,
    _dispatch_has_backend_fallback,
    _dispatch_has_computed_kernel_for_dispatch_key,
    _dispatch_has_kernel,
    _dispatch_has_kernel_for_any_dispatch_key,
    _dispatch_has_kernel_for_dispatch_key,
    _dispatch_kernel_for_dispatch_key_is_fallthrough,
    _dispatch_print_registrations_for_dispatch_key,
    _dispatch_pystub,
    _DispatchOperatorHandle,
    key_extractor,
    resolve_key,
)
from .registering import define, impl, impl_abstract
from .threads import (
    _AutoDispatchBelowADInplaceOrView,
    _AutoDispatchBelowAutograd,
    _DisableTorchDispatch,
    _dispatch_tls_is_dispatch_key_excluded,
    _dispatch_tls_is_dispatch_key_included,
    _dispatch_tls_local_exclude_set,
    _dispatch_tls_local_include_set,
    _dispatch_tls_set_dispatch_key_excluded,
    _dispatch_tls_set_dispatch_key_included,
    _EnablePythonDispatcher,
    _ExcludeDispatchKeyGuard,
    _ForceDispatchKeyGuard,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_pre_dispatch,
    _get_current_dispatch_mode_stack,
    _get_dispatch_mode,
    _get_dispatch_mode_pre_dispatch,
    _get_dispatch_stack_at,
    _IncludeDispatchKeyGuard,
    _len_torch_dispatch_stack,
    _len_torch_dispatch_stack_pre_dispatch,
    _ModeStackStateForPreDispatch,
    _pop_mode_from_pre_dispatch,
    _pop_torch_dispatch_stack,
    _PreserveDispatchKeyGuard,
    _push_on_torch_dispatch_stack,
    _set_dispatch_mode,
    _set_mode_pre_dispatch,
    _SetExcludeDispatchKeyGuard,
    _TorchDispatchModeKey,
    _unset_dispatch_mode,
    mode_stack_state_for_pre_dispatch,
    unset_mode_pre_dispatch,
)

__all__ = [
    "DispatchKey",
    "DispatchKeySet",
    "_AutoDispatchBelowADInplaceOrView",
    "_AutoDispatchBelowAutograd",
    "_DisableTorchDispatch",
    "_DispatchModule",
    "_DispatchOperatorHandle",
    "_EnablePythonDispatcher",
    "_ExcludeDispatchKeyGuard",
    "_ForceDispatchKeyGuard",
    "_IncludeDispatchKeyGuard",
    "_ModeStackStateForPreDispatch",
    "_PreserveDispatchKeyGuard",
    "_SetExcludeDispatchKeyGuard",
    "_TorchDispatchModeKey",
    "_additional_keys_to_prop_for_wrapper_tensors",
    "_after_ADInplaceOrView_keyset",
    "_after_autograd_keyset",
    "_are_functorch_transforms_active",
    "_dispatch_autogradother_backends",
    "_dispatch_call_boxed",
    "_dispatch_check_all_invariants",
    "_dispatch_check_invariants",
    "_dispatch_dump",
    "_dispatch_dump_table",
    "_dispatch_find_dangling_impls",
    "_dispatch_find_schema_or_throw",
    "_dispatch_get_all_op_names",
    "_dispatch_get_backend_keyset_from_autograd",
    "_dispatch_get_computed_kernel_for_dispatch_key",
    "_dispatch_get_registrations_for_dispatch_key",
    "_dispatch_has_backend_fallback",
    "_dispatch_has_computed_kernel_for_dispatch_key",
    "_dispatch_has_kernel",
    "_dispatch_has_kernel_for_any_dispatch_key",
    "_dispatch_has_kernel_for_dispatch_key",
    "_dispatch_isTensorSubclassLike",
    "_dispatch_is_alias_key",
    "_dispatch_is_included_in_alias",
    "_dispatch_kernel_for_dispatch_key_is_fallthrough",
    "_dispatch_key_for_device",
    "_dispatch_key_name",
    "_dispatch_key_parse",
    "_dispatch_key_set",
    "_dispatch_keys",
    "_dispatch_keyset_full",
    "_dispatch_keyset_full_after",
    "_dispatch_keyset_to_string",
    "_dispatch_library",
    "_dispatch_num_backends",
    "_dispatch_print_registrations_for_dispatch_key",
    "_dispatch_pystub",
    "_dispatch_tls_is_dispatch_key_excluded",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_tls_local_exclude_set",
    "_dispatch_tls_local_include_set",
    "_dispatch_tls_set_dispatch_key_excluded",
    "_dispatch_tls_set_dispatch_key_included",
    "_functionality_to_backend_keys",
    "_get_current_dispatch_mode",
    "_get_current_dispatch_mode_pre_dispatch",
    "_get_current_dispatch_mode_stack",
    "_get_dispatch_mode",
    "_get_dispatch_mode_pre_dispatch",
    "_get_dispatch_stack_at",
    "_len_torch_dispatch_stack",
    "_len_torch_dispatch_stack_pre_dispatch",
    "_parse_dispatch_key",
    "_pop_mode_from_pre_dispatch",
    "_pop_torch_dispatch_stack",
    "_push_on_torch_dispatch_stack",
    "_set_dispatch_mode",
    "_set_mode_pre_dispatch",
    "_to_functionality_key",
    "_unset_dispatch_mode",
    "define",
    "fallthrough_kernel",
    "impl",
    "impl_abstract",
    "key_extractor",
    "mode_stack_state_for_pre_dispatch",
    "resolve_key",
    "unset_mode_pre_dispatch",
    "using",
]

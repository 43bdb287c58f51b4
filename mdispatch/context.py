"""Guards, modes and transforms: they change what the calls of a thread do.

A guard includes or excludes keys, a mode sees each call. Operators on tensors use these, and
programs that come from PyTorch. See docs/dispatcher.md for guards and docs/python-layer.md for
modes and transforms.
"""

from __future__ import annotations

from .dispatch.context.guards import (
    DEFAULT_EXCLUDED,
    DEFAULT_INCLUDED,
    AutoDispatchBelowADInplaceOrView,
    AutoDispatchBelowAutograd,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    PreserveDispatchKeyGuard,
    SetExcludeDispatchKeyGuard,
    enable_python_dispatcher,
    excluded_keys,
    included_keys,
    set_excluded,
    set_included,
)
from .dispatch.context.modes import (
    DispatchMode,
    DispatchModeKey,
    current_mode,
    disable_md_dispatch,
    is_md_dispatch_enabled,
    keys_on_entry,
    mode_stack,
    pop_mode,
    pop_pre_dispatch_mode,
    pre_dispatch_modes,
    push_mode,
    push_pre_dispatch_mode,
    restore_keys_on_entry,
)
from .dispatch.context.transforms import (
    FunctionalizeContext,
    FunctionalMode,
    Transform,
    TransformType,
    are_transforms_active,
    transform_stack,
)

__all__ = [
    "DEFAULT_EXCLUDED",
    "DEFAULT_INCLUDED",
    "AutoDispatchBelowADInplaceOrView",
    "AutoDispatchBelowAutograd",
    "DispatchMode",
    "DispatchModeKey",
    "ExcludeDispatchKeyGuard",
    "ForceDispatchKeyGuard",
    "FunctionalMode",
    "FunctionalizeContext",
    "IncludeDispatchKeyGuard",
    "PreserveDispatchKeyGuard",
    "SetExcludeDispatchKeyGuard",
    "Transform",
    "TransformType",
    "are_transforms_active",
    "current_mode",
    "disable_md_dispatch",
    "enable_python_dispatcher",
    "excluded_keys",
    "included_keys",
    "is_md_dispatch_enabled",
    "keys_on_entry",
    "mode_stack",
    "pop_mode",
    "pop_pre_dispatch_mode",
    "pre_dispatch_modes",
    "push_mode",
    "push_pre_dispatch_mode",
    "restore_keys_on_entry",
    "set_excluded",
    "set_included",
    "transform_stack",
]

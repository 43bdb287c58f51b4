"""The pages of the Python reference: which public name stands on which, and what is left out.

The words are those of the docstrings. tests/project/test_reference.py compares the lists with
``__all__`` of the package and of its public modules, so a new name has to be given its location
here.
"""

from __future__ import annotations

import importlib
import inspect

import mdispatch

RESULTS = "Made by the package: not to be imported."

# {page: (title, [(module, words, names)])}. What stands under "mdispatch" is there by that name.
PAGES = {
    "registering": (
        "Registering",
        [
            (
                "mdispatch",
                "Libraries and what needs none.",
                "Library scoped_library define impl register_op fallthrough_kernel custom_op "
                "CustomOpDef register_kernel register_fake register_autograd register_autocast "
                "register_vmap register_dispatch_rule infer_schema opcheck",
            ),
            ("mdispatch.authoring.functions", RESULTS, "ScopedLibrary"),
            ("mdispatch.authoring.custom_op", RESULTS, "KernelSwitchGuard"),
            ("mdispatch.registry.register", RESULTS, "RegistrationHandle"),
        ],
    ),
    "calling": (
        "Calling",
        [
            (
                "mdispatch",
                "Operators are found as ``mdispatch.ops.namespace.name``.",
                "ops OpOverloadPacket OpOverload get_kernel allow_imports observe_calls "
                "count_providers allow_routing routing Serve call_async cancelled register_class "
                "ObservedCall HigherOrderOperator find_higher_order higher_order_names",
            ),
            ("mdispatch.registry.ops", RESULTS, "Ops Namespace"),
            ("mdispatch.registry.load_library", RESULTS, "LoadedLibrary"),
            ("mdispatch.authoring.computed_kernel", RESULTS, "ComputedKernel"),
            ("mdispatch.telemetry", "", "observe_with_opentelemetry"),
            ("mdispatch.dispatch.context.observers", RESULTS, "ObserverHandle"),
            ("mdispatch.providers.counts", RESULTS, "ProviderCounts ProviderRuns"),
        ],
    ),
    "sharing": (
        "Registries, waiting, workers",
        [
            (
                "mdispatch",
                "",
                "Registry default_registry Registration register_or_verify is_main_interpreter "
                "wait_for_def wait_for_impl wait_for_def_async wait_for_impl_async "
                "agree agreeing roll_call choose choose_async DEFAULT_TIMEOUT initializer warm_up "
                "WarmUp "
                "InterpreterPool BrokenInterpreterPool "
                "create_interpreter ExecutionFailedError OWN_GIL "
                "SafeObject ObjectHandle share hermetic seal "
                "priority set_priority next_provider call_all "
                "python_module __version__",
            ),
            ("mdispatch.registry", "", "operator_of"),
            (
                "mdispatch.choices",
                "The choices of the members, the values on which they agree, and their roll calls.",
                "Choice made withdraw export load Agreement Asked agreements leave "
                "RollCall roll_calls Verdict Group Member",
            ),
            ("mdispatch.fake", "", "require_python_modules"),
            (
                "mdispatch.cluster",
                "What an engine is, for its driver.",
                "Engine Status ClusterURL parse_url connect Fenced Forgot Unreachable",
            ),
            (
                "mdispatch.config",
                "Where a compiler finds what kernels and hosts in C need.",
                "cflags libs include_dir library_dir pkgconfig_dir cdef examples_dir",
            ),
            ("mdispatch.facts.listeners", RESULTS, "ListenerHandle"),
            ("mdispatch.dispatch.explain", RESULTS, "TableRow Explanation"),
            ("mdispatch.providers.priorities", RESULTS, "PriorityHandle"),
        ],
    ),
    "keys": (
        "Keys, values, guards",
        [
            (
                "mdispatch",
                "",
                "DispatchKey DispatchKeySet rename_privateuse_backend Tensor key_set_of "
                "is_tensor register_type",
            ),
            (
                "mdispatch.context",
                "The keys that a thread includes and excludes.",
                "IncludeDispatchKeyGuard ExcludeDispatchKeyGuard "
                "ForceDispatchKeyGuard AutoDispatchBelowAutograd "
                "AutoDispatchBelowADInplaceOrView PreserveDispatchKeyGuard "
                "SetExcludeDispatchKeyGuard enable_python_dispatcher included_keys "
                "excluded_keys set_included set_excluded DEFAULT_INCLUDED DEFAULT_EXCLUDED",
            ),
            ("mdispatch.dispatch.context.values", RESULTS, "TypeHandle"),
            (
                "mdispatch.keys",
                "Questions about keys.",
                "RUNTIME_KEYS BACKENDS parse_key runtime_keys is_included_in_alias "
                "backend_keys_of_autograd functionality_to_backend_keys device_key "
                "canonical_device backend_index table_index highest_index BACKEND_BITS",
            ),
        ],
    ),
    "modes": (
        "Modes and transforms",
        [
            (
                "mdispatch.context",
                "",
                "DispatchMode DispatchModeKey disable_md_dispatch is_md_dispatch_enabled "
                "push_mode pop_mode current_mode mode_stack keys_on_entry "
                "restore_keys_on_entry push_pre_dispatch_mode pop_pre_dispatch_mode "
                "pre_dispatch_modes Transform TransformType transform_stack "
                "are_transforms_active FunctionalMode FunctionalizeContext",
            ),
        ],
    ),
    "gradients": (
        "Gradients, meta values",
        [
            (
                "mdispatch",
                "",
                "AutogradContext register_autograd_engine AutogradCall AutogradNode needs_grad "
                "MetaTensor fake_call empty_like get_ctx",
            ),
            ("mdispatch.authoring.autograd", RESULTS, "EngineHandle"),
            ("mdispatch.fake", "", "FakeContext DynamicSize"),
        ],
    ),
    "schemas": (
        "Schemas",
        [
            ("mdispatch", "", "parse_schema FunctionSchema OperatorName PythonDispatcher"),
            (
                "mdispatch.schema",
                "",
                "Argument Type AliasInfo compare compare_signature split_name",
            ),
        ],
    ),
    "errors": (
        "Errors",
        [("mdispatch", "", "MdispatchError errors"), ("mdispatch.errors", "", "*")],
    ),
    "torch": (
        "PyTorch",
        [
            ("mdispatch.torch", "", "export watch Watch"),
        ],
    ),
    "torch_compat": ("torch_compat", [("mdispatch.torch_compat", "", "*")]),
}

# In a module's __all__ for the modules beside it, and nothing for users.
INSIDE = {
    "mdispatch.config": {"main"},
    "mdispatch.registry": {
        "arrived",
        "given_or_default",
        "is_default_asked_for",
        "opened_default",
        "registry_of",
    },
}

_OF_LIBRARY = (
    "check_arguments check_open define_with_attributes definitions hold implement key_for let_go "
    "register_kernel"
)

# Methods of public classes that are for the modules beside them.
INSIDE_OF = {
    "mdispatch.Library": _OF_LIBRARY,
    "mdispatch.authoring.functions.ScopedLibrary": _OF_LIBRARY,
    "mdispatch.Registry": "reduced",
    "mdispatch.OpOverload": "call_with_python_kernels checked_answer operators_described",
    "mdispatch.OpOverloadPacket": "operators_described",
    "mdispatch.CustomOpDef": "operators_described",
    "mdispatch.HigherOrderOperator": "checked_answer",
    "mdispatch.Registration": "is_written",
    "mdispatch.AutogradNode": "materialize saved",
    "mdispatch.facts.listeners.ListenerHandle": "catch_up is_locked tell tell_gone tell_in_turn",
}

# What has no docstring, for it is a value.
VALUES = {
    "mdispatch.ops": "The operators of the default registry: ``ops.namespace.name(...)``. See "
    ":py:class:`mdispatch.registry.ops.Ops`; an AttributeError, OperatorNotFoundError, has the "
    "nearest names.",
    "mdispatch.DEFAULT_TIMEOUT": "Seconds that a verification waits for the main interpreter "
    "unless told otherwise. (PyTorch: 2 s)",
    "mdispatch.__version__": "The version of the package.",
    "mdispatch.OWN_GIL": "Whether sub-interpreters can have a GIL of their own here.",
    "mdispatch.keys.RUNTIME_KEYS": "The keys that have a slot in a dispatch table, in the table's "
    "order: lowest priority first.",
    "mdispatch.keys.BACKENDS": "The names of the backends, lowest priority first: the position is "
    "the bit.",
    "mdispatch.keys.BACKEND_BITS": "The bits of a set that stand for backends; those above stand "
    "for functionalities.",
    "mdispatch.context.DEFAULT_INCLUDED": "What a thread includes to begin with. (c10: "
    "default_included_set)",
    "mdispatch.context.DEFAULT_EXCLUDED": "What a thread excludes to begin with. (c10: "
    "default_excluded_set)",
    "mdispatch.torch_compat._additional_keys_to_prop_for_wrapper_tensors": "The keys that a "
    "wrapper takes over from what it wraps.",
    "mdispatch.torch_compat._after_ADInplaceOrView_keyset": "What is left for a kernel at "
    "ADInplaceOrView.",
    "mdispatch.torch_compat._after_autograd_keyset": "What is left for a kernel at an "
    "autograd key.",
    "mdispatch.torch_compat.ops": "The operators of the registry on which torch_compat works: "
    "``ops.namespace.name.overload``.",
    "mdispatch.torch_compat._dispatch_autogradother_backends": "The keys whose kernels "
    "AutogradOther leads to.",
}


def names(page):
    """``[(module, words, [names])]`` of a page, ``*`` written out."""
    for module, words, listed in PAGES[page][1]:
        found = listed.split()
        if found == ["*"]:
            elsewhere = {"MdispatchError"} if module == "mdispatch.errors" else set()
            everything = set(importlib.import_module(module).__all__) - elsewhere
            found = sorted(everything, key=str.lower)
        yield module, words, found


def pages():
    """``{name: text}`` of all pages, with the list of pages that comes first."""
    made = {page: _page(page) for page in PAGES}
    lines = [
        *_heading("Python reference", "="),
        "Everything public, by what it is for. What is in ``mdispatch.__all__`` stands here as",
        "``mdispatch.name``; the rest is in the module that is named.",
        "",
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   {page}" for page in PAGES),
        "",
    ]
    for page, (title, _) in PAGES.items():
        lines += _heading(f":doc:`{title} <{page}>`", "-")
        for module, words, found in names(page):
            shown = ", ".join(f":py:obj:`{name} <{module}.{name}>`" for name in found)
            lines += [f"{'What they give' if words == RESULTS else f'``{module}``'}: {shown}", ""]
    return {"python": "\n".join(lines), **made}


def _page(page):
    title, _ = PAGES[page]
    lines = _heading(title, "=")
    for module, words, found in names(page):
        if len(PAGES[page][1]) > 1:
            lines += _heading("What they give" if words == RESULTS else module, "-")
        elif (inspect.getdoc(importlib.import_module(module)) or "").strip():
            lines += [f".. automodule:: {module}", "   :no-members:", ""]
        if words:
            lines += [words, ""]
        lines += [f".. py:currentmodule:: {module}", ""]
        for name in found:
            lines += _same(module, name) or _entry(module, name)
    return "\n".join(lines)


def _same(module, name):
    """For what torch_compat has from elsewhere, as it is."""
    value = getattr(importlib.import_module(module), name)
    if module == "mdispatch.torch_compat" and getattr(mdispatch, name, None) is value:
        kind = "class" if inspect.isclass(value) else "function"
        lines = [f".. py:{kind}:: {name}{'' if kind == 'class' else '()'}", ""]
        return [*lines, f"   :py:obj:`mdispatch.{name}` itself.", ""]
    return []


def _entry(module, name):
    full = f"{module}.{name}"
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value):
        return [f".. automodule:: {full}", "   :no-members:", ""]
    if inspect.isclass(value):
        lines = [f".. autoclass:: {full}", "   :members:"]
        if not issubclass(value, (int, tuple, BaseException)):
            lines.append("   :inherited-members: object, Executor")
        if full in INSIDE_OF:
            lines.append(f"   :exclude-members: {', '.join(INSIDE_OF[full].split())}")
        if issubclass(value, BaseException):
            lines.append("   :show-inheritance:")
        return [*lines, ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}", ""]
    kind = type(value).__name__.removeprefix("_DefaultOps")
    head = [f".. py:data:: {name}", *([f"   :type: {kind}"] if kind else []), ""]
    return [*head, f"   {VALUES[full]}", ""]


def _heading(text, line):
    return [text, line * len(text), ""]

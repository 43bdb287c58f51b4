"""The names by which PyTorch's own Python code and tests reach its dispatcher, over a registry of
mdispatch.

A door for people who come from there, and for tests written against it: same names, same arguments,
same results, ``RuntimeError`` where theirs is (with our words in it). It holds no rule of its own:
everything is asked of libraries, registries, guards and keys. ::

    from mdispatch import torch_compat as C

    m = C._dispatch_library("FRAGMENT", "test", "")
    m.def_("foo(Tensor x) -> Tensor").impl_t_t("foo", "CPU", debug="fn_cpu")
    print(C._dispatch_dump_table("test::foo"))

The functions work on the default registry, or in a ``with using(registry):`` block of this thread
on that one. As in PyTorch, a module object ends its registrations when it dies, and no second
registration takes the place of the first.

Where PyTorch has a fault, the answer is the right one: the tables are always the computed ones, an
operator that is not there is an error and no crash, the warning of an override names the kernel
that is overridden, and ``FULL_AFTER`` of a key without a place in the order is refused.
"""

from __future__ import annotations

import warnings
import weakref
from _thread import _local
from functools import wraps

from . import _registry as facts
from . import guards, values
from . import keys as _keys
from ._arguments import attributes_of, checked_callable, operator_name
from ._explain import dangling, existing, found, table_rows
from ._kernels import FALLBACK_NAME, FALLTHROUGH, LocalKernel, fallthrough_kernel
from ._nearest import shown
from ._pairing import BUILTIN_FALLBACKS
from ._registering import fall_back
from ._schema_names import OperatorName
from .errors import InvalidArgumentError, MdispatchError
from .keys import DispatchKey
from .library import Library
from .operators import OpOverload
from .registry import Registry, default_registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, ParamSpec, TypeVar

    from ._explain import TableRow
    from ._registry import Registration
    from .schema import FunctionSchema

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = [
    "DispatchKey",
    "DispatchKeySet",
    "_AutoDispatchBelowADInplaceOrView",
    "_AutoDispatchBelowAutograd",
    "_DispatchModule",
    "_DispatchOperatorHandle",
    "_ExcludeDispatchKeyGuard",
    "_ForceDispatchKeyGuard",
    "_IncludeDispatchKeyGuard",
    "_PreserveDispatchKeyGuard",
    "_SetExcludeDispatchKeyGuard",
    "_additional_keys_to_prop_for_wrapper_tensors",
    "_are_functorch_transforms_active",
    "_after_ADInplaceOrView_keyset",
    "_after_autograd_keyset",
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
    "_parse_dispatch_key",
    "_to_functionality_key",
    "fallthrough_kernel",
    "using",
]


def _theirs(function: Callable[P, R]) -> Callable[P, R]:
    """Where ours raises one of its own errors, theirs raises RuntimeError. One that is a
    NotImplementedError or RuntimeError already stays what it is.

    What a module object registered ends with it, so no error may keep one alive: the error that
    becomes another's cause gives up its frames.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MdispatchError as error:
            if isinstance(error, RuntimeError):
                raise
            _forget_frames(error)
            module = args[0] if args else None
            place = getattr(module, "_place", "")
            where = f"\n  in the library from {place}" if place and place not in str(error) else ""
            raise RuntimeError(f"{error}{where}") from error

    return wrapped


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        _forget_frames(error.__context__ if error.__context__ is not error.__cause__ else None)
        error = error.__cause__


def _text(value: str) -> str:
    if not isinstance(value, str) or isinstance(value, DispatchKey):
        raise TypeError(f"this takes a str, not {shown(value)}")
    return value


# --- which registry -------------------------------------------------------------------------------


class _Local(_local):
    registries: tuple[Registry, ...] = ()


_chosen = _Local()


class using:
    """While open, the functions of this module work on ``registry``, in this thread."""

    def __init__(self, registry: Registry) -> None:
        self.registry = given_or_default(registry)

    def __enter__(self) -> using:
        _chosen.registries = (*_chosen.registries, self.registry)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _chosen.registries = _chosen.registries[:-1]


def _registry() -> Registry:
    return _chosen.registries[-1] if _chosen.registries else default_registry()


# --- keys and key sets ----------------------------------------------------------------------------


def _key(key: DispatchKey | str) -> DispatchKey:
    """Strings convert, numbers do not."""
    if not isinstance(key, (str, DispatchKey)):
        raise TypeError(f"a dispatch key is a DispatchKey or its name, not {shown(key)}")
    return _keys.parse_key(key)


class DispatchKeySet(_keys.DispatchKeySet):
    """A key set with PyTorch's names for what it can do. It can also do all that ours can."""

    __slots__ = ()

    @_theirs
    def __init__(self, key: DispatchKey | str) -> None:
        super().__init__(_key(key))

    @staticmethod
    @_theirs
    def from_raw_repr(raw: int, /) -> DispatchKeySet:
        if isinstance(raw, float) or not hasattr(raw, "__index__"):
            raise TypeError(f"the bits of a key set are an int, not {shown(raw)}")
        return _compat(_keys.DispatchKeySet.from_raw(int(raw)))

    def raw_repr(self) -> int:
        return self.raw

    def highestPriorityTypeId(self) -> DispatchKey:
        return self.highest_priority()

    @_theirs
    def has(self, key: DispatchKey | str) -> bool:
        return super().has(_key(key))

    @_theirs
    def add(self, key: DispatchKey | str) -> DispatchKeySet:
        return _compat(self | _keys.DispatchKeySet(_key(key)))

    @_theirs
    def remove(self, key: DispatchKey | str) -> DispatchKeySet:
        return _compat(self - _keys.DispatchKeySet(_key(key)))

    def __reduce__(self) -> tuple[object, ...]:
        return DispatchKeySet.from_raw_repr, (self.raw,)


def _compat(key_set: _keys.DispatchKeySet) -> DispatchKeySet:
    """The same set, with their methods."""
    made = object.__new__(DispatchKeySet)
    made._raw = key_set.raw
    return made


def _key_set(value: _keys.DispatchKeySet) -> _keys.DispatchKeySet:
    if not isinstance(value, _keys.DispatchKeySet):
        raise TypeError(f"this takes a DispatchKeySet, not {shown(value)}")
    return value


_after_autograd_keyset = _compat(_keys.DispatchKeySet.full_after("AutogradOther"))
_after_ADInplaceOrView_keyset = _compat(  # their name
    _keys.DispatchKeySet.full_after("ADInplaceOrView")
)
_dispatch_autogradother_backends = _compat(
    _keys.backend_keys_of_autograd(DispatchKey.AutogradOther)
)
_additional_keys_to_prop_for_wrapper_tensors = _compat(
    _keys.DispatchKeySet("Conjugate", "Negative")
    | _keys.DispatchKeySet(
        f"{functionality}{backend}"
        for functionality in ("", "Sparse", "SparseCsr")
        for backend in ("CPU", "CUDA", "XLA", "XPU", "HPU", "PrivateUse1")
    )
)
# What PyTorch's own wrappers carry. (c10: kTensorSubclassLike)
_SUBCLASS_LIKE = _keys.DispatchKeySet(
    *("FuncTorchGradWrapper", "FuncTorchBatched", "Functionalize"),
    *("Batched", "Sparse", "SparseCsr", "Python", "Meta"),
) - _keys.DispatchKeySet("Dense")


@_theirs
def _dispatch_key_name(key: DispatchKey | str) -> str:
    """The name of a key."""
    return _key(key).name


@_theirs
def _dispatch_key_parse(key: DispatchKey | str) -> DispatchKey:
    """The key of a name."""
    return _key(key)


# Keys whose names PyTorch's own parser does not read: the functionality, then its backends.
_UNREAD = (
    "Autograd HIP MAIA MTIA VE",
    "NestedTensor HIP IPU Lazy MAIA MPS MTIA PrivateUse2 PrivateUse3 VE XLA",
    "Quantized HIP HPU IPU Lazy MAIA MPS MTIA Meta PrivateUse2 PrivateUse3 VE XLA",
    "Sparse HPU IPU Lazy MAIA MTIA PrivateUse2 PrivateUse3 XLA",
    "SparseCsr HPU IPU Lazy MAIA MTIA PrivateUse2 PrivateUse3 XLA",
)
_UNREAD_NAMES = frozenset(
    functionality + backend
    for functionality, *backends in map(str.split, _UNREAD)
    for backend in backends
)


def _parse_dispatch_key(name: str) -> DispatchKey | None:
    """None for a name of none, and for those that PyTorch's parser does not read. Everything else
    here reads all names: there, such keys cannot be registered to at all.
    """
    try:
        return None if _text(name) in _UNREAD_NAMES else _key(name)
    except MdispatchError:
        return None


@_theirs
def _dispatch_key_for_device(device_type: str) -> str:
    """The name of the key of a type of device: CUDA for "cuda". An index is refused."""
    if ":" in device_type:
        raise InvalidArgumentError(f"a type of device has no index: {shown(device_type)}")
    return _keys.device_key(device_type).name


def _dispatch_keyset_full() -> DispatchKeySet:
    """Every runtime key."""
    return _compat(_keys.DispatchKeySet.full())


@_theirs
def _dispatch_keyset_full_after(key: DispatchKey | str) -> DispatchKeySet:
    """What is left for a kernel at this key. Keys without a place in the order are refused."""
    return _compat(_keys.DispatchKeySet.full_after(_key(key)))


def _dispatch_keyset_to_string(key_set: DispatchKeySet) -> str:
    """The set as it prints."""
    return repr(_key_set(key_set))


@_theirs
def _dispatch_is_alias_key(key: DispatchKey | str) -> bool:
    """Whether the key stands for others."""
    return _key(key).is_alias


@_theirs
def _dispatch_is_included_in_alias(key: DispatchKey | str, alias: DispatchKey | str) -> bool:
    """Whether an alias key stands for a key."""
    runtime = _key(key)
    return runtime is not DispatchKey.Undefined and _keys.is_included_in_alias(runtime, _key(alias))


@_theirs
def _dispatch_get_backend_keyset_from_autograd(key: DispatchKey | str) -> DispatchKeySet:
    """The keys whose kernels an autograd key leads to."""
    return _compat(_keys.backend_keys_of_autograd(_key(key)))


@_theirs
def _functionality_to_backend_keys(key: DispatchKey | str) -> list[DispatchKey]:
    """SparseCPU to SparseMeta for Sparse; any other key alone."""
    return list(_keys.functionality_to_backend_keys(_key(key)))


@_theirs
def _to_functionality_key(key: DispatchKey | str) -> DispatchKey:
    """Sparse for SparseCPU."""
    return _key(key).functionality


def _dispatch_num_backends() -> int:
    """How many backends there are."""
    return len(_keys.BACKENDS)


def _keys_of(tensor: object) -> _keys.DispatchKeySet:
    if not values.is_tensor(tensor):
        raise TypeError(f"{shown(tensor)} carries no dispatch keys")
    return values.key_set_of(tensor)


def _are_functorch_transforms_active() -> bool:
    """There are none."""
    return False


def _dispatch_keys(tensor: object) -> DispatchKeySet:
    """The keys that an object carries. TypeError when it carries none."""
    return _compat(_keys_of(tensor))


def _dispatch_key_set(tensor: object) -> str:
    """The keys that an object carries, as they print."""
    return repr(_keys_of(tensor))


def _dispatch_isTensorSubclassLike(tensor: object) -> bool:
    """Whether a value wraps or describes another, by the keys that it carries."""
    return bool(_keys_of(tensor).raw & _SUBCLASS_LIKE.raw)


# --- this thread's sets ---------------------------------------------------------------------------


def _bool(desired: bool) -> bool:
    if isinstance(desired, str):
        raise TypeError(f"this takes True or False, not {shown(desired)}")
    return bool(desired)


@_theirs
def _dispatch_tls_set_dispatch_key_excluded(key: DispatchKey | str, desired: bool) -> None:
    """Puts a key into this thread's excluded set, or takes it out."""
    if _key(key).raw:  # a key without bits changes nothing
        guards.set_excluded(_key(key), _bool(desired))


@_theirs
def _dispatch_tls_set_dispatch_key_included(key: DispatchKey | str, desired: bool) -> None:
    """Puts a key into this thread's included set, or takes it out."""
    if _key(key).raw:
        guards.set_included(_key(key), _bool(desired))


@_theirs
def _dispatch_tls_is_dispatch_key_excluded(key: DispatchKey | str) -> bool:
    """Whether this thread excludes a key."""
    return guards.excluded_keys().has(_key(key))


@_theirs
def _dispatch_tls_is_dispatch_key_included(key: DispatchKey | str) -> bool:
    """Whether this thread includes a key."""
    return guards.included_keys().has(_key(key))


def _dispatch_tls_local_exclude_set() -> DispatchKeySet:
    """What this thread excludes."""
    return _compat(guards.excluded_keys())


def _dispatch_tls_local_include_set() -> DispatchKeySet:
    """What this thread includes."""
    return _compat(guards.included_keys())


# Their guards begin again when they are entered again, may be left without having been entered, and
# are worth nothing in ``with ... as``.


class _Theirs(guards._Guard):
    __slots__ = ()

    def __enter__(self) -> None:  # type: ignore[override]  # as there
        while self.is_open:
            super().__exit__()
        super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self.is_open:
            super().__exit__()


class _ExcludeDispatchKeyGuard(_Theirs, guards.ExcludeDispatchKeyGuard):
    """See mdispatch.ExcludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _IncludeDispatchKeyGuard(_Theirs, guards.IncludeDispatchKeyGuard):
    """See mdispatch.IncludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _ForceDispatchKeyGuard(_Theirs, guards.ForceDispatchKeyGuard):
    """See mdispatch.ForceDispatchKeyGuard."""

    __slots__ = ()


class _PreserveDispatchKeyGuard(_Theirs, guards.PreserveDispatchKeyGuard):
    """See mdispatch.guards.PreserveDispatchKeyGuard."""

    __slots__ = ()


class _SetExcludeDispatchKeyGuard(_Theirs, guards.SetExcludeDispatchKeyGuard):
    """See mdispatch.guards.SetExcludeDispatchKeyGuard."""

    __slots__ = ()


class _AtOnce(_Theirs):
    """In effect from its construction to its death, or the end of a ``with`` block."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        super().__enter__()

    def __enter__(self) -> None:  # type: ignore[override]
        pass


class _AutoDispatchBelowAutograd(_AtOnce, guards.AutoDispatchBelowAutograd):
    """See mdispatch.AutoDispatchBelowAutograd."""

    __slots__ = ()


class _AutoDispatchBelowADInplaceOrView(_Theirs, guards.AutoDispatchBelowADInplaceOrView):
    """See mdispatch.guards.AutoDispatchBelowADInplaceOrView."""

    __slots__ = ()


# --- registering ----------------------------------------------------------------------------------

#: The schema of the kernels that their tests register: one Tensor in, one out.
_T_T = "(Tensor _0) -> Tensor _0"


def _same(x: object) -> object:
    """What those kernels do."""
    return x


class _DispatchModule:
    """What registers, under one namespace. Its registrations end with it, or at ``reset()``."""

    @_theirs
    def __init__(self, kind: str, namespace: str, dispatch: str, place: str) -> None:
        self._place = place
        self._registry = _registry()
        self._open = (namespace, kind, _key(dispatch) if dispatch else "")
        self._library: Library | None = None
        self._opened()

    def _opened(self) -> Library:
        """The library, a new one after a reset: that no longer owns its namespace."""
        if self._library is None:
            namespace, kind, key = self._open
            self._library = Library(
                namespace, kind, key, registry=self._registry, _place=self._place
            )
            self._open = (namespace, "FRAGMENT" if kind == "DEF" else kind, key)
        return self._library

    def reset(self) -> None:
        """Ends the registrations so far."""
        library, self._library = self._library, None
        if library is not None:
            library.close()

    def __del__(self) -> None:
        if getattr(self, "_library", None) is not None:
            self.reset()

    # Definitions

    @_theirs
    def def_(self, schema: str, alias: str = "") -> _DispatchModule:
        self._define(schema, alias)
        return self

    @_theirs
    def def_legacy(self, schema: str) -> _DispatchModule:
        self._opened()._define(schema, _UNSET)
        return self

    @_theirs
    def def_name_t_t(
        self, name: str, dispatch: str = "", debug: str = "default_def_name_t_t"
    ) -> _DispatchModule:
        """Defines by the kernel's signature, and registers the kernel."""
        if "(" in name:
            return self.def_schema_t_t(name, dispatch, debug=debug)
        if _text(dispatch):
            _key(dispatch)  # what is no key is refused before anything is defined
        self._define(f"{name.strip()}{_T_T}", "CONSERVATIVE")
        self._impl(name, self._typed(name, dispatch, debug))
        return self

    @_theirs
    def def_schema_t_t(
        self,
        name: str,
        dispatch: str = "",
        alias: str = "",
        debug: str = "default_def_schema_t_t",
    ) -> _DispatchModule:
        """Defines by the schema that is called ``name`` here, and registers the kernel."""
        if _text(dispatch):
            _key(dispatch)
        defined = self._define(name, alias)
        self._impl(defined, self._typed(name, dispatch, debug))
        return self

    @_theirs
    def define(self, schema: str, alias_analysis: str = "", tags: Iterable[Any] = ()) -> str:
        """Returns the name as it was written, without the overload."""
        self._define(schema, alias_analysis, [getattr(tag, "name", tag) for tag in tags])
        return schema.partition("(")[0].partition(".")[0].strip()

    def _define(self, schema: str, alias: str, tags: Iterable[str] = ()) -> str:
        return self._opened()._define(schema, attributes_of(alias, list(tags)))

    # Kernels

    @_theirs
    def impl_t_t(self, name: str, dispatch: str = "", debug: str = "impl_t_t") -> _DispatchModule:
        self._impl(name, self._typed(name, dispatch, debug))
        return self

    @_theirs
    def impl(
        self,
        name: str,
        dispatch: DispatchKey | str,
        func: Callable[..., Any],
        with_keyset: bool = False,
    ) -> None:
        self._impl(name, self._kernel(name, dispatch, func, with_keyset))

    def _typed(self, name: str, dispatch: str, debug: str) -> LocalKernel:
        key = self._opened()._key(_key(dispatch) if _text(dispatch) else "", name)
        return LocalKernel(key, _same, signature=_T_T, label=debug or self._debug())

    def _kernel(
        self, name: str, dispatch: DispatchKey | str, func: Callable[..., Any], with_keyset: bool
    ) -> LocalKernel:
        key = self._opened()._key(_key(dispatch), name)
        return LocalKernel(key, _with_theirs(func, with_keyset), with_keyset)

    def _debug(self) -> str:
        return f"registered at {self._place}"

    def _impl(self, name: str, kernel: LocalKernel) -> None:
        library = self._opened()
        full = operator_name(library.namespace, name)
        there = [f for f in _found(full) if (f.kind, f.key) == (facts.IMPL, kernel.key)]
        library._impl(name, kernel)
        if there and kernel.key.name not in ("Meta", "MTIA"):
            self._warn_of_override(full, kernel, there[-1])

    def _warn_of_override(self, name: str, kernel: LocalKernel, previous: Registration) -> None:
        if self._registry in _warned:
            return
        _warned.add(self._registry)

        definitions = [f for f in _found(name) if f.kind == facts.DEF]
        what = definitions[-1].body if definitions else name
        new = kernel.label if kernel.signature else self._debug()
        warnings.warn(
            f"a kernel of {what} at {kernel.key} is overridden\n"
            f"  previous kernel: {_debug_of(previous)}\n  new kernel: {new}\n"
            "The previous one returns when the new one goes. This is said once, for all operators.",
            UserWarning,
            stacklevel=4,
        )

    # Fallbacks

    @_theirs
    def fallback_fallthrough(self, dispatch: str = "") -> _DispatchModule:
        self._fallback(_text(dispatch), fallthrough_kernel, False)
        return self

    @_theirs
    def fallback(
        self, dispatch: DispatchKey | str, func: Callable[..., Any], with_keyset: bool = False
    ) -> None:
        self._fallback(_key(dispatch), func, with_keyset)

    def _fallback(
        self, dispatch: DispatchKey | str, func: Callable[..., Any], with_keyset: bool
    ) -> None:
        library = self._opened()
        function = _with_theirs(func, with_keyset)
        if library.kind != "IMPL" or library.namespace != "_":
            # Raises, saying where fallbacks go.
            library.fallback(function, dispatch, with_keyset=with_keyset)
        key = _key(dispatch) if dispatch else library.key
        if not key:
            raise InvalidArgumentError("a fallback needs a dispatch key, here or in its library")
        # One by one, as there: those before one that is taken stay.
        for runtime in _keys.runtime_keys(key) if key.is_alias or key.raw else ():
            if key.is_alias or runtime is key:
                kernel = LocalKernel(runtime, function, with_keyset)
                library._hold(
                    fall_back(self._registry, kernel, lambda: self._place, library.timeout)
                )


def _with_theirs(func: Callable[..., Any], with_keyset: bool) -> Callable[..., Any]:
    """The function, given their kind of key set if it is given any."""
    checked_callable(func)
    if not with_keyset or func is fallthrough_kernel:
        return func

    @wraps(func)
    def with_theirs(key_set: _keys.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return func(_compat(key_set), *args, **kwargs)

    return with_theirs


#: Alias analysis as ``def_legacy`` leaves it: not said, which means conservative.
_UNSET = "UNSET"
_warned: weakref.WeakSet[Registry] = weakref.WeakSet()


@_theirs
def _dispatch_library(
    kind: str, name: str, dispatch: str, file: str = "/dev/null", linenum: int = 0
) -> _DispatchModule:
    """Opens a library: ``kind`` is DEF, FRAGMENT or IMPL, ``name`` the namespace."""
    place = f"{_text(file)}:{linenum.__index__()}"
    return _DispatchModule(_text(kind), _text(name), _text(dispatch), place)


# --- looking --------------------------------------------------------------------------------------


def _found(name: str) -> list[Registration]:
    return found(_registry(), _text(name))


def _named(name: str, overload: str) -> OperatorName:
    return OperatorName.parse(f"{_text(name)}.{overload}" if _text(overload) else _text(name))


def _debug_of(fact: Registration) -> str:
    """Kernels with a signature are called as they said, others by their place."""
    if fact.kind == facts.IMPL and fact.signature:
        return fact.body
    return f"registered at {fact.where}"


@_theirs
def _dispatch_dump(name: str) -> str:
    """The canonical state of an operator; "" when there is none of the name."""
    there = _found(name)
    if not there:
        return ""
    lines = [f"name: {OperatorName.parse(name)}"]
    definitions = [fact for fact in there if fact.kind == facts.DEF]
    if definitions:
        fact = definitions[-1]
        kind = "CONSERVATIVE (default)" if fact.alias_analysis == _UNSET else fact.alias_analysis
        lines += [f"schema: {fact.body}", f"debug: {_debug_of(fact)}"]
        lines.append(f"alias analysis kind: {kind}")
    else:
        lines.append("schema: (none)")
    kernels = [fact for fact in reversed(there) if fact.kind == facts.IMPL]
    for key in sorted({fact.key for fact in kernels}):
        name = DispatchKey(key).name + "[alias]" * DispatchKey(key).is_alias
        for position, fact in enumerate(fact for fact in kernels if fact.key == key):
            lines.append(f"{name}{' (inactive)' if position else ''}: {_kernel_line(fact)}")
    return "\n".join(lines) + "\n"


def _kernel_line(fact: Registration) -> str:
    kinds = " ".join(
        (
            *["fallthrough"] * (fact.body == FALLTHROUGH),
            "boxed",
            *["unboxed"] * bool(fact.signature),
        )
    )
    return f"{_debug_of(fact)} :: {fact.signature or '(none)'} [ {kinds} ]"


@_theirs
def _dispatch_dump_table(name: str) -> str:
    """The computed table of an operator; "" when there is none of the name."""
    if not _found(name):
        return ""
    rows = [row for row in table_rows(_registry(), name) if row.reason != "missing"]
    return "".join(f"{row.key}: {_table_line(row)} [{row.reason}]\n" for row in rows)


def _table_line(row: TableRow) -> str:
    if row.registration is not None:
        debug = _debug_of(row.registration)
    elif row.reason == "ambiguous autogradother":
        debug = "ambiguous_autogradother"
    else:
        debug = row.where
    return f"{'fallthrough ' if row.is_fallthrough else ''}{debug}"


@_theirs
def _dispatch_check_invariants(name: str) -> None:
    """Raises when what is derived for an operator is not what its registrations give."""
    _registry().check_invariants(_text(name))


@_theirs
def _dispatch_check_all_invariants() -> None:
    """The same for everything in the registry."""
    _registry().check_invariants()


@_theirs
def _dispatch_has_kernel(name: str) -> bool:
    """Whether there is an operator of the name, with or without kernels."""
    return bool(_found(name))


def _registered(name: str) -> dict[DispatchKey, Registration]:
    """The kernels in effect by key. Raises for an operator that is not there."""
    there = existing(_registry(), _text(name))
    return {DispatchKey(fact.key): fact for fact in there if fact.kind == facts.IMPL}


@_theirs
def _dispatch_has_kernel_for_dispatch_key(name: str, dispatch: DispatchKey | str) -> bool:
    """Whether there is a kernel at exactly this key."""
    return _key(dispatch) in _registered(name)


@_theirs
def _dispatch_has_kernel_for_any_dispatch_key(name: str, key_set: _keys.DispatchKeySet) -> bool:
    """Kernels of alias keys do not count."""
    _key_set(key_set)
    return any(key.raw and key_set.has(key) for key in _registered(name))


def _runtime(key: DispatchKey) -> DispatchKey:
    """The key whose slot theirs looks at: of a functionality its first backend's."""
    if key.is_alias:
        raise InvalidArgumentError(f"{key} stands for other keys and has no slot in a table")
    return _keys.functionality_to_backend_keys(key)[0]


@_theirs
def _dispatch_has_computed_kernel_for_dispatch_key(name: str, dispatch: str) -> bool:
    """Whether the computed table has a kernel in the slot of this key."""
    key = _runtime(_key(_text(dispatch)))
    full = existing(_registry(), name)[0].name
    table = _registry().entry(full).current_table()
    return table.entries[_keys.table_index(key)].reason != "missing"


@_theirs
def _dispatch_kernel_for_dispatch_key_is_fallthrough(
    name: str, dispatch: DispatchKey | str
) -> bool:
    """Whether the kernel at exactly this key falls through. Raises when there is none."""
    fact = _registered(name).get(_key(dispatch))
    if fact is None:
        raise InvalidArgumentError(f"{name} has no kernel at {dispatch}")
    return fact.body == FALLTHROUGH


def _dispatch_find_dangling_impls() -> list[str]:
    """The dumps of the operators that have kernels and no definition."""
    return [_dispatch_dump(name) for name in dangling(_registry())]


def _dispatch_get_all_op_names() -> list[str]:
    """The names of all operators that are there, also of those that are not defined."""
    return _dispatch_get_registrations_for_dispatch_key()


@_theirs
def _dispatch_get_registrations_for_dispatch_key(dispatch_key: str = "") -> list[str]:
    """The operators with a kernel at exactly this key; without one all that are there."""
    key = _key(dispatch_key) if _text(dispatch_key) else None
    _, _, there = _registry()._facts.registrations()
    kinds = (facts.DEF, facts.IMPL, facts.NAME) if key is None else (facts.IMPL,)
    return list(
        dict.fromkeys(
            fact.name for fact in there if fact.kind in kinds and (key is None or fact.key == key)
        )
    )


def _dispatch_print_registrations_for_dispatch_key(dispatch_key: str = "") -> None:
    """Prints what the function above returns, one per line."""
    for name in _dispatch_get_registrations_for_dispatch_key(dispatch_key):
        print(name)


@_theirs
def _dispatch_has_backend_fallback(key: DispatchKey | str) -> bool:
    """Whether a backend fallback serves this key."""
    runtime = _key(key)
    if runtime.is_alias:
        return False
    runtime = _runtime(runtime)
    facts_of = _registry()._facts
    return runtime in BUILTIN_FALLBACKS or facts_of.has(facts.FALLBACK, runtime, FALLBACK_NAME)


@_theirs
def _dispatch_pystub(name: str, overload: str) -> tuple[str, str] | None:
    """The Python module that an operator names for its fake kernel, and the context."""
    full = str(_named(name, overload))
    fact = _registry()._facts.find(facts.PYSTUB, 0, full)
    if fact is None:
        return None
    module, _, context = fact.body.partition("\n")
    return module, context


class _DispatchOperatorHandle:
    """An operator that was found."""

    def __init__(self, registry: Registry, name: OperatorName) -> None:
        self._operator = OpOverload(registry, str(name))
        self._name = str(name)
        self._registry = registry

    @_theirs
    def schema(self) -> FunctionSchema:
        schema: FunctionSchema = self._operator.schema
        return schema

    @_theirs
    def debug(self) -> str:
        self._operator.schema  # noqa: B018  # raises when it is gone
        with using(self._registry):
            fact = next(fact for fact in _found(self._name) if fact.kind == facts.DEF)
        return _debug_of(fact)

    @_theirs
    def redispatch_boxed(self, key_set: _keys.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return self._operator.redispatch(key_set, *args, **kwargs)


@_theirs
def _dispatch_find_schema_or_throw(name: str, overload_name: str) -> _DispatchOperatorHandle:
    """The handle of an operator that is defined."""
    full = _named(name, overload_name)
    there = _found(str(full))
    if not any(fact.kind == facts.DEF for fact in there):
        hint = "; it has kernels, but nobody defined it" if there else ""
        raise InvalidArgumentError(f"there is no schema for {full}{hint}")
    return _DispatchOperatorHandle(_registry(), full)


@_theirs
def _dispatch_call_boxed(handle: _DispatchOperatorHandle, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator by its handle."""
    if not isinstance(handle, _DispatchOperatorHandle):
        raise TypeError(f"this takes the handle of an operator, not {shown(handle)}")
    return handle._operator(*args, **kwargs)

"""PyTorch's module object of its dispatcher, by which its tests register, over our libraries."""

from __future__ import annotations

import warnings
import weakref
from functools import wraps
from operator import index as as_index

from .. import facts, keys
from ..dispatch.checks import attributes_of, checked_callable, operator_name
from ..dispatch.kernels import LocalKernel, fallthrough_kernel
from ..errors import InvalidArgumentError
from ..errors.locations import Location, registrants_location
from ..keys import DispatchKey
from ..registry import Registry
from ..registry.library import Library
from ..registry.register import fall_back
from .common import _debug_of, _found, _key, _registry, _text, _theirs
from .keys import _compat
from .schemas import parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..facts import Registration

__all__ = [
    "_dispatch_library",
    "_DispatchModule",
]

#: The schema of the kernels that their tests register: one Tensor in, one out.
_T_T = "(Tensor _0) -> Tensor _0"


def _pytorchs(schema: str, namespace: str) -> str:
    """The text, with our names of classes. SchemaSyntaxError for one that is only ours."""
    its = parsed(schema, namespace)
    return str(its) if "__torch__" in schema else schema


def _same(x: object) -> object:
    """The kernel of their tests: it returns its argument."""
    return x


class _DispatchModule:
    """Registers under one namespace. The registrations end with the object, or at ``reset()``."""

    @_theirs
    def __init__(self, kind: str, namespace: str, dispatch: str, location: Location) -> None:
        self._location = location
        self._registry = _registry()
        self._open = (namespace, kind, _key(dispatch) if dispatch else "")
        self._library: Library | None = None
        self._opened()

    def _opened(self) -> Library:
        """The open library. After a reset a new one, which no longer owns its namespace."""
        if self._library is None:
            namespace, kind, key = self._open
            self._library = Library(
                namespace, kind, key, registry=self._registry, _location=self._location
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
        """Defines an operator by its schema; ``alias`` is the alias analysis, "" for that of the
        schema. Returns the module.

        RuntimeError where ``Library.define`` refuses.
        """
        self._define(schema, alias)
        return self

    @_theirs
    def def_legacy(self, schema: str) -> _DispatchModule:
        """As :meth:`def_`, with nothing said about aliases: arguments may alias in any way."""
        self._opened().define_with_attributes(_pytorchs(schema, self._open[0]), _UNSET)
        return self

    @_theirs
    def def_name_t_t(
        self, name: str, dispatch: str = "", debug: str = "default_def_name_t_t"
    ) -> _DispatchModule:
        """Defines by the kernel's signature, one Tensor in and one out, and registers the kernel.
        Returns the module. RuntimeError as :meth:`def_` and :meth:`impl_t_t`.
        """
        if "(" in name:
            return self.def_schema_t_t(name, dispatch, debug=debug)
        if _text(dispatch):
            _key(dispatch)  # refuses a name of no key before anything is defined
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
        """Defines by a schema (the argument ``name``), and registers the kernel. Returns the
        module. RuntimeError as :meth:`def_` and :meth:`impl_t_t`.
        """
        if _text(dispatch):
            _key(dispatch)
        defined = self._define(name, alias)
        self._impl(defined, self._typed(name, dispatch, debug))
        return self

    @_theirs
    def define(self, schema: str, alias_analysis: str = "", tags: Iterable[Any] = ()) -> str:
        """Defines an operator. Returns the name as it was written, without the overload.
        RuntimeError as :meth:`def_`.
        """
        self._define(schema, alias_analysis, [getattr(tag, "name", tag) for tag in tags])
        return schema.partition("(")[0].partition(".")[0].strip()

    def _define(self, schema: str, alias: str, tags: Iterable[str] = ()) -> str:
        its = _pytorchs(schema, self._open[0])
        return self._opened().define_with_attributes(its, attributes_of(alias, list(tags)))

    # Kernels

    @_theirs
    def impl_t_t(self, name: str, dispatch: str = "", debug: str = "impl_t_t") -> _DispatchModule:
        """Registers a kernel that returns its one argument, at ``dispatch``, else at the module's
        key; ``debug`` is its name. Returns the module.

        RuntimeError where ``Library.impl`` refuses. A UserWarning, once, when it overrides another
        kernel.
        """
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
        """Registers a function as a kernel, with the key set as its first argument if
        ``with_keyset``.

        RuntimeError where ``Library.impl`` refuses. A UserWarning, once, when it overrides another
        kernel.
        """
        self._impl(name, self._kernel(name, dispatch, func, with_keyset))

    def _typed(self, name: str, dispatch: str, debug: str) -> LocalKernel:
        key = self._opened().key_for(_key(dispatch) if _text(dispatch) else "", name)
        return LocalKernel(key, _same, signature=_T_T, label=debug or self._debug())

    def _kernel(
        self, name: str, dispatch: DispatchKey | str, func: Callable[..., Any], with_keyset: bool
    ) -> LocalKernel:
        key = self._opened().key_for(_key(dispatch), name)
        return LocalKernel(key, _with_theirs(func, with_keyset), with_keyset)

    def _debug(self) -> str:
        return f"registered at {self._location}"

    def _impl(self, name: str, kernel: LocalKernel) -> None:
        library = self._opened()
        full = operator_name(library.namespace, name)
        there = [f for f in _found(full) if (f.kind, f.key) == (facts.IMPL, kernel.key)]
        library.implement(name, kernel)
        if there and self._registry.is_main and kernel.key.name not in ("Meta", "MTIA"):
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
        """Makes calls skip the key where an operator has no kernel for it. Returns the module.
        RuntimeError as :meth:`fallback`.
        """
        self._fallback(_text(dispatch), fallthrough_kernel, False)
        return self

    @_theirs
    def fallback(
        self, dispatch: DispatchKey | str, func: Callable[..., Any], with_keyset: bool = False
    ) -> None:
        """Registers a backend fallback: at an alias key, one for each key that it stands for.

        RuntimeError where ``Library.fallback`` refuses.
        """
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
        # One by one, as in PyTorch: if a key is taken, the fallbacks registered before it stay.
        for runtime in keys.runtime_keys(key) if key.is_alias or key.raw else ():
            if key.is_alias or runtime is key:
                kernel = LocalKernel(runtime, function, with_keyset)
                library.hold(
                    fall_back(
                        self._registry.dispatcher, kernel, self._location.itself, library.timeout
                    )
                )


def _with_theirs(func: Callable[..., Any], with_keyset: bool) -> Callable[..., Any]:
    """The function, called with PyTorch's class of key sets if it takes a key set."""
    checked_callable(func)
    if not with_keyset or func is fallthrough_kernel:
        return func

    @wraps(func)
    def with_theirs(key_set: keys.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return func(_compat(key_set), *args, **kwargs)

    return with_theirs


#: The alias analysis of ``def_legacy``: unset, which means conservative.
_UNSET = "UNSET"
_warned: weakref.WeakSet[Registry] = weakref.WeakSet()


@_theirs
def _dispatch_library(
    kind: str, name: str, dispatch: str, file: str = "/dev/null", linenum: int = 0
) -> _DispatchModule:
    """Opens a library: ``kind`` is DEF, FRAGMENT or IMPL, ``name`` the namespace, ``dispatch`` the
    key of kernels registered without one, or "".

    RuntimeError where ``Library`` refuses, for instance a second DEF of a namespace.
    """
    location = Location(f"{_text(file)}:{as_index(linenum)}", registrants_location().module)
    return _DispatchModule(_text(kind), _text(name), _text(dispatch), location)

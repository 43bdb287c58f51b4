"""PyTorch's other names for registering, from torch/library.py and torch/_library/custom_ops.py.

An operator that is defined here is exported to PyTorch when PyTorch wants to see a call of it, as
one of :func:`mdispatch.custom_op` is. Errors of functions are those of the functions of the same
names in mdispatch; a method of Library raises RuntimeError.
"""

from __future__ import annotations

import warnings

from .. import fake
from ..authoring import custom_op as custom_ops
from ..authoring import functions
from ..authoring.autograd import register_autograd as _register_autograd
from ..authoring.opcheck.check import opcheck
from ..dispatch.checks import check_namespace, check_reserved
from ..dispatch.peers import WHEN_WANTED
from ..registry import fake_kernels
from ..registry import library as libraries
from .common import _registry, _theirs
from .library import _pytorchs, _with_theirs
from .operators import OpOverload, viewed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, TypeVar

    from ..authoring.computed_kernel import ComputedKernel
    from ..authoring.targets import Op, Types
    from ..dispatch.entry import OperatorEntry
    from ..keys import DispatchKey
    from ..registry import Registry

    F = TypeVar("F", bound=Callable[..., Any])
    _CustomOpDef = custom_ops.CustomOpDef[..., Any]
else:
    _CustomOpDef = custom_ops.CustomOpDef

__all__ = [
    "CustomOpDef",
    "Library",
    "_scoped_library",
    "custom_op",
    "define",
    "get_ctx",
    "get_kernel",
    "impl",
    "impl_abstract",
    "opcheck",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_torch_dispatch",
    "register_vmap",
]


def _words(tags: Any) -> list[str]:
    """PyTorch's tags are objects with names, one or several."""
    several = [tags] if isinstance(tags, str) or not hasattr(tags, "__iter__") else tags
    return [getattr(each, "name", each) for each in several]


def _of(op: Op, lib: libraries.Library | None) -> Registry | None:
    """The registry of a name. An operator or a library has one."""
    return _registry() if isinstance(op, str) and lib is None else None


# --- libraries ------------------------------------------------------------------------------------


class Library(libraries.Library):
    """A library by PyTorch's names. It ends by ``_destroy()`` or ``close()``, and by nothing else.

    ValueError for a kind that there is not and for a namespace that is reserved. (torch: Library)
    """

    def __init__(self, ns: str, kind: str, dispatch_key: DispatchKey | str = "") -> None:
        #: They would end where nobody refers to them, and with them the way into PyTorch.
        self._entries: list[OperatorEntry] = []
        check_namespace(ns, kind)
        check_reserved(ns, kind)
        self._open(ns, kind, dispatch_key)

    @_theirs
    def _open(self, ns: str, kind: str, dispatch_key: DispatchKey | str) -> None:
        super().__init__(ns, kind, dispatch_key, registry=_registry())

    @property
    def ns(self) -> str:
        """The namespace."""
        return self.namespace

    @property
    def dispatch_key(self) -> str:
        """The name of the key of kernels registered without one, or ""."""
        return self.key.name if self.key is not None else ""

    @_theirs
    def define(  # type: ignore[override]
        self, schema: str, alias_analysis: str = "", *, tags: Any = ()
    ) -> str:
        """Defines an operator in PyTorch's language of schemas. Returns the name as it was written,
        without the overload. A tag is one of PyTorch's or its name.
        """
        its = _pytorchs(schema, self.namespace)
        super().define(its, alias_analysis=alias_analysis, tags=_words(tags))
        return schema.partition("(")[0].partition(".")[0].strip()

    def define_with_attributes(self, schema: str, *args: Any, **options: Any) -> str:
        name = super().define_with_attributes(schema, *args, **options)
        entry = self.registry.dispatcher.entry(name)
        if entry.peer is None:
            entry.peer = WHEN_WANTED
        self._entries.append(entry)
        return name

    def close(self) -> None:
        """Ends all registrations; does nothing when called again."""
        super().close()
        self._entries.clear()

    @_theirs
    def impl(  # type: ignore[override]
        self,
        op_name: str | OpOverload,
        fn: Callable[..., Any],
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> None:
        """Registers a kernel, which gets the key set first if ``with_keyset``."""
        super().impl(
            op_name,
            _with_theirs(fn, with_keyset),
            dispatch_key,
            with_keyset=with_keyset,
            allow_override=allow_override,
        )

    @_theirs
    def fallback(
        self,
        fn: Callable[..., Any],
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
    ) -> None:
        """Registers a backend fallback, in an IMPL library of the namespace "_"."""
        super().fallback(_with_theirs(fn, with_keyset), dispatch_key, with_keyset=with_keyset)

    @_theirs
    def _register_fake(
        self,
        op_name: str,
        fn: Callable[..., Any],
        _stacklevel: int = 1,
        *,
        allow_override: bool = True,
    ) -> None:
        self.register_fake(op_name, fn, allow_override=allow_override)

    @_theirs
    def _register_torch_dispatch_rule(
        self, op_name: str, torch_dispatch_class: type, fn: Callable[..., Any]
    ) -> None:
        functions.register_dispatch_rule(op_name, torch_dispatch_class, fn, lib=self)

    def _destroy(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Library(kind={self.kind}, ns={self.ns}, dispatch_key={self.dispatch_key})"


class _scoped_library(Library):
    """A library that ends with its ``with`` block. (torch: _scoped_library)"""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the library."""
        self.close()


# --- operators ------------------------------------------------------------------------------------


class CustomOpDef(_CustomOpDef):
    """An operator made from a function, with PyTorch's names. (torch: CustomOpDef)"""

    @property
    def _qualname(self) -> str:
        return self.name

    @property
    def _namespace(self) -> str:
        return self.namespace

    @property
    def _name(self) -> str:
        return self.name.partition("::")[2]

    @property
    def _opoverload(self) -> OpOverload:
        return viewed(self.operator)

    def register_torch_dispatch(self, torch_dispatch_class: type, fn: Any = None, /) -> Any:
        """:meth:`mdispatch.CustomOpDef.register_dispatch_rule`, for PyTorch's classes, too."""
        return self.register_dispatch_rule(torch_dispatch_class, fn)


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Types | None = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """:func:`mdispatch.custom_op`. The operator has PyTorch's names: see CustomOpDef."""
    make: Any = custom_ops.custom_op
    return make(
        name,
        fn,
        mutates_args=mutates_args,
        device_types=device_types,
        schema=schema,
        tags=() if tags is None else _words(tags),
        registry=_registry(),
        _made=CustomOpDef,
    )


def define(what: str | libraries.Library, schema: str, alias_analysis: str = "", **how: Any) -> Any:
    """:func:`mdispatch.define`. With a library in place of the name, a decorator: it defines the
    operator in it, and registers the function as its kernel. Errors as those of ``Library``.
    """
    if not isinstance(what, libraries.Library):
        how["tags"] = _words(how.get("tags", ()))
        how.setdefault("registry", _of(what, how.get("lib")))
        return functions.define(what, schema, alias_analysis=alias_analysis, **how)
    library = what

    def decorate(function: F) -> F:
        library.impl(library.define(schema, alias_analysis=alias_analysis), function)
        return function

    return decorate


def impl(what: Any, name: Any, function: Any = None, **options: Any) -> Any:
    """:func:`mdispatch.impl`. With a library first, a decorator: ``impl(lib, name, key="")``
    registers the function as ``lib.impl`` does. Errors likewise.
    """
    if not isinstance(what, libraries.Library):
        options.setdefault("registry", _of(what, options.get("lib")))
        return functions.impl(what, name, function, **options)
    library, key = what, options.pop("dispatch_key", function or "")

    def decorate(given: F) -> F:
        library.impl(name, given, key, **options)
        return given

    return decorate


def register_kernel(
    op: Op,
    device_types: Types | None,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: libraries.Library | None = None,
) -> Any:
    """:func:`mdispatch.register_kernel`."""
    given: Any = func
    return functions.register_kernel(op, device_types, given, lib=lib, registry=_of(op, lib))


def register_fake(
    op: Op,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: libraries.Library | None = None,
    allow_override: bool = True,
) -> Any:
    """:func:`mdispatch.register_fake`."""
    given: Any = func
    return fake.register_fake(
        op, given, lib=lib, registry=_of(op, lib), allow_override=allow_override
    )


def register_autograd(
    op: Op,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: libraries.Library | None = None,
) -> None:
    """:func:`mdispatch.register_autograd`."""
    _register_autograd(op, backward, setup_context=setup_context, lib=lib, registry=_of(op, lib))


def register_vmap(
    op: Op,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: libraries.Library | None = None,
) -> Any:
    """:func:`mdispatch.register_vmap`."""
    given: Any = func
    return functions.register_vmap(op, given, lib=lib, registry=_of(op, lib))


def register_autocast(
    op: Op,
    device_type: str,
    cast_inputs: Any,
    /,
    *,
    lib: libraries.Library | None = None,
) -> None:
    """:func:`mdispatch.register_autocast`."""
    functions.register_autocast(op, device_type, cast_inputs, lib=lib, registry=_of(op, lib))


def register_torch_dispatch(
    op: Op,
    torch_dispatch_class: type,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: libraries.Library | None = None,
) -> Any:
    """:func:`mdispatch.register_dispatch_rule`, for PyTorch's classes, too."""
    given: Any = func
    return functions.register_dispatch_rule(
        op, torch_dispatch_class, given, lib=lib, registry=_of(op, lib)
    )


def get_kernel(op: Op, dispatch_key: DispatchKey | str) -> ComputedKernel:
    """:func:`mdispatch.get_kernel`."""
    return functions.get_kernel(op, dispatch_key, registry=_of(op, None))


# --- fake kernels ---------------------------------------------------------------------------------


class FakeImplCtx:
    """The context of one run of a fake kernel. (torch: FakeImplCtx)"""

    __slots__ = ("_context",)

    def __init__(self, context: fake.FakeContext) -> None:
        self._context = context

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """:meth:`mdispatch.fake.FakeContext.new_dynamic_size`."""
        return self._context.new_dynamic_size(min=min, max=max)

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> Any:
        """An old name of ``new_dynamic_size``, with another default. Warns (FutureWarning)."""
        warnings.warn(
            "create_unbacked_symint is PyTorch's old name: call new_dynamic_size",
            FutureWarning,
            stacklevel=2,
        )
        return self.new_dynamic_size(min=min, max=max)


@_theirs
def get_ctx() -> FakeImplCtx:
    """The context of the fake kernel that is running in this thread. RuntimeError when none is."""
    return FakeImplCtx(fake_kernels.get_ctx())


def impl_abstract(qualname: Any, func: Any = None, *, lib: Any = None) -> Any:
    """The name that :func:`mdispatch.register_fake` had. Warns (FutureWarning)."""
    warnings.warn(
        "impl_abstract is PyTorch's old name: call register_fake", FutureWarning, stacklevel=2
    )
    return register_fake(qualname, func, lib=lib)

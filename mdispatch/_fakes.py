"""Fake kernels: what runs at Meta, and the context that it may ask for sizes that depend on data.

A fake kernel is registered like any other, so it is a fact that workers verify, the newest is in
effect, and the earlier one returns when it goes.

(torch._library.fake_impl: FakeImplHolder, FakeImplCtx)
"""

from __future__ import annotations

from _thread import _local

from ._arguments import checked_callable, operator_name
from ._kernels import LocalKernel
from ._keys import DispatchKey
from ._place import caller, label_of, place_of
from ._pystubs import check_module, module_of
from ._sizes import new_size
from .errors import InvalidArgumentError, MdispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ._registry import RegistryProtocol
    from ._sizes import DynamicSize
    from .library import Library
    from .operators import OpOverload

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["FakeContext", "FakeKernel", "get_ctx", "register_fake_in"]

#: The greatest size there is, as in all array libraries.
_GREATEST = 2**63 - 1


class FakeContext:
    """What one run of a fake kernel can ask for. ``operator`` is the operator's name.

    (torch: FakeImplCtx)
    """

    __slots__ = ("_made", "operator")

    def __init__(self, operator: str, outer: FakeContext | None = None) -> None:
        self.operator = operator
        # Sizes from inside appear outside: one count for both, or two of them would read alike.
        self._made: list[DynamicSize] = outer._made if outer is not None else []

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> DynamicSize:
        """A size that depends on data: from ``min`` to ``max`` elements, None for any number.

        They are called u0, u1, ... in their order within the outermost fake kernel that runs. Every
        one is like no other. Raises InvalidArgumentError for bounds that no size is within. (torch:
        get_ctx().new_dynamic_size, an unbacked SymInt)
        """
        for name, value in (("min", min), ("max", max)):
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if not fits and not (name == "max" and value is None):
                from ._nearest import shown

                raise InvalidArgumentError(
                    f"new_dynamic_size({name}={shown(value)}): a bound of a size is an int, 0 or "
                    "more"
                )
        if min > (_GREATEST if max is None else max) or (max or 0) > _GREATEST:
            raise InvalidArgumentError(
                f"new_dynamic_size(min={min}, max={max}): no size is within these bounds"
            )
        size = new_size(f"u{len(self._made)}", min, max)
        self._made.append(size)
        return size

    def __repr__(self) -> str:
        return f"<fake kernel of {self.operator}, {len(self._made)} dynamic sizes>"


class _Running(_local):
    """The context of the fake kernel that this thread runs."""

    now: FakeContext | None = None


_running = _Running()


def get_ctx() -> FakeContext:
    """The context of the fake kernel that is running in this thread: for sizes that depend on data,
    ``get_ctx().new_dynamic_size()``.

    Raises MdispatchError when none is running. (torch: torch.library.get_ctx)
    """
    context = _running.now
    if context is None:
        raise MdispatchError(
            "get_ctx() is for fake kernels while they run, and none runs in this thread\nCall it "
            "in the function that you give to register_fake, not beside it."
        )
    return context


class FakeKernel:
    """The callable at Meta: runs ``function`` with a context of its own.

    Where it comes from is compared with the operator's pystub once, at the first run: the operator
    may be defined after it.
    """

    __slots__ = ("_checked", "_module", "_where", "function", "operator", "registry")

    def __init__(
        self,
        registry: RegistryProtocol,
        operator: str,
        function: Callable[..., Any],
        module: str,
        where: str,
    ) -> None:
        self.registry = registry
        self.operator = operator
        self.function = function
        self._module = module
        self._where = where
        self._checked = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self._checked:
            check_module(self.registry, self.operator, self._module, self._where)
            self._checked = True
        outer = _running.now
        _running.now = FakeContext(self.operator, outer)
        try:
            return self.function(*args, **kwargs)
        finally:
            _running.now = outer

    def __repr__(self) -> str:
        return f"<fake kernel {label_of(self.function)} of {self.operator}>"


def register_fake_in(
    library: Library, op: str | OpOverload, function: F, allow_override: bool = True
) -> F:
    """Registers ``function`` as the fake kernel of an operator, in ``library``. Returns it. See
    register_fake.
    """
    library._check_open()
    checked_callable(function)
    given: Any = op if isinstance(op, str) else getattr(op, "name", op)
    name = operator_name(library.namespace, given)
    key = library._key(DispatchKey.Meta, name)
    library._check_meta(name)
    frame = caller()
    facts = library.registry._facts
    kernel = FakeKernel(facts, name, function, module_of(frame), place_of(frame))
    library._impl(name, LocalKernel(key, kernel, label=label_of(function)), allow_override)
    return function

"""Fake kernels, which run at Meta, and the context that gives them sizes that depend on data.

A fake kernel is registered like any kernel: it is a registration that workers verify, the newest
one is in effect, and the one before it returns when the newest is closed.

(torch._library.fake_impl: FakeImplHolder, FakeImplCtx)
"""

from __future__ import annotations

from _thread import _local

from ..errors import InvalidArgumentError, MdispatchError
from ..errors.locations import caller, label_of, location_of
from ..facts.modules import check_module, module_of
from ..schema.sizes import new_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ..facts.abc import Facts
    from ..schema.sizes import DynamicSize

    F = TypeVar("F", bound=Callable[..., Any])

#: The greatest size there is, as in all array libraries.
_GREATEST = 2**63 - 1


class MetaValue:
    """What stands for a tensor without data: ``shape``, ``strides``, ``dtype`` and ``device``."""

    __slots__ = ()


class FakeContext:
    """The context of one run of a fake kernel. ``operator`` is the operator's name.

    (torch: FakeImplCtx)
    """

    __slots__ = ("_made", "_new_size", "operator")

    def __init__(
        self,
        operator: str,
        outer: FakeContext | None = None,
        new_size: Callable[..., Any] | None = None,
    ) -> None:
        self.operator = operator
        if new_size is None and outer is not None:
            new_size = outer._new_size
        self._new_size: Callable[..., Any] | None = new_size
        # Inner sizes appear in outer kernels: with a count of its own, an inner kernel would use a
        # name twice.
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
                from ..errors.words import shown

                raise InvalidArgumentError(
                    f"new_dynamic_size({name}={shown(value)}): a bound of a size is an int, 0 or "
                    "more"
                )
        if min > (_GREATEST if max is None else max) or (max or 0) > _GREATEST:
            raise InvalidArgumentError(
                f"new_dynamic_size(min={min}, max={max}): no size is within these bounds"
            )
        if self._new_size is not None:
            made: DynamicSize = self._new_size(min=min, max=max)
            return made
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
            "get_ctx() works only inside a running fake kernel, and none is running in this "
            "thread\nCall it inside the function that you give to register_fake."
        )
    return context


class with_sizes_of:
    """While it is open, fake kernels of this thread run for PyTorch: their dynamic sizes are those
    that PyTorch's function makes.
    """

    __slots__ = ("_before", "_new_size")

    def __init__(self, new_size: Callable[..., Any]) -> None:
        self._new_size = new_size

    def __enter__(self) -> None:
        self._before = _running.now
        _running.now = FakeContext("", None, self._new_size)

    def __exit__(self, *exc: object) -> None:
        _running.now = self._before


def runs_for_torch() -> bool:
    """Whether this thread runs a fake kernel for PyTorch, with its tensors."""
    return _running.now is not None and _running.now._new_size is not None


class FakeKernel:
    """The callable at Meta: runs ``function`` with a context of its own.

    The first run compares its module with the one that the operator names. It cannot be compared
    earlier: the operator may be defined after its fake kernel.
    """

    __slots__ = ("_checked", "_module", "_where", "function", "operator", "registry")

    def __init__(
        self,
        registry: Facts,
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


def fake_kernel(facts: Facts, operator: str, function: Callable[..., Any]) -> FakeKernel:
    """The callable at Meta that runs ``function``. Its module is that of the nearest caller outside
    mdispatch.
    """
    frame = caller()
    return FakeKernel(facts, operator, function, module_of(frame), location_of(frame))

"""Rules: what one operator does in one interpreter only. They are its Python kernels by key, and
its rules by class and by type of transform.

A rule is not a registration of the registry: it is a callable for objects (modes, types,
transforms) that no other interpreter has. It ends with the definition. A rule that a module
registers again when it is run again replaces the earlier one; any other second rule is an error.
"""

from __future__ import annotations

import sys

from ..errors import DuplicateRegistrationError, InvalidArgumentError, InvalidKeyError
from ..errors.locations import caller, label_of, location_of
from ..errors.runs import Run
from ..forking import new_lock
from ..keys.numbers import DispatchKey, parse_key
from .checks import checked_callable
from .kernels import fallthrough_kernel
from .table import compute_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TypeAlias, TypeVar

    from ..facts import Registration
    from .context.transforms import TransformType
    from .table import DispatchTable

    F = TypeVar("F", bound=Callable[..., Any])
    #: What a rule is for.
    RuleKey: TypeAlias = DispatchKey | type | TransformType

#: Held while any rules of this interpreter change, which is rare.
lock = new_lock()


class Rule:
    """A function for a key, a class or a type of transform, and where it was registered.

    A plain rule is called with the arguments of the operator; the mode or the transform comes first
    if the rule is for one. A ``full`` rule is called like ``__md_dispatch__``: (mode or class, op,
    types, args, kwargs).
    """

    __slots__ = ("full", "function", "run", "where")

    def __init__(self, function: Callable[..., Any], full: bool = False) -> None:
        frame = caller()
        self.function = function
        self.where = location_of(frame)
        self.run = None if frame is None else Run(frame)
        self.full = full

    def replaces(self, earlier: Rule) -> bool:
        """Whether this is the same rule, from a later run of its module."""
        return self.run is not None and earlier.run is not None and self.run.replaces(earlier.run)


def is_asked_by_torch(cls: type) -> bool:
    """Whether calls come to this class of modes or of tensors from PyTorch's dispatcher."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    method = getattr(cls, "__torch_dispatch__", None)
    return tensor is not None and method not in (None, tensor.__torch_dispatch__)


class PythonKernel(Rule):
    """A rule for a dispatch key: it stands in a table like a kernel."""

    __slots__ = ()
    is_fallthrough = False

    @property
    def label(self) -> str:
        return label_of(self.function)


class RuleHandle:
    """``close`` ends a rule. Idempotent."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self) -> None:
        self._end()


def _at_home(function: Any) -> Any:
    """The function in a SafeObject if that is at home here; else the object itself. A call that
    would come to a rule of another interpreter is refused, see dispatch/placement.py.
    """
    from .context.hermetic import SafeObject

    if isinstance(function, SafeObject):
        return function.open() if function.is_home else function
    return checked_callable(function)


def _check_key(key: DispatchKey) -> None:
    if key is DispatchKey.Python:
        raise InvalidKeyError(
            "at the key Python, modes and types decide: register the rule for the class of a mode "
            "or of a value",
            key,
        )
    if key is DispatchKey.Undefined:
        raise InvalidKeyError("a Python kernel needs a key, and Undefined is not one", key)


class Rules:
    """``py_kernels`` has the rules by dispatch key, ``by_class`` those by class of mode or type,
    ``by_transform`` those by type of transform.

    A change puts a new dict in place of the old one, under a lock; so calls read without the lock.
    """

    __slots__ = (
        "_merged",
        "_ruled",
        "by_class",
        "by_transform",
        "definition",
        "name",
        "py_kernels",
    )

    def __init__(
        self,
        name: str,
        ruled: Callable[[], object] = int,
        definition: Registration | None = None,
    ) -> None:
        self.name = name
        #: The definition that they are for; None where that has ended.
        self.definition = definition
        #: Called when the operator gets a rule for a class, so that calls in C take notice.
        self._ruled = ruled
        self.py_kernels: dict[DispatchKey, PythonKernel] = {}
        self.by_class: dict[type, Rule] = {}
        self.by_transform: dict[TransformType, Rule] = {}
        self._merged: tuple[DispatchTable, object, DispatchTable] | None = None

    def add_kernel(self, key: DispatchKey, function: Callable[..., Any]) -> RuleHandle:
        """InvalidKeyError for Python and Undefined, InvalidArgumentError for what cannot be called,
        DuplicateRegistrationError.
        """
        _check_key(key)
        if function is fallthrough_kernel:
            raise InvalidArgumentError(
                "fallthrough_kernel is not a rule: for a higher-order operator call "
                "fallthrough(key), for any other operator register it with Library.impl"
            )
        rule = PythonKernel(checked_callable(function))
        return self._add("py_kernels", key, rule, key.name)

    def add_class(self, cls: type, function: Callable[..., Any], full: bool) -> RuleHandle:
        """InvalidArgumentError for a class that never sees a call, DuplicateRegistrationError."""
        from .context.modes import DispatchMode

        if not isinstance(cls, type):
            raise InvalidArgumentError(
                f"a rule is for a dispatch key, or for a class of modes or of values, not for a "
                f"{type(cls).__qualname__}"
            )
        asked = issubclass(cls, DispatchMode) or getattr(cls, "__md_dispatch__", None) is not None
        if not asked and not is_asked_by_torch(cls):
            raise InvalidArgumentError(
                f"{cls.__qualname__} gets no calls: it is neither a DispatchMode nor a type with "
                "__md_dispatch__"
            )
        rule = Rule(_at_home(function), full)
        self._ruled()
        return self._add("by_class", cls, rule, cls.__qualname__)

    def add_transform(self, kind: TransformType, function: Callable[..., Any]) -> RuleHandle:
        """InvalidArgumentError for anything but a TransformType, DuplicateRegistrationError."""
        from .context.transforms import TransformType

        if not isinstance(kind, TransformType):
            raise InvalidArgumentError(
                "a rule is for a dispatch key, a TransformType, or a class of modes or of values, "
                f"not for a {type(kind).__qualname__}"
            )
        rule = Rule(checked_callable(function))
        return self._add("by_transform", kind, rule, repr(kind))

    def _add(self, what: str, key: Any, rule: Rule, label: str) -> RuleHandle:
        with lock:
            rules = getattr(self, what)
            earlier = rules.get(key)
            if earlier is not None and not rule.replaces(earlier):
                raise DuplicateRegistrationError(
                    f"{self.name} has a rule for {label} already, and takes only one in each "
                    f"interpreter\n  first:  {earlier.where}\n  second: {rule.where}\nClose the "
                    "first one before you register the second.",
                    "rule",
                    self.name,
                    label,
                    earlier.where,
                    rule.where,
                )
            setattr(self, what, {**rules, key: rule})
        return RuleHandle(lambda: self._drop(what, key, rule))

    def _drop(self, what: str, key: Any, rule: Rule) -> None:
        with lock:
            rules = getattr(self, what)
            if rules.get(key) is rule:
                left = dict(rules)
                del left[key]
                setattr(self, what, left)

    def adding(
        self, places: Sequence[DispatchKey | str | type | TransformType]
    ) -> Callable[[F], F]:
        """A decorator that registers one function at all these places, or at none."""
        if not places:
            raise InvalidArgumentError("a Python kernel needs a dispatch key or a class")
        keys = [
            parse_key(each) if isinstance(each, (str, DispatchKey)) else each for each in places
        ]
        for each in keys:
            if isinstance(each, DispatchKey):
                _check_key(each)

        def add(function: F) -> F:
            self.add_all([(place, function) for place in keys])
            return function

        return add

    def add_all(self, rules: Sequence[tuple[RuleKey, Callable[..., Any]]]) -> None:
        """Registers each function at its place. If one is refused, everything is as before."""
        with lock:
            before = (self.py_kernels, self.by_class, self.by_transform)
            try:
                for place, function in rules:
                    if isinstance(place, DispatchKey):
                        self.add_kernel(place, function)
                    elif isinstance(place, type):
                        self.add_class(place, function, full=False)
                    else:
                        self.add_transform(place, function)
            except BaseException:
                self.py_kernels, self.by_class, self.by_transform = before
                raise

    def merged(self, table: DispatchTable) -> DispatchTable:
        """The operator's table with its Python kernels in it. At the same key a Python kernel comes
        before a registered one.
        """
        merged, rules = self._merged, self.py_kernels
        if merged is None or merged[0] is not table or merged[1] is not rules:
            kernels = {**table.kernels, **rules}
            merged = (table, rules, compute_table(kernels, table.fallbacks))
            self._merged = merged
        return merged[2]

    def of_class(self, cls: type) -> Iterator[Rule]:
        """The rule for instances of a class: the first one in the class's order of resolution,
        unless an ``__md_dispatch__`` of the class or of a base comes before it.
        """
        rules = self.by_class
        if rules:
            for base in cls.__mro__:
                if base in rules:
                    yield rules[base]
                    return
                if "__md_dispatch__" in base.__dict__:
                    return

    def chosen(self, cls: type) -> Rule | None:
        """The rule of :meth:`of_class`; None where the class's own ``__md_dispatch__`` is asked."""
        return next(self.of_class(cls), None)

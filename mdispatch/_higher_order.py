"""The names of higher-order operators, and what one does at each key, or why nothing: see
higher_order.py.
"""

from __future__ import annotations

from ._keys import DispatchKey, table_index
from ._nearest import nearest, shown
from ._place import caller
from ._rules import PythonKernel, Rules, lock
from ._table import compute_table
from .errors import (
    AmbiguousKernelError,
    DuplicateRegistrationError,
    MissingKernelError,
    MissingRuleError,
    OperatorNotFoundError,
)
from .transforms import FRONT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ._rules import Rule
    from ._table import DispatchTable
    from .higher_order import HigherOrderOperator

__all__ = ["ASKED", "NAMESPACE", "HigherOrderRules", "claim_name", "find_higher_order"]
__all__ += ["give_up_name", "higher_order_names", "maker"]

NAMESPACE = "higher_order"

#: Where modes, types and transforms are asked.
ASKED = (DispatchKey.Python, DispatchKey.PreDispatch, FRONT)


# By name: those of this interpreter, as its modules are.
_operators: dict[str, HigherOrderOperator] = {}


def find_higher_order(name: str) -> HigherOrderOperator:
    """The operator of a name, without its namespace. OperatorNotFoundError, with the nearest names.

    (PyTorch: torch.ops.higher_order)
    """
    operator = _operators.get(name)
    if operator is not None:
        return operator
    near = nearest(name, _operators)
    known = ", ".join(sorted(_operators)[:8]) or "none"
    hint = f"did you mean {', '.join(near)}?" if near else f"this interpreter has {known}"
    raise OperatorNotFoundError(
        f"there is no higher-order operator {shown(name)}; {hint}", f"{NAMESPACE}::{name}", near
    )


def higher_order_names() -> list[str]:
    """The names of this interpreter's higher-order operators, sorted."""
    return sorted(_operators)


def maker(operator: HigherOrderOperator) -> FrameType | None:
    """The frame that makes the operator: not that of a subclass's constructor."""
    frame = caller()
    while frame is not None and frame.f_code.co_name == "__init__":
        names = frame.f_code.co_varnames
        if not names or frame.f_locals.get(names[0]) is not operator:
            break
        frame = frame.f_back
    return frame


def claim_name(operator: HigherOrderOperator) -> None:
    """Makes it the one of its name. DuplicateRegistrationError when one of another place is."""
    name = operator.__name__
    with lock():
        earlier = _operators.get(name)
        if earlier is None or earlier.where == operator.where:
            _operators[name] = operator
            return
        raise DuplicateRegistrationError(
            f"there is a higher-order operator {name} already, and one of a name in each "
            f"interpreter\n  first:  {earlier.where}\n  second: {operator.where}\n"
            "Choose another name, or close the first one.",
            "higher-order operator",
            operator.name,
            "",
            earlier.where,
            operator.where,
        )


def give_up_name(operator: HigherOrderOperator) -> None:
    """Unless another one has it by now."""
    with lock():
        if _operators.get(operator.__name__) is operator:
            del _operators[operator.__name__]


class HigherOrderRules(Rules):
    """There are no kernels but these, and no backend fallbacks. ``__md_dispatch__`` counts only in
    classes that say that they support such operators.
    """

    __slots__ = ("_no_kernels",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._no_kernels = compute_table({}, {})

    def table(self) -> DispatchTable:
        """What runs at each key."""
        return self.merged(self._no_kernels)

    def at(self, key: DispatchKey) -> PythonKernel | None:
        """The rule that runs at a runtime key. InvalidKeyError for a key without a slot."""
        kernel = self.table().entries[table_index(key)].kernel
        return kernel if isinstance(kernel, PythonKernel) else None

    def of_class(self, cls: type, end: type | None = None) -> Iterator[Rule]:
        supports = getattr(cls, "supports_higher_order_operators", False)
        for base in cls.__mro__:
            if base in self.by_class:
                yield self.by_class[base]
                return
            if supports and "__md_dispatch__" in base.__dict__:
                return

    def chosen(self, cls: type) -> Rule | None:
        rule = super().chosen(cls)
        if rule is None and not getattr(cls, "supports_higher_order_operators", False):
            classes = [each.__qualname__ for each in self.by_class]
            error = MissingRuleError(
                f"{self.name} has no rule for {cls.__module__}.{cls.__qualname__}, whose "
                f"__md_dispatch__ is not asked about operators without a schema\n  rules for: "
                f"{', '.join(classes) or 'none'}\n"
                f"Register one with py_impl({cls.__qualname__}), or set "
                f"{cls.__qualname__}.supports_higher_order_operators to True.",
                self.name,
                DispatchKey.Python.name,
                classes,
            )
            error.handler = cls.__qualname__
            raise error
        return rule

    def missing(self, key: DispatchKey) -> MissingKernelError:
        """Why nothing runs there."""
        rules = self.py_kernels
        listed = ", ".join(f"{k.name} ({rule.where})" for k, rule in rules.items()) or "none"
        available = [each.name for each in rules]
        if self.table().entries[table_index(key)].reason == "ambiguous autogradother":
            return AmbiguousKernelError(
                f"{self.name} has rules at CompositeImplicitAutograd and at a backend behind "
                f"AutogradOther: it is undecided which of them would run\n  rules at: {listed}\n"
                "Register one with py_impl('AutogradOther').",
                self.name,
                key.name,
                available,
            )
        if key in ASKED:
            what = f"nobody is there to ask about {self.name} at {key.name}"
            todo = f"Enter a mode or a transform, or register a rule with py_impl({key.name!r})."
            if key is DispatchKey.Python:
                todo = "Enter a mode, or give an argument whose type has __md_dispatch__."
        elif key is DispatchKey.Undefined:
            what = f"{self.name} has no rule for a call whose arguments leave no dispatch key"
            todo = "Register one with py_impl('CompositeExplicitAutograd')."
        else:
            what = f"{self.name} has no rule that serves {key.name}"
            todo = (
                f"Register one with py_impl({key.name!r}), or let calls pass by with "
                f"fallthrough({key.name!r}): backend fallbacks do not serve higher-order operators."
            )
        return MissingKernelError(
            f"{what}\n  rules at: {listed}\n{todo}", self.name, key.name, available
        )

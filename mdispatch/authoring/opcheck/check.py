"""opcheck runs an operator on sample arguments and tells whether it does what its registrations
say.

For tests. Readers of a schema, such as a functionalizing mode or an autograd formula, believe what
it declares; nothing in a call checks it.
"""

from __future__ import annotations

import copy
from _thread import get_ident

from ...dispatch.context.guards import IncludeDispatchKeyGuard
from ...dispatch.context.values import is_torch_tensor, key_set_of
from ...dispatch.operators import OpOverload, OpOverloadPacket
from ...errors import InvalidArgumentError, OpCheckError
from ...errors.words import nearest, shown
from ...keys import DispatchKey, DispatchKeySet, backend_keys_of_autograd
from ...keys.numbers import RUNTIME_KEYS
from ...registry import default_registry
from ..autograd.engines import needs_grad, register_autograd_engine
from .fake import NotCheckable, differences, run_fake, tensors
from .schema import Call, undeclared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Literal, Protocol

    from ...schema import FunctionSchema
    from ..autograd.node import AutogradCall

    class Definition(Protocol):
        """An object that custom_op made."""

        @property
        def operator(self) -> OpOverload: ...

    Result = Literal["SUCCESS"] | Exception

#: The tests, in the order they run.
TESTS = ("test_schema", "test_autograd_registration", "test_faketensor")


def opcheck(
    op: OpOverload | OpOverloadPacket | Definition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    test_utils: str | Iterable[str] = TESTS,
    raise_exception: bool = True,
) -> dict[str, Result]:
    """Runs an operator on sample arguments and compares what it does with what is registered.

    test_schema: the schema declares, as ``Tensor(a!)``, every write to an argument, and every alias
    of a return value to an argument or to another.
    test_autograd_registration: if an argument requires a gradient (all of them do if none does
    by itself) and a return value comes to require one, a kernel at an autograd key has seen to it,
    or the operator is at CompositeImplicitAutograd, made of others that have formulas.
    test_faketensor: with meta values (FakeTensors for PyTorch's tensors, if custom_op made the
    operator or it was exported), the operator returns as many values as with real ones, of the
    same shapes, dtypes and devices.

    ``op`` is an operator, a packet with one overload, an object that ``custom_op`` made, or the
    name of an operator in the default registry. ``test_utils`` names the tests to run; by default
    all run. The operator gets copies of the arguments, so the caller's stay as they are. An
    argument that cannot be copied is passed itself. Call opcheck several times, with arguments that
    stand for all that the operator takes.

    Returns "SUCCESS" for each test or, with ``raise_exception=False``, the exception that it
    raised.

    Raises OpCheckError for the first test that fails; its cause is the exception of a kernel, if
    one raised. InvalidArgumentError if ``op`` is not an operator or ``test_utils`` not the name of
    a test, ArgumentError for arguments that do not fit the schema, OperatorGoneError,
    OperatorNotFoundError. (torch.library.opcheck)
    """
    operator = _operator(op)
    trial = _Trial(operator, *_given(args, kwargs))
    results: dict[str, Result] = {}
    for test in _tests(test_utils):
        try:
            _RUN[test](trial)
        except Exception as error:
            if raise_exception:
                if isinstance(error, OpCheckError):
                    raise
                raise OpCheckError(
                    f"{operator.name}: {test} ended with {type(error).__qualname__}: {error}",
                    operator.name,
                    test,
                ) from error
            results[test] = error
        else:
            results[test] = "SUCCESS"
    return results


def _given(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return tuple(args), {} if kwargs is None else {**kwargs}
    except TypeError:
        raise InvalidArgumentError(
            "opcheck takes the arguments in a list or tuple, and those by keyword in a dict, not "
            f"as {shown(args)} and {shown(kwargs)}"
        ) from None


def _operator(op: object) -> OpOverload:
    given = op
    if isinstance(op, str):
        op = default_registry().ops.find(op)
    elif isinstance(op, OpOverloadPacket):
        names = op.overloads()
        if len(names) != 1:
            raise InvalidArgumentError(
                f"{op!r} has {len(names)} overloads: give one of them"
                + (f", as the one called {names[0]}" if names else "")
            )
        op = op._operator(names[0])
    elif not isinstance(op, OpOverload):
        op = getattr(op, "operator", None)
    if not isinstance(op, OpOverload):
        raise InvalidArgumentError(
            "opcheck takes an operator, a packet with one overload, the result of custom_op, or a "
            f"name, not {shown(given)}"
        )
    return op


def _tests(wanted: str | Iterable[str]) -> list[str]:
    try:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
    except TypeError:
        raise InvalidArgumentError(
            f"test_utils={shown(wanted)}: give the name of a test, or a list of them"
        ) from None
    for name in names:
        if name == "test_aot_dispatch_dynamic":
            raise InvalidArgumentError(
                "test_aot_dispatch_dynamic compares with what a compiler makes of the operator, "
                f"and there is no compiler here: test_utils may name {', '.join(TESTS)}"
            )
        if name not in TESTS:
            near = nearest(str(name), TESTS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(TESTS)}"
            raise InvalidArgumentError(f"opcheck has no test {shown(name)}; {hint}")
    return names


class _Trial:
    """An operator and the sample arguments. Every run gets copies of them.

    Raises ArgumentError if they do not fit the schema.
    """

    def __init__(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        self.schema: FunctionSchema = operator.schema
        self._args = args
        self._kwargs = kwargs
        self.bound(copied=False)

    def bound(self, copied: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, or copies of them, in their places, with defaults."""
        given = (self._args, self._kwargs)
        args, kwargs = _copied(given) if copied else given
        _, signature = self.operator.entry.current(self.operator.generation)
        return signature.binder.bind(args, kwargs)

    def values(self, result: Any) -> list[Any]:
        """The returned values, as a list with one element per value."""
        if len(self.schema.returns) == 1 and not self.schema.is_varret:
            return [result]
        return [] if result is None else list(result)

    def fault(self, test: str, what: Iterable[str], *advice: str) -> OpCheckError:
        name = self.operator.name
        listed = "".join([*(f"\n  {each}" for each in what), *(f"\n{each}" for each in advice)])
        return OpCheckError(
            f"{name}: {test} failed\n  declared as {self.schema}{listed}", name, test
        )


def _copied(values: Any) -> Any:
    """A deep copy. An object that is in several places stays one object; one that cannot be copied
    is passed on.
    """
    memo: dict[int, Any] = {}
    _copy_leaves(values, memo, {})
    return copy.deepcopy(values, memo)


def _copy_leaves(value: Any, memo: dict[int, Any], seen: dict[int, Any]) -> None:
    """Puts copies of the elements of lists, tuples and dicts into the memo."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if type(value) in (list, tuple, dict):
        for each in value.values() if isinstance(value, dict) else value:
            _copy_leaves(each, memo, seen)
    elif is_torch_tensor(value):
        memo[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
    else:
        try:
            memo[id(value)] = copy.deepcopy(value, memo)
        except Exception:
            memo[id(value)] = value


def _test_schema(trial: _Trial) -> None:
    positional, keywords = trial.bound()
    call = Call(trial.schema, positional, keywords)
    result = trial.operator(*positional, **keywords)
    found = undeclared(call, trial.values(result))
    if found:
        raise trial.fault("test_schema", found)


class _Watching:
    """An engine for the calls of this thread. It tells what depends on the tensors that it watches,
    and keeps no graph.
    """

    def __init__(self, watched: Iterable[Any]) -> None:
        self._watched = {id(each): each for each in watched}
        self._thread = get_ident()

    def needs_grad(self, value: Any) -> bool:
        return id(value) in self._watched and get_ident() == self._thread

    def apply(self, call: AutogradCall) -> Any:
        result, outputs, node = call.forward([self.needs_grad(each) for each in call.inputs])
        for value, differentiable in zip(outputs, node.differentiable, strict=True):
            if differentiable:
                self._watched[id(value)] = value
        return result


def _test_autograd_registration(trial: _Trial) -> None:
    """(torch: autograd_registration_check)"""
    test = "test_autograd_registration"
    operator = trial.operator
    positional, keywords = trial.bound(copied=False)
    watched = list(tensors((positional, keywords)))
    if not watched:
        raise trial.fault(test, ["no argument is a Tensor, so none can require a gradient"])
    carried = DispatchKeySet([key for each in watched for key in key_set_of(each)])
    places = [key for key in RUNTIME_KEYS if backend_keys_of_autograd(key) & carried]
    places += [DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd]
    if any(map(operator.has_kernel_for_dispatch_key, places)):
        return
    if any(map(needs_grad, watched)):
        copies = trial.bound()
        # The engine that keeps the graph of an original may not know its copy.
        if any(map(needs_grad, tensors(copies))):
            positional, keywords = copies
        found = _differentiated(trial, positional, keywords)
    else:
        positional, keywords = trial.bound()
        engine = _Watching(tensors((positional, keywords)))
        with register_autograd_engine(engine), IncludeDispatchKeyGuard("AutogradFunctionality"):
            found = _differentiated(trial, positional, keywords)
    if found:
        raise trial.fault(
            test,
            [
                f"{found} came to require a gradient, but there is no kernel at an autograd key: "
                "the gradient comes from the operators that the kernel calls",
            ],
            "If the kernel calls operators that have formulas, register it at "
            "CompositeImplicitAutograd.",
            "If the operator has a formula of its own, give it to register_autograd, or register "
            "the kernel that contains it at Autograd, not at "
            f"{', '.join(str(each) for each in carried)}.",
            "If the operator is to have no gradient, register a kernel at Autograd that calls the "
            "operator again within AutoDispatchBelowAutograd.",
        )


def _differentiated(trial: _Trial, positional: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Runs the operator. Returns the names of the return values that require a gradient and are not
    arguments.
    """
    given = {id(each) for each in tensors((positional, keywords))}
    values = trial.values(trial.operator(*positional, **keywords))
    found = [
        str(which)
        for which, value in enumerate(values)
        if any(needs_grad(each) and id(each) not in given for each in tensors(value))
    ]
    if not found:
        return ""
    return f"return value {', '.join(found)}" if len(values) > 1 else "the return value"


def _test_faketensor(trial: _Trial) -> None:
    test = "test_faketensor"
    positional, keywords = trial.bound()
    real = trial.values(trial.operator(*positional, **keywords))
    # Other copies: the operator may have written to the first ones.
    positional, keywords = trial.bound()
    if not any(True for _ in tensors((positional, keywords, real))):
        raise trial.fault(test, ["it cannot be checked: there is no Tensor that could be fake"])
    try:
        fake = trial.values(run_fake(trial.operator, positional, keywords))
        found = differences(real, fake)
    except NotCheckable as reason:
        raise trial.fault(test, [f"it cannot be checked: {reason}"]) from None
    if found:
        raise trial.fault(test, found)


_RUN: dict[str, Callable[[_Trial], None]] = {
    "test_schema": _test_schema,
    "test_autograd_registration": _test_autograd_registration,
    "test_faketensor": _test_faketensor,
}

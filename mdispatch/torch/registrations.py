"""Registers or verifies a registration of torch.library."""

from __future__ import annotations

from .. import errors
from ..registry.differences import beside, process_of
from ..registry.register import RegistrationHandle, publish, registered, verified
from ..registry.roles import register_or_verify, who
from ..registry.verify import verify
from ..registry.versions import remedy
from .asked import asking
from .kind import KIND, TORCH, TORCH_SPACE, torch_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..registry.roles import Wanted


def hold(
    dispatcher: Dispatcher, name: str, text: str, where: str, timeout: float | None
) -> RegistrationHandle | None:
    """A part of an operator of PyTorch. Members compare the first line of ``text``."""
    return register_or_verify(dispatcher, _wanted, _register, _verify)(
        dispatcher, name, text, where, timeout
    )


def _wanted(
    dispatcher: Dispatcher, name: str, text: str, where: str, timeout: float | None
) -> Wanted:
    return TORCH, 0, name, bool  # a second one of the same member is the same one


def _register(
    dispatcher: Dispatcher, name: str, text: str, where: str, timeout: float | None
) -> RegistrationHandle:
    return registered(dispatcher, publish(dispatcher, TORCH, 0, name, text, where))


def _verify(
    dispatcher: Dispatcher, name: str, text: str, where: str, timeout: float | None
) -> RegistrationHandle | None:
    body = text.partition("\n")[0]

    def compare(fact: Registration) -> None:
        if fact.body != body:
            raise _differs(dispatcher.facts, fact, body, where)

    def find() -> Registration | None:
        return verify(
            dispatcher, TORCH, 0, name, body, lambda: where, timeout=timeout, accept=compare
        )

    if dispatcher.facts.has(TORCH, 0, name):
        there = find()
    else:
        with asking(dispatcher.facts, name, where):
            there = find()
    if there is None:
        return None
    dispatcher.note_counterpart(where, there)
    return verified(dispatcher, there.what, there)


def _differs(
    registry: Facts, fact: Registration, body: str, here: str
) -> errors.SchemaMismatchError:
    """torch.library has registered something else under the name of the registration here. Or it is
    another version of PyTorch.
    """
    operator, part = torch_parts(fact.name)
    main, here = f"{who(registry, TORCH_SPACE)} ({process_of(fact)})", beside(fact, here)
    head = f"{operator} is not the same in torch.library as in {main}"
    do = remedy(here, fact.where, fact.pid)
    if not operator:
        operator, head = "torch", f"PyTorch has another version than in {main}"
        do = "Install the same version for both."
    return errors.SchemaMismatchError(
        f"{head}\n  here:  {body}    ({here})\n  there: {fact.body}    ({fact.where})\n{do}",
        kind=KIND.name,
        name=operator,
        key=part,
        here=here,
        there=fact.where,
        schema_here=body,
        schema_there=fact.body,
    )

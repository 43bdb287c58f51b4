"""The kind of registrations that say which providers come first, by operator or namespace."""

from __future__ import annotations

from ..errors import PriorityMismatchError
from ..facts.kinds import Kind
from ..facts.native.constants import MD_PRIORITY, MD_RAISE_ALL, MD_STACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.kinds import Comparison

PRIORITY = MD_PRIORITY


class Priority(Kind):
    number, name, rule = PRIORITY, "priority", MD_STACK | MD_RAISE_ALL
    what = "the priority for {0}"
    title = "Priorities"

    def missed(self, registry: Facts, name: str, here: str, waited: float) -> PriorityMismatchError:
        from ..registry.roles import who

        return PriorityMismatchError(
            f"a priority for {name} is set here, and {who(registry)} has set none within "
            f"{round(waited, 3):g} s\n  here:  {here}\n"
            "Set it in both. For this interpreter alone use the environment (MDISPATCH_PRIORITY), "
            "or a guard (mdispatch.priority).",
            kind=self.name,
            name=name,
            here=here,
            waited=waited,
        )

    def is_here(self, fact: Registration, comparison: Comparison) -> None:
        """A member that sets none has that of the registrar."""


KIND = Priority()


def differs(registry: Facts, fact: Registration, text: str, here: str) -> PriorityMismatchError:
    """The registrar has set another priority for the same pattern."""
    from ..registry.differences import beside, process_of
    from ..registry.roles import who

    there, here = fact.text.partition("\n")[0], beside(fact, here)
    return PriorityMismatchError(
        f"the priority for {fact.name} is {text} here, and {there} in {who(registry)}\n"
        f"  here:  {here}\n  there: {fact.where} ({process_of(fact)})\n"
        "Set the same in both. For this interpreter alone use the environment "
        "(MDISPATCH_PRIORITY), or a guard (mdispatch.priority); or let the main interpreter say "
        "required=False.",
        kind=KIND.name,
        name=fact.name,
        here=here,
        there=fact.where,
        priority_here=text,
        priority_there=there,
    )

"""The kinds of registrations that are choices, which one member makes for all, and values, on which
all agree.
"""

from __future__ import annotations

from ..facts.kinds import AGREED, COMPARED, REFUSED, Kind
from ..facts.native.constants import MD_CHOICE, MD_KEPT, MD_STACK, MD_UNIQUE, MD_VALUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration

CHOICE, VALUE, KEPT = MD_CHOICE, MD_VALUE, MD_KEPT


class Choice(Kind):
    """Any member makes one, and it outlives the member."""

    number, name, rule, by_any = CHOICE, "choice", MD_UNIQUE, True
    members, files, hosts = AGREED, COMPARED, REFUSED
    title = "Choices"
    or_by = ", or a file (mdispatch.choices.export)"

    def called(self, name: str) -> tuple[str, str]:
        return name.replace("\\:", ":"), ""


class Value(Kind):
    """A member has one for each value on which it wants to agree. It ends with the member."""

    number, name, rule, by_any = VALUE, "value", MD_STACK, True
    members, hosts = COMPARED, REFUSED
    title = "Agreements"

    def called(self, name: str) -> tuple[str, str]:
        return name.removeprefix("(agree ").removesuffix(")").replace("\\:", ":"), ""

    def body(self, text: str) -> str:
        return text.rpartition("\n")[2]

    def is_listed(self, fact: Registration) -> bool:
        """Agreements are, and no marks, steps and roll calls, which use these kinds, too."""
        return fact.name.startswith("(agree ") and fact.key == 0 and fact.name[-7:] != " (run))"


class Kept(Value):
    """The same, for as long as the registry is there."""

    number, name, rule = KEPT, "kept", MD_UNIQUE
    title, listed_as = "Agreements that stay", "value"


CHOICES = Choice()
VALUES = Value()
KEPT_VALUES = Kept()

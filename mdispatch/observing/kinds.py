"""The kinds of registrations by which members with different definitions know of each other. See
Note [Matching] in matching.py.
"""

from __future__ import annotations

from ..facts.kinds import SEEN, STAYS, Kind
from ..facts.native.constants import MD_MATCH, MD_STACK, MD_UNIQUE, MD_VARIANT
from ..facts.registration import who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration

VARIANT, MATCH = MD_VARIANT, MD_MATCH


class Variant(Kind):
    """The definition with which a member goes on. Its text is that of the definition."""

    number, name, rule, by_any = VARIANT, "variant", MD_STACK, True
    members, hosts = SEEN, STAYS
    what = "the definition of {0} that one member has"
    title = "Definitions that differ"

    def body(self, text: str) -> str:
        return text.partition("\n")[0]

    def hint(self, fact: Registration) -> str:
        by = fact.module or "what was typed in"
        return (
            f"{who(fact.pid, fact.interpreter)} has it of its own, from {by}\n"
            f"  there: {self.body(fact.text)}    ({fact.where})\n"
            "The version of that module here does not define it."
        )


class Match(Kind):
    """Members with compatible definitions belong together in this registry."""

    number, name, rule, by_any = MATCH, "match", MD_UNIQUE, True
    members, hosts = SEEN, STAYS
    what = "the match of members"


VARIANTS = Variant()
MATCHES = Match()

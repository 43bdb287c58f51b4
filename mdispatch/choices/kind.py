"""The kind of registrations that are choices, which one member makes for all."""

from __future__ import annotations

from ..facts.kinds import AGREED, COMPARED, REFUSED, Kind
from ..facts.native.constants import MD_CHOICE, MD_UNIQUE

CHOICE = MD_CHOICE


class Choice(Kind):
    """Any member makes one, and it outlives the member."""

    number, name, rule, by_any = CHOICE, "choice", MD_UNIQUE, True
    members, files, hosts = AGREED, COMPARED, REFUSED
    title = "Choices"
    or_by = ", or a file (mdispatch.choices.export)"

    def called(self, name: str) -> tuple[str, str]:
        return name.replace("\\:", ":"), ""


KIND = Choice()

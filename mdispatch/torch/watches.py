"""The watch of a registry (watching.py), if it has one."""

from __future__ import annotations

from ..dispatch.plugs import Plug

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Watches(Plug):
    """The watch of one registry, if there is one."""

    __slots__ = ("watching",)

    def __init__(self, dispatcher: Any) -> None:
        self.watching: Any = None

    def look(self) -> None:
        if self.watching is not None:
            self.watching.look()

    def ended(self) -> None:
        if self.watching is not None:
            self.watching.registry_has_ended()

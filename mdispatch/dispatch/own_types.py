"""The link between the types of this interpreter (dispatch/context/values.py) and the registries
that have registrations of them (registry/type_facts.py). Many programs need only one of the two, so
neither loads the other.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ..errors import MdispatchError

    class Handle(Protocol):
        """A registration of a type, as far as it is known here."""

        where: str

        @property
        def keys(self) -> tuple[str, ...]: ...


class OwnTypes:
    """Who has types, and who is told of their changes. Each field is replaced by one store."""

    def __init__(self) -> None:
        #: How often the type of a class was registered, or such a registration ended.
        self.changes = 0
        #: Calls a function with each class and its oldest registration; no type changes meanwhile.
        self.each: Callable[[Callable[[type, Handle], object]], object] = lambda tell: None
        #: Called before a change, under the lock of the types: the class, and its oldest
        #: registration from then on. It may refuse the change.
        self.follow: Callable[[type, Handle | None], object] = lambda cls, oldest: None
        #: Called without that lock when a change was refused so.
        self.refused: Callable[[MdispatchError], object] = lambda error: None

    def change(self, cls: type, oldest: Handle | None) -> None:
        self.follow(cls, oldest)
        self.changes += 1


own_types = OwnTypes()

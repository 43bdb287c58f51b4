"""What every registration has: a handle that ends it, and words for its refusal."""

from __future__ import annotations

from . import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._registry import Registration
    from .registry import Registry

    Place = Callable[[], str]

__all__ = ["RegistrationHandle", "claim"]


class RegistrationHandle:
    """One registration of this interpreter. ``close`` ends it.

    ``registration`` is its fact in the main interpreter; in others the main one's, where it was
    needed to verify, else None. (c10: RegistrationHandleRAII)
    """

    __slots__ = ("_ends", "registration")

    def __init__(self, registration: Registration | None, *ends: Callable[[], object]) -> None:
        self.registration = registration
        self._ends = ends

    def close(self) -> None:
        """Ends the registration. Idempotent; does nothing once the registry is closed."""
        ends, self._ends = self._ends, ()
        for end in ends:
            end()


def claim(
    registry: Registry, kind: int, key: int, name: str, text: str, where: Place
) -> Registration:
    """Registers in the main interpreter; a refusal is told with both places."""
    try:
        return registry._facts.register(kind, key, name, text, where())
    except errors.DuplicateRegistrationError as error:
        from ._differences import registered_twice

        raise registered_twice(error, key) from None

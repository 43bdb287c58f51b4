"""The words for dispatch keys in texts about operators without Tensor arguments."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration

NO_KEYS = "no argument is a Tensor, so no dispatch key chooses"
#: The alias keys that serve calls without a key, as people read them where no call has one.
EVERYWHERE = "everywhere"
_WITHOUT_KEY = frozenset(("CompositeExplicitAutograd", "CompositeImplicitAutograd"))


def takes_tensors(definition: Registration | None) -> bool:
    """Whether an argument may be a Tensor, as far as a schema's text tells. If none is, calls have
    no keys, and people need not know of any.
    """
    return definition is None or "Tensor" in definition.body.partition(" -> ")[0]


def key_in_words(key: str, with_tensors: bool) -> str:
    """The key of a kernel, for an operator with or without Tensor arguments."""
    return key if with_tensors or key not in _WITHOUT_KEY else EVERYWHERE

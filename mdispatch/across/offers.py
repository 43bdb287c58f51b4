"""What members offer to others: kernels that may be called from elsewhere. An offer is a note of
its member under the operator's name and at the kernel's key (across/serving.py writes it), so it
ends with the member.

Any member can write anything into a note, so whoever reads takes what is as it should be, and
passes by the rest.
"""

from __future__ import annotations

from time import localtime, strftime

from ..facts.registration import NOTE, number_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.registration import Registration

#: How the text of an offer begins.
_SERVES = "mdispatch.serves"


class Offer:
    """What an offer says: the label, the types and the provider ("" without one) of the kernel,
    whether it takes the key set, its ticket, and the transport and the address where other
    processes call it, "" if they may not. It stands ``since`` that second after 1970.
    ``definition`` is the schema and the attributes that the kernel was verified for, ("", "")
    where its member has registered it.
    """

    __slots__ = (
        "address",
        "definition",
        "fact",
        "label",
        "provider",
        "since",
        "ticket",
        "transport",
        "types",
        "with_keyset",
    )

    def __init__(
        self,
        fact: Registration,
        label: str,
        types: str,
        provider: str,
        keys: str,
        ticket: int,
        transport: str,
        address: str,
        since: int,
        definition: tuple[str, str],
    ) -> None:
        self.fact = fact
        self.label = label
        self.types = types
        self.provider = provider
        self.with_keyset = bool(keys)
        self.ticket = ticket
        self.transport = transport
        self.address = address
        self.since = since
        self.definition = definition

    @property
    def to_whom(self) -> str:
        """To whom, and since when, and where that was said."""
        far = self.transport
        to = f'other processes, by the transport "{far}"' if far else "its process"
        at = strftime("%Y-%m-%d %H:%M:%S", localtime(self.since))
        return f"to {to}, since {at}    ({self.fact.where})"


def offer_text(
    label: str,
    types: str,
    provider: str,
    with_keyset: bool,
    ticket: int,
    transport: str,
    address: str,
    since: int,
    definition: tuple[str, str],
) -> str:
    """The text of an offer: see :class:`Offer`."""
    keys = "keyset" if with_keyset else ""
    told = (
        _SERVES,
        label,
        types,
        provider,
        keys,
        ticket,
        transport,
        address,
        since,
        *definition,
    )
    return "\n".join(map(str, told))


def offer_of(fact: Registration) -> Offer | None:
    """The offer that a registration is, or None."""
    if fact.kind != NOTE or not fact.text.startswith(_SERVES + "\n"):
        return None
    parts = fact.text.split("\n")
    if len(parts) != 11:
        return None
    _, label, types, provider, keys, ticket, transport, address, since, *definition = parts
    numbers = [number_in(each) for each in (ticket, since)]
    if numbers[0] is None or numbers[1] is None:
        return None
    body, attributes = definition
    return Offer(
        fact,
        label,
        types,
        provider,
        keys,
        numbers[0],
        transport,
        address,
        numbers[1],
        (body, attributes),
    )

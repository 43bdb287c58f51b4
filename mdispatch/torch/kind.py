"""The kind of registrations that are PyTorch's: definitions, kernels and formulas of
torch.library.
"""

from __future__ import annotations

from .. import errors, seam
from ..facts.kinds import Kind
from ..facts.native.constants import MD_TORCH, MD_UNIQUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.kinds import Comparison

TORCH = MD_TORCH
#: The namespace of the registrations about PyTorch. No operator of ours can have it.
TORCH_SPACE = "torch.library"


def torch_name(operator: str, part: str = "") -> str:
    """The name of a TORCH registration, for the definition of an operator of PyTorch or for another
    part of it, as a kernel at a key.
    """
    return f"{TORCH_SPACE}::{operator}@{part}" if part else f"{TORCH_SPACE}::{operator}"


def torch_parts(name: str) -> tuple[str, str]:
    """The operator and the part ("" for the definition) that a TORCH registration is about."""
    operator, _, part = name.removeprefix(f"{TORCH_SPACE}::").partition("@")
    return operator, part


class Torch(Kind):
    number, name, rule = TORCH, "torch", MD_UNIQUE
    what = "PyTorch's {0}"

    def called(self, name: str) -> tuple[str, str]:
        return torch_parts(name)

    def say(self, words: str, name: str, key: str = "") -> str:
        operator, part = torch_parts(name)
        if words == self.there:
            return f"torch.library has {operator}{' at ' * bool(part)}{part}"
        return super().say(words, name, key)

    def missed(
        self, registry: Facts, name: str, here: str, waited: float
    ) -> errors.NotRegisteredError:
        return _missed(registry, name, here, waited)

    def body(self, text: str) -> str:
        return text.partition("\n")[0]

    def content(self, text: str) -> list[str]:
        return [self.body(text)]  # without the location that it replaces

    def is_here(self, fact: Registration, comparison: Comparison) -> bool | None:
        watching = _watching(comparison.dispatcher)
        if comparison.is_mine(fact) or (watching is not None and watching.has(fact.name)):
            return True
        is_wanted = watching is not None and (
            comparison.is_from_here(fact) or watching.covers(fact)
        )
        # Else nobody has said that it is to be here.
        return False if is_wanted or comparison.is_in_spaces(fact) else None

    def is_covered(self, fact: Registration, dispatcher: Any) -> bool:
        watching = _watching(dispatcher)
        return watching is not None and watching.covers(fact)

    def registers_by(self, fact: Registration) -> str:
        return "load that library" if ", in " in fact.where else "register"

    def adds_to(self, name: str) -> tuple[int, int]:
        return (0, 1) if torch_parts(name)[1] else (1, 0)


KIND = Torch()


def _watching(dispatcher: Any) -> Any:
    """The watch of this registry; None where nobody has said watch()."""
    from .watches import Watches

    return dispatcher.of(Watches).watching


def _missed(registry: Facts, name: str, here: str, waited: float) -> errors.NotRegisteredError:
    """The error of a wait for a registration of torch.library."""
    from ..errors.words import nearest
    from ..registry.differences import beside, process_of
    from ..registry.missed import standing
    from ..registry.roles import who

    operator, part = torch_parts(name)
    _, there = registry.registrations_since(TORCH, 0)
    space = f"{operator.partition('::')[0]}::"
    known = {fact: torch_parts(fact.name) for fact in there}
    near = [fact for fact, (its, _) in known.items() if its.startswith(space)]
    its = [fact for fact in near if known[fact][0] == operator]
    location = next(iter(its or near), None)
    keys_there = tuple(known[fact][1] for fact in its if known[fact][1])
    nearest_names: tuple[str, ...] = ()
    cls: type[errors.NotRegisteredError]
    do = "Make both import the same version of the module, or give it more time (timeout=)."
    if its and part:
        cls = errors.KeyMismatchError
        does = f"{', '.join(keys_there) or 'no kernels'}"
        do = "Register the same in both, or in neither."
    elif near:
        cls = errors.NameMismatchError
        nearest_names = tuple(nearest(operator, sorted({known[fact][0] for fact in near})))
        does = f"nearest names: {', '.join(nearest_names) or 'none'}"
    else:
        cls = errors.MainNeverArrivedError
        does = f"nothing in namespace {space[:-2]!r}"
        if not there:
            does = "PyTorch is not watched"
            do = "Call mdispatch.torch.watch() there too, or give it more time (timeout=)."
    do += _asked_in_vain(registry, here)
    main = who(registry, TORCH_SPACE)
    if location is not None:
        does += f"    ({location.where})"
        main, here = f"{main} ({process_of(location)})", beside(location, here)
    what = f"{operator} at {part}" if part else operator
    what = what if operator else "anything"  # its version would be the first
    head = f"torch.library has not registered {what} in {main} within {round(waited, 3):g} s"
    error = cls(
        "\n".join(
            (head, f"  here:  {here}", f"  there: {does}", do, *standing(registry)),
        ),
        kind=KIND.name,
        name=operator,
        key=part,
        here=here,
        there="" if location is None else location.where,
        waited=waited,
        nearest=nearest_names,
    )
    if isinstance(error, errors.KeyMismatchError):
        error.keys_there = keys_there
    return error


def _asked_in_vain(registry: Facts, here: str) -> str:
    """A second possible cause, where a library in C++ registers it and the leader is on another
    host: see Note [Asking loses no wait] in asked.py. ``here`` is its location.
    """
    from ..errors.locations import file_of
    from ..registry.missed import standing

    if file_of(here).endswith(".py") or not standing(registry):
        return ""
    if seam.at("whether this host leads")(registry):
        return ""  # this host has the leader, and the leader has looked
    now = seam.at("how this host stands")(registry)
    leader = (now and now.leader) or "the leader"
    return (
        "\nOr a library in C++ registers it, and the leader has not looked since it was loaded. A "
        f"wait makes the leader look on the leader's host only: have {leader} load the library "
        "by torch.ops.load_library or an import after mdispatch.torch.watch(), or call warm_up "
        "there, before this one waits."
    )

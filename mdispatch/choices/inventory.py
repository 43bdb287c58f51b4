"""The inventory of a member, which a roll call compares: its operators, PyTorch's, and the values
for which it has asked.

A member posts the digest of its inventory, and the text in pieces. Where the text would be too
long, a digest stands in place of each operator, and then of each namespace. Two inventories are
compared at the same level.
"""

from __future__ import annotations

import sys

from ..dispatch.kernels import FALLTHROUGH
from ..facts import DEF, FALLBACK, IMPL, LIBRARY, NAME, PYSTUB, kernel_name, kind_of
from ..facts.native.constants import MD_MAX_BODY
from ..registry.catalogue import known_key
from ..registry.verified import may_be_lacking, present
from .fields import Field, differences
from .kind import VALUE, VALUES
from .values import LEFT_OUT, Damaged, digest_of, dumps, read, tag_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from .patterns import Rules
    from .values import Node

__all__ = ["LEVELS", "Difference", "compared", "inventory", "level", "pieces", "shortened", "whole"]

_OPERATORS = frozenset((DEF, IMPL, PYSTUB, NAME))
#: The longest text of each level but the last one, in characters.
_LONGEST = (256 << 10, 2 << 20)
#: The last one.
LEVELS = len(_LONGEST)
_PIECE = MD_MAX_BODY - 16


def inventory(
    dispatcher: Dispatcher, is_mine: Callable[[Registration], bool], rules: Rules, call: Node
) -> Node:
    """The inventory of this interpreter, without the parts that the rules leave out. ``call`` has
    the arguments that all members of a roll call have to give.
    """
    found: dict[str, dict[str, Any]] = {"operators": {}, "agreements": {}}
    for fact in present(dispatcher):
        _add(found, fact)
    for fact in dispatcher.facts.registrations_since(VALUE, 0)[1]:
        if is_mine(fact) and fact.name.startswith("(agree ") and not fact.name.endswith(" (run))"):
            name = VALUES.called(fact.name)[0]  # one with "#" would look like a tag
            found["agreements"][name.replace("#", "(#)")] = _value(fact)
    _leave_out(found, rules, [])
    return {**found, "call": call}


def _add(found: dict[str, dict[str, Any]], fact: Registration) -> None:
    kind = kind_of(fact.kind)
    its, part = kind.called(fact.name)
    if kind.name == "torch":  # a member that goes on with its own lacks PyTorch's version there
        version = getattr(sys.modules.get("torch"), "__version__", "")
        found.setdefault("versions", {})["torch"] = str(version)
    if fact.kind == FALLBACK:
        key = known_key(fact.key)
        found.setdefault("fallbacks", {})[key] = _runs(fact.body)
    elif fact.kind in _OPERATORS:
        space, _, name = its.partition("::")
        entry = found["operators"].setdefault(space, {}).setdefault(name, {})
        if fact.kind == IMPL:
            if not (fact.provider and may_be_lacking(fact)):
                at = kernel_name(known_key(fact.key), fact.types, fact.provider or "")
                kernels = entry.setdefault("kernels", {})
                before = f"{kernels[at]}, " if at in kernels else ""
                kernels[at] = before + _runs(fact.body)
        else:
            entry[_PART.get(fact.kind, kind.name)] = fact.body
            if fact.attributes.strip():
                entry["attributes"] = fact.attributes
    elif fact.kind != LIBRARY and its:
        space, _, name = its.partition("::")
        entry = found.setdefault(_TITLES.get(kind.name, kind.name), {})
        if name:
            entry = entry.setdefault(space, {})
        entry = entry.setdefault(name or space, {})
        entry[part or "definition"] = "\n".join(kind.content(fact.text)) or "there"


_PART = {DEF: "schema", PYSTUB: "module"}
_TITLES = {"class": "classes"}


def _runs(label: str) -> str:
    """The words for a kernel. Its label may be another one in each member."""
    return "falls through" if label == FALLTHROUGH else "a kernel"


def _value(fact: Registration) -> Node:
    """The value of an agreement, or the text of one that members follow."""
    _, patterns, value = fact.text.split("\n")
    if read(patterns).get("follow"):
        return value
    return read(value)


def _leave_out(found: dict[str, Any], rules: Rules, path: list[object]) -> None:
    for key in [*found]:
        path.append(key)
        if rules.of(path) == LEFT_OUT:
            del found[key]
        elif isinstance(found[key], dict) and not tag_of(found[key]):
            _leave_out(found[key], rules, path)
        path.pop()


# --- levels ---------------------------------------------------------------------------------------


def level(node: Node, text: str) -> int:
    """The level at which a member posts this: 0 for all of it, 1 for a digest of each operator, 2
    for one of each namespace.
    """
    if len(text) <= _LONGEST[0]:
        return 0
    return 1 if len(dumps(shortened(node, 0, 1))) <= _LONGEST[1] else 2


def shortened(node: Node, now: int, wanted: int) -> Node:
    """The same at a higher level."""
    for _ in range(now, wanted):
        node = {
            top: its if top == "call" else {space: _short(each, now) for space, each in its.items()}
            for top, its in node.items()
        }
        now += 1
    return node


def _short(node: Node, now: int) -> Node:
    if now == 0 and isinstance(node, dict) and not tag_of(node):
        return {name: digest_of(dumps(each))[:8] for name, each in node.items()}
    return f"digest {digest_of(dumps(node))}"


def pieces(text: str) -> list[str]:
    """The text in pieces, each of which has room in a registration."""
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


# --- differences ----------------------------------------------------------------------------------


class Difference:
    """The difference between two inventories.

    ``counts`` has for each part ("operators", "torch" and so on) how many of how many differ; 0 of
    0 where only digests of namespaces are known. ``names`` are the names that differ in the other
    parts. ``fields`` has the first fields that differ, ``number`` is how many there are.
    """

    __slots__ = ("counts", "fields", "names", "number")

    def __init__(
        self,
        counts: dict[str, tuple[int, int]],
        names: Sequence[str],
        fields: Sequence[Field],
        number: int,
    ) -> None:
        self.counts, self.names, self.fields, self.number = counts, names, fields, number


_MOST = 8  # fields and names


def compared(here: Node, there: Node, at_level: int) -> Difference:
    """The difference between two inventories of the same level."""
    counts: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    for top in dict.fromkeys([*there, *here]):
        mine, its = here.get(top, {}), there.get(top, {})
        if mine == its:
            continue
        if top in ("agreements", "call"):
            names += sorted(
                f"the call's {key}=" if top == "call" else key
                for key in mine.keys() | its.keys()
                if mine.get(key) != its.get(key) or (key in mine) != (key in its)
            )
        elif at_level == 2:
            counts[top] = 0, 0
        else:
            mine, its = _entries(mine), _entries(its)
            differing = sum(mine.get(key) != its.get(key) for key in mine.keys() | its.keys())
            counts[top] = differing, len(mine.keys() | its.keys())
    fields = differences(_beside(here, there), _beside(there, here))
    return Difference(counts, names[:_MOST], fields[:_MOST], len(fields))


def _beside(node: Node, other: Node) -> Node:
    """The same for :func:`differences`: with the namespaces of the other one, so that each thing
    which is missing is named, and with the schema alone of those that the other one lacks.
    """
    found = {top: {**its} for top, its in node.items()}
    for top in [*found, *other]:
        for space in [*found.get(top, ()), *other.get(top, ())]:
            mine, its = (each.get(top, {}).get(space, {}) for each in (found, other))
            if top in ("agreements", "call") or not isinstance(mine, dict):
                continue
            found.setdefault(top, {})[space] = {
                name: each if name in its or not isinstance(each, dict) else _schema(each)
                for name, each in mine.items()
            }
    return found


def _schema(node: dict[str, Node]) -> Node:
    return node.get("schema", node)


def _entries(node: dict[str, Any]) -> dict[tuple[str, str], Node]:
    """The things of all namespaces."""
    found: dict[tuple[str, str], Node] = {}
    for space, its in node.items():
        entries: Iterable[tuple[str, Node]] = its.items() if isinstance(its, dict) else [("", its)]
        found.update({(space, name): each for name, each in entries})
    return found


def whole(texts: Iterable[str]) -> Node:
    """The inventory that a member has posted in pieces. Damaged."""
    node = read("".join(texts))
    if not isinstance(node, dict) or not all(isinstance(its, dict) for its in node.values()):
        raise Damaged
    return node

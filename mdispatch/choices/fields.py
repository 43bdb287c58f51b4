"""The parts in which two values differ, and the short form of a value that is too large.

A registration has room for 64 KiB. :func:`shorten` keeps the small parts of a larger value, and the
digests of its large parts. The member that compares has its own value whole, so it can still name
the part that differs. Where a dict or a list has too many parts for a digest of each, there are
digests of groups of them, and the parts of a group are named together.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from .values import digest_of, dumps, in_words, tag_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    from .values import Node

    Path: TypeAlias = tuple[object, ...]

__all__ = ["MISSING", "Field", "differences", "in_python", "shorten"]


class _Missing:
    """Stands for a part that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Field:
    """A part in which two values differ. ``path`` leads to it, such as ``hosts[0].name``; "" is the
    value itself. ``here`` and ``there`` are its values in words, as Python writes them: "missing"
    where it is not there.
    """

    path: str
    here: str
    there: str

    def __str__(self) -> str:
        return f"{self.path or 'it'} is {self.here} here, and {self.there} there"


# --- the short form -------------------------------------------------------------------------------

_DIGEST = 60  # characters of a digest with its tag
_OF_GROUP = 12  # characters of the digest of a group
_MOST_GROUPS = 1024
_KEY = 8  # characters around a key


def shorten(node: Node, limit: int) -> Node:
    """The same value in at most ``limit`` characters: parts that are too large are digests."""
    text = dumps(node)
    if len(text) <= limit:
        return node
    parts = _parts(node)
    if parts is None or limit < 4 * _DIGEST:
        return {"#digest": [digest_of(text), len(text)]}
    keys = sum(len(dumps(key)) + _KEY for key, _ in parts)
    if keys + _DIGEST * len(parts) > limit:
        return _in_groups(parts, text, limit)
    sizes = sorted(len(dumps(each)) for _, each in parts)
    # Every part has room up to the same size, so the small ones stay whole.
    left = limit - keys - _DIGEST
    share = left // len(parts)
    for at, size in enumerate(sizes):
        share = left // (len(sizes) - at)
        if size > share:
            break
        left -= size
    return _with_parts(node, [shorten(each, share) for _, each in parts])


def _parts(node: Node) -> list[tuple[object, Node]] | None:
    """The keys and the values of a node with parts; None for one that has none."""
    tag = tag_of(node)
    if tag == "#object":
        return _parts(node[tag][1])
    if tag == "#dict":
        return [(_key(key), each) for key, each in node[tag]]
    if tag:
        return None
    if isinstance(node, dict):
        return [*node.items()]
    return [*enumerate(node)] if isinstance(node, list) else None


def _key(node: Node) -> object:
    """The key of a dict for a path in words: a text as it is, another one as Python writes it."""
    if isinstance(node, str) or (isinstance(node, int) and not isinstance(node, bool)):
        return node
    return _Word(in_python(node))


class _Word(str):
    """A key in words."""

    __slots__ = ()


def _with_parts(node: Node, parts: list[Node]) -> Node:
    tag = tag_of(node)
    if tag == "#object":
        name, fields = node[tag]
        return {tag: [name, _with_parts(fields, parts)]}
    if tag == "#dict":
        return {tag: [[key, each] for (key, _), each in zip(node[tag], parts, strict=True)]}
    if isinstance(node, dict):
        return dict(zip(node, parts, strict=True))
    return parts


def _group_of(key: object, groups: int) -> int:
    return crc32(f"{key}".encode(errors="backslashreplace")) % groups


def _groups_of(parts: list[tuple[object, Node]], groups: int) -> list[str]:
    """The digest of each group."""
    texts: list[list[str]] = [[] for _ in range(groups)]
    for key, each in parts:
        texts[_group_of(key, groups)].append(f"{key!r} {dumps(each)}")
    return [digest_of("\n".join(sorted(its)))[:_OF_GROUP] if its else "" for its in texts]


def _in_groups(parts: list[tuple[object, Node]], text: str, limit: int) -> Node:
    groups = min(_MOST_GROUPS, (limit - _DIGEST) // (_OF_GROUP + 3))
    return {"#parts": [len(parts), _groups_of(parts, groups)]}


# --- differences ----------------------------------------------------------------------------------

_SHOWN_KEYS = 3  # of a group


def differences(here: Node, there: Node) -> list[Field]:
    """The parts in which two values differ, in the order of their paths. ``there`` may be short, of
    a value that is too large.
    """
    return [*_differences(here, there, ())]


def _differences(here: Node, there: Node, path: Path) -> Iterator[Field]:
    if type(here) is type(there) and here == there:
        return
    tag = tag_of(there)
    if tag == "#digest":
        text = dumps(here)
        if [digest_of(text), len(text)] != there[tag]:
            yield _field(path, here, there)
    elif tag == "#parts":
        yield from _in_groups_that_differ(here, there, path)
    elif tag_of(here) != tag:
        yield _field(path, here, there)
    elif tag == "#object" and here[tag][0] != there[tag][0]:
        yield Field(in_words(path), f"a {here[tag][0]}", f"a {there[tag][0]}")
    elif tag == "#set":
        yield from _of_sets(here[tag], there[tag], path)
    else:
        mine, its = _parts(here), _parts(there)
        if mine is None or its is None or isinstance(here, list) != isinstance(there, list):
            yield _field(path, here, there)
        else:
            yield from _of_parts(dict(mine), dict(its), path)


def _of_parts(here: dict[object, Node], there: dict[object, Node], path: Path) -> Iterator[Field]:
    for key in dict.fromkeys([*here, *there]):
        if key not in there:
            yield _field((*path, key), here[key], MISSING)
        elif key not in here:
            yield _field((*path, key), MISSING, there[key])
        else:
            yield from _differences(here[key], there[key], (*path, key))


def _of_sets(here: list[Node], there: list[Node], path: Path) -> Iterator[Field]:
    mine, its = {dumps(each): each for each in here}, {dumps(each): each for each in there}
    for text in sorted(mine.keys() ^ its.keys()):
        name = in_python(mine[text] if text in mine else its[text])
        words = [f"with {name}" if text in each else f"without {name}" for each in (mine, its)]
        yield Field(in_words(path), *words)


def _in_groups_that_differ(here: Node, there: Node, path: Path) -> Iterator[Field]:
    parts = _parts(here)
    number, digests = there["#parts"]
    if parts is None or not all(isinstance(each, str) for each in digests) or not digests:
        yield _field(path, here, there)
        return
    mine = _groups_of(parts, len(digests))
    keys: list[str] = []
    for key, _ in parts:
        group = _group_of(key, len(digests))
        if mine[group] != digests[group]:
            keys.append(in_words([*path, key]))
    if keys:
        more = f", ... ({len(keys)} in all)" * (len(keys) > _SHOWN_KEYS)
        name = f"one of {', '.join(keys[:_SHOWN_KEYS])}{more}" if len(keys) > 1 else keys[0]
        yield Field(name, "one value", "another one")
    if len(parts) != number or (not keys and mine != digests):
        yield Field(in_words(path), f"of {len(parts)} parts", f"of {number}")


def _field(path: Path, here: Any, there: Any) -> Field:
    mine, its = in_python(here), in_python(there)
    if mine == its:  # the difference lies behind the cut
        mine, its = "one value", f"another one that begins alike ({its})"
    return Field(in_words(path), mine, its)


# --- words ----------------------------------------------------------------------------------------

_SHOWN = 80


def in_python(node: Any, limit: int = _SHOWN) -> str:
    """A node as Python would write the value; a long text is cut."""
    text = _in_python(node, 3)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} letters)"


def _in_python(node: Any, depth: int) -> str:
    if node is MISSING:
        return "missing"
    tag = tag_of(node)
    if tag:
        return _WORDS[tag](node[tag], depth)
    if isinstance(node, dict):
        return f"{{{_items([(repr(key), each) for key, each in node.items()], ': ', depth)}}}"
    if isinstance(node, list):
        return f"[{_items([('', each) for each in node], '', depth)}]"
    return ascii(node)


_MOST_ITEMS = 16


def _items(items: list[tuple[str, Node]], between: str, depth: int) -> str:
    if depth == 0 and items:
        return "..."
    told = [f"{key}{between}{_in_python(each, depth - 1)}" for key, each in items[:_MOST_ITEMS]]
    if len(items) > _MOST_ITEMS:
        told.append(f"... ({len(items)} in all)")
    return ", ".join(told)


def _object(it: list[Any], depth: int) -> str:
    name = it[0].rpartition(".")[2]
    fields = _parts(it[1]) or []
    return f"{name}({_items([(f'{key}', each) for key, each in fields], '=', depth)})"


_WORDS: dict[str, Callable[[Any, int], str]] = {
    "#number": lambda it, depth: it,
    "#complex": lambda it, depth: f"complex({_in_python(it[0], 0)}, {_in_python(it[1], 0)})",
    "#bytes": lambda it, depth: (
        ascii(bytes.fromhex(it[1])) if 2 * it[0] == len(it[1]) else f"{it[0]} bytes {it[1]}"
    ),
    "#set": lambda it, depth: f"{{{_items([('', each) for each in it], '', depth)}}}",
    "#dict": lambda it, depth: (
        f"{{{_items([(_in_python(key, depth), each) for key, each in it], ': ', depth)}}}"
    ),
    "#enum": lambda it, depth: ".".join(it.split(".")[-2:]),
    "#path": lambda it, depth: f"Path({it!a})",
    "#time": lambda it, depth: it,
    "#name": lambda it, depth: it,
    "#array": lambda it, depth: f"an array of {it[0]}, shape {tuple(it[1])}, digest {it[2]}",
    "#object": _object,
    "#secret": lambda it, depth: f"a secret ({it})",
    "#digest": lambda it, depth: f"a large value, digest {it[0]}",
    "#parts": lambda it, depth: f"{it[0]} parts, too many to show",
}

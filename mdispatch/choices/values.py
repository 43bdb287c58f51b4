"""The canonical text of a value: two members have the same value if the texts are the same.

Note [One text for each value]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Two values have one text if Python calls them equal: 1, 1.0 and True; the keys of a dict in any
order; 0.0 and -0.0. An interpreter that has asked for an agreement before compares by ``==``, so
another rule would give another answer to the second call. The text goes further in four cases,
where Python's answer is of no use between processes:

- a list has the text of a tuple, since JSON and YAML make a list of both;
- NaN has one text, although it is not equal to itself;
- an object has the text of its class's name and of its fields, although Python compares many such
  objects by identity;
- an array has the text of its type, its shape and the digest of its bytes, so 0.0 and -0.0 in it
  are two things.

An enum that is an int or a str is equal to that, and has its text.

The text is JSON in ASCII. None, numbers, texts, lists and dicts whose keys are texts are as in
JSON, the keys in order. Everything else is an object with one key, which begins with "#"
(:data:`TAGS`). So is a dict with a key that is no text, or begins with "#".

A text comes from another process, so :func:`read` believes nothing of it.
"""

from __future__ import annotations

import json
import re
import sys
from _blake2 import blake2b
from json.encoder import encode_basestring_ascii

from ..errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Protocol, TypeAlias

    #: A value in its plain form, as ``json.loads`` makes it of its text.
    Node: TypeAlias = Any

    class Rules(Protocol):
        """Which parts of a value are left out, and which are secret."""

        #: The rule for a dict's key on any path.
        by_key: dict[object, int]
        #: Whether anything depends on the path.
        has_paths: bool

        def of(self, path: Sequence[object]) -> int:
            """:data:`KEPT`, :data:`LEFT_OUT` or :data:`SECRET`."""

        def seal(self, text: str) -> str:
            """The digest of a secret with this text."""


__all__ = ["KEPT", "LEFT_OUT", "SECRET", "TAGS", "Damaged", "digest_of", "dumps", "in_words"]
__all__ += ["checked", "plain", "read", "segment", "tag_of", "text_of"]

#: In the order in which they prevail.
KEPT, SECRET, LEFT_OUT = range(3)

_DEEPEST = 64
_MOST = 1_000_000  # parts of one value
_LONGEST_BYTES = 128  # in a text; more are their digest
_LARGEST = 1 << 1024  # no float is as large
_MOST_BITS = 1 << 16  # of an int
_LONGEST_TEXT = 1 << 28  # characters that are read


class Damaged(Exception):
    """A text is none that this mdispatch has written."""


# --- paths ----------------------------------------------------------------------------------------


def segment(key: object) -> str:
    """One step of a path in words: a key that is a plain text is itself, and the number of an item
    and any other key stand in brackets.
    """
    if isinstance(key, str) and key and not any(each in key for each in ".[]*?"):
        return key
    return f"[{key!a}]"


def in_words(path: Iterable[object]) -> str:
    """A path as people write it, ``hosts[0].name``; "" for the value itself."""
    text = ""
    for key in path:
        step = segment(key)
        text += step if not text or step[0] == "[" else f".{step}"
    return text


# --- writing --------------------------------------------------------------------------------------


_dumps = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode
#: The texts of the simplest nodes, which an encoder is dear for.
_SIMPLE_TEXTS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: repr,
    type(None): lambda node: "null",
}


def dumps(node: Node) -> str:
    """The text of a value in its plain form."""
    return _SIMPLE_TEXTS.get(type(node), _dumps)(node)


def digest_of(text: str) -> str:
    return _digest(text.encode())


def _digest(data: bytes) -> str:
    """Without keywords. Up to 3.12.3 a CPython whose first call by keyword of such a function is in
    an interpreter with its own GIL aborts at its end (python/cpython#119213).
    """
    return blake2b(data).hexdigest()[:24]


def plain(value: object, rules: Rules | None = None, what: str = "") -> Node:
    """A value in its plain form, without the parts of dicts and objects that ``rules`` leaves out.

    Raises InvalidArgumentError for a value with a part that members of other processes could not
    compare, and names the part. ``what`` is the argument that the value is, for that.
    """
    kind = type(value)
    # mypy does not tell the type of ``value`` from ``kind``.
    if kind in _SIMPLE or (kind is int and -_LARGEST < value < _LARGEST):  # type: ignore[operator]
        return value
    writer = _Writer(rules)
    if what:
        writer.path.append(what)
    return writer.node(value)


def text_of(value: object, what: str = "") -> str:
    """The text of a value. Raises as :func:`plain`."""
    return dumps(plain(value, None, what))


_SIMPLE = frozenset((str, type(None)))
_TEXTS = frozenset((str,))


class _Writer:
    """Makes one value plain. ``path`` leads to the part at which it is."""

    __slots__ = ("inside", "parts", "path", "rules")

    def __init__(self, rules: Rules | None) -> None:
        self.rules = rules
        self.path: list[object] = []
        self.inside: list[int] = []  # the objects around the part, by id()
        self.parts = 0

    def node(self, value: Any) -> Node:
        kind = type(value)
        if kind in _SIMPLE:
            return value
        write = _EXACT.get(kind) or _of_its_class(value)
        if write is None:
            kind = type(value)
            raise self.refused(
                f"of type {_name_of(kind)}, which members of other processes could not compare"
            )
        return write(self, value)

    def refused(self, why: str) -> InvalidArgumentError:
        at = in_words(self.path)
        or_leave = "" if self.rules is None else ", or leave it out (ignore=)"
        return InvalidArgumentError(
            f"{at or 'the value'} is {why}\n"
            "Make it of None, numbers, texts, bytes, lists, tuples, dicts, sets, enums, paths, "
            f"dates, dataclasses, namespaces, pydantic models and arrays{or_leave}."
        )

    # --- what has parts

    def enter(self, value: object, parts: int) -> None:
        self.parts += parts
        if id(value) in self.inside:
            raise self.refused("a part of itself")
        if len(self.inside) == _DEEPEST:
            raise self.refused(f"more than {_DEEPEST} levels deep")
        if self.parts > _MOST:
            raise self.refused(f"too much: more than {_MOST:,} parts up to here")
        self.inside.append(id(value))

    def sequence(self, value: Sequence[Any]) -> Node:
        self.enter(value, len(value))
        found = []
        for at, each in enumerate(value):
            self.path.append(at)
            found.append(self.node(each))
            self.path.pop()
        self.inside.pop()
        return found

    def unordered(self, value: Iterable[Any]) -> Node:
        return {"#set": sorted(self.sequence([*value]), key=dumps)}

    def mapping(self, value: Mapping[Any, Any]) -> Node:
        self.enter(value, len(value))
        its = dict(value) if type(value) is dict else dict(value.items())
        as_in_json = _TEXTS.issuperset(map(type, its))
        if as_in_json and "#" in "".join(its):
            as_in_json = not any(key[:1] == "#" for key in its)
        found: dict[Any, Node] = {}
        path, rules = self.path, self.rules
        has_paths = rules is not None and rules.has_paths
        for key, each in its.items():
            rule = KEPT if rules is None else rules.by_key[key]
            if rule == KEPT and not has_paths:  # most parts are like this
                kind = type(each)
                if kind in _SIMPLE or (kind is int and -_LARGEST < each < _LARGEST):
                    found[key] = each
                    continue
                if kind is bool or (kind is float and each - each == 0):
                    found[key] = int(each) if each == int(each) else each
                    continue
            path.append(key)
            if rules is not None and has_paths:
                rule = max(rule, rules.of(path))
            if rule != LEFT_OUT:
                node = self.node(each)
                found[key] = self.sealed(node) if rule == SECRET else node
            path.pop()
        self.inside.pop()
        if as_in_json:
            return found
        pairs = [[self.node(key), node] for key, node in found.items()]
        return {"#dict": sorted(pairs, key=lambda pair: dumps(pair[0]))}

    def sealed(self, node: Node) -> Node:
        if self.rules is None or tag_of(node) == "#secret":
            return node
        return {"#secret": self.rules.seal(dumps(node))}

    def instance(self, value: object, fields: Mapping[str, Any]) -> Node:
        return {"#object": [_name_of(type(value)), self.mapping(fields)]}

    # --- numbers

    def integer(self, value: int) -> Node:
        if -_LARGEST < value < _LARGEST:
            return value
        if value.bit_length() > _MOST_BITS:
            raise self.refused(f"a number of {value.bit_length():,} bits, which are too many")
        return {"#number": hex(value)}

    def real(self, value: float) -> Node:
        value = float.__float__(value)
        if value - value == 0:
            return int(value) if value == int(value) else value
        return {"#number": "nan" if value != value else "inf" if value > 0 else "-inf"}

    def imaginary(self, value: complex) -> Node:
        if value.imag == 0:
            return self.real(value.real)
        return {"#complex": [self.real(value.real), self.real(value.imag)]}

    def ratio(self, value: Any) -> Node:
        """For a Fraction or a Decimal; like the int or the float that is equal to it."""
        from fractions import Fraction

        if value != value or value - value != 0:
            return self.real(float(value))
        if hasattr(value, "adjusted"):
            _, digits, exponent = value.as_tuple()
            if len(digits) + abs(exponent) > _MOST_BITS // 4:
                raise self.refused("a number of too many digits")
        exact = Fraction(value)
        if exact.denominator == 1:
            return self.integer(exact.numerator)
        near = float(exact) if abs(exact) < _LARGEST // 2 else 0.0
        if Fraction(near) == exact:
            return near
        if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > _MOST_BITS:
            raise self.refused("a number of too many digits")
        return {"#number": f"{exact.numerator:#x}/{exact.denominator:#x}"}

    # --- the others

    def binary(self, value: Any) -> Node:
        data = bytes(value)
        if len(data) <= _LONGEST_BYTES:
            return {"#bytes": [len(data), data.hex()]}
        return {"#bytes": [len(data), _digest(data)]}

    def enum(self, value: Any) -> Node:
        name = value.name if value.name is not None else value.value  # flags together have no name
        return {"#enum": f"{_name_of(type(value))}.{name}"}

    def time(self, value: Any) -> Node:
        if getattr(value, "tzinfo", None) is not None and hasattr(value, "astimezone"):
            from datetime import UTC

            value = value.astimezone(UTC)
        its = [base.__name__ for base in type(value).__mro__ if base.__module__ == "datetime"]
        return {"#time": f"{(its or [type(value).__name__])[0]} {value}"}

    def name(self, value: Any) -> Node:
        name = _name_of(value)
        if not isinstance(value, type) and "<" in name:
            raise self.refused(f"{name}, a function that no member can import by its name")
        return {"#name": name}

    def scalar(self, value: Any) -> Node:
        """For a scalar of NumPy."""
        its = value.item()
        if type(its) is type(value):  # Python has no such type
            return {"#number": f"{value.dtype} {value}"}
        return self.node(its)

    def array(self, value: Any) -> Node:
        if value.dtype.hasobject:
            return self.sequence(value.tolist())
        ordered = value.astype(value.dtype.newbyteorder("<"), copy=False)
        digest = _digest(ordered.tobytes())
        return {"#array": [str(value.dtype.newbyteorder("=")), [*value.shape], digest]}

    def tensor(self, value: Any) -> Node:
        torch = sys.modules["torch"]
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest = _digest(flat.tobytes())
        return {"#array": [str(value.dtype), [*value.shape], digest]}

    def dataclass(self, value: Any) -> Node:
        its = type(value).__dataclass_fields__
        return self.instance(
            value, {name: getattr(value, name) for name in its if its[name].compare}
        )

    def attrs(self, value: Any) -> Node:
        names = [each.name for each in value.__attrs_attrs__ if each.eq]
        return self.instance(value, {name: getattr(value, name) for name in names})

    def model(self, value: Any) -> Node:
        """For a pydantic model: its fields, and those that it took beside them."""
        kind = type(value)
        names = [*(getattr(kind, "model_fields", None) or kind.__fields__)]
        names += getattr(value, "model_extra", None) or ()
        return self.instance(value, {name: getattr(value, name) for name in names})

    def secret(self, value: Any) -> Node:
        return self.sealed(self.node(value.get_secret_value()))

    def namespace(self, value: Any) -> Node:
        return self.instance(value, vars(value))


def _name_of(named: Any) -> str:
    """The module and the name of a class or a function. The main script has one name, also in the
    processes that multiprocessing spawns.
    """
    module = getattr(named, "__module__", None) or ""
    module = "__main__" if module == "__mp_main__" else module
    name = f"{module}.{getattr(named, '__qualname__', named.__name__)}".removeprefix(".")
    return name.removeprefix("builtins.")


_W = _Writer
_EXACT: dict[type, Callable[[_Writer, Any], Node]] = {
    bool: lambda writer, value: int(value),
    int: _W.integer,
    float: _W.real,
    list: _W.sequence,
    tuple: _W.sequence,
    dict: _W.mapping,
}

#: The writers of the other classes and of those that are derived from them: the first one fits.
_CLASSES: tuple[tuple[str, str, Callable[[_Writer, Any], Node]], ...] = (
    ("numpy", "generic", _W.scalar),
    ("builtins", "str", lambda writer, value: str.__str__(value)),
    ("builtins", "int", lambda writer, value: writer.integer(int(value))),
    ("builtins", "float", _W.real),
    ("builtins", "complex", _W.imaginary),
    ("fractions", "Fraction", _W.ratio),
    ("decimal", "Decimal", _W.ratio),
    ("builtins", "bytes", _W.binary),
    ("builtins", "bytearray", _W.binary),
    ("builtins", "memoryview", _W.binary),
    ("builtins", "dict", _W.mapping),
    ("types", "MappingProxyType", _W.mapping),
    ("builtins", "tuple", _W.sequence),
    ("builtins", "list", _W.sequence),
    ("builtins", "set", _W.unordered),
    ("builtins", "frozenset", _W.unordered),
    ("builtins", "type", _W.name),
    ("types", "FunctionType", _W.name),
    ("types", "BuiltinFunctionType", _W.name),
    ("types", "ModuleType", lambda writer, value: {"#name": value.__name__}),
    ("enum", "Enum", _W.enum),
    ("pathlib", "PurePath", lambda writer, value: {"#path": value.as_posix()}),
    ("datetime", "date", _W.time),
    ("datetime", "time", _W.time),
    ("datetime", "timedelta", _W.time),
    ("datetime", "tzinfo", _W.time),
    ("uuid", "UUID", _W.time),
    ("numpy", "ndarray", _W.array),
    ("numpy", "dtype", lambda writer, value: {"#name": f"numpy.{value}"}),
    ("torch", "Tensor", _W.tensor),
    ("torch", "dtype", lambda writer, value: {"#name": str(value)}),
    ("torch", "device", lambda writer, value: {"#name": f"torch.device {value}"}),
    ("pydantic", "SecretStr", _W.secret),
    ("pydantic", "SecretBytes", _W.secret),
    ("pydantic", "BaseModel", _W.model),
    ("types", "SimpleNamespace", _W.namespace),
    ("argparse", "Namespace", _W.namespace),
)


def _of_its_class(value: object) -> Callable[[_Writer, Any], Node] | None:
    """The writer of a value whose class has none in ``_EXACT``."""
    for module, name, write in _CLASSES:
        # A process that has not imported the module has no object of its classes.
        its = getattr(sys.modules.get(module), name, None)
        if its is not None and isinstance(value, its):
            return write
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return _W.dataclass
    return _W.attrs if hasattr(kind, "__attrs_attrs__") else None


# --- reading --------------------------------------------------------------------------------------


def _is_list(it: object, *kinds: type) -> bool:
    """Whether it is a list, of as many items and of these types where some are given."""
    return isinstance(it, list) and (not kinds or [*map(type, it)] == [*kinds])


#: What each tag has after it.
TAGS: dict[str, Callable[[Any], object]] = {
    "#number": lambda it: isinstance(it, str),
    "#complex": lambda it: _is_list(it) and len(it) == 2,
    # How many; the bytes, or their digest.
    "#bytes": lambda it: _is_list(it, int, str) and re.fullmatch(r"(?:[0-9a-f]{2})*", it[1]),
    "#set": _is_list,
    "#dict": lambda it: _is_list(it) and all(_is_list(each) and len(each) == 2 for each in it),
    "#enum": lambda it: isinstance(it, str),
    "#path": lambda it: isinstance(it, str),
    "#time": lambda it: isinstance(it, str),
    "#name": lambda it: isinstance(it, str),
    "#array": lambda it: _is_list(it, str, list, str),  # type, shape, digest
    "#object": lambda it: _is_list(it, str, dict),  # class, fields
    "#secret": lambda it: isinstance(it, str),
    # In place of a part that is too large: see shorten.py.
    "#digest": lambda it: _is_list(it, str, int),
    "#parts": lambda it: _is_list(it, int, list),
}


def tag_of(node: Node) -> str:
    """The tag of a node; "" for one that is as in JSON."""
    if isinstance(node, dict) and len(node) == 1:
        (key,) = node
        return key if key[:1] == "#" else ""
    return ""


def read(text: str) -> Node:
    """The node that a text stands for. Raises Damaged for a text that :func:`dumps` has not
    written.
    """
    try:
        if len(text) > _LONGEST_TEXT:
            raise Damaged
        return checked(json.loads(text))
    except (ValueError, RecursionError):
        raise Damaged from None


def checked(node: Node) -> Node:
    """The node, as JSON has it. Raises Damaged for one that :func:`plain` does not make, or
    RecursionError.
    """
    _check(node, 0)
    return node


def _check(node: Node, depth: int) -> None:
    if depth > 4 * _DEEPEST:
        raise Damaged
    tag = tag_of(node)
    if tag:
        if tag not in TAGS or not TAGS[tag](node[tag]):
            raise Damaged
        node = node[tag]
    if isinstance(node, dict):
        for each in node.values():
            _check(each, depth + 1)
    elif isinstance(node, list):
        for each in node:
            _check(each, depth + 1)
    elif isinstance(node, float) and node - node != 0:
        raise Damaged

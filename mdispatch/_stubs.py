"""Stubs for type checkers: the operators of a registry, typed by their schemas.

A stub is the text of ``ops.pyi``, beside a module ``ops.py`` that imports the operators' modules
and ``ops``. What is not in it, a type checker reports. The same operators give the same text.

Note [Stub classes]: a packet's class is derived from OpOverloadPacket, so that a packet is taken
where one is wanted. It hides the ``__getattr__`` of that class, with which every name would be an
overload. Namespaces, and what has them, are classes of their own: nothing takes them.
"""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING

from . import _registry as facts
from ._schema_types import Type
from .operators import Namespace, OpOverloadPacket, Ops
from .schema import parse_schema

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from .registry import Registry
    from .schema import Argument, FunctionSchema

__all__ = ["stub_text"]

_HEAD = """\
# Types of the operators in mdispatch.ops, written by: {command}
# Write it again when the operators have changed. It belongs beside a module of the same name,
# ops.py, of two lines:
#     {imports}
#     from mdispatch import ops
# Code that says `from ops import ops` is then checked, as is `from package.ops import ops`.
#
# The first overload that takes the arguments runs, so a later one may be hidden by types.
# mypy: disable-error-code="overload-cannot-match,overload-overlap"

from collections.abc import Sequence
from typing import Any, overload

from mdispatch import OpOverload, OpOverloadPacket, Tensor

__all__ = ["ops"]
"""

_PLAIN = {
    "Tensor": "Tensor",
    "SymInt": "int",
    "SymBool": "bool",
    "Scalar": "int | float | complex",
    "NoneType": "None",
    "Any": "Any",
    **{name: name for name in ("int", "float", "complex", "bool", "str")},
}
# What signatures are written with.
_WORDS = {"Any", "Sequence", "Tensor", "overload", "object", "list", "tuple", "dict"}
_WORDS.update(("int", "float", "complex", "bool", "str"))
# Lists of these can be given by one number.
_REPEATED = ("int", "SymInt", "float", "complex", "bool")


def stub_text(registry: Registry, command: str, modules: Iterable[str] = ()) -> str:
    """The stub for all operators of a registry.

    ``command`` and ``modules`` are told in its head: what wrote it, and what ``ops.py`` imports.
    """
    _, _, there = registry._facts.registrations()
    found: dict[str, dict[str, list[FunctionSchema]]] = {}
    attributes: set[str] = set()
    for fact in sorted(there, key=lambda fact: fact.seq):
        if fact.kind == facts.DEF:
            schema = parse_schema(fact.body)
            name = schema.name
            found.setdefault(name.namespace, {}).setdefault(name.name, []).append(schema)
            attributes |= {name.namespace, name.name, name.overload}
    writer = _Writer(registry, attributes)
    body = writer.everything(found)
    imports = f"import {', '.join(modules) or '...  # the modules with the operators'}"
    return _HEAD.format(command=command, imports=imports) + "\n".join(["", *body, ""])


class _Writer:
    """Writes classes, each with a name that no other one has, and no attribute either."""

    def __init__(self, registry: Registry, attributes: set[str]) -> None:
        self._registry = registry
        self._taken = attributes

    def everything(self, found: dict[str, dict[str, list[FunctionSchema]]]) -> Iterator[str]:
        attributes = []
        for namespace, packets in sorted(found.items()):
            name = yield from self._namespace(namespace, packets)
            attributes.append((namespace, name))
        name = self._name("ops")
        yield ""
        yield f"class {name}:"
        yield from _attributes(attributes, _hidden(Ops(self._registry)))
        yield ""
        yield f"ops: {name}"

    def _namespace(
        self, namespace: str, packets: dict[str, list[FunctionSchema]]
    ) -> Generator[str, None, str]:
        attributes = []
        for base, schemas in sorted(packets.items()):
            name = yield from self._packet(schemas)
            attributes.append((base, name))
        name = self._name(namespace)
        yield ""
        yield f"class {name}:"
        yield from _attributes(attributes, _hidden(Namespace(self._registry, namespace)))
        return name

    def _packet(self, schemas: list[FunctionSchema]) -> Generator[str, None, str]:
        """The overloads, in the order in which a call tries them."""
        attributes = []
        for schema in schemas:
            full = schema.name
            overload = full.overload or "default"
            name = self._name(full.namespace, full.name, overload)
            yield ""
            yield f"class {name}(OpOverload):"
            yield f"    {_docstring([str(schema)])}"
            yield f"    {_call(schema)}"
            attributes.append((overload, name))
        full = schemas[0].name
        name = self._name(full.namespace, full.name)
        lines = ["    __getattr__: Any = None  # the overloads are these"]
        for schema in schemas:
            lines += ["    @overload"] if len(schemas) > 1 else []
            lines.append(f"    {_call(schema)}")
        base = "OpOverloadPacket"
        if _WORDS.intersection(overload for overload, _ in attributes):
            # Within the class, an overload that is called int would be taken for the type.
            base = self._name(full.namespace, full.name, "call")
            yield from ("", f"class {base}(OpOverloadPacket):", *lines)
            lines = []
        yield ""
        yield f"class {name}({base}):"
        yield f"    {_docstring([str(schema) for schema in schemas])}"
        packet = OpOverloadPacket(self._registry, full.qualified)
        yield from _attributes(attributes, _hidden(packet))
        yield from lines
        return name

    def _name(self, *parts: str) -> str:
        """A name for a class: of what it stands for, and a number where that was used."""
        name = wanted = "_" + "_".join(part.strip("_") or "_" for part in parts)
        count = 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def _hidden(of: object) -> set[str]:
    """The names that an object has of its own: what is called the same is no attribute of it."""
    return {name for name in object.__dir__(of) if name not in vars(object)}


def _attributes(named: list[tuple[str, str]], hidden: set[str]) -> Iterator[str]:
    for attribute, name in sorted(named):
        if keyword.iskeyword(attribute):
            yield f"    # {attribute} is a keyword of Python: getattr(..., {attribute!r})"
        elif attribute in hidden or attribute.startswith("__"):
            yield f"    # {attribute} cannot be had by attribute: objects of this class have one"
        else:
            yield f"    {attribute}: {name}"
    if all(keyword.iskeyword(a) or a in hidden or a.startswith("__") for a, _ in named):
        yield "    ..."


def _docstring(lines: list[str]) -> str:
    text = "\n\n    ".join(lines).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{text}"""'


# --- signatures -----------------------------------------------------------------------------------


def _call(schema: FunctionSchema) -> str:
    """The method that a call runs. What cannot be named in Python can only be given by position."""
    names = [argument.name for argument in schema.arguments]
    positional = [a for a in schema.arguments if not a.kwarg_only]
    keywords = [a for a in schema.arguments if a.kwarg_only]
    only = max((i for i, a in enumerate(positional, 1) if not _can_be_named(a)), default=0)
    items = [_own_name("self", names)]
    for index, argument in enumerate(positional):
        if index == only:
            items.append("/")
        name = None if _can_be_named(argument) else _own_name(f"_{index}", names)
        items.append(_parameter(argument, name))
    if only == len(positional):
        items.append("/")
    if schema.is_vararg:
        items.append(f"*{_own_name('args', names)}: Any")
    elif keywords:
        items.append("*")
    named = [a for a in keywords if _can_be_named(a)]
    items += [_parameter(argument, None) for argument in named]
    if len(named) < len(keywords):
        items.append(f"**{_own_name('kwargs', names)}: Any")
        if not named and not schema.is_vararg:
            items.remove("*")
    return f"def __call__({', '.join(items)}) -> {_returned(schema)}: ..."


def _can_be_named(argument: Argument) -> bool:
    """Two underscores at its begin are a mark to type checkers."""
    return not (keyword.iskeyword(argument.name) or argument.name.startswith("__"))


def _own_name(wanted: str, names: list[str]) -> str:
    while wanted in names:
        wanted = f"_{wanted}"
    return wanted


def _parameter(argument: Argument, name: str | None) -> str:
    type = _taken(argument.type)
    if argument.has_default and argument.default is None and argument.type.name != Type.OPTIONAL:
        type = _or(type, "None")
    default = " = ..." if argument.has_default else ""
    return f"{name or argument.name}: {type}{default}"


def _taken(type: Type) -> str:
    """What is accepted for an argument."""
    inner = [_taken(element) for element in type.elements]
    if type.name == Type.OPTIONAL:
        return _or(inner[0], "None")
    if type.name == Type.LIST:
        sequence = f"Sequence[{inner[0]}]"
        repeated = type.size is not None and type.elements[0].name in _REPEATED
        return _or(sequence, inner[0]) if repeated else sequence
    return _made_of(type, inner) or _PLAIN.get(type.name, "object")


def _given(type: Type) -> str:
    """What a return value is."""
    inner = [_given(element) for element in type.elements]
    if type.name == Type.OPTIONAL:
        return _or(inner[0], "None")
    if type.name == Type.LIST:
        return f"list[{inner[0]}]"
    return _made_of(type, inner) or _PLAIN.get(type.name, "Any")


def _made_of(type: Type, inner: list[str]) -> str:
    if type.name == Type.TUPLE:
        return f"tuple[{', '.join(inner) or '()'}]"
    if type.name == "Dict":
        return f"dict[{', '.join(inner)}]"
    return _or(*inner) if type.name == "Union" else ""


def _or(*types: str) -> str:
    """Each once: Union(int, SymInt) is an int."""
    return " | ".join(dict.fromkeys(part for type in types for part in _members(type)))


def _members(type: str) -> list[str]:
    """The members of a union, those inside brackets being none."""
    return [type] if "[" in type else type.split(" | ")


def _returned(schema: FunctionSchema) -> str:
    types = [_given(each.type) for each in schema.returns]
    if schema.is_varret:
        return "tuple[Any, ...]"
    if len(types) == 1:
        return types[0]
    return f"tuple[{', '.join(types)}]" if types else "None"

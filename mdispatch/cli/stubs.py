"""The command ``mdispatch stubs``: its arguments, the stub, and the file that the stub goes to.

A stub is the text of ``ops.pyi``, beside a module ``ops.py`` that imports the operators' modules
and ``ops``. A type checker reports every name that the stub does not have. The same operators give
the same text. Classes are written as lines, since a stub has comments; types, signatures and
docstrings are written by ``ast.unparse``.

Note [Stub classes]: a packet's class is derived from OpOverloadPacket, so that a function which
takes an OpOverloadPacket accepts the packet. The class hides the ``__getattr__`` of its base, which
would make every name an overload. The classes of namespaces, and of ``ops``, have no base: no
function takes such an object.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import shlex
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from .. import __version__, facts
from ..registry.ops import Namespace, OpOverloadPacket, Ops
from ..schema import parse_schema
from ..schema.python_types import (
    BY_NUMBER,
    EITHER,
    KEYWORD,
    NAMES,
    POSITIONAL,
    own_name,
    parameters,
    returned,
)
from .asking import answering, attach, opened
from .columns import number_of
from .console import (
    complain,
    json_option,
    module_names,
    replace_file,
    standard_output,
    tell_written,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from ..registry import Registry
    from ..schema import Argument, FunctionSchema
    from . import answers

#: What the help ends with.
EPILOG = """\
Give your project a module ops.py of these two lines, and the stub beside it:

\b
  import MODULE
  from mdispatch import ops

\b
  mdispatch stubs MODULE -o ops.pyi

Code that says "from ops import ops" and calls ops.namespace.name(...) is then checked.

\b
Exit status:
  0    answered
  1    there are no operators
  2    unusable arguments; no such module, or one that fails; no such
       registry, or one whose registrar is dead; the file could not be
       written
  130  interrupted
"""


@click.command(epilog=EPILOG)
@click.argument(
    "modules",
    metavar="[MODULE]...",
    nargs=-1,
    callback=module_names,
    help="Modules that register operators.",
)
@attach
@click.option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
@json_option("stubs")
def stubs(
    modules: tuple[str, ...],
    registry: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Print a stub for type checkers, with the types of operators. They are the operators of these
    modules, or of a registry in a process that is running.
    """
    if bool(modules) == (registry is not None):
        raise click.BadParameter(
            "give the modules that register the operators, which are imported here, or --registry "
            "NAME for those of a process that is running; not both."
        )
    answer = standard_output()
    command = shlex.join(
        ["mdispatch", "stubs", *modules, *(["--registry", registry] if registry else ())]
    )
    with answering():
        with opened(modules, registry) as source:
            names = sorted(source.operators())
            if not names:
                complain(
                    f"{', '.join(modules)}: no operators are defined there"
                    if modules
                    else f"registry {registry}: no operators are defined in it"
                )
                raise Exit(1)
            text = stub_text(source, command, modules)
            address = source.address
        try:
            if output is not None:
                replace_file(output, text)
            if as_json:
                told: answers.Stubs = {
                    "format": 2,
                    "mdispatch": __version__,
                    "registry": address,
                    "modules": list(modules),
                    "operators": names,
                    "file": output,
                    "stub": text,
                }
                text = json.dumps(told, indent=2) + "\n"
            if as_json or output is None:
                write_text(text, answer)
            if output is not None:
                tell_written(output, number_of(len(names), "operator"))
        except OSError as error:
            complain(f"the stub could not be written: {error}")
            raise Exit(2) from None


# --- the stub -------------------------------------------------------------------------------------

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

_WORDS = NAMES | {"overload"}


def stub_text(registry: Registry, command: str, modules: Iterable[str] = ()) -> str:
    """The stub for all operators of a registry.

    Its head names the ``command`` that wrote it and the ``modules`` that ``ops.py`` imports.
    """
    _, _, there = registry.dispatcher.facts.registrations()
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
    """Writes classes. No class has the name of another class, or of an attribute."""

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
        yield from _attributes(attributes, _hidden(Ops(self._registry.dispatcher)))
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
        yield from _attributes(attributes, _hidden(Namespace(self._registry.dispatcher, namespace)))
        return name

    def _packet(self, schemas: list[FunctionSchema]) -> Generator[str, None, str]:
        """Writes a packet's overloads, in the order in which a call tries them, and the packet."""
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
            # Within the class, an overload named int would hide the type int.
            base = self._name(full.namespace, full.name, "call")
            yield from ("", f"class {base}(OpOverloadPacket):", *lines)
            lines = []
        yield ""
        yield f"class {name}({base}):"
        yield f"    {_docstring([str(schema) for schema in schemas])}"
        packet = OpOverloadPacket(self._registry.dispatcher, full.qualified)
        yield from _attributes(attributes, _hidden(packet))
        yield from lines
        return name

    def _name(self, *parts: str) -> str:
        """A name for a class, made of these parts; with a number when that name is taken."""
        name = wanted = "_" + "_".join(part.strip("_") or "_" for part in parts)
        count = 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def _hidden(of: object) -> set[str]:
    """The names that an object's class defines. An overload with such a name is no attribute."""
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
    text = ast.Constant("\n\n    ".join(lines))
    return ast.unparse(ast.Module([ast.Expr(text)], type_ignores=[]))


# --- signatures -----------------------------------------------------------------------------------


def _call(schema: FunctionSchema) -> str:
    """The method that a call runs."""
    found, args, kwargs = parameters(schema)
    names = [each.name for each in schema.arguments]
    by_position = [each for each in found if each.how is not KEYWORD]
    by_keyword = [each for each in found if each.how is KEYWORD]
    optional = [each for each in by_position if each.argument.has_default]
    any_of = {name: ast.arg(name, ast.Name("Any")) for name in (args, kwargs) if name}
    written: list[str] = []

    def default(argument: Argument) -> ast.expr:
        written.append(_default(argument))
        return ast.Name(f"<{len(written)}>")

    signature = ast.unparse(
        ast.arguments(
            posonlyargs=[
                ast.arg(own_name("self", names)),
                *(ast.arg(p.name, p.annotation) for p in by_position if p.how is POSITIONAL),
            ],
            args=[ast.arg(p.name, p.annotation) for p in by_position if p.how is EITHER],
            defaults=[default(each.argument) for each in optional],
            vararg=any_of.get(args),
            kwonlyargs=[ast.arg(p.name, p.annotation) for p in by_keyword],
            kw_defaults=[
                default(p.argument) if p.argument.has_default else None for p in by_keyword
            ],
            kwarg=any_of.get(kwargs),
        )
    )
    # As it is written beside an annotation.
    signature = re.sub("=<([0-9]+)>", lambda found: f" = {written[int(found[1]) - 1]}", signature)
    return f"def __call__({signature}) -> {ast.unparse(returned(schema))}: ..."


#: A longer default is written as "...".
_LONGEST_DEFAULT = 60


def _default(argument: Argument) -> str:
    value = argument.default
    if isinstance(value, int) and str(argument.type).rstrip("?") in BY_NUMBER:
        return "..."
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _LONGEST_DEFAULT else "..."

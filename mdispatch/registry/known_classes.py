"""Whether the classes that the text of a schema names are known here. A misspelled type with a dot
in it would otherwise be the name of a class, and no value would ever be of that.
"""

from __future__ import annotations

from ..errors import SchemaSyntaxError
from ..facts import DEF
from ..facts.native.constants import MD_CLASS
from ..schema.classes import STANDARD, class_of, known_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..facts.abc import Facts
    from ..schema import FunctionSchema
    from ..schema.types import Type

#: Classes that a schema named before they were there (``forward=True``), each with the first
#: operator whose schema did.
awaited: dict[str, str] = {}


def check_classes(
    name: str, schema: FunctionSchema, text: str, forward: bool, facts: Facts
) -> None:
    """SchemaSyntaxError if ``text``, the schema of this operator, names a class that is neither
    known here nor registered. With ``forward`` it may come later.
    """
    stars = [each for each in (schema.rest, schema.others) if each is not None]
    types = [each.type for each in (*schema.arguments, *stars, *schema.returns)]
    for each in dict.fromkeys(name for type in types for name in _names(type)):
        if _is_known(each, facts):
            continue
        if forward:
            awaited.setdefault(each, name)
        else:
            raise SchemaSyntaxError(_words(each), text, max(0, text.find(each)))


def unmet(facts: Facts) -> dict[str, str]:
    """Those of ``awaited`` that are still not there, while their operators are, in this
    registry.
    """
    return {
        name: operator
        for name, operator in awaited.items()
        if facts.has(DEF, 0, operator) and not _is_known(name, facts)
    }


def _is_known(name: str, facts: Facts) -> bool:
    # A class that is written in C is registered, and is no class here.
    return class_of(name) is not None or facts.has(MD_CLASS, 0, name.replace(".", "::"))


def _names(type: Type) -> Iterator[str]:
    if type.name == "Literal":
        return
    if type.is_class and type.name not in STANDARD:
        yield type.name
    for each in type.elements:
        yield from _names(each)


def _words(name: str) -> str:
    from ..errors.words import nearest
    from ..schema.parser import PLAIN

    last = name.rpartition(".")[2]
    near = [last] if last in PLAIN or last in STANDARD else nearest(name, known_names())
    if near:
        return f"there is no class {name!r:.60} here; did you mean {' or '.join(near)}?"
    return (
        f"there is no class {name!r:.60} here: register it before (register_class), or say "
        "forward=True if it comes later"
    )

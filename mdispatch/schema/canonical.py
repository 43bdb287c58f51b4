"""The canonical text of a schema, and the schema of a canonical text, put together from pieces.

A registrar declares thousands of schemas. Of each it needs to know only whether it is one, and its
canonical text. The first call of an operator needs the schema itself. Schemas are made of few
pieces: arguments such as ``Tensor self`` come again and again. Each piece is parsed once, and the
part after the name is put together once. The result is what the parser would have made of the whole
text: a piece is known only if it is exactly one argument by itself, the rules between arguments are
checked each time, and every unusual text goes through the parser.

The caches are dicts and not ``functools.lru_cache``, for three reasons (times on Python
3.11). Every worker that makes a Library imports this module, and importing functools takes 3.8 ms
beside the 50 ms of ``from mdispatch import Library``. A known definition takes 1.0 us with the
dicts, and from 1.0 to 1.3 us with lru_cache. And lru_cache would keep refusals, too: each
misspelled schema would push a good one out.
"""

from __future__ import annotations

from ..errors import InvalidNameError, SchemaSyntaxError
from .names import OperatorName, set_once, split_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias, TypeVar

    from .schemas import Argument, FunctionSchema

    T = TypeVar("T")
    #: Of all that follows the name and "(": the arguments, the returns, whether "..." ends these.
    Parts: TypeAlias = tuple[tuple[Argument, ...], tuple[Argument, ...], bool]

# Limits of the caches. A larger text seldom comes again.
_PIECES = 8192  # entries of each cache
_LETTERS = 128  # letters of an argument or of the returns
_WHOLE = 4096  # letters of all that follows the name
_ARGUMENTS = 64

# The caches, by the text as it was written.
#: Arguments: the canonical text, the name, whether there is a default, the argument; none for "*".
_arguments: dict[str, tuple[str, str, bool, Argument | None]] = {}
#: Returns: their canonical text, the returns, whether "..." ends them.
_returns: dict[str, tuple[str, tuple[Argument, ...], bool]] = {}
#: All that follows the name and "(": the canonical text of that and of the "(".
_rests: dict[str, str] = {}
#: The same of a canonical text: its parts.
_parts: dict[str, Parts] = {}


def _keep(known: dict[str, T], written: str, value: T) -> T:
    """Remembers a value. A full cache starts anew."""
    if len(known) >= _PIECES:
        known.clear()
    known[written] = value
    return value


class NamesClasses(str):
    """A canonical text that seems to name classes, which have to be known."""

    __slots__ = ()


def canonical_schema(text: str, namespace: str) -> tuple[str, str]:
    """The operator's full name and the canonical text, for a library of this namespace. Raises as
    parse_schema.
    """
    name = split_name(text, namespace)
    written = text.partition("(")[2]
    rest = _rests.get(written) or _learn_rest(written)
    if rest is None:
        from .schemas import parse_schema

        canonical = str(parse_schema(text, namespace))
        return name, NamesClasses(canonical) if _may_name_classes(canonical) else canonical
    return name, name + rest if type(rest) is str else NamesClasses(name + rest)


def _may_name_classes(text: str) -> bool:
    """Whether there is a dot between letters after the name. That of a number is between others."""
    at = text.find(".", text.find("(") + 1)
    while at >= 0:
        if text[at - 1 : at].isalnum() and text[at + 1 : at + 2].isidentifier():
            return True
        at = text.find(".", at + 1)
    return False


def schema_of(text: str) -> FunctionSchema:
    """The schema of a canonical text, as parse_schema would make it."""
    head, _, written = text.partition("(")
    parts = _parts.get(written) or _learn_parts(written)
    name = _canonical_name(head) if parts is not None else None
    if parts is None or name is None:
        from .schemas import parse_schema

        return parse_schema(text)
    return _of_parts(name, parts, text)


def assembled(name: OperatorName, pieces: list[str], returned: str) -> FunctionSchema:
    """The schema of this name, these arguments ("*" included) and returns. SchemaSyntaxError."""
    rest = _joined(pieces, returned)
    if rest is None:
        from .schemas import parse_schema

        return parse_schema(f"{name}({', '.join(pieces)}) -> {returned}")
    written = rest[1:]
    parts = _parts.get(written) or _parts_of(pieces, returned)
    if parts is None:
        return schema_of(f"{name}{rest}")
    return _of_parts(name, _keep(_parts, written, parts), f"{name}{rest}")


def is_argument(piece: str) -> bool:
    """Whether a text is certainly one argument; the parser knows of others."""
    return (_arguments.get(piece) or _learn_argument(piece)) is not None


def _of_parts(name: OperatorName, parts: Parts, text: str) -> FunctionSchema:
    from .schemas import FunctionSchema

    made = FunctionSchema.__new__(FunctionSchema)  # not by __init__, which makes the text
    arguments, returns, is_varret = parts
    set_once(made, "name", name)
    set_once(made, "arguments", arguments)
    set_once(made, "returns", returns)
    set_once(made, "is_vararg", False)
    set_once(made, "is_varret", is_varret)
    set_once(made, "_starred", (None, None))
    set_once(made, "_text", text)
    return made


def _canonical_name(head: str) -> OperatorName | None:
    """The name, if this is its canonical text."""
    try:
        name = OperatorName.parse(head)
    except InvalidNameError:
        return None
    return name if str(name) == head else None


def _learn_parts(written: str) -> Parts | None:
    """The parts of all that follows the name of a canonical text; None where that takes the parser,
    and for any other text.
    """
    if (_rests.get(written) or _learn_rest(written)) != "(" + written:
        return None
    inside, _, returned = written.rpartition(") -> ")
    parts = _parts_of(inside.split(", ") if inside else [], returned)
    return None if parts is None else _keep(_parts, written, parts)


def _parts_of(pieces: list[str], returned: str) -> Parts | None:
    is_positional = True
    arguments = []
    for piece in pieces:
        known = _arguments.get(piece) or _learn_argument(piece)
        if known is None:  # another thread has just emptied the cache, and filled it
            return None
        argument = known[3]
        if argument is None:
            is_positional = False
        else:
            arguments.append(argument if is_positional else _only_by_keyword(argument))
    ends = _returns.get(returned) or _learn_returns(returned)
    return None if ends is None else (tuple(arguments), *ends[1:])


def _only_by_keyword(one: Argument) -> Argument:
    return type(one)(one.name, one.type, one.default, one.has_default, True, one.alias_info)


def _learn_rest(written: str) -> str | None:
    rest = _put_together(written) if len(written) <= _WHOLE else None
    if rest is None:
        return None
    return _keep(_rests, written, NamesClasses(rest) if _may_name_classes(rest) else rest)


def _put_together(rest: str) -> str | None:
    """The canonical text of all that follows the name; None where that takes the parser."""
    inside, arrow, written = rest.rpartition(") -> ")
    return _joined(inside.split(", ") if inside else [], written) if arrow else None


def _joined(pieces: list[str], written: str) -> str | None:
    """The canonical text of arguments and returns; None where that takes the parser."""
    returns = _returns.get(written) or _learn_returns(written)
    if returns is None or len(pieces) > _ARGUMENTS:
        return None
    texts = []
    names = set()
    defaults = False
    for piece in pieces:
        known = _arguments.get(piece) or _learn_argument(piece)
        if known is None:
            return None
        canonical, name, has_default, _ = known
        if defaults and not has_default and name != "*":
            return None
        defaults = has_default
        names.add(name)
        texts.append(canonical)
    if len(names) < len(texts) or (texts and texts[-1] == "*"):
        return None
    return f"({', '.join(texts)}) -> {returns[0]}"


def _learn_argument(piece: str) -> tuple[str, str, bool, Argument | None] | None:
    """The parts of a text that is exactly one argument, or "*"; None for any other text."""
    if piece == "*":
        return _keep(_arguments, piece, ("*", "*", False, None))
    schema = _parsed(piece, f"f({piece}) -> ()")
    if schema is None or len(schema.arguments) != 1 or schema.is_open:
        return None
    argument = schema.arguments[0]
    canonical = str(argument)
    # With this limit no text that is put together is larger than a schema may be.
    if argument.kwarg_only or len(canonical) > 4 * _LETTERS:
        return None
    return _keep(_arguments, piece, (canonical, argument.name, argument.has_default, argument))


def _learn_returns(written: str) -> tuple[str, tuple[Argument, ...], bool] | None:
    schema = _parsed(written, f"f() -> {written}")
    if schema is None:
        return None
    canonical = str(schema).removeprefix("f() -> ")
    return _keep(_returns, written, (canonical, schema.returns, schema.is_varret))


def _parsed(piece: str, text: str) -> FunctionSchema | None:
    from .schemas import parse_schema  # a worker that only verifies needs none

    if len(piece) > _LETTERS or "#" in piece:  # a comment would hide what follows it here
        return None
    try:
        return parse_schema(text)
    except SchemaSyntaxError:
        return None

"""The canonical text of a schema, from those of its pieces.

A registrar declares thousands of schemas, and needs of each no more than whether it is one, and its
canonical text. They are made of few pieces: arguments such as ``Tensor self`` come again and again.
Each piece is parsed once, and what follows the name is put together once. It is what the parser
would have made of the whole: a piece is known only if it is exactly one argument by itself, the
rules between arguments are looked at again, and whatever is unusual goes through the parser.
"""

from __future__ import annotations

from ._schema_names import split_name
from .errors import SchemaSyntaxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .schema import FunctionSchema

__all__ = ["canonical_schema"]

# So much at most, and of the text of a piece: what is larger is seldom the same again.
_PIECES = 8192
_LETTERS = 128
_WHOLE = 4096
_ARGUMENTS = 64

_STAR = ("*", "*", False)

#: An argument as it is written: its canonical text, its name, whether it has a default.
_arguments: dict[str, tuple[str, str, bool]] = {"*": _STAR}
#: Returns as they are written: their canonical text.
_returns: dict[str, str] = {}
#: All that follows the name and "(", as it is written: the canonical text of that and of the "(".
_rests: dict[str, str] = {}


def canonical_schema(text: str, namespace: str) -> tuple[str, str]:
    """The operator's full name and the canonical text, for a library of this namespace. Raises as
    parse_schema.
    """
    name = split_name(text, namespace)
    written = text.partition("(")[2]
    rest = _rests.get(written) or _learn_rest(written)
    if rest is None:
        from .schema import parse_schema

        return name, str(parse_schema(text, namespace))
    return name, name + rest


def _learn_rest(written: str) -> str | None:
    rest = _put_together(written) if len(written) <= _WHOLE else None
    if rest is not None:
        if len(_rests) >= _PIECES:
            _rests.clear()
        _rests[written] = rest
    return rest


def _put_together(rest: str) -> str | None:
    """What follows the name in the canonical text; None where that takes the parser."""
    inside, arrow, written = rest.rpartition(") -> ")
    if not arrow:
        return None
    returned = _returns.get(written) or _learn_returns(written)
    pieces = inside.split(", ") if inside else []
    if returned is None or len(pieces) > _ARGUMENTS:
        return None
    texts = []
    names = set()
    defaults = False
    for piece in pieces:
        known = _arguments.get(piece) or _learn_argument(piece)
        if known is None:
            return None
        canonical, name, has_default = known
        if defaults and not has_default and name != "*":
            return None
        defaults = has_default
        names.add(name)
        texts.append(canonical)
    if len(names) < len(texts) or (texts and texts[-1] == "*"):
        return None
    return f"({', '.join(texts)}) -> {returned}"


def _learn_argument(piece: str) -> tuple[str, str, bool] | None:
    """What is exactly one argument."""
    schema = _parsed(piece, f"f({piece}) -> ()")
    if schema is None or len(schema.arguments) != 1 or schema.is_vararg:
        return None
    argument = schema.arguments[0]
    canonical = str(argument)
    # So that what is put together is no larger than a schema.
    if argument.kwarg_only or len(canonical) > 4 * _LETTERS:
        return None
    if len(_arguments) >= _PIECES:
        _arguments.clear()
        _arguments["*"] = _STAR
    known = _arguments[piece] = (canonical, argument.name, argument.has_default)
    return known


def _learn_returns(written: str) -> str | None:
    schema = _parsed(written, f"f() -> {written}")
    if schema is None:
        return None
    if len(_returns) >= _PIECES:
        _returns.clear()
    canonical = _returns[written] = str(schema).removeprefix("f() -> ")
    return canonical


def _parsed(piece: str, text: str) -> FunctionSchema | None:
    from .schema import parse_schema  # a worker that only verifies needs none

    if len(piece) > _LETTERS or "#" in piece:  # a comment would hide what follows it here
        return None
    try:
        return parse_schema(text)
    except SchemaSyntaxError:
        return None

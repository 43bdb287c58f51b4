"""The grammar of schemas: text to FunctionSchema, by recursive descent.

    decl     := name '(' [ item { ',' item } ] ')' '->' returns
    name     := ident [ '::' ident ] [ '.' ident ]
    item     := '*' | '...' | sized ident [ '=' default ]
    returns  := ret | '(' [ ret { ',' ret } ] ')'
    ret      := '...' | sized [ ident ]
    sized    := type [ '[' digits ']' [ alias ] [ '?' ] ]
    type     := base { '[' ']' [ alias ] | '?' }
    base     := '(' type { ',' type } ')' | ( 'Future' | 'Await' | 'RRef' ) '(' type ')'
              | 'Dict' '(' type ',' type ')' [ alias ]
              | 'Union' '(' type { ',' type } ')' [ alias ] | ident [ alias ]
    alias    := '!' | '(' names [ '!' ] [ '->' names ] ')'
    names    := ( '*' | ident ) { '|' ( '*' | ident ) }

Defaults are in _schema_defaults.py.
"""

from __future__ import annotations

from ._schema_defaults import INTS, DefaultParser
from ._schema_names import OperatorName
from ._schema_scanner import MAX_TEXT
from ._schema_types import AliasInfo, Argument, FunctionSchema, Type
from .errors import InvalidNameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    Annotated = tuple[Type, AliasInfo | None]

__all__ = ["Parser"]

MAX_ARGUMENTS = 64
#: How deep types may be nested, since all that works on them is recursive.
MAX_NESTING = 32
#: The largest N of ``int[N]``, whose default is repeated N times.
MAX_SIZE = 1024

_PLAIN = INTS.union(
    ("Tensor", "Scalar", "str", "float", "complex", "bool", "SymBool", "Device", "Stream"),
    ("Generator", "Storage", "Quantizer", "ConstQuantizerPtr", "NoneType", "Capsule", "Any"),
    ("AnyClassType", "AnyEnumType"),
)
# The types that are written with others in parentheses, and how many.
_COMPOUND = {"Future": 1, "Await": 1, "RRef": 1, "Dict": 2, "Union": None}
_MEANT = {"double": "float", "int64_t": "int", "SymFloat": "float", "List": "[]", "Optional": "?"}


class Parser(DefaultParser):
    """One pass over the text of one schema.

    ``typevars`` allows types that nobody knows as variables, if they start in lower case.
    """

    __slots__ = ("typevars",)

    def __init__(self, text: str, typevars: bool = False) -> None:
        super().__init__(text)
        self.typevars = typevars

    def declaration(self, namespace: str | None = None) -> FunctionSchema:
        """The whole text. ``namespace`` is the library's: the name repeats it or leaves it out."""
        name = self.name().within(namespace)
        self.expect("(")
        arguments, is_vararg = self.arguments()
        self.expect("->")
        returns, is_varret = self.returns()
        self.depth = 1  # lines may end here, as long as nothing follows
        if self.skip() < len(self.text):
            self.fail_expecting("the end of the schema")
        schema = FunctionSchema(name, arguments, returns, is_vararg, is_varret)
        if len(str(schema).encode()) > MAX_TEXT:
            self.fail(
                f"with its defaults written out, the schema has more than {MAX_TEXT} bytes", 0
            )
        return schema

    def name(self) -> OperatorName:
        self.depth = 1  # lines may end here
        start = self.skip()
        self.depth = 0
        end = self.text.find("(", start)
        if end < 0:
            self.fail("a schema is a name, '(', arguments, ')', '->' and returns", len(self.text))
        head = self.text[start:end]
        try:
            name = OperatorName.parse(head)
        except InvalidNameError as error:
            self.fail(str(error), start + max(0, head.find(str(error.name))))
        self.pos = end
        return name

    def arguments(self) -> tuple[tuple[Argument, ...], bool]:
        arguments: list[Argument] = []
        kwarg_only = is_vararg = False
        if self.accept(")"):
            return (), False
        while True:
            start = self.skip()
            if is_vararg:
                self.fail("'...' must be the last argument", start)
            if self.accept("..."):
                is_vararg = True
                if any(argument.has_default for argument in arguments):
                    self.fail("'...' cannot follow an argument with a default", start)
            elif self.accept("*"):
                kwarg_only = True
            else:
                arguments.append(self.argument(arguments, kwarg_only))
            if not self.accept(","):
                self.expect(")")
                return tuple(arguments), is_vararg

    def argument(self, before: list[Argument], kwarg_only: bool) -> Argument:
        start = self.skip()
        if len(before) == MAX_ARGUMENTS:
            self.fail(f"an operator has at most {MAX_ARGUMENTS} arguments", start)
        type, alias = self.sized_type()
        place = self.skip()
        name = self.identifier("an argument's name")
        if any(other.name == name for other in before):
            self.fail(f"two arguments are called {name!r}", place)
        if self.accept("="):
            return Argument(name, type, self.default(type), True, kwarg_only, alias)
        if before and before[-1].has_default and not kwarg_only:
            self.fail(f"{name!r} needs a default, since the argument before it has one", start)
        return Argument(name, type, None, False, kwarg_only, alias)

    def returns(self) -> tuple[tuple[Argument, ...], bool]:
        returns: list[Argument] = []
        is_varret = False
        listed = self.accept("(")
        if listed and self.accept(")"):
            return (), False
        while True:
            if is_varret:
                self.fail("'...' must be the last return", self.skip())
            if self.accept("..."):
                is_varret = True
            else:
                type, alias = self.sized_type()
                name = self.identifier("a return's name") if self.at_word() else ""
                returns.append(Argument(name, type, alias_info=alias))
            if not listed:
                break
            if not self.accept(","):
                self.expect(")")
                break
        return tuple(returns), is_varret

    # --- types ------------------------------------------------------------------------------------

    def sized_type(self) -> Annotated:
        """A type where a list may have a size, which is nowhere inside a type."""
        type, alias = self.type(0)
        if self.accept("["):
            size = self.size(MAX_SIZE)
            self.expect("]")
            type, alias = Type(Type.LIST, (type,), size), _containing(self.alias(), (alias,))
            if self.accept("?"):
                type = Type(Type.OPTIONAL, (type,))
        return type, alias

    def type(self, nesting: int) -> Annotated:
        type, alias = self.base_type(nesting)
        while True:
            before = self.pos, self.depth
            if self.accept("?"):
                if type.name != Type.OPTIONAL:
                    type = Type(Type.OPTIONAL, (type,))
            elif self.accept("[") and self.accept("]"):
                type, alias = Type(Type.LIST, (type,)), _containing(self.alias(), (alias,))
                nesting = self.deeper(nesting)
            else:
                self.pos, self.depth = before  # a size, or no bracket at all
                return type, alias

    def deeper(self, nesting: int) -> int:
        if nesting == MAX_NESTING:
            self.fail(f"types are nested more than {MAX_NESTING} deep")
        return nesting + 1

    def base_type(self, nesting: int) -> Annotated:
        if self.at("("):
            return self.compound_type(Type.TUPLE, nesting)
        start = self.skip()
        name = self.word()
        if not name:
            self.fail_expecting("a type")
        if name in _COMPOUND:
            return self.compound_type(name, nesting)
        if name == "None":
            name = "NoneType"
        if name not in _PLAIN and not (self.typevars and name[0].islower()):
            self.fail_unknown(name, start)
        return Type(name), self.alias()

    def compound_type(self, name: str, nesting: int) -> Annotated:
        start = self.skip()
        nesting = self.deeper(nesting)
        self.expect("(")
        parts = [self.type(nesting)]
        while self.accept(","):
            parts.append(self.type(nesting))
        self.expect(")")
        if name == "Union":
            unique = {str(part[0]): part for part in parts}
            parts = [unique[text] for text in sorted(unique)]
            if len(parts) < 2:
                self.fail("a Union has at least two types that differ", start)
        count = _COMPOUND.get(name)
        if count is not None and len(parts) != count:
            self.fail(f"{name} has {count} type(s) inside, not {len(parts)}", start)
        type = Type(name, tuple(part[0] for part in parts))
        own = self.alias() if name in ("Dict", "Union") else None
        return type, _containing(own, tuple(part[1] for part in parts))

    def fail_unknown(self, name: str, start: int) -> NoReturn:
        from ._nearest import nearest

        meant = (_MEANT[name],) if name in _MEANT else nearest(name, (*_PLAIN, *_COMPOUND))
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        self.fail(f"there is no type {name!r:.60}{hint}", start)

    def alias(self) -> AliasInfo | None:
        if self.accept("!"):
            return AliasInfo(is_write=True)
        if not self.accept("("):
            return None
        before = after = self.alias_set()
        is_write = self.accept("!")
        if self.accept("->"):
            after = self.alias_set()
        self.expect(")")
        return AliasInfo(before, after, is_write)

    def alias_set(self) -> tuple[str, ...]:
        names = set()
        while True:
            names.add("*" if self.accept("*") else self.identifier("the name of an alias set"))
            if not self.accept("|"):
                return ("*",) if "*" in names else tuple(sorted(names))


def _containing(own: AliasInfo | None, inner: tuple[AliasInfo | None, ...]) -> AliasInfo | None:
    """The annotation of a type made of others, from its own and those of the others."""
    if not any(inner):
        return own
    own = own or AliasInfo()
    return AliasInfo(own.before, own.after, own.is_write, inner)

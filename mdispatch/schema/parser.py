"""The grammar of schemas: text to FunctionSchema, by recursive descent.

    decl     := name '(' [ item { ',' item } ] ')' '->' returns
    name     := ident [ '::' ident ] [ '.' ident ]
    item     := '*' | '...' | sized ident [ '=' default ] | sized '*' ident | sized '**' ident
    returns  := ret | '(' [ ret { ',' ret } ] ')'
    ret      := '...' | sized [ ident ]
    sized    := type [ '[' digits ']' [ alias ] [ '?' ] ]
    type     := base { '[' ']' [ alias ] | '?' }
    base     := '(' type { ',' type } ')' | ( 'Future' | 'Await' | 'RRef' ) '(' type ')'
              | 'Dict' '(' type ',' type ')' [ alias ]
              | 'Union' '(' type { ',' type } ')' [ alias ] | ident [ alias ]
              | class [ '[' param { ',' param } ']' ] [ alias ]
              | 'Literal' '[' const { ',' const } ']'
    class    := ident { '.' ident }
    param    := type | '...' | '[' [ type { ',' type } ] ']'
    alias    := '!' | '(' names [ '!' ] [ '->' names ] ')'
    names    := ( '*' | ident ) { '|' ( '*' | ident ) }
    default  := const | '[' [ const { ',' const } ] ']' | display
    display  := const | 'b' string | ident { '.' ident } | '[' [ display { ',' display } ] ']'
              | '(' [ display ',' { display [ ',' ] } ] ')'
              | '{' [ display ':' display { ',' display ':' display } ] '}'
    const    := True | False | None | string | number | ident

A default must be a value of its argument's type. PyTorch is laxer: it takes a str or 1.5 for an
int, 1 for a bool, and more elements than a list has. One number for a list with a size stands for
that many. An optional list takes None or that one number, but no list, as in PyTorch. None is a
default for every type that can have one: a caller who leaves the argument out gives None.

The types that PyTorch has not, and those for which it has no defaults, take any display.
"""

from __future__ import annotations

from ..errors import InvalidKeyError, InvalidNameError
from ..keys import canonical_device
from .classes import STANDARD
from .names import OperatorName
from .scanner import MAX_TEXT, Scanner
from .types import AliasInfo, Argument, Display, FunctionSchema, Type, constant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .types import Literal

    Annotated = tuple[Type, AliasInfo | None]

MAX_ARGUMENTS = 64
#: How deep types may be nested, since all that works on them is recursive.
MAX_NESTING = 32
#: The largest N of ``int[N]``, whose default is repeated N times.
MAX_SIZE = 1024

# The types whose values are ints.
_INTS = frozenset(
    ("int", "SymInt", "ScalarType", "Layout", "MemoryFormat", "QScheme", "DeviceIndex")
)
#: The types that are one word, and no class.
PLAIN = _INTS.union(
    ("Tensor", "Scalar", "str", "float", "complex", "bool", "SymBool", "Device", "Stream"),
    ("Generator", "Storage", "Quantizer", "ConstQuantizerPtr", "NoneType", "Capsule", "Any"),
    ("AnyClassType", "AnyEnumType", "object"),
)
# The types that are written with others in parentheses, and the number of these; None: any number.
_COMPOUND = {"Future": 1, "Await": 1, "RRef": 1, "Dict": 2, "Union": None}
#: What is written for types of other languages. "T" is what they have in brackets.
_MEANT = {
    "double": "float",
    "int64_t": "int",
    "SymFloat": "float",
    "string": "str",
    "number": "Scalar",
    "ndarray": "Tensor",
    "array": "Tensor",
    **dict.fromkeys(("List", "list"), "T[]"),
    "Tuple": "(T)",
    "Optional": "T?",
    "dict": "Dict(T)",
}
_INSIDE = {"(T)": "int, str", "Dict(T)": "str, int"}  # where they have no brackets

#: What PyTorch writes before the name of a class.
_OF_TORCH = "__torch__.torch.classes."

# Types that can have a default, with the Python types of the default. None is allowed for each of
# them, and is the only default for types with an empty tuple here.
_DEFAULTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_INTS, (int,)),
    **dict.fromkeys(("Tensor", "Generator", "Quantizer"), ()),
    **dict.fromkeys(("bool", "SymBool"), (bool,)),
    **dict.fromkeys(("str", "Device"), (str,)),
    "float": (int, float),
    "complex": (int, float, complex),
    "Scalar": (int, float, complex, bool),
}
_DEFAULT_LISTS = ("int", "SymInt", "float", "complex", "bool")

_LITERALS = {"True": True, "False": False, "None": None}
# PyTorch's numbers for the words that can stand for an int; words for dtypes only for ScalarType.
_WORDS = {"Mean": 1, "strided": 0, "contiguous_format": 0, "long": 4, "float": 6, "complex": 9}
_DTYPES = {
    name: number
    for number, names in enumerate(
        (
            *("uint8", "int8", "int16/short", "int32/int", "int64/long", "float16/half"),
            *("float32/float", "float64/double", "complex32/chalf", "complex64/cfloat/complex"),
            *("complex128/cdouble", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2"),
            *("quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2"),
            *("float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
            *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2"),
            *("int3", "int4", "int5", "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        )
    )
    for name in names.split("/")
}


class Parser:
    """One pass over the text of one schema, read token by token through its scanner ``scan``.

    ``typevars`` allows unknown types as variables, if they start in lower case. With ``of_torch``
    the class that PyTorch calls ``__torch__.torch.classes.shop.Tokenizer`` is ``shop.Tokenizer``.
    """

    __slots__ = ("of_torch", "scan", "typevars")

    def __init__(self, text: str, typevars: bool = False, of_torch: bool = False) -> None:
        self.scan = Scanner(text)
        self.typevars = typevars
        self.of_torch = of_torch

    def declaration(self, namespace: str | None = None) -> FunctionSchema:
        """The whole text. ``namespace`` is the library's: the name repeats it or leaves it out."""
        name = self.name().within(namespace)
        self.scan.expect("(")
        arguments, is_vararg, rest, others = self.arguments()
        self.scan.expect("->")
        returns, is_varret = self.returns()
        self.scan.depth = 1  # lines may end here, as long as nothing follows
        if self.scan.skip() < len(self.scan.text):
            self.scan.fail_expecting("the end of the schema")
        schema = FunctionSchema(name, arguments, returns, is_vararg, is_varret, rest, others)
        if len(str(schema).encode()) > MAX_TEXT:
            self.scan.fail(
                f"with its defaults written out, the schema has more than {MAX_TEXT} bytes", 0
            )
        return schema

    def name(self) -> OperatorName:
        self.scan.depth = 1  # lines may end here
        start = self.scan.skip()
        self.scan.depth = 0
        end = self.scan.text.find("(", start)
        if end < 0:
            self.scan.fail(
                "a schema is a name, '(', arguments, ')', '->' and returns", len(self.scan.text)
            )
        head = self.scan.text[start:end]
        try:
            name = OperatorName.parse(head)
        except InvalidNameError as error:
            self.scan.fail(str(error), start + max(0, head.find(str(error.name))))
        self.scan.pos = end
        return name

    def arguments(self) -> tuple[tuple[Argument, ...], bool, Argument | None, Argument | None]:
        arguments: list[Argument] = []
        rest: Argument | None = None
        kwarg_only = is_vararg = False
        if self.scan.accept(")"):
            return (), False, None, None
        while True:
            start = self.scan.skip()
            others: Argument | None = None
            if is_vararg:
                self.scan.fail("'...' must be the last argument", start)
            if self.scan.accept("..."):
                is_vararg = True
                if any(argument.has_default for argument in arguments):
                    self.scan.fail("'...' cannot follow an argument with a default", start)
            elif self.scan.accept("*"):
                kwarg_only = True
            else:
                one = self.argument(arguments, rest, kwarg_only)
                if one.stars == "*":
                    if kwarg_only:
                        self.scan.fail("only one '*' can be there, or one argument with it", start)
                    rest, kwarg_only = one, True
                elif one.stars:
                    others = one
                else:
                    arguments.append(one)
            if others is not None or not self.scan.accept(","):
                self.scan.expect(")")
                return tuple(arguments), is_vararg, rest, others

    def argument(self, before: list[Argument], rest: Argument | None, kwarg_only: bool) -> Argument:
        start = self.scan.skip()
        if len(before) == MAX_ARGUMENTS:
            self.scan.fail(f"an operator has at most {MAX_ARGUMENTS} arguments", start)
        type, alias = self.sized_type()
        place = self.scan.skip()
        stars = "**" if self.scan.accept("**") else "*" if self.scan.accept("*") else ""
        name = self.scan.identifier("an argument's name")
        if any(other.name == name for other in (*before, *((rest,) if rest else ()))):
            self.scan.fail(f"two arguments are called {name!r}", place)
        if stars:
            return Argument(name, type, alias_info=alias, stars=stars)
        if self.scan.accept("="):
            return Argument(name, type, self.default(type), True, kwarg_only, alias)
        if before and before[-1].has_default and not kwarg_only:
            self.scan.fail(f"{name!r} needs a default, since the argument before it has one", start)
        return Argument(name, type, None, False, kwarg_only, alias)

    def returns(self) -> tuple[tuple[Argument, ...], bool]:
        returns: list[Argument] = []
        is_varret = False
        listed = self.scan.accept("(")
        if listed and self.scan.accept(")"):
            return (), False
        while True:
            if is_varret:
                self.scan.fail("'...' must be the last return", self.scan.skip())
            if self.scan.accept("..."):
                is_varret = True
            else:
                type, alias = self.sized_type()
                name = self.scan.identifier("a return's name") if self.scan.at_word() else ""
                returns.append(Argument(name, type, alias_info=alias))
            if not listed:
                break
            if not self.scan.accept(","):
                self.scan.expect(")")
                break
        return tuple(returns), is_varret

    # --- types ------------------------------------------------------------------------------------

    def sized_type(self) -> Annotated:
        """A type whose outermost list may have a size; lists inside a type have none."""
        type, alias = self.type(0)
        if self.scan.accept("["):
            size = self.scan.size(MAX_SIZE)
            self.scan.expect("]")
            type, alias = Type(Type.LIST, (type,), size), _containing(self.alias(), (alias,))
            if self.scan.accept("?"):
                type = Type(Type.OPTIONAL, (type,))
        return type, alias

    def type(self, nesting: int) -> Annotated:
        type, alias = self.base_type(nesting)
        while True:
            before = self.scan.pos, self.scan.depth
            if self.scan.accept("?"):
                if type.name != Type.OPTIONAL:
                    type = Type(Type.OPTIONAL, (type,))
            elif self.scan.accept("[") and self.scan.accept("]"):
                type, alias = Type(Type.LIST, (type,)), _containing(self.alias(), (alias,))
                nesting = self.deeper(nesting)
            else:
                self.scan.pos, self.scan.depth = before  # a size, or no bracket at all
                return type, alias

    def deeper(self, nesting: int) -> int:
        if nesting == MAX_NESTING:
            self.scan.fail(f"types are nested more than {MAX_NESTING} deep")
        return nesting + 1

    def base_type(self, nesting: int) -> Annotated:
        if self.scan.at("("):
            return self.compound_type(Type.TUPLE, nesting)
        start = self.scan.skip()
        name = self.scan.word()
        if not name:
            self.scan.fail_expecting("a type")
        if name in _COMPOUND:
            return self.compound_type(name, nesting)
        if name == "None":
            name = "NoneType"
        if name == "Literal":
            return self.literal_type(), None
        is_class = name in STANDARD
        while self.at_class():
            self.scan.pos += 1
            name = f"{name}.{self.scan.identifier('the name of a class')}"
            is_class = True
        if self.of_torch and name.partition(".")[0] == "__torch__":
            return Type(self.class_of_torch(name, start)), None
        if is_class:
            return Type(name, self.parameters(nesting)), self.alias()
        if name not in PLAIN and not (self.typevars and name[0].islower()):
            self.fail_unknown(name, start)
        return Type(name), self.alias()

    def class_of_torch(self, name: str, start: int) -> str:
        """The name without the words that PyTorch puts before it."""
        ours = name.removeprefix(_OF_TORCH)
        if ours == name or ours.count(".") != 1:
            self.scan.fail(f"{name!r:.60} is no class of PyTorch; write {_OF_TORCH}ns.Name", start)
        return ours

    def parameters(self, nesting: int) -> tuple[Type, ...]:
        """The types in brackets after a class; none before "[]" and "[3]", which make lists."""
        before = self.scan.pos, self.scan.depth
        if not self.scan.accept("["):
            return ()
        next_letter = self.scan.text[self.scan.skip() : self.scan.pos + 1]
        if next_letter == "]" or next_letter.isdecimal():
            self.scan.pos, self.scan.depth = before
            return ()
        nesting = self.deeper(nesting)
        found = [self.parameter(nesting)]
        while self.scan.accept(","):
            found.append(self.parameter(nesting))
        self.scan.expect("]")
        return tuple(found)

    def parameter(self, nesting: int) -> Type:
        if self.scan.accept("..."):
            return Type("...")
        if not self.scan.accept("["):
            return self.type(nesting)[0]
        nesting = self.deeper(nesting)
        found: list[Type] = []
        while not self.scan.accept("]"):
            if found:
                self.scan.expect(",")
            found.append(self.type(nesting)[0])
        return Type(Type.GROUP, tuple(found))

    def literal_type(self) -> Type:
        self.scan.expect("[")
        texts = [constant(self.display(0))]
        while self.scan.accept(","):
            texts.append(constant(self.display(0)))
        self.scan.expect("]")
        return Type("Literal", tuple(map(Type, dict.fromkeys(texts))))

    def at_class(self) -> bool:
        """Whether a dot and a name follow at once: those of a class in a namespace."""
        dot, first = self.scan.text[self.scan.pos : self.scan.pos + 1], self.scan.pos + 1
        return dot == "." and self.scan.text[first : first + 1].isidentifier()

    def compound_type(self, name: str, nesting: int) -> Annotated:
        start = self.scan.skip()
        nesting = self.deeper(nesting)
        self.scan.expect("(")
        parts = [self.type(nesting)]
        while self.scan.accept(","):
            parts.append(self.type(nesting))
        self.scan.expect(")")
        if name == "Union":
            unique = {str(part[0]): part for part in parts}
            parts = [unique[text] for text in sorted(unique)]
            if len(parts) < 2:
                self.scan.fail("a Union has at least two types that differ", start)
        count = _COMPOUND.get(name)
        if count is not None and len(parts) != count:
            self.scan.fail(f"{name} has {count} type(s) inside, not {len(parts)}", start)
        type = Type(name, tuple(part[0] for part in parts))
        own = self.alias() if name in ("Dict", "Union") else None
        return type, _containing(own, tuple(part[1] for part in parts))

    def fail_unknown(self, name: str, start: int) -> NoReturn:
        from ..errors.words import nearest

        text, end = self.scan.text, self.scan.skip()
        if text.startswith(":", end):
            self.scan.fail(
                f"there is no type {name!r:.60}; the type comes before the name, without a colon: "
                f"'Tensor {name:.60}'",
                start,
            )
        if name in _MEANT:
            meant = _MEANT[name]
            close = text.find("]", end) if text.startswith("[", end) else -1
            inside = text[end + 1 : close] if close > 0 else _INSIDE.get(meant, "int")
            self.scan.fail(
                f"there is no type {name!r:.60}; write {meant.replace('T', inside, 1):.60}"
                if meant not in PLAIN
                else f"there is no type {name!r:.60}; did you mean {meant}?",
                start,
            )
        near = nearest(name, (*PLAIN, *_COMPOUND))
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        self.scan.fail(f"there is no type {name!r:.60}{hint}", start)

    def alias(self) -> AliasInfo | None:
        if self.scan.accept("!"):
            return AliasInfo(is_write=True)
        if not self.scan.accept("("):
            return None
        before = after = self.alias_set()
        is_write = self.scan.accept("!")
        if self.scan.accept("->"):
            after = self.alias_set()
        self.scan.expect(")")
        return AliasInfo(before, after, is_write)

    def alias_set(self) -> tuple[str, ...]:
        names = set()
        while True:
            names.add(
                "*" if self.scan.accept("*") else self.scan.identifier("the name of an alias set")
            )
            if not self.scan.accept("|"):
                return ("*",) if "*" in names else tuple(sorted(names))

    # --- defaults ---------------------------------------------------------------------------------

    def default(self, type: Type) -> Literal:
        optional = type.name == Type.OPTIONAL
        if optional:
            if self.scan.accept("None"):
                return None
            type = type.elements[0]
        if type.name != Type.LIST:
            return self.constant(type) if type.name in _DEFAULTS else self.displayed(type)
        element = type.elements[0]
        if element.name not in _DEFAULT_LISTS:
            return self.displayed(type)
        if type.size is not None and not self.scan.at("["):
            return (self.element(element),) * type.size
        if optional:
            self.scan.fail(
                "the default of an optional list is None, or one number if it has a size"
            )
        start = self.scan.skip()
        self.scan.expect("[")
        items = []
        if not self.scan.accept("]"):
            items.append(self.element(element))
            while self.scan.accept(","):
                items.append(self.element(element))
            self.scan.expect("]")
        if type.size is not None and len(items) > type.size and not self.typevars:
            self.scan.fail(f"the default has {len(items)} elements, the list {type.size}", start)
        return tuple(items)

    def displayed(self, type: Type) -> Literal:
        if type.name in PLAIN and type.name not in ("Any", "object", "NoneType"):
            self.scan.fail(f"an argument of type {type} cannot have a default")
        if type.holds_tensors:
            self.scan.fail(f"an argument of type {type} cannot have a default")
        return self.display(0)

    def display(self, nesting: int) -> Literal:
        """A value of any type."""
        scan = self.scan
        if scan.accept("["):
            return Display(Display.LIST, self.displays("]", nesting))
        if scan.accept("("):
            return Display(Display.TUPLE, self.displays(")", nesting))
        if scan.accept("{"):
            return Display(Display.DICT, self.displays("}", nesting))
        if not scan.at_word():
            return scan.string() if scan.at("'") or scan.at('"') else scan.number()
        start = scan.pos
        word = scan.word()
        if word == "b" and scan.text[scan.pos : scan.pos + 1] in ("'", '"'):
            text = scan.string()
            if not all(ord(letter) < 256 for letter in text):
                scan.fail("bytes have letters up to 377 only, in octal digits", start)
            return text.encode("latin-1")
        if word in _LITERALS:
            return _LITERALS[word]
        while self.at_class():
            scan.pos += 1
            word = f"{word}.{scan.identifier('the name of a member')}"
        if "." not in word:
            scan.fail(f"{word!r:.60} is no value", start)
        return Display(Display.NAME, (word,))

    def displays(self, end: str, nesting: int) -> tuple[Any, ...]:
        nesting = self.deeper(nesting)
        found: list[Any] = []
        while not self.scan.accept(end):
            if found:
                self.scan.expect(",")
                if end == ")" and self.scan.accept(end):
                    break
            item = self.display(nesting)
            if end == "}":
                self.scan.expect(":")
                found.append((item, self.display(nesting)))
            else:
                found.append(item)
        return tuple(found)

    def element(self, type: Type) -> Literal:
        start = self.scan.skip()
        value = self.constant(type)
        if value is None:
            self.scan.fail("None cannot be in a list", start)
        return value

    def constant(self, type: Type) -> Literal:
        """A value of this type."""
        start = self.scan.skip()
        kinds = _DEFAULTS.get(type.name)
        if kinds is None:
            self.scan.fail(f"an argument of type {type} cannot have a default", start)
        value = self.literal(type)
        if value is None:
            return None
        if value.__class__ not in kinds:
            self.scan.fail(f"this is not a value of type {type}", start)
        if type.name == "Device":
            try:
                return canonical_device(str(value))
            except InvalidKeyError as error:
                self.scan.fail(str(error), start)
        if type.name == "float" and isinstance(value, int):
            return float(value)
        if type.name == "complex" and isinstance(value, (int, float)):
            return complex(value)
        return value

    def literal(self, type: Type) -> Literal:
        if self.scan.at("'") or self.scan.at('"'):
            return self.scan.string()
        if not self.scan.at_word():
            return self.scan.number()
        start = self.scan.pos
        word = self.scan.word()
        if word in _LITERALS:
            return _LITERALS[word]
        if type.name in _INTS and word in _WORDS:
            return _WORDS[word]
        if type.name != "ScalarType" or word not in _DTYPES:
            self.scan.fail(f"{word!r:.60} is not a value of type {type}", start)
        return _DTYPES[word]


def _containing(own: AliasInfo | None, inner: tuple[AliasInfo | None, ...]) -> AliasInfo | None:
    """The annotation of a compound type, from its own annotation and those of its elements."""
    if not any(inner):
        return own
    own = own or AliasInfo()
    return AliasInfo(own.before, own.after, own.is_write, inner)

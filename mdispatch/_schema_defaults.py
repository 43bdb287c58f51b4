"""The defaults of arguments: the part of the grammar that depends on types.

    default  := const | '[' [ const { ',' const } ] ']'
    const    := True | False | None | string | number | ident

A default must be a value of its argument's type. PyTorch is laxer: it takes a str or 1.5 for an
int, 1 for a bool, and more elements than a list has. One number for a list with a size stands for
that many. An optional list takes None or that one number, but no list, as in PyTorch. None is a
default for every type that can have one: whoever does not give the argument gives None.
"""

from __future__ import annotations

from ._schema_scanner import Scanner
from ._schema_types import Type
from .errors import InvalidKeyError
from .keys import canonical_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._schema_types import Literal

__all__ = ["INTS", "DefaultParser"]

#: The types whose values are ints.
INTS = frozenset(
    ("int", "SymInt", "ScalarType", "Layout", "MemoryFormat", "QScheme", "DeviceIndex")
)

# Types that can have a default, with the Python types of its values. None is one for each of them,
# and the only one for those without others.
_DEFAULTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(INTS, (int,)),
    **dict.fromkeys(("Tensor", "Generator", "Quantizer"), ()),
    **dict.fromkeys(("bool", "SymBool"), (bool,)),
    **dict.fromkeys(("str", "Device"), (str,)),
    "float": (int, float),
    "complex": (int, float, complex),
    "Scalar": (int, float, complex, bool),
}
_DEFAULT_LISTS = ("int", "SymInt", "float", "complex", "bool")

_LITERALS = {"True": True, "False": False, "None": None}
# PyTorch's numbers for what can stand for an int by its name; those of dtypes only for ScalarType.
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


class DefaultParser(Scanner):
    """A scanner that can read the default of an argument."""

    __slots__ = ()

    def default(self, type: Type) -> Literal:
        optional = type.name == Type.OPTIONAL
        if optional:
            if self.accept("None"):
                return None
            type = type.elements[0]
        if type.name != Type.LIST:
            return self.constant(type)
        element = type.elements[0]
        if element.name not in _DEFAULT_LISTS:
            self.fail(f"only lists of {', '.join(_DEFAULT_LISTS)} can have a default")
        if type.size is not None and not self.at("["):
            return (self.element(element),) * type.size
        if optional:
            self.fail("the default of an optional list is None, or one number if it has a size")
        start = self.skip()
        self.expect("[")
        items = []
        if not self.accept("]"):
            items.append(self.element(element))
            while self.accept(","):
                items.append(self.element(element))
            self.expect("]")
        if type.size is not None and len(items) > type.size:
            self.fail(f"the default has {len(items)} elements, the list {type.size}", start)
        return tuple(items)

    def element(self, type: Type) -> Literal:
        start = self.skip()
        value = self.constant(type)
        if value is None:
            self.fail("None cannot be in a list", start)
        return value

    def constant(self, type: Type) -> Literal:
        """A value of this type."""
        start = self.skip()
        kinds = _DEFAULTS.get(type.name)
        if kinds is None:
            self.fail(f"an argument of type {type} cannot have a default", start)
        value = self.literal(type)
        if value is None:
            return None
        if value.__class__ not in kinds:
            self.fail(f"this is no value of type {type}", start)
        if type.name == "Device":
            try:
                return canonical_device(str(value))
            except InvalidKeyError as error:
                self.fail(str(error), start)
        if type.name == "float" and isinstance(value, int):
            return float(value)
        if type.name == "complex" and isinstance(value, (int, float)):
            return complex(value)
        return value

    def literal(self, type: Type) -> Literal:
        if self.at("'") or self.at('"'):
            return self.string()
        if not self.at_word():
            return self.number()
        start = self.pos
        word = self.word()
        if word in _LITERALS:
            return _LITERALS[word]
        if type.name in INTS and word in _WORDS:
            return _WORDS[word]
        if type.name != "ScalarType" or word not in _DTYPES:
            self.fail(f"{word!r:.60} is no value of type {type}", start)
        return _DTYPES[word]

"""The promises of inferring schemas from annotations: PyTorch's answers, and texts that parse."""

from __future__ import annotations

import collections.abc
import enum
import functools
import inspect
import sys
import types
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdispatch.dispatch.annotations import Tensor
from mdispatch.dispatch.context import values
from mdispatch.errors import InvalidArgumentError, InvalidNameError
from mdispatch.errors.words import shown
from mdispatch.schema import parse_schema
from mdispatch.torch_compat.infer import infer_schema

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

# The answers of torch.library.infer_schema of PyTorch 2.13.0 for functions with these signatures,
# with Tensor as torch.Tensor, Number as torch.types.Number, GroupName that of torch.distributed.
INFERRED = {
    "() -> None": "() -> ()",
    "(x: Tensor) -> Tensor": "(Tensor x) -> Tensor",
    '(x: Tensor) -> "Tensor"': "(Tensor x) -> Tensor",
    '(x: "Tensor") -> None': "(Tensor x) -> ()",
    '(x: "Tensor", y: "Optional[int]" = None) -> "tuple[Tensor, int]"': (
        "(Tensor x, SymInt? y=None) -> (Tensor, SymInt)"
    ),
    "(x: Tensor, y: Tensor, z: Tensor) -> Tensor": "(Tensor x, Tensor y, Tensor z) -> Tensor",
    "(x: Optional[Tensor]) -> None": "(Tensor? x) -> ()",
    "(x: Tensor | None = None) -> None": "(Tensor? x=None) -> ()",
    "(x: Union[None, Tensor]) -> None": "(Tensor? x) -> ()",
    "(x: List[Tensor]) -> None": "(Tensor[] x) -> ()",
    "(x: list[Tensor]) -> None": "(Tensor[] x) -> ()",
    "(x: Sequence[Tensor]) -> None": "(Tensor[] x) -> ()",
    "(x: collections.abc.Sequence[Tensor]) -> None": "(Tensor[] x) -> ()",
    "(x: list[Tensor | None]) -> None": "(Tensor?[] x) -> ()",
    "(x: Sequence[Optional[Tensor]]) -> None": "(Tensor?[] x) -> ()",
    '(x: list["Tensor"]) -> None': "(Tensor[] x) -> ()",
    '(x: "Tensor | None") -> None': "(Tensor? x) -> ()",
    "(x: int) -> None": "(SymInt x) -> ()",
    "(x: int | None) -> None": "(SymInt? x) -> ()",
    "(x: list[int]) -> None": "(SymInt[] x) -> ()",
    "(x: Sequence[int]) -> None": "(SymInt[] x) -> ()",
    "(x: Optional[Sequence[int]] = None) -> None": "(SymInt[]? x=None) -> ()",
    "(x: List[int] | None) -> None": "(SymInt[]? x) -> ()",
    "(x: float) -> None": "(float x) -> ()",
    "(x: Optional[float]) -> None": "(float? x) -> ()",
    "(x: list[float]) -> None": "(float[] x) -> ()",
    "(x: list[float] | None) -> None": "(float[]? x) -> ()",
    "(x: bool) -> None": "(bool x) -> ()",
    "(x: bool | None) -> None": "(bool? x) -> ()",
    "(x: Sequence[bool]) -> None": "(bool[] x) -> ()",
    "(x: Optional[list[bool]]) -> None": "(bool[]? x) -> ()",
    "(x: str) -> None": "(str x) -> ()",
    "(x: str | None = None) -> None": "(str? x=None) -> ()",
    "(x: Number) -> None": "(Scalar x) -> ()",
    "(x: Number | None) -> None": "(Scalar? x) -> ()",
    "(x: bool | float | int) -> None": "(Scalar x) -> ()",
    "(x: Union[int, float, bool]) -> None": "(Scalar x) -> ()",
    "(x: list[Number]) -> None": "(Scalar[] x) -> ()",
    "(x: Sequence[int | float | bool]) -> None": "(Scalar[] x) -> ()",
    "(x: torch.dtype) -> None": "(ScalarType x) -> ()",
    "(x: torch.dtype | None = None) -> None": "(ScalarType? x=None) -> ()",
    "(x: torch.device) -> None": "(Device x) -> ()",
    "(x: Optional[torch.device]) -> None": "(Device? x) -> ()",
    "(x: GroupName) -> None": "(str x) -> ()",
    "(x: GroupName | None) -> None": "(str? x) -> ()",
    "(x: Tensor, *, y: int) -> None": "(Tensor x, *, SymInt y) -> ()",
    "(*, x: Tensor) -> None": "(*, Tensor x) -> ()",
    "(x: Tensor, *, y: int = 1, z: Tensor) -> Tensor": (
        "(Tensor x, *, SymInt y=1, Tensor z) -> Tensor"
    ),
    "(self: Tensor) -> None": "(Tensor self) -> ()",
    "(x: int = 0) -> None": "(SymInt x=0) -> ()",
    "(x: int = -5) -> None": "(SymInt x=-5) -> ()",
    "(x: int = 9223372036854775807) -> None": "(SymInt x=9223372036854775807) -> ()",
    "(x: int | None = 3) -> None": "(SymInt? x=3) -> ()",
    "(x: float = 1.0) -> None": "(float x=1.0) -> ()",
    "(x: float = 1) -> None": "(float x=1) -> ()",
    "(x: float = 0.1) -> None": "(float x=0.1) -> ()",
    "(x: float = -1e-05) -> None": "(float x=-1e-05) -> ()",
    "(x: float = 1e+16) -> None": "(float x=1e+16) -> ()",
    "(x: float = 1.7976931348623157e+308) -> None": "(float x=1.7976931348623157e+308) -> ()",
    "(x: Optional[float] = 2.5) -> None": "(float? x=2.5) -> ()",
    "(x: bool = True) -> None": "(bool x=True) -> ()",
    "(x: bool = False) -> None": "(bool x=False) -> ()",
    "(x: bool | None = True) -> None": "(bool? x=True) -> ()",
    "(x: Number = 2) -> None": "(Scalar x=2) -> ()",
    "(x: Number = 2.5) -> None": "(Scalar x=2.5) -> ()",
    "(x: Number = True) -> None": "(Scalar x=True) -> ()",
    '(x: str = "sum") -> None': '(str x="sum") -> ()',
    '(x: str = "") -> None': '(str x="") -> ()',
    '(x: str = "it\'s, (a) -> b = c") -> None': '(str x="it\'s, (a) -> b = c") -> ()',
    '(x: str = "café ✓") -> None': '(str x="café ✓") -> ()',
    '(x: str | None = "none") -> None': '(str? x="none") -> ()',
    "(x: torch.dtype = torch.float32) -> None": "(ScalarType x=float32) -> ()",
    "(x: torch.dtype | None = torch.int64) -> None": "(ScalarType? x=int64) -> ()",
    '(x: torch.device = torch.device("cpu")) -> None': '(Device x="cpu") -> ()',
    '(x: torch.device = torch.device("cuda:1")) -> None': '(Device x="cuda:1") -> ()',
    '(x: torch.device = "cuda") -> None': '(Device x="cuda") -> ()',
    "(x: torch.device | None = None) -> None": "(Device? x=None) -> ()",
    "(x: Optional[list[int]] = None) -> None": "(SymInt[]? x=None) -> ()",
    "(x: int = Mode.FAST) -> None": "(SymInt x=1) -> ()",
    '(x: Tensor, y: Optional[Tensor] = None, z: int = 1, *, w: str = "a") -> tuple[Tensor, int]': (
        '(Tensor x, Tensor? y=None, SymInt z=1, *, str w="a") -> (Tensor, SymInt)'
    ),
    "() -> int": "() -> SymInt",
    "() -> float": "() -> float",
    "() -> bool": "() -> bool",
    "() -> Number": "() -> Scalar",
    "() -> Tensor": "() -> Tensor",
    "() -> List[Tensor]": "() -> Tensor[]",
    "() -> list[Tensor]": "() -> Tensor[]",
    '() -> "None"': "() -> ()",
    "() -> tuple[()]": "() -> ()",
    "() -> Tuple[()]": "() -> ()",
    "() -> tuple[Tensor]": "() -> ((Tensor))",
    "() -> Tuple[Tensor, Tensor]": "() -> (Tensor, Tensor)",
    "() -> tuple[Tensor, int, float, bool, Number]": "() -> (Tensor, SymInt, float, bool, Scalar)",
    "() -> tuple[Tensor, list[Tensor]]": "() -> (Tensor, Tensor[])",
    '() -> tuple["Tensor", "list[Tensor]"]': "() -> (Tensor, Tensor[])",
    "() -> tuple[int]": "() -> ((SymInt))",
}
# Signatures that it refused. mdispatch refuses all of them, too.
REFUSED = [
    "(x) -> None",
    "(x: Tensor)",
    "(x: Tensor, /) -> None",
    "(*x: Tensor) -> None",
    "(**x: Tensor) -> None",
    "(x: Tensor, *y: int) -> None",
    "(x: dict) -> None",
    "(x: dict[str, int]) -> None",
    "(x: tuple[int, int]) -> None",
    "(x: Tuple[Tensor, ...]) -> None",
    "(x: list) -> None",
    "(x: List) -> None",
    "(x: Sequence) -> None",
    "(x: list[str]) -> None",
    "(x: list[list[int]]) -> None",
    "(x: list[int | None]) -> None",
    "(x: Optional[list[Tensor]]) -> None",
    "(x: Optional[list[Number]]) -> None",
    "(x: Optional[list[Optional[Tensor]]]) -> None",
    "(x: list[torch.dtype]) -> None",
    "(x: int | float) -> None",
    "(x: int | str) -> None",
    "(x: complex) -> None",
    "(x: Union[int, float, bool, complex]) -> None",
    "(x: Tensor | int) -> None",
    "(x: object) -> None",
    "(x: Any) -> None",
    "(x: None) -> None",
    '(x: Literal["a"]) -> None',
    "(x: Annotated[int, 1]) -> None",
    "(x: Iterable[int]) -> None",
    "(x: Callable[[int], int]) -> None",
    "(x: set[int]) -> None",
    "(x: type[int]) -> None",
    '(x: "Missing") -> None',
    '(x: "not python") -> None',
    "(x: 5) -> None",
    "(x: [int]) -> None",
    "(x: int = ()) -> None",
    "(x: list[int] = [1, 2]) -> None",
    "(x: int = 1j) -> None",
    "(x: Tensor = object()) -> None",
    "() -> str",
    "() -> dict",
    "() -> Optional[Tensor]",
    "() -> Tensor | None",
    "() -> Sequence[Tensor]",
    "() -> list[int]",
    "() -> list[Optional[Tensor]]",
    "() -> tuple",
    "() -> tuple[Tensor, ...]",
    "() -> tuple[Tensor, None]",
    "() -> tuple[str]",
    "() -> tuple[tuple[Tensor]]",
    "() -> tuple[Sequence[Tensor]]",
    "() -> complex",
    "() -> torch.dtype",
    "() -> Any",
    "() -> type(None)",
    '() -> "Missing"',
]
# With mutates_args; None where it refused.
MUTATING = [
    ("(x: Tensor, y: Tensor) -> None", ["x"], "(Tensor(a0!) x, Tensor y) -> ()"),
    ("(x: Tensor, y: Tensor) -> None", ["y"], "(Tensor x, Tensor(a1!) y) -> ()"),
    ("(x: Tensor, y: Tensor) -> None", ["y", "x"], "(Tensor(a0!) x, Tensor(a1!) y) -> ()"),
    ("(x: int, y: Tensor | None = None) -> None", ["y"], "(SymInt x, Tensor(a1!)? y=None) -> ()"),
    ("(x: list[Tensor]) -> None", ["x"], "(Tensor(a0!)[] x) -> ()"),
    ("(x: Sequence[Optional[Tensor]]) -> None", ["x"], "(Tensor(a0!)?[] x) -> ()"),
    ("(x: Tensor, *, out: Tensor) -> Tensor", ["out"], "(Tensor x, *, Tensor(a1!) out) -> Tensor"),
    (
        "(x: Tensor, n: int, *, out: list[Tensor]) -> None",
        "unknown",
        "(Tensor(a0!) x, SymInt n, *, Tensor(a2!)[] out) -> ()",
    ),
    ("(n: int) -> None", "unknown", "(SymInt n) -> ()"),
    (
        "(x: Tensor, y: Tensor | None, z: list[Tensor | None], n: int = 1) -> Tensor",
        "unknown",
        "(Tensor(a0!) x, Tensor(a1!)? y, Tensor(a2!)?[] z, SymInt n=1) -> Tensor",
    ),
    ("(x: Tensor) -> None", ["y"], None),
    ("(x: Tensor, n: int) -> None", ["n"], None),
    ("(x: Tensor, n: list[int]) -> None", ["x", "n"], None),
    ("(x: Tensor) -> None", "x", None),
    ("(x: Tensor) -> None", [], "(Tensor x) -> ()"),
    ("(x: str) -> None", ["x"], None),
    ("(x: Tensor) -> None", {}, "(Tensor x) -> ()"),
    ("(x: Tensor) -> None", ["x", "x"], "(Tensor(a0!) x) -> ()"),
]

# --- the functions --------------------------------------------------------------------------------


class FakeDevice:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


class FakeDtype:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


class FakeTensor:
    def __dlpack_device__(self):
        return 1, 0


class Mode(enum.IntEnum):
    FAST = 1


class Kind(str, enum.Enum):  # noqa: UP042  # the str of a StrEnum is its value
    MEAN = "mean"


class Level(float, enum.Enum):
    HALF = 0.5


@pytest.fixture
def torch(monkeypatch):
    """Stands for a loaded torch, as far as annotations need it."""
    module = types.ModuleType("torch")
    module.Tensor, module.device, module.dtype = FakeTensor, FakeDevice, FakeDtype
    module.float32, module.int64 = FakeDtype("float32"), FakeDtype("int64")
    distributed = types.ModuleType("torch.distributed.distributed_c10d")
    distributed.GroupName = typing.NewType("GroupName", str)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, distributed.__name__, distributed)
    return module


def function(signature, postponed=False, **scope):
    """A function with this signature, and these names besides those of typing in its globals.

    ``postponed``: in a module that makes strings of all annotations.
    """
    names = {name: getattr(typing, name) for name in typing.__all__}
    names |= {"Tensor": Tensor, "Number": int | float | bool, "collections": collections, **scope}
    source = "from __future__ import annotations\n" * postponed + f"def scale{signature}: ..."
    exec(compile(source, "<test>", "exec", dont_inherit=True), names)
    return names["scale"]


def infer(signature, mutates_args=(), **scope):
    """The inferred text, after it was read back."""
    text = infer_schema(function(signature, **scope), mutates_args=mutates_args)
    parse_schema("ns::scale" + text)
    return text


def refused(signature, mutates_args=(), **scope):
    """The error's text, which shows the signature, and on the last line what to do."""
    prototype = function(signature, **scope)
    with pytest.raises(InvalidArgumentError) as caught:
        infer_schema(prototype, mutates_args=mutates_args)
    message = str(caught.value)
    assert "from scale: " in message
    assert f"  signature: {shown(str(inspect.signature(prototype)), 400)}" in message
    assert len(message.splitlines()) == 3
    return message


# --- as PyTorch -----------------------------------------------------------------------------------


def of_torch(torch):
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    return {"torch": torch, "GroupName": c10d.GroupName, "Mode": Mode}


@pytest.mark.parametrize("signature", INFERRED)
def test_a_schema_is_inferred_as_recorded(signature, torch):
    assert infer(signature, **of_torch(torch)) == INFERRED[signature]


@pytest.mark.parametrize("signature", INFERRED)
def test_a_schema_is_inferred_as_recorded_in_a_module_that_postpones_annotations(signature, torch):
    assert infer(signature, postponed=True, **of_torch(torch)) == INFERRED[signature]


@pytest.mark.parametrize("signature", INFERRED)
def test_a_schema_of_torchs_own_tensors_is_inferred_as_recorded(signature, torch):
    scope = of_torch(torch) | {"Tensor": torch.Tensor}
    assert infer(signature, **scope) == INFERRED[signature]


@pytest.mark.parametrize("signature", REFUSED)
def test_what_pytorch_refused_is_refused(signature, torch):
    refused(signature, **of_torch(torch))


@pytest.mark.parametrize(("signature", "mutates_args", "expected"), MUTATING)
def test_arguments_written_to_are_marked_as_recorded(signature, mutates_args, expected):
    if expected is None:
        refused(signature, mutates_args)
    else:
        assert infer(signature, mutates_args) == expected


def test_mutates_args_may_be_left_out_and_can_be_any_iterable():
    f = function("(x: Tensor, y: Tensor) -> None")
    assert infer_schema(f) == "(Tensor x, Tensor y) -> ()"
    for names in (("x",), {"x"}, {"x": 1}, iter("x"), (name for name in ["x"])):
        assert infer_schema(f, mutates_args=names) == "(Tensor(a0!) x, Tensor y) -> ()"


def test_the_name_stands_before_the_rest():
    f = function("(x: Tensor) -> Tensor")
    assert infer_schema(f, op_name="shop::scale.out") == "shop::scale.out(Tensor x) -> Tensor"
    assert infer_schema(f, op_name="scale") == "scale(Tensor x) -> Tensor"


# --- better than PyTorch --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a\\b", 'say "hi"', "\\", "\\'", "a\nb\tc", "\0\x7f", "\u2028", "\\n", '\\"', "'\"'\\''"],
)
def test_a_text_as_default_is_escaped_so_that_it_reads_back(text):
    inferred = infer("(x: str = text) -> None", text=text)
    assert parse_schema("f" + inferred).arguments[0].default == text


def test_a_device_as_default_is_written_in_quotes(torch):
    scope = {"torch": torch, "device": FakeDevice("cuda:1")}
    assert infer("(x: torch.device = device) -> None", **scope) == '(Device x="cuda:1") -> ()'
    assert "gpu" in refused("(x: torch.device = gpu) -> None", torch=torch, gpu=FakeDevice("gpu"))


def test_the_default_of_an_enum_that_is_a_value_is_that_value():
    scope = {"Mode": Mode, "Kind": Kind, "Level": Level}
    assert infer("(x: int = Mode.FAST) -> None", **scope) == "(SymInt x=1) -> ()"
    assert infer("(x: str = Kind.MEAN) -> None", **scope) == '(str x="mean") -> ()'
    assert infer("(x: float = Level.HALF) -> None", **scope) == "(float x=0.5) -> ()"


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        ("int", 1 << 63),
        ("int", 1.5),
        ("int", "a"),
        ("int", True),
        ("float", float("inf")),
        ("float", float("nan")),
        ("float", True),
        ("bool", 1),
        ("str", 1),
        ("str", "half a character: \ud800"),
        ("Tensor", 1),
        ("Number", "a"),
        ("list[int]", None),
        ("list[int] | None", 1),
    ],
)
def test_a_default_that_the_type_cannot_have_is_refused(annotation, default):
    assert "parameter x" in refused(f"(x: {annotation} = d) -> None", d=default)


@pytest.mark.parametrize("name", ["é", "NoneType", "Ellipsis", "n" * 256])
def test_a_parameter_that_schemas_have_no_name_for_is_refused(name):
    refused(f"({name}: int) -> None")


def test_more_parameters_than_schemas_have_are_refused():
    names = [f"x{number}: int" for number in range(65)]
    assert infer(f"({', '.join(names[:64])}) -> None").count("SymInt") == 64
    assert "64" in refused(f"({', '.join(names)}) -> None")


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ('(x: Optional["Tensor"]) -> None', "(Tensor? x) -> ()"),
        ('(x: List["int"]) -> None', "(SymInt[] x) -> ()"),
        ('(x: List[Optional["Tensor"]]) -> None', "(Tensor?[] x) -> ()"),
        ("(x: \"list['Tensor']\") -> None", "(Tensor[] x) -> ()"),
        ("(x: \"'int'\") -> None", "(SymInt x) -> ()"),
        ("() -> \"Tuple['Tensor', 'List[Tensor]']\"", "() -> (Tensor, Tensor[])"),
    ],
)
def test_annotations_in_quotes_are_understood_inside_others(signature, expected):
    assert infer(signature) == expected


@pytest.mark.parametrize("signature", ["() -> Tuple", '() -> "Tuple"', '() -> "Sequence[Tensor]"'])
def test_what_does_not_say_how_much_it_returns_is_refused(signature):
    assert "the return" in refused(signature)


def test_annotations_that_name_themselves_or_are_nested_for_ever_are_refused():
    deep = int
    for _ in range(500):
        deep = list[deep]
    refused("(x: 'loop') -> None", loop="loop")
    refused("(x: 'loop') -> None", loop=["loop"])
    refused("() -> loop", loop="loop")
    prototype = function("(x: deep) -> None", deep=deep)
    with pytest.raises(InvalidArgumentError):
        infer_schema(prototype)


# --- what a Tensor is -----------------------------------------------------------------------------


class Registered:
    pass


class WithKeys:
    __dispatch_keys__ = "CPU"


class WithProperty:
    @property
    def __dispatch_keys__(self):
        return "CPU"


class Inherits(Registered):
    __class_getitem__ = classmethod(types.GenericAlias)


class Plain:
    pass


class TakenBack(WithKeys, FakeTensor):
    __dispatch_keys__ = __dlpack_device__ = None


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    known = values.TypeKeys()
    known.register(Registered, 1)
    monkeypatch.setattr("mdispatch.dispatch.annotations.knows_type", known.knows)


TENSORS = [Tensor, Registered, Inherits, WithKeys, WithProperty, FakeTensor]


@pytest.mark.parametrize("cls", TENSORS)
def test_a_class_whose_instances_carry_keys_is_a_tensor(cls):
    assert infer("(x: C, y: C | None, z: list[C]) -> C", C=cls) == (
        "(Tensor x, Tensor? y, Tensor[] z) -> Tensor"
    )
    assert issubclass(cls, Tensor)


@pytest.mark.parametrize("cls", [Plain, TakenBack, int, object, type])
def test_any_other_class_is_no_tensor(cls):
    assert not issubclass(cls, Tensor)
    if cls is not int:
        refused("(x: C) -> None", C=cls)


def test_a_class_of_arrays_with_parameters_is_a_tensor():
    assert infer("(x: C[int], y: Optional[C[float]]) -> C[int]", C=Inherits) == (
        "(Tensor x, Tensor? y) -> Tensor"
    )


def test_a_union_of_classes_of_tensors_is_a_tensor():
    scope = {"A": WithKeys, "B": FakeTensor}
    assert infer("(x: A | B, y: Union[A, B, None]) -> None", **scope) == (
        "(Tensor x, Tensor? y) -> ()"
    )
    refused("(x: A | int) -> None", **scope)


def test_isinstance_of_tensor_is_is_tensor():
    own = Plain()
    own.__dispatch_keys__ = "CPU"
    for value in (WithKeys(), FakeTensor(), WithProperty(), own, Plain(), 5, None, [], Tensor):
        assert isinstance(value, Tensor) is values.is_tensor(value)
    assert isinstance(own, Tensor)
    with pytest.raises(TypeError):
        issubclass(5, Tensor)


def test_tensor_has_no_instances_and_no_subclasses():
    for arguments in ((), (1,)):
        with pytest.raises(InvalidArgumentError, match="DLPack"):
            Tensor(*arguments)
    with pytest.raises(InvalidArgumentError, match="register_type"):
        type("Mine", (Tensor,), {})


# --- functions ------------------------------------------------------------------------------------


def test_a_method_is_inferred_without_self():
    class Shop:
        def scale(self, x: int) -> None: ...

    assert infer_schema(Shop().scale) == "(SymInt x) -> ()"


def test_strings_are_evaluated_where_the_function_behind_a_wrapper_is_at_home():
    inner = function("(x: 'Own') -> None", Own=int)

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner(*args, **kwargs)

    assert infer_schema(outer) == "(SymInt x) -> ()"


def test_annotations_of_a_module_that_postpones_them_are_understood():
    def scale(x: Tensor, y: Tensor | None = None, *, n: list[int]) -> tuple[Tensor, Tensor]: ...

    assert type(scale.__annotations__["x"]) is str
    assert infer_schema(scale) == "(Tensor x, Tensor? y=None, *, SymInt[] n) -> (Tensor, Tensor)"


def test_an_annotation_of_a_local_name_is_refused_with_the_way_out():
    class Local:
        pass

    def scale(x: Local) -> None: ...

    with pytest.raises(InvalidArgumentError, match=r"Local(.|\n)*at the top of its module"):
        infer_schema(scale)


@pytest.mark.parametrize(
    "nothing", [5, None, len, Plain, functools.partial(print), "f", FakeDevice("cpu")]
)
def test_what_is_no_function_of_python_is_refused(nothing):
    with pytest.raises(InvalidArgumentError, match="function"):
        infer_schema(nothing)


def test_a_function_whose_signature_cannot_be_read_is_refused():
    def scale(): ...

    scale.__wrapped__ = scale
    with pytest.raises(InvalidArgumentError, match="signature"):
        infer_schema(scale)


@pytest.mark.parametrize("name", ["", "a b", "ns::", "f.default", 5])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(InvalidNameError):
        infer_schema(function("() -> None"), op_name=name)


# --- what errors say ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("(x: int, yes) -> None", ["parameter yes", "no annotation"]),
        ("(x: int, yes, /) -> None", ["parameter x", "positional-only"]),
        ("(x: int, *yes: int) -> None", ["parameter yes", "*args"]),
        ("(x: int, **yes: int) -> None", ["parameter yes", "**kwargs"]),
        ("(yes: dict) -> None", ["parameter yes", "dict", "int | float | bool"]),
        ("(yes: list[str]) -> None", ["parameter yes", "list[str]", "str[]"]),
        ("(yes: int = []) -> None", ["parameter yes", "default", "list"]),
        ("(yes: 'Missing') -> None", ["parameter yes", "Missing", "NameError"]),
        ("(x: int)", ["returns", "None, a Tensor"]),
        ("() -> tuple[int, str]", ["item 2", "str"]),
    ],
)
def test_an_error_names_the_parameter_and_what_is_possible(signature, words):
    message = refused(signature)
    for word in words:
        assert word in message


def test_an_error_names_the_parameter_that_was_meant():
    assert "factor" in refused("(factor: Tensor) -> None", ["factr"]).splitlines()[0]


@pytest.mark.parametrize("mutates_args", ["x", "", 5, None, [5], [["x"]], ["x", None]])
def test_mutates_args_that_are_no_names_are_refused(mutates_args):
    assert "mutates_args" in refused("(x: Tensor) -> None", mutates_args)


def test_a_default_that_cannot_be_shown_is_refused_all_the_same():
    class Silent:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(InvalidArgumentError, match="parameter x"):
        infer_schema(function("(x: int = d) -> None", d=Silent()))


# --- all signatures -------------------------------------------------------------------------------

numbers = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

#: Annotations, their types in schemas, and values for a default.
KINDS = [
    ("Tensor", "Tensor", st.none()),
    ("Tensor | None", "Tensor?", st.none()),
    ("list[Tensor]", "Tensor[]", None),
    ("Sequence[Tensor | None]", "Tensor?[]", None),
    ("int", "SymInt", numbers),
    ("int | None", "SymInt?", numbers | st.none()),
    ("Sequence[int]", "SymInt[]", None),
    ("list[int] | None", "SymInt[]?", st.none()),
    ("float", "float", floats | st.integers(-1000, 1000)),
    ("list[float]", "float[]", None),
    ("bool", "bool", st.booleans()),
    ("Optional[bool]", "bool?", st.booleans() | st.none()),
    ("str", "str", texts),
    ("str | None", "str?", texts | st.none()),
    ("Number", "Scalar", numbers | floats | st.booleans()),
]


@st.composite
def parameters(draw, names):
    parameters = []
    for name in names:
        annotation, written, defaults = draw(st.sampled_from(KINDS))
        has_default = defaults is not None and draw(st.booleans())
        default = draw(defaults) if has_default else None
        mutated = written.startswith("Tensor") and draw(st.booleans())
        quoted = draw(st.booleans())
        parameters.append((name, annotation, written, has_default, default, mutated, quoted))
    return parameters


NAMES = st.lists(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), unique=True, max_size=8)
RETURNS = [
    ("None", "()"),
    ("Tensor", "Tensor"),
    ("list[Tensor]", "Tensor[]"),
    ("int", "SymInt"),
    ("tuple[Tensor]", "((Tensor))"),
    ("tuple[Tensor, list[Tensor], float]", "(Tensor, Tensor[], float)"),
]


@pytest.mark.thorough
@pytest.mark.dear
@given(st.data(), NAMES, st.sampled_from(RETURNS))
def test_any_signature_gives_a_schema_with_its_names_types_and_defaults(data, names, returned):
    names = [name + "_" for name in names]  # no keyword ends with this
    split = data.draw(st.integers(0, len(names)))
    positional = sorted(data.draw(parameters(names[:split])), key=lambda each: each[3])
    keywords = data.draw(parameters(names[split:]))
    scope, items = {}, []
    for name, annotation, _, has_default, default, _, quoted in [*positional, *keywords]:
        scope["default_" + name] = default
        text = f"{name}: {annotation!r}" if quoted else f"{name}: {annotation}"
        items.append(text + f" = default_{name}" * has_default)
    if keywords:
        items.insert(len(positional), "*")
    expected = [*positional, *keywords]
    mutated = [each[0] for each in expected if each[5]]

    inferred = infer(f"({', '.join(items)}) -> {returned[0]}", mutated, **scope)

    schema = parse_schema("ns::f" + inferred)
    assert len(schema.arguments) == len(expected)
    for index, (argument, each) in enumerate(zip(schema.arguments, expected, strict=True)):
        name, _, written, has_default, default, is_mutated, _ = each
        assert (argument.name, str(argument.type)) == (name, written)
        assert (argument.has_default, argument.default) == (has_default, default)
        assert not has_default or written == "float" or type(argument.default) is type(default)
        assert argument.kwarg_only is (index >= len(positional))
        marked = f"Tensor(a{index}!){written[6:]}" if is_mutated else written
        assert argument.type.annotated(argument.alias_info) == marked
    assert str(schema).endswith(f" -> {returned[1]}")


# --- cost -----------------------------------------------------------------------------------------

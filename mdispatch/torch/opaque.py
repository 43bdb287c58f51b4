"""Classes of Python in the schemas of operators that PyTorch gets: its opaque types.

PyTorch reads a class in a schema once it is registered as an opaque type. One whose objects are
constants (they compare by value, have a hash, and ``__fx_repr__`` says how to write them) is
registered as a value, which a graph has in it; any other as a reference, which is an input of the
graph. PyTorch's own function wants a metaclass of its own for references, so that ``isinstance``
knows the stand-ins that a traced program sees; a class without it is registered all the same, since
operators ask for no more than its name.

In a trace a kernel for meta values gets the stand-in, which has no attributes: the object may have
other ones when the graph runs.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from ..errors import TorchExportError
from ..schema.classes import STANDARD, class_of
from ..schema.types import Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..schema import FunctionSchema


_BEFORE_2_15 = "reference", "value"


def tell(schema: FunctionSchema) -> None:
    """Registers the classes of a new operator: a compiler looks at an object before it comes to the
    operator that takes it. PyTorch refuses nothing here: it does when it gets the operator.
    """
    with suppress(TorchExportError):
        in_torch(schema)


def in_torch(schema: FunctionSchema) -> str:
    """The schema as PyTorch reads it. Its classes are opaque types from now on.

    TorchExportError for a class that is not there, or that PyTorch does not take.
    """
    text = str(schema)
    names = {
        name
        for each in (*schema.arguments, *schema.returns)
        for name in _names(each.type)
        if name not in STANDARD
    }
    if not names:
        return text
    theirs = {name: _registered(name, schema) for name in names}
    return _with_names(schema, text, theirs)


def _names(type: Type) -> Iterator[str]:
    if type.is_class:
        yield type.name
    for each in type.elements:
        yield from _names(each)


def _with_names(schema: FunctionSchema, text: str, theirs: dict[str, str]) -> str:
    """The text, in which these classes have other names. A name may also stand in a default."""
    changed = {ours: its for ours, its in theirs.items() if ours != its}
    if not changed:
        return text
    defaults = [str(each) for each in schema.arguments if each.has_default]
    if any(ours in each.partition("=")[2] for ours in changed for each in defaults):
        raise _refused(schema, f"{', '.join(changed)} has another name in PyTorch: {theirs}")
    import re

    pattern = "|".join(map(re.escape, sorted(changed, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.])(?:{pattern})(?![\w.])", lambda found: changed[found[0]], text)


def _registered(name: str, schema: FunctionSchema) -> str:
    """The name in PyTorch of the class that has this one here."""
    cls = class_of(name)
    if cls is None:
        raise _refused(schema, f"the class {name} is not here")
    try:
        opaque: Any = import_module("torch._library.opaque_object")
    except ImportError:  # before 2.10
        raise _refused(schema, f"this PyTorch has no opaque types, as {name} has to be") from None
    try:
        found: str = opaque.get_opaque_type_name(cls)
    except ValueError:
        found = name
        _register(opaque, cls, name, schema)
    _let_stand_ins_pass()
    return found


def _register(opaque: Any, cls: type, name: str, schema: FunctionSchema) -> None:
    torch: Any = sys.modules["torch"]
    if cls.__module__ == "builtins" or cls in torch.utils._pytree.SUPPORTED_NODES:
        raise _refused(schema, f"PyTorch takes {name} apart, and has no opaque type for it")
    is_value = (
        hasattr(cls, "__fx_repr__")
        and cls.__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
        and cls.__hash__ is not None
    )
    # The words of 2.15 and later, and those before.
    words = ("symbolic", "constant") if hasattr(opaque, "register_custom_class") else _BEFORE_2_15
    known = {"class_name": name, "opaque_typ": words[is_value]}
    info = opaque._OpaqueTypeInfo
    nothing = dict.fromkeys(info.__dataclass_fields__)
    made = info(**(nothing | {"members": {}, "hoist": False} | known))
    opaque._OPAQUE_TYPES[cls] = made
    opaque._OPAQUE_TYPES_BY_NAME[name] = made
    torch._C._register_opaque_type(name)


def _let_stand_ins_pass() -> None:
    """From now on PyTorch's stand-in for an object fits wherever the object does."""
    stand_in: Any = import_module("torch._library.fake_class_registry").FakeScriptObject
    if "__md_object__" not in vars(stand_in):

        def as_object(value: Any, name: str) -> Any:
            cls = class_of(name)
            real = object.__getattribute__(value, "real_obj")
            return value if cls is not None and isinstance(real, cls) else None

        stand_in.__md_object__ = as_object


def _refused(schema: FunctionSchema, why: str) -> TorchExportError:
    return TorchExportError(
        f"{schema.name} cannot be an operator of PyTorch: {why}\n  declared as {schema}",
        str(schema.name),
        why,
    )

"""Typed classes: a class by a name that schemas know, whose methods are operators.

The main interpreter registers a registration with the class's name and the schemas of its methods,
and a definition and a kernel for each method. A worker that registers the class waits for the
registration, compares, and verifies each method like any operator. Whether the class has a codec,
and so travels by value, and whether it is made in C (md_class), is a part of the registration.
(PyTorch: torchbind, m.class_)
"""

from __future__ import annotations

from ..errors import InvalidArgumentError, InvalidNameError
from ..errors.words import shown
from ..keys.numbers import DispatchKey
from ..registry.c_kernels import implement_by_label
from ..registry.library import Library
from ..registry.register import RegistrationHandle
from ..registry.registry import given_or_default
from ..registry.verify import DEFAULT_TIMEOUT
from ..schema import parse_schema
from ..schema.classes import add_class, drop_class
from ..schema.names import is_plain_name
from .class_facts import CONSTANT, class_text, declare_class
from .methods import checks, label_of_method, methods_of
from .sharing import ObjectHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from typing import Any, TypeVar

    from ..dispatch.dispatcher import Dispatcher
    from ..registry.registry import Registry

    T = TypeVar("T", bound=type)
    Where = Callable[[], str]


def register_class(
    name: str,
    *,
    methods: Mapping[str, str] | None = None,
    codec: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
    registry: Registry | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> Callable[[T], T]:
    """A decorator: registers a class under a name that schemas can use, and its methods as
    operators::

        @mdispatch.register_class("shop.Tokenizer", methods={"encode": "(str text) -> int[]"})
        class Tokenizer:
            def encode(self, text):
                return [ord(letter) for letter in text]

        mdispatch.define("shop::count", "(shop.Tokenizer t, str text) -> int")

    ``methods`` has the schema of each method, without ``self``. The method ``encode`` is the
    operator ``shop::Tokenizer.encode``, whose first argument is the object or a handle of it
    (:func:`mdispatch.share`). Its kernel calls the method, in the object's home. Modes, observers,
    fakes and kernels at other keys hold for it as for every operator.

    ``codec=(encode, decode)`` makes it a constant: its objects travel by value, and have no handle.
    ``encode(obj)`` gives bytes, or what JSON can say; ``decode`` makes an object of just this class
    of that, in the other interpreter or process, which has to register the class, too. Whether a
    class is a constant is compared like its methods.

    The class itself is given back as it was; ``tokenizer.encode(...)`` passes by the dispatcher,
    the handle's ``encode`` does not. A module that is imported again replaces what it registered.
    (PyTorch: register_custom_class, and TorchBindOpOverload)

    Raises InvalidNameError, InvalidArgumentError (a method that the class has not, or that a handle
    has for itself; a codec that is no pair of functions), SchemaSyntaxError,
    DuplicateRegistrationError, RegistryFullError; in a worker ClassMismatchError,
    NotRegisteredError, SchemaMismatchError. Nothing stays registered then.
    """
    namespace, base = _parts(name)
    schemas = _schemas(name, {} if methods is None else methods)
    _check_codec(name, codec)

    def decorate(cls: T) -> T:
        _check_class(name, cls, schemas)
        dispatcher = given_or_default(registry).dispatcher
        text = class_text(schemas.values(), CONSTANT if codec else "")
        tag = f"register_class {name}"
        with Library(
            namespace, "FRAGMENT", registry=registry, timeout=timeout, _tag=tag
        ) as library:

            def where() -> str:
                return library.where

            def end() -> None:
                drop_class(name, cls)
                methods_of.pop(name, None)
                checks.pop(name, None)

            add_class(name, cls, codec)
            methods_of[name] = (dispatcher.holder.ops.find, tuple(schemas))
            library.hold(RegistrationHandle(None, end))
            library.hold(declare_class(dispatcher, f"{namespace}::{base}", text, where, timeout))
            for schema in schemas.values():
                operator = library.define(schema)
                key = DispatchKey.CompositeExplicitAutograd
                library.hold(
                    implement_by_label(
                        dispatcher, operator, key, label_of_method(operator), where, timeout
                    )
                )
                recompute = dispatcher.entry(operator).recompute
                recompute()  # the kernel of a method is made anew: the class is there now
                library.hold(RegistrationHandle(None, recompute))
            if not dispatcher.registers_all:
                checks[name] = _check_of(dispatcher, f"{namespace}::{base}.", schemas)
        return cls

    return decorate


def _check_of(
    dispatcher: Dispatcher, prefix: str, methods: Container[str]
) -> Callable[[str], None]:
    """See across/methods.py. What is no registered method is nobody's to check."""

    def check(method: str) -> None:
        from ..dispatch.pairing import AbsentKernel  # who is called has loaded it, mostly

        if method in methods:
            name = f"{prefix}{method}"
            table = dispatcher.entry(name).current_table()
            kernel = table.at(DispatchKey.CompositeExplicitAutograd)
            if isinstance(kernel, AbsentKernel) and kernel.outdated is not None:
                raise kernel.outdated_error(dispatcher.facts, name)

    return check


def _parts(name: object) -> tuple[str, str]:
    if isinstance(name, str):
        namespace, dot, base = name.partition(".")
        if dot and is_plain_name(namespace) and is_plain_name(base):
            return namespace, base
    raise InvalidNameError(
        f"a class is named by its namespace and a name, as 'shop.Tokenizer', not {shown(name)}",
        name,
    )


def _schemas(name: str, methods: object) -> dict[str, str]:
    """The schema of each method as an operator."""
    try:
        given = dict(methods)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        given = {None: None}
    namespace, base = _parts(name)
    made = {}
    for method, schema in given.items():
        if not isinstance(method, str) or not isinstance(schema, str):
            raise InvalidArgumentError(
                "methods= takes a dict of names and schemas, {'encode': '(str text) -> int[]'}, "
                f"not {shown(methods)}"
            )
        if hasattr(ObjectHandle, method) or method in ObjectHandle.__slots__:
            raise InvalidArgumentError(
                f"class {name} cannot have the method {shown(method)}: a handle has a {method} of "
                "its own\nRegister it under another name."
            )
        inner = schema.strip().removeprefix("(")
        if inner == schema.strip():
            raise InvalidArgumentError(
                f"the schema of {name}.{method} is {shown(schema)}: write it without a name and "
                "without self, as '(str text) -> int[]'"
            )
        comma = "" if inner.lstrip().startswith(")") else ", "
        whole = f"{namespace}::{base}.{method}({name} self{comma}{inner}"
        parse_schema(whole)
        made[method] = whole
    return made


def _check_codec(name: str, codec: object) -> None:
    is_pair = isinstance(codec, tuple) and len(codec) == 2 and all(map(callable, codec))
    if codec is not None and not is_pair:
        raise InvalidArgumentError(
            f"the codec of {name} is a pair of functions, codec=(encode, decode), not "
            f"{shown(codec)}"
        )


def _check_class(name: str, cls: object, schemas: Mapping[str, str]) -> None:
    if not isinstance(cls, type):
        raise InvalidArgumentError(f"{name} is to be a class, not {shown(cls)}")
    for method in schemas:
        if not callable(getattr(cls, method, None)):
            raise InvalidArgumentError(
                f"{name} is to have a method {method!r}, and {cls.__qualname__} has none"
            )

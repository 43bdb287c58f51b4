"""Reads what is given to the free functions that register: the operator, its registry, the library,
the keys.
"""

from __future__ import annotations

from .. import errors
from ..dispatch.checks import operator_name
from ..errors.words import shown
from ..keys.devices import device_key
from ..keys.numbers import DispatchKey, parse_key, table_index
from ..registry import Registry, given_or_default, registry_of
from ..registry.library import Library
from ..schema.names import OperatorName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol, TypeAlias

    from ..dispatch.operators import OpOverload

    class HasOperator(Protocol):
        """An object that ``custom_op`` made."""

        @property
        def operator(self) -> OpOverload: ...

    Op: TypeAlias = str | OpOverload | HasOperator
    Types: TypeAlias = DispatchKey | str | Iterable[DispatchKey | str]

#: Given in place of a device, this word stands for every device.
DEFAULT = "default"


def target_of(op: Op, lib: Library | None, registry: Registry | None) -> tuple[str, Registry]:
    """The full name of an operator, and the registry that has it or will have it.

    Raises InvalidNameError, InvalidArgumentError (``lib`` is not a library, the registries differ,
    the namespace is not the library's).
    """
    if lib is not None and not isinstance(lib, Library):
        raise errors.InvalidArgumentError(f"lib= takes an mdispatch.Library, not {shown(lib)}")
    given: list[Registry] = []
    if lib is not None:
        given.append(lib.registry)
    if registry is not None:
        given.append(given_or_default(registry))
    own: Any = op
    if not isinstance(op, str):
        from ..dispatch.operators import (
            OpOverload,  # a caller with an operator has loaded it; a name needs none
        )

        own = op if isinstance(op, OpOverload) else getattr(op, "operator", op)
        if isinstance(own, OpOverload):
            given.append(registry_of(own))
            own = own.name
    if any(each is not given[0] for each in given):
        raise errors.InvalidArgumentError(
            f"the operator {shown(own)}, lib= and registry= belong to different registries: "
            f"{', '.join(map(repr, given))}; give only one of them"
        )
    if lib is not None:
        return operator_name(lib.namespace, own), given[0]
    if not isinstance(own, str):
        raise errors.InvalidNameError(
            f"an operator is named by a str or an OpOverload, not {shown(own)}", own
        )
    name = OperatorName.parse(own.strip(" \t\n"))
    if not name.namespace:
        raise errors.InvalidNameError(f"name the namespace too: 'namespace::{own}'", own)
    return str(name), given[0] if given else given_or_default(None)


def library_for(name: str, registry: Registry, what: str) -> Library:
    """A library for one registration, opened anew when the module is imported again."""
    return Library(name.partition("::")[0], "FRAGMENT", registry=registry, _tag=f"{what} {name}")


def keys_of(types: Types) -> list[DispatchKey]:
    """The keys for devices ("cpu", "cuda:0"), "default", keys and names of keys.

    "default" is CompositeExplicitAutograd, which serves every device. Raises InvalidKeyError, also
    for a key at which no kernel would run, and InvalidArgumentError if nothing is given.
    """
    if callable(types):
        raise errors.InvalidKeyError(
            f"{shown(types)} is no device and no key: the operator comes first, then the devices "
            "or keys, then the function",
            types,
        )
    several: Any = [types] if isinstance(types, (str, DispatchKey)) else types
    try:
        listed = list(several)
    except TypeError:
        raise errors.InvalidKeyError(
            f"give a device, a key, the name of either, or several of these, not {shown(types)}",
            types,
        ) from None
    if not listed:
        raise errors.InvalidArgumentError("name at least one device or key to register for")
    keys = list(dict.fromkeys(map(_key_of, listed)))
    for key in keys:
        if key is DispatchKey.Undefined:
            raise errors.InvalidKeyError(
                "nothing can be registered at Undefined: a kernel for 'default' also serves calls "
                "without keys",
                key,
            )
        if not key.is_alias:
            table_index(key)
    return keys


def _key_of(each: DispatchKey | str) -> DispatchKey:
    if isinstance(each, DispatchKey):
        return each
    if not isinstance(each, str):
        raise errors.InvalidKeyError(
            f"a device or a key is given by its name, not as {shown(each)}", each
        )
    if each == DEFAULT:
        return DispatchKey.CompositeExplicitAutograd
    try:
        return device_key(each)
    except errors.InvalidKeyError as no_device:
        if not each[:1].isupper():
            raise
        try:
            return parse_key(each)
        except errors.InvalidKeyError as no_key:
            near = (*no_key.nearest, *no_device.nearest)
            raise errors.InvalidKeyError(f"{no_key}, nor is it a device", each, near) from None


def autocast_key(device_type: str) -> tuple[DispatchKey, DispatchKey]:
    """The key of a device, and the key of its autocast kernels. Raises InvalidKeyError."""
    if not isinstance(device_type, str):
        raise errors.InvalidKeyError(
            f"a device is given by its name, not as {shown(device_type)}", device_type
        )
    key = device_key(device_type)
    autocast = DispatchKey.__members__.get(f"Autocast{key.name}")
    if autocast is None:
        there = [name for name in DispatchKey.__members__ if name.startswith("Autocast")]
        raise errors.InvalidKeyError(
            f"device {shown(device_type)} has no key for autocast; there are {', '.join(there)}",
            device_type,
        )
    return key, autocast

"""Sets of dispatch keys, and the sets that alias keys and autograd keys stand for.

The keys and their numbers are in keys/numbers.py, devices in keys/devices.py. A set is a cross
product of its backends and its functionalities: AutogradCPU with SparseCUDA is also SparseCPU and
AutogradCUDA.
"""

from __future__ import annotations

from ..errors import InvalidKeyError
from .devices import canonical_device, device_key, rename_privateuse_backend
from .numbers import (
    BACKEND_BITS,
    BACKENDS,
    FULL,
    RUNTIME_BITS,
    RUNTIME_KEYS,
    DispatchKey,
    backend_index,
    highest_index,
    parse_key,
    table_index,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

__all__ = [
    "BACKENDS",
    "BACKEND_BITS",
    "RUNTIME_KEYS",
    "DispatchKey",
    "DispatchKeySet",
    "backend_index",
    "backend_keys_of_autograd",
    "canonical_device",
    "device_key",
    "functionality_to_backend_keys",
    "highest_index",
    "is_included_in_alias",
    "parse_key",
    "rename_privateuse_backend",
    "runtime_keys",
    "table_index",
]


class DispatchKeySet:
    """An immutable set of dispatch keys, built from keys, names and iterables of them.

    ``raw`` holds its bits. Undefined and alias keys have none: adding one changes nothing, and
    ``has`` of one is true. Removing a key clears its functionality for every backend and leaves the
    backend bits. So two sets with the same keys can differ in ``raw``; then they are not equal.
    (c10: DispatchKeySet)
    """

    # What `&` has made of it last, and of which bits: native/bind/call/key_sets.c.
    __slots__ = ("_meet", "_met", "_raw")

    def __init__(self, *keys: DispatchKey | str | Iterable[DispatchKey | str]) -> None:
        raw = 0
        for key in keys:
            if isinstance(key, (DispatchKey, DispatchKeySet)):
                raw |= key.raw
            elif isinstance(key, str):
                raw |= parse_key(key).raw
            else:
                raw |= DispatchKeySet(*_several(key)).raw
        self._raw = raw

    @classmethod
    def from_raw(cls, raw: int) -> Self:
        """The set with these bits. InvalidKeyError for bits that belong to no key."""
        if not 0 <= raw <= FULL:
            raise InvalidKeyError("a key set holds only the bits of dispatch keys", raw)
        self = object.__new__(cls)
        self._raw = raw
        return self

    @classmethod
    def full(cls) -> DispatchKeySet:
        """Every runtime key."""
        return cls.from_raw(FULL)

    @classmethod
    def full_after(cls, key: DispatchKey | str) -> DispatchKeySet:
        """The set left for a kernel at ``key``: all functionalities below it, and PythonDispatcher.

        InvalidKeyError for Undefined and alias keys, which have no place in the order.
        """
        key = parse_key(key)
        if not key.raw:
            raise InvalidKeyError(f"{key} has no place in the order of keys", key)
        below = (1 << 15 + key.functionality) - 1
        return cls.from_raw(below | DispatchKey.PythonDispatcher.raw)

    @property
    def raw(self) -> int:
        """The bits, an int."""
        return self._raw

    def has(self, key: DispatchKey | str) -> bool:
        """Whether all bits of the key, given as a key or its name, are in the set. InvalidKeyError.
        (c10: DispatchKeySet::has)
        """
        raw = parse_key(key).raw
        return self._raw & raw == raw

    def add(self, key: DispatchKey | str) -> DispatchKeySet:
        """The set with this key, given as a key or its name. InvalidKeyError. (c10:
        DispatchKeySet::add)
        """
        return self | DispatchKeySet(key)

    def remove(self, key: DispatchKey | str) -> DispatchKeySet:
        """The set without this key's functionality; its backend bits stay. InvalidKeyError. (c10:
        DispatchKeySet::remove)
        """
        return self - DispatchKeySet(key)

    def highest_priority(self) -> DispatchKey:
        """The last key of the iteration, Undefined when the set holds no key. It may be a key that
        nobody added, because backends and functionalities of the set combine.
        """
        return RUNTIME_KEYS[highest_index(self._raw)]

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        if not isinstance(other, DispatchKeySet):
            return NotImplemented
        return self.from_raw(self._raw | other._raw)

    def __and__(self, other: DispatchKeySet) -> DispatchKeySet:
        if not isinstance(other, DispatchKeySet):
            return NotImplemented
        return self.from_raw(self._raw & other._raw)

    def __sub__(self, other: DispatchKeySet) -> DispatchKeySet:
        if not isinstance(other, DispatchKeySet):
            return NotImplemented
        return self.from_raw(self._raw & ~(other._raw & ~BACKEND_BITS))

    def __contains__(self, key: DispatchKey | str) -> bool:
        return self.has(key)

    def __iter__(self) -> Iterator[DispatchKey]:
        raw = self._raw
        for key, bits in zip(RUNTIME_KEYS, RUNTIME_BITS, strict=True):
            if bits and raw & bits == bits:
                yield key

    def __bool__(self) -> bool:
        return highest_index(self._raw) != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DispatchKeySet) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return f"DispatchKeySet({', '.join(key.name for key in self)})"

    def __reduce__(self) -> tuple[object, ...]:
        return DispatchKeySet.from_raw, (self._raw,)


def _several(keys: Iterable[DispatchKey | str]) -> Iterable[DispatchKey | str]:
    if not hasattr(keys, "__iter__"):
        from ..errors.words import shown

        raise InvalidKeyError(
            f"a dispatch key is a DispatchKey or its name, not {shown(keys)}", keys
        )
    return keys


_PER_BACKEND: dict[DispatchKey, tuple[DispatchKey, ...]] = {}
for _key in RUNTIME_KEYS:
    if _key.backend:
        _PER_BACKEND[_key.functionality] = (*_PER_BACKEND.get(_key.functionality, ()), _key)
_EVERY_BACKEND = DispatchKeySet.from_raw(BACKEND_BITS)
_AUTOGRAD = _EVERY_BACKEND | DispatchKeySet(
    "AutogradOther", "AutogradFunctionality", "AutogradNestedTensor"
)
_NESTED = _EVERY_BACKEND | DispatchKeySet("NestedTensor")
_AUTOGRAD_OTHER_BACKENDS = _EVERY_BACKEND | DispatchKeySet(
    ("FPGA", "Vulkan", "Metal", "CustomRNGKeyId", "MkldnnCPU", "Quantized", "Sparse", "SparseCsr")
)
_BACKEND_KEYS = _AUTOGRAD_OTHER_BACKENDS | DispatchKeySet("Dense")
_XLA_AND_LAZY = 1 << BACKENDS.index("XLA") | 1 << BACKENDS.index("Lazy")

_ALIASES = {
    DispatchKey.Autograd: _AUTOGRAD,
    DispatchKey.CompositeImplicitAutograd: _BACKEND_KEYS | _NESTED | _AUTOGRAD,
    DispatchKey.FuncTorchBatchedDecomposition: DispatchKeySet("FuncTorchBatched"),
    DispatchKey.CompositeImplicitAutogradNestedTensor: (
        _NESTED | DispatchKeySet("AutogradNestedTensor")
    ),
    DispatchKey.CompositeExplicitAutograd: _BACKEND_KEYS,
    DispatchKey.CompositeExplicitAutogradNonFunctional: DispatchKeySet.from_raw(
        (_BACKEND_KEYS - DispatchKeySet("Sparse")).raw & ~_XLA_AND_LAZY
    ),
}

#: The backend keys behind each autograd key.
# HIP, VE and MTIA are missing on purpose: the original has no entry for them, so that a kernel at
# MTIA does not keep one at CompositeImplicitAutograd from serving AutogradMTIA.
BEHIND_AUTOGRAD = {
    DispatchKey.AutogradOther: _AUTOGRAD_OTHER_BACKENDS,
    DispatchKey.AutogradNestedTensor: _NESTED,
} | {
    parse_key("Autograd" + name): DispatchKeySet(name)
    for name in BACKENDS
    if name not in ("HIP", "VE", "MTIA")
}


def runtime_keys(key: DispatchKey | str) -> DispatchKeySet:
    """The keys that a registration at ``key`` serves: an alias key's set, any other key alone.

    (c10: getRuntimeDispatchKeySet)
    """
    key = parse_key(key)
    return _ALIASES[key] if key.is_alias else DispatchKeySet(key)


def is_included_in_alias(key: DispatchKey | str, alias: DispatchKey | str) -> bool:
    """Whether ``alias`` stands for ``key``. A key that is no alias stands for itself.

    Undefined is in none; as ``alias`` it raises InvalidKeyError. An alias key as ``key`` has no
    bits and so is in all of them, as in the original: ask about runtime keys.
    (c10: isIncludedInAlias)
    """
    key, alias = parse_key(key), parse_key(alias)
    if alias is DispatchKey.Undefined:
        raise InvalidKeyError("Undefined stands for no keys", alias)
    if key is DispatchKey.Undefined or not alias.is_alias:
        return key is alias
    return _ALIASES[alias].has(key.functionality if alias is DispatchKey.Autograd else key)


def backend_keys_of_autograd(key: DispatchKey | str) -> DispatchKeySet:
    """The keys whose kernels an autograd key leads to, {CPU} for AutogradCPU; empty for others.

    (c10: getBackendKeySetFromAutograd)
    """
    return BEHIND_AUTOGRAD.get(parse_key(key)) or DispatchKeySet()


def functionality_to_backend_keys(key: DispatchKey | str) -> tuple[DispatchKey, ...]:
    """SparseCPU to SparseMeta for Sparse; any other key alone."""
    key = parse_key(key)
    return _PER_BACKEND.get(key, (key,))

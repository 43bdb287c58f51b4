"""PyTorch's names for keys and sets of them."""

from __future__ import annotations

from .. import keys
from ..dispatch.context import values
from ..dispatch.context.transforms import are_transforms_active
from ..errors import InvalidArgumentError, MdispatchError
from ..errors.words import shown
from ..keys import DispatchKey
from .common import _key, _text, _theirs

__all__ = [
    "DispatchKeySet",
    "_additional_keys_to_prop_for_wrapper_tensors",
    "_after_ADInplaceOrView_keyset",
    "_after_autograd_keyset",
    "_are_functorch_transforms_active",
    "_dispatch_autogradother_backends",
    "_dispatch_get_backend_keyset_from_autograd",
    "_dispatch_is_alias_key",
    "_dispatch_is_included_in_alias",
    "_dispatch_isTensorSubclassLike",
    "_dispatch_key_for_device",
    "_dispatch_key_name",
    "_dispatch_key_parse",
    "_dispatch_key_set",
    "_dispatch_keys",
    "_dispatch_keyset_full",
    "_dispatch_keyset_full_after",
    "_dispatch_keyset_to_string",
    "_dispatch_num_backends",
    "_functionality_to_backend_keys",
    "_parse_dispatch_key",
    "_to_functionality_key",
]


class DispatchKeySet(keys.DispatchKeySet):
    """A key set with PyTorch's names for what it can do. It can also do all that ours can. Made of
    one key. (PyTorch: torch._C.DispatchKeySet)
    """

    __slots__ = ()

    @_theirs
    def __init__(self, key: DispatchKey | str) -> None:
        super().__init__(_key(key))

    @staticmethod
    @_theirs
    def from_raw_repr(raw: int, /) -> DispatchKeySet:
        """The set with these bits. RuntimeError for bits that belong to no key."""
        if isinstance(raw, float) or not hasattr(raw, "__index__"):
            raise TypeError(f"the bits of a key set are an int, not {shown(raw)}")
        return DispatchKeySet.from_raw(int(raw))

    def raw_repr(self) -> int:
        """The bits, an int."""
        return self.raw

    def highestPriorityTypeId(self) -> DispatchKey:
        """The key with the highest priority, Undefined for an empty set."""
        return self.highest_priority()

    @_theirs
    def has(self, key: DispatchKey | str) -> bool:
        """Whether all bits of the key are in the set."""
        return super().has(_key(key))

    @_theirs
    def add(self, key: DispatchKey | str) -> DispatchKeySet:
        """The set with this key."""
        return _compat(self | keys.DispatchKeySet(_key(key)))

    @_theirs
    def remove(self, key: DispatchKey | str) -> DispatchKeySet:
        """The set without this key's functionality; the backend bits stay."""
        return _compat(self - keys.DispatchKeySet(_key(key)))

    def __reduce__(self) -> tuple[object, ...]:
        return DispatchKeySet.from_raw_repr, (self.raw,)


def _compat(key_set: keys.DispatchKeySet) -> DispatchKeySet:
    """The same set, with their methods."""
    return DispatchKeySet.from_raw(key_set.raw)


def _key_set(value: keys.DispatchKeySet) -> keys.DispatchKeySet:
    if not isinstance(value, keys.DispatchKeySet):
        raise TypeError(f"this takes a DispatchKeySet, not {shown(value)}")
    return value


_after_autograd_keyset = _compat(keys.DispatchKeySet.full_after("AutogradOther"))
_after_ADInplaceOrView_keyset = _compat(  # their name
    keys.DispatchKeySet.full_after("ADInplaceOrView")
)
_dispatch_autogradother_backends = _compat(keys.backend_keys_of_autograd(DispatchKey.AutogradOther))
_additional_keys_to_prop_for_wrapper_tensors = _compat(
    keys.DispatchKeySet("Conjugate", "Negative")
    | keys.DispatchKeySet(
        f"{functionality}{backend}"
        for functionality in ("", "Sparse", "SparseCsr")
        for backend in ("CPU", "CUDA", "XLA", "XPU", "HPU", "PrivateUse1")
    )
)
# The keys that PyTorch's own wrappers carry. (c10: kTensorSubclassLike)
_SUBCLASS_LIKE = keys.DispatchKeySet(
    *("FuncTorchGradWrapper", "FuncTorchBatched", "Functionalize"),
    *("Batched", "Sparse", "SparseCsr", "Python", "Meta"),
) - keys.DispatchKeySet("Dense")


@_theirs
def _dispatch_key_name(key: DispatchKey | str) -> str:
    """The name of a key."""
    return _key(key).name


@_theirs
def _dispatch_key_parse(key: DispatchKey | str) -> DispatchKey:
    """The key of a name."""
    return _key(key)


# Keys whose names PyTorch's own parser does not read: the functionality, then its backends.
_UNREAD = (
    "Autograd HIP MAIA MTIA VE",
    "NestedTensor HIP IPU Lazy MAIA MPS MTIA PrivateUse2 PrivateUse3 VE XLA",
    "Quantized HIP HPU IPU Lazy MAIA MPS MTIA Meta PrivateUse2 PrivateUse3 VE XLA",
    "Sparse HPU IPU Lazy MAIA MTIA PrivateUse2 PrivateUse3 XLA",
    "SparseCsr HPU IPU Lazy MAIA MTIA PrivateUse2 PrivateUse3 XLA",
)
_UNREAD_NAMES = frozenset(
    functionality + backend
    for functionality, *backends in map(str.split, _UNREAD)
    for backend in backends
)


def _parse_dispatch_key(name: str) -> DispatchKey | None:
    """The key of a name; None if there is none, or if PyTorch's parser does not read the name. All
    other functions here read all names: in PyTorch nothing can be registered at such keys.
    """
    try:
        return None if _text(name) in _UNREAD_NAMES else _key(name)
    except MdispatchError:
        return None


@_theirs
def _dispatch_key_for_device(device_type: str) -> str:
    """The name of the key of a type of device: CUDA for "cuda". RuntimeError for a name with an
    index, and for a name of no device.
    """
    if ":" in device_type:
        raise InvalidArgumentError(f"a type of device has no index: {shown(device_type)}")
    return keys.device_key(device_type).name


def _dispatch_keyset_full() -> DispatchKeySet:
    """Every runtime key."""
    return _compat(keys.DispatchKeySet.full())


@_theirs
def _dispatch_keyset_full_after(key: DispatchKey | str) -> DispatchKeySet:
    """The set left for a kernel at this key. RuntimeError for Undefined and alias keys."""
    return _compat(keys.DispatchKeySet.full_after(_key(key)))


def _dispatch_keyset_to_string(key_set: DispatchKeySet) -> str:
    """The set as it prints."""
    return repr(_key_set(key_set))


@_theirs
def _dispatch_is_alias_key(key: DispatchKey | str) -> bool:
    """Whether the key stands for others."""
    return _key(key).is_alias


@_theirs
def _dispatch_is_included_in_alias(key: DispatchKey | str, alias: DispatchKey | str) -> bool:
    """Whether an alias key stands for a key."""
    runtime = _key(key)
    return runtime is not DispatchKey.Undefined and keys.is_included_in_alias(runtime, _key(alias))


@_theirs
def _dispatch_get_backend_keyset_from_autograd(key: DispatchKey | str) -> DispatchKeySet:
    """The keys whose kernels an autograd key leads to."""
    return _compat(keys.backend_keys_of_autograd(_key(key)))


@_theirs
def _functionality_to_backend_keys(key: DispatchKey | str) -> list[DispatchKey]:
    """SparseCPU to SparseMeta for Sparse; any other key alone."""
    return list(keys.functionality_to_backend_keys(_key(key)))


@_theirs
def _to_functionality_key(key: DispatchKey | str) -> DispatchKey:
    """Sparse for SparseCPU."""
    return _key(key).functionality


def _dispatch_num_backends() -> int:
    """How many backends there are."""
    return len(keys.BACKENDS)


def _keys_of(tensor: object) -> keys.DispatchKeySet:
    if not values.is_tensor(tensor):
        raise TypeError(f"{shown(tensor)} carries no dispatch keys")
    return values.key_set_of(tensor)


def _are_functorch_transforms_active() -> bool:
    """Whether this thread has transforms: see mdispatch.context.Transform."""
    return are_transforms_active()


def _dispatch_keys(tensor: object) -> DispatchKeySet:
    """The keys that an object carries. TypeError when it carries none."""
    return _compat(_keys_of(tensor))


def _dispatch_key_set(tensor: object) -> str:
    """The keys that an object carries, as they print. TypeError when it carries none."""
    return repr(_keys_of(tensor))


def _dispatch_isTensorSubclassLike(tensor: object) -> bool:
    """Whether a value wraps or describes another, by the keys that it carries. TypeError when it
    carries none.
    """
    return bool(_keys_of(tensor).raw & _SUBCLASS_LIKE.raw)

"""The dispatch keys and their numbers, those of PyTorch 2.13.

All packages above work with these numbers: the order of the keys decides which kernel runs, values
carry the keys' bits, and the call path computes the table index. The numbers are frozen; tests
compare them with a recording of the original.

A set of keys is 62 bits: one per backend (CPU is bit 0), then one per functionality (Dense is bit
16). SparseCUDA is a pair of both. Two kinds of keys have no slot in a dispatch table: the six
functionalities that exist per backend (Sparse), and the alias keys, which have no bits either and
stand for a set of others (Autograd).
"""

from __future__ import annotations

from ..errors import InvalidKeyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

if TYPE_CHECKING:
    _KEY: DispatchKey
else:
    _KEY = object()  # stands for each key until the class exists and can make them


class _KeyType(type):
    """Makes the class iterable, as enums are."""

    __members__: Mapping[str, DispatchKey]

    def __iter__(cls) -> Iterator[DispatchKey]:
        return iter(cls.__members__.values())

    if not TYPE_CHECKING:  # a misspelled key is still an error for type checkers

        def __getattr__(cls, name: str) -> int:
            """PyTorch's marks of a block of keys, one per backend. EndOfSparseBackends is the last
            key of the block; StartOfSparseBackends is the number before the first, and no key.
            """
            for start in ("StartOf", "EndOf"):
                block = name.removeprefix(start).removesuffix("Backends")
                if name == f"{start}{block}Backends":
                    block = {"Dense": "", "AutogradFunctionality": "Autograd"}.get(block, block)
                    first = cls.__members__.get(block + BACKENDS[0])
                    if first is not None:
                        last = cls.__members__[block + BACKENDS[-1]]
                        return last if start == "EndOf" else first - 1
            raise AttributeError(f"DispatchKey has no {name}")


class DispatchKey(int, metaclass=_KeyType):
    """One dispatch key, as ``DispatchKey.CPU``.

    There is one object per key, also after pickling and copying. As an int it is PyTorch's number
    of the key. ``DispatchKey(49)`` finds the key with that number; InvalidKeyError if there is
    none. Iterating over the class gives all keys; ``__members__`` maps names to keys.
    """

    __slots__ = ()

    # The order is the definition: _make_keys counts values and bits from it.
    Undefined = Dense = FPGA = Vulkan = Metal = Quantized = CustomRNGKeyId = MkldnnCPU = _KEY
    Sparse = SparseCsr = NestedTensor = BackendSelect = Fake = Python = _KEY
    FuncTorchDynamicLayerBackMode = Functionalize = Conjugate = Negative = ZeroTensor = _KEY
    ADInplaceOrView = AutogradOther = AutogradFunctionality = AutogradNestedTensor = Tracer = _KEY
    AutocastCPU = AutocastMTIA = AutocastMAIA = AutocastXPU = AutocastIPU = AutocastHPU = _KEY
    AutocastXLA = AutocastMPS = AutocastCUDA = AutocastPrivateUse1 = FuncTorchBatched = _KEY
    BatchedNestedTensor = FuncTorchVmapMode = Batched = VmapMode = FuncTorchGradWrapper = _KEY
    DeferredInit = PythonTLSSnapshot = FuncTorchDynamicLayerFrontMode = _KEY
    TESTING_ONLY_GenericWrapper = TESTING_ONLY_GenericMode = PreDispatch = PythonDispatcher = _KEY

    CPU = CUDA = HIP = XLA = MPS = IPU = XPU = HPU = VE = Lazy = MTIA = MAIA = _KEY
    PrivateUse1 = PrivateUse2 = PrivateUse3 = Meta = _KEY
    QuantizedCPU = QuantizedCUDA = QuantizedHIP = QuantizedXLA = QuantizedMPS = _KEY
    QuantizedIPU = QuantizedXPU = QuantizedHPU = QuantizedVE = QuantizedLazy = _KEY
    QuantizedMTIA = QuantizedMAIA = QuantizedPrivateUse1 = QuantizedPrivateUse2 = _KEY
    QuantizedPrivateUse3 = QuantizedMeta = _KEY
    SparseCPU = SparseCUDA = SparseHIP = SparseXLA = SparseMPS = SparseIPU = SparseXPU = _KEY
    SparseHPU = SparseVE = SparseLazy = SparseMTIA = SparseMAIA = SparsePrivateUse1 = _KEY
    SparsePrivateUse2 = SparsePrivateUse3 = SparseMeta = _KEY
    SparseCsrCPU = SparseCsrCUDA = SparseCsrHIP = SparseCsrXLA = SparseCsrMPS = _KEY
    SparseCsrIPU = SparseCsrXPU = SparseCsrHPU = SparseCsrVE = SparseCsrLazy = _KEY
    SparseCsrMTIA = SparseCsrMAIA = SparseCsrPrivateUse1 = SparseCsrPrivateUse2 = _KEY
    SparseCsrPrivateUse3 = SparseCsrMeta = _KEY
    NestedTensorCPU = NestedTensorCUDA = NestedTensorHIP = NestedTensorXLA = _KEY
    NestedTensorMPS = NestedTensorIPU = NestedTensorXPU = NestedTensorHPU = NestedTensorVE = _KEY
    NestedTensorLazy = NestedTensorMTIA = NestedTensorMAIA = NestedTensorPrivateUse1 = _KEY
    NestedTensorPrivateUse2 = NestedTensorPrivateUse3 = NestedTensorMeta = _KEY
    AutogradCPU = AutogradCUDA = AutogradHIP = AutogradXLA = AutogradMPS = AutogradIPU = _KEY
    AutogradXPU = AutogradHPU = AutogradVE = AutogradLazy = AutogradMTIA = AutogradMAIA = _KEY
    AutogradPrivateUse1 = AutogradPrivateUse2 = AutogradPrivateUse3 = AutogradMeta = _KEY

    Autograd = CompositeImplicitAutograd = FuncTorchBatchedDecomposition = _KEY
    CompositeImplicitAutogradNestedTensor = CompositeExplicitAutograd = _KEY
    CompositeExplicitAutogradNonFunctional = _KEY

    def __new__(cls, value: int) -> DispatchKey:
        key = BY_NUMBER.get(value)
        if key is None:
            from ..errors.words import shown

            raise InvalidKeyError(f"{shown(value)} is not the number of a dispatch key", value)
        return key

    @classmethod
    def parse(cls, key: str | DispatchKey) -> DispatchKey:
        """The key of a name, as :func:`mdispatch.keys.parse_key` reads it. InvalidKeyError."""
        return parse_key(key)

    @property
    def name(self) -> str:
        """The name, "CPU"."""
        return _NAME[self]

    @property
    def value(self) -> int:
        """PyTorch's number of the key as a plain int, as enums have it."""
        return int(self)

    @property
    def raw(self) -> int:
        """The key's bits in a DispatchKeySet; 0 for Undefined and for alias keys."""
        return _RAW[self]

    @property
    def functionality(self) -> DispatchKey:
        """Sparse for SparseCUDA, Undefined for an alias key, itself for one without a backend."""
        return BY_NUMBER[(_RAW[self] >> 16).bit_length()]

    @property
    def backend(self) -> str | None:
        """The name of the backend in the key, "CUDA" for SparseCUDA; None when it has none."""
        bits = _RAW[self] & BACKEND_BITS
        return BACKENDS[bits.bit_length() - 1] if bits else None

    @property
    def is_alias(self) -> bool:
        """Whether the key stands for others and has no bits. (c10: isAliasDispatchKey)"""
        return self >= _FIRST_ALIAS

    def __repr__(self) -> str:
        return f"DispatchKey.{_NAME[self]}"

    def __str__(self) -> str:
        return _NAME[self]

    def __reduce__(self) -> tuple[object, ...]:
        return parse_key, (_NAME[self],)


#: The bits of a set that stand for backends; those above stand for functionalities.
BACKEND_BITS = 0xFFFF
#: The bits of all keys.
FULL = (1 << 62) - 1

# Dense, Quantized, Sparse, SparseCsr, NestedTensor, AutogradFunctionality
_PER_BACKEND = (1, 5, 8, 9, 10, 21)
#: The bits of the functionalities that exist per backend.
PER_BACKEND_BITS = sum(1 << 15 + functionality for functionality in _PER_BACKEND)

# PyTorch's numbers, in the order of the class: the functionalities, six blocks of 16 keys with a
# backend, the alias keys. The missing numbers belong to markers, which are no keys.
_FIRST_PER_BACKEND = 49
_FIRST_ALIAS = 150
_VALUES = (
    *range(47),
    *[_FIRST_PER_BACKEND + 17 * block + backend for block in range(6) for backend in range(16)],
    *range(_FIRST_ALIAS, _FIRST_ALIAS + 6),
)
_BITS = (
    *[0, *[1 << 15 + functionality for functionality in range(1, 47)]],
    *[1 << 15 + functionality | 1 << bit for functionality in _PER_BACKEND for bit in range(16)],
    *[0] * 6,
)


def _make_keys() -> dict[str, DispatchKey]:
    names = [name for name, value in vars(DispatchKey).items() if value is _KEY]
    keys = {}
    for name, value, bits in zip(names, _VALUES, _BITS, strict=True):
        keys[name] = key = int.__new__(DispatchKey, value)
        setattr(DispatchKey, name, key)
        _NAME[value] = name
        _RAW[value] = bits
    return keys


# Indexed by the key's value.
_NAME = [""] * 156
_RAW = [0] * 156
DispatchKey.__members__ = _make_keys()
#: The keys by their numbers.
BY_NUMBER: dict[int, DispatchKey] = {key: key for key in DispatchKey}

# The names that parse_key understands: the keys' own, and those that publish_names added in this
# interpreter. The mapping is never changed, only replaced: errors iterate over it without a lock.
_by_name: Mapping[str, DispatchKey] = DispatchKey.__members__

#: The names of the backends, lowest priority first: the position is the bit.
BACKENDS = tuple(_NAME[_FIRST_PER_BACKEND : _FIRST_PER_BACKEND + 16])

#: The keys that have a slot in a dispatch table, in the table's order: lowest priority first.
RUNTIME_KEYS = tuple(
    sorted(
        (key for key in BY_NUMBER.values() if key < _FIRST_ALIAS and key not in _PER_BACKEND),
        key=_RAW.__getitem__,
    )
)
#: Their bits, in the same order.
RUNTIME_BITS = tuple(_RAW[key] for key in RUNTIME_KEYS)
#: Their places in the table.
TABLE_INDEX = {key: index for index, key in enumerate(RUNTIME_KEYS)}

# By functionality: the mask of the backend bits that it uses, and the table index of its first key.
_MASK = tuple(BACKEND_BITS * (functionality in _PER_BACKEND) for functionality in range(47))
_offset = [0]
for _mask in _MASK[:-1]:
    _offset.append(_offset[-1] + (16 if _mask else 1))
OFFSETS = tuple(_offset)


def table_index(key: DispatchKey) -> int:
    """The key's slot in a dispatch table.

    InvalidKeyError for alias keys and per-backend functionalities, which have none.
    """
    index = TABLE_INDEX.get(key)
    if index is None:
        raise InvalidKeyError(
            f"{key} stands for other keys and has no slot in a table: name one of those keys",
            key,
        )
    return index


def highest_index(raw: int) -> int:
    """The table index of the highest key in a set given by its bits; without keys Undefined's, 0.

    A per-backend functionality without any backend bit is no key. (c10's
    getDispatchTableIndexForDispatchKeySet takes it for that of CPU.)
    """
    if not raw & BACKEND_BITS:
        raw &= ~PER_BACKEND_BITS
    functionality = (raw >> 16).bit_length()
    return OFFSETS[functionality] + ((raw & _MASK[functionality]) >> 1).bit_length()


def backend_index(raw: int) -> int:
    """The number of the highest backend in a set given by its bits; CPU's, 0, also without any."""
    return ((raw & BACKEND_BITS) >> 1).bit_length()


def parse_key(key: str | DispatchKey) -> DispatchKey:
    """The key of this name; a key is returned as it is.

    The name is the key's own, or one given by rename_privateuse_backend. InvalidKeyError, with the
    nearest names, for anything else. Numbers are refused: ``DispatchKey(49)`` takes them.
    """
    if isinstance(key, DispatchKey):
        return key
    found = _by_name.get(key) if isinstance(key, str) else None
    if found is None:
        raise _no_key(key)
    return found


def _no_key(key: object) -> InvalidKeyError:
    from ..errors.words import nearest, shown

    if not isinstance(key, str):
        what = f"a dispatch key is a DispatchKey or its name, not {shown(key)}"
        return InvalidKeyError(what, key)
    # Another case only: that key is meant, and no similar one.
    same = tuple(name for name in _by_name if name.lower() == key.lower())
    names = same or nearest(key, _by_name)
    meant = f"; did you mean {' or '.join(names)}?" if names else ""
    return InvalidKeyError(f"there is no dispatch key {shown(key)}{meant}", key, names)


# --- given names ----------------------------------------------------------------------------------


def key_names() -> Mapping[str, DispatchKey]:
    """All names that parse_key understands, as they are now; the mapping never changes."""
    return _by_name


def names_of_backend(backend: str, word: str) -> dict[str, DispatchKey]:
    """The keys whose names end with the backend's, by these names with ``word`` instead."""
    return {
        name.removesuffix(backend) + word: key
        for name, key in DispatchKey.__members__.items()
        if name.endswith(backend)
    }


def publish_names(names: Mapping[str, DispatchKey]) -> None:
    """Makes parse_key understand these names too, in this interpreter.

    The caller holds the lock that keeps others from doing the same, and has checked that none of
    the names is taken.
    """
    global _by_name
    _by_name = {**_by_name, **names}

"""Kernels of this interpreter: callables with the key they were registered at. Light, because every
worker needs it.
"""

from __future__ import annotations

from .. import errors
from ..errors.locations import label_of
from ..facts import IMPL, kernel_name
from ..facts.native import interpreter_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration
    from ..keys.numbers import DispatchKey
    from .abc import KernelsEntry
    from .by_type import Types

#: The gate of a plan that was made before PyTorch was there: see native/bind/call/state.h.
UNDECIDED = 4

#: Under this name the fallbacks of all operators are registered; no operator can be called so.
FALLBACK_NAME = "_"
#: The label of a kernel that means "as if this key were not there". An interpreter needs no
#: callable for it.
FALLTHROUGH = "fallthrough"
#: How the labels of kernels in C begin: "c:libshop.so:scale". See dispatch/c_kernels.py.
C_LABEL = "c:"
#: How those of methods begin: "method:shop::Tokenizer.encode". See across/methods.py.
METHOD_LABEL = "method:"
#: In the text of a provider, for one whose module is imported when a call first comes to it.
LATER = "later"


def fallthrough_kernel(*args: object, **kwargs: object) -> None:
    """Registered as a kernel or fallback, makes calls pass by its key. To run it is an error, a
    MissingKernelError (and so a NotImplementedError).

    (PyTorch: torch.library.fallthrough_kernel, CppFunction::makeFallthrough)
    """
    raise errors.MissingKernelError(
        "fallthrough_kernel is a mark for the dispatcher: there is nothing to run. Register it at "
        "a key that calls shall pass by."
    )


class Provider:
    """What a kernel is among the several named ones of its key. A value.

    ``supports`` is its predicate, None where it takes every call. ``lacks`` says in words why it is
    not available here, "" if it is. ``required`` says that no worker may lack it, ``is_later`` that
    its module is imported when a call first comes to it. See Note [Providers] in
    providers/chain.py.
    """

    __slots__ = ("lacks", "name", "order", "required", "supports")
    is_later = False
    #: The callable in place of a function that was given by its name.
    stands_in: Any = None

    def __init__(
        self,
        name: str,
        order: int = 0,
        supports: Callable[..., Any] | None = None,
        lacks: str = "",
        required: bool = True,
    ) -> None:
        self.name = name
        self.order = order
        self.supports = supports
        self.lacks = lacks
        self.required = required

    def settle(self) -> bool:
        """Settles whether it is available, where nobody has asked yet. False where that cannot be
        known now.
        """
        return True

    @property
    def text(self) -> str:
        """As the registry has it."""
        required = "required" if self.required else "optional"
        asks = LATER if self.is_later else "asks" if self.supports is not None else "-"
        return f"{self.name} {self.order} {required} {asks} {self.lacks}".rstrip()

    @classmethod
    def of(cls, text: str) -> Provider | None:
        """The provider of a kernel's registration; None where it has none."""
        if not text:
            return None
        name, order, required, asks, lacks = (*text.split(" ", 4), "")[:5]
        supports = None if asks == "-" else _elsewhere
        made = _LaterElsewhere if asks == LATER else cls
        return made(name, int(order), supports, lacks, required == "required")


class _LaterElsewhere(Provider):
    """One that comes later, as its registration tells."""

    __slots__ = ()
    is_later = True


def _elsewhere(*args: object, **keywords: object) -> bool:
    """Stands for the predicate of a kernel that has no callable here."""
    return True


class LocalKernel:
    """A callable of this interpreter, registered at one key.

    ``label`` is its name in the registry, ``signature`` its own schema without a name, or "".
    ``seq`` is the number of its registration if this interpreter has registered it; that number
    with a minus in a child that got the kernel by a fork; 0 if this interpreter has verified it.
    ``home`` is the interpreter that the callable belongs to; no other interpreter calls it.
    ``types`` are the classes that it is for, see Note [Kernels by type] in dispatch/by_type.py; ()
    for any. ``provider`` is None for a kernel without a name. ``definition`` is the one that it was
    verified against here: see Note [Kernels and definitions] in dispatch/pairing.py.

    Once it is one of an operator's, it is the handle of that: ``close`` ends it. There are more of
    these handles than of any other kind, so they are no objects of their own. ``entry`` is that of
    the operator until it has ended, ``registration`` the registration that ends with it; None where
    that is another member's.
    """

    __slots__ = (
        "_label",
        "definition",
        "entry",
        "function",
        "home",
        "is_fallthrough",
        "key",
        "provider",
        "registration",
        "seq",
        "signature",
        "types",
        "with_keyset",
    )
    #: As a handle: whether ``close`` ends something once the registry is closed, too.
    outlives_registry = False
    #: Whether it only refuses calls, for no kernel that could take them is at the key. See
    #: Note [Providers] in providers/chain.py.
    is_for_none = False

    def __init__(
        self,
        key: DispatchKey,
        function: Callable[..., Any],
        with_keyset: bool = False,
        signature: str = "",
        label: str = "",
        types: Types = (),
        provider: Provider | None = None,
    ) -> None:
        self.key = key
        self.function = function
        self.with_keyset = with_keyset
        self.signature = signature
        self.is_fallthrough = function is fallthrough_kernel
        self.types = types
        self.provider = provider
        self._label = label
        self.home = interpreter_id
        self.seq = 0
        self.registration: Registration | None = None
        self.entry: KernelsEntry | None = None
        self.definition: Registration | None = None

    def is_outdated(self, definition: Registration | None) -> bool:
        """Whether it was verified against a definition with another text than this one."""
        its = self.definition
        if its is None or definition is None or its.text == definition.text:
            return False
        return (its.body, its.attributes) != (definition.body, definition.attributes)

    @property
    def what(self) -> tuple[int, int, str, str] | None:
        """What it registers; None once that has ended."""
        entry = self.entry
        return None if entry is None else (IMPL, self.key, entry.name, self.named)

    def close(self) -> None:
        """Ends the registration. Idempotent; does nothing once the registry is closed."""
        entry = self.entry
        if entry is not None:
            entry.remove(self)
            self.entry = None  # last: who was interrupted comes again

    @property
    def label(self) -> str:
        if self.is_fallthrough:
            return FALLTHROUGH
        return self._label or label_of(self.function)

    @property
    def in_c(self) -> Callable[..., Any]:
        """What calls in C call: the function, or what does the same there."""
        return self.function

    @property
    def types_text(self) -> str:
        """Its types in the registry."""
        if not self.types:
            return ""
        from .by_type import text_of_types

        return text_of_types(self.types)

    @property
    def named(self) -> str:
        """What tells it from the other kernels of its key: its label, its types, its provider."""
        return kernel_name(self.label, self.types_text, self.provider_name)

    @property
    def provider_name(self) -> str:
        """ "" without one."""
        return "" if self.provider is None else self.provider.name

    @property
    def variant(self) -> str:
        """Which of the kernels of a key take each other's place: see Registration.variant."""
        if self.provider is not None:
            return f"@{self.provider.name}"
        return self.types_text if self.types else ""

    def __repr__(self) -> str:
        return f"<kernel {self.named} at {self.key.name}>"


class OneOfSeveral(LocalKernel):
    """Stands in a table for several kernels, of which it runs one at each call."""

    __slots__ = ()

    @property
    def kernels(self) -> tuple[Any, ...]:
        """All that it may run, in its order."""
        return ()

    @property
    def only(self) -> tuple[str, ...] | None:
        """The names of the providers that may serve, where others may not."""
        return None

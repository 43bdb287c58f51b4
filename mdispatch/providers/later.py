"""Providers that are registered by the name of their function, "pkg.module:function".

Note [Kernels that come later]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The registration is there before the module. Until it is settled whether the provider can be used,
it has a predicate, so that a Chain stands at its key (Note [Providers] in chain.py). The first call
that comes to this predicate asks ``available``, imports the module, looks the function up, and has
the tables of its operators computed anew. From then on it is a provider as any other one: with its
own predicate or none, and with the function itself as kernel; or one that is not available here,
with the reason.

The members of a host agree on whether it is available, unless the provider may be lacking
(``required``). Where a member differs, it accepts the call, and the call raises: the next provider
would be another choice than the others have made.

The predicate refuses a call within the import of the module itself, and settles nothing. So it is
with a call of another thread that the import system lets pass to avoid a deadlock.

Two threads that settle at the same time come to the same, each with its own import; there is no
lock, which a thread would hold while it waits for the import of the other one. A table that is
computed meanwhile is not lost: it adds its kernels to ``_kernels`` before it asks whether all is
settled; a thread that settles says so before it goes through ``_kernels``. So one of the two sees
the other.
"""

from __future__ import annotations

import sys
from _blake2 import blake2b
from _weakref import ref

from .. import seam
from ..dispatch.kernels import LocalKernel, Provider
from ..dispatch.plugs import Plug
from ..errors import InvalidArgumentError, RegistryClosedError
from ..errors.locations import Location, label_of, printable
from ..errors.words import entry_point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.metadata import EntryPoint
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.entry import OperatorEntry
    from ..facts import Registration
    from ..registry import Registry

_LONGEST_NAME = 200  # characters that an agreement takes


class _Early(Exception):
    """The module is being imported, and does not have the function yet."""


def lack(available: Any) -> str:
    """Why a provider is not available here, in words; "" if it is. Asked once."""
    if available is None or available is True:
        return ""
    if available is False:
        return "available=False"
    try:
        if available():
            return ""
    except Exception as error:
        return printable(f"{label_of(available)} raised {type(error).__name__}: {error}")
    return f"{label_of(available)} said no"


class Later:
    """Stands for a function that is found by its name when a call first comes to it."""

    def __init__(self, reference: str, registry: Registry) -> None:
        module, colon, path = reference.partition(":")
        if not colon or not all(map(str.isidentifier, [*module.split("."), *path.split(".")])):
            raise InvalidArgumentError(
                f"a provider's function is named as 'package.module:function', not {reference!r}"
            )
        self.module, self.path = module, path
        self.registry = ref(registry)
        self.provider: LaterProvider | None = None
        self.__module__, self.__qualname__ = module, path  # its label is that of the function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.provider is not None
        return self.provider.function(*args, **kwargs)

    def look_up(self) -> Callable[..., Any]:
        __import__(self.module)
        module = sys.modules[self.module]
        found: Any = module
        for part in self.path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                if getattr(getattr(module, "__spec__", None), "_initializing", False):
                    raise _Early from None
                raise
        if not callable(found):
            raise TypeError(f"{self.module}:{self.path} is not callable")
        return found  # type: ignore[no-any-return]


class LaterProvider(Provider):
    """A provider of which it is not settled yet whether it is available here."""

    __slots__ = ("_asks", "_available", "_found", "_kernels", "_said", "is_settled", "stands_in")

    def __init__(
        self,
        given: Provider,
        available: Callable[[], Any] | None,
        stands_in: Later,
    ) -> None:
        super().__init__(given.name, given.order, self._accepts, given.lacks, given.required)
        self.is_settled = bool(given.lacks)  # available=False
        self._asks = given.supports
        self._available = available
        self._said: str | None = None  # what it has answered, where the rest came to nothing
        self.stands_in = stands_in
        self._found: Callable[..., Any] | None = None
        self._kernels: list[LocalKernel] = []
        stands_in.provider = self

    @property
    def is_later(self) -> bool:  # type: ignore[override]
        return not self.is_settled

    def _accepts(self, *args: Any, **keywords: Any) -> bool:
        """The predicate until it is settled, and in the calls that have begun before."""
        if self._asks is not None and not self._asks(*args, **keywords):
            return False
        try:
            return self.settle() and not self.lacks
        except Exception:
            return True  # the call settles it again, and raises

    @property
    def function(self) -> Callable[..., Any]:
        """The function that the predicate has accepted a call for."""
        self.settle()
        if self._found is None:
            raise _gone(self)
        return self._found

    def operator(self, name: str) -> Any:
        """The operator of this name in the provider's registry."""
        registry = self.stands_in.registry()
        if registry is None:
            raise RegistryClosedError(f"the registry of {name} is gone")
        return registry.ops.find(name)

    def meets(self, kernel: LocalKernel) -> None:
        """A table is computed with this kernel of the provider."""
        if kernel not in self._kernels:
            self._kernels.append(kernel)
        if self.is_settled and self._found is not None and kernel.function is self.stands_in:
            kernel.function = self._found

    def settle(self) -> bool:
        """Settles whether the provider is available. Afterwards ``lacks`` says why it is not. False
        where the module is being imported.

        Raises SignatureMismatchError, and the errors of agreeing on it with the other members.
        """
        if self.is_settled:
            return True
        if self._said is None:
            self._said = lack(self._available)
        lacks, found = self._said, None
        if not lacks:
            try:
                found = self.stands_in.look_up()
            except _Early:
                return False
            except Exception as error:
                what = f"{self.stands_in.module}:{self.stands_in.path}"
                lacks = printable(f"looking up {what} raised {type(error).__name__}: {error}")
        for kernel in self._kernels:
            if found is not None:
                _check_takes(kernel, found)
            if self.required:
                self._agree(kernel, lacks)
        self.lacks, self.supports, self._found = lacks, self._asks, found
        self.is_settled = True
        for kernel in self._kernels:
            entry = kernel.entry
            if entry is not None:
                entry.recompute()
        return True

    def _agree(self, kernel: LocalKernel, lacks: str) -> None:
        agree, registry = seam.perhaps("agree"), self.stands_in.registry()
        if agree is None or registry is None or kernel.entry is None:
            return
        if registry.dispatcher.facts.alone:
            return  # there is no other member, nor can be one
        name = f"provider {self.name} of {kernel.entry.name} at {kernel.key.name}"
        if len(name) > _LONGEST_NAME:
            digest = blake2b(name.encode()).hexdigest()[:32]
            name = f"{name[: _LONGEST_NAME - 33]} {digest}"
        value = {"available": not lacks, "reason": lacks}
        agree(name, value, ignore=("reason",), secret=(), scope="host", registry=registry)


def _check_takes(kernel: LocalKernel, found: Callable[..., Any]) -> None:
    """SignatureMismatchError where the function cannot be called with the operator's arguments."""
    registry = None if kernel.entry is None else kernel.provider.stands_in.registry()  # type: ignore
    if registry is None or kernel.entry is None or kernel.signature:
        return
    from ..registry.register import check_arguments

    its = LocalKernel(kernel.key, found, kernel.with_keyset)
    check_arguments(registry.dispatcher, kernel.entry.name, its, lambda: label_of(found))


def _gone(provider: LaterProvider) -> Exception:
    from ..errors import LocalKernelMissingError

    return LocalKernelMissingError(
        f"the provider {provider.name} is not available here: {provider.lacks}\n"
        "Make it available, or ask for another provider.",
    )


# --- waits ----------------------------------------------------------------------------------------


def lacks_here(dispatcher: Dispatcher, fact: Registration) -> str:
    """Why the provider of this registration is not available in this interpreter, in words; "" if
    it is, and where this interpreter does not have it. It is settled now.
    """
    entry = dispatcher.entries.get(fact.name)
    for kernel in () if entry is None else _alike(entry, fact):
        if isinstance(kernel.provider, LaterProvider):
            kernel.provider.meets(kernel)
            kernel.provider.settle()
            return kernel.provider.lacks
    return ""


def provider_here(entry: OperatorEntry, kernel: Any) -> Provider | None:
    """The provider that this interpreter has in place of one that it knows by a registration."""
    return next((each.provider for each in _alike(entry, kernel)), None)


def _alike(entry: OperatorEntry, wanted: Any) -> Iterator[LocalKernel]:
    for kernel in entry.callables:
        if kernel.key == wanted.key and kernel.variant == wanted.variant:
            yield kernel


# --- entry points ---------------------------------------------------------------------------------


class EntryPoints(Plug):
    """The entry points of "mdispatch.providers" that were registered here, by name and value."""

    __slots__ = ("registered",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.registered: set[tuple[str, str]] = set()


def register_all(registry: Registry, found: Sequence[EntryPoint]) -> None:
    """Registers a provider for each entry point that has not been: "OPERATOR PROVIDER", or with a
    key behind, is its name, and its value that of the function.

    InvalidArgumentError for other names, and the errors of Library.impl.
    """
    from ..registry.library import Library

    here = registry.dispatcher.of(EntryPoints).registered
    new = [(each, _parts(each)) for each in found if (each.name, each.value) not in here]
    for entry, (operator, provider, key) in new:
        dist = entry.dist
        place = "" if dist is None else f"{dist.name}-{dist.version}.dist-info/"
        # It lasts as long as the registry.
        lib = Library(
            operator.partition("::")[0],
            "IMPL",
            registry=registry,
            _location=Location(printable(f"{place}entry_points.txt:{entry.name}")),
        )
        try:
            lib.impl(operator, entry.value, key, provider=provider)
        except BaseException as error:
            lib.close()
            error.add_note(entry_point(entry))
            raise
        here.add((entry.name, entry.value))


def _parts(entry: EntryPoint) -> tuple[str, str, str]:
    operator, *rest = entry.name.split()
    if "::" not in operator or len(rest) not in (1, 2):
        raise InvalidArgumentError(
            f"{entry.name!r} names no provider: write 'namespace::operator provider', or with the "
            f"dispatch key behind ({entry_point(entry)})"
        )
    return operator, rest[0], rest[1] if len(rest) == 2 else ""

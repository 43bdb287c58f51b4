"""Waiting for what the main interpreter registers, without registering anything oneself."""

from __future__ import annotations

from .. import facts
from ..errors import InvalidNameError
from ..errors.locations import caller, location_of
from ..keys.numbers import DispatchKey, parse_key
from ..schema.names import OperatorName
from .registry import Registry, given_or_default
from .verify import DEFAULT_TIMEOUT, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration

__all__ = ["wait_for_def", "wait_for_impl"]


def _qualified(name: str) -> str:
    parsed = OperatorName.parse(name)
    if not parsed.namespace:
        raise InvalidNameError(f"name the namespace too: 'namespace::{name}'", name)
    return str(parsed)


def _here() -> str:
    return location_of(caller())


def def_of(name: str) -> tuple[int, int, str]:
    """Kind, key and name of the registration that an operator is defined."""
    return facts.DEF, 0, _qualified(name)


def impl_of(name: str, dispatch_key: DispatchKey | str) -> tuple[int, int, str]:
    """Kind, key and name of the registration that an operator has a kernel at exactly this key."""
    return facts.IMPL, parse_key(dispatch_key), _qualified(name)


def wait_for_def(
    name: str, timeout: float | None = DEFAULT_TIMEOUT, *, registry: Registry | None = None
) -> Registration:
    """Waits until the main interpreter has defined the operator; returns the registration, its
    schema in ``body``.

    ``name`` is ``ns::name`` or ``ns::name.overload``; ``timeout`` is in seconds, None waits without
    end. The GIL is released meanwhile, and signal handlers run.

    Raises NameMismatchError or MainNeverArrivedError when the time is up, RegistrarGoneError
    within moments of the registrar's death, RegistryClosedError, WaitCancelledError,
    InvalidNameError, InvalidArgumentError (timeout). (c10: Dispatcher::waitForDef, which an
    implementation without definition satisfies too; here it does not)
    """
    kind, key, qualified = def_of(name)
    return wait_for(
        given_or_default(registry).dispatcher,
        kind,
        key,
        qualified,
        timeout,
        _here,
    )


def wait_for_impl(
    name: str,
    dispatch_key: DispatchKey | str = "CompositeImplicitAutograd",
    timeout: float | None = DEFAULT_TIMEOUT,
    *,
    registry: Registry | None = None,
) -> Registration:
    """Waits until the main interpreter has a kernel for the operator at exactly this key; without
    one, at CompositeImplicitAutograd, where a library without a key registers. Returns the newest.

    It ends when ``has_kernel_for_dispatch_key`` is true in the main interpreter. A kernel at an
    alias key that stands for this one does not count, nor does a fallback, nor a provider that is
    not available there; a kernel for some types does, and one that makes calls pass the key by.
    Raises ProviderMissingError when all kernels there are of providers that are not available,
    KeyMismatchError when the operator has kernels, but none there, else as :func:`wait_for_def`,
    and InvalidKeyError. Nothing is left behind by a wait that ends without it. (c10:
    Dispatcher::waitForImpl)
    """
    kind, key, qualified = impl_of(name, dispatch_key)
    return wait_for(
        given_or_default(registry).dispatcher,
        kind,
        key,
        qualified,
        timeout,
        _here,
    )

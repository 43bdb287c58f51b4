"""Types that a test registers for as long as it needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mdispatch.dispatch.context import values

__all__ = ["types_as_before"]


@contextmanager
def types_as_before() -> Iterator[dict[type, tuple[values.TypeHandle, ...]]]:
    """Closes the handles of the types that are registered within it, whoever registers them. Gives
    the registrations that are there before.
    """
    before = dict(values._types._handles)
    try:
        yield before
    finally:
        for cls, handles in list(values._types._handles.items()):
            for handle in handles:
                if handle not in before.get(cls, ()):
                    handle.close()

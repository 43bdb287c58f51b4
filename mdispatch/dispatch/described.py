"""What operators tell of themselves to ``help``, ``inspect`` and documentation, found when they are
asked. This file has the attributes, dispatch/help.py what they say.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


class _Doc(str):
    """The docstring of a class, and in its place that of each object."""

    __slots__ = ()

    def __get__(self, made: Any, owner: type | None = None) -> str | None:
        if made is None:
            return self
        from .help import doc_of

        return doc_of(made)


class Annotations(dict):  # type: ignore[type-arg]
    """The annotations of a class, which are none, and in their place those of each object.

    Every class has to have its own: Python makes a class that lacks them an empty dict, in which
    the objects would find nothing.
    """

    __slots__ = ()

    def __get__(self, made: Any, owner: type | None = None) -> dict[str, Any]:
        if made is None:
            return self
        from .help import annotations_of

        return annotations_of(made)


class _Signature:
    """An attribute that objects have and their class has not, or ``inspect.signature`` of the class
    would take it for its own.
    """

    __slots__ = ("_is_text",)

    def __init__(self, is_text: bool) -> None:
        self._is_text = is_text

    def __get__(self, made: Any, owner: type | None = None) -> Any:
        if made is None:
            raise AttributeError("only operators have it, not their class")
        from .help import signature_of, text_signature_of

        return text_signature_of(made) if self._is_text else signature_of(made)


class Described:
    """Base of what can be called like a function and has help of its own."""

    __slots__ = ()
    __signature__ = _Signature(False)
    __text_signature__ = _Signature(True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__doc__ = _Doc(cls.__doc__ or "")

    def __get__(self, made: object, owner: type | None = None) -> Self:
        """Itself: an operator in a class is no method. Objects with a ``__get__`` are routines for
        ``inspect``, ``help`` and Sphinx, which then show signature and docstring.
        """
        return self

    def operators_described(self) -> list[Any]:
        """The operators for which this stands, each an OpOverload."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """For notebooks."""
        from .help import html_of

        return html_of(self)

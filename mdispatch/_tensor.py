"""The word Tensor for annotations, where there is no one class of tensors."""

from __future__ import annotations

from .errors import InvalidArgumentError
from .values import is_tensor, knows_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeAlias

__all__ = ["Tensor", "is_tensor_class"]


def is_tensor_class(cls: object) -> bool:
    """Whether this is a class and its instances are Tensors, as far as that shows in a class.

    It does where the class or a base is registered with register_type, or where there is
    ``__dispatch_keys__`` or ``__dlpack_device__``; an instance can have one of its own.
    """
    return isinstance(cls, type) and (
        cls is Tensor
        or knows_type(cls)
        or getattr(cls, "__dispatch_keys__", None) is not None
        or getattr(cls, "__dlpack_device__", None) is not None
    )


class _Marker(type):
    """The type of Tensor: what makes it answer isinstance and issubclass, and no calls."""

    def __instancecheck__(cls, value: object) -> bool:
        return is_tensor(value)

    def __subclasscheck__(cls, other: type) -> bool:
        if not isinstance(other, type):
            raise TypeError(f"issubclass() takes a class, not a {type(other).__qualname__}")
        return is_tensor_class(other)

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise InvalidArgumentError(
            "mdispatch.Tensor stands for other classes in annotations and has no instances; make"
            " an object of one that carries dispatch keys, as an array of DLPack"
        )


if TYPE_CHECKING:
    Tensor: TypeAlias = Any
else:

    class Tensor(metaclass=_Marker):
        """Whatever carries dispatch keys, for annotations: ``def scale(x: Tensor) -> Tensor``.

        ``infer_schema`` writes Tensor for it. ``isinstance(x, Tensor)`` says whether a value is
        what schemas call a Tensor, ``issubclass(cls, Tensor)`` what is_tensor_class says.

        There are no instances or subclasses; InvalidArgumentError says so.

        Type checkers take it for Any. Array libraries have no base class in common that an
        annotation could name, and what an operator does with a Tensor, its kernel knows: it will
        use what its own array type has. Nor do they allow ``isinstance`` with Any; code that they
        look at asks ``mdispatch.values.is_tensor``.
        """

        __slots__ = ()

        def __init_subclass__(cls) -> None:
            raise InvalidArgumentError(
                "mdispatch.Tensor is a word for annotations and no base class; make instances of"
                " a class of yours Tensors with mdispatch.register_type"
            )

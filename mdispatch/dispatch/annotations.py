"""The word Tensor for annotations: array libraries share no class of tensors."""

from __future__ import annotations

from ..errors import InvalidArgumentError
from .context.values import is_tensor, knows_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeAlias


def is_tensor_class(cls: object) -> bool:
    """Whether this is a class whose instances are Tensors, as far as the class can tell.

    It can if the class or a base is registered with register_type, or has ``__dispatch_keys__`` or
    ``__dlpack_device__``. Any instance can still have one of these of its own.
    """
    return isinstance(cls, type) and (
        cls is Tensor
        or knows_type(cls)
        or getattr(cls, "__dispatch_keys__", None) is not None
        or getattr(cls, "__dlpack_device__", None) is not None
    )


class _Marker(type):
    """The type of Tensor. It answers isinstance and issubclass, and refuses calls."""

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
        """Objects that carry dispatch keys, in annotations: ``def scale(x: Tensor) -> Tensor``.

        ``infer_schema`` writes Tensor for it. ``isinstance(x, Tensor)`` says whether schemas would
        call a value a Tensor, ``issubclass(cls, Tensor)`` answers as is_tensor_class does.

        It has no instances and no subclasses: making one raises InvalidArgumentError.

        Type checkers take it for Any. Array libraries have no base class in common that an
        annotation could name, and each kernel uses the methods of its own array type. Type checkers
        do not allow ``isinstance`` with Any; code that they check calls
        ``mdispatch.is_tensor``.
        """

        __slots__ = ()
        __module__ = "mdispatch"  # the path that users know

        def __init_subclass__(cls) -> None:
            raise InvalidArgumentError(
                "mdispatch.Tensor is a word for annotations and no base class; make instances of"
                " a class of yours Tensors with mdispatch.register_type"
            )

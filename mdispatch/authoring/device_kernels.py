"""The kernels of an operator of ``custom_op``: the user's function for one device, the kernel that
finds the device of an operator without tensors, and the check of returned values.

A kernel may not return one of its arguments, or a value twice, unless the schema says so. Callers
rely on what the schema says: a gradient, a compiler or a cache that takes two values for
independent would be wrong in silence. The check looks at every call, so it asks only what is cheap
to know; opcheck looks more closely.
"""

from __future__ import annotations

import sys

from ..dispatch.context.values import is_torch_tensor
from ..dispatch.custom import Unshared, called_by_c
from ..errors import AliasingError, ArgumentError
from ..errors.locations import label_of
from ..errors.words import shown
from ..forking import new_lock
from ..keys import DispatchKeySet
from ..keys.devices import device_key
from ..keys.numbers import DispatchKey
from .opcheck.values import aliases, is_immutable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from ..dispatch.operators import OpOverload
    from ..schema import Argument, FunctionSchema
    from ..schema.types import AliasInfo

# Held while any switch of this interpreter changes, which is rare.
_lock = new_lock()


class DeviceSwitch:
    """Knows which devices' kernels are disabled. The newest open guard of a device decides, in
    whatever order guards end.

    A guard holds ``_lock`` while it opens and while it ends. Calls read the tuple without the lock:
    the tuple is replaced, never changed.
    """

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: tuple[tuple[object, DispatchKey, bool], ...] = ()

    def is_enabled(self, key: DispatchKey) -> bool:
        for _, of, enabled in reversed(self._guards):
            if of is key:
                return enabled
        return True

    def begin(self, token: object, key: DispatchKey, enabled: bool) -> None:
        with _lock:
            self._guards = (*self._guards, (token, key, enabled))

    def end(self, token: object) -> None:
        with _lock:
            self._guards = tuple(each for each in self._guards if each[0] is not token)


@called_by_c
class DeviceKernel(Unshared):
    """The function of one device, or of all of them. While its device is disabled, it runs the
    operator's own function instead. The result is checked, unless C sees that it shares nothing, or
    no argument and no return of the operator is a Tensor (``check`` is None).
    """

    __slots__ = ("_check", "_default", "_enabled", "_key")

    def __init__(
        self,
        function: Callable[..., Any],
        key: DispatchKey,
        default: Callable[..., Any],
        switch: DeviceSwitch,
        check: AliasCheck | None,
    ) -> None:
        super().__init__(function, switch, check is not None)
        self._key = key
        self._default = default
        self._enabled = switch.is_enabled
        self._check = check

    def _chosen(self) -> Callable[..., Any]:
        return self.function if self._enabled(self._key) else self._default

    @staticmethod
    def _below(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, of which PyTorch records no gradient if a tensor of PyTorch is among its
        arguments. C does that by itself where it knows how. The tangents of forward mode stay.
        """
        torch: Any = sys.modules.get("torch")
        if not hasattr(torch, "Tensor"):
            return function

        def below(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            for each in [each for each in given if type(each) in (list, tuple)]:
                given += each
            is_forward = torch.autograd.forward_ad._current_level >= 0
            if is_forward or not any(map(is_torch_tensor, given)):
                return function(*args, **kwargs)
            with torch._C._AutoDispatchBelowAutograd():
                return function(*args, **kwargs)

        return below

    def _look(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """AliasingError."""
        assert self._check is not None
        self._check(self._chosen, args, kwargs, result)

    def __repr__(self) -> str:
        return f"<kernel {label_of(self.function)}>"


def select_backend(operator: Callable[[], OpOverload], device: Argument) -> Callable[..., Any]:
    """The kernel at BackendSelect of an operator without tensors. It redispatches to the key of the
    argument ``device``; without a device, as a call without keys does.
    """
    name = device.name

    def select(*args: Any, **kwargs: Any) -> Any:
        op = operator()
        value = kwargs.get(name)
        if name not in kwargs:
            positional = [each.name for each in op.schema.arguments if not each.kwarg_only]
            value = args[positional.index(name)]
        # By its text, "cuda:1": the devices of array libraries are objects, and str() serves them
        # all.
        keys = DispatchKeySet()
        if value is not None:
            text = str(value)
            try:
                keys = DispatchKeySet(device_key(text))
            except ValueError as error:
                raise ArgumentError(
                    f"{op.name}() takes a device for {name!r}, not {shown(text)}: {error}",
                    op.name,
                    op.schema,
                ) from None
        return op.redispatch(keys, *args, **kwargs)

    return select


# --- what a kernel returned -----------------------------------------------------------------------


def _names(alias: AliasInfo | None) -> set[str]:
    """The alias sets that an annotation names, contained ones too."""
    if alias is None:
        return set()
    names = {*alias.before, *alias.after}
    for inner in alias.contained:
        names |= _names(inner)
    return names


def _may_share(first: Argument, second: Argument) -> bool:
    """Whether the schema says that these two may share memory."""
    ours, theirs = _names(first.alias_info), _names(second.alias_info)
    return bool(ours & theirs) or bool(ours and "*" in theirs) or bool(theirs and "*" in ours)


class AliasCheck:
    """Refuses a returned value that is an argument, or that was returned twice, unless the schema
    says so. Made once for a schema.
    """

    __slots__ = ("_inputs", "_outputs", "_pairs", "_schema", "name")

    def __init__(self, schema: FunctionSchema) -> None:
        self.name = str(schema.name)
        self._schema = schema
        positional = [a for a in schema.arguments if not a.kwarg_only]
        # Each argument, after its position or name in a kernel's call.
        self._inputs: list[tuple[int | str, Argument]] = [
            (a.name if a.kwarg_only else positional.index(a), a)
            for a in schema.arguments
            if a.type.is_dispatched
        ]
        self._outputs = schema.returns
        self._pairs = [
            [key for key, argument in self._inputs if not _may_share(argument, each)]
            for each in schema.returns
        ]

    def __call__(
        self,
        chosen: Callable[[], Callable[..., Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """AliasingError. ``chosen`` returns the function whose result it is."""
        if len(self._outputs) == 1:
            results: Any = (result,)
        elif isinstance(result, (list, tuple)) and len(result) == len(self._outputs):
            results = result
        else:
            return  # the call itself refuses what does not fit the schema
        # Each returned value, after the number of its return.
        seen: list[tuple[int, Any]] = []
        for index, (value, keys) in enumerate(zip(results, self._pairs, strict=True)):
            for each in _flat(value):
                for key in keys:
                    given = args[key] if isinstance(key, int) else kwargs[key]
                    if any(_shares(each, one) for one in _flat(given)):
                        name = self._name_of(key)
                        what = f"is argument {name!r}, or shares memory with it"
                        self._fail(chosen(), index, what)
                for other, earlier in seen:
                    declared = _may_share(self._outputs[other], self._outputs[index])
                    if not declared and _shares(each, earlier):
                        what = f"is return value {other}, or shares memory with it"
                        if other == index:
                            what = "holds one value twice, or values that share memory"
                        self._fail(chosen(), index, what)
                seen.append((index, each))

    def _name_of(self, key: int | str) -> str:
        return next(argument.name for each, argument in self._inputs if each == key)

    def _fail(self, function: Callable[..., Any], index: int, what: str) -> NoReturn:
        which = f"return value {index}" if len(self._outputs) > 1 else "the return value"
        raise AliasingError(
            f"{which} of {self.name} {what}, but the schema does not say so\n  declared as "
            f"{self._schema}\n  kernel: {label_of(function)}\nReturn a copy, or declare both as "
            "Tensor(a) in the schema.",
            self.name,
        )


def _shares(first: Any, second: Any) -> bool:
    """Whether two values are one object, or share memory as far as that is cheap to see. It is
    cheap for tensors of PyTorch, and for arrays and memoryviews, which know whose memory they look
    at.
    """
    if first is second:
        return not is_immutable(first)
    if is_torch_tensor(first):
        torch = sys.modules["torch"]
        return is_torch_tensor(second) and bool(torch._C._is_alias_of(first, second))
    owner = _owner(first)
    # Parts of the same memory may lie side by side.
    return owner is not None and owner is _owner(second) and aliases(first, second)


def _owner(value: Any) -> Any:
    """The owner of the memory that an array or a memoryview looks at; None for other values."""
    if type(value) in (bytearray, memoryview):
        owner = value.obj if type(value) is memoryview else value
        return None if is_immutable(owner) else owner
    if not hasattr(type(value), "__array_interface__"):
        return None
    base = getattr(value, "base", None)
    return value if base is None else base


def _flat(value: Any) -> Iterator[Any]:
    if type(value) in (list, tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value

"""Operators from functions: ``custom_op``.

A function with annotations becomes an operator with a schema and a kernel. Kernels for other
devices, a fake kernel, gradients and the rest are added to it one by one::

    @custom_op("shop::scale", mutates_args=())
    def scale(x: Tensor, factor: float = 2.0) -> Tensor: ...

    @scale.register_kernel("cuda")
    def _(x, factor): ...

Each operator has a library of its own, which stays open. A module that is imported again, or a cell
of a notebook that is run again, replaces the operator, changed or not and on whatever line. Making
the same name twice in one run is refused.

(torch.library.custom_op, torch._library.custom_ops. There, kernels that are registered for several
devices at once all become the kernel of the last device; here each device keeps its own.)
"""

from __future__ import annotations

import sys
from types import MethodType

from .. import errors, facts, seam
from ..dispatch.checks import attributes_of, checked_callable
from ..dispatch.custom import Forward, called_by_c
from ..dispatch.described import Annotations, Described
from ..dispatch.kernels import FALLTHROUGH, LocalKernel, fallthrough_kernel
from ..dispatch.peers import WHEN_WANTED
from ..dispatch.traced import traced_in_torch
from ..errors.locations import label_of
from ..errors.words import shown
from ..keys.numbers import DispatchKey
from ..registry import Registry
from ..registry.library import Library, given_provider
from ..registry.register import RegistrationHandle, check_number_of_types
from ..schema import parse_schema
from ..schema.classes import expect_class, take_class
from ..schema.names import Named, OperatorName
from .infer import NO_WRITES, NOT_SAID, Inferred, defaults_of, full_name, places_around
from .targets import keys_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

    from ..dispatch.by_type import Classes
    from ..dispatch.kernels import Provider
    from ..dispatch.operators import OpOverload
    from ..errors.locations import Location
    from ..keys import DispatchKeySet
    from ..registry.register import Held
    from ..schema import FunctionSchema
    from ..schema.types import Argument
    from .device_kernels import AliasCheck, DeviceSwitch
    from .targets import Types

    # The argument's position or name in a kernel's call, the schema's default, the function's.
    Default = tuple[int | str, object, object]
    F = TypeVar("F", bound=Callable[..., Any])
    P = ParamSpec("P")
    Q = ParamSpec("Q")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)

else:
    P = R_co = None
    Generic = {(P, R_co): object}  # so that the class below can have types as its users see it

__all__ = ["CustomOpDef", "KernelSwitchGuard", "custom_op"]

_EVERY = DispatchKey.CompositeExplicitAutograd
_NO_FAKE = "no fake kernel"

if TYPE_CHECKING:

    @overload
    def custom_op(
        name: str,
        function: None = None,
        *,
        mutates_args: str | Iterable[str] = (),
        device_types: Types | None = None,
        schema: str | None = None,
        tags: str | Iterable[str] = (),
        registry: Registry | None = None,
    ) -> Callable[[Callable[P, R]], CustomOpDef[P, R]]: ...
    @overload
    def custom_op(
        name: str,
        function: Callable[P, R],
        *,
        mutates_args: str | Iterable[str] = (),
        device_types: Types | None = None,
        schema: str | None = None,
        tags: str | Iterable[str] = (),
        registry: Registry | None = None,
    ) -> CustomOpDef[P, R]: ...


def custom_op(
    name: str,
    function: Any = None,
    *,
    mutates_args: Any = NOT_SAID,
    device_types: Types | None = None,
    schema: str | None = None,
    tags: str | Iterable[str] = (),
    registry: Registry | None = None,
    _made: Any = None,
) -> Any:
    """Makes an operator from a function. Without ``function`` it is a decorator.

    ``name`` is "ns::name" or "ns::name.overload". ``mutates_args`` names the arguments that the
    function writes to; "unknown" stands for all that it could write to. The schema is inferred from
    the annotations (see :func:`mdispatch.infer_schema`), unless ``schema`` gives it, without a
    name: "(Tensor(a!) x) -> ()". A given schema must mark the arguments in ``mutates_args``, and no
    others, as written to. A Tensor that is only read is not taken by keyword only.

    ``device_types`` are the devices that the function is the kernel for, by default all of them. An
    operator without Tensors that has kernels for some devices needs an argument ``device`` of type
    Device, which chooses one. ``tags`` as in ``Library.define``.

    Some defaults a schema can only describe: the element type of an array library, as
    ``torch.float32``, or a member of an Enum. Kernels that are registered through the CustomOpDef
    get the function's own object for such a default.

    ``mutates_args`` may be left out where no argument is a Tensor. Without Tensors there is no
    other condition, either. With them, calls with meta values need a fake kernel
    (``register_fake``), unless the operator returns nothing, and each returned value must have
    memory of its own, unless the schema says that it may share it: a call that returns an argument,
    or one value twice, raises AliasingError.

    In a class the operator is a method, and the call of an ``async def`` returns the coroutine.

    Raises InvalidNameError, InvalidArgumentError (no schema can be inferred, ``mutates_args`` and
    the schema differ, no argument for the device), InvalidKeyError, SchemaSyntaxError,
    DuplicateRegistrationError (the name is defined elsewhere, with both locations),
    RegistryFullError; in a worker SchemaMismatchError, NameMismatchError, KeyMismatchError,
    MainNeverArrivedError. After an error nothing stays registered. (torch: torch.library.custom_op)
    """
    parsed_name = OperatorName.parse(name)
    if not parsed_name.namespace:
        raise errors.InvalidNameError(f"name the namespace too: 'namespace::{name}'", name)
    full = str(parsed_name)
    keys = None if device_types is None else keys_of(device_types)
    attributes = attributes_of("", tags)
    if schema is not None and not (isinstance(schema, str) and schema.lstrip().startswith("(")):
        raise errors.InvalidArgumentError(
            f"the schema of {full} is {shown(schema)}: write it without a name, as "
            "'(Tensor x) -> Tensor', or leave it out"
        )
    if schema is not None and mutates_args is not NOT_SAID and not isinstance(mutates_args, str):
        try:
            mutates_args = [*mutates_args]
        except TypeError:
            mutates_args = [mutates_args]
        for each in mutates_args:
            if not isinstance(each, str):
                raise errors.InvalidArgumentError(
                    f"mutates_args has {shown(each)} in it: it is a list of arguments' names, or "
                    "'unknown'"
                )

    def make(given: Callable[P, R]) -> CustomOpDef[P, R]:
        checked_callable(given)
        classes: dict[str, type] = {}
        around: set[str] = set()
        if schema is None:
            inferred = Inferred(given, parsed_name, mutates_args)
            parsed, classes, own = inferred.schema, inferred.classes, inferred.defaults
            around = inferred.around
        else:
            parsed = parse_schema(full + schema.lstrip())
            _check_mutated(parsed, mutates_args)
            own = defaults_of(given)
        _check_by_position(parsed)
        if keys is not None:
            _device_argument(parsed, keys)
        with _OperatorLibrary(
            parsed_name.namespace,
            "FRAGMENT",
            registry=registry,
            _tag=f"custom_op {full}",
        ) as library:
            library.take_defaults(parsed, own)
            for its_name, cls in classes.items():
                library.hold(RegistrationHandle(None, take_class(its_name, cls)))
            for its_name in around:
                place = places_around(given)[its_name]
                library.hold(RegistrationHandle(None, expect_class(its_name, *place)))
            library.define_with_attributes(str(parsed), attributes, forward=bool(around))
            made: CustomOpDef[P, R] = (_made or CustomOpDef)(library, parsed, given)
            made._around |= around
            if classes and made._has_tensors and "torch.library" in sys.modules:
                tell = seam.perhaps("classes in PyTorch")
                if tell is not None:
                    tell(parsed)
            made.register_kernel(device_types, given)
        return made

    return make if function is None else make(function)


def _check_mutated(schema: FunctionSchema, mutates_args: str | Iterable[str]) -> None:
    """Raises InvalidArgumentError if a given schema and ``mutates_args`` differ."""
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.writes]
    tensors = [a.name for a in schema.arguments if a.type.is_dispatched]
    if mutates_args is NOT_SAID:
        if not tensors:
            return
        raise errors.InvalidArgumentError(
            f"{schema.name} takes Tensors ({', '.join(tensors)}), and {NO_WRITES} "
            f"mutates_args=({tensors[0]!r},) for {tensors[0]}"
        )
    if mutates_args == "unknown":
        expected = tensors
    elif isinstance(mutates_args, str):
        raise errors.InvalidArgumentError(
            f"mutates_args is the str {shown(mutates_args)}: it is a list of arguments' names, or "
            "'unknown'"
        )
    else:
        expected = list(mutates_args)
    if set(written) != set(expected):
        raise errors.InvalidArgumentError(
            f"the schema of {schema.name} marks {', '.join(written) or 'nothing'} as written to, "
            f"but mutates_args names {', '.join(map(shown, expected)) or 'nothing'}\n  schema: "
            f"{schema}\nMake the two agree."
        )


def _check_by_position(schema: FunctionSchema) -> None:
    """Raises InvalidArgumentError for a tensor that is read and that only a keyword can give."""
    for argument in schema.arguments:
        is_written = argument.alias_info is not None and argument.alias_info.writes
        if argument.kwarg_only and argument.type.is_dispatched and not is_written:
            raise errors.InvalidArgumentError(
                f"{schema.name} takes the Tensor {argument.name!r} by keyword only, where no "
                f"gradient reaches it\n  schema: {schema}\nPut it before the '*', or define the "
                "operator with Library.define."
            )


def _device_argument(schema: FunctionSchema, keys: Iterable[DispatchKey]) -> Argument | None:
    """The argument that selects the device of an operator without Tensors; None if not needed."""
    if schema.dispatch_arguments or all(key is _EVERY for key in keys):
        return None
    for argument in schema.arguments:
        if argument.name == "device" and str(argument.type) in ("Device", "Device?"):
            return argument
    raise errors.InvalidArgumentError(
        f"{schema.name} takes no Tensor, so a call does not say which device it is for\n  declared "
        f"as {schema}\nAdd an argument 'device' of type Device, or register its kernel for every "
        "device: device_types=None."
    )


class KernelSwitchGuard:
    """While it is open, it enables or disables the kernel of one device for one operator; see
    ``CustomOpDef.set_kernel_enabled``. Once ended, it can be opened again.
    """

    __slots__ = ("_arguments", "_switch", "_tokens")

    def __init__(self, switch: DeviceSwitch, key: DispatchKey, enabled: bool) -> None:
        self._switch = switch
        self._arguments = (key, enabled)
        self._tokens: list[object] = []

    def __enter__(self) -> None:
        token = object()
        self._tokens.append(token)
        self._switch.begin(token, *self._arguments)

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._switch.end(self._tokens.pop())


@traced_in_torch
@called_by_c
class CustomOpDef(Forward, Named, Described, Generic[P, R_co]):
    """An operator that :func:`custom_op` made from a function. Calling it calls the operator. Type
    checkers know it by the function's own parameters and result. In a class it is a method, as the
    function would be.

    Everything registered through it ends when the operator is replaced. The methods raise what a
    library raises, and LibraryClosedError once the operator was replaced. (torch: CustomOpDef)
    """

    __annotations__ = Annotations()

    def __init__(
        self, library: Library, schema: FunctionSchema, function: Callable[P, R_co]
    ) -> None:
        self._library = library
        self._schema = schema
        self._has_tensors = any(
            each.type.holds_tensors for each in (*schema.arguments, *schema.returns)
        )
        self._check: AliasCheck | None = None
        if self._has_tensors:
            from .device_kernels import AliasCheck

            self._check = AliasCheck(schema)
        self._function = function
        #: The names of the classes around the function that its schema has.
        self._around: set[str] = set()
        outside = getattr(function, "__qualname__", "").rpartition(".")[0]
        self._is_method = bool(outside) and not outside.endswith("<locals>")
        self._registered: set[DispatchKey] = set()
        self.name = str(schema.name)
        definition = library.definitions().get(self.name)  # none where an audit noted a difference
        self._generation = definition.generation if definition is not None else 0
        for attribute in ("__module__", "__qualname__", "__name__", "__doc__"):
            value = getattr(function, attribute, None)
            if value is not None or attribute != "__doc__":  # else that of the operator
                setattr(self, attribute, value)
        self.__wrapped__ = function
        entry = library.registry.dispatcher.entry(self.name)
        if entry.peer is None:
            entry.peer = WHEN_WANTED
        # Registered first, and wherever there are Tensors: without it, a kernel for every device
        # would also serve meta values, and look for their data. A fake kernel comes later, so it is
        # the newest.
        if not self._has_tensors:
            return
        if schema.returns:
            self._add(DispatchKey.Meta, self._no_fake, _NO_FAKE, with_keyset=True)
        else:
            self._add(DispatchKey.Meta, _nothing, "nothing to compute")

    @property
    def _switch(self) -> DeviceSwitch:
        """Which kernels are disabled. The one own function of an operator without Tensors needs
        none. Made once, in one step.
        """
        found: DeviceSwitch | None = vars(self).get("_devices")
        if found is None:
            from .device_kernels import DeviceSwitch

            found = vars(self).setdefault("_devices", DeviceSwitch())
        return found

    def __class_getitem__(cls, types: object) -> type:
        return cls  # in annotations that are evaluated

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        @overload  # type: ignore[override]
        def __get__(self, made: None, owner: type | None = None) -> CustomOpDef[P, R_co]: ...
        @overload
        def __get__(
            self: CustomOpDef[Concatenate[Any, Q], R_co], made: object, owner: type | None = None
        ) -> Callable[Q, R_co]: ...
        def __get__(self, made: Any, owner: type | None = None) -> Any: ...

    else:

        def __get__(self, made, owner=None):
            """Itself, or the method of an object if the function was written in a class."""
            return self if made is None or not self._is_method else MethodType(self, made)

    def __set_name__(self, owner: type, name: str) -> None:
        """The class around the function is there now. A class in a function is found in no
        module.
        """
        its_name = full_name(owner)
        if its_name in self._around:
            taken = take_class(its_name, owner)
            self._library.hold(RegistrationHandle(None, taken))

    @property
    def function(self) -> Callable[P, R_co]:
        """The function that the operator was made from. It has no dispatch: for libraries that take
        plain functions only.
        """
        return self._function

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return self.name.partition("::")[0]

    @property
    def operator(self) -> OpOverload:
        """The operator. Made when it is first asked for: a worker that verifies needs none."""
        operator = self._operator
        if operator is None:
            from ..dispatch.operators import OpOverload

            operator = OpOverload(self._library.registry.dispatcher, self.name)
            operator.generation = self._generation  # another may have taken its place meanwhile
            operator = self._attach(operator)
        found: OpOverload = operator
        return found

    def operators_described(self) -> list[OpOverload]:
        return [self.operator]

    def _exported(self) -> Any:
        return self.operator._exported()

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickle of what a module has under its function's name is that name, as for a function:
        the import of the module there makes the operator or verifies it. Any other is pickled as
        its operator, which is what is then loaded.
        """
        name = getattr(self, "__qualname__", None)
        module = sys.modules.get(getattr(self, "__module__", None) or "")
        if name and getattr(module, name, None) is self:
            return str(name)
        return self.operator.__reduce__()

    def _add(
        self,
        key: DispatchKey,
        kernel: Callable[..., Any],
        label: str,
        with_keyset: bool = False,
        types: tuple[type, ...] = (),
        provider: Provider | None = None,
    ) -> LocalKernel | None:
        return self._library.implement(
            self.name,
            LocalKernel(key, kernel, with_keyset, label=label, types=types, provider=provider),
        )

    if TYPE_CHECKING:

        @overload
        def register_kernel(
            self,
            device_types: Types | None,
            function: None = None,
            *,
            types: Classes | None = None,
            provider: str | None = None,
            order: int = 0,
            supports: Callable[..., object] | None = None,
            available: Callable[[], object] | bool | None = None,
            required: bool = True,
        ) -> Callable[[F], F]: ...
        @overload
        def register_kernel(
            self,
            device_types: Types | None,
            function: F,
            *,
            types: Classes | None = None,
            provider: str | None = None,
            order: int = 0,
            supports: Callable[..., object] | None = None,
            available: Callable[[], object] | bool | None = None,
            required: bool = True,
        ) -> F: ...

    def register_kernel(
        self,
        device_types: Types | None,
        function: Any = None,
        *,
        types: Classes | None = None,
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
    ) -> Any:
        """Registers the kernel of one or several devices; None stands for all devices that have
        none of their own. Without ``function`` it is a decorator. Returns the function.

        Other devices keep their kernels. The newest kernel of a device is in effect. ``types`` are
        the classes of the arguments that it is for, as for ``Library.impl``, and so are the
        arguments about a provider. After the providers of a device, or of all, comes the operator's
        own function.

        Raises InvalidArgumentError (no argument for the device, ``types``, a provider),
        InvalidKeyError, SignatureMismatchError, AmbiguousTypesError, DuplicateRegistrationError (a
        provider of this name). (torch: CustomOpDef.register_kernel)
        """
        several: list[tuple[type, ...]] = [()]
        count = len(types) if isinstance(types, (tuple, list)) else 0
        if types is not None:
            from ..dispatch.by_type import alternatives, checked_types  # most kernels have no types

            several = [*map(checked_types, alternatives(types))]
        keys = [_EVERY] if device_types is None else keys_of(device_types)
        device = _device_argument(self._schema, keys)
        if function is None:
            return lambda decorated: self.register_kernel(
                keys,
                checked_callable(decorated),
                types=types,
                provider=provider,
                order=order,
                supports=supports,
                available=available,
                required=required,
            )
        given, registry = function, self._library.registry
        named = given_provider(given, registry, provider, order, supports, available, required)
        if type(given) is str and named is not None:
            function = named.stands_in
        checked_callable(function)
        self._library.check_open()
        for classes in several:
            tried = LocalKernel(keys[0], function, types=classes, provider=named)
            self._library.check_arguments(self.name, tried)
            if count:
                its = self._library.registry.dispatcher
                check_number_of_types(its, self.name, tried, count, lambda: label_of(given))
        handles: list[Held | None] = []
        new = set(keys)
        try:
            if device is not None and DispatchKey.BackendSelect not in self._registered:
                from .device_kernels import select_backend

                select = select_backend(lambda: self.operator, device)
                handles.append(self._add(DispatchKey.BackendSelect, select, "selects the device"))
                new.add(DispatchKey.BackendSelect)
            for key in keys:
                if named is not None and key is not _EVERY and key not in self._registered:
                    # After all providers of a device comes the operator's own function, if it has
                    # no kernel there without a name.
                    from .device_kernels import DeviceKernel

                    own = DeviceKernel(
                        self._function, key, self._function, self._switch, self._check
                    )
                    handles.append(self._add(key, own, label_of(self._function)))
                kernel = function
                # In place of the operator's own function nothing else could run.
                is_own = function is self._function and key is _EVERY and not self._has_tensors
                if function is not fallthrough_kernel and not is_own:
                    from .device_kernels import DeviceKernel

                    kernel = DeviceKernel(function, key, self._function, self._switch, self._check)
                for classes in several:
                    handles.append(
                        self._add(key, kernel, label_of(function), False, classes, named)
                    )
        except BaseException:
            self._library.let_go(handles)
            raise
        self._registered |= new
        return given

    def _no_fake(self, key_set: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """The kernel at Meta until there is a fake kernel. A fake kernel may have been registered
        before the operator was made: then that one runs. If there is none, this raises the error
        that says so.
        """
        from ..dispatch.pairing import definition_in, pair

        _, _, there = self._library.registry.dispatcher.facts.registrations(self.name)
        fakes = [f for f in there if f.kind == facts.IMPL and f.key == DispatchKey.Meta]
        callables = self.operator.entry.kernels.get(DispatchKey.Meta, [])
        for count in range(len(fakes) - 1, 0, -1):
            kernel = pair(fakes[:count], callables, definition_in(there))
            if isinstance(kernel, LocalKernel) and kernel.label not in (_NO_FAKE, FALLTHROUGH):
                first = (key_set,) if kernel.with_keyset else ()
                return kernel.function(*first, *args, **kwargs)
        keys = sorted(key.name for key in self._registered - {DispatchKey.BackendSelect})
        from ..facts.modules import missing_fake

        raise missing_fake(
            self._library.registry.dispatcher.facts, self.name, keys, ", ".join(keys)
        )

    if TYPE_CHECKING:

        @overload
        def register_fake(self, function: None = None) -> Callable[[F], F]: ...
        @overload
        def register_fake(self, function: F) -> F: ...

    def register_fake(self, function: Any = None) -> Any:
        """Registers the fake kernel, see :func:`mdispatch.register_fake`. Without ``function`` it
        is a decorator. Returns the function. (torch: CustomOpDef.register_fake)
        """
        return self._library.register_fake(self.name, function)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Registers the formula of the gradients, see :func:`mdispatch.register_autograd`. (torch:
        CustomOpDef.register_autograd)
        """
        from .autograd import register_autograd  # most operators need no gradients

        register_autograd(self.name, backward, setup_context=setup_context, lib=self._library)

    def register_dispatch_rule(self, cls: type, function: Any = None) -> Any:
        """Registers a function that runs when a call comes to a mode or value of ``cls``, see
        :func:`mdispatch.register_dispatch_rule`. (torch: CustomOpDef.register_torch_dispatch)
        """
        from .functions import register_dispatch_rule

        return register_dispatch_rule(self.operator, cls, function, lib=self._library)

    def register_vmap(self, function: Any = None, *, with_keyset: bool = False) -> Any:
        """Registers the kernel for batched values, see :func:`mdispatch.register_vmap`. (torch:
        CustomOpDef.register_vmap)
        """
        from .functions import register_vmap

        return register_vmap(self.name, function, lib=self._library, with_keyset=with_keyset)

    def register_autocast(
        self,
        device_type: str,
        cast_inputs: Any,
        *,
        cast: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Lets autocast cast the operator's tensors, see :func:`mdispatch.register_autocast`.
        (torch: CustomOpDef.register_autocast)
        """
        from .functions import register_autocast

        register_autocast(self.name, device_type, cast_inputs, cast=cast, lib=self._library)

    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> KernelSwitchGuard:
        """Returns a guard. While it is open, the kernel of a device is disabled in all threads of
        this interpreter, or enabled again inside another guard. The function that the operator was
        made from runs in place of a disabled kernel.

        The newest open guard decides, in whatever order guards end. A kernel that is registered
        while its device is disabled is disabled too.

        Raises InvalidKeyError, InvalidArgumentError for a device without a kernel of its own.
        (torch: CustomOpDef.set_kernel_enabled, which warns of that)
        """
        if not isinstance(device_type, str):
            raise errors.InvalidKeyError(
                f"a device is given by its name, not as {shown(device_type)}", device_type
            )
        (key,) = keys_of(device_type)
        if key not in self._registered:
            there = sorted(each.name for each in self._registered)
            raise errors.InvalidArgumentError(
                f"{self.name} has no kernel for {shown(device_type)} that was registered with "
                f"custom_op or register_kernel\n  kernels at: {', '.join(there)}"
            )
        return KernelSwitchGuard(self._switch, key, bool(enabled))

    def __repr__(self) -> str:
        return f"<mdispatch custom operator {self.name}>"


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The fake kernel of an operator that returns nothing: meta values have no data to write."""


# --- the library of one operator ------------------------------------------------------------------


# A schema has the defaults of the function only as text. This library knows the objects: a kernel
# gets ``torch.float32``, and not the number that stands for it.

#: Types whose values are objects of some library; a schema's default is only their number or name.
_OPAQUE = ("ScalarType", "Layout", "MemoryFormat", "QScheme", "Device")


class _OperatorLibrary(Library):
    """Every kernel that is registered in it gets the defaults of the operator's function."""

    _defaults: list[Default]

    def take_defaults(self, schema: FunctionSchema, own: Mapping[str, object]) -> None:
        """Must be called before anything is registered."""
        self._defaults = _own_defaults(schema, own) if own else []

    def implement(
        self,
        op: str | OpOverload,
        kernel: LocalKernel,
        allow_override: bool = True,
        here: Callable[[], Location] | None = None,
    ) -> LocalKernel | None:
        if self._defaults and not kernel.is_fallthrough:
            kernel = LocalKernel(
                kernel.key,
                _with_defaults(kernel.function, self._defaults, kernel.with_keyset),
                kernel.with_keyset,
                kernel.signature,
                kernel.label,
                kernel.types,
                kernel.provider,
            )
        return super().implement(op, kernel, allow_override, here)


def _own_defaults(schema: FunctionSchema, own: Mapping[str, object]) -> list[Default]:
    """The defaults of the function (``own``) that a schema can only describe: it has a number for
    ``torch.float32``, and the value for a member of an Enum.
    """
    found: list[Default] = []
    positional = [each.name for each in schema.arguments if not each.kwarg_only]
    for argument in schema.arguments:
        value = own.get(argument.name)
        if _describes(argument, value):
            place = argument.name if argument.kwarg_only else positional.index(argument.name)
            found.append((place, argument.default, value))
    return found


def _describes(argument: Argument, value: object) -> bool:
    """Whether the schema's default stands for ``value``, and is not of its class."""
    default = argument.default
    if default is None or value is None or type(value) is type(default):
        return False
    if isinstance(value, type(default)):
        return bool(value == default)
    return str(argument.type).rstrip("?") in _OPAQUE


def _with_defaults(
    function: Callable[..., Any],
    defaults: list[Default],
    with_keyset: bool,
) -> Callable[..., Any]:
    """A kernel that puts those defaults in the place of the schema's, then calls ``function``.
    (PyTorch drops arguments that equal the schema's default, so that a Python function takes its
    own.)
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        positional = list(args)
        for place, default, own in defaults:
            values: Any = kwargs
            if isinstance(place, int):
                values, place = positional, place + with_keyset
            if type(values[place]) is type(default) and values[place] == default:
                values[place] = own
        return function(*positional, **kwargs)

    kernel.function = function  # type: ignore[attr-defined]  # its docstring is the operator's
    return kernel

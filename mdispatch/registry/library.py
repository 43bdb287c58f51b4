"""Libraries: what a module registers, together, under one namespace, and can close together.

The same module runs everywhere. In the main interpreter its library registers; in every other one
it verifies that the main interpreter has registered the same, and keeps its own callables (see
registry/register.py).
"""

from __future__ import annotations

import sys

from .. import errors, facts, seam
from ..dispatch.checks import (
    WILDCARD,
    attributes_of,
    check_namespace,
    check_reserved,
    checked_callable,
    key_or_none,
    operator_name,
    stub_of,
)
from ..dispatch.kernels import FALLBACK_NAME, LocalKernel, fallthrough_kernel
from ..errors.locations import caller, given_location, label_of, location_of
from ..errors.runs import ANEW, MORE, OTHER, SAME, Run
from ..errors.words import shown
from ..facts.caller_lines import CallerLines
from ..facts.logs import described, registry_log
from ..facts.native.calls import surely
from ..facts.waits import check_timeout
from ..forking import new_lock
from ..keys.numbers import TABLE_INDEX, DispatchKey, table_index
from ..schema.canonical import canonical_schema
from . import register, roles
from .c_kernels import implement_in_c
from .register import RegistrationHandle
from .registry import Registry, given_or_default
from .type_facts import keep_up
from .verify import DEFAULT_TIMEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, TypeVar, TypeVarTuple, overload

    from ..dispatch.by_type import Classes
    from ..dispatch.kernels import Provider
    from ..dispatch.operators import OpOverload
    from ..errors.locations import Location
    from ..facts import Registration
    from .register import Held, What

    F = TypeVar("F", bound=Callable[..., Any] | str)
    L = TypeVar("L", bound="Library")
    H = TypeVar("H", bound=RegistrationHandle | None)
    Args = TypeVarTuple("Args")

__all__ = ["Library"]

_META = DispatchKey.Meta

#: One for all libraries: each operator of ``custom_op`` has its own.
_lines = CallerLines()

# Over ``_handles`` and ``closed`` of all libraries of this interpreter; held for a few steps.
_lock = new_lock()


# A refusal of a registration begins its traceback in the method that was called: the way through
# mdispatch says nothing of the two versions that differ.


class Library:
    """Registers operators and kernels under one namespace.

    ``kind`` is "DEF" (the one library that owns the namespace), "FRAGMENT" (adds definitions and
    kernels to it) or "IMPL" (adds kernels, or with namespace "_" fallbacks). ``dispatch_key`` is
    the key of kernels registered without one. ``timeout`` is how many seconds each verification
    waits for the main interpreter, None for ever. With ``torch`` each operator that the library
    defines is exported to PyTorch, as :func:`mdispatch.torch.export` does, until it ends; ``torch``
    has to be imported.

    A module that is imported or reloaded again replaces what it registered before, on whatever
    lines its libraries are: those of the same namespace, kind and key. Of the libraries of a
    notebook's cells only what is registered again is replaced: the definition of a name, with the
    kernels that the same library has for it, and a kernel of the same name. So a second DEF library
    in another cell adds to the namespace, and owns it from then on. In one run a module may open
    any number of FRAGMENT and IMPL libraries; a second DEF library is refused. A library keeps its
    registrations even if nobody refers to it any more; ``close`` ends them.

    Raises InvalidArgumentError (also for ``torch``, where it is not imported, or nothing is
    defined), InvalidNameError, InvalidKeyError; DuplicateRegistrationError when the namespace has a
    DEF library of another module or of the same run or cell; in a worker MainNeverArrivedError;
    TypeKeysMismatchError (register_type). (torch.library.Library, c10: registerLibrary)
    """

    def __init__(
        self,
        namespace: str,
        kind: str,
        dispatch_key: DispatchKey | str = "",
        *,
        registry: Registry | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        torch: bool = False,
        _tag: str = "",
        _location: Location | None = None,
    ) -> None:
        check_namespace(namespace, kind)
        if not _location:  # torch_compat passes one, and may use PyTorch's own namespaces
            check_reserved(namespace, kind)
        self.key = key_or_none(dispatch_key)
        if self.key is not None and kind != "IMPL":
            raise errors.InvalidArgumentError(
                f"a {kind} library serves all keys; give dispatch_key to an IMPL library, or "
                "to impl()"
            )
        self._export = _export_of(namespace, kind) if torch else None
        self.namespace = namespace
        self.kind = kind
        self.timeout = check_timeout(timeout)
        self.registry = given_or_default(registry)
        self._dispatcher = self.registry.dispatcher
        keep_up(self._dispatcher)
        frame = None if _location else caller()
        self.where = _location or location_of(frame)
        #: Finds the line that registers. Who registers needs it, and each frame of ours that is to
        #: be passed by costs: so it is asked early. Who verifies needs it for an error only.
        self._here = _location.itself if _location else _lines.here
        self.closed = False
        self._is_counted = False  # among the open libraries of the namespace
        self._handles: list[Held] = []
        self._forget_published = self._dispatcher.facts.forget_published
        # Asked once: the question takes nearly as long as a registration.
        self._is_told = registry_log.listens()
        #: What this library may take the place of: definitions that have ended, and what libraries
        #: of other cells have registered.
        self._replaced: dict[str, Registration] = {}
        self._earlier: dict[What, list[tuple[Library, Held]]] = {}
        self._stub = ""  # the Python module of later definitions, and its context
        run = Run(frame) if frame is not None else None
        # A tag names an operator, so there is one such library for it, as there is one DEF library.
        self._identity = (namespace, kind, str(self.key), _tag, run.module if run else "")
        roles.queue_up(self._dispatcher, namespace, self.where)
        self._is_counted = True
        try:
            if run is not None:
                self._take_place(run, is_tagged=bool(_tag))
            if kind == "DEF" and not self._take_over():
                self._hold_what(
                    register.open_namespace, self._dispatcher, namespace, self._here, self.timeout
                )
        except BaseException:
            self.close()
            raise

    def _take_place(self, run: Run, is_tagged: bool) -> None:
        """Replaces what an earlier run of the module has opened. See Note [Runs of a module] in
        errors/runs.py.

        All FRAGMENT and IMPL libraries end where the module's own code is imported again: it will
        open again those that it still has. Of those that were opened cell by cell, or by functions,
        what is registered again ends when it is. There is one DEF library for a namespace, which
        ends whenever the code that opened it runs again, but not for another cell. One with a tag
        is for a single operator, which is made again as a whole.
        """
        table = self._dispatcher.libraries
        ended: list[Library] = []
        kept: list[Library] = []
        with _lock:
            runs = table.get(self._identity, {})
            for earlier, opened in list(runs.items()):
                now = run.after(earlier)
                if now == OTHER:
                    continue
                if now == SAME:
                    earlier.goes_on(run)
                    run = earlier
                    continue
                is_whole = is_tagged or (self.kind == "DEF" and now != MORE)
                is_whole |= now == ANEW and run.is_direct and earlier.is_direct
                (ended if is_whole else kept).extend(opened)
            ours = runs.setdefault(run, {})
            if ours:  # whichever of them makes a definition again, it goes on
                self._replaced = next(iter(ours))._replaced
            ours[self] = None
            table[self._identity] = runs
        for library in reversed(ended):
            self._replaced.update(library.definitions())
            library.close()
        for library in kept:
            for handle in list(library._handles):
                what = handle.what
                if what is not None:
                    self._earlier.setdefault(what, []).append((library, handle))

    def _take_over(self) -> bool:
        """Takes the namespace over from the DEF library of another cell, which goes on with what it
        has defined. Returns whether there is one.
        """
        what = (facts.LIBRARY, 0, self.namespace)
        earlier = self._earlier.pop((*what, ""), [])
        if not self._dispatcher.facts.has(*what):
            return False  # it has ended
        for library, handle in reversed(earlier):
            with _lock:
                is_its = handle in library._handles
                if is_its:
                    library._handles.remove(handle)
                    self._handles.append(handle)
            if is_its:
                return True
        return False

    def _take_place_of(self, kind: int, key: int, name: str, label: str = "") -> None:
        """Ends what another cell has registered as the same, of a definition with the kernels that
        its library has for it. Called before it is registered.
        """
        for library, handle in reversed(self._earlier.pop((kind, key, name, label), ())):
            handles = [handle]
            if kind == facts.DEF:
                if handle.registration is not None:
                    self._replaced[name] = handle.registration
                handles += _others_of(library, name)
            library.let_go(handles)
            if not library._handles:
                library.close()

    def define(
        self,
        schema: str,
        *,
        alias_analysis: str = "",
        tags: str | Iterable[str] = (),
        doc: str = "",
        where: object = None,
        forward: bool = False,
    ) -> str:
        """Defines an operator: ``"scale(Tensor x, float factor=2.0) -> Tensor"``. Returns its name
        with namespace.

        ``alias_analysis`` says what optimizers may assume: FROM_SCHEMA (also ""), that only the
        marked arguments are written to or returned; CONSERVATIVE, that anything may be;
        PURE_FUNCTION, that nothing is. ``tags`` are identifiers of the user's own. Both are kept
        with the schema and compared like it. ``doc`` is the operator's docstring in this
        interpreter; without it, that of a kernel is.

        ``where`` is the function, class or module for which you register, if you write a helper for
        others: members compare what the same module registers, and errors name its location.
        Without it that is the module that is being imported or, if none is, the code that calls.

        A class that the schema names ("shop.Tokenizer") has to be known: it is registered, or was
        met in the annotations of an operator. With ``forward`` it may come later.

        In a worker, waits until the main interpreter has defined the operator and compares.

        Raises SchemaSyntaxError, InvalidNameError, InvalidArgumentError,
        DuplicateRegistrationError, SignatureMismatchError, LibraryClosedError, RegistryFullError;
        TorchExportError (a library with ``torch``); in a worker SchemaMismatchError,
        NameMismatchError, MainNeverArrivedError. (c10: Library::_def, registerDef)
        """
        is_plain = alias_analysis == "" and tags == ()
        return self.define_with_attributes(
            schema, "" if is_plain else attributes_of(alias_analysis, tags), doc, where, forward
        )

    @property
    def python_module(self) -> str | None:
        """The module that :meth:`set_python_module` has named last, or None."""
        return self._stub.partition("\n")[0] or None

    def set_python_module(self, module: str | None, context: str = "") -> None:
        """Names the Python module that has the fake kernels of the operators that this library
        defines from now on. Earlier definitions keep the module that they have. None for no module.

        ``context`` is for people: it is added where an error asks to import the module. The two
        are kept in the registry and end with the definition; they serve every interpreter.

        In a worker every later ``define`` compares.

        Raises InvalidArgumentError (no full name of a module, more than 65536 bytes, an IMPL
        library), LibraryClosedError. (c10: Library::set_python_module)
        """
        self.check_open()
        stub = "" if module is None else stub_of(module, context)
        if self.kind == "IMPL":
            raise errors.InvalidArgumentError(
                "an IMPL library defines no operators, and a Python module is named with the "
                f"definition: name {shown(module)} in the DEF or a FRAGMENT library of "
                f"{self.namespace!r}"
            )
        self._stub = stub

    def register_python_module(self, op: str | OpOverload, module: str, context: str = "") -> None:
        """Names the Python module that has the fake kernel of one operator, which any library may
        define.

        Where another module, or context, is named already, PystubOverrideWarning tells both, with
        their locations; the newest is in effect, and the earlier one returns when it is closed.

        In a worker, waits until the main interpreter has done the same and compares.

        Raises InvalidNameError, InvalidArgumentError, LibraryClosedError, RegistryFullError; in a
        worker PystubMismatchError, NameMismatchError, MainNeverArrivedError. (c10:
        registerPythonModule)
        """
        self.check_open()
        name = operator_name(self.namespace, op)
        stub = stub_of(module, context)
        self._take_place_of(facts.PYSTUB, 0, name)
        self._hold_what(
            register.name_module, self._dispatcher, name, stub, self._here, self.timeout
        )

    if TYPE_CHECKING:

        @overload
        def impl(
            self,
            op: str | OpOverload,
            function: None = None,
            dispatch_key: DispatchKey | str = "",
            *,
            types: Classes | None = None,
            with_keyset: bool = False,
            signature: str = "",
            allow_override: bool = True,
            serve: bool | str = False,
            provider: str | None = None,
            order: int = 0,
            supports: Callable[..., object] | None = None,
            available: Callable[[], object] | bool | None = None,
            required: bool = True,
            where: object = None,
        ) -> Callable[[F], F]: ...
        @overload
        def impl(
            self,
            op: str | OpOverload,
            function: F,
            dispatch_key: DispatchKey | str = "",
            *,
            types: Classes | None = None,
            with_keyset: bool = False,
            signature: str = "",
            allow_override: bool = True,
            serve: bool | str = False,
            provider: str | None = None,
            order: int = 0,
            supports: Callable[..., object] | None = None,
            available: Callable[[], object] | bool | None = None,
            required: bool = True,
            where: object = None,
        ) -> F: ...

    def impl(
        self,
        op: str | OpOverload,
        function: Any = None,
        dispatch_key: DispatchKey | str = "",
        *,
        types: Classes | None = None,
        with_keyset: bool = False,
        signature: str = "",
        allow_override: bool = True,
        serve: bool | str = False,
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
        where: object = None,
    ) -> Any:
        """Registers a kernel for an operator, at ``dispatch_key``, else the library's key, else as
        a catch-all.

        ``op`` is a name ("scale", "scale.out", "ns::scale") or an operator. Without ``function`` it
        is a decorator. The kernel gets every argument of the schema, defaults included,
        keyword-only ones by keyword; with ``with_keyset`` the DispatchKeySet comes first. The
        newest kernel of a key is in effect; the earlier one returns when it goes. Without
        ``allow_override`` a key takes one kernel, whoever registered it. Returns the function.

        ``types`` is the class of the tensors that the kernel is for, or a tuple with one class for
        each Tensor argument. At one key there may be kernels for any number of types: of those that
        fit a call the most specific runs, and one without types if no other fits. Where none fits,
        the call goes on as if the key had no kernel. Only classes derived from one of the types
        count as that type. If no argument is a Tensor, all arguments by position choose that take
        values of several classes (Any, object, a class, a union, an optional). Virtual subclasses
        count then, too, as for functools.singledispatch, and None has a class.
        A union of classes stands for a kernel for each. What is said here of the kernels of a key
        holds for those with the same types. Other members know a class by its module and qualified
        name.

        An operator with a CompositeImplicitAutograd kernel takes none at Meta: the operators that
        this kernel calls serve meta values.

        ``provider`` names the kernel, as one of several that stand beside each other at the key:
        see docs/choosing-kernels.md. The one with the highest ``order`` runs, of the same ``order``
        the newest, unless a priority asks for another (:func:`mdispatch.set_priority`,
        :func:`mdispatch.priority`, MDISPATCH_PRIORITY). ``supports`` is called with a call's
        arguments, and says whether the provider takes them; ``available``, which is asked now, and
        once, whether it can be used in this interpreter. A provider's function may be given by its
        name, "package.module:function": it is imported, and ``available`` asked, when a call first
        comes to it. Workers have the same providers, with the
        same ``order`` and as available, unless the main interpreter says ``required=False``. A
        kernel without a name comes after all providers. A provider's name is unique at its key.

        ``signature`` is the kernel's own schema without a name, ``"(Tensor x) -> Tensor"``: where
        it does not fit the operator's (number and types of arguments and returns), the kernel or
        the definition that comes second is refused. So it is with a function of Python's that
        cannot be called with the arguments of the schema, and with types of another number than
        its Tensor arguments.

        ``serve`` says that other interpreters of this process, which have no such kernel, may call
        this one: see :class:`mdispatch.routing`. A kernel in C is in all of them anyway. The name
        of a transport says that other processes may, too: "host" is that of this host's, and
        ``Serve("host", queue=8)`` has some calls wait while this process is busy. That is refused
        where the registry is shared with nobody; True has no effect there.

        ``where`` is as for :meth:`define`.

        Raises InvalidArgumentError (not callable, another namespace, no classes, two classes of one
        name, a kernel in C that is to be served, no such transport, ``where``), InvalidKeyError,
        SignatureMismatchError, DuplicateRegistrationError (``allow_override``), AmbiguousTypesError
        (another kernel fits arguments that this one fits, and neither is more specific),
        LibraryClosedError, RegistryFullError, NotSharedError (a transport, and the registry is
        shared with nobody); in a worker KeyMismatchError, TypesMismatchError,
        ProviderMissingError, PriorityMismatchError, NameMismatchError, MainNeverArrivedError. (c10:
        Library::_impl, registerImpl)
        """
        if function is None:
            return lambda decorated: self.impl(
                op,
                checked_callable(decorated),
                dispatch_key,
                types=types,
                with_keyset=with_keyset,
                signature=signature,
                allow_override=allow_override,
                serve=serve,
                provider=provider,
                order=order,
                supports=supports,
                available=available,
                required=required,
                where=where,
            )
        named = given_provider(
            function, self.registry, provider, order, supports, available, required
        )
        kernel = named.stands_in if type(function) is str and named is not None else function
        here = None if where is None else given_location(where).itself
        if types is None:
            self.register_kernel(
                op,
                kernel,
                dispatch_key,
                with_keyset,
                signature,
                allow_override,
                None,
                named,
                serve,
                here,
            )
            return function
        handles: list[Held | None] = []
        try:
            for each in type_alternatives(types):
                handle = self.register_kernel(
                    op,
                    kernel,
                    dispatch_key,
                    with_keyset,
                    signature,
                    allow_override,
                    each,
                    named,
                    serve,
                    here,
                )
                handles.append(handle)
        except BaseException:
            self.let_go(handles)
            raise
        return function

    if TYPE_CHECKING:

        @overload
        def register_fake(
            self, op: str | OpOverload, function: None = None, *, allow_override: bool = True
        ) -> Callable[[F], F]: ...
        @overload
        def register_fake(
            self, op: str | OpOverload, function: F, *, allow_override: bool = True
        ) -> F: ...

    def register_fake(
        self, op: str | OpOverload, function: Any = None, *, allow_override: bool = True
    ) -> Any:
        """Registers a fake kernel, which runs for meta values. Ends with this library.

        As :func:`mdispatch.register_fake`. (PyTorch: torch.library.Library._register_fake)
        """
        if function is None:
            return lambda decorated: self.register_fake(
                op, checked_callable(decorated), allow_override=allow_override
            )
        from .fake_kernels import fake_kernel  # many libraries register none

        self.check_open()
        checked_callable(function)
        name = operator_name(self.namespace, op)
        key = self.key_for(_META, name)
        self._check_meta(name)
        self.check_arguments(name, LocalKernel(key, function))
        kernel = fake_kernel(self._dispatcher.facts, name, function)
        self.implement(name, LocalKernel(key, kernel, label=label_of(function)), allow_override)
        return function

    def fallback(
        self,
        function: Callable[..., Any],
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
    ) -> None:
        """Registers what runs at a key for every operator that has no kernel there: ``function(op,
        *args, **kwargs)``.

        Only in an IMPL library of namespace "_". :func:`fallthrough_kernel` makes calls pass the
        key by.

        Raises InvalidArgumentError, InvalidKeyError (an alias key), DuplicateRegistrationError,
        LibraryClosedError; in a worker NotRegisteredError. (c10: Library::_fallback,
        registerFallback)
        """
        self.check_open()
        if self.namespace != WILDCARD:
            raise errors.InvalidArgumentError(
                "a fallback serves the operators of all namespaces: register it with "
                "Library('_', 'IMPL'), "
                f"not in {self.namespace!r}"
            )
        checked_callable(function)
        if key_or_none(dispatch_key) is None and self.key is None:
            raise errors.InvalidKeyError(
                "a fallback needs a dispatch key, here or in its library", dispatch_key
            )
        kernel = LocalKernel(self.key_for(dispatch_key, "the fallback"), function, with_keyset)
        self._take_place_of(facts.FALLBACK, kernel.key, FALLBACK_NAME)
        self._hold_what(register.fall_back, self._dispatcher, kernel, self._here, self.timeout)

    def register_name(self, op: str | OpOverload) -> str:
        """Keeps a name in the registry without a schema and without kernels, so that it can be
        looked up before they are there. Returns it with its namespace. A name may be registered any
        number of times.

        In a worker, waits until the main interpreter has done the same.

        Raises InvalidNameError, InvalidArgumentError (another namespace), LibraryClosedError,
        RegistryFullError; in a worker NameMismatchError, MainNeverArrivedError. (c10: registerName)
        """
        self.check_open()
        name = operator_name(self.namespace, op)
        self._take_place_of(facts.NAME, 0, name)
        self._hold_what(register.hold_name, self._dispatcher, name, self._here, self.timeout)
        return name

    # --- ending

    def close(self) -> None:
        """Ends every registration of this library, newest first. Idempotent."""
        try:
            surely(self._close)
        except BaseException:
            self._handles = []  # what raises each time is left as it is
            raise

    def _close(self) -> None:
        """If it is interrupted, it is called again and goes on."""
        self.closed = True
        is_told = registry_log.listens()
        try:
            for handle in reversed(self._handles):  # those that have ended do nothing
                if is_told:
                    _end_told(handle)
                else:
                    handle.close()
            self._handles = []  # nothing is left
        finally:
            with _lock:
                is_counted, self._is_counted = self._is_counted, False
                self._leave_table()
            if is_counted:
                surely(roles.leave_queue, self._dispatcher, self.namespace)

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """A block that raises leaves nothing registered; a block that ends well keeps
        everything.
        """
        if exc_type is not None:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<mdispatch.Library {self.kind} {self.namespace!r} from {self.where}{state}>"

    # --- for the packages of mdispatch

    def define_with_attributes(
        self,
        schema: str,
        attributes: str,
        doc: str = "",
        where: object = None,
        forward: bool = False,
    ) -> str:
        """As :meth:`define`, with the attributes as the registry keeps them."""
        if self.closed:
            self.check_open()
        if self.kind == "IMPL":
            raise errors.InvalidArgumentError(
                f"an IMPL library defines no operators: define {shown(schema)} in the DEF or a "
                "FRAGMENT library of "
                f"{self.namespace!r}"
            )
        if not isinstance(schema, str):
            raise errors.InvalidArgumentError(f"a schema is a str, not {shown(schema)}")
        if not isinstance(doc, str):
            raise errors.InvalidArgumentError(f"doc is a str for people, not {shown(doc)}")
        if self._earlier:
            name, canonical = canonical_schema(schema, self.namespace)
            before = self._earlier.get((facts.DEF, 0, name, ""), ())
            leave = [each for library, _ in before for each in _others_of(library, name)]
            if before:  # refused before anything ends
                register.check_kernels_take(self._dispatcher, name, canonical, self._here, leave)
            self._take_place_of(facts.DEF, 0, name)
        here = self._here if where is None else given_location(where).itself
        self._forget_published()
        try:
            name, handle = register.define(
                self._dispatcher,
                schema,
                self.namespace,
                here().itself if self._dispatcher.registers_all else here,  # see self._here
                self.timeout,
                attributes=attributes,
                stub=self._stub,
                replaced=self._replaced,
                forward=forward,
            )
            if doc and handle is not None and handle.registration is not None:
                self._dispatcher.docs[name] = (handle.registration.generation, doc)
            if self._export is not None and handle is not None:
                handle = self._exported(name, handle)
            self.hold(handle)
        except errors.VerificationError as error:
            surely(self._disown)
            raise error.with_traceback(None)  # noqa: B904
        except BaseException:
            surely(self._disown)
            raise
        return name

    def _exported(self, name: str, handle: RegistrationHandle) -> RegistrationHandle:
        """Exports what was defined. The handle of both: the export ends first. Where it is refused,
        nothing is defined.
        """
        assert self._export is not None
        try:
            end = self._export(self.registry, name)
        except BaseException:
            handle.close()
            raise
        return RegistrationHandle(handle.registration, end, handle.close)

    def register_kernel(
        self,
        op: str | OpOverload,
        function: Callable[..., Any],
        dispatch_key: DispatchKey | str,
        with_keyset: bool,
        signature: str,
        allow_override: bool,
        types: Classes | None = None,
        provider: Provider | None = None,
        serve: bool | str = False,
        here: Callable[[], Location] | None = None,
    ) -> Held | None:
        """As :meth:`impl`; returns the handle. None where an open audit noted a difference."""
        if self.closed:
            self.check_open()
        checked_callable(function)
        classes = () if types is None else _classes(types)
        key = self.key_for(dispatch_key, op)
        is_everywhere = function is fallthrough_kernel
        if not isinstance(serve, (bool, str)):
            raise errors.InvalidArgumentError(
                f'serve is True, or the name of a transport as "host", not {shown(serve)}'
            )
        serving = seam.at("impl(serve=)")(serve) if serve else None
        if isinstance(serve, str) and self._dispatcher.facts.alone:
            from .differences import not_served

            raise not_served(self._dispatcher.facts, operator_name(self.namespace, op), serve)
        if serve and (is_everywhere or type(function).__module__ == "_cffi_backend"):
            raise errors.InvalidArgumentError(
                f"{shown(function)} cannot be served: every interpreter of this process has it "
                "already\nLeave serve out."
            )
        if type(function).__module__ == "_cffi_backend":
            from .c_kernels import kernel_address, plain_kernel

            address = kernel_address(
                function, with_keyset or bool(signature or classes or provider)
            )
            if address:
                name = operator_name(self.namespace, op)
                self._take_place_of(facts.IMPL, key, name, address[0])
                return self._hold_what(
                    implement_in_c,
                    self._dispatcher,
                    name,
                    key,
                    *address,
                    here or self._here,
                    self.timeout,
                    allow_override,
                )
            kernel = plain_kernel(key, function, with_keyset, signature)
            kernel.types = classes
            kernel.provider = provider
            return self.implement(op, kernel, allow_override, here)
        if key not in TABLE_INDEX and not key.is_alias:
            table_index(key)  # refused: a kernel without a slot would never run
        if key is _META:
            self._check_meta(op)
        kernel = LocalKernel(
            key, function, with_keyset, signature, types=classes, provider=provider
        )
        if classes and isinstance(types, (tuple, list)):
            name = operator_name(self.namespace, op)
            where = here or self._here
            register.check_number_of_types(self._dispatcher, name, kernel, len(types), where)
        handle = self.implement(op, kernel, allow_override, here)
        if serving is not None and handle is not None:
            try:
                self._serve(operator_name(self.namespace, op), kernel, serving)
            except BaseException:
                self.let_go([handle])
                raise
        return handle

    def _serve(self, name: str, kernel: LocalKernel, serving: Any) -> None:
        self._take_place_of(facts.NOTE, kernel.key, name)
        where = self._here()

        def register() -> RegistrationHandle:
            return RegistrationHandle(*serving(self._dispatcher.facts, name, kernel, where))

        self._hold_what(register)

    def implement(
        self,
        op: str | OpOverload,
        kernel: LocalKernel,
        allow_override: bool = True,
        here: Callable[[], Location] | None = None,
    ) -> LocalKernel | None:
        """Registers a kernel that is made already. Returns it, as its handle; None where an open
        audit noted a difference.
        """
        if self._earlier:
            name = operator_name(self.namespace, op)
            self._take_place_of(facts.IMPL, kernel.key, name, kernel.named)
        here = here or self._here
        self._forget_published()
        try:
            entry = register.implement(
                self._dispatcher,
                self.namespace,
                op,
                kernel,
                here().itself if self._dispatcher.registers_all else here,
                self.timeout,
                allow_override=allow_override,
            )
            if entry is None:
                self.check_open()
                return None
            self.hold(kernel)
        except errors.VerificationError as error:
            surely(self._disown)
            raise error.with_traceback(None)  # noqa: B904
        except BaseException:
            surely(self._disown)
            raise
        if entry.peer is not None:
            entry.peer.keep_up()
        return kernel

    def check_arguments(self, name: str, kernel: LocalKernel) -> None:
        """SignatureMismatchError if the kernel cannot be called with the arguments of the operator:
        for functions that are registered within a callable of ours.
        """
        register.check_arguments(self._dispatcher, name, kernel, self._here)

    def check_open(self) -> None:
        """LibraryClosedError once it is closed."""
        if self.closed:
            raise errors.LibraryClosedError(
                f"library {self.namespace!r} from {self.where} is closed; open another",
                self.namespace,
            )

    def key_for(self, dispatch_key: DispatchKey | str, what: object) -> DispatchKey:
        """The key of a kernel that is registered with this one. InvalidKeyError where the library
        is for another; ``what`` is the operator, for the message.
        """
        key = key_or_none(dispatch_key)
        if key is None:
            return self.key or DispatchKey.CompositeImplicitAutograd
        if self.key is not None and key is not self.key:
            raise errors.InvalidKeyError(
                f"this library is for {self.key.name}: register {shown(what)} at {key.name} in "
                "another library",
                key,
            )
        return key

    def hold(self, handle: Held | None) -> None:
        """Keeps a handle until the library is closed. LibraryClosedError if that came first.

        It takes no lock. It adds the handle first, then looks whether the library is closed;
        ``close`` sets ``closed`` first, then takes the handles. So if the library is still open
        here, ``close`` will find the handle. If it is closed, this ends the handle. ``close`` may
        have found it, too: a handle ends once.
        """
        if handle is not None:
            self._handles.append(handle)
            if not self.closed:
                if self._is_told:
                    self._tell(handle)
                return
            handle.close()
        self.check_open()

    def _hold_what(self, register: Callable[[*Args], H], *args: *Args) -> H:
        """Holds the handle of what this function registers."""
        self._forget_published()
        try:
            handle = register(*args)
            self.hold(handle)
            return handle
        except BaseException:
            surely(self._disown)
            raise

    def _disown(self) -> None:
        """After something has raised, perhaps a signal handler: ends what was published since
        ``forget_published`` and has no handle here. All of it belongs to one handle.
        """
        self._dispatcher.end_unheld([handle.registration for handle in self._handles])

    def let_go(self, handles: Iterable[Held | None]) -> None:
        """Ends some of the registrations, the last one first."""
        end = _end_told if registry_log.listens() else _end
        for handle in reversed([each for each in handles if each is not None]):
            with _lock:
                if handle in self._handles:
                    self._handles.remove(handle)
            end(handle)

    def registry_has_ended(self) -> None:
        """Drops the handles that have nothing left to end."""
        with _lock:
            self._handles = [*(each for each in self._handles if each.outlives_registry)]

    def definitions(self) -> dict[str, Registration]:
        """What this library has defined, by name."""
        found = (each.registration for each in self._handles)
        return {fact.name: fact for fact in found if fact is not None and fact.kind == facts.DEF}

    # --- helpers

    def _leave_table(self) -> None:
        table = self._dispatcher.libraries
        runs = table.get(self._identity, {})
        for run, opened in list(runs.items()):
            if opened.pop(self, self) is None and not opened:
                runs.pop(run, None)
        if not runs:
            table.pop(self._identity, None)

    def _tell(self, handle: Held) -> None:
        """Logs what this interpreter registered. registry/verify.py logs what it verified."""
        fact = handle.registration
        if fact is not None and roles.is_made_here(self._dispatcher, fact):
            registry_log.tell("registered %s from %s", described(*fact.what), fact.where)
        self._dispatcher.tell_of_recoveries()

    def _check_meta(self, op: str | OpOverload) -> None:
        name = operator_name(self.namespace, op)
        if register.serves_meta_by_itself(self._dispatcher, name):
            raise errors.InvalidKeyError(
                f"{name} has a kernel at CompositeImplicitAutograd, which serves meta values "
                "through the operators it calls: a kernel at Meta would run in its place, and "
                "could give another result\nRegister fake kernels for the operators that it calls, "
                "or register its kernel at CompositeExplicitAutograd instead.",
                DispatchKey.Meta,
            )


def given_provider(
    function: Any,
    registry: Registry,
    name: object,
    order: object,
    supports: object,
    available: object,
    required: object,
) -> Provider | None:
    """The provider of a kernel, as a user gave it. Asks ``available`` here, unless the function is
    given by its name: then the provider has the kernel (``stands_in``). InvalidArgumentError.
    """
    if name is None and order == 0 and supports is None and available is None and required is True:
        return None
    found: Provider | None
    if type(function) is str and name is not None:
        make = seam.at("a kernel by name")
        found = make(function, registry, name, order, supports, available, required)
        return found
    checked_provider = seam.at("impl(provider=)")
    checked_callable(function)
    if function is fallthrough_kernel:
        raise errors.InvalidArgumentError(
            "fallthrough_kernel is no provider: there is nothing that could take a call. Register "
            "it without a name; it then comes after all providers"
        )
    found = checked_provider(name, order, supports, available, required)
    return found


def _export_of(namespace: str, kind: str) -> Callable[[Registry, str], Callable[[], None]]:
    """What exports the operators of a library of this kind. InvalidArgumentError."""
    if kind == "IMPL":
        raise errors.InvalidArgumentError(
            "an IMPL library defines no operators, so there is nothing to export: give torch=True "
            f"to the DEF or a FRAGMENT library of {namespace!r}"
        )
    if "torch" not in sys.modules:
        raise errors.InvalidArgumentError(
            f"Library({namespace!r}, ..., torch=True) needs PyTorch: import torch first"
        )
    held: Callable[[Registry, str], Callable[[], None]] = seam.at("Library(torch=True)")
    return held


def type_alternatives(types: Classes | None) -> list[Classes | None]:
    """The types without unions, one for each kernel."""
    from ..dispatch.by_type import alternatives

    return alternatives(types)


def _classes(types: Classes) -> tuple[type, ...]:
    from ..dispatch.by_type import checked_types  # most kernels have no types

    return checked_types(types)


def _others_of(library: Library, name: str) -> list[Held]:
    """What a library has registered for an operator beside its definition, oldest first."""
    found = []
    for handle in tuple(library._handles):
        what = handle.what
        if what is not None and what[2] == name and what[0] != facts.DEF:
            found.append(handle)
    return found


def _end(handle: Held) -> None:
    handle.close()


def _end_told(handle: Held) -> None:
    fact = handle.registration
    handle.close()
    if fact is not None:
        registry_log.tell("let go of %s", described(*fact.what))

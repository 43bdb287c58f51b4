"""What a library does: one function for each kind of registration.

Each kind is three functions with the same arguments: the registration that is wanted, how it is
registered, and how it is verified. registry/roles.py decides which one runs. What it returns is a
handle that ends the registration.

A refused registration changes nothing. If a verification fails while an audit is open, the audit
notes the difference, and there is no handle: there is nothing to end.

Locking: definitions, and kernels that carry a signature, are registered under
``dispatcher.definitions_lock``, and a verified definition is noted under it, so that neither misses
the other. What a kernel's registration and its callable need is said in
dispatch/entry.py.
"""

from __future__ import annotations

from .. import errors, facts
from ..dispatch.checks import misfit, operator_name
from ..dispatch.kernels import FALLBACK_NAME
from ..errors.locations import caller, label_of
from ..facts.kinds import REFUSED
from ..keys.numbers import DispatchKey, table_index
from ..schema.canonical import canonical_schema, schema_of
from ..schema.names import split_name
from .roles import is_made_here, keeps_alive, register_or_verify
from .verify import audits, known, known_definition, mended, note, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.entry import OperatorEntry
    from ..dispatch.kernels import LocalKernel
    from ..dispatch.operators import OpOverload
    from ..facts import Registration
    from .roles import Wanted

    #: Finds ``file:line`` of the user's code, where that is needed.
    Where: TypeAlias = Callable[[], str]
    #: What a library keeps of a registration. A kernel is its own handle.
    Held: TypeAlias = "RegistrationHandle | LocalKernel"
    #: Kind, key, name; and the label and types of a kernel, of which there may be several.
    What: TypeAlias = tuple[int, int, str, str]

__all__ = [
    "RegistrationHandle",
    "check_arguments",
    "check_types",
    "define",
    "definition_for",
    "fall_back",
    "hold_name",
    "implement",
    "name_module",
    "open_namespace",
    "publish",
    "refuse_override",
    "serves_meta_by_itself",
    "verified",
]


# --- handles --------------------------------------------------------------------------------------


class RegistrationHandle:
    """One registration of this interpreter. ``close`` ends it.

    ``registration`` is its registration. Where it was verified that is the registration of another
    member, or None if verifying needed no more than that it is there. (c10: RegistrationHandleRAII)
    """

    __slots__ = ("_ends", "registration")
    registration: Registration | None
    #: Whether ``close`` ends something once the registry is closed, too.
    outlives_registry = True

    def __init__(self, registration: Registration | None, *ends: Callable[[], object]) -> None:
        self.registration = registration
        self._ends = ends

    @property
    def what(self) -> What | None:
        """What it registers; None where that cannot be found any more, or is no registration."""
        fact = self.registration
        if fact is None:
            return None
        return *fact.what, fact.kernel if fact.kind == facts.IMPL else ""

    def close(self) -> None:
        """Ends the registration. Idempotent; does nothing once the registry is closed."""
        for end in self._ends:
            end()
        self._ends = ()  # last: who was interrupted comes again


class DefinitionHandle(RegistrationHandle):
    """A definition that this interpreter has registered."""

    __slots__ = ("_named", "_dispatcher")
    registration: Registration
    outlives_registry = False

    def __init__(self, dispatcher: Dispatcher, named: Registration | None) -> None:
        self._dispatcher: Dispatcher | None = dispatcher
        self._named = named  # the module with its fake kernel

    def close(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.end(self.registration)
            if self._named is not None:
                dispatcher.facts.remove(self._named)
            self._dispatcher = None


class VerifiedDefinition(RegistrationHandle):
    """A definition that this interpreter has verified."""

    __slots__ = ("_dispatcher",)
    registration: Registration
    outlives_registry = False

    def __init__(self, dispatcher: Dispatcher, fact: Registration) -> None:
        self._dispatcher: Dispatcher | None = dispatcher
        self.registration = fact
        self._ends = ()  # beside what close() does itself

    def close(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is not None:
            fact, listeners = self.registration, dispatcher.listeners

            def end() -> bool:
                dispatcher.docs.pop(fact.name, None)
                if keeps_alive(dispatcher.facts):
                    dispatcher.facts.remove(fact)
                return True  # it has ended here, even where other members keep the registration

            listeners.removed(fact, end)
            super().close()
            self._dispatcher = None


def registered(dispatcher: Dispatcher, fact: Registration) -> RegistrationHandle:
    """The handle of a registration that this interpreter has registered, and that has no
    callable."""
    return RegistrationHandle(fact, lambda: dispatcher.facts.remove(fact))


def verified(
    dispatcher: Dispatcher,
    what: tuple[int, int, str],
    fact: Registration | None,
    *ends: Callable[[], object],
) -> RegistrationHandle:
    """The handle of what this interpreter has verified; ``ends`` end what it keeps beside.
    ``what`` is the kind, key and name, for the registration may be unknown.
    """
    ends = (*ends, dispatcher.note_verified(*what))
    if fact is not None and keeps_alive(dispatcher.facts):
        return RegistrationHandle(fact, lambda: dispatcher.facts.remove(fact), *ends)
    return RegistrationHandle(fact, *ends)


def publish(
    dispatcher: Dispatcher, kind: int, key: int, name: str, text: str, where: str
) -> Registration:
    """Registers a registration. DuplicateRegistrationError with both locations; NotSharedError
    where other hosts have to have it, and its kind does not go there.
    """
    its = facts.kind_of(kind)
    if its.hosts == REFUSED and dispatcher.facts.has(facts.STANDING, 0, facts.STANDS):
        raise errors.NotSharedError(
            f"{its.say(its.what, name)} cannot be registered in {dispatcher.facts.label}, a "
            f"registry of several hosts: no other host would have it\n  here:  {where}\n"
            "Register it in a registry of one host.",
            dispatcher.facts.label,
        )
    try:
        fact = dispatcher.facts.register(kind, key, name, text, where)
        if audits:
            note(fact)
        if dispatcher.facts.differing is not None and not dispatcher.facts.is_apart(name):
            mended(dispatcher, (kind, int(key), name, fact.variant))
        return fact
    except errors.DuplicateRegistrationError as error:
        from .differences import registered_twice

        raise registered_twice(error, kind, key) from None


# --- libraries, names -----------------------------------------------------------------------------


def open_namespace(
    dispatcher: Dispatcher, namespace: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    """The one DEF library of a namespace. (c10: registerLibrary)"""
    return register_or_verify(
        dispatcher, _wanted_without_text, _register_without_text, _verify_without_text
    )(dispatcher, facts.LIBRARY, namespace, where, timeout)


def hold_name(
    dispatcher: Dispatcher, name: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    """A name without a schema or kernels. (c10: registerName)"""
    return register_or_verify(
        dispatcher, _wanted_without_text, _register_without_text, _verify_without_text
    )(dispatcher, facts.NAME, name, where, timeout)


def _wanted_without_text(
    dispatcher: Dispatcher, kind: int, name: str, where: Where, timeout: float | None
) -> Wanted:
    return kind, 0, name, None


def _register_without_text(
    dispatcher: Dispatcher, kind: int, name: str, where: Where, timeout: float | None
) -> RegistrationHandle:
    return registered(dispatcher, publish(dispatcher, kind, 0, name, "", where()))


def _verify_without_text(
    dispatcher: Dispatcher, kind: int, name: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    there = verify(dispatcher, kind, 0, name, "", where, timeout=timeout)
    if there is None:
        return None
    if kind == facts.LIBRARY:
        dispatcher.note_counterpart(where(), there)
    return verified(dispatcher, (kind, 0, name), there)


# --- the module that an operator names ------------------------------------------------------------
#
# Which Python module has an operator's fake kernel: what the registry keeps of it.
#
# A registration of its own beside the definition. It is registered before the definition and ended
# after it: a member that finds the definition finds the module too, and no worker has to wait for
# it.
#
# (c10: Dispatcher::registerPythonModule. There a second module replaces the first for good, and the
# end of either removes both. Here the newest is in effect, and the one before it returns.)


def name_module(
    dispatcher: Dispatcher, name: str, stub: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    """The Python module with an operator's fake kernel. (c10: registerPythonModule)"""
    return register_or_verify(dispatcher, _wanted_module, _register_module, _verify_module)(
        dispatcher, name, stub, where, timeout
    )


def _wanted_module(
    dispatcher: Dispatcher, name: str, stub: str, where: Where, timeout: float | None
) -> Wanted:
    return facts.PYSTUB, 0, name, None


def _register_module(
    dispatcher: Dispatcher, name: str, stub: str, where: Where, timeout: float | None
) -> RegistrationHandle:
    here = where()
    _warn_of_override(dispatcher, name, stub, here)
    return registered(dispatcher, publish(dispatcher, facts.PYSTUB, 0, name, stub, here))


def _verify_module(
    dispatcher: Dispatcher, name: str, stub: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    there = _verify_stub(dispatcher, name, stub, where, timeout)
    return None if there is None else verified(dispatcher, (facts.PYSTUB, 0, name), there)


def _warn_of_override(dispatcher: Dispatcher, name: str, stub: str, where: str) -> None:
    """Call it before anything is registered: a filter may turn the warning into an error."""
    there = dispatcher.facts.find(facts.PYSTUB, 0, name)
    if there is None or there.body == stub:
        return
    import warnings

    first, second = (text.partition("\n") for text in (there.body, stub))
    if first[0] == second[0]:
        what = f"{name} names its Python module {first[0]!r} again, with another context"
    else:
        what = f"{name} has named its Python module {first[0]!r}, and now names {second[0]!r}"
    message = (
        f"{what}\n  first:  {there.where}\n  second: {where}\n"
        "The later one is in effect until it is closed. Name the module in one place."
    )
    frame = caller()
    if frame is None:
        warnings.warn(message, errors.PystubOverrideWarning, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        errors.PystubOverrideWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _verify_stub(
    dispatcher: Dispatcher,
    name: str,
    stub: str,
    where: Where,
    timeout: float | None,
    *,
    is_defined: bool = False,
) -> Registration | None:
    """The member that registers has named the same module, among others or not. None when an open
    audit has noted that it has not.

    ``is_defined`` says that the operator's definition was verified: a module that is not there by
    then will not come.
    """

    def compare(newest: Registration) -> None:
        _, _, there = dispatcher.facts.registrations(name)
        if not any(fact.kind == facts.PYSTUB and fact.body == stub for fact in there):
            raise _differs(dispatcher, name, stub, where(), newest)

    if is_defined and not dispatcher.facts.has(facts.PYSTUB, 0, name):
        # By way of the definition, because that is there and needs no wait.
        verify(dispatcher, facts.DEF, 0, name, stub, where, timeout=timeout, accept=compare)
        return None
    return verify(dispatcher, facts.PYSTUB, 0, name, stub, where, timeout=timeout, accept=compare)


def _differs(
    dispatcher: Dispatcher, name: str, stub: str, here: str, fact: Registration
) -> errors.PystubMismatchError:
    """The two members name different modules. ``fact`` is the module that is registered, or the
    definition if that names none.
    """
    from .differences import beside, process_of
    from .roles import who
    from .versions import remedy  # loaded only for an error

    main, here = f"{who(dispatcher.facts)} ({process_of(fact)})", beside(fact, here)
    named = fact.body if fact.kind == facts.PYSTUB else ""
    module, _, context = stub.partition("\n")
    module_there, _, context_there = named.partition("\n")
    if not named:
        there = f"{main} names none"
    elif module == module_there:
        there = f"{main} names it with another context"
    else:
        there = f"{main} names {module_there!r}"
    error = errors.PystubMismatchError(
        f"{name} names its Python module {module!r} here, but {there}\n  here:  "
        f"{_told(module, context)}    ({here})\n  there: {_told(module_there, context_there)}    "
        f"({fact.where})\n{remedy(here, fact.where, fact.pid)}",
        kind="pystub",
        name=name,
        here=here,
        there=fact.where,
    )
    error.module_here = module
    error.module_there = module_there
    return error


def _told(module: str, context: str) -> str:
    from ..errors.words import shown

    return f"{module}, {shown(context)}" if context else module or "none"


# --- definitions ----------------------------------------------------------------------------------


def define(
    dispatcher: Dispatcher,
    schema: str,
    namespace: str,
    where: Where,
    timeout: float | None,
    *,
    attributes: str = "",
    stub: str = "",
    replaced: Mapping[str, Registration] | None = None,
    forward: bool | None = False,
) -> tuple[str, RegistrationHandle | None]:
    """The operator's full name, and the handle of its definition. (c10: registerDef)

    ``stub`` names the Python module of the operator, see :func:`stub_of`.

    ``replaced`` are the definitions that this one may take the place of: a library opened again
    goes on with their generations where nothing else has changed. ``forward``: classes that the
    schema names may come later; with None nobody asks for them, as in C they may be names only.
    """
    return register_or_verify(
        dispatcher, _wanted_definition, _register_definition, _verify_definition
    )(dispatcher, schema, namespace, where, timeout, attributes, stub, replaced, forward)


def _wanted_definition(
    dispatcher: Dispatcher,
    schema: str,
    namespace: str,
    where: Where,
    timeout: float | None,
    attributes: str,
    stub: str,
    replaced: Mapping[str, Registration] | None,
    forward: bool | None,
) -> Wanted:
    return facts.DEF, 0, split_name(schema, namespace), None


def _register_definition(
    dispatcher: Dispatcher,
    schema: str,
    namespace: str,
    where: Where,
    timeout: float | None,
    attributes: str,
    stub: str,
    replaced: Mapping[str, Registration] | None,
    forward: bool | None,
) -> tuple[str, DefinitionHandle]:
    here = where()
    name, canonical = canonical_schema(schema, namespace)
    if type(canonical) is not str:
        canonical = _known(dispatcher, name, canonical, schema, forward)
    entry = dispatcher.entries.get(name)
    if entry is not None:
        _refuse_second(dispatcher, name, here)  # says more than a kernel of the first one
        _check_kernels_take(entry, canonical, where)
        if entry.peer is not None:
            entry.leave_peer()  # it has the definition before
    generation = 0
    if replaced:
        before = replaced.get(name)
        if before and before.body == canonical and before.attributes == attributes:
            generation = before.generation
    text = canonical
    if attributes or generation or not canonical.endswith(schema):  # most are written as kept
        text = facts.def_text(canonical, _written(schema, namespace), attributes, generation)
    named = None
    if stub:
        _refuse_second(dispatcher, name, here)  # before the warning: nothing that is refused warns
        _warn_of_override(dispatcher, name, stub, here)
    with dispatcher.definitions_lock:
        # An earlier registrar may have registered kernels that are not known here.
        if not dispatcher.registers_all or name in dispatcher.names_with_signatures:
            _check_kernels(dispatcher, name, canonical, here)
        if stub:
            named = publish(dispatcher, facts.PYSTUB, 0, name, stub, here)
        try:
            handle = DefinitionHandle(dispatcher, named)
            fact = handle.registration = publish(dispatcher, facts.DEF, 0, name, text, here)
        except BaseException:
            if named is not None:
                dispatcher.facts.remove(named)
            raise
        dispatcher.defined(fact)
    dispatcher.listeners.tell()
    return name, handle


def _known(
    dispatcher: Dispatcher, name: str, canonical: str, schema: str, forward: bool | None
) -> str:
    """The canonical text of a schema that names classes."""
    if forward is not None:
        from .known_classes import check_classes

        check_classes(name, schema_of(canonical), schema, forward, dispatcher.facts)
    return str.__str__(canonical)


def _written(schema: str, namespace: str) -> str:
    prefix = namespace + "::"
    return schema if schema.startswith(prefix) else prefix + schema


def _verify_definition(
    dispatcher: Dispatcher,
    schema: str,
    namespace: str,
    where: Where,
    timeout: float | None,
    attributes: str,
    stub: str,
    replaced: Mapping[str, Registration] | None,
    forward: bool | None,
) -> tuple[str, RegistrationHandle | None]:
    written = _written(schema, namespace)
    name = written.partition("(")[0]
    there = known_definition(dispatcher, name, written, attributes)
    if forward:
        _known(dispatcher, name, canonical_schema(schema, namespace)[1], schema, forward)
    if there is None:
        name = split_name(schema, namespace)
        there = _await_definition(dispatcher, schema, name, namespace, where, timeout, attributes)
        if there is None:
            return name, None
    handle = VerifiedDefinition(dispatcher, there)
    if stub:
        named = _verify_stub(dispatcher, name, stub, where, timeout, is_defined=True)
        if named is not None:
            handle._ends = (dispatcher.note_verified(*named.what),)
    entry = dispatcher.entries.get(name)
    if entry is not None and entry.peer is not None:
        entry.leave_peer()  # it has the definition before
    if entry is not None and entry.callables:  # those that came before the definition
        _check_kernels_here(entry, there, where)
        _check_kernels_take(entry, there.body, where)
        entry.bind(there)
    with dispatcher.definitions_lock:
        dispatcher.listeners.note(there)
    dispatcher.listeners.tell()
    return name, handle


def _await_definition(
    dispatcher: Dispatcher,
    schema: str,
    name: str,
    namespace: str,
    where: Where,
    timeout: float | None,
    attributes: str,
) -> Registration | None:
    """Verifies a definition that is not there yet, or was written in another way."""
    from ..schema import compare, parse_schema

    parsed = parse_schema(schema, namespace)  # a wrong schema is refused without a wait

    def difference(fact: Registration) -> str | None:
        if fact.attributes != attributes:
            here, there = (each.strip() or "none" for each in (attributes, fact.attributes))
            return f"its attributes are {here} here, {there} there"
        return compare(parsed, parse_schema(fact.body), ("here", "there"))

    return verify(
        dispatcher,
        facts.DEF,
        0,
        name,
        lambda: facts.def_text(str(parsed), "", attributes),
        where,
        timeout=timeout,
        accept=difference,
    )


# --- against the kernels that are there -----------------------------------------------------------


def _check_kernels(dispatcher: Dispatcher, name: str, canonical: str, where: str) -> None:
    """Before a definition: it has to fit the signatures of the kernels that are there. A second
    one is refused as such, whether or not it fits.
    """
    _refuse_second(dispatcher, name, where)
    _, _, there = dispatcher.facts.registrations(name)
    for fact in there:
        if fact.kind == facts.IMPL and fact.signature:
            from ..schema import parse_schema
            from .differences import check_signature

            key, schema = DispatchKey(fact.key).name, parse_schema(canonical)
            check_signature(schema, fact.signature, key, fact.body, fact.where, where)


def _refuse_second(dispatcher: Dispatcher, name: str, where: str) -> None:
    """Before a definition: there is none yet."""
    fact = dispatcher.facts.find(facts.DEF, 0, name)
    if fact is not None:
        from .differences import registered_twice

        twice = errors.DuplicateRegistrationError("", "def", name, "", fact.where, where)
        raise registered_twice(twice, facts.DEF, 0)


def _check_kernels_here(entry: OperatorEntry, fact: Registration, where: Where) -> None:
    """The same in a worker: its own kernels may have come before the definition."""
    for kernel in entry.callables:
        if kernel.signature:
            from ..schema import parse_schema
            from .differences import check_signature

            key, schema = kernel.key.name, parse_schema(fact.body)
            check_signature(schema, kernel.signature, key, kernel.label, "here", where())


# --- kernels --------------------------------------------------------------------------------------


def implement(
    dispatcher: Dispatcher,
    namespace: str,
    op: str | OpOverload,
    kernel: LocalKernel,
    where: Where,
    timeout: float | None,
    *,
    allow_override: bool = True,
) -> OperatorEntry | None:
    """A kernel of an operator. ``op`` is an operator, or a name with or without the namespace.

    Without ``allow_override`` it is refused where the key has one for the same types, in a worker
    where this interpreter has registered one. (c10: registerImpl)
    """
    return register_or_verify(dispatcher, _wanted_kernel, _register_kernel, _verify_kernel)(
        dispatcher, namespace, op, kernel, where, timeout, allow_override
    )


def _wanted_kernel(
    dispatcher: Dispatcher,
    namespace: str,
    op: str | OpOverload,
    kernel: LocalKernel,
    where: Where,
    timeout: float | None,
    allow_override: bool,
) -> Wanted:
    name = operator_name(namespace, op)
    variant = kernel.variant
    count = _count_with(dispatcher, name, kernel, definition_for(dispatcher, name))

    def is_enough(same: Sequence[Registration]) -> bool:
        return sum(fact.variant == variant for fact in same) >= count

    return facts.IMPL, kernel.key, name, is_enough


def _register_kernel(
    dispatcher: Dispatcher,
    namespace: str,
    op: str | OpOverload,
    kernel: LocalKernel,
    where: Where,
    timeout: float | None,
    allow_override: bool,
) -> OperatorEntry:
    name = operator_name(namespace, op)
    check_arguments(dispatcher, name, kernel, where)
    here = where()
    if not kernel.signature:
        text = _text(kernel) if kernel.types or kernel.provider else kernel.label
        return _commit(dispatcher, name, kernel, text, here, allow_override)
    with dispatcher.definitions_lock:
        _check_signature(dispatcher, name, kernel, here)
        handle = _commit(dispatcher, name, kernel, _text(kernel), here, allow_override)
        dispatcher.names_with_signatures.add(name)
    return handle


def _commit(
    dispatcher: Dispatcher,
    name: str,
    kernel: LocalKernel,
    text: str,
    where: str,
    allow_override: bool,
) -> OperatorEntry:
    if not allow_override:
        refuse_override(dispatcher, name, kernel.key, where, kernel.types_text)
    entry = dispatcher.entry(name, is_kept=True)
    try:
        with entry.lock:
            if not allow_override:
                refuse_override(dispatcher, name, kernel.key, where, kernel.types_text)
            if kernel.provider:
                _refuse_second_provider(dispatcher, name, kernel, where)
            if kernel.types:
                _check_among(entry, kernel, where)
            fact = publish(dispatcher, facts.IMPL, kernel.key, name, text, where)
            kernel.seq = fact.seq
            kernel.registration = fact
            entry.add(kernel)
    except BaseException:
        entry.let_go()  # a kernel that is refused leaves none
        raise
    return entry


def _verify_kernel(
    dispatcher: Dispatcher,
    namespace: str,
    op: str | OpOverload,
    kernel: LocalKernel,
    where: Where,
    timeout: float | None,
    allow_override: bool,
) -> OperatorEntry | None:
    plain = not (kernel.signature or kernel.types or kernel.provider)
    if isinstance(op, str) and plain and not keeps_alive(dispatcher.facts):
        prefix = namespace + "::"
        full = op if op.startswith(prefix) else prefix + op
        definition = check_arguments(dispatcher, full, kernel, where)
        handle = _verify_known(dispatcher, full, kernel, definition)
        if handle is not None:
            return handle
    name = operator_name(namespace, op)
    key = kernel.key
    check_arguments(dispatcher, name, kernel, where)
    definition = definition_for(dispatcher, name)
    at_least, types = _count_with(dispatcher, name, kernel, definition), kernel.types_text
    if kernel.signature:
        _check_signature(dispatcher, name, kernel, where())
    if at_least > 1 and not allow_override:
        refuse_override(dispatcher, name, key, where(), types)
    if kernel.types:
        _check_among(dispatcher.entry(name), kernel, where())
    accept = None
    if kernel.provider:
        if at_least > 1:
            _refuse_second_provider(dispatcher, name, kernel, where())

        def accept(fact: Registration) -> None:
            from .differences import check_provider

            check_provider(dispatcher.facts, fact, kernel, where)

    there = verify(
        dispatcher, facts.IMPL, key, name, lambda: _text(kernel), where,
        at_least=at_least, timeout=timeout, accept=accept, variant=kernel.variant,
    )  # fmt: skip
    return None if there is None else _keep(dispatcher, name, kernel, there, definition)


def _count_with(
    dispatcher: Dispatcher, name: str, kernel: LocalKernel, definition: Registration | None
) -> int:
    """How many kernels an operator has at a key for the same types, or of the same provider, in
    this interpreter, with one more. Those of another definition than this one do not count.
    """
    entry = dispatcher.entries.get(name)
    here = [each for each in entry.callables if each.key is kernel.key] if entry else []
    # Kernels that came with a fork do not count: their registrations are the parent's.
    its = [each for each in here if each.seq >= 0 and not each.is_outdated(definition)]
    return sum(each.variant == kernel.variant for each in its) + 1


def _check_among(entry: OperatorEntry, kernel: LocalKernel, where: str) -> None:
    """Before a kernel for types: InvalidArgumentError where a class has the name of another one
    that chooses between the kernels of its key, AmbiguousTypesError for a tie that the classes
    show.
    """
    from ..dispatch.by_type import in_words, name_of_class, same_name, text_of_types, tied_with

    others = [each for each in entry.callables if each.key is kernel.key]
    twins = same_name(kernel.types, others)
    if twins is not None:
        raise errors.InvalidArgumentError(
            f"{entry.name} has a kernel at {kernel.key.name} for another class that is called "
            f"{name_of_class(twins[0])}: other members, who know classes by their names, could not "
            "tell the two apart\nGive one of the classes another name, or end the other kernel "
            "first."
        )
    if kernel.provider:
        return  # the order of the providers decides
    other = tied_with(kernel.types, [each for each in others if each.provider is None])
    if other is not None:
        fact = entry.fact(other.seq)
        location = "verified here" if fact is None else fact.where
        raise errors.AmbiguousTypesError(
            f"{entry.name} has a kernel at {kernel.key.name} that fits arguments which this one "
            "fits too, and neither is the more specific one\n"
            f"  first:  {in_words(other)}    ({location})\n"
            f"  second: {in_words(kernel)}    ({where})\n"
            "Register one for just the arguments that both fit, then this one.",
            entry.name,
            kernel.key.name,
            [key.name for key in entry.kernels],
            types=(text_of_types(other.types), kernel.types_text),
            locations=(location, where),
        )


def _text(kernel: LocalKernel) -> str:
    """The text of a kernel's registration."""
    provider = "" if kernel.provider is None else kernel.provider.text
    return facts.impl_text(kernel.label, kernel.signature, kernel.types_text, provider)


def _refuse_second_provider(
    dispatcher: Dispatcher, name: str, kernel: LocalKernel, where: str
) -> None:
    """Before a provider's kernel: DuplicateRegistrationError if the key has one of this name."""
    if not dispatcher.facts.has(facts.IMPL, kernel.key, name):
        return
    _, _, there = dispatcher.facts.registrations(name)
    same = (facts.IMPL, kernel.key, kernel.variant)
    for fact in there:
        if (fact.kind, fact.key, fact.variant) == same:
            raise errors.DuplicateRegistrationError(
                f"{name} has a kernel of the provider {kernel.provider_name!r} at "
                f"{kernel.key.name} already\n"
                f"  first:  {fact.where} ({fact.body})\n  second: {where}\n"
                "Close the first one, or give the second another name.",
                "impl",
                name,
                kernel.key.name,
                fact.where,
                where,
            )


def refuse_override(
    dispatcher: Dispatcher, name: str, key: DispatchKey, where: str, types: str = ""
) -> None:
    """Before a kernel that may not override another: DuplicateRegistrationError if the key has one
    for these types already.
    """
    there = dispatcher.facts.find(facts.IMPL, key, name)
    if there is not None and there.types != types:
        _, _, every = dispatcher.facts.registrations(name)
        wanted = (facts.IMPL, key, types)
        same = [fact for fact in every if (fact.kind, fact.key, fact.types) == wanted]
        there = same[-1] if same else None
    if there is not None:
        raise errors.DuplicateRegistrationError(
            f"{name} has a kernel at {facts.kernel_name(key.name, types)} already\n"
            f"  first:  {there.where} ({there.body})\n  second: {where}\n"
            "Close the first one, or let the second take its place (allow_override=True).",
            "impl",
            name,
            key.name,
            there.where,
            where,
        )


def _verify_known(
    dispatcher: Dispatcher, name: str, kernel: LocalKernel, definition: Registration | None
) -> OperatorEntry | None:
    """The short way: the first kernel here at a key that has a registration. None says nothing;
    :func:`_verify_kernel` has to find out.
    """
    there = dispatcher.entries.get(name)
    if there is not None and any(each.key is kernel.key for each in there.callables):
        return None
    if not known(dispatcher, facts.IMPL, kernel.key, name):
        return None
    return _keep(dispatcher, name, kernel, None, definition)


def serves_meta_by_itself(dispatcher: Dispatcher, name: str) -> bool:
    """Whether an operator has a kernel at CompositeImplicitAutograd, and so takes none at Meta."""
    implicit = DispatchKey.CompositeImplicitAutograd
    entry = dispatcher.entries.get(name)
    if entry is not None and any(each.key is implicit for each in entry.callables):
        return True
    # Another member's registration may be newer than the kernel at Meta that is verified here.
    fact = dispatcher.facts.find(facts.IMPL, implicit, name)
    return fact is not None and is_made_here(dispatcher, fact)


def _keep(
    dispatcher: Dispatcher,
    name: str,
    kernel: LocalKernel,
    fact: Registration | None,
    definition: Registration | None,
) -> OperatorEntry:
    # Where the definition was not there yet, it may have come with the kernel.
    kernel.definition = definition or definition_for(dispatcher, name)
    entry = dispatcher.entry(name, is_kept=True)
    kernel.registration = fact if keeps_alive(dispatcher.facts) else None
    entry.keep(kernel)
    return entry


def definition_for(dispatcher: Dispatcher, name: str) -> Registration | None:
    """The definition that a kernel is for: the one that this interpreter has made, or verified,
    else the one in effect.
    """
    definition = dispatcher.listeners.definition(name)
    if definition is None and not dispatcher.registers_all:
        definition = dispatcher.facts.find(facts.DEF, 0, name)
    return definition


def check_arguments(
    dispatcher: Dispatcher, name: str, kernel: LocalKernel, where: Where
) -> Registration | None:
    """Before a kernel of an operator whose definition is there: SignatureMismatchError if it cannot
    be called with the arguments of the schema. Where the kernel comes first, its definition asks.
    A kernel with a signature of its own is judged by that. Likewise for its types. Returns the
    definition.
    """
    if kernel.signature and not (kernel.types or kernel.provider):
        return None
    definition = definition_for(dispatcher, name)
    if definition is not None:
        body = definition.text.partition("\n")[0]
        if kernel.types:
            check_types(name, body, kernel, where(), definition.where)
        if kernel.provider:
            _check_predicate(name, body, kernel, where(), definition.where)
        if kernel.signature:
            return definition
        reason = misfit(body[len(name) :], kernel.function, kernel.with_keyset)
        if reason is not None:
            from .differences import does_not_take

            raise does_not_take(name, body, kernel, reason, where(), definition.where)
    return definition


def _check_predicate(name: str, body: str, kernel: LocalKernel, first: str, second: str) -> None:
    """SignatureMismatchError where a predicate cannot be called with the arguments of the schema:
    it would refuse every call.
    """
    supports = None if kernel.provider is None else kernel.provider.supports
    reason = None if supports is None else misfit(body[len(name) :], supports, False)
    if reason is not None:
        raise errors.SignatureMismatchError(
            f"the predicate of the provider {kernel.provider_name!r} at {kernel.key.name} cannot "
            f"be called as {name} is: {reason}\n"
            f"  schema:    {body}    ({second})\n  predicate: {label_of(supports)}    ({first})\n"
            "A predicate gets every argument of the schema, those after '*' by keyword.",
            name,
            body,
            label_of(supports),
        )


def check_number_of_types(
    dispatcher: Dispatcher, name: str, kernel: LocalKernel, given: int, where: Where
) -> None:
    """SignatureMismatchError where the user gave a class for each of another number of arguments
    than choose.
    """
    definition = definition_for(dispatcher, name)
    if definition is not None:
        body = definition.text.partition("\n")[0]
        check_types(name, body, kernel, where(), definition.where, given)


def check_types(
    name: str, body: str, kernel: LocalKernel, first: str, second: str, given: int | None = None
) -> None:
    """SignatureMismatchError where the types of a kernel cannot be those of the schema."""
    from ..dispatch.by_type import misfit_of_types
    from ..schema import parse_schema

    reason = misfit_of_types(kernel.types, parse_schema(body), given)
    if reason is not None:
        raise errors.SignatureMismatchError(
            f"the kernel {kernel.label} at {kernel.key.name} does not fit {name}: {reason}\n"
            f"  schema: {body}    ({second})\n  types:  {kernel.types_text}    ({first})\n"
            "Give one class for all arguments that choose, or one for each, in their order.",
            name,
            body,
            kernel.types_text,
        )


def check_kernels_take(
    dispatcher: Dispatcher, name: str, body: str, where: Where, leave: Sequence[object] = ()
) -> None:
    """Before a definition: the kernels that came before it can be called with its arguments, those
    apart that ``leave`` with the definition before. SignatureMismatchError.
    """
    entry = dispatcher.entries.get(name)
    if entry is not None:
        _check_kernels_take(entry, body, where, leave)


def _check_kernels_take(
    entry: OperatorEntry, body: str, where: Where, leave: Sequence[object] = ()
) -> None:
    name = entry.name
    for kernels in entry.kernels.values():
        stay = [each for each in kernels if each not in leave] if leave else kernels
        for kernel in [each for each in stay if each.types]:
            check_types(name, body, kernel, "registered before", where())
        for kernel in [each for each in stay if each.provider]:
            _check_predicate(name, body, kernel, "registered before", where())
        for kernel in [each for each in stay if not each.signature]:
            reason = misfit(body[len(name) :], kernel.function, kernel.with_keyset)
            if reason is not None:
                from .differences import does_not_take

                fact = entry.fact(kernel.seq)
                there = "registered before" if fact is None else fact.where
                raise does_not_take(name, body, kernel, reason, there, where())


def _check_signature(dispatcher: Dispatcher, name: str, kernel: LocalKernel, where: str) -> None:
    """Before a kernel with a signature: it has to fit the schema, if that is there."""
    from ..schema import parse_schema
    from .differences import check_signature

    parse_schema(name + kernel.signature)  # refused whether or not there is a schema
    fact = dispatcher.facts.find(facts.DEF, 0, name)
    if fact is not None:
        schema = parse_schema(fact.body)
        key = kernel.key.name
        check_signature(schema, kernel.signature, key, kernel.label, where, fact.where)


# --- fallbacks ------------------------------------------------------------------------------------


def fall_back(
    dispatcher: Dispatcher, kernel: LocalKernel, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    """What runs at a key for every operator that has no kernel there. (c10: registerFallback)

    InvalidKeyError for a key without a slot.
    """
    table_index(kernel.key)
    return register_or_verify(dispatcher, _wanted_fallback, _register_fallback, _verify_fallback)(
        dispatcher, kernel, where, timeout
    )


def _wanted_fallback(
    dispatcher: Dispatcher, kernel: LocalKernel, where: Where, timeout: float | None
) -> Wanted:
    return facts.FALLBACK, kernel.key, FALLBACK_NAME, None


def _register_fallback(
    dispatcher: Dispatcher, kernel: LocalKernel, where: Where, timeout: float | None
) -> RegistrationHandle:
    fallbacks = dispatcher.fallbacks
    here, label = where(), kernel.label
    fact = fallbacks.add(
        kernel,
        lambda: publish(dispatcher, facts.FALLBACK, kernel.key, FALLBACK_NAME, label, here),
    )
    return RegistrationHandle(
        fact, lambda: fallbacks.remove(kernel, lambda: dispatcher.facts.remove(fact))
    )


def _verify_fallback(
    dispatcher: Dispatcher, kernel: LocalKernel, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    fallbacks = dispatcher.fallbacks
    there = verify(
        dispatcher, facts.FALLBACK, kernel.key, FALLBACK_NAME, kernel.label, where,
        timeout=timeout,
    )  # fmt: skip
    if there is None:
        return None
    fallbacks.keep(kernel)
    return verified(dispatcher, there.what, there, lambda: fallbacks.drop(kernel))

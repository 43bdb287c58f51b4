"""Every way mdispatch says no, one class per meaning.

A message has up to three parts: what happened, where the things in question were registered, and
what to do next. The objects a handler needs are attributes, so that nobody has to read the text.
This module imports nothing of ours: it stands under everything else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import InitVar
    from typing import Any, dataclass_transform
else:

    def dataclass_transform():
        return lambda cls: cls


__all__ = [
    "AgreementError",
    "AgreementScopeError",
    "AgreementTimeoutError",
    "AliasingError",
    "AmbiguousKernelError",
    "AmbiguousTypesError",
    "ArgumentError",
    "AutogradError",
    "BindingError",
    "BoxingError",
    "CallTimeoutError",
    "CannotTravelError",
    "ChoiceError",
    "ChoiceScopeError",
    "ChoiceTimeoutError",
    "ChoicesFileError",
    "ClassMismatchError",
    "ClassNotFoundError",
    "DataDependentError",
    "DisagreementError",
    "DuplicateRegistrationError",
    "EditionError",
    "EngineUnreachableError",
    "FakeKernelMissingError",
    "FeatureMissingError",
    "FencedError",
    "ForeignObjectError",
    "ForeignRegistryError",
    "HandlersDeclinedError",
    "HermeticError",
    "InvalidArgumentError",
    "InvalidKeyError",
    "InvalidNameError",
    "InvariantError",
    "KernelError",
    "KernelOutdatedError",
    "KeyMismatchError",
    "LibraryClosedError",
    "LibraryLoadError",
    "LocalKernelMissingError",
    "RegistrarGoneError",
    "MainNeverArrivedError",
    "MatchError",
    "MdispatchError",
    "MissingInWorkerError",
    "MissingKernelError",
    "MissingRuleError",
    "ModeStackError",
    "NameMismatchError",
    "NestedChoiceError",
    "NotACandidateError",
    "NotCompatibleError",
    "NotRegisteredError",
    "NotSharedError",
    "NotSharedWarning",
    "ObjectGoneError",
    "OpCheckError",
    "OperatorGoneError",
    "OperatorNotFoundError",
    "OwnerBusyError",
    "OwnerGoneError",
    "PriorityMismatchError",
    "ProviderMissingError",
    "ProviderRefusedError",
    "PystubMismatchError",
    "PystubOverrideWarning",
    "RegistryAccessError",
    "RegistryClosedError",
    "RegistryDamagedError",
    "RegistryError",
    "RegistryExistsError",
    "RegistryFormatError",
    "RegistryFullError",
    "RegistryNotFoundError",
    "RegistryOwnerError",
    "ReturnValueError",
    "RollCallError",
    "RoutedError",
    "RoutingCycleError",
    "SchemaMismatchError",
    "SchemaSyntaxError",
    "SignatureMismatchError",
    "SystemCallError",
    "StepGoneError",
    "TooManyEditionsError",
    "TorchExportError",
    "TypeKeysMismatchError",
    "TypesMismatchError",
    "VerificationError",
    "WaitCancelledError",
    "WarmUpError",
    "WrongModuleError",
]


#: A mapping that nobody can change.
_NOTHING: Mapping[str, str] = type(object.__dict__)({})


#: The results of _fields_of, by class.
_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields_of(cls: type) -> tuple[str, ...]:
    """The annotations of an error class and of its bases. Classes of users have none: they have
    constructors of their own.
    """
    found = _FIELDS.get(cls)
    if found is None:
        ours = [base for base in reversed(cls.__mro__) if base.__module__ == _HOME]
        names = dict.fromkeys(name for base in ours for name in base.__annotations__)
        names.pop("message", None)
        found = _FIELDS[cls] = tuple(names)
    return found


@dataclass_transform()
class _Described(Exception):
    """An exception whose attributes are the annotations of its class, and of its bases. The first
    argument is the message. The others give the attributes, in their order or by their names; those
    that are not given keep the default of the class.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given[:1])
        names = _fields_of(type(self))
        fields = dict(zip(names, given[1:], strict=False))
        is_twice = fields.keys() & named.keys()
        fields |= named
        if is_twice or len(given) > len(names) + 1 or not fields.keys() <= set(names):
            raise TypeError(f"{type(self).__name__} takes a message, {', '.join(names)}")
        for name, value in fields.items():
            is_tuple = isinstance(getattr(type(self), name), tuple)
            setattr(self, name, tuple(value) if is_tuple else value)

    def __reduce__(self) -> tuple[object, ...]:
        state = dict(self.__dict__)
        # Python's own classes keep these two outside of __dict__.
        if isinstance(self, OSError) and self.errno is not None:
            state["errno"] = self.errno
        if isinstance(self, ImportError) and self.path is not None:
            state["path"] = self.path
        return _rebuilt, (type(self), self.args, state)


class MdispatchError(_Described):
    """Base of every error that mdispatch raises on purpose.

    All of them can be pickled, with their attributes, because pools raise a worker's error in
    another process.
    """

    message: InitVar[str]


def _rebuilt(
    cls: type[MdispatchError], args: tuple[object, ...], state: dict[str, object]
) -> MdispatchError:
    """An error from its pickle. It does not call the constructors: their arguments differ, and the
    text is there already.
    """
    # cls.__new__ would be that of the first builtin base, and MemoryError's refuses to be called.
    error = OSError.__new__(cls) if issubclass(cls, OSError) else Exception.__new__(cls)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


# --- arguments ------------------------------------------------------------------------------------


class InvalidArgumentError(MdispatchError, ValueError):
    """An argument has a value that the function cannot use. Nothing was changed."""


class InvalidNameError(InvalidArgumentError):
    """A text cannot name an operator, namespace, overload or registry. ``name`` is the given
    value.
    """

    name: object = None


class EditionError(InvalidNameError):
    """The braces in a registry's name or address cannot be replaced: the variable or distribution
    that they name is not there, or its value cannot be an edition. ``name`` is the name or address,
    ``braces`` the part in braces, and ``value`` its value, None where there is none.
    """

    braces: str = ""
    value: str | None = None


class InvalidKeyError(InvalidArgumentError):
    """A dispatch key does not exist, or cannot be used here. ``key`` is the given value,
    ``nearest`` holds the keys that were probably meant.
    """

    key: object = None
    nearest: Sequence[str] = ()


class SchemaSyntaxError(InvalidArgumentError):
    """A schema text does not follow the grammar.

    ``text`` is the schema, ``position`` the offset of the offending character in it, ``reason`` one
    line of words.
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason = reason
        self.text = text
        self.position = position
        start = text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        line = text[start:] if end < 0 else text[start:end]
        # A schema can be very long: show a window of it, with the caret under the location.
        offset = position - start
        left = max(0, offset - 70)
        window = "".join(c if c.isprintable() else "\ufffd" for c in line[left : offset + 30])
        lead = "..." if left else ""
        tail = "..." if offset + 30 < len(line) else ""
        caret = " " * (len(lead) + offset - left) + "^"
        super().__init__(f"{reason}\n    {lead}{window}{tail}\n    {caret}")


class ClassNotFoundError(MdispatchError, LookupError):
    """A class that a schema names never came. ``name`` is its name, ``operator`` that of an
    operator with such a schema.
    """

    def __init__(self, message: str, name: str = "", operator: str = "") -> None:
        self.name = name
        self.operator = operator
        super().__init__(message)


class ArgumentError(MdispatchError, TypeError):
    """The arguments of a call do not fit the operator's schema. ``operator`` is its name,
    ``schema`` its schema.
    """

    operator: str = ""
    schema: object = None


# --- registering ----------------------------------------------------------------------------------


class DuplicateRegistrationError(MdispatchError):
    """Something that may be registered once is there already.

    ``kind``, ``name`` and ``key`` identify it; ``first`` and ``second`` are the locations of both
    registrations.
    """

    kind: str = ""
    name: str = ""
    key: str = ""
    first: str = ""
    second: str = ""


class SignatureMismatchError(MdispatchError):
    """A kernel's own signature does not fit the operator's schema. Nothing was changed.

    ``operator`` is the name, ``schema`` and ``signature`` are the two texts.
    """

    operator: str = ""
    schema: str = ""
    signature: str = ""


class LibraryClosedError(MdispatchError):
    """A library was used after its ``close()``. ``namespace`` is its namespace."""

    namespace: str = ""


class FeatureMissingError(MdispatchError, ImportError):
    """This installation of mdispatch lacks the folder of a feature. ``feature`` is its package."""

    feature: str = ""


class LibraryLoadError(MdispatchError, ImportError):
    """A shared library with kernels in C cannot be loaded, or refuses to be. Nothing was changed.
    ``path`` is the library's.
    """

    path: str = ""


# --- verifying: the errors of workers -------------------------------------------------------------


class VerificationError(MdispatchError):
    """A registration of this interpreter differs from that of the main interpreter.

    ``kind`` is "library", "def", "impl", "fallback", "class", "type" or "torch"; ``name`` the
    operator, namespace, class or type; ``key`` the dispatch key's name or ""; ``here`` and
    ``there`` the locations (``file:line``) in this interpreter and in the main one.
    """

    kind: str = ""
    name: str = ""
    key: str = ""
    here: str = ""
    there: str = ""
    waited: float = 0.0
    nearest: Sequence[str] = ()


class SchemaMismatchError(VerificationError):
    """The main interpreter defined the operator with another schema.

    ``schema_here`` and ``schema_there`` are the two canonical texts.
    """

    schema_here: str = ""
    schema_there: str = ""


class ClassMismatchError(VerificationError):
    """The main interpreter registered the class with other methods.

    ``methods_here`` and ``methods_there`` are the canonical schemas of the methods.
    """

    methods_here: Sequence[str] = ()
    methods_there: Sequence[str] = ()


class PystubMismatchError(VerificationError):
    """The main interpreter named another module for the operator with set_python_module.

    ``module_here`` and ``module_there`` are the two names.
    """

    module_here: str = ""
    module_there: str = ""


class NotRegisteredError(VerificationError, TimeoutError):
    """The main interpreter did not register this within the timeout. ``waited`` is the time in
    seconds.
    """


class MainNeverArrivedError(NotRegisteredError):
    """The main interpreter registered nothing at all in this namespace, so it did not import the
    module (yet); or it has no DEF library of the namespace, but FRAGMENT libraries.
    """


class NameMismatchError(NotRegisteredError):
    """The namespace is there, the name is not: a typo, or another version. ``nearest`` holds the
    closest names.
    """


class TypesMismatchError(NotRegisteredError):
    """The operator has kernels at this key, but none for just these types.

    ``types_here`` are the types of this interpreter's kernel, by name, and ``types_there`` those of
    each kernel that is there; "" is one without types.
    """

    types_here: str = ""
    types_there: Sequence[str] = ()


class ProviderMissingError(NotRegisteredError):
    """A provider is available in this interpreter or in the main one, and not in the other. Or
    this one waits for a kernel, and the main one has only providers there that are not available.

    ``provider`` is its name, of several that of the newest; ``reason`` says why it is not
    available, in words.
    """

    provider: str = ""
    reason: str = ""


class PriorityMismatchError(NotRegisteredError):
    """This interpreter and the main one do not put providers in the same sequence: the ``order``
    of a provider differs, or a priority that they have set.

    ``priority_here`` and ``priority_there`` are the two values of ``order``, or the two
    priorities; "" is none.
    """

    priority_here: str = ""
    priority_there: str = ""


class KeyMismatchError(NotRegisteredError):
    """The operator is there, but has no kernel at exactly this key. ``keys_there`` names the keys
    that have one.
    """

    keys_there: Sequence[str] = ()


class TypeKeysMismatchError(VerificationError):
    """Another member of the registry has registered the type with other keys, and was first.
    ``keys_here`` and ``keys_there`` are the names of the keys, ``there`` is that member's location.
    """

    keys_here: Sequence[str] = ()
    keys_there: Sequence[str] = ()


class NotCompatibleError(VerificationError):
    """In a registry with ``match="compatible"``: an operator of this interpreter, with its
    overloads and kernels, goes together with the registry's in neither direction. ``changes`` are
    the breaking differences from there to here, in words.
    """

    changes: Sequence[str] = ()


class MissingInWorkerError(VerificationError):
    """The main interpreter registered this from a module that did not register it here."""


class WarmUpError(VerificationError):
    """A warm-up found differences. ``differences`` holds all of them, each an exception of its own
    class.
    """

    kind: str = "warm_up"
    differences: Sequence[BaseException] = ()


class WaitCancelledError(MdispatchError):
    """A wait ended because its interpreter is shutting down, or its task was cancelled."""


# --- calling --------------------------------------------------------------------------------------


class OperatorNotFoundError(MdispatchError, AttributeError):
    """No operator, overload or namespace has this name. ``nearest`` holds the closest names that
    exist.
    """

    operator: str = ""
    nearest: Sequence[str] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.obj = None  # or Python would add a suggestion of its own to the message


class OperatorGoneError(MdispatchError, RuntimeError):
    """An operator object outlived its operator: the last registration was closed. ``operator`` is
    its name.
    """

    operator: str = ""


class ReturnValueError(MdispatchError, TypeError):
    """A kernel returned something else than its schema says. ``operator`` is the operator's name,
    ``schema`` its schema.
    """

    operator: str = ""
    schema: object = None


class MissingKernelError(MdispatchError, NotImplementedError):
    """No kernel serves this key set. ``operator`` is the operator's name, ``key`` the highest key
    of the set, ``available`` names the keys that have kernels.
    """

    operator: str = ""
    key: str = ""
    available: Sequence[str] = ()


class AmbiguousKernelError(MissingKernelError):
    """The operator has both a composite kernel and a kernel of a backend behind AutogradOther:
    neither may be chosen.
    """


class AmbiguousTypesError(AmbiguousKernelError):
    """Several kernels of a key fit the same types, and none of them is the most specific.

    ``types`` are the classes that each is for, by name, and ``locations`` where each was
    registered.
    """

    types: Sequence[str] = ()
    locations: Sequence[str] = ()


class ProviderRefusedError(MissingKernelError):
    """No provider of the key takes this call, and no other kernel may.

    ``reasons`` says of each provider that was asked, by name, why not.
    """

    reasons: Mapping[str, str] = _NOTHING


class LocalKernelMissingError(MissingKernelError):
    """The registry has a kernel, but this interpreter has no callable for it: the kernel's module
    was not imported here.

    ``where`` is the location at which the main interpreter registered it, ``module`` the module to
    import, if that is known.
    """

    where: str = ""
    module: str = ""


class KernelOutdatedError(LocalKernelMissingError):
    """This interpreter has a kernel, but has verified it against another definition of the operator
    than the one in effect.

    ``schema_here`` and ``schema_there`` are the two canonical texts, ``here`` and ``there`` the
    locations where the two were defined.
    """

    schema_here: str = ""
    schema_there: str = ""
    here: str = ""
    there: str = ""


class FakeKernelMissingError(MissingKernelError):
    """An operator was called with meta values and has no fake kernel here. ``module`` is the module
    that its definition names (set_python_module), ``context`` the text given beside the module.
    """

    module: str = ""
    context: str = ""


class KernelError(MdispatchError, RuntimeError):
    """A kernel in C reports a failure. ``operator`` is the operator that was called, ``kernel`` the
    kernel's label, ``code`` the kernel's own number for the failure.
    """

    operator: str = ""
    kernel: str = ""
    code: int = 0


class BoxingError(MdispatchError, TypeError):
    """A value cannot be passed to a kernel in C, or such a kernel returned something that is no
    value. ``operator`` is the operator that was called, ``kernel`` the kernel's label.
    """

    operator: str = ""
    kernel: str = ""


class WrongModuleError(MdispatchError, RuntimeError):
    """A module registered a fake kernel, and the operator's definition names another module.

    ``operator`` is its name, ``expected`` and ``found`` are the two modules.
    """

    operator: str = ""
    expected: str = ""
    found: str = ""


class MissingRuleError(MissingKernelError):
    """A higher-order operator has no rule for a mode or type in a call. ``handler`` is the name of
    that mode or type.
    """

    handler: str = ""


class HandlersDeclinedError(MdispatchError, TypeError):
    """Every mode and type that was asked returned NotImplemented. ``operator`` is the operator's
    name, ``handlers`` describes those that were asked, in order.
    """

    operator: str = ""
    handlers: Sequence[str] = ()


class ModeStackError(MdispatchError, RuntimeError):
    """A mode cannot be pushed or popped as asked, or a guard that isolates is to be ended by
    somebody else than began it. Nothing was changed.
    """


class ForeignObjectError(MdispatchError, RuntimeError):
    """An object was to be used in an interpreter that is not its home.

    ``home`` and ``here`` name the two interpreters, ``operator`` the operator whose call was
    refused, or "".
    """

    home: str = ""
    here: str = ""
    operator: str = ""


class ObjectGoneError(ForeignObjectError):
    """The interpreter that an object belonged to has ended, or gave the object up."""


# --- calls of kernels that run elsewhere ----------------------------------------------------------


class HermeticError(MdispatchError, RuntimeError):
    """A handle was to be made while a :func:`mdispatch.hermetic` guard is open, which keeps nothing
    for longer than that.
    """


class RoutedError(MdispatchError):
    """A call that was routed to another interpreter has failed: there, or on the way.

    What the kernel raised comes as a subclass of this class *and* of the exception's own class,
    where this interpreter has imported that class; its traceback there is a note. ``operator`` is
    the operator that was called, ``home`` and ``pid`` say where the kernel is, ``told`` is
    ``module.name`` of what was raised there, or "".
    """

    operator: str = ""
    home: str = ""
    pid: int = 0
    told: str = ""

    @staticmethod
    def of(cls: type[Exception]) -> type[Exception]:
        """The class for what such a kernel raised: a RoutedError and a ``cls``."""
        known = _ROUTED.get(cls)
        if known is None:
            bases = (cls,) if issubclass(cls, RoutedError) else (RoutedError, cls)
            body = {"__module__": cls.__module__, "__init__": cls.__init__, "_raised": cls}
            try:
                known = type(cls.__name__, bases, body)
            except TypeError:  # a class that no other can be derived from with this one
                known = RoutedError
            _ROUTED[cls] = known
        return known

    def __reduce__(self) -> tuple[object, ...]:
        reduced: Any = super().__reduce__()
        raised = getattr(type(self), "_raised", None)
        return reduced if raised is None else (_routed, (raised, *reduced[1][1:]))


#: The classes that RoutedError.of() has made.
_ROUTED: dict[type[Exception], type[Exception]] = {}


def _routed(
    raised: type[Exception], args: tuple[object, ...], state: dict[str, object]
) -> BaseException:
    cls: Any = RoutedError.of(raised)
    error = cls.__new__(cls, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error  # type: ignore[no-any-return]


class CannotTravelError(RoutedError, TypeError):
    """An argument or a result of a routed call is nothing that can be passed to another
    interpreter. ``value_type`` names its type. An argument was refused before the kernel was
    called; a result after it has run.
    """

    value_type: str = ""


class OwnerGoneError(RoutedError):
    """The interpreter that serves a kernel has ended, or serves it no more. ``started`` says
    whether the kernel was called: never in this process; in another one, True where the owner had
    taken the call. None where that cannot be known.
    """

    started: bool | None = False


class OwnerBusyError(RoutedError):
    """The process that serves a kernel has as many calls of other processes as it takes, and
    ``queue`` more wait, which is all that may. The kernel was not called.
    """

    queue: int = 0


class CallTimeoutError(RoutedError, TimeoutError):
    """A routed call was not answered within its timeout. ``started`` says whether the kernel was
    called: None where that cannot be known. ``timeout`` is in seconds.
    """

    started: bool | None = None
    timeout: float = 0.0


class RoutingCycleError(RoutedError, RecursionError):
    """Routed calls lead to routed calls without end. The kernel was not called. ``chain`` has the
    numbers of the interpreters on the way, the outermost first; where calls lead to other
    processes, their homes in words.
    """

    chain: Sequence[int | str] = ()


class AutogradError(MdispatchError, RuntimeError):
    """A gradient cannot be computed as asked. ``operator`` is the operator's name, or ""."""

    operator: str = ""


class TorchExportError(MdispatchError, RuntimeError):
    """An operator cannot be an operator of PyTorch. ``operator`` is its name, ``reason`` what
    PyTorch said.
    """

    operator: str = ""
    reason: str = ""


class AliasingError(MdispatchError, RuntimeError):
    """A kernel returned one of its arguments, or one object twice, and its schema does not say so.
    ``operator`` is the operator's name.
    """

    operator: str = ""


class DataDependentError(MdispatchError, RuntimeError):
    """A size that depends on data was used as a number, where there are no data."""


class OpCheckError(MdispatchError, AssertionError):
    """opcheck found a fault. ``operator`` is the operator's name, ``test`` the test's."""

    operator: str = ""
    test: str = ""


class PystubOverrideWarning(UserWarning):
    """An operator's Python module was named a second time, differently; the later name counts."""


# --- choices --------------------------------------------------------------------------------------


class ChoiceError(MdispatchError):
    """Something about a choice of all members. ``operator`` and ``profile`` say which."""

    operator: str = ""
    profile: object = None


class NotACandidateError(ChoiceError, ValueError):
    """What the members have chosen is no candidate of this one; or ``decide`` returned none, and
    nothing was chosen.

    ``choice`` is what was chosen, ``candidates`` and ``candidates_there`` are those of this
    interpreter and those it was chosen from, ``here`` and ``there`` the two locations.
    """

    choice: object = None
    candidates: Sequence[object] = ()
    candidates_there: Sequence[object] = ()
    here: str = ""
    there: str = ""


class ChoiceScopeError(ChoiceError, RuntimeError):
    """The registry is of several hosts, on which another choice could be made, and it was not said
    that this host's own is meant. Nothing was chosen, or loaded. ``registry`` is its name or
    address, ``here`` the location that asked.
    """

    registry: str = ""
    here: str = ""


class ChoiceTimeoutError(ChoiceError, TimeoutError):
    """Nobody has chosen within the timeout. ``waited`` is the time in seconds, ``pid`` and
    ``interpreter`` are of the member that decides; pid 0 when none did.
    """

    waited: float = 0.0
    pid: int = 0
    interpreter: int = 0


class NestedChoiceError(ChoiceError, RuntimeError):
    """``decide`` asks for the very choice that it is to make."""


class ChoicesFileError(ChoiceError, ValueError):
    """The choices in a file do not fit, or it is no such file. Nothing was changed.

    ``path`` is the file, ``here`` and ``there`` are what differs: candidates, environment or
    operator.
    """

    path: str = ""
    here: object = None
    there: object = None


# --- agreements -----------------------------------------------------------------------------------


class AgreementError(MdispatchError):
    """Something about an agreement of all members on a value. ``name`` is that of the agreement."""

    name: str = ""


class DisagreementError(AgreementError, ValueError):
    """Another member has asked for the agreement with another value, and lives.

    ``fields`` are the parts that differ, each with its ``path`` and the values ``here`` and
    ``there`` in words. ``here`` and ``there`` are the locations that asked; ``pid``,
    ``interpreter`` and ``rank`` (None where no launcher tells) are of the other member. ``step`` is
    that of a running job, None elsewhere.
    """

    fields: Sequence[Any] = ()
    here: str = ""
    there: str = ""
    pid: int = 0
    interpreter: int = 0
    rank: int | None = None
    step: int | None = None


class StepGoneError(AgreementError, LookupError):
    """The step of a running job has left the window, so nobody can compare its value.

    ``step`` is its number, ``window`` the number of steps that are there.
    """

    step: int = 0
    window: int = 0


class AgreementTimeoutError(AgreementError, TimeoutError):
    """Fewer than ``among`` members have asked for the agreement within the timeout.

    ``came`` are those that have, as (pid, interpreter); ``absent`` the ranks that have not, as far
    as a launcher tells them. ``waited`` is the time in seconds.
    """

    among: int = 0
    came: Sequence[tuple[int, int]] = ()
    absent: Sequence[int] = ()
    waited: float = 0.0


class RollCallError(AgreementError, RuntimeError):
    """A roll call has found that not all members have the same, or that not all came.

    ``verdict`` is that of all its members (mdispatch.choices.verdicts.Verdict), ``here`` the
    location that called. ``differs``: this member is one of those that differ. ``late`` is None for
    a member that the verdict counts; for one that came after it, the time in seconds.
    """

    verdict: Any = None
    here: str = ""
    differs: bool = False
    late: float | None = None


class AgreementScopeError(AgreementError, RuntimeError):
    """The registry is of several hosts, and an agreement is of one: it was not said that this host
    alone is meant. Nothing was compared. ``registry`` is its name or address, ``here`` the location
    that asked.
    """

    registry: str = ""
    here: str = ""


# --- the registry itself --------------------------------------------------------------------------


class RegistryError(MdispatchError):
    """Something about a whole registry. ``registry`` is its name or address."""

    registry: str = ""


class RegistryClosedError(RegistryError):
    """The registry was closed, here or by its registrar."""


class RegistrarGoneError(RegistryError):
    """The registrar died or left; nothing will be registered any more. ``pid`` was its
    process.
    """

    pid: int = 0


class RegistryNotFoundError(RegistryError, FileNotFoundError):
    """No registry of this name or address."""


class RegistryExistsError(RegistryError, FileExistsError):
    """A registry of this name is there already."""


class RegistryOwnerError(RegistryError, PermissionError):
    """The registry, or the folder of its name, belongs to another user or lets others in."""


class RegistryAccessError(RegistryError, OSError):
    """The registry's name belongs to something that is no regular file (a directory, a FIFO, a
    symbolic link) and cannot be mapped, or MDISPATCH_FOLDER names no folder, or this process has
    closed the registry's descriptor.
    """


class RegistryFormatError(RegistryError):
    """The file is no registry, or one of another version or machine word.

    ``formats`` are the format of a registry of another version and the one that this mdispatch
    uses; None in all other cases.
    """

    formats: tuple[int, int] | None = None


class MatchError(RegistryError):
    """Members of the registry have to be the same, and this one asks for ``match="compatible"``, or
    the reverse. The member that makes a registry decides. ``wanted`` and ``there`` are the two
    words.
    """

    wanted: str = ""
    there: str = ""


class ForeignRegistryError(RegistryError):
    """The registry is of another host, boot or PID namespace (container), where process and thread
    ids mean others: nobody can use it from here. That it was made there does not say that it ended.

    ``registry`` is its name or address; ``there`` and ``here`` are the boot and the PID namespace
    in which it was made and those of this process, as ``"BOOT:NUMBER"``. BOOT is what
    /proc/sys/kernel/random/boot_id has, without hyphens, NUMBER the inode of /proc/self/ns/pid.
    """

    here: str = ""
    there: str = ""


class RegistryDamagedError(RegistryError):
    """The registry's bytes contradict each other. ``report`` lists the broken invariants, one per
    line.
    """

    report: str = ""


class NotSharedError(RegistryError):
    """What was asked for needs a registry that interpreters and processes share, and here each
    registry belongs to one process: this is not Linux with the GNU C library, or
    ``MDISPATCH_BINDING=none``, or the registry is a ``Registry.local()``. Or all hosts of a cluster
    would have to share it, and it does not go to other hosts.
    """


class NotSharedWarning(RuntimeWarning):
    """A child process registers for itself, in a registry that it does not share with its parent:
    nothing compares what the two register. Given once, at the first registration. Or a process asks
    for an agreement where registries cannot be shared. Given once, too.
    """


class RegistryFullError(RegistryError, MemoryError):
    """The registry's capacity (bytes, members or processes) is used up. Nothing was changed."""


class TooManyEditionsError(RegistryError):
    """As many other editions of the registry's name are alive as there may be at once (16), so it
    was not made.
    """


class SystemCallError(RegistryError, OSError):
    """The operating system refused something the registry needs. ``errno`` is its code."""

    def __init__(self, message: str, registry: str = "", *, errno: int | None = None) -> None:
        super().__init__(message, registry)
        if errno is not None:
            self.errno = errno


class EngineUnreachableError(RegistryError, ConnectionError):
    """The engine of a cluster did not answer, so what was asked for did not come or was not stored.

    ``engine`` is its address without a password, ``since`` says when, ``seq`` is the last sequence
    of its log that is known here.
    """

    engine: str = ""
    since: str = ""
    seq: int = 0


class FencedError(RegistryError):
    """Another process leads the cluster now; nothing was registered. ``leader`` is that process,
    ``epoch`` the one in which this process has led.
    """

    leader: str = ""
    epoch: int = 0


class InvariantError(MdispatchError):
    """Derived state (a dispatch table, a mask) differs from what the registrations give: a fault
    of mdispatch. ``report`` lists the broken invariants, one per line.
    """

    report: str = ""


class BindingError(MdispatchError, ImportError):
    """The native part cannot serve in this interpreter as asked (MDISPATCH_BINDING, ABI number)."""


# Tracebacks and pickles name the classes as users import them.
_HOME = "mdispatch.errors"
for _name in __all__:
    globals()[_name].__module__ = _HOME

"""The registration of a typed class, and how it is registered or verified.

across/classes.py does so for classes of Python, load_library.py for those of libraries in C
(md_class).
"""

from __future__ import annotations

from ..errors import ClassMismatchError
from ..registry.register import RegistrationHandle, publish, verified
from ..registry.roles import register_or_verify, who
from ..registry.verify import verify
from ..schema import parse_schema
from .kind import CLASS, KIND
from .methods import methods_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..registry.roles import Wanted

    Where = Callable[[], str]

#: Lines of the text of a CLASS registration: the class travels by value; its objects and the
#: kernels of its methods are in C (native/core/contract/library.c).
CONSTANT = "it is a constant"
_IN_C = "it is made in C"


def class_text(schemas: Iterable[str], how: str = "") -> str:
    """The text of a CLASS registration: the canonical schemas of the methods, sorted, one on each
    line, and what else there is to say about the class.
    """
    lines = sorted(str(parse_schema(each)) for each in schemas)
    return "\n".join([*lines, how] if how else lines)


def declare_class(
    dispatcher: Dispatcher, name: str, text: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    """Registers the registration of a class, or compares with it.

    Raises DuplicateRegistrationError, RegistryFullError; in a worker ClassMismatchError,
    NotRegisteredError.
    """
    return register_or_verify(dispatcher, _wanted, _register, _verify)(
        dispatcher, name, text, where, timeout
    )


def declare_c_class(
    dispatcher: Dispatcher, name: str, text: str, where: Where, timeout: float | None
) -> tuple[str, RegistrationHandle]:
    """The same for a class of a library in C: its name in schemas, and what ends it here. ``text``
    is that of its registration, with the schemas as they were written, which may raise
    SchemaSyntaxError.
    """
    known = name.replace("::", ".")
    schemas = text.split("\n")[:-1]
    handle = declare_class(dispatcher, name, class_text(schemas, _IN_C), where, timeout)
    methods = tuple(each.partition("(")[0].rpartition(".")[2] for each in schemas)
    methods_of[known] = (dispatcher.holder.ops.find, methods)

    def end() -> None:
        methods_of.pop(known, None)
        if handle is not None:
            handle.close()

    return known, RegistrationHandle(None if handle is None else handle.registration, end)


def _wanted(
    dispatcher: Dispatcher, name: str, text: str, where: Where, timeout: float | None
) -> Wanted:
    return CLASS, 0, name, None


def _register(
    dispatcher: Dispatcher, name: str, text: str, where: Where, timeout: float | None
) -> RegistrationHandle:
    fact = publish(dispatcher, CLASS, 0, name, text, where())
    return RegistrationHandle(fact, lambda: dispatcher.facts.remove(fact))


def _verify(
    dispatcher: Dispatcher, name: str, text: str, where: Where, timeout: float | None
) -> RegistrationHandle | None:
    def compare(fact: Registration) -> None:
        if fact.text != text:
            raise _differs(dispatcher, fact, text, where())

    there = verify(dispatcher, CLASS, 0, name, text, where, timeout=timeout, accept=compare)
    return None if there is None else verified(dispatcher, there.what, there)


def _differs(
    dispatcher: Dispatcher, fact: Registration, text: str, here: str
) -> ClassMismatchError:
    from ..registry.versions import remedy  # loaded only for an error

    mine, there = set(text.split("\n")), set(fact.text.split("\n"))
    how = "has other methods here than in"
    if CONSTANT in mine ^ there:
        how = f"is {'a' if CONSTANT in mine else 'no'} constant here, unlike in"
    if _IN_C in mine ^ there:
        how = f"is made in {'C' if _IN_C in mine else 'Python'} here, unlike in"
    from ..registry.differences import beside, process_of

    name, here = fact.name.replace("::", "."), beside(fact, here)
    lines = [f"  only here:  {each}" for each in sorted(mine - there) if each]
    lines += [f"  only there: {each}" for each in sorted(there - mine) if each]
    return ClassMismatchError(
        f"class {name} {how} {who(dispatcher.facts)} ({process_of(fact)})\n"
        + "\n".join(lines)
        + f"\n  here:  {here}\n  there: {fact.where}\n"
        f"{remedy(here, fact.where, fact.pid)}",
        kind=KIND.name,
        name=name,
        here=here,
        there=fact.where,
        methods_here=_methods_in(text),
        methods_there=_methods_in(fact.text),
    )


def _methods_in(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split("\n") if each not in ("", CONSTANT, _IN_C))

"""``mdispatch.torch.watch``: what torch.library registers in this interpreter, as registrations.

Note [PyTorch's tables are what is true]
The registrations of an operator are made from what PyTorch's dispatcher has of it: a registration
for its definition, with schema and tags, and one for each key that has a kernel. The parts of a
``custom_op`` that the dispatcher does not see are read from its object. The hooks below only say
when to look at an operator again, and which line is the reason. So it makes no difference whether
something was registered before or after a watch began.

A look takes longer than a registration, so a hook of :class:`torch.library.Library` does without
one where it knows the look's result: for the definition of a new operator without tags that users'
code makes itself, and for a kernel of an operator whose definition is known, at a key that
PyTorch's tables have had under this very name.

What a library in C++ registers goes by the hooks of torch.library. It is looked for after each call
of ``torch.ops.load_library`` and each import of an extension module; these hooks also know which
library it is. A library that was loaded in another way is found when another member waits for one
of its names (torch/asked.py), and by the next look at everything, as a warm-up takes one. Looks in
between take only what comes from C++. A hook may be about to hear of anything else, and knows its
line.

What PyTorch has of its own is one registration, its version. A kernel that others register for one
of PyTorch's own operators is a registration too, where its place in the tables, or a hook, shows
that it is theirs.

Locking: one lock for all watches, held while an operator is looked at, and so while its
registrations are verified: threads that register wait for each other, at most for as long as
verifications may take. It is taken before the locks of a registry. A library that the garbage
collector takes ends at any point of any thread, so that takes no lock: it notes the names, and the
next look goes over them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from weakref import WeakKeyDictionary, finalize

from ..errors import RegistryFullError, VerificationError
from ..errors.locations import (
    Location,
    caller,
    location_of_object,
    name_in,
    printable,
    registrants_location,
)
from ..errors.unraisable import report
from ..facts import Handle
from ..facts.caller_lines import CallerLines
from ..facts.shared import SharedRegistry
from ..facts.waits import check_timeout
from ..forking import in_child, new_lock
from ..registry import given_or_default
from ..registry.roles import elects, is_main, leave_queue, queue_up, registers
from ..registry.verify import DEFAULT_TIMEOUT
from .asked import Asked
from .kind import TORCH_SPACE, torch_name, torch_parts
from .registrations import hold
from .watches import Watches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any, TypeAlias

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration
    from ..registry import Registry
    from ..registry.register import RegistrationHandle

    #: What a hook hears of: the operator, which part of it was registered now, and whether that has
    #: more than a schema.
    Heard: TypeAlias = tuple[str, str, bool]
    #: The caller of PyTorch: whether it is code outside of PyTorch, whether that code called the
    #: hook's method itself, and the line ("" where there is none).
    User: TypeAlias = tuple[bool, bool, str]
    #: The parts of an operator, each with its text and its location ("" if that is not known).
    Parts: TypeAlias = dict[str, tuple[str, str]]

__all__ = ["Watch", "watch"]

#: The namespaces of PyTorch's own operators. One that is lacking here, since a later version has
#: it, costs some registrations more, which are the same for all members.
_PYTORCHS = {
    *("_", "aten", "cuda", "cudnn", "debugprims", "debug_mode_ops", "dist", "export", "flex_lib"),
    *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"),
    *("fsdp", "inductor", "inductor_prims", "_inductor_test", "mkl", "mkldnn", "mkldnn_prepacked"),
    *("mtia", "_native", "nvprims", "onednn", "onnx", "onnx_symbolic", "prim", "prims", "profiler"),
    *("quantization", "quantized", "_quantized", "quantized_decomposed", "rngprims", "rpc"),
    *("sparse", "static_runtime", "streams", "symm_mem", "_test", "torch", "xpu"),
    *("_native_aot", "coor"),
}
#: Modules whose frames are those of an import.
_IMPORTS = ("importlib._bootstrap", "importlib._bootstrap_external")
#: Modules that stand between PyTorch's functions and those who call them.
_BETWEEN = ("functools", "typing_extensions", "warnings")

#: PyTorch's modules that keep libraries in which PyTorch registers kernels for its own operators.
#: One that is lacking here costs a first look more time.
_WITH_LIBRARIES = (
    *("torch._meta_registrations", "torch._refs.linalg", "torch._prims", "torch.export.custom_ops"),
    *("torch.distributed._meta_registrations",),
)
_AT = "registered at "
#: Parts of a custom_op that the dispatcher does not see, and the attributes with their functions.
_OF_CUSTOM_OP = (("register_fake", "_abstract_fn"), ("register_autograd", "_backward_fn"))


def watch(*, registry: Registry | None = None, timeout: float | None = DEFAULT_TIMEOUT) -> Watch:
    """Makes what torch.library registers in this interpreter registrations of the registry:
    definitions, kernels, fake kernels and formulas, whether they are there or come later, by
    ``Library``, ``custom_op``, ``define``, ``impl``, ``register_kernel`` and so on, or from C++.

    The main interpreter records them with their locations. Every other member verifies its own: the
    line that registers raises the difference, once PyTorch has made the registration, and a warm-up
    (:func:`mdispatch.warm_up`) tells all of them, and what is missing. In a cluster the leader is
    the one that records, and members of all hosts verify. ``timeout`` is how many seconds each
    verification waits for the main interpreter, None for ever.

    Operators of mdispatch that were exported are left out. A registry has one watch in an
    interpreter: a second call returns the first. It lasts until it is closed (``close``, ``with``),
    and its registrations with it.

    Imports torch. Raises ImportError; what a :class:`mdispatch.Library` raises in a worker;
    RegistryFullError.
    """
    import_module("torch.library")
    timeout = check_timeout(timeout)
    dispatcher = given_or_default(registry).dispatcher
    with _lock:
        there = dispatcher.of(Watches).watching
        if isinstance(there, Watching):
            return there.handle
        made = Watching(dispatcher, timeout)
        try:
            made.look()
        except BaseException:
            made.close()
            raise
        return made.handle


class Watch(Handle):
    """A watch of PyTorch's registrations: see :func:`watch`."""

    __slots__ = ("_watching",)

    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def close(self) -> None:
        """Ends the watch and the registrations that it has registered. Idempotent."""
        self._watching.close()

    def __repr__(self) -> str:
        return f"<mdispatch.torch.Watch of {self._watching}>"


class Watching:
    """What a watch does. ``handle`` is what its user has."""

    def __init__(self, dispatcher: Dispatcher, timeout: float | None) -> None:
        torch: Any = sys.modules["torch"]
        self.handle = Watch(self)
        self._torch = torch
        #: By operator: objects of custom_op, and the fakes and rules of each operator.
        self._custom_ops = _table("torch._library.custom_ops", "OPDEFS")
        self._with_rules = _table("torch._library.simple_registry", "singleton", "_data")
        self._folder = os.path.dirname(torch.__file__) + os.sep
        self._dispatcher = dispatcher
        self._timeout = timeout
        self._location = registrants_location()
        #: By operator, what has a registration here, verified or not: under the lock.
        self._known: dict[str, dict[str, _Part]] = {}
        #: Names of registrations that have ended, with their texts and locations.
        self._ended: dict[str, tuple[str, str]] = {}
        #: Operators of PyTorch with kernels of others, and these kernels, as hooks told.
        self._others: dict[str, set[str]] = {}
        #: The operators of each torch.library.Library, and those of libraries that have gone.
        self._of_library: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        self._gone: deque[set[str]] = deque()
        #: The operators that PyTorch had at the last look for libraries, or at everything.
        self._seen: frozenset[str] = frozenset()
        #: The names of keys at which PyTorch's tables have had a kernel.
        self._keys: set[str] = set()
        #: Hears of those who wait, if this member may have to register: under the lock.
        self.asked: Asked | None = None
        self._was_full = False  # the registry, at a look for others; it was told
        queue_up(dispatcher, TORCH_SPACE, self._location)
        dispatcher.of(Watches).watching = self
        _open.append(self)
        _install(torch)

    def close(self) -> None:
        with _lock:
            if self.registry_has_ended():
                for operator, parts in list(self._known.items()):
                    for part in list(parts):
                        self._end(operator, parts, part)
                self._known.clear()
                leave_queue(self._dispatcher, TORCH_SPACE)

    def registry_has_ended(self) -> bool:
        """Stops listening. Returns whether it was not closed before."""
        with _lock:
            if self not in _open:
                return False
            _open.remove(self)
            self._dispatcher.of(Watches).watching = None
            if not _open:
                _uninstall()
            asked, self.asked = self.asked, None
        if asked is not None:
            asked.end()
        return True

    def look(self) -> None:
        """Looks at everything that PyTorch has now."""
        names = self._torch._C._dispatch_get_all_op_names()
        with _lock:
            if self not in _open:
                return
            self._attend()
            self._seen = frozenset(names)
            first = self._overridden() if not self._known else ()
            self._take("", {"version": (str(self._torch.__version__), "")}, self._location)
            for operator in first:
                self._look_at(operator)
            news = (name for name in names if name.partition("::")[0] not in _PYTORCHS)
            for operator in dict.fromkeys(filter(None, (*self._known, *news))):
                self._look_at(operator)

    def look_at_libraries(
        self, asked: Iterable[str] = (), library: str = "", module: str = "", again: bool = False
    ) -> None:
        """Looks for what libraries in C++ have registered: operators that are new, those that
        others have ``asked`` for and, with ``again``, all. ``library`` is the one that was loaded
        just now, by the ``module``.
        """
        names = frozenset(self._torch._C._dispatch_get_all_op_names())
        with _lock:
            if self not in _open:
                return
            operators = {*asked, *(each for each in names - self._seen if each not in self._known)}
            if library:  # it is loaded, and so complete; others may be half way
                self._seen = names
            if again or (library and operators):
                operators.update(self._known)
            for operator in sorted(operators):
                if not operator or operator.partition("::")[0] in _PYTORCHS:
                    continue
                found = self._read(operator, of_libraries=True)
                self._add(operator, found, library=library, module=module)

    def _look_for_others(self, names: set[str]) -> None:
        """In the thread that others ask: looks for these registrations, and for what else is
        new."""
        if not registers(self._dispatcher, TORCH_SPACE):
            return
        # What an earlier registrar has left may differ here: the next look tells it.
        with suppress(VerificationError):
            try:
                self.look_at_libraries(torch_parts(name)[0] for name in names)
            except RegistryFullError as error:  # looks go on: others may end registrations
                if not self._was_full:
                    report(error, "Exception ignored in a look for what others wait for", self)
                self._was_full = True

    def _attend(self) -> None:
        """Begins to hear of those who wait, where that is not done yet. Under the lock. (The child
        of a fork has no thread, and does so with its next registration.)
        """
        if self.asked is not None or not isinstance(self._dispatcher.facts, SharedRegistry):
            return
        if is_main(self._dispatcher) or elects(self._dispatcher):
            self.asked = Asked(self._dispatcher.facts, self._look_for_others)

    def has(self, name: str) -> bool:
        """Whether there is a registration of this name here: one that was registered, or
        verified."""
        operator, part = torch_parts(name)
        there = self._known.get(operator, {}).get(part)
        return there is not None and there.handle is not None

    def covers(self, fact: Registration) -> bool:
        """Whether a registration that no Python file has registered is of a namespace that is here,
        too."""
        space = f"{torch_parts(fact.name)[0].partition('::')[0]}::"
        is_python = fact.where.rpartition(":")[0].endswith(".py")
        return not is_python and any(name.startswith(space) for name in list(self._known))

    def __str__(self) -> str:
        return f"{self._dispatcher.holder!r}{'' if self in _open else ' (closed)'}"

    # --- what the hooks call

    def heard(self, heard: Iterable[Heard], library: object, user: User) -> None:
        """A call of PyTorch has registered something, or ended it."""
        with _lock:
            self._attend()
            while True:
                if not self._gone:
                    break
                for operator in self._gone.popleft():
                    self._look_at(operator)
            for each in heard:
                self._hear(each, library, user)

    def _hear(self, heard: Heard, library: object, user: User) -> None:
        (operator, part, has_more), (is_theirs, is_direct, where) = heard, user
        if operator.partition("::")[0] in _PYTORCHS:
            if is_theirs and part:
                self._others.setdefault(operator, set()).add(part)
            if operator not in self._others and operator not in self._known:
                return
        known = self._known.get(operator)
        # Where another thread has ended the library since, the tables may lack this. If a library
        # ends after this question, its hook comes after this one.
        is_open = getattr(library, "m", None) is not None
        if is_open and known is None and is_direct and not part and not has_more:
            self._take_definition(operator, where)
        elif is_open and known is not None and "" in known and part in self._keys and where:
            self._take_kernel(operator, known, part, where)
        else:
            self._look_at(operator, part, where)
        if library is not None:
            self._follow(library).add(operator)

    def _follow(self, library: Any) -> set[str]:
        its = self._of_library.get(library)
        if its is None:
            its = self._of_library[library] = set()
            # PyTorch's own finalizer comes after this one: so the next look goes over the names.
            finalize(library, self._gone.append, its).atexit = False
        return its

    # --- the registrations of an operator

    def _look_at(self, operator: str, part: str | None = None, where: str = "") -> None:
        self._take(operator, self._read(operator), where, part)

    def _take(self, operator: str, found: Parts, where: str, now: str | None = None) -> None:
        """Makes the registrations those of what was found. ``where`` is the line that is the
        reason, and ``now`` the part that it has registered.
        """
        known = self._known.get(operator, {})
        for part, there in list(known.items()):
            again = part == now and where not in ("", there.where)
            if again or part not in found or found[part][0] != there.text:
                self._end(operator, known, part)
        self._add(operator, found, where)
        if not self._known.get(operator):
            self._known.pop(operator, None)

    def _take_definition(self, operator: str, where: str) -> None:
        """Makes a registration of a new operator that has nothing but its schema."""
        try:
            schema = str(self._torch._C._get_schema(*operator.partition(".")[::2]))
        except RuntimeError:  # it has ended since
            self._look_at(operator, "", where)
            return
        its = self._begin(torch_name(operator), schema.partition("\n")[0], where)
        self._known[operator] = {"": its}

    def _take_kernel(self, operator: str, known: dict[str, _Part], key: str, where: str) -> None:
        """Makes a registration of a kernel, as :meth:`_take` does of all parts."""
        there = known.get(key)
        if there is not None:
            if there.where == where:
                return
            self._end(operator, known, key)
        known[key] = self._begin(torch_name(operator, key), "", where)

    def _add(
        self, operator: str, found: Parts, where: str = "", library: str = "", module: str = ""
    ) -> None:
        """Makes registrations of the parts that have none yet."""
        known = self._known.get(operator, {})
        for part, (text, location) in found.items():
            if part not in known:
                at = where if where and not _is_of_library(location) else location or "(not known)"
                if library and _is_of_library(location):
                    at = Location(f"{at}, in {library}", module)
                its = self._begin(torch_name(operator, part), text, at)
                self._known.setdefault(operator, known)[part] = its

    def _begin(self, name: str, text: str, where: str) -> _Part:
        before = self._ended.pop(name, (text, where))
        told = text if before == (text, where) else f"{text}\nreplaces {before[1]}"
        handle = hold(self._dispatcher, name, told, where, self._timeout)
        return _Part(handle, text, where)

    def _end(self, operator: str, known: dict[str, _Part], part: str) -> None:
        its = known.pop(part)
        self._ended[torch_name(operator, part)] = its.text, its.where
        if its.handle is not None:
            its.handle.close()

    # --- what PyTorch has

    def _read(self, operator: str, *, of_libraries: bool = False) -> Parts:
        """The parts that are registrations: of PyTorch's own operators those of others, of exported
        ones none. Or only those parts that libraries in C++ have registered.
        """
        dump = self._torch._C._dispatch_dump(operator).split("\n")
        lines = dict(line.partition(": ")[::2] for line in dump)
        schema, made, analysis, _ = (
            lines.pop(word, "") for word in ("schema", "debug", "alias analysis kind", "name")
        )
        kernels = {
            key.removesuffix("[alias]"): printable(line.partition(" ::")[0].removeprefix(_AT))
            for key, line in lines.items()
            if line and key.removesuffix("[alias]").isidentifier()  # CPU, not "CPU (inactive)"
        }
        self._keys.update(kernels)
        if operator.partition("::")[0] in _PYTORCHS:
            others = self._others.get(operator, ())
            return {
                key: ("", "" if self._is_entry(location) else location)
                for key, location in kernels.items()
                if (key in others and self._is_entry(location)) or self._is_theirs(location)
            }
        made = made.removeprefix(_AT)
        custom = self._custom_ops.get(operator)
        if not self._is_entry(made):
            location = printable(made)
        else:
            location = _location_of_function(getattr(custom, "_init_fn", None))
        if location.startswith((self._folder, _OURS)):
            return {}
        parts: Parts = {}
        if schema not in ("", "(none)"):
            more = [] if analysis in ("", "FROM_SCHEMA") else [analysis]
            more += self._tags(operator)
            parts[""] = f"{schema} # {', '.join(more)}" if more else schema, location
        for key, its in kernels.items():
            # An entry point in Python knows no location, and is none of an operator in C++.
            by_entry = "" if _is_of_library(location) else location
            parts[key] = "", by_entry if self._is_entry(its) else its
        if of_libraries:
            return {part: its for part, its in parts.items() if _is_of_library(its[1])}
        for name, attribute in _OF_CUSTOM_OP if custom is not None else ():
            function = getattr(custom, attribute, None)
            if function is not None:
                parts[name] = "", _location_of_function(function) or location
        rules = self._with_rules.get(operator)
        for cls in _dig(rules, "torch_dispatch_rules", "_data") or () if rules is not None else ():
            parts[f"register_torch_dispatch {printable(cls.__qualname__)}"] = "", location
        return parts

    def _tags(self, operator: str) -> list[str]:
        base, _, overload = operator.partition(".")
        find = getattr(self._torch._C, "_get_operation_overload", None)
        found = find(base, overload) if find is not None else None
        return sorted(tag.name for tag in found[2]) if found is not None else []

    def _overridden(self) -> set[str]:
        """PyTorch's own operators for which others may have registered something in Python: by a
        library that none of PyTorch's modules and operators keeps. Each library has a finalizer,
        which tells it.
        """
        cls, everything = self._torch.library.Library, getattr(self._torch.library, "_impls", ())
        told = [each.peek() for each in list(getattr(finalize, "_registry", ()))]
        libraries = [its[0] for its in told if its is not None and issubclass(type(its[0]), cls)]
        its_own = {
            id(each)
            for name in _WITH_LIBRARIES
            for each in list(vars(sys.modules.get(name, sys)).values())
            if isinstance(each, cls)
        }
        for custom in list(self._custom_ops.values()):
            if str(getattr(custom._init_fn, "__module__", "")).startswith("torch."):
                its_own.add(id(getattr(custom, "_lib", None)))
        impls: set[str] = set()
        theirs: set[str] = set()
        for library in libraries:
            (impls if id(library) in its_own else theirs).update(library._op_impls)
        if not impls.union(theirs).issuperset(everything):
            theirs = set(everything)  # not all libraries could be found
        names = (each.split("/") for each in theirs)  # namespace, name and key
        return {f"{name[0]}::{name[1]}" for name in names if name[0] in _PYTORCHS - {"_"}}

    def _is_theirs(self, location: str) -> bool:
        """Whether a kernel of one of PyTorch's own operators is from a Python file of others."""
        file = location.rpartition(":")[0]
        return file.endswith(".py") and not file.startswith((self._folder, _OURS))

    def _is_entry(self, location: str) -> bool:
        """Whether a location is one of those through which PyTorch registers for others."""
        file = location.removeprefix(self._folder)
        return file != location and file.startswith(("library.py", f"_library{os.sep}"))


class _Part:
    """A part of an operator. ``handle`` is None where it could not be verified, which was told."""

    __slots__ = ("handle", "text", "where")

    def __init__(self, handle: RegistrationHandle | None, text: str, where: str) -> None:
        self.handle = handle
        self.text = text
        self.where = where


#: This package: exported operators come from here.
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def _dig(there: Any, *names: str) -> Any:
    """What lies behind these keys and attributes; None where a version of PyTorch has it not."""
    for name in names:
        is_table = hasattr(there, "get") and hasattr(there, "items")
        there = there.get(name) if is_table else getattr(there, name, None)
    return there


def _table(*names: str) -> Any:
    """A table that a module of PyTorch keeps; an empty one where a version has it not."""
    found = _dig(sys.modules, *names)
    return {} if found is None else found


def _is_of_library(location: str) -> bool:
    """Whether a location in PyTorch's tables is one of a file in C++, and not of Python code."""
    file = location.rpartition(":")[0]
    return bool(file) and not file.startswith("<") and not file.endswith(".py")


def _location_of_function(function: Any) -> str:
    return location_of_object(function) or ""


# --- hooks ----------------------------------------------------------------------------------------

_lock = new_lock()
#: The watches that are open. Changed by single steps, under the lock.
_open: list[Watching] = []
#: The methods of PyTorch's classes that are ours meanwhile, with those that were there.
_installed: list[tuple[type, str, object, object]] = []


@in_child
def _renew() -> None:
    for each in _open:
        each.asked = None  # its thread is the parent's


def _install(torch: Any) -> None:
    """Wraps the methods through which all of torch.library registers. Under the lock."""
    if _installed:
        return
    wanted: list[tuple[Any, str, Callable[..., list[Heard]]]] = [
        (torch.library.Library, "define", _defined),
        (torch.library.Library, "impl", _implemented),
        (torch.library.Library, "_register_torch_dispatch_rule", _ruled),
        (torch.library.Library, "_destroy", _destroyed),
    ]
    custom = getattr(torch.library, "CustomOpDef", None)
    for name, _ in _OF_CUSTOM_OP:
        wanted.append((custom, name, functools.partial(_of_custom_op, name)))
    for cls, name, hears in wanted:
        _wrap(cls, name, functools.partial(_wrapped, hears=hears))
    # That of torch.classes calls that of torch.ops.
    _wrap(_dig(sys.modules, "torch._ops", "_Ops"), "load_library", _loading)
    _wrap(ExtensionFileLoader, "exec_module", _importing)


def _wrap(cls: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = vars(cls).get(name) if cls is not None else None
    if original is not None:
        wrapper = wrap(original)
        setattr(cls, name, wrapper)
        _installed.append((cls, name, wrapper, original))


def _uninstall() -> None:
    """Under the lock. What another has wrapped since stays as it is, and hears nothing."""
    while _installed:
        cls, name, wrapper, original = _installed.pop()
        if vars(cls).get(name) is wrapper:
            setattr(cls, name, original)


def _wrapped(original: Any, hears: Callable[..., list[Heard]]) -> Any:
    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        heard = hears(self, *args, **kwargs) if _open else []
        result = original(self, *args, **kwargs)
        if heard:
            user = _user()
            library = self if hasattr(self, "ns") else None
            for each in list(_open):
                each.heard(heard, library, user)
        return result

    return wrapper


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(self: Any, path: Any) -> Any:
        result = original(self, path)
        for each in list(_open):
            each.look_at_libraries(library=printable(str(path)), module=_loader(), again=True)
        return result

    return wrapper


def _importing(original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(self: Any, module: Any) -> Any:
        result = original(self, module)
        # Those of the standard library register nothing: a look takes 2 ms.
        for each in list(_open) if "lib-dynload" not in self.path else ():
            loader = _loader() or name_in(vars(module))
            each.look_at_libraries(library=printable(self.path), module=loader)
        return result

    return wrapper


def _loader() -> str:
    """The name of the module that has a library loaded; "" where it has none, or where this package
    imports an extension module for somebody.
    """
    frame = caller()
    while frame is not None and _module(frame).partition(".")[0] in ("importlib", "torch"):
        frame = frame.f_back
    if frame is None or _module(frame).partition(".")[0] == "mdispatch":
        return ""
    return registrants_location(frame).module


def _full(library: Any, operator: Any) -> str:
    name = operator if isinstance(operator, str) else operator.name()
    return f"{library.ns}::{name.rpartition('::')[2]}"


def _defined(
    library: Any, schema: str, alias_analysis: str = "", *, tags: object = (), **kwargs: Any
) -> list[Heard]:
    has_more = alias_analysis != "" or tags != () or bool(kwargs)
    return [(_full(library, str(schema).partition("(")[0].strip()), "", has_more)]


def _implemented(
    library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any
) -> list[Heard]:
    key = dispatch_key or library.dispatch_key or "CompositeImplicitAutograd"
    return [(_full(library, op_name), str(key), False)]


def _ruled(library: Any, op_name: Any, cls: type, *args: Any, **kwargs: Any) -> list[Heard]:
    return [(_full(library, op_name), f"register_torch_dispatch {cls.__qualname__}", True)]


def _destroyed(library: Any, *args: Any, **kwargs: Any) -> list[Heard]:
    names = [*getattr(library, "_op_defs", ())]
    for each in getattr(library, "_op_impls", ()):  # ns/name/key
        names.append("::".join(each.split("/")[:2]))
    return [(name, "", True) for name in dict.fromkeys(names)]


def _of_custom_op(part: str, custom: Any, *args: Any, **kwargs: Any) -> list[Heard]:
    return [(custom._qualname, part, True)]


def _user() -> User:
    """The caller of PyTorch, for a hook: the nearest code that is not PyTorch's own. There is no
    line where somebody imports a module of PyTorch.

    A helper often registers for many operators. So while a module is imported, the line is that of
    its top-level code, which tells them apart.
    """
    frame: FrameType | None = sys._getframe(2)
    is_theirs = is_direct = True
    if _module(frame).startswith(("torch.", "mdispatch.")):
        frame, is_direct = caller(), False
        while _module(frame).startswith(("torch.library", "torch._library.")):
            frame = _beyond(frame)
        is_theirs = frame is not None and not _module(frame).startswith("torch.")
        while _module(frame).startswith("torch."):
            frame = _beyond(frame)
    if frame is None or _module(frame).startswith(_IMPORTS):
        return False, False, ""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_name != "<module>":
        outer = outer.f_back
    if outer is not None and outer.f_back is not None and _module(outer.f_back) in _IMPORTS:
        frame = outer
    return is_theirs, is_direct, _lines.of(frame)


_lines = CallerLines()


def _beyond(frame: FrameType | None) -> FrameType | None:
    outer = frame and frame.f_back
    while outer is not None and _module(outer) in _BETWEEN:
        outer = outer.f_back
    return outer


def _module(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__"))

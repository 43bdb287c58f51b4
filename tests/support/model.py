"""A short model of the dispatcher, to compare the real one with: it computes what can be observed
from the registrations in effect.

It follows the rules of c10's dispatcher as they are written, one key at a time. It has no cached
tables, versions, locks, roles or shared memory. It takes the order of the keys and the parser of
schemas from mdispatch; both have tests of their own.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from steps import CPU, NO_LIBRARY, NOT_HERE, PROBES, WAYS

from mdispatch.errors import MdispatchError
from mdispatch.keys import DispatchKey
from mdispatch.schema import parse_schema
from mdispatch.schema.names import OperatorName, split_name

# --- keys -----------------------------------------------------------------------------------------

BACKENDS = (
    *("CPU", "CUDA", "HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "Lazy", "MTIA", "MAIA"),
    *("PrivateUse1", "PrivateUse2", "PrivateUse3", "Meta"),
)
PER_BACKEND = {
    "Dense": "",
    "Quantized": "Quantized",
    "Sparse": "Sparse",
    "SparseCsr": "SparseCsr",
    "NestedTensor": "NestedTensor",
    "AutogradFunctionality": "Autograd",
}
FUNCTIONALITIES = tuple(key.name for key in DispatchKey if 0 < key < 47)  # lowest priority first


def of_each_backend(*functionalities: str) -> list[str]:
    return [PER_BACKEND[each] + backend for each in functionalities for backend in BACKENDS]


#: The keys that have a slot, lowest priority first.
RUNTIME = (
    "Undefined",
    *(
        key
        for functionality in FUNCTIONALITIES
        for key in (
            of_each_backend(functionality) if functionality in PER_BACKEND else [functionality]
        )
    ),
)

#: The parts of each key: its functionality, and its backend or "".
PARTS = {name: (name, "") for name in FUNCTIONALITIES if name not in PER_BACKEND} | {
    prefix + backend: (functionality, backend)
    for functionality, prefix in PER_BACKEND.items()
    for backend in BACKENDS
}

CIA, CEA = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"
NESTED = "CompositeImplicitAutogradNestedTensor"
DECOMPOSITION = "FuncTorchBatchedDecomposition"
ALIASES = ("Autograd", CIA, DECOMPOSITION, NESTED, CEA, NON_FUNCTIONAL)

_BEHIND_OTHER = {
    *("FPGA", "Vulkan", "Metal", "CustomRNGKeyId", "MkldnnCPU"),
    *of_each_backend("Quantized", "Sparse", "SparseCsr"),
}
_BACKEND_KEYS = _BEHIND_OTHER | set(of_each_backend("Dense"))
_AUTOGRAD_KEYS = {
    *("AutogradOther", "AutogradNestedTensor"),
    *of_each_backend("AutogradFunctionality"),
}
_NESTED_KEYS = set(of_each_backend("NestedTensor"))

#: The runtime keys that each alias stands for.
STANDS_FOR = {
    "Autograd": _AUTOGRAD_KEYS,
    CIA: _BACKEND_KEYS | _NESTED_KEYS | _AUTOGRAD_KEYS,
    CEA: _BACKEND_KEYS,
    NON_FUNCTIONAL: {
        key
        for key in _BACKEND_KEYS - set(of_each_backend("Sparse"))
        if PARTS[key][1] not in ("XLA", "Lazy")
    },
    NESTED: {"AutogradNestedTensor"} | _NESTED_KEYS,
    DECOMPOSITION: {"FuncTorchBatched"},
}


def backends_behind(key: str) -> set[str]:
    """The keys of the backends to whose kernels an autograd key leads."""
    if key == "AutogradOther":
        return _BEHIND_OTHER
    if key == "AutogradNestedTensor":
        return _NESTED_KEYS
    functionality, backend = PARTS.get(key, ("", ""))
    if functionality == "AutogradFunctionality" and backend not in ("MTIA", "HIP", "VE"):
        return {backend}
    return set()


#: The fallbacks that exist from the start. All fall through except those of Python's own keys.
BUILT_IN = dict.fromkeys(("BackendSelect", "ADInplaceOrView", "AutogradOther"), "fallthrough")
BUILT_IN |= {
    "Autograd" + backend: "fallthrough"
    for backend in BACKENDS
    if backend not in ("HIP", "IPU", "VE", "PrivateUse2", "PrivateUse3")
}
BUILT_IN |= {
    "Python": "mdispatch.modes_and_types",
    "PythonTLSSnapshot": "mdispatch.keys_on_entry",
    "PreDispatch": "mdispatch.pre_dispatch_modes",
    "FuncTorchDynamicLayerFrontMode": "mdispatch.transforms",
    "PythonDispatcher": "mdispatch.python_kernels",
}

INCLUDED = frozenset({"BackendSelect", "ADInplaceOrView"})
EXCLUDED = frozenset(key for key in FUNCTIONALITIES if key.startswith("Autocast"))

# --- what runs ------------------------------------------------------------------------------------


def entry(key: str, at: dict[str, str], fallbacks: dict[str, str]) -> tuple[str, str]:
    """The label of the kernel at a runtime key, and the reason. ``at`` has the operator's newest
    kernel for each key, ``fallbacks`` the fallbacks of all operators.
    """
    undefined = key == "Undefined"
    if key in at:
        return at[key], "kernel"
    for alias in (NON_FUNCTIONAL, CEA):
        if (undefined or key in STANDS_FOR[alias]) and alias in at:
            return at[alias], "default backend kernel"
    has_backend = bool(backends_behind(key) & at.keys()) or CEA in at
    if key in STANDS_FOR[NESTED] and NESTED in at:
        return at[NESTED], "nested kernel"
    if (undefined or key in STANDS_FOR[CIA]) and CIA in at:
        if key == "AutogradOther" and _BEHIND_OTHER & at.keys():
            return "", "ambiguous autogradother"
        if not has_backend:
            return at[CIA], "math kernel"
    if key in STANDS_FOR["Autograd"] and "Autograd" in at:
        return at["Autograd"], "autograd kernel"
    if key == "FuncTorchBatched" and DECOMPOSITION in at:
        return at[DECOMPOSITION], "batched kernel"
    if key in fallbacks:
        return fallbacks[key], "backend fallback"
    if key in BUILT_IN:
        return BUILT_IN[key], "backend fallback"
    return "", "missing"


class Table:
    """Which kernel runs at each key, for one operator in one interpreter."""

    def __init__(self, at: dict[str, str], fallbacks: dict[str, str]) -> None:
        self.entries = {key: entry(key, at, fallbacks) for key in RUNTIME}
        self.rows = tuple(
            (key, label, reason, label == "fallthrough")
            for key, (label, reason) in self.entries.items()
            if reason != "missing"
        )
        self._passed_by = {
            backend: {
                functionality
                for functionality in FUNCTIONALITIES
                if self._falls_through(functionality, backend)
            }
            for backend in BACKENDS
        }
        self.masks = tuple(
            sum(
                1 << number
                for number, functionality in enumerate(FUNCTIONALITIES)
                if functionality not in self._passed_by[backend]
            )
            for backend in BACKENDS
        )
        self.calls = tuple(self.call(keys) for keys in PROBES)
        self.ways = tuple(self.way(keys) for keys in PROBES)

    def _falls_through(self, functionality: str, backend: str) -> bool:
        prefix = PER_BACKEND.get(functionality)
        key = functionality if prefix is None else prefix + backend
        return self.entries[key][0] == "fallthrough"

    def call(
        self,
        keys: tuple[str, ...],
        included: frozenset[str] = INCLUDED,
        excluded: frozenset[str] = EXCLUDED,
    ) -> str:
        """The label of the kernel that runs for arguments with these keys, or the error's name."""
        key, label, reason = self.way(keys, included, excluded)
        if reason == "ambiguous autogradother":
            return "AmbiguousKernelError"
        if key == "Meta" and (label.endswith(NOT_HERE) or not label):
            return "FakeKernelMissingError"
        if label.endswith(NOT_HERE):
            return "LocalKernelMissingError"
        return "MissingKernelError" if label in ("", "fallthrough") else label

    def way(
        self,
        keys: tuple[str, ...],
        included: frozenset[str] = INCLUDED,
        excluded: frozenset[str] = EXCLUDED,
    ) -> tuple[str, str, str]:
        """The runtime key that a call reaches, with the label and the reason there."""
        backends = {PARTS[key][1] for key in {*keys, *included}} - {""}
        left = {PARTS[key][0] for key in {*keys, *included}}
        left -= {PARTS[key][0] for key in excluded}
        backend = max(backends, key=BACKENDS.index, default="")
        left -= self._passed_by[backend or "CPU"]
        if not backend:
            left -= PER_BACKEND.keys()
        highest = max(left, key=FUNCTIONALITIES.index, default="Undefined")
        key = PER_BACKEND[highest] + backend if highest in PER_BACKEND else highest
        return key, *self.entries[key]


@cache
def table(at: tuple[tuple[str, str], ...], fallbacks: tuple[tuple[str, str], ...]) -> Table:
    return Table(dict(at), dict(fallbacks))


# --- what is registered ---------------------------------------------------------------------------


ALIAS_ANALYSES = ("", "FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION")

parsed = cache(parse_schema)


@cache
def canonical(schema: str, namespace: str) -> str:
    split_name(schema, namespace)  # a text that is no name is refused as such
    return str(parse_schema(schema, namespace))


@cache
def full_name(operator: str, namespace: str) -> tuple[str, str]:
    """The full name for a library of the namespace, or why the name cannot be used there."""
    try:
        name = OperatorName.parse(operator if "::" in operator else f"{namespace}::{operator}")
    except MdispatchError as error:
        return "", type(error).__name__
    return str(name), "" if name.namespace == namespace else "InvalidArgumentError"


@cache
def fits(schema: str, signature: str) -> bool:
    """Whether a kernel of this signature can serve a schema: the same number of arguments and
    returns, of the same types.
    """
    one, other = parsed(schema), parsed("s::f" + signature)
    return [str(each.type) for each in one.arguments] == [
        str(each.type) for each in other.arguments
    ] and [str(each.type) for each in one.returns] == [str(each.type) for each in other.returns]


class Fact(NamedTuple):
    """One registration in effect, as ``steps.facts_of`` shows it."""

    kind: str
    key: str
    name: str
    body: str = ""
    more: str = ""  # a kernel's signature; the kind of alias analysis and the tags of a definition


class Made:
    """A registration of a library. Two of them are different even if they have the same content."""

    def __init__(self, fact: Fact, generation: object = None) -> None:
        self.fact = fact
        self.generation = generation


class LibraryModel:
    """A library. ``made`` are its registrations or, in a worker, the kernels that it keeps."""

    def __init__(self, kind: str, namespace: str, key: str, tag: str) -> None:
        self.kind = kind
        self.namespace = namespace
        self.key = key
        self.tag = tag
        self.closed = False
        self.made: list[Made] = []
        self.replaced: dict[str, Made] = {}


class _Interpreter:
    """The common part of the main interpreter and of workers: libraries, and the refusals that do
    not depend on registrations.
    """

    def __init__(self) -> None:
        self.made: list[Made] = []  # oldest first
        self.libraries: dict[int, LibraryModel] = {}
        self.held: list[tuple[str, object]] = []  # operators: name and generation

    def perform(self, step: tuple) -> str:
        """As ``steps.Player.perform``."""
        verb, i, *args = step
        if verb == "open":
            return self._open(i, *args)
        if verb == "hold":
            self.held.append((args[0], self.generation(args[0])))
            return ""
        library = self.libraries.get(i)
        if library is None:
            return NO_LIBRARY
        if verb == "close":
            self._close(library)
            return ""
        if verb == "define" and (*args, "")[1] not in ALIAS_ANALYSES:
            return "InvalidArgumentError"
        if library.closed:
            return "LibraryClosedError"
        return getattr(self, "_" + verb)(library, *args)

    def _open(self, i: int, kind: str, namespace: str, key: str = "", tag: str = "") -> str:
        self.libraries.pop(i, None)
        if namespace == "_" and kind != "IMPL":
            return "InvalidNameError"
        if key and kind != "IMPL":
            return "InvalidArgumentError"
        library = LibraryModel(kind, namespace, key, tag or str(i))
        if kind == "DEF":
            for other in list(self.libraries.values()):
                if (other.kind, other.namespace, other.tag) == (kind, namespace, library.tag):
                    library.replaced = {
                        made.fact.name: made for made in other.made if made.fact.kind == "def"
                    }
                    self._close(other)
            outcome = self._register(library, Fact("library", "", namespace))
            if outcome:
                return outcome
        self.libraries[i] = library
        return ""

    def _close(self, library: LibraryModel) -> None:
        library.closed = True
        for made in library.made:
            self.made.remove(made)
        library.made = []

    def _make(self, library: LibraryModel, fact: Fact, generation: object = None) -> str:
        made = Made(fact, generation)
        self.made.append(made)
        library.made.append(made)
        return ""

    def _define(
        self, library: LibraryModel, schema: str, analysis: str = "", tags: tuple[str, ...] = ()
    ) -> str:
        if library.kind == "IMPL":
            return "InvalidArgumentError"
        try:
            body = canonical(schema, library.namespace)
        except MdispatchError as error:
            return type(error).__name__
        attributes = " ".join(["" if analysis == "FROM_SCHEMA" else analysis, *sorted(tags)])
        return self._register(library, Fact("def", "", body.partition("(")[0], body, attributes))

    def _impl(
        self, library: LibraryModel, operator: str, key: str, label: str, signature: str = ""
    ) -> str:
        key = "" if key == "Undefined" else key
        if library.key and key not in ("", library.key):
            return "InvalidKeyError"
        key = key or library.key or CIA
        if key not in (*RUNTIME, *ALIASES):
            return "InvalidKeyError"
        if library.namespace == "_":
            return "InvalidNameError"
        name, refusal = full_name(operator, library.namespace)
        if refusal:
            return refusal
        if key == "Meta" and any(made.fact[:3] == ("impl", CIA, name) for made in self.made):
            return "InvalidKeyError"
        try:
            parsed("s::f" + (signature or "() -> ()"))
        except MdispatchError as error:
            return type(error).__name__
        return self._register(library, Fact("impl", key, name, label, signature))

    def _fallback(self, library: LibraryModel, key: str, label: str) -> str:
        if library.namespace != "_":
            return "InvalidArgumentError"
        key = "" if key == "Undefined" else key
        if (key or library.key) not in RUNTIME or (library.key and key not in ("", library.key)):
            return "InvalidKeyError"
        return self._register(library, Fact("fallback", key or library.key, "_", label))

    def _name(self, library: LibraryModel, operator: str) -> str:
        if library.namespace == "_":
            return "InvalidNameError"
        name, refusal = full_name(operator, library.namespace)
        return refusal or self._register(library, Fact("name", "", name))

    def call_held(self) -> tuple[str, ...]:
        """As ``steps.Player.call_held``: an operator is one definition and ends with it."""
        return tuple(
            "OperatorGoneError"
            if generation is None or generation != self.generation(name)
            else calls(self.table(name), self.schema(name))[CPU]
            for name, generation in self.held
        )

    def _register(self, library: LibraryModel, fact: Fact) -> str:
        raise NotImplementedError

    def schema(self, name: str) -> str:
        raise NotImplementedError

    def generation(self, name: str) -> object:
        raise NotImplementedError

    def table(self, name: str) -> Table:
        raise NotImplementedError


class Model(_Interpreter):
    """The main interpreter: the outcome of each step, and the registrations in effect."""

    def __init__(self) -> None:
        super().__init__()
        self._generations = 0

    def _register(self, library: LibraryModel, fact: Fact) -> str:
        generation = None
        if fact.kind in ("library", "def", "fallback") and self.there(*fact[:3]):
            return "DuplicateRegistrationError"
        if fact.kind == "def":
            signatures = [
                other.more for other in self.of(fact.name) if other.kind == "impl" and other.more
            ]
            if not all(fits(fact.body, signature) for signature in signatures):
                return "SignatureMismatchError"
            before = library.replaced.get(fact.name)
            if before is not None and before.fact == fact:
                generation = before.generation
            else:
                self._generations += 1
                generation = self._generations
        if self.misfits(fact):
            return "SignatureMismatchError"
        return self._make(library, fact, generation)

    # --- what is in effect

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple([made.fact for made in self.made])

    def of(self, name: str) -> list[Fact]:
        return [made.fact for made in self.made if made.fact.name == name]

    def there(self, kind: str, key: str, name: str) -> int:
        """The number of such registrations."""
        return sum(fact[:3] == (kind, key, name) for fact in self.facts)

    def misfits(self, fact: Fact) -> bool:
        """Whether a kernel's signature does not fit its operator."""
        schema = self.schema(fact.name)
        return bool(fact.kind == "impl" and fact.more and schema and not fits(schema, fact.more))

    def schema(self, name: str) -> str:
        return next((fact.body for fact in self.of(name) if fact.kind == "def"), "")

    def generation(self, name: str) -> object:
        """What distinguishes a definition from others of its name; None when there is none."""
        of_name = (made for made in self.made if made.fact[:3] == ("def", "", name))
        return next((made.generation for made in of_name), None)

    def table(self, name: str) -> Table:
        return table_of(self.facts, name)

    def observe(self, names: tuple[str, ...]) -> dict[str, object]:
        """What ``steps.observe`` is to find."""
        return observation(self.facts, names)


class WorkerModel(_Interpreter):
    """An interpreter that verifies, without waiting, against the present registrations of ``main``.
    ``made`` are the kernels and fallbacks that it keeps.
    """

    def __init__(self, main: Model) -> None:
        super().__init__()
        self.main = main

    def _register(self, library: LibraryModel, fact: Fact) -> str:
        main = self.main
        if main.misfits(fact):
            return "SignatureMismatchError"
        needed = 1
        if fact.kind == "impl":
            needed += sum(made.fact[:3] == fact[:3] for made in self.made)
        if main.there(*fact[:3]) < needed:
            namespace = fact.name.partition("::")[0]
            if fact.kind in ("impl", "fallback") and main.of(fact.name):
                return "KeyMismatchError"
            if fact.kind != "library" and any(
                other.name == namespace or other.name.startswith(namespace + "::")
                for other in main.facts
            ):
                return "NameMismatchError"
            return "MainNeverArrivedError"
        if fact.kind == "def" and fact not in main.facts:
            return "SchemaMismatchError"
        return self._make(library, fact)

    def schema(self, name: str) -> str:
        return self.main.schema(name)

    def generation(self, name: str) -> object:
        return self.main.generation(name)

    def table(self, name: str) -> Table:
        return table(self._paired("impl", name), self._paired("fallback", "_"))

    def _paired(self, kind: str, name: str) -> tuple[tuple[str, str], ...]:
        at = {}
        for key, _ in newest(self.main.facts, kind, name):
            wanted = (kind, key, name)
            at[key] = paired(
                [fact.body for fact in self.main.facts if fact[:3] == wanted],
                [made.fact.body for made in self.made if made.fact[:3] == wanted],
            )
        return tuple(sorted(at.items()))

    def observe(self, names: tuple[str, ...]) -> dict[str, object]:
        """What ``steps.observe`` is to find."""
        found = self.main.observe(names)
        for name in names:
            of_name, seen = found["of"][name], self.table(name)
            of_name["here"], of_name["masks"] = seen.rows, seen.masks
            of_name["calls"] = calls(seen, self.schema(name))
        return found


def paired(there: list[str], here: list[str]) -> str:
    """Which of the worker's callables runs for the newest of the kernels at one key, all given by
    label. Each kernel takes the first callable with its own label, else the first one left.
    """
    left = list(here)
    taken: list[str | None] = [None] * len(there)
    for same_label in (True, False):
        for at, label in enumerate(there):
            if taken[at] is None:
                found = [each for each in left if each == label or not same_label]
                if found:
                    taken[at] = found[0]
                    left.remove(found[0])
    if taken[-1] is not None:
        return taken[-1]
    return there[-1] if there[-1] == "fallthrough" else there[-1] + NOT_HERE


def newest(facts: tuple[Fact, ...], kind: str, name: str) -> tuple[tuple[str, str], ...]:
    """The label in effect at each key."""
    return tuple(sorted({f.key: f.body for f in facts if (f.kind, f.name) == (kind, name)}.items()))


def table_of(facts: tuple[Fact, ...], name: str) -> Table:
    return table(newest(facts, "impl", name), newest(facts, "fallback", "_"))


def observation(facts: tuple[Fact, ...], names: tuple[str, ...]) -> dict[str, object]:
    defined = [fact.name for fact in facts if fact.kind == "def"]
    bases = dict.fromkeys(name.partition(".")[0] for name in names)
    return {
        "facts": tuple(map(tuple, facts)),
        "operators": tuple(defined),
        "dangling": tuple(sorted({f.name for f in facts if f.kind == "impl"} - {*defined})),
        "overloads": {
            base: tuple(
                name.partition(".")[2] for name in defined if name.partition(".")[0] == base
            )
            for base in bases
        },
        "of": {name: of_operator(facts, name) for name in names},
    }


def of_operator(facts: tuple[Fact, ...], name: str) -> dict[str, object]:
    own = [fact for fact in facts if fact.name == name]
    found = table_of(facts, name)
    schema = next((fact.body for fact in own if fact.kind == "def"), "")
    return {
        "has": bool(own),
        "held": sum(fact.kind == "name" for fact in own),
        "dump": dump(own),
        "table": found.rows if own else None,
        "ways": found.ways[-WAYS:] if own else None,
        "here": found.rows,
        "masks": found.masks,
        "calls": calls(found, schema),
    }


def calls(table: Table, schema: str) -> tuple[str, ...]:
    """The outcomes of calls of an operator, one for each key set."""
    if not schema:
        return ("OperatorGoneError",) * len(PROBES)
    if not any("Tensor" in str(argument.type) for argument in parsed(schema).arguments):
        return (table.call(()),) * len(PROBES)
    return table.calls


def dump(own: list[Fact]) -> str:
    """The dump of an operator, without locations. See ``Registry.dump``."""
    if not own:
        return ""
    lines = [f"{own[0].name}, which is not defined"]
    for fact in own:
        if fact.kind == "def":
            lines = [fact.body, "  defined"]
            analysis, *tags = fact.more.split(" ")
            lines += [f"  alias analysis {analysis}"] if analysis else []
            lines += [f"  tags {', '.join(tags)}"] if tags else []
    lines += ["  name held" for fact in own if fact.kind == "name"]
    for key in (*RUNTIME, *ALIASES):
        inactive = ""
        for fact in reversed(own):
            if (fact.kind, fact.key) == ("impl", key):
                alias = " (alias)" if key in ALIASES else ""
                more = f" {fact.more}" if fact.more else ""
                lines.append(f"  {key}{alias}{inactive}: {fact.body}{more}")
                inactive = " (inactive)"
    return "\n".join(lines)

"""Steps: what modules do with a registry, as plain data, and what can be observed of it afterwards.

A step is a tuple: the action, the number of the library that takes it, and the arguments.

    ("open", i, kind, namespace)                a library; then a key, and a tag: one opened with
    ("open", i, kind, namespace, key, tag)      the same tag is the same library, opened again
    ("define", i, schema)
    ("define", i, schema, analysis, tags)
    ("impl", i, operator, key, label)           key "" is a catch-all, label "fallthrough" no kernel
    ("impl", i, operator, key, label, signature)
    ("fallback", i, key, label)
    ("name", i, operator)
    ("close", i)
    ("hold", i, name)                           not by a library: someone looks up an operator and
                                                keeps it

The same steps register in the main interpreter and verify in every other one. A kernel returns its
label, so a call tells which one ran.

Workers of every kind import this module, also sub-interpreters: it needs no pytest and no extension
modules.
"""

from __future__ import annotations

import re

from runs import in_another_run

import mdispatch as md
from mdispatch import facts as kinds
from mdispatch.dispatch.kernels import FALLTHROUGH, LocalKernel, fallthrough_kernel
from mdispatch.dispatch.operators import OpOverload
from mdispatch.keys import RUNTIME_KEYS, DispatchKey, DispatchKeySet
from mdispatch.keys.numbers import FULL
from mdispatch.registry.library import Library

#: The outcome of a step of a library that does not exist because it was refused.
NO_LIBRARY = "no library"
#: Follows the label of a kernel for which this interpreter has no callable.
NOT_HERE = ", not here"

#: The key sets of the calls that are observed.
PROBES = (
    (),
    ("CPU",),
    ("CPU", "AutogradCPU"),
    ("CUDA", "AutogradCUDA"),
    ("CPU", "SparseCUDA"),
    ("SparseCUDA", "AutogradOther"),
    ("QuantizedCPU", "AutogradOther"),
    ("NestedTensorCPU", "AutogradNestedTensor"),
    ("XLA", "AutogradXLA", "Functionalize"),
    ("CPU", "AutogradCPU", "FuncTorchBatched"),
)
#: The location of the key set CPU among them.
CPU = 1
#: For this many of them, the last ones, the explanation is also observed.
WAYS = 4


class Carrier:
    """A value that carries dispatch keys."""

    __slots__ = ("__dispatch_keys__",)

    def __init__(self, *keys: str) -> None:
        self.__dispatch_keys__ = DispatchKeySet(keys)


_CARRIERS = tuple(Carrier(*keys) for keys in PROBES)
_KEY_NAMES = tuple(key.name for key in RUNTIME_KEYS)


class Label(str):
    """A result that fits a schema that returns a str, and one that returns a Tensor."""

    __dispatch_keys__ = "CPU"


def kernel(label: str):
    """A kernel named ``label``, which returns its name."""
    if label == FALLTHROUGH:
        return fallthrough_kernel
    result = Label(label)

    def function(*args: object, **kwargs: object) -> str:
        return result

    function.__module__, function.__qualname__ = "", label
    return function


def _open_library(registry: md.Registry, kind: str, namespace: str, key: str, tag: str) -> Library:
    return Library(namespace, kind, key, registry=registry, timeout=0, _tag=tag)


class Player:
    """Takes steps with one registry: registers in the main interpreter, verifies in others."""

    def __init__(self, registry: md.Registry) -> None:
        self.registry = registry
        self.libraries: dict[int, Library] = {}
        self.held: list[OpOverload] = []
        self._kernels: dict[str, object] = {}

    def perform(self, step: tuple) -> str:
        """Takes one step. Returns "" or, when the step was refused, the name of the error."""
        verb, i, *args = step
        if verb == "open":
            return self._open(i, *args)
        if verb == "hold":
            self.held.append(OpOverload(self.registry.dispatcher, *args))
            return ""
        library = self.libraries.get(i)
        if library is None:
            return NO_LIBRARY
        try:
            if verb == "impl":
                self._impl(library, *args)
            elif verb == "define":
                self._define(library, *args)
            elif verb == "fallback":
                key, label = args
                library.fallback(self._kernel(label), key)
            elif verb == "name":
                library.register_name(*args)
            elif verb == "close":
                library.close()
            else:
                raise ValueError(step)
        except md.MdispatchError as error:
            return type(error).__name__
        return ""

    def _open(self, i: int, kind: str, namespace: str, key: str = "", tag: str = "") -> str:
        self.libraries.pop(i, None)
        # In another run of this module, which would replace any DEF library, but for the tags.
        again = in_another_run(_open_library) if kind == "DEF" else _open_library
        try:
            self.libraries[i] = again(self.registry, kind, namespace, key, tag or str(i))
        except md.MdispatchError as error:
            return type(error).__name__
        return ""

    def _define(
        self, library: Library, schema: str, analysis: str = "", tags: tuple[str, ...] = ()
    ) -> None:
        library.define(schema, alias_analysis=analysis, tags=tags)

    def _impl(
        self, library: Library, operator: str, key: str, label: str, signature: str = ""
    ) -> None:
        library.impl(operator, self._kernel(label), key, signature=signature)

    def call_held(self) -> tuple[str, ...]:
        """The outcome of a call of each operator that is held."""
        return tuple([called(operator, _CARRIERS[CPU]) for operator in self.held])

    def _kernel(self, label: str):
        function = self._kernels.get(label)
        if function is None:
            function = self._kernels[label] = kernel(label)
        return function


# --- observing ------------------------------------------------------------------------------------


def facts_of(registry: md.Registry) -> tuple[tuple[str, str, str, str, str], ...]:
    """All registrations but what members tell each other, in their order: kind, key, name, body,
    and the signature or the attributes.
    """
    _, _, there = registry.dispatcher.facts.registrations()
    return tuple(
        [
            (
                kinds.kind_of(fact.kind).name,
                DispatchKey(fact.key).name if fact.key else "",
                fact.name,
                fact.body,
                fact.attributes,
            )
            for fact in sorted(there, key=_by_number)
            if fact.kind != kinds.NOTE
        ]
    )


def _by_number(fact: md.Registration) -> int:
    return fact.seq


def rows_of(table) -> tuple[tuple[str, str, str, bool], ...]:
    """For each key that has an entry: the key, the kernel's label, the reason, and whether it falls
    through. Marks a kernel for which this interpreter has no callable.
    """
    shown: dict[int, tuple[str, str, bool]] = {}  # the keys of an alias share an entry
    rows = []
    for key, entry in zip(_KEY_NAMES, table.entries, strict=True):
        if entry.reason != "missing":
            row = shown.get(id(entry))
            if row is None:
                row = shown[id(entry)] = (_label(entry.kernel), entry.reason, entry.is_fallthrough)
            rows.append((key, *row))
    return tuple(rows)


def _label(found: object) -> str:
    if found is None:
        return ""
    if isinstance(found, LocalKernel):
        return found.label
    # A fallthrough needs no callable.
    return found.fact.body if found.is_fallthrough else found.fact.body + NOT_HERE


def masks_of(table) -> tuple[int, ...]:
    """By the highest backend of a key set: the functionalities, as bits, that do not fall through
    in a call with all of them.
    """
    functionalities = FULL & ~0xFFFF
    return tuple(table.effective(functionalities | 1 << backend) >> 16 for backend in range(16))


def _arguments(schema: md.FunctionSchema, carrier: Carrier) -> list[object]:
    """The arguments of a call with a carrier, which stands for every tensor."""
    values = {"Tensor": carrier, "Tensor?": carrier, "Tensor[]": [carrier], "int": 1}
    return [values[str(each.type)] for each in schema.arguments if not each.has_default]


def called(operator: OpOverload, carrier: Carrier) -> str:
    """The label of the kernel that a call ran, or the name of its error."""
    try:
        return str(operator(*_arguments(operator.schema, carrier)))
    except md.MdispatchError as error:
        return type(error).__name__


def calls_of(operator: OpOverload) -> tuple[str, ...]:
    return tuple([called(operator, carrier) for carrier in _CARRIERS])


def observe_calls(registry: md.Registry, name: str) -> dict[str, object]:
    """Calls of an operator in this interpreter: the table that they use, and their outcomes."""
    table = registry.dispatcher.entry(name).current_table()
    return {
        "here": rows_of(table),
        "masks": masks_of(table),
        "calls": calls_of(OpOverload(registry.dispatcher, name)),
    }


_ORIGIN = re.compile(r"( at |    \()[^()\n]*, pid \d+\)?$", re.MULTILINE)


def observe_facts(registry: md.Registry, name: str) -> dict[str, object]:
    """All that any member of a registry can observe of an operator."""
    there = registry.registrations(name)
    dump, table, ways = "", None, None
    try:
        dump = _ORIGIN.sub("", registry.dump(name))
        table = tuple(
            [
                (row.key.name, row.kernel, row.reason, row.is_fallthrough)
                for row in registry.table(name)
                if row.reason != "missing"
            ]
        )
        ways = tuple([_way(registry.why(name, keys)) for keys in PROBES[-WAYS:]])
    except md.errors.OperatorNotFoundError:
        assert not there
    return {
        "has": bool(there),
        "held": sum(fact.kind == kinds.NAME for fact in there),
        "dump": dump,
        "table": table,
        "ways": ways,
    }


def _way(explanation) -> tuple[str, str, str]:
    return explanation.key.name, explanation.row.kernel, explanation.row.reason


def observe(registry: md.Registry, names: tuple[str, ...]) -> dict[str, object]:
    """All that can be observed of some operators, as plain data. It is the same in every role,
    interpreter and process that has loaded the same kernels.
    """
    bases = dict.fromkeys(name.partition(".")[0] for name in names)
    return {
        "facts": facts_of(registry),
        "operators": tuple(registry.operators()),
        "dangling": tuple(registry.dangling_implementations()),
        "overloads": {base: tuple(registry.dispatcher.overloads(base)) for base in bases},
        "of": {
            name: {**observe_facts(registry, name), **observe_calls(registry, name)}
            for name in names
        },
    }


def everything(registry: md.Registry) -> tuple:
    """All that a refused step must leave unchanged, in the registry and outside it."""
    facts = registry.dispatcher.facts
    there = [f for f in facts.registrations()[2] if f.kind != kinds.NOTE]  # a refusal is told
    names = dict.fromkeys([*(fact.name for fact in there), *registry.dispatcher.entries])
    return (
        there,
        {name: facts.registrations(name)[:2] for name in names},
        {
            name: {key: list(kernels) for key, kernels in entry.kernels.items()}
            for name, entry in registry.dispatcher.entries.items()
        },
        {
            key: list(kernels)
            for key, kernels in registry.dispatcher.fallbacks.kernels.items()
            if kernels
        },
        {base: list(known) for base, known in registry.dispatcher._overloads.items() if known},
        dict(registry.dispatcher.libraries),
    )


def left_over(registry: md.Registry) -> list[object]:
    """All that still exists, in the registry and outside it."""
    return [
        *(f for f in registry.dispatcher.facts.registrations()[2] if f.kind != kinds.NOTE),
        *(
            kernels
            for entry in registry.dispatcher.entries.values()
            for kernels in entry.kernels.values()
        ),
        *(kernels for kernels in registry.dispatcher.fallbacks.kernels.values() if kernels),
        *(known for known in registry.dispatcher._overloads.values() if known),
        *registry.dispatcher.libraries.values(),
    ]

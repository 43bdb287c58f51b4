"""Libraries and what they register, step by step: programs.txt, and PythonDispatcher.

A program is in the words of sequences.json. Everything here about a Program also holds for the
sequences and the calls, which run the same steps.
"""

from __future__ import annotations

import random
import shlex
from pathlib import Path

from torch import _C as C
from torch._python_dispatcher import PythonDispatcher
from torch.library import fallthrough_kernel

from .words import (
    ALIASES,
    FULL,
    NAMES,
    PARSED,
    RUNTIME,
    VALUES,
    K,
    Warned,
    bits,
    forked,
    key_set,
    outcome,
    text_of,
    words,
)

KERNEL_STEPS = """a step is {"op": ..., arguments}. lib: _dispatch_library(kind, ns, dispatch[,
file, line]), kept under id. drop: the last reference to lib goes. reset. def_, define (alias:
its second argument), def_legacy, def_name_t_t, def_schema_t_t, impl_t_t, fallback_fallthrough:
the methods of that name; arguments that are not there are not given. impl_fallthrough:
impl(name, dispatch, torch.library.fallthrough_kernel). impl: the same with the kernel of that
name, fallback: fallback(dispatch, kernel), with_keyset as it says ("fallthrough" is the kernel
fallthrough_kernel; a dispatch {"key": number} is a DispatchKey, else it is a str)"""


class Program:
    """Runs steps, the operations of a sequence."""

    def __init__(self, kernels: dict | None = None) -> None:
        self.libraries: dict[int, object] = {}
        self.kernels = {"fallthrough": fallthrough_kernel, **(kernels or {})}

    def run(self, do: dict) -> object:
        op = do["op"]
        given = {name: do[name] for name in ("dispatch", "debug") if name in do}
        if op == "lib":
            place = (do["file"], do["line"]) if "file" in do else ()
            library = C._dispatch_library(do["kind"], do["ns"], do["dispatch"], *place)
            self.libraries[do["id"]] = library
            return library
        if op == "drop":
            self.libraries.pop(do["lib"], None)
            return None
        library = self.libraries[do["lib"]]
        if op == "reset":
            return library.reset()
        if op in ("def_", "define"):
            word = "alias" if op == "def_" else "alias_analysis"
            alias = {word: do["alias"]} if "alias" in do else {}
            return getattr(library, op)(do["schema"], **alias)
        if op == "def_legacy":
            return library.def_legacy(do["schema"])
        if op == "def_name_t_t":
            return library.def_name_t_t(do["name"], **given)
        if op == "def_schema_t_t":
            alias = {"alias": do["alias"]} if "alias" in do else {}
            return library.def_schema_t_t(do["schema"], **alias, **given)
        if op == "impl_t_t":
            return library.impl_t_t(do["name"], **given)
        if op == "fallback_fallthrough":
            return library.fallback_fallthrough(**given)
        if op == "impl_fallthrough":
            return library.impl(do["name"], do["dispatch"], fallthrough_kernel)
        dispatch = do["dispatch"]
        if isinstance(dispatch, dict):
            dispatch = K(dispatch["key"])
        kernel = self.kernels[do["kernel"]]
        keyset = {"with_keyset": True} if do.get("with_keyset") else {}
        if op == "impl":
            return library.impl(do["name"], dispatch, kernel, **keyset)
        assert op == "fallback", op
        return library.fallback(dispatch, kernel, **keyset)

    def step(self, do: dict) -> dict:
        """Runs one step. Returns the outcome, in the words of sequences.json."""
        step: dict = {"do": do}
        with Warned() as warned:
            try:
                returned = self.run(do)
            except Exception as error:
                step |= {"ok": False, "error_type": type(error).__name__, "error": text_of(error)}
            else:
                step["ok"] = True
                if isinstance(returned, str):
                    step["returned"] = returned
        if warned.text:
            step["warning"] = warned.text
        return step


def table_of(name: str) -> dict[str, list[str]]:
    """The lines of _dispatch_dump_table: key -> [debug, reason, "fallthrough"?]."""
    table = {}
    for line in C._dispatch_dump_table(name).splitlines():
        key, _, rest = line.partition(": ")
        debug, _, reason = rest.removesuffix("]").rpartition(" [")
        through = debug.startswith("fallthrough ")
        table[key] = [debug.removeprefix("fallthrough "), reason, *["fallthrough"] * through]
    return table


FALLBACKS_AT_START = {
    value for value in VALUES if C._dispatch_has_backend_fallback(K(value)) and value < 150
}


class Observer:
    """The changes since its last look."""

    def __init__(self, names: list[str], table_keys: list[str], cached: list[str]) -> None:
        self.names = names
        self.table_keys = table_keys
        self.cached = cached
        self.last: dict = {}

    def look_at(self, name: str) -> dict:
        base, _, overload = name.partition(".")
        try:
            schema = str(C._dispatch_find_schema_or_throw(base, overload).schema())
        except RuntimeError as error:
            schema = "ERR " + text_of(error)
        has = C._dispatch_has_kernel(name)
        lines = table_of(name)
        try:
            C._dispatch_check_invariants(name)
            fine = True
        except RuntimeError:
            fine = False
        return {
            "has": has,
            "dump": C._dispatch_dump(name),
            "table": {key: lines.get(key) for key in self.table_keys} if has else None,
            "invariants_ok": fine,
            "cached_has": {
                key: C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
                for key in self.cached
            }
            if has
            else None,
            "find_schema": schema,
        }

    def changed(self) -> dict:
        now = {name: self.look_at(name) for name in self.names}
        now["#fallbacks_vs_start"] = sorted(
            name
            for value, name in NAMES.items()
            if name in RUNTIME
            and C._dispatch_has_backend_fallback(K(value)) != (value in FALLBACKS_AT_START)
        )
        now["#dangling"] = sorted(
            dump.split("\n")[0].removeprefix("name: ") for dump in C._dispatch_find_dangling_impls()
        )
        changed = {name: seen for name, seen in now.items() if self.last.get(name) != seen}
        self.last = now
        return changed


# --- programs.txt ---------------------------------------------------------------------------------

# A line is "lib id kind namespace [key [file line]]", or the number of a library, an operation and
# its arguments in the order of ARGUMENTS. Among those "-" is one that is not given, "name=..." one
# by name, "#136" the key of this number; "~" stands for REST, "+" for with_keyset, "$MANY" for
# MANY. "each list: line" repeats the line for each word of a list, which "%" stands for.
ARGUMENTS = {
    "def_": ("schema", "alias"),
    "define": ("schema", "alias"),
    "def_legacy": ("schema",),
    "def_name_t_t": ("name", "dispatch", "debug"),
    "def_schema_t_t": ("schema", "dispatch", "alias", "debug"),
    "impl_t_t": ("name", "dispatch", "debug"),
    "impl_fallthrough": ("name", "dispatch"),
    "impl": ("name", "dispatch", "kernel"),
    "fallback": ("dispatch", "kernel"),
    "fallback_fallthrough": ("dispatch",),
    "drop": (),
    "reset": (),
}
REST = "(Tensor x) -> Tensor"
MANY = ", ".join(f"Tensor a{i}" for i in range(64))
LISTS = {
    "parsed": PARSED,
    "value": [str(value) for value in VALUES],
    "alias": ALIASES[::-1],
    "letter": "abcdefghi",
}


def steps_of(text: str) -> list[dict]:
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("each "):
            name, _, repeated = line.removeprefix("each ").partition(": ")
            for word in LISTS[name]:
                steps += steps_of(repeated.replace("%", word))
            continue
        first, *rest = shlex.split(line)
        if first == "lib":
            number, kind, space, key, file, place = [*rest, "", "", ""][:6]
            do = {"op": "lib", "id": int(number), "kind": kind, "ns": space, "dispatch": key}
            if file:
                do |= {"file": file, "line": int(place)}
            steps.append(do)
            continue
        op, *arguments = rest
        names = iter(ARGUMENTS[op])
        do = {"op": op, "lib": int(first)}
        for given in arguments:
            if given == "+":
                do["with_keyset"] = True
                continue
            name, equals, value = given.partition("=")
            if not equals or name not in ARGUMENTS[op]:
                name, value = next(names), given
            value = value.replace("~", REST).replace("$MANY", MANY)
            if value != "-":
                do[name] = {"key": int(value[1:])} if value.startswith("#") else value
        steps.append(do)
    return steps


def read_programs() -> dict[str, list[dict]]:
    """The steps by the title that "# " introduces."""
    text = Path(__file__).with_name("programs.txt").read_text()
    parts = (part.partition("\n") for part in text.removeprefix("# ").split("\n# "))
    return {title: steps_of(lines) for title, _, lines in parts}


def questions(name: str) -> dict:
    """The answers of the functions that take an operator's name."""
    base, _, overload = name.partition(".")
    some = words(
        "Undefined CPU CUDA Meta FPGA AutogradCPU AutogradOther Dense Fake Tracer Autograd"
    )
    some.append("CompositeImplicitAutograd")
    sets = [bits(), bits("CPU"), bits("AutogradCPU", "SparseCUDA"), FULL, bits("Dense")]
    registered = C._dispatch_get_registrations_for_dispatch_key
    return {
        "dump": C._dispatch_dump(name),
        "dump_table": C._dispatch_dump_table(name),
        "has_kernel": C._dispatch_has_kernel(name),
        "invariants": outcome(lambda: C._dispatch_check_invariants(name)).get("error"),
        "schema": outcome(lambda: str(C._dispatch_find_schema_or_throw(base, overload).schema())),
        "debug": outcome(lambda: C._dispatch_find_schema_or_throw(base, overload).debug()),
        "pystub": C._dispatch_pystub(base, overload),
        "listed": name in C._dispatch_get_all_op_names(),
        "for_key": {
            key: [
                outcome(lambda k=key: C._dispatch_has_kernel_for_dispatch_key(name, k)),
                outcome(lambda k=key: C._dispatch_has_computed_kernel_for_dispatch_key(name, k)),
                # For an operator that does not exist, this one ends the process.
                outcome(lambda k=key: C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, k)),
                name in registered(key),
            ]
            for key in some
        },
        "for_sets": [
            [raw, C._dispatch_has_kernel_for_any_dispatch_key(name, key_set(raw))] for raw in sets
        ],
    }


def run_program(steps: list) -> dict:
    kernels = {"py": lambda *args, **kwargs: None, "three": 3, "none": None}
    program = Program(kernels)
    there = set(C._dispatch_get_all_op_names())
    done = [program.step(do) for do in steps]
    names = sorted(set(C._dispatch_get_all_op_names()) - there)
    result = {
        "steps": done,
        "operators": {name: questions(name) for name in names},
        "dangling": sorted(C._dispatch_find_dangling_impls()),
    }
    program.libraries.clear()
    result["left"] = sorted(set(C._dispatch_get_all_op_names()) - there)
    return result


# --- PythonDispatcher -----------------------------------------------------------------------------


def python_dispatcher(registered: list) -> dict:
    dispatcher = PythonDispatcher()
    with Warned():
        done = [outcome(lambda keys=keys: dispatcher.register(keys)) for keys in registered]
    return {
        "register": registered,
        "done": done,
        "keys": dispatcher.keys(),
        "registrations": dispatcher.registrations(),
        "rawRegistrations": dispatcher.rawRegistrations(),
        "dispatchTable": dispatcher.dispatchTable(),
        "rawDispatchTable": dispatcher.rawDispatchTable(),
        "second": outcome(PythonDispatcher),
    }


def python_dispatchers() -> list:
    keys = PythonDispatcher.supported_keys
    some = [
        [[]],
        [["CPU", "XLA", "Lazy", "CompositeImplicitAutograd"]],
        [["CPU", "XLA", "Lazy", "CompositeImplicitAutograd", "AutogradCPU"]],
        [["CPU", "XLA", "Lazy", "CompositeExplicitAutograd", "AutogradCPU"]],
        [["CPU", "FPGA", "CompositeImplicitAutograd"]],
        [["CPU", "CPU"]],
        [["CompositeExplicitAutograd", "CompositeImplicitAutograd"]],
        [["CPU", "QuantizedCPU"], ["XLA"]],
        [["CPU"], ["CPU"], ["Autograd"]],
        [["CPU", "Bogus", "XLA"]],
    ]
    rng = random.Random(7)
    some += [[rng.sample(keys, rng.randrange(1, 7))] for _ in range(12)]
    return [forked(lambda r=r: python_dispatcher(r)) for r in some]


def programs() -> dict:
    return {
        title: forked(lambda s=steps: run_program(s)) for title, steps in read_programs().items()
    }

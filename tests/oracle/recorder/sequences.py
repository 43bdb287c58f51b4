"""Random sequences of registering and closing, in the words of sequences.json, over other keys."""

from __future__ import annotations

import random

import torch

from .programs import Observer, Program
from .words import ALIASES, PARSED, forked, words

TABLE_KEYS = words(
    """
    Undefined HIP MPS XPU HPU Lazy MTIA MAIA PrivateUse1 Vulkan QuantizedCPU QuantizedHIP
    QuantizedMeta CustomRNGKeyId MkldnnCPU SparseCUDA SparseXLA SparseMeta SparseCsrCPU
    SparseCsrLazy NestedTensorCUDA NestedTensorXLA BackendSelect Python ADInplaceOrView
    AutogradOther AutogradCUDA AutogradHIP AutogradMTIA AutogradMeta AutogradNestedTensor Tracer
    AutocastCPU FuncTorchBatched PythonDispatcher
    """
)
CACHED_KEYS = words(
    """
    Undefined MTIA QuantizedCPU SparseCsrCPU NestedTensorCUDA AutogradCUDA AutogradMeta
    AutogradOther BackendSelect Dense
    """
)
FORMAT = (
    "as sequences.json: each step: do (the operation), ok, error_type/error (text before 'Exception"
    " raised from'), returned (of define), warning (text of the TORCH_WARN, printed or as a Python"
    " warning; location and function suffix stripped), changed = observations that differ from the"
    " step before (before step 0: nothing observed). per op: has=_dispatch_has_kernel,"
    " dump=_dispatch_dump, table=null when the op does not exist else {key:"
    " [debug,tag,'fallthrough'?]|null}, invariants_ok=_dispatch_check_invariants did not raise,"
    " cached_has=_dispatch_has_computed_kernel_for_dispatch_key, find_schema=str(schema) or 'ERR"
    " '+text. #fallbacks_vs_start = runtime keys whose _dispatch_has_backend_fallback differs from"
    " a fresh torch. #dangling = names with an impl and no def, sorted. Each sequence ran in a"
    " fresh process (fork), so every WARN_ONCE can appear once per sequence."
)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


FITTING = lines(
    """
    (Tensor x) -> Tensor
    (Tensor self) -> Tensor
    (Tensor _0) -> Tensor _0
    (Tensor(a!) self) -> Tensor(a!)
    (Tensor(a) self) -> Tensor(a)
    (*, Tensor out) -> Tensor
    (Tensor x) -> (Tensor)
    (Tensor   x)->Tensor
    """
)
OTHER = lines(
    """
    (Tensor x, Tensor y) -> Tensor
    (Tensor x) -> (Tensor, Tensor)
    (Tensor[] xs) -> Tensor
    (Tensor? x=None) -> Tensor
    (int n=3, *, str mode='nearest') -> int[]
    () -> ()
    (Tensor x, Scalar alpha=1, float eps=1e-5, bool flag=True) -> Tensor
    (Tensor x) -> ()
    (SymInt[2] size=0, *, ScalarType? dtype=None, Device? device=None) -> Tensor
    (Dict(str, Tensor) d) -> Tensor[]
    (Tensor x, int[2] k=[1, 2], *, Tensor(b!) out) -> Tensor(b!)
    (Tensor?[] xs, Generator? g=None) -> (Tensor first, Tensor second)
    """
)
BROKEN = lines(
    """
    (Tensor x -> Tensor
    (Tensr x) -> Tensor
    (Tensor x)
    (Tensor x) -> Tensor rest of it
    (Tensor x,) -> Tensor
    (Tensor) -> Tensor
    (int[] n=3) -> Tensor
    (Tensor x) => Tensor
    (Tensor x; Tensor y) -> Tensor
    (float x=inf) -> Tensor
    (..., Tensor x) -> Tensor
    (Tensor x=1) -> Tensor
    (double x) -> Tensor
    (List[int] x) -> Tensor
    """
)
BASES = words("conv3d _foreach_add relu_ a1 Bar view_as x mul __and__ embedding_bag new op9")
OVERLOADS = ["", "out", "Tensor", "int_2", "a1", "_x"]
PLACES = [("ops/native.cpp", 12), ("a b.py", 7), ("/src/reg:4.cpp", 300), ("lib.py", 4294967295)]
FLAVOURS = ("plain", "composite", "fallback", "override", "errors", "two namespaces")


class Maker:
    """Makes a random sequence: it knows which libraries are open, and nothing else."""

    def __init__(self, number: int, seed: int) -> None:
        self.random = rng = random.Random(seed * 1000 + number)
        self.flavour = FLAVOURS[number % len(FLAVOURS)]
        base = rng.choice(["mv", "My_ns", "_private", "n0n", "torchish"])
        self.spaces = [f"{base}{number}"]
        if self.flavour == "two namespaces":
            self.spaces.append(f"{base}{number}b")
        bases = rng.sample(BASES, 2)
        names = [(bases[0], ""), (bases[0], rng.choice(OVERLOADS[1:])), (bases[1], "")]
        if rng.random() < 0.4:
            names.append((bases[1], rng.choice(OVERLOADS[1:])))
        self.names = [base + "." * bool(over) + over for base, over in names]
        self.observe = [f"{space}::{name}" for space in self.spaces for name in self.names]
        if len(self.observe) > 5:
            self.observe = self.observe[:5]
        keys = rng.sample([name for name in PARSED if name not in ALIASES], 9)
        keys += rng.sample(ALIASES, 5 if self.flavour == "composite" else 2)
        if self.flavour == "override":
            keys = keys[:3] + keys[-2:]
        self.keys = keys
        self.open: dict[int, tuple[str, str, str]] = {}
        self.next_library = 0
        self.next_debug = 0

    def key(self) -> str:
        rng = self.random
        if self.flavour == "errors" and rng.random() < 0.04:
            return rng.choice(["Bogus", "cpu", "CPU ", "AutogradHIP", "StartOfDenseBackends"])
        return rng.choice(self.keys)

    def debug(self) -> str:
        self.next_debug += 1
        return f"fn{self.next_debug}"

    def name(self, space: str) -> str:
        rng = self.random
        name = rng.choice(self.names)
        if self.flavour == "errors" and rng.random() < 0.06:
            return rng.choice([name + ".x.y", "", "other::" + name, "9" + name, name + ".default"])
        if self.flavour == "errors" and rng.random() < 0.06:
            return f" {name} "
        return f"{space}::{name}" if rng.random() < 0.12 else name

    def schema(self, space: str) -> str:
        rng = self.random
        draw = rng.random()
        if self.flavour == "errors" and draw < 0.25:
            body = rng.choice(BROKEN)
        else:
            body = rng.choice(OTHER if draw > 0.86 else FITTING)
        return self.name(space) + body

    def library(self) -> dict:
        rng = self.random
        number, self.next_library = self.next_library, self.next_library + 1
        draw = rng.random()
        space = rng.choice(self.spaces)
        kind, dispatch = "FRAGMENT", ""
        if self.flavour == "fallback" and draw < 0.4:
            kind, space = "IMPL", "_"
            dispatch = self.key() if rng.random() < 0.3 else ""
        elif draw < 0.5:
            kind = "IMPL"
            dispatch = self.key() if rng.random() < 0.8 else ""
        elif draw < 0.62:
            kind = "DEF"
        if self.flavour == "errors" and rng.random() < 0.12:
            kind, space, dispatch = rng.choice(
                [
                    ("DEF", space, "CPU"),
                    ("FRAGMENT", space, "Autograd"),
                    ("DEF", "_", ""),
                    ("FRAGMENT", "_", ""),
                    ("LIB", space, ""),
                    ("IMPL", space, "NoSuchKey"),
                ]
            )
        do = {"op": "lib", "id": number, "kind": kind, "ns": space, "dispatch": dispatch}
        if rng.random() < 0.4:
            do["file"], do["line"] = rng.choice(PLACES)
        self.open[number] = (kind, space, dispatch)
        return do

    def step(self) -> dict:
        rng = self.random
        if not self.open or (len(self.open) < 6 and rng.random() < 0.14):
            return self.library()
        number = rng.choice(list(self.open))
        kind, space, dispatch = self.open[number]
        draw = rng.random()
        if draw < 0.075:
            del self.open[number]
            return {"op": "drop", "lib": number}
        if draw < 0.09:
            return {"op": "reset", "lib": number}
        if space == "_":
            if draw < 0.15:
                # A bare name in a library without a namespace is undefined behaviour.
                name = f"{self.spaces[0]}::{rng.choice(self.names)}"
                return {"op": "impl_t_t", "lib": number, "name": name, "debug": self.debug()}
            do = {"op": "fallback_fallthrough", "lib": number}
            if not dispatch or rng.random() < 0.4:
                do["dispatch"] = rng.choice(PARSED) if rng.random() < 0.5 else self.key()
            return do
        if draw < 0.13 and self.flavour in ("fallback", "errors"):
            return {"op": "fallback_fallthrough", "lib": number, "dispatch": self.key()}
        if draw < 0.4 and (kind != "IMPL" or self.flavour == "errors"):
            return self.definition(number, space)
        given = {} if dispatch and rng.random() < 0.9 else {"dispatch": self.key()}
        if not dispatch and rng.random() < 0.18:
            given = {}
        if draw > 0.86:
            given = given or {"dispatch": dispatch or self.key()}
            return {"op": "impl_fallthrough", "lib": number, "name": self.name(space), **given}
        debug = self.debug()
        do = {"op": "impl_t_t", "lib": number, "name": self.name(space), "debug": debug, **given}
        if rng.random() < 0.05:
            del do["debug"]
        return do

    def definition(self, number: int, space: str) -> dict:
        rng = self.random
        op = rng.choice(["def_", "def_", "def_", "define", "define", "def_legacy"])
        if rng.random() < 0.35:
            op = rng.choice(["def_name_t_t", "def_schema_t_t"])
        do: dict = {"op": op, "lib": number}
        if op == "def_name_t_t":
            do["name"] = self.name(space)
        else:
            do["schema"] = self.schema(space)
        if op not in ("def_legacy", "def_name_t_t") and rng.random() < 0.3:
            do["alias"] = rng.choice(["CONSERVATIVE", "FROM_SCHEMA", "PURE_FUNCTION", ""])
            if self.flavour == "errors" and rng.random() < 0.1:
                do["alias"] = "NOTHING"
        if op.endswith("_t_t"):
            do["debug"] = self.debug()
            if rng.random() < 0.6:
                do["dispatch"] = self.key()
        return do


def sequence(number: int, seed: int) -> dict:
    """Runs one random sequence."""
    maker = Maker(number, seed)
    program = Program()
    observer = Observer(maker.observe, TABLE_KEYS, CACHED_KEYS)
    steps = []
    length = maker.random.randrange(36, 54)

    def take(do: dict) -> None:
        step = program.step(do)
        if do["op"] == "lib" and not step["ok"]:
            del maker.open[do["id"]]
        step["changed"] = observer.changed()
        steps.append(step)

    while len(steps) < length:
        take(maker.step())
    for number_of_library in maker.random.sample(list(maker.open), len(maker.open)):
        take({"op": "drop", "lib": number_of_library})
    return {"id": number, "flavour": maker.flavour, "observe": maker.observe, "steps": steps}


def sequences(count: int, seed: int) -> dict:
    return {
        "torch": torch.__version__,
        "seed": seed,
        "table_keys": TABLE_KEYS,
        "cached_has_keys": CACHED_KEYS,
        "format": FORMAT,
        "sequences": [forked(lambda n=n: sequence(n, seed)) for n in range(count)],
    }

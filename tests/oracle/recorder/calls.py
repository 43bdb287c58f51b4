"""Calls: small Python kernels on real tensors, and which kernels ran with which key sets."""

from __future__ import annotations

import random
import warnings

import torch
from torch import _C as C

from .programs import Program, steps_of
from .words import (
    ALIASES,
    BY_NAME,
    FULL,
    K,
    argument,
    bits,
    forked,
    key_set,
    local_sets,
    text_of,
    words,
)


class Carrier(torch.Tensor):
    """A tensor that carries the keys that it was made with, and Python."""

    __torch_function__ = C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a scenario lets calls through Python")


def tensors() -> dict:
    """Real tensors, by a name."""
    x = torch.ones(2, 2)
    made = {
        "cpu": x,
        "meta": torch.ones(2, device="meta"),
        "sparse": x.to_sparse(),
        "csr": x.to_sparse_csr(),
        "mkldnn": x.to_mkldnn(),
        "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "sparse_meta": torch.sparse_coo_tensor(size=(2, 2), device="meta"),
        "conjugate": torch.ones(2, dtype=torch.cfloat).conj(),
        "negative": torch.ones(2, dtype=torch.cfloat).conj().imag,
        "zero": torch._efficientzerotensor((2,)),
        "parameter": torch.nn.Parameter(x),
    }
    with torch.inference_mode():
        made["inference"] = torch.ones(2)
    for device in words("cpu cuda hip xla xpu ve lazy mtia meta privateuseone fpga"):
        made[f"{device}_carrier"] = carrier(device, 0)
    made["two"] = carrier("cpu", bits("SparseCUDA"))
    made["fake"] = carrier("cpu", bits("Fake"))
    made["generic"] = carrier("xla", bits("TESTING_ONLY_GenericMode", "Metal"))
    return made


def carrier(device: str, raw: int) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(
        Carrier, (2,), device=device, _extra_dispatch_keys=key_set(raw)
    )


CALL_STEPS = """setup: steps of a program; the kernels it names are in kernels. A kernel notes [its
name, the bits of the set it got (null without with_keyset), the included and the excluded set of
its thread], then does its acts, one after another, with the arguments it got: ["redispatch", op,
how, bits]: h.redispatch_boxed(set, *arguments), h = _dispatch_find_schema_or_throw, the set being
its own "and" or "minus" the bits, or "set", these bits; ["call", op]: _dispatch_call_boxed(h,
*arguments); ["with", class, arguments, acts]: acts under a guard; ["included", key, bool] and
["excluded", ...]: the setters of the thread; ["raise"]: KeyError. It returns what the last act
returned, else its "result": an int, null, or ["argument", n], the n-th positional one. calls: op,
args and kwargs ({"keys": bits} is an object that carries them), within (guards that are open),
redispatch (bits: h.redispatch_boxed instead of _dispatch_call_boxed); then the trace, and error,
or result, which is {"argument": n} for the n-th argument. The backend fallbacks at start are there
too: those that are fallthroughs; those of Autograd keys, which redispatch to the set &
_after_autograd_keyset; that of Meta, which raises NotImplementedError. No call runs another"""


class Scenario:
    """Python kernels on real tensors."""

    def __init__(self, setup: list, kernels: dict) -> None:
        self.trace: list = []
        self.program = Program({name: self.kernel(name, what) for name, what in kernels.items()})
        self.setup, self.kernels = setup, kernels
        for do in setup:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.program.run(do)

    def kernel(self, name: str, what: dict):
        def run(*args, **kwargs):
            own = None
            if what.get("with_keyset"):
                own, *args = args
            if what.get("fallback"):
                _, *args = args
            self.trace.append([name, own and own.raw_repr(), *local_sets()])
            result = self.act(what.get("acts", ()), own, args, kwargs)
            if what.get("acts") and what["acts"][-1][0] in ("redispatch", "call", "with"):
                return result
            result = what.get("result", ["argument", 0])
            return args[result[1]] if isinstance(result, list) else result

        return run

    def act(self, acts, own, args, kwargs):
        result = None
        for what, *rest in acts:
            if what == "redispatch":
                op, how, raw = rest
                keys = key_set(raw)
                if how != "set":
                    keys = own & keys if how == "and" else own - keys
                result = self.find(op).redispatch_boxed(keys, *args, **kwargs)
            elif what == "call":
                result = C._dispatch_call_boxed(self.find(rest[0]), *args, **kwargs)
            elif what == "with":
                name, arguments, inner = rest
                with getattr(C, name)(*map(argument, arguments)):
                    result = self.act(inner, own, args, kwargs)
            elif what == "raise":
                raise KeyError("raised by a kernel")
            else:
                setter = getattr(C, f"_dispatch_tls_set_dispatch_key_{what}")
                setter(K(rest[0]), rest[1])
        return result

    @staticmethod
    def find(op: str):
        base, _, overload = op.partition(".")
        return C._dispatch_find_schema_or_throw(base, overload)

    def call(self, call: dict, made: dict) -> dict:
        """Makes one call. Its tensors are names; the recording has their bits instead."""
        arguments: list = []

        def value(given):
            if isinstance(given, dict):
                given = made[given["tensor"]]
            elif isinstance(given, list):
                given = [value(item) for item in given]
            arguments.append(given)
            return given

        def neutral(given):
            if isinstance(given, dict):
                return {"keys": C._dispatch_keys(made[given["tensor"]]).raw_repr()}
            return [neutral(item) for item in given] if isinstance(given, list) else given

        given = call.get("args", [])
        args = [value(item) for item in given]
        kwargs = {name: value(item) for name, item in call.get("kwargs", {}).items()}
        self.trace.clear()

        def run():
            if "redispatch" in call:
                keys = key_set(call["redispatch"])
                return self.find(call["op"]).redispatch_boxed(keys, *args, **kwargs)
            return C._dispatch_call_boxed(self.find(call["op"]), *args, **kwargs)

        opened = [getattr(C, name)(*map(argument, arg)) for name, arg in call.get("within", [])]
        for guard in opened:
            guard.__enter__()
        try:
            result = run()
        except Exception as error:
            came = {"error": type(error).__name__, "text": text_of(error)[:300]}
        else:
            places = [n for n, item in enumerate(arguments) if item is result]
            plainly = result is None or isinstance(result, (bool, int))
            came = {"result": result if plainly else {"argument": places[0]}}
        for guard in reversed(opened):
            guard.__exit__(None, None, None)
        recorded = {**call, "args": neutral(given), "trace": list(self.trace), **came}
        if kwargs:
            recorded["kwargs"] = {name: neutral(item) for name, item in call["kwargs"].items()}
        return recorded


def run_scenario(title: str, setup: list, kernels: dict, calls: list) -> dict | None:
    made = tensors()
    scenario = Scenario(setup, kernels)
    for name in {call["op"] for call in calls}:
        try:
            C._dispatch_check_invariants(name)
        except RuntimeError:
            return None  # The cached table is stale: another kernel runs than the rules say.
    done = [scenario.call(call, made) for call in calls]
    return {"title": title, "setup": setup, "kernels": kernels, "calls": done}


# Every key that a wrapper subclass brings along: scenarios with carriers let calls pass there.
PASS = """
0 impl_fallthrough f Python
0 impl_fallthrough f PythonTLSSnapshot
"""
F = "lib 0 FRAGMENT c1\n0 def_ f~\n"
ORDINARY = words("cpu meta sparse csr mkldnn quantized nested parameter inference")
SOME = words("hip_carrier ve_carrier cuda_carrier cpu_carrier xla_carrier meta_carrier two fake")
SOME.append("generic")
AFTER = C._after_autograd_keyset.raw_repr()
BELOW = C._after_ADInplaceOrView_keyset.raw_repr()
REDISPATCH = [["redispatch", "c1::f", "and", AFTER]]


def call(*names: object, op: str = "c1::f", within: object = (), **more: object) -> dict:
    """One call: the arguments are tensors by their names."""
    args = [{"tensor": name} if isinstance(name, str) else name for name in names]
    return {"op": op, "args": args, "within": [*within], **more}


def exclude(*names: str) -> list:
    return ["_ExcludeDispatchKeyGuard", [{"set": bits(*names)}]]


def include(name: str) -> list:
    return ["_IncludeDispatchKeyGuard", [{"key": BY_NAME[name].value}]]


def force(included: int, excluded: int) -> list:
    return ["_ForceDispatchKeyGuard", [{"set": included}, {"set": excluded}]]


def scenario(title: str, setup: str, calls: list, results: dict | None = None, **acts: list):
    """Kernels are the ones that ``setup`` names, with these acts; ``results`` are their ints."""
    steps = steps_of(setup)
    kernels: dict = {}
    for do in steps:
        if "kernel" in do:
            kernels[do["kernel"]] = what = {}
            if do.get("with_keyset"):
                what["with_keyset"] = True
            if do["op"] == "fallback":
                what["fallback"] = True
    for name, own in acts.items():
        kernels[name]["acts"] = own
    for name, result in (results or {}).items():
        kernels[name]["result"] = result
    return title, steps, kernels, calls


def scenarios() -> list:
    cpu, meta, sparse = ({"tensor": name} for name in ("cpu", "meta", "sparse"))
    quantized, mkldnn = {"tensor": "quantized"}, {"tensor": "mkldnn"}
    generic = exclude("TESTING_ONLY_GenericMode")
    return [
        scenario(
            "the highest key runs",
            f"""{F}{PASS}
            0 impl f CPU cpu +
            0 impl f CUDA cuda +
            0 impl f XLA xla +
            0 impl f SparseCPU sparse +
            0 impl f Meta meta +
            0 impl f QuantizedCPU quantized +""",
            [call(name) for name in ORDINARY + SOME],
        ),
        scenario("no kernel at all", F + PASS, [call(name) for name in ORDINARY + SOME]),
        scenario(
            "a catch-all serves every backend and autograd key",
            f"{F}{PASS}0 impl f Undefined math +",
            [call(name) for name in (*ORDINARY, *SOME, "conjugate", "negative", "zero")],
        ),
        scenario(
            "a default for all backends leaves autograd keys alone",
            f"{F}{PASS}0 impl f CompositeExplicitAutograd default +",
            [call(name) for name in ORDINARY + SOME],
        ),
        scenario(
            "a nonfunctional default leaves some backends out",
            f"{F}{PASS}0 impl f CompositeExplicitAutogradNonFunctional default +",
            [call(name) for name in ORDINARY + SOME],
        ),
        scenario(
            "a nested composite serves nested tensors",
            f"""{F}
            0 impl f CompositeImplicitAutogradNestedTensor nested +
            0 impl f CPU cpu +""",
            [call("cpu"), call("nested")],
        ),
        scenario(
            "an Autograd kernel redispatches below itself",
            f"""{F}{PASS}
            0 impl f CPU cpu +
            0 impl f HIP hip +
            0 impl f SparseCPU sparse +
            0 impl f Autograd autograd +""",
            [call(name) for name in ORDINARY + SOME],
            autograd=REDISPATCH,
        ),
        scenario(
            "three kernels, each redispatching below itself",
            f"""{F}
            0 impl f AutogradCPU autograd +
            0 impl f ADInplaceOrView view +
            0 impl f CPU cpu +""",
            [call("cpu"), call("parameter"), call("inference"), call("sparse")],
            autograd=REDISPATCH,
            view=[["redispatch", "c1::f", "and", BELOW]],
        ),
        scenario(
            "a kernel excludes its key and calls the operator again",
            f"{F}0 impl f AutogradCPU autograd +\n0 impl f CPU cpu +",
            [call("cpu"), call("cpu", within=[exclude("CPU")])],
            autograd=[["with", "_AutoDispatchBelowAutograd", [], [["call", "c1::f"]]]],
        ),
        scenario(
            "kernels without a key set",
            f"{F}0 impl f CPU cpu\n0 impl f AutogradCPU autograd",
            [call("cpu"), call("inference"), call("sparse")],
            autograd=[["redispatch", "c1::f", "set", bits("CPU")]],
        ),
        scenario(
            "a fallthrough is passed by",
            f"""{F}{PASS}
            0 impl_fallthrough f AutogradCPU
            0 impl_fallthrough f SparseCPU
            0 impl f CPU cpu +
            0 impl f CUDA cuda +
            0 impl f AutogradCUDA autograd +
            0 impl f SparseCUDA math +""",
            [call(n) for n in words("cpu sparse two cuda_carrier cpu_carrier inference")],
            autograd=REDISPATCH,
        ),
        scenario(
            "a fallthrough at the only key leaves none",
            f"{F}0 impl_fallthrough f CPU",
            [call("cpu"), call("inference"), call("meta")],
        ),
        scenario(
            "a fallthrough for every backend",
            f"""{F}{PASS}
            0 impl_fallthrough f CompositeExplicitAutograd
            0 impl f AutogradCPU autograd +
            0 impl f AutogradOther other +""",
            [call("cpu"), call("inference"), call("hip_carrier"), call("xla_carrier")],
        ),
        scenario(
            "redispatching to a fallthrough is refused",
            f"{F}0 impl_fallthrough f CPU\n0 impl_fallthrough f Metal\n0 impl f CUDA cuda +",
            [
                call("cpu", redispatch=raw)
                for raw in (
                    bits("CPU"),
                    bits("CUDA"),
                    bits("BackendSelect"),
                    bits("CPU", "CUDA"),
                    0,
                )
            ],
        ),
        scenario(
            "redispatch takes the set as it is",
            f"""{F}
            0 impl f CPU cpu +
            0 impl f CUDA cuda +
            0 impl f Autograd autograd +
            0 impl f Fake fake +
            0 impl f SparseCUDA sparse +""",
            [
                call("cpu", redispatch=bits(*words(names)), within=within)
                for names in (
                    *("CPU", "CPU CUDA", "AutogradHIP", "Fake", "AutogradCPU SparseCUDA"),
                    *("HIP", "", "AutogradOther"),
                )
                for within in ([], [exclude("CUDA", "AutogradCPU")], [include("Fake")])
            ],
        ),
        scenario(
            "excluding a backend's key excludes it for all",
            f"""{F}{PASS}
            0 impl f CPU cpu +
            0 impl f SparseCPU sparse +
            0 impl f SparseCUDA cuda +
            0 impl f CompositeImplicitAutograd math +""",
            [
                call(name, within=[exclude(*words(names))])
                for name in ("cpu", "sparse", "two")
                for names in ("SparseMeta", "CPU", "CUDA Sparse", "AutogradHIP")
            ],
        ),
        scenario(
            "included keys, excluded keys, and both",
            f"""{F}
            0 impl f CPU cpu +
            0 impl f FPGA fpga +
            0 impl f Fake fake +
            0 impl f CUDA cuda +
            0 impl f Autograd autograd +
            0 impl f TESTING_ONLY_GenericMode mode +""",
            [
                call("cpu", within=within)
                for within in (
                    [include("Fake")],
                    [include("FPGA")],
                    [include("TESTING_ONLY_GenericMode")],
                    [include("CUDA")],
                    [include("Undefined")],
                    [include("Autograd")],
                    [include("Fake"), exclude("Fake")],
                    [exclude("Fake"), include("Fake")],
                    [exclude("AutogradCPU"), include("TESTING_ONLY_GenericMode")],
                    [exclude("CPU", "AutogradCPU")],
                    [force(bits("Fake"), 0)],
                    [force(0, 0)],
                    [force(0, FULL)],
                    [["_SetExcludeDispatchKeyGuard", [{"key": 24}, False]]],
                )
            ],
            autograd=REDISPATCH,
            mode=[["with", *generic, [["call", "c1::f"]]]],
        ),
        scenario(
            "operators without tensors",
            """lib 0 FRAGMENT c1
            0 def_ "n(int n) -> int"
            0 def_ "m() -> int"
            0 def_ "o(int n) -> int"
            0 impl n BackendSelect select +
            0 impl m CompositeImplicitAutograd math +
            0 impl o CompositeExplicitAutograd default +
            0 impl o CPU cpu +""",
            [
                call(*args, op=op, within=within)
                for op, args in (("c1::n", [1]), ("c1::m", []), ("c1::o", [5]))
                for within in (
                    *([], [exclude("BackendSelect")]),
                    *([include("CPU")], [include("Undefined")]),
                )
            ],
            {"math": 2, "default": 3, "cpu": 4},
            select=[["redispatch", "c1::o", "set", bits("CPU")]],
        ),
        scenario(
            "a kernel at BackendSelect",
            f"""{F}
            0 impl f BackendSelect select +
            0 impl f CPU cpu +
            0 impl f AutogradCPU autograd +""",
            [call("cpu"), call("inference"), call("cpu", within=[exclude("BackendSelect")])],
            select=[["redispatch", "c1::f", "minus", bits("BackendSelect")]],
            autograd=REDISPATCH,
        ),
        scenario(
            "tensor lists and optional tensors",
            """lib 0 FRAGMENT c1
            0 def_ "f(Tensor[] a, Tensor?[] b, Tensor? z=None, int n=0, *, Tensor? w=None) -> int"
            0 impl f CPU cpu +
            0 impl f SparseCPU sparse +
            0 impl f CompositeExplicitAutograd default +""",
            [
                call([], []),
                call([cpu], []),
                call([cpu, sparse], []),
                call([], [None, cpu]),
                call([], [None]),
                call([], [], None),
                call([], [], cpu),
                call([], [], meta, 3),
                call([cpu], [], meta),
                call([], [], kwargs={"w": cpu}),
                call([], [], kwargs={"w": None, "n": 4}),
                call([quantized], [cpu], kwargs={"z": sparse, "w": mkldnn}),
                call([]),
                call([], [], None, 0, 1),
                call(cpu, []),
                call([None], []),
                call([], [], kwargs={"nothing": 1}),
            ],
            {"cpu": 1, "sparse": 2, "default": 3},
        ),
        scenario(
            "what is nested deeper carries no keys",
            """lib 0 FRAGMENT c1
            0 def_ "f(Tensor[][] xs, Tensor[]? ys=None) -> int"
            0 impl f CPU cpu +
            0 impl f CompositeExplicitAutograd default +""",
            [call([[cpu]]), call([], [cpu]), call([[cpu]], within=[include("CPU")])],
            {"cpu": 1, "default": 2},
        ),
        scenario(
            "backend fallbacks run for operators without a kernel",
            f"""{F}
            0 def_ g~
            lib 1 IMPL _
            0 impl g CPU own +
            1 fallback CPU cpu +
            1 fallback SparseCPU sparse
            1 fallback Fake fake +""",
            [
                call("cpu"),
                call("cpu", op="c1::g"),
                call("sparse"),
                call("sparse", op="c1::g"),
                call("cpu", within=[include("Fake")]),
                call("meta"),
                call("quantized"),
                call("cpu", redispatch=bits("SparseCPU")),
            ],
            fake=[["redispatch", "c1::f", "minus", bits("Fake")]],
        ),
        scenario(
            "an alias kernel goes before a backend fallback",
            f"""{F}
            lib 1 IMPL _
            0 impl f CompositeExplicitAutograd default +
            1 fallback CPU cpu
            1 fallback NestedTensorCPU nested""",
            [call("cpu"), call("nested"), call("inference")],
        ),
        scenario(
            "the kernel before the newest runs when that is gone",
            f"""{F}
            lib 2 IMPL c1 CPU
            0 impl f CPU old +
            2 impl f CPU new +
            2 drop""",
            [call("cpu")],
        ),
        scenario(
            "the newest kernel of a key runs",
            f"{F}0 impl f CPU old +\n0 impl f CPU new +",
            [call("cpu")],
        ),
        scenario(
            "an ambiguous kernel is refused",
            f"""{F}{PASS}
            0 impl f SparseCPU sparse +
            0 impl f MkldnnCPU mkldnn +
            0 impl f CompositeImplicitAutograd math +""",
            [call(n) for n in words("cpu sparse mkldnn hip_carrier inference")],
        ),
        scenario(
            "a kernel raises",
            f"{F}0 impl f CPU cpu +\n0 impl f AutogradCPU autograd +",
            [call("cpu"), call("inference")],
            cpu=[["raise"]],
            autograd=REDISPATCH,
        ),
        scenario(
            "one operator calls another",
            f"""{F}
            0 def_ g~
            0 impl f CPU cpu +
            0 impl f AutogradCPU autograd +
            0 impl g CompositeImplicitAutograd math +""",
            [call("cpu", op="c1::g"), call("cpu", op="c1::g", within=[exclude("AutogradCPU")])],
            autograd=REDISPATCH,
            math=[["call", "c1::f"]],
        ),
        scenario(
            "what a kernel sets in its thread stays set",
            f"""{F}
            0 impl f AutogradCPU autograd +
            0 impl f Fake fake +
            0 impl f CPU cpu +""",
            [call("cpu"), call("cpu")],
            autograd=[
                ["excluded", BY_NAME["AutogradCPU"].value, True],
                ["included", BY_NAME["Fake"].value, True],
                ["call", "c1::f"],
            ],
            fake=[["included", BY_NAME["Fake"].value, False], ["call", "c1::f"]],
        ),
        scenario(
            "arguments that do not fit",
            f"""{F}
            0 def_ "n(int n, *, float e=1., bool b=False) -> int"
            0 impl f CPU cpu +
            0 impl n CompositeImplicitAutograd math +""",
            [
                call(),
                call(3),
                call(None),
                call([cpu]),
                call(cpu, 1),
                call(cpu, kwargs={"x": cpu}),
                call(kwargs={"x": cpu}),
                call(kwargs={"y": cpu}),
                call(1, 2, op="c1::n"),
                call(1, op="c1::n", kwargs={"e": 2}),
                call(1, op="c1::n", kwargs={"b": 1}),
                call(True, op="c1::n"),
                call([1], op="c1::n"),
                call(None, op="c1::n"),
            ],
            {"math": 1},
        ),
    ]


# When a thread includes these, C++ uses them for dispatch only.
SAFE = words(
    """
    CPU CUDA FPGA Vulkan Metal CustomRNGKeyId Fake AutogradNestedTensor NestedTensorCPU
    DeferredInit TESTING_ONLY_GenericWrapper TESTING_ONLY_GenericMode SparseCUDA QuantizedXPU
    AutogradXLA
    """
)
AT = words(
    """
    CPU CUDA XLA HIP Meta FPGA Metal Fake SparseCPU SparseCUDA QuantizedCPU NestedTensorCPU
    MkldnnCPU BackendSelect ADInplaceOrView AutogradOther AutogradCPU AutogradXLA AutogradCUDA
    AutogradNestedTensor AutogradMeta AutocastCPU DeferredInit TESTING_ONLY_GenericMode Tracer
    CompositeImplicitAutograd CompositeExplicitAutograd Autograd Undefined
    CompositeExplicitAutogradNonFunctional CompositeImplicitAutogradNestedTensor
    """
)


def random_scenario(seed: int) -> tuple:
    rng = random.Random(seed)
    lines = ["lib 0 FRAGMENT c1", "0 def_ 'f(Tensor x, Tensor? y=None) -> Tensor'", PASS]
    acts = {}
    for number, key in enumerate(rng.sample(AT, rng.randrange(4, 13))):
        if rng.random() < 0.15:
            lines.append(f"0 impl_fallthrough f {key}")
            continue
        lines.append(f"0 impl f {key} k{number} +")
        # To what is below itself, so that it ends.
        if key == "Autograd":
            acts[f"k{number}"] = REDISPATCH
        elif key not in (*ALIASES, "Undefined") and rng.random() < 0.6:
            below = C._dispatch_keyset_full_after(BY_NAME[key]).raw_repr()
            acts[f"k{number}"] = [["redispatch", "c1::f", "and", below]]
    calls = []
    for _ in range(6):
        within = []
        for _ in range(rng.randrange(0, 3)):
            if rng.random() < 0.5:
                within.append(exclude(*rng.sample(AT, rng.randrange(1, 3))))
            else:
                within.append(include(rng.choice(SAFE)))
        arguments: list = [rng.choice(ORDINARY + SOME)]
        if rng.random() < 0.4:
            arguments.append(rng.choice([None, rng.choice(ORDINARY + SOME)]))
        more = {"redispatch": bits(*rng.sample(SAFE, 2))} if rng.random() < 0.15 else {}
        calls.append(call(*arguments, within=within, **more))
    return scenario(f"random {seed}", "\n".join(lines), calls, **acts)


def calls() -> list:
    warnings.simplefilter("ignore")
    made = [*scenarios(), *[random_scenario(seed) for seed in range(110)]]
    done = [forked(lambda s=scenario: run_scenario(*s)) for scenario in made]
    return [scenario for scenario in done if scenario]


def tensor_questions() -> dict:
    """The answers of the functions that take a tensor, by its bits."""
    warnings.simplefilter("ignore")
    made = tensors()
    rng = random.Random(5)
    for number in range(40):
        made[number] = carrier("cpu", bits(*rng.sample([*BY_NAME], 2)))
    return {
        C._dispatch_keys(tensor).raw_repr(): [
            C._dispatch_key_set(tensor),
            C._dispatch_isTensorSubclassLike(tensor),
        ]
        for tensor in made.values()
    }

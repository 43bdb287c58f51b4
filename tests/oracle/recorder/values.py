"""Functions of keys and key sets, uses of the objects (expressions.txt), and guards."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from pathlib import Path

from torch import _C as C

from .words import (
    BY_NAME,
    KS,
    VALUES,
    K,
    argument,
    bits,
    forked,
    key_set,
    local_sets,
    outcome,
    plain,
    words,
)

OF_A_KEY = words(
    """
    _dispatch_key_name _dispatch_key_parse _to_functionality_key _functionality_to_backend_keys
    _dispatch_is_alias_key _dispatch_keyset_full_after _dispatch_get_backend_keyset_from_autograd
    _dispatch_has_backend_fallback _dispatch_tls_is_dispatch_key_included
    _dispatch_tls_is_dispatch_key_excluded
    """
)
NO_KEYS = ["", "Bogus", "cpu", "CPU ", " CPU", "49", "DispatchKey.CPU", "CatchAll", "autograd"]
DEVICES = words(
    """
    cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia
    privateuseone privateuse1 CPU cpux cuda: cuda:0 cuda:00 cuda:-1 cuda:x : :1 metal
    """
)
DEVICES += ["", " cpu", "cpu "]
CONSTANTS = words(
    """
    _after_autograd_keyset _after_ADInplaceOrView_keyset _dispatch_autogradother_backends
    _additional_keys_to_prop_for_wrapper_tensors
    """
)
SPACE = {"C": C, "K": K, "KS": KS, "copy": copy, "pickle": pickle}


def expressions() -> list:
    sources = Path(__file__).with_name("expressions.txt").read_text().splitlines()
    return [[source, outcome(lambda s=source: eval(s, dict(SPACE)))] for source in sources]


def functions() -> dict:
    """By name: [arguments, outcome] for all keys, given as keys and as names."""
    recorded = {}
    for name in OF_A_KEY:
        function = getattr(C, name)
        of_keys = [[{"key": v}, outcome(lambda f=function, v=v: f(K(v)))] for v in VALUES]
        of_names = [[n, outcome(lambda f=function, n=n: f(n))] for n in (*BY_NAME, *NO_KEYS)]
        recorded[name] = of_keys + of_names
    recorded["_parse_dispatch_key"] = [
        [n, outcome(lambda n=n: C._parse_dispatch_key(n))] for n in (*BY_NAME, *NO_KEYS)
    ]
    recorded["_dispatch_key_for_device"] = [
        [n, outcome(lambda n=n: C._dispatch_key_for_device(n))] for n in DEVICES
    ]
    return recorded


def included_in_alias() -> dict:
    """By alias: the numbers of the keys that it stands for, or the error."""
    recorded: dict = {}
    for alias in VALUES:
        answers = [
            outcome(lambda a=alias, k=key: C._dispatch_is_included_in_alias(K(k), K(a)))
            for key in VALUES
        ]
        errors = sorted({answer["error"] for answer in answers if "error" in answer})
        recorded[alias] = {
            "true": [key for key, a in zip(VALUES, answers, strict=True) if a.get("value")],
            "errors": errors,
            "failing": [key for key, a in zip(VALUES, answers, strict=True) if "error" in a],
        }
    return recorded


def key_sets(rng: random.Random) -> list:
    """Operations of random sets: [raw, other raw, key, results by operation]."""
    recorded = []
    raws = [bits(name) for name in BY_NAME]
    for number in range(300):
        one, other = (
            bits(*rng.sample([*BY_NAME], rng.randrange(0, 6)))
            if number % 3
            else rng.getrandbits(62)
            for _ in range(2)
        )
        if number < len(raws):
            one = raws[number]
        key = K(rng.choice(VALUES))
        a, b = key_set(one), key_set(other)
        results = {
            "|": a | b,
            "&": a & b,
            "-": a - b,
            "==": a == b,
            "== itself": a == key_set(one),
            "has": a.has(key),
            "add": a.add(key),
            "remove": a.remove(key),
            "raw_repr": a.raw_repr(),
            "highestPriorityTypeId": a.highestPriorityTypeId(),
            "repr": repr(a),
            "to_string": C._dispatch_keyset_to_string(a),
            "state": a.__getstate__(),
        }
        results = {name: plain(result) for name, result in results.items()}
        recorded.append([one, other, key.value, results])
    return recorded


# --- guards ---------------------------------------------------------------------------------------

GUARDS = {
    "_ExcludeDispatchKeyGuard": ("set",),
    "_IncludeDispatchKeyGuard": ("key",),
    "_ForceDispatchKeyGuard": ("set", "set"),
    "_AutoDispatchBelowAutograd": (),
    "_AutoDispatchBelowADInplaceOrView": (),
    "_PreserveDispatchKeyGuard": (),
    "_SetExcludeDispatchKeyGuard": ("plain key", "bool"),
}
GUARD_STEPS = """a step is [what, ...], sets: the included and the excluded set after it.
["new", n, class, arguments]: guard n is made, and not entered. ["enter", n], ["exit", n]: its
__enter__() and __exit__(None, None, None). ["forget", n]: its last reference goes. ["included",
key, bool], ["excluded", key, bool]: _dispatch_tls_set_dispatch_key_included and _excluded"""


PER_BACKEND = bits("Dense", "Quantized", "Sparse", "SparseCsr", "NestedTensor")
PER_BACKEND |= bits("AutogradFunctionality")


class Guards:
    """Takes steps, and notes the thread's sets after each."""

    def __init__(self) -> None:
        self.guards: dict[int, object] = {}
        self.steps: list = []
        self.sets: list = []

    def do(self, what: str, *rest: object) -> None:
        if what == "new":
            number, name, arguments = rest
            self.guards[number] = getattr(C, name)(*map(argument, arguments))
        elif what == "enter":
            self.guards[rest[0]].__enter__()
        elif what == "exit":
            self.guards[rest[0]].__exit__(None, None, None)
        elif what == "forget":
            del self.guards[rest[0]]
        else:
            setter = getattr(C, f"_dispatch_tls_set_dispatch_key_{what}")
            setter(K(rest[0]), rest[1])
        self.steps.append([what, *rest])
        self.sets.append(local_sets())

    def recorded(self) -> dict:
        return {"steps": self.steps, "sets": self.sets}


def run_guards(steps: list) -> dict:
    guards = Guards()
    for step in steps:
        guards.do(*step)
    return guards.recorded()


def run_random_guards(seed: int) -> dict:
    """Properly nested, with setters in between."""
    rng = random.Random(seed)
    guards = Guards()
    opened: list[int] = []

    def one(kind: str) -> object:
        if kind == "key":
            return {"key": rng.choice([0, 1, 5, 20, 21, 49, 50, 64, 83, 134, 135, 150, 11, 19, 24])}
        if kind == "plain key":  # for one without a backend a guard can remember everything
            return {"key": rng.choice([2, 11, 16, 19, 20, 23, 24, 41])}
        if kind == "bool":
            return rng.random() < 0.5
        return {"set": bits(*rng.sample([*BY_NAME], rng.randrange(0, 4)))}

    while len(guards.steps) < 24:
        draw = rng.random()
        if draw < 0.3 and len(opened) < 4:
            number = len(guards.guards)
            name = rng.choice([*GUARDS])
            guards.do("new", number, name, [one(kind) for kind in GUARDS[name]])
            guards.do("enter", number)
            opened.append(number)
        elif draw < 0.5 and opened:
            guards.do("exit", opened.pop())
        else:
            which, key, on = rng.randrange(2), rng.choice(VALUES), rng.random() < 0.6
            raw = KS(K(key)).raw_repr()
            if not on and raw & PER_BACKEND and local_sets()[which] & raw == raw:
                continue  # it would leave its backend behind, without a functionality
            guards.do(("included", "excluded")[which], key, on)
    while opened:
        guards.do("exit", opened.pop())
    return guards.recorded()


def guards() -> list:
    cpu, meta = {"set": bits("CPU")}, {"set": bits("Meta", "Tracer")}
    by_hand = [
        [["exit", 0], ["enter", 0], ["exit", 0]],
        [["enter", 0], ["enter", 0], ["exit", 0], ["exit", 0]],
        [["enter", 0], ["exit", 0], ["exit", 0], ["enter", 0], ["exit", 0]],
        [["enter", 0], ["forget", 0]],
        [["enter", 0], ["included", 23, True], ["enter", 0], ["excluded", 2, True], ["exit", 0]],
        [["enter", 0], ["enter", 1], ["exit", 1], ["enter", 1], ["exit", 1], ["exit", 0]],
        [["excluded", 134, True], ["excluded", 136, False], ["included", 136, True]],
    ]
    recorded = []
    for name, kinds in GUARDS.items():
        arguments = [[cpu, meta][i] if k == "set" else {"key": 49} for i, k in enumerate(kinds)]
        if name == "_SetExcludeDispatchKeyGuard":
            arguments = [{"key": 24}, False]
        for steps in by_hand:
            new = [["new", 0, name, arguments], ["new", 1, "_ExcludeDispatchKeyGuard", [meta]]]
            recorded.append(forked(lambda new=new, steps=steps: run_guards(new + steps)))
    recorded += [forked(lambda s=seed: run_random_guards(s)) for seed in range(60)]
    return recorded


def in_a_thread() -> list[int]:
    """The sets of a thread that begins while its parent has set others."""
    seen: list = []
    with C._IncludeDispatchKeyGuard(K.CPU), C._ExcludeDispatchKeyGuard(KS(K.CUDA)):
        thread = threading.Thread(target=lambda: seen.extend(local_sets()))
        thread.start()
        thread.join()
    return seen

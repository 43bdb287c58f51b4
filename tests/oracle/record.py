"""Records what PyTorch 2.13 does, for the tests that are named test_oracle_*.py.

Run it with a Python that has the CPU build of PyTorch 2.13::

    python tests/oracle/record.py

It writes compat.json.gz and more_sequences.json.gz beside itself; their ``format`` describes them.
Every recording that registers or changes thread-local sets runs in a forked process of its own. So
nothing is left over for the next one, and TORCH_WARN_ONCE can warn in each. Seeds are fixed: the
same build gives the same files.

Nothing here or in recorder/ imports mdispatch, and no test imports it.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import torch
from recorder.calls import CALL_STEPS, calls, tensor_questions
from recorder.programs import KERNEL_STEPS, programs, python_dispatchers
from recorder.sequences import sequences
from recorder.values import (
    CONSTANTS,
    GUARD_STEPS,
    expressions,
    functions,
    guards,
    in_a_thread,
    included_in_alias,
    key_sets,
)
from recorder.words import FULL, MARKERS, VALUES, K, forked
from torch import _C as C


def one_line(text: str) -> str:
    return " ".join(text.split())


def compat() -> dict:
    return {
        "torch": torch.__version__,
        "format": {
            "values": "{'key': number} is a DispatchKey, {'set': bits} a DispatchKeySet, {'type':"
            " name} an object of that class. An outcome is {'value'} or {'error', 'text'}",
            "members": "DispatchKey.__members__: name, number; markers are no keys",
            "shown": "by number: repr, str, name",
            "functions": "by name: [argument, outcome]",
            "key_sets": "[bits a, bits b, key, {operation: result}]: a | b, a.has(key) ...",
            "expressions": "[source, outcome], with C, K = C.DispatchKey, KS = C.DispatchKeySet",
            "included_in_alias": "by alias: the keys of which it is true, those where it raises",
            "programs": f"by title. {one_line(KERNEL_STEPS)}. Then what there is to ask about each"
            " operator that exists; for_key: has_kernel, has_computed_kernel, is_fallthrough, is"
            " listed, by key. left: the operators that are there when all libraries are gone",
            "guards": one_line(GUARD_STEPS),
            "calls": one_line(CALL_STEPS),
            "tensors": "by its bits: [_dispatch_key_set, _dispatch_isTensorSubclassLike]",
            "python_dispatcher": "register(keys), one after another; then what the methods return",
        },
        "constants": {name: getattr(C, name).raw_repr() for name in CONSTANTS},
        "full": FULL,
        "members": [[name, key.value] for name, key in K.__members__.items()],
        "markers": MARKERS,
        "shown": {v: [repr(K(v)), str(K(v)), K(v).name] for v in VALUES},
        "functions": functions(),
        "included_in_alias": included_in_alias(),
        "key_sets": key_sets(random.Random(11)),
        "expressions": forked(expressions),
        "in_a_new_thread": forked(in_a_thread),
        "guards": guards(),
        "programs": programs(),
        "calls": calls(),
        "tensors": forked(tensor_questions),
        "python_dispatcher": python_dispatchers(),
    }


def write(name: str, recorded: dict) -> None:
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
    data = gzip.compress(text.encode(), 9, mtime=0)
    Path(__file__).with_name(f"{name}.json.gz").write_bytes(data)
    print(f"{name}: {len(text)} characters, {len(data)} bytes compressed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert torch.__version__.startswith("2.13."), torch.__version__
    write("compat", compat())
    write("more_sequences", sequences(120, 7021))

"""Tensors of PyTorch in calls of other processes."""

from __future__ import annotations

import importlib.util

import pytest
from kinds import run_main
from test_arrays import SHOP

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

from mdispatch.across import arrays

pytestmark = [pytest.mark.shared, pytest.mark.needs("across")]

TYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64"
TYPES += " complex128 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"


def shop(text: str, *args: object) -> dict:
    return run_main(SHOP + text, *args)


def test_a_tensor_of_each_type_and_shape_arrives_as_it_is():
    got = shop(
        """
worker = begin(f'''
TYPES = {rest[0].split()!r}
import torch
def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8).tolist()
found = dict()
with md.routing("shop", timeout=limit(60.0)):
    for name in TYPES:
        whole = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(getattr(torch, name))
        for x in (whole, whole.t(), whole[0, 0], whole[:0], whole[:, 1:2]):
            back, dtype, shape = md.ops.shop.told(x)
            is_same = back.dtype == x.dtype and back.shape == x.shape and bits(back) == bits(x)
            is_same = is_same and dtype == str(x.dtype) and shape == list(x.shape)
            found.setdefault(name, []).append(is_same and back is not x)
    large = md.ops.shop.twice(torch.ones(10_000_000))  # 40 MB
report(found=found, large=[large.shape[0], float(large.sum())])
''')
import torch
@served("told(Tensor x) -> Any[]")
def told(x):
    return [x, str(x.dtype), list(x.shape)]
served("twice(Tensor x) -> Tensor")(lambda x: x * 2)
done(**end(worker))
""",
        "subprocess",
        TYPES,
    )
    assert got["found"] == {each: [True] * 5 for each in TYPES.split()}
    assert got["large"] == [10_000_000, 20_000_000.0]


def test_what_is_no_plain_tensor_of_the_cpu_is_refused_in_words():
    got = shop(
        """
worker = begin('''
import torch
with md.routing("shop", timeout=limit(60.0)):
    take, ones = md.ops.shop.take, torch.ones(2)
    told = dict(
        parameter=outcome(take, torch.nn.Parameter(ones)),
        meta=outcome(take, torch.ones(2, device="meta")),
        sparse=outcome(take, torch.eye(2).to_sparse()),
        batched=outcome(lambda: torch.func.vmap(take)(torch.ones(2, 2))),
    )
    fine = take(ones)
report(told=told, fine=fine)
''')
import torch
taken = []
@served("take(Any x) -> int")
def take(x):
    taken.append(x.numel())
    return x.numel()
done(**end(worker), taken=taken)
""",
        "subprocess",
    )
    told = got["told"]
    assert (got["fine"], got["taken"]) == (2, [2])
    assert {each[0] for each in told.values()} <= {"CannotTravelError", "MissingKernelError"}
    text = {name: each[1] for name, each in told.items()}
    assert "Parameter, whose base class torch.Tensor travels" in text["parameter"]
    assert "memory is on meta, and only that of the CPU travels\nSend x.cpu()" in text["meta"]
    assert "layout torch.sparse_coo does not travel" in text["sparse"]


def test_no_gradient_is_lost_in_silence():
    got = shop(
        """
HEAD = '''
import torch
def setup():
    md.register_autograd("shop::scale", lambda ctx, grad: grad * 2)
'''
worker = begin(HEAD + '''
setup()
leaf = torch.ones(2, requires_grad=True)
with md.routing("shop", timeout=limit(60.0)):
    # The graph has a node of the operator, which has no formula.
    results = [md.ops.shop.twice(x).sum() for x in (leaf, leaf * 1)]
    refused = [outcome(each.backward)[1] for each in results]
    refused.append(outcome(md.ops.shop.model, leaf.detach())[1])
    with torch.no_grad():
        fine = md.ops.shop.twice(leaf).tolist()
    md.ops.shop.scale(leaf).sum().backward()  # the formula runs here
report(refused=refused, fine=fine, grad=leaf.grad.tolist())
''')
exec(textwrap.dedent(HEAD), globals())
setup = globals()["setup"]
served("twice(Tensor x) -> Tensor")(lambda x: x * 2)
weight = torch.ones(2, requires_grad=True)
served("model(Tensor x) -> Tensor")(lambda x: x * weight)
lib.define("scale(Tensor x) -> Tensor")
lib.impl("scale", lambda x: x * 2, "CPU", serve="host")
setup()
done(**end(worker))
""",
        "subprocess",
    )
    *without_formula, lost = got["refused"]
    assert all("came to shop::twice, which has no formula" in each for each in without_formula)
    assert "its result is an object of torch.Tensor, whose gradient would be lost" in lost
    assert got["fine"] == [2.0, 2.0]
    assert got["grad"] == [2.0, 2.0]


def test_what_a_kernel_writes_comes_back_where_the_schema_says_so_and_only_there():
    got = shop(
        """
worker = begin('''
import torch
x = torch.zeros(2, 2)
version = x._version
with md.routing("shop", timeout=limit(60.0)):
    same = md.ops.shop.add(x) is x
    column = x[:, 1]
    md.ops.shop.add(column)
    raised = x._version > version
    spoilt = md.ops.shop.spoil(x)
    kept = md.ops.shop.keep(x)
report(same=same, x=x.tolist(), raised=raised, spoilt=spoilt.tolist(), kept=kept)
''')
import torch
served("add(Tensor(a!) x) -> Tensor(a!)")(lambda x: x.add_(5))
served("spoil(Tensor x) -> Tensor")(lambda x: x.mul_(2))
kept = []
@served("keep(Tensor x) -> int")
def keep(x):
    kept.append(x)  # a copy, which is the kernel's own
    return len(kept)
done(**end(worker), there=kept[0].tolist())
""",
        "subprocess",
    )
    assert got["same"]
    assert got["raised"]
    assert got["x"] == got["there"] == [[5.0, 10.0], [5.0, 10.0]]
    assert got["spoilt"] == [[10.0, 20.0], [10.0, 20.0]]
    assert got["kept"] == 1


def test_results_become_what_the_caller_asks_for():
    got = shop(
        """
worker = begin('''
import torch
import numpy as np
found = []
def told(x):
    return [type(x).__name__, str(getattr(x, "dtype", None)), x.tolist()]
for kind in (None, "numpy", "torch", "memory"):
    with md.routing("shop", timeout=limit(60.0), arrays=kind):
        found.append([told(each) for each in md.ops.shop.both()])
x = torch.ones(1)
with md.routing("shop", timeout=limit(60.0), arrays="numpy"):
    none = [outcome(md.ops.shop.small)[1], md.ops.shop.itself(x) is not x]
with md.routing("shop", timeout=limit(60.0), arrays="torch"):
    none.append(outcome(md.ops.shop.texts)[1])
report(found=found, none=none)
''')
import torch
import numpy as np
served("both() -> Any[]")(lambda: [torch.ones(2, 1), np.zeros(1, dtype="i8")])
served("small() -> Any")(lambda: torch.ones(2, dtype=torch.bfloat16))
served("texts() -> Any")(lambda: np.array(["a"]))
served("itself(Any x) -> Any")(lambda x: x)
done(**end(worker))
""",
        "subprocess",
    )
    ones, zeros = [[1.0], [1.0]], [0]
    assert got["found"] == [
        [["Tensor", "torch.float32", ones], ["ndarray", "int64", zeros]],
        [["ndarray", "float32", ones], ["ndarray", "int64", zeros]],
        [["Tensor", "torch.float32", ones], ["Tensor", "torch.int64", zeros]],
        [["memoryview", "None", ones], ["memoryview", "None", zeros]],
    ]
    assert "NumPy has no items of torch.bfloat16" in got["none"][0]
    assert got["none"][1]
    assert "PyTorch has no items of <U1" in got["none"][2]


@pytest.mark.parametrize("kind", ["", "numpy", "torch", "memory"])
def test_an_empty_tensor_and_one_without_dimensions_become_each_kind(kind):
    token = arrays.asked.set(kind)
    try:
        empty = arrays.array_of("torch float32 0 3", memoryview(b""), True)
        single = arrays.array_of("torch float32", memoryview(bytearray(4)), True)
    finally:
        arrays.asked.reset(token)
    assert empty.nbytes == 0
    assert kind == "memory" or tuple(empty.shape) == (0, 3)
    assert (single.tolist(), tuple(single.shape)) == (0.0, ())


@pytest.mark.parametrize("kind", ["", "numpy", "memory"])
@pytest.mark.parametrize(
    "form", ["torch float32 3", f"torch float32 {2**70}", f"torch float32 0 {2**70} 1", "torch"]
)
@pytest.mark.parametrize("size", [0, 4, 5])
def test_a_shape_that_does_not_fit_the_memory_is_damaged(form, size, kind):
    token = arrays.asked.set(kind)
    told = ""
    try:
        made = arrays.array_of(form, memoryview(bytearray(size)), True)
    except ValueError as error:
        told = str(error)
    finally:
        arrays.asked.reset(token)
    assert "damaged" in told or (kind, made.nbytes, size) == ("memory", 0, 0)


def test_who_does_not_import_pytorch_may_ask_for_arrays_of_numpy():
    got = shop(
        """
worker = begin('''
import sys
import numpy as np
with md.routing("shop", timeout=limit(60.0), arrays="numpy"):
    got = md.ops.shop.embed([1, 2])
report(got=[type(got).__name__, got.tolist()], imported="torch" in sys.modules)
''')
import torch
served("embed(int[] tokens) -> Tensor")(lambda tokens: torch.tensor(tokens) * 2.0)
done(**end(worker))
""",
        "subprocess",
    )
    assert got["got"] == ["ndarray", [2.0, 4.0]]
    assert not got["imported"]

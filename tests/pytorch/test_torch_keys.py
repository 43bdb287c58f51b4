"""Which dispatch keys PyTorch's tensors carry, in every numbering that it has had since 2.4."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
import sysconfig
from types import SimpleNamespace

import pytest
from patience import limit
from torch_kinds import kinds, places

import mdispatch as md
from mdispatch.dispatch.context import values
from mdispatch.keys.numbers import BACKEND_BITS, BACKENDS
from mdispatch.torch.keys import TorchKeys

with_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed here"
)
with_gil = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="PyTorch is asked about each tensor"
)
ALL = [key for key in md.DispatchKey if key.raw]


# --- the real one ---------------------------------------------------------------------------------


@with_torch
@pytest.mark.filterwarnings("ignore")  # of what PyTorch calls unfinished
def test_a_tensor_carries_the_keys_that_pytorch_says_it_has():
    import torch

    sets, made = set(), kinds(torch)
    for kind, tensor in made.items():
        theirs = str(torch._C._dispatch_keys(tensor))
        assert str(md.key_set_of(tensor)) == theirs, kind
        assert values.is_tensor(tensor)
        sets.add(theirs)
    assert len(made) >= 60
    assert len(sets) >= 30


@with_torch
@pytest.mark.filterwarnings("ignore")
def test_the_same_holds_inside_transforms_modes_and_kernels():
    import torch

    asked = []

    def compare(tensor):
        asked.append((str(md.key_set_of(tensor)), str(torch._C._dispatch_keys(tensor))))
        return tensor.sum()

    for number, place in enumerate(places(torch)):
        before = len(asked)
        place(compare)
        assert len(asked) > before, number
    assert [each for each in asked if each[0] != each[1]] == []


@with_torch
def test_every_key_that_pytorch_has_is_ours_of_the_same_name():
    import torch

    keys = TorchKeys(torch)
    found = {}
    for name, their in torch._C.DispatchKey.__members__.items():
        ours = md.DispatchKey.__members__.get(name)
        if ours is not None and ours.raw:
            found[name] = keys._translated(torch._C.DispatchKeySet(their)) == ours.raw
    assert len(found) > 110
    assert [name for name, same in found.items() if not same] == []


@with_torch
def test_backends_without_a_functionality_of_theirs_are_kept():
    import torch

    keys, key = TorchKeys(torch), torch._C.DispatchKey
    # Without raw_repr() nothing else of PyTorch tells these two sets apart.
    theirs = torch._C.DispatchKeySet(key.PrivateUse1).remove(key.PrivateUse1)
    if "PrivateUse1" in str(theirs):
        pytest.skip("this PyTorch does not take single keys out of sets")
    ours = md.DispatchKey.PrivateUse1.raw & BACKEND_BITS
    assert keys._translated(theirs.add(key.Conjugate)) == ours | md.DispatchKey.Conjugate.raw


FAKES = """
import gc, sys, unittest.mock
import torch
import mdispatch as md
from mdispatch.authoring.device_kernels import _shares
from mdispatch.authoring.opcheck.values import aliases, snapshot

class Claims:
    @property
    def __class__(self):
        return torch.Tensor

class ByAttribute:
    __class__ = torch.nn.Parameter

registry = md.Registry.create()
lib = md.Library("t", "DEF", registry=registry)
lib.define("f(Tensor x, Any y) -> str")
lib.impl("f", lambda x, y: "ran", "CPU")
real = torch.ones(2)
for fake in (
    unittest.mock.Mock(spec=torch.Tensor), unittest.mock.MagicMock(spec=torch.Tensor),
    Claims(), ByAttribute(),
):
    assert isinstance(fake, torch.Tensor)
    assert registry.ops.t.f(real, fake) == "ran"
    # Mocks have all attributes of a tensor, and may answer when they are asked for their device.
    mocked = isinstance(fake, unittest.mock.NonCallableMock)
    try:
        assert mocked or md.key_set_of(fake) == md.DispatchKeySet()
        md.key_set_of(fake)
        registry.ops.t.f(fake, None)
        assert mocked
    except md.errors.InvalidKeyError as error:
        assert mocked and "DLPack wants" in str(error), error
    except md.errors.ArgumentError:
        assert not mocked
    assert not _shares(fake, real) and not _shares(real, fake)
    aliases(fake, real)
    if not mocked:  # a mock has no end
        snapshot(fake).changed()
registry.close()
print("alive")
"""


@with_torch
def test_what_only_claims_to_be_a_tensor_is_none_and_crashes_nothing():
    done = subprocess.run(
        [sys.executable, "-c", FAKES],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


# --- the word in the tensor -----------------------------------------------------------------------

READ = """
import random, sys, torch, mdispatch as md, test_torch_keys as tests
from mdispatch.facts.native import _call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mdispatch.dispatch.operators  # connects the path in C
seen = []

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **kwargs or {})

class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **kwargs or {})

class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if cls is Named:
            seen.append(function)
        return super().__torch_function__(function, types, args, kwargs)

def agrees(tensor):
    return _call.raw_of(tensor) == keys.raw_of(tensor)

keys = tests.TorchKeys(torch)
plain = torch.ones(2, 2)
zoo = [plain, torch.nn.Parameter(plain), torch.ones(2, requires_grad=True), plain.to_sparse()]
zoo += [torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex64).conj()]
zoo += [torch.quantize_per_tensor(plain, 1.0, 0, torch.quint8), plain.as_subclass(Named)]
seen.clear()
"""

TELL = "\nprint(_call.torch_found(), len(seen))\n"


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ + code + TELL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
@with_torch
@with_gil
def test_tensors_are_read_where_pytorch_has_confirmed_it():
    told = run(
        """
zoo += tests.kinds(torch).values()
for seed in range(20):
    random.Random(seed).shuffle(zoo)
    assert all(map(agrees, zoo)), seed
kinds = {keys.ask(tensor).raw_repr() for tensor in zoo}
assert _call.torch_found()[2] == len(kinds - {0}), kinds
a, b = torch.ones(2), torch.ones(2, device="meta")
torch.utils.swap_tensors(a, b)
assert agrees(a) and agrees(b)
a = torch.ones(2)
a.data = torch.ones(3, requires_grad=True).detach()
assert agrees(a)
def compare(tensor):
    assert agrees(tensor) and agrees(tensor)
    return tensor.sum()

for place in tests.places(torch):
    place(compare)
with Functions(), Calls():
    seen.clear()
    assert all(_call.raw_of(tensor) for tensor in zoo)
"""
    )
    assert re.fullmatch(r"\(\d+, \d+, \d+\) 0", told), told


@pytest.mark.thorough
@with_torch
@with_gil
def test_tensors_of_one_set_are_enough_where_nobody_sees_another_being_made():
    first = "one = zoo[0]\nfor _ in range(4):\n    assert agrees(one)\n"
    indented = first.replace("\n", "\n    ")
    assert re.fullmatch(r"\(\d+, \d+, [12]\) 0", run(first))
    assert run(f"with Functions():\n    {indented}") == "None 0"
    assert run(f"with Calls():\n    {indented}") == "None 0"


@with_torch
@with_gil
def test_what_a_signal_handler_raises_while_another_tensor_is_made_ends_the_call():
    told = run(
        """
def interrupted():
    raise KeyboardInterrupt

tests.TorchKeys.other = property(lambda self: interrupted)
raised = 0
for _ in range(6):
    try:
        agrees(zoo[0])
    except KeyboardInterrupt:
        raised += 1
print(raised)
"""
    )
    assert told == "1\nNone 0"


@with_torch
@with_gil
def test_only_a_place_that_holds_in_every_tensor_counts():
    """Each of these has its number in several places, as its length in a dimension, too."""
    told = run(
        """
def long(tensor, at):
    number = keys.ask(tensor).raw_repr()
    made = tensor.expand(*[number if each == at else 2 for each in (0, 1)])
    assert keys.ask(made).raw_repr() == number
    return made

one = [long(torch.ones(1, 1), 0), long(torch.ones(1, 1, device="meta"), 1)]
with Functions():  # nobody makes a tensor that would tell more
    assert all(map(agrees, one))  # Python translates these sets
    assert agrees(one[0])
    assert _call.torch_found() is None
    assert agrees(one[1])
    assert _call.torch_found()
assert all(map(agrees, zoo))
"""
    )
    assert re.fullmatch(r"\(\d+, \d+, \d+\) 0", told), told


@with_torch
@with_gil
@pytest.mark.parametrize("move", [(0, 8), (0, -8), (0, 16)])
def test_a_wrong_place_is_given_up_and_gives_no_wrong_set(move):
    told = run(
        f"""
for tensor in zoo:
    agrees(tensor)
in_object, in_impl, _ = _call.torch_found()
_call.torch_place(in_object + {move[0]}, in_impl + {move[1]})
assert all(map(agrees, zoo))
assert all(map(agrees, zoo))
"""
    )
    assert told == "False 0"


@with_torch
@with_gil
def test_pytorch_can_be_asked_about_each_tensor():
    code = "assert all(map(agrees, zoo * 2))"
    assert run(code, MDISPATCH_TENSORS="torch") == "False 0"


def test_another_word_for_how_tensors_are_read_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", "import mdispatch.dispatch.operators"],
        env={**os.environ, "MDISPATCH_TENSORS": "never", "MDISPATCH_REGISTRY": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
    )
    assert "InvalidArgumentError: MDISPATCH_TENSORS='never'" in done.stderr


# --- without PyTorch: its numberings, as they were read from 2.13, 2.9.1, 2.7.1 and 2.4.1 ---------

OURS = [key.name for key in ALL if not key.raw & BACKEND_BITS]  # the functionalities, in order


def up_to_2_12():
    """Another order around Python, and a key more."""
    names = [name for name in OURS if name != "Fake"]
    names.insert(names.index("Python") + 1, "Fake")
    names.insert(names.index("Functionalize") + 1, "Named")
    return names


def up_to_2_7():
    """MAIA is a functionality and no backend."""
    names = [name for name in up_to_2_12() if name != "AutocastMAIA"]
    names.insert(names.index("FPGA") + 1, "MAIA")
    return names


NUMBERINGS = {
    "2.13": (OURS, BACKENDS),
    "2.9": (up_to_2_12(), BACKENDS),
    "2.7": (up_to_2_7(), tuple(name for name in BACKENDS if name != "MAIA")),
}
# Some of the bits as PyTorch gave them, so that the orders above are not just believed.
RECORDED = {
    "2.13": {"MAIA": 0x10800, "Fake": 0x8000000, "PythonDispatcher": 0x2000000000000000},
    "2.9": {"MAIA": 0x10800, "Fake": 0x10000000, "PythonDispatcher": 0x4000000000000000},
    "2.7": {"MAIA": 0x20000, "Fake": 0x10000000, "Meta": 0xC000, "Named": 0x80000000},
}


class Keys:
    """A set as PyTorch has it, without its bits: 2.4 does not tell them."""

    def __init__(self, bits):
        self.bits = bits if isinstance(bits, int) else bits.bits

    def has(self, key):
        return self.bits & key.bits == key.bits

    def __or__(self, other):
        return Keys(self.bits | other.bits)


class KeysWithBits(Keys):
    asked = 0

    def has(self, key):
        KeysWithBits.asked += 1
        return super().has(key)

    def __or__(self, other):
        return KeysWithBits(self.bits | other.bits)

    def raw_repr(self):
        return self.bits


def bits_of(version):
    functionalities, backends = NUMBERINGS[version]
    first = len(backends)
    bits = {name: 1 << first + at for at, name in enumerate(functionalities)}
    per_backend = [("", "Dense"), ("Autograd", "AutogradFunctionality")]
    per_backend += [(each, each) for each in ("Quantized", "Sparse", "SparseCsr", "NestedTensor")]
    for prefix, functionality in per_backend:
        for at, backend in enumerate(backends):
            bits[prefix + backend] = bits[functionality] | 1 << at
    return bits


def torch_c(version, kind=KeysWithBits):
    """What is used of torch._C, with this version's numbers; a tensor is its set."""
    bits = bits_of(version)

    def parse(name):
        if name not in bits:
            raise RuntimeError(f"could not parse dispatch key: {name}")
        return kind(bits[name])

    return SimpleNamespace(
        _dispatch_keys=lambda tensor: kind(tensor),
        _dispatch_key_parse=parse,
        DispatchKey=SimpleNamespace(CPU=kind(bits["CPU"])),
        DispatchKeySet=kind,
    )


@pytest.mark.parametrize("version", NUMBERINGS)
def test_the_numberings_are_those_that_were_recorded(version):
    bits = bits_of(version)
    assert {name: bits.get(name) for name in RECORDED[version]} == RECORDED[version]


@pytest.mark.parametrize("kind", [Keys, KeysWithBits])
@pytest.mark.parametrize("version", NUMBERINGS)
def test_sets_of_every_numbering_are_translated_by_name(version, kind):
    keys, theirs = TorchKeys(SimpleNamespace(_C=torch_c(version, kind))), bits_of(version)
    for name, bits in theirs.items():
        expected = 0 if name == "Named" else md.DispatchKey.parse(name).raw
        assert keys.raw_of(bits) == expected, name
    names = [name for name in theirs if name not in ("Named", "MAIA")]
    chosen = random.Random(7)
    for _ in range(200):
        several = chosen.sample(names, chosen.randint(0, 6))
        bits = 0
        for name in several:
            bits |= theirs[name]
        assert keys.raw_of(bits) == md.DispatchKeySet(several).raw, several


def test_a_backend_without_a_functionality_of_its_own_is_translated():
    keys, theirs = TorchKeys(SimpleNamespace(_C=torch_c("2.7"))), bits_of("2.7")
    alone = theirs["Meta"] & ~theirs["Dense"]
    assert keys.raw_of(alone) == md.DispatchKey.Meta.raw & BACKEND_BITS


def test_a_set_is_translated_once():
    keys, theirs = TorchKeys(SimpleNamespace(_C=torch_c("2.9"))), bits_of("2.9")
    first = keys.raw_of(theirs["SparseCUDA"])
    asked = KeysWithBits.asked
    assert keys.raw_of(theirs["SparseCUDA"]) == first
    assert KeysWithBits.asked == asked
    assert keys.raw_of(theirs["SparseCPU"]) != first


def test_an_object_that_fakes_its_class_is_not_shown_to_pytorch(monkeypatch):
    class Tensor:
        pass

    class Claims:
        __class__ = Tensor

    def dispatch_keys(value):
        raise AssertionError("the real one would end the process here")

    torch = SimpleNamespace(Tensor=Tensor, _C=SimpleNamespace(_dispatch_keys=dispatch_keys))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert isinstance(Claims(), Tensor)
    assert md.key_set_of(Claims()) == md.DispatchKeySet()
    assert not values.is_torch_tensor(Claims())
    assert values.is_torch_tensor(Tensor())
    assert values.is_torch_tensor(type("Sub", (Tensor,), {})())

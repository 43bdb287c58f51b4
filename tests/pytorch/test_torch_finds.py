"""``torch.ops`` finds the operators of the default registry, in both orders of imports, and a saved
program finds them in a new process.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
from patience import limit

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

SHOP = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("twice(Tensor x, float eps=0.0) -> Tensor")
lib.define("twice.both(Tensor x, Tensor y) -> Tensor")
lib.define("plain(int x) -> int")
lib.define("odd(Tensor x, shop.Basket y) -> Tensor", forward=True)
lib.impl("twice", lambda x, eps: x * 2, "CPU")
lib.impl("twice.both", lambda x, y: x + y, "CPU")
lib.register_fake("twice", lambda x, eps: x.new_empty(x.shape))
"""
ASK = """
one = torch.ones(2)
assert torch.ops.shop.twice(one).tolist() == torch.ops.shop.twice(one, one).tolist() == [2, 2]
assert sorted(torch.ops.shop.twice.overloads()) == ["both", "default"]
assert md.ops.shop.twice(one).tolist() == [2, 2]
for name in ("plain", "nothing", "__wrapped__"):
    assert not hasattr(torch.ops.shop, name)
try:
    torch.ops.shop.odd
except AttributeError as error:
    assert "shop::odd cannot be an operator of PyTorch" in str(error), error
else:
    raise AssertionError
assert not [each for each in sys.meta_path if "mdispatch" in getattr(each, "__module__", "")]
"""


def run(*parts, folder=None):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import sys\n" + "\n".join(parts)],
        capture_output=True,
        text=True,
        timeout=limit(120),
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr  # nor at the end of the process
    return ran.stdout


@pytest.mark.parametrize("first", ["torch", "mdispatch"])
def test_an_operator_is_pytorchs_from_its_definition_on(first):
    parts = ["import torch", SHOP] if first == "torch" else [SHOP, "import torch"]
    run(*parts, ASK)


def test_what_comes_and_goes_later_is_found_and_gone():
    run(
        "import torch, mdispatch as md",
        "assert not hasattr(torch.ops.shop, 'late')",
        "lib = md.Library('shop', 'DEF')",
        "lib.define('late(Tensor x) -> Tensor')",
        "lib.impl('late', lambda x: x + 1, 'CPU')",
        "assert torch.ops.shop.late(torch.ones(1)).item() == 2",
        "lib.close()",
        "try:",
        "    torch.ops.shop.late(torch.ones(1))",
        "except md.errors.OperatorGoneError:",
        "    lib = md.Library('shop', 'DEF')",
        "lib.define('late(Tensor x, int n=5) -> Tensor')",
        "lib.impl('late', lambda x, n: x + n, 'CPU')",
        "assert torch.ops.shop.late(torch.ones(1)).item() == 6",
        "other = md.Registry.local()",
        "own = md.Library('own', 'DEF', registry=other)",
        "own.define('f(Tensor x) -> Tensor')",
        "assert not hasattr(torch.ops.own, 'f')",  # of the default registry only
    )


def test_a_namespace_may_belong_to_both():
    run(
        "import torch, mdispatch as md",
        "theirs = torch.library.Library('shop', 'DEF')",
        "theirs.define('theirs(Tensor x) -> Tensor')",
        "theirs.impl('theirs', lambda x: x + 2, 'CPU')",
        SHOP,
        ASK,
        "assert torch.ops.shop.theirs(one).tolist() == [3, 3]",
    )


PROGRAM = """
class Program(torch.nn.Module):
    def forward(self, x):
        return md.ops.shop.twice(x) + 1
torch.export.save(torch.export.export(Program(), (torch.ones(2),)), "saved.pt2")
"""


@pytest.mark.parametrize("first", ["torch", "mdispatch"])
def test_a_saved_program_is_loaded_by_a_process_that_has_the_module(first, tmp_path):
    run("import torch", SHOP, PROGRAM, folder=tmp_path)
    parts = ["import torch", SHOP] if first == "torch" else [SHOP, "import torch"]
    load = "print(torch.export.load('saved.pt2').module()(torch.ones(2)).tolist())"
    assert run(*parts, load, folder=tmp_path) == "[3.0, 3.0]\n"


def test_without_pytorch_nothing_is_found_in_its_place():
    told = run(
        "sys.modules['torch'] = None",
        SHOP,
        "(finder,) = [each for each in sys.meta_path if each.__module__.startswith('mdispatch')]",
        "assert finder.find_spec('json', None) is None",
        "try:",
        "    import torch",
        "except ModuleNotFoundError:",
        "    print('none', 'mdispatch.torch' in sys.modules)",
    )
    assert told == "none False\n"

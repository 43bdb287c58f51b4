"""A model of five operators in PyTorch's compiler, trained, exported, and loaded by a worker."""

from __future__ import annotations

import importlib.util

import pytest
from kinds import run_main

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

pytestmark = [pytest.mark.shared, pytest.mark.either_binding]


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_ten_compiled_steps_are_equal_to_eager_ones(backend):
    got = run_main(
        """
        import warnings
        warnings.simplefilter("default")  # PyTorch's own
        import torch, model_operators
        compiled = []
        def compile(model):
            compiled.append(torch.compile(model, fullgraph=True, backend=args[0]))
            return compiled[0]
        with_graph = model_operators.trained(compile)
        eager = model_operators.trained(lambda model: model)
        torch.testing.assert_close(with_graph, eager)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        moved = (eager[0] - eager[9]).abs().item()
        done(graphs=graphs, moved=moved > 0.1)
        """,
        backend,
        timeout=250,
    )
    assert got["graphs"] == 1
    assert got["moved"]


MAIN = """
import tempfile
import warnings
warnings.simplefilter("default")
import torch, model_operators
torch.manual_seed(1)
model, x = model_operators.Model(), torch.randn(8, 4)
program = torch.export.export(model, (x,))
named = sorted({str(node.target) for node in program.graph.nodes if "five" in str(node.target)})
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, folder + "/model.pt2")
    text = '''
    import warnings
    warnings.simplefilter("default")
    import mdispatch as md, torch
    CHANGE
    try:
        import model_operators
        md.torch.export("five")
        program = torch.export.load(FOLDER + "/model.pt2")
        x = torch.load(FOLDER + "/x.pt")
        report(role=md.register_or_verify(), gave=program.module()(x).item())
    except md.errors.MdispatchError as error:
        report(refused=type(error).__name__, said=str(error))
    '''
    torch.save(x, folder + "/x.pt")
    text = textwrap.dedent(text).replace("CHANGE", args[0])
    there = results(start("subprocess", text, 1, Path(folder)))[0]
done(named=named, here=model(x).item(), **there)
"""


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_a_worker_that_verifies_loads_what_was_exported():
    got = run_main(MAIN, "")
    assert got["named"] == [
        f"five.{name}.default" for name in ("bend", "mix", "parts", "scale", "total")
    ]
    assert got["role"] == "verify"
    assert got["gave"] == pytest.approx(got["here"])


@pytest.mark.thorough
def test_a_worker_with_another_operator_is_refused_before_it_loads():
    other = """
import sys
from importlib.util import find_spec
from pathlib import Path
text = Path(find_spec("model_operators").origin).read_text()
changed = text.replace("by: float = 2.0", "by: float = 3.0")
assert changed != text
Path(FOLDER, "model_operators.py").write_text(changed)
sys.path.insert(0, FOLDER)
"""
    got = run_main(MAIN, other)
    assert got["refused"] == "SchemaMismatchError"
    assert "five::scale" in got["said"]

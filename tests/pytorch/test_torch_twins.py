"""The same operators, registered once in torch.library and once here: every kind of call of both
has the same result, or stands in docs/beside-pytorch.md with the reason.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch
import twins

import mdispatch as md
from mdispatch.dispatch.call_c import turn

DOCS = Path(__file__).parents[2] / "docs"
OPCHECK = ("test_schema", "test_autograd_registration", "test_faketensor")

pytestmark = [
    pytest.mark.either_binding,
    pytest.mark.filterwarnings("ignore"),  # theirs and ours warn of the same
    # The page is that of this version: others differ in what PyTorch itself does.
    pytest.mark.skipif(
        torch.__version__ < "2.13" or torch.__version__ > "2.14",
        reason="the page is about another version of PyTorch",
    ),
]


@pytest.fixture(scope="module")
def pairs():
    torch._C._debug_only_display_vmap_fallback_warnings(False)
    with md.Registry.create() as registry:
        made = twins.pairs_of(registry)
        yield made
        twins.end(made)
    torch._C._debug_only_display_vmap_fallback_warnings(True)


@pytest.fixture(params=["C", "Python"])
def way(request, long_form):
    """Calls in Python in the long form only: other tests hold the two ways together."""
    if request.param == "Python" and not long_form:
        pytest.skip("the long form")
    turn(request.param == "C")
    yield
    turn(True)


def generator():
    sys.path.insert(0, str(DOCS))
    try:
        import twins_page
    finally:
        sys.path.remove(str(DOCS))
    return twins_page


#: Each of the 72 operators is compiled twice.
COMPILED = [name for name in twins.SITUATIONS if "torch.compile" in name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.dear if name in COMPILED else ())
        for name in twins.SITUATIONS
    ],
)
def test_a_call_of_both_comes_to_the_same(pairs, name, way):
    """If this fails, look whether it should; if so, run python docs/twins_page.py."""
    found = twins.line(pairs, twins.SITUATIONS[name])
    [said] = re.findall(rf"^\| {re.escape(name)} \| .*$", generator().PAGE.read_text(), re.M)
    assert found == said


def test_the_page_has_the_operators_and_the_reasons():
    page = generator()
    assert page.page(page.PAGE.read_text(), None) == page.PAGE.read_text()


def test_every_reason_is_one_for_something():
    said = "".join(re.findall(r"^\| .* \| \d+ \| .*$", generator().PAGE.read_text(), re.M))
    assert [title for title, _, _ in twins.REASONS if f"*{title}*:" not in said] == []


# --- opcheck --------------------------------------------------------------------------------------


def passed(results):
    return {test for test, result in results.items() if result == "SUCCESS"}


@pytest.fixture(scope="module")
def samples():
    """PyTorch's own sample operators, made again of the same functions, with arguments."""
    db = pytest.importorskip("torch.testing._internal.custom_op_db")
    with md.Registry.create() as registry:
        yield [twin_of_sample(each, registry) for each in db.custom_op_db]


def twin_of_sample(sample, registry):
    theirs = getattr(sample.op, "default", sample.op)
    name = theirs._schema.name
    made = torch._library.custom_ops.OPDEFS[name]
    schema = str(theirs._schema)
    ours = md.custom_op(
        f"twin_of_sample::{made._name}",
        made._init_fn,
        mutates_args=(),
        schema=schema[schema.index("(") :],
        registry=registry,
    )
    ours.register_fake(made._abstract_fn)
    if made._backward_fn is not None:
        ours.register_autograd(made._backward_fn, setup_context=made._setup_context_fn)
    md.torch.export(ours.name, registry=registry)
    inputs = sample.sample_inputs("cpu", torch.float32, requires_grad=sample.supports_autograd)
    calls = [((each.input, *each.args), each.kwargs) for each in inputs]
    return theirs, ours, getattr(torch.ops.twin_of_sample, made._name).default, calls


def test_opcheck_says_the_same_of_pytorchs_sample_operators(samples, long_form):
    """PyTorch's of its own, PyTorch's of ours, ours of ours."""
    everything = {*OPCHECK, "test_aot_dispatch_dynamic"} if long_form else {*OPCHECK}
    for theirs, ours, exported, calls in samples:
        assert calls
        for args, kwargs in calls:
            for op in (theirs, exported):
                found = torch.library.opcheck(
                    op, args, kwargs, test_utils=sorted(everything), raise_exception=False
                )
                assert passed(found) == everything, (op, found)
            found = md.opcheck(ours, args, kwargs, raise_exception=False)
            assert passed(found) == {*OPCHECK}, (ours, found)
    assert len(samples) == 11


#: What opcheck says of the operators otherwise, by operator: tests that only PyTorch's passes, and
#: tests that only ours passes.
AUTOGRAD, FAKE, SCHEMA = "test_autograd_registration", "test_faketensor", "test_schema"
VERDICTS = {
    # PyTorch's passes where there is no Tensor to look at; ours says that it cannot check.
    **dict.fromkeys(("on", "plus"), ([AUTOGRAD, FAKE], [])),
    "full": ([AUTOGRAD], []),
    # PyTorch's does not call an operator that custom_op made: it has an autograd kernel.
    **dict.fromkeys(("same_custom", "raises"), ([AUTOGRAD], [])),
    # A kernel that returns None for a Tensor.
    "no_result": ([AUTOGRAD, SCHEMA], []),
}


def test_opcheck_says_the_same_of_the_operators(pairs):
    found = {}
    for name, pair in pairs.items():
        args, kwargs = pair.twin.args(), pair.twin.kwargs()
        theirs = passed(
            torch.library.opcheck(
                pair.theirs, args, kwargs, test_utils=OPCHECK, raise_exception=False
            )
        )
        ours = passed(md.opcheck(pair.ours, args, kwargs, raise_exception=False))
        if theirs != ours:
            found[name] = sorted(theirs - ours), sorted(ours - theirs)
    assert found == VERDICTS

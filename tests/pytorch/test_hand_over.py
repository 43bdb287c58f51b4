"""Calls with PyTorch's tensors that concern PyTorch: those that write, that a profiler looks at, or
that a mode, a tensor's class or the graph has to see. Calls in C raise versions and tell the
profiler themselves, or go straight to PyTorch's operator. Each program runs in both ways, and comes
to the same.
"""

from __future__ import annotations

import threading

import pytest

import mdispatch as md
from mdispatch.dispatch.call_c import turn

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")


@pytest.fixture
def fill(registry):
    lib = md.Library("over", "DEF", registry=registry, torch=True)
    lib.define("fill(Tensor(a!) out, Tensor? x, int n=1, *, float by=1.0) -> Tensor(a!)")

    def kernel(out, x, n, *, by):
        return out.copy_(x * n * by) if x is not None else out.zero_()

    lib.impl("fill", kernel, "CPU")
    return registry.ops.over.fill


@pytest.fixture(params=[True, False], ids=["C", "Python"])
def way(request):
    turn(request.param)
    yield request.param
    turn(True)


def given():
    return torch.zeros(2), torch.ones(2)


def test_each_form_of_a_call_comes_to_the_same(fill, way):
    for _ in range(3):
        out, x = given()
        assert fill(out, x) is out
        assert (out.tolist(), out._version) == ([1, 1], 2)
        assert fill(out, x, 3).tolist() == [3, 3]
        assert fill(out, x, 3, by=2).tolist() == [6, 6]
        assert fill(x=x, out=out, n=True, by=0.5).tolist() == [0.5, 0.5]
        assert fill(out, None).tolist() == [0, 0]
        with torch.inference_mode():
            out, x = given()
            assert fill(out, x).tolist() == [1, 1]
            assert out.is_inference()
        for wrong in ((out,), (out, x, "a"), (out, x, 1, 2), (out, 3)):
            with pytest.raises(md.errors.ArgumentError):
                fill(*wrong)


def test_modes_and_fake_tensors_see_it(fill, way):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    for _ in range(3):
        seen = []
        with Seen():
            fill(*given())
        assert "over.fill.default" in map(str, seen)
    md.register_fake("over::fill", lambda out, x, n, *, by: out, registry=registry_of(fill))
    for _ in range(3):
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(each) for each in given()]
            assert type(fill(*fake)).__name__ == "FakeTensor"


def registry_of(packet):
    return packet.default.dispatcher.holder


def test_those_that_are_asked_here_come_first(fill, way):
    class Mode(md.context.DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            asked.append(op)
            return op(*args, **kwargs)

    for _ in range(2):
        fill(*given())
    asked, told = [], []
    with Mode():
        fill(*given())
    assert asked == [fill.default]
    with md.observe_calls(lambda call: told.append(call.operator)):
        fill(*given())
    assert "over::fill" in told


def test_it_is_exported_again_after_a_change(registry, way):
    op = md.custom_op(
        "over::act", lambda out, x: None, schema="(Tensor(a!) out, Tensor x) -> ()",
        mutates_args=("out",), registry=registry,
    )  # fmt: skip
    for _ in range(3):
        op(torch.zeros(2), torch.ones(2, requires_grad=True))
    first = op.operator.entry.peer.overload
    ran = []
    lib = md.Library("over", "IMPL", registry=registry)
    lib.impl("act", lambda out, x: ran.append("own"), "Autograd")
    for _ in range(3):
        op(torch.zeros(2), torch.ones(2, requires_grad=True))
    assert op.operator.entry.peer.overload is not first
    assert ran == ["own"] * 3
    lib.close()
    for _ in range(3):
        op(torch.zeros(2), torch.ones(2, requires_grad=True))
    assert ran == ["own"] * 3


def test_other_values_stay_here(registry, way):
    class Here:
        __dispatch_keys__ = "CPU"

    lib = md.Library("over", "DEF", registry=registry, torch=True)
    lib.define("mix(Tensor(a!) out, Tensor x) -> ()")
    lib.impl("mix", lambda out, x: seen.append((type(out), type(x))), "CPU")
    seen = []
    for _ in range(3):
        for pair in ((torch.zeros(1), Here()), (Here(), torch.zeros(1)), (Here(), Here())):
            seen.clear()
            registry.ops.over.mix(*pair)
            assert seen == [tuple(map(type, pair))]


def test_calls_in_c_do_not_come_by_python(fill, way, monkeypatch):
    from mdispatch.torch.exported import Exported

    out, x = given()
    fill(out, x)
    came, slot = [], Exported.slot
    monkeypatch.setattr(Exported, "slot", lambda *asked: came.append(1) or slot(*asked))
    for _ in range(3):
        fill(out, x)
        fill(out, x, by=2.0)
    assert len(came) == (0 if way else 6)


# --- writes that are made here --------------------------------------------------------------------

WEIGHT = torch.nn.Parameter(torch.tensor([3.0]))


def excluded():
    return torch._C._dispatch_tls_local_exclude_set().raw_repr()


@pytest.fixture
def put(registry):
    def put(out: torch.Tensor, x: torch.Tensor) -> None:
        if x.numel() == 0:
            raise ValueError("nothing to put")
        out.numpy(force=True)[:] = (x * WEIGHT).numpy(force=True)

    return md.custom_op("over::put", put, mutates_args=["out"], registry=registry)


def test_a_write_raises_the_version_once_and_is_in_no_graph(put, way):
    before = excluded()
    for _ in range(3):
        out, x = given()
        put(out, x)
        assert (out.tolist(), out._version, out.requires_grad) == ([3, 3], 1, False)
        put(x=x, out=out)
        assert out._version == 2
        with torch.no_grad():
            put(out, x.requires_grad_())
        assert (out._version, out.requires_grad, excluded()) == (3, False, before)
        with torch.inference_mode():
            put(out, x)  # a tensor that was made outside has a version
            put(torch.zeros(2), x)
        assert out._version == 4
    assert (WEIGHT * 2).requires_grad
    # Nothing of this was for PyTorch, where calls in C made it.
    assert put.operator.entry.peer.is_made is not way


def test_a_tensor_of_inference_mode_is_written_outside_as_by_torch_library(put, way):
    @torch.library.custom_op("over_there::put", mutates_args=["out"])
    def theirs(out: torch.Tensor, x: torch.Tensor) -> None:
        out.numpy(force=True)[:] = 1

    with torch.inference_mode():
        made = torch.zeros(2)
    for write in (theirs, put, put, put):
        write(made, torch.ones(2))
        assert made.is_inference()
    assert made.tolist() == [3, 3]


def test_a_kernel_that_fails_has_raised_the_version_and_leaves_the_thread_as_it_was(put, way):
    before = excluded()
    out = torch.zeros(2)
    for count in range(1, 4):
        with pytest.raises(ValueError, match="nothing to put"):
            put(out, torch.ones(0))
        assert (out._version, excluded()) == (count, before)
    assert (torch.ones(1) * WEIGHT).requires_grad


def test_what_was_overwritten_is_missed_in_the_backward_pass(put, way):
    for _ in range(3):
        out, x = given()
        saved = (x.requires_grad_() * out).sum()
        put(out, torch.ones(2))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()


def test_threads_have_sets_of_their_own(put, way):
    def run():
        for _ in range(50):
            out, x = given()
            put(out, x)
            seen.append((out.tolist(), out._version, (x * WEIGHT).requires_grad))

    seen = []
    threads = [threading.Thread(target=run) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == [([3, 3], 1, True)] * 200


def test_an_operator_inside_another_one_finds_its_own_again(registry, put, way):
    @md.custom_op("over::twice", mutates_args=["out"], registry=registry)
    def twice(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        put(out, x)
        put(out, x)
        return x * WEIGHT

    for _ in range(3):
        out, x = given()
        assert not twice(out, x).requires_grad
        assert (out._version, (x * WEIGHT).requires_grad) == (3, True)


def test_what_a_custom_op_reads_beside_its_arguments_gets_no_gradient(registry, way):
    """As in a compiled graph, where nobody sees the kernel's own calls."""

    @md.custom_op("over::read", mutates_args=(), registry=registry)
    def read(x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return x * WEIGHT

    read.register_fake(lambda x, more: torch.empty_like(x))
    compiled = torch.compile(lambda x: read(x, [x]), backend="eager")
    for _ in range(3):
        assert not read(torch.ones(2), []).requires_grad
        assert not compiled(torch.ones(2)).requires_grad


# --- what else PyTorch has in a thread ------------------------------------------------------------


def profiled(double):
    double(torch.ones(2, 3), 2.0)
    for _ in range(2):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile:
            double(torch.ones(2, 3), 2.0)
            double(torch.ones(2, 3), y=2.0)
            double(torch.ones(2, 3), 2)
        [ours] = [e for e in profile.key_averages(group_by_input_shape=True) if "over::" in e.key]
        assert (ours.key, ours.count, ours.input_shapes[0]) == ("over::double", 3, [2, 3])
        products = [each for each in profile.events() if each.name == "aten::mul"]
        assert {each.cpu_parent.name for each in products} == {"over::double"}


def test_the_profiler_sees_calls(registry, way):
    double = md.custom_op(
        "over::double", lambda x, y: x * y, schema="(Tensor x, float y) -> Tensor",
        mutates_args=(), registry=registry,
    )  # fmt: skip
    profiled(double)


def test_the_profiler_sees_calls_of_a_library_that_are_made_in_c(registry):
    lib = md.Library("over", "DEF", registry=registry)
    lib.define("double(Tensor x, float y) -> Tensor")
    lib.impl("double", lambda x, y: x * y, "CPU")
    profiled(registry.ops.over.double)


def test_the_profiler_sees_writes_and_calls_that_fail(put, way):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(2):
            put(*given())
            with pytest.raises(ValueError, match="nothing"):
                put(torch.zeros(2), torch.ones(0))
    [ours] = [each for each in profile.key_averages() if each.key == "over::put"]
    assert ours.count == 4


def test_function_modes_and_classes_are_asked(registry, put, way):
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(f"{cls.__name__} {function}")
            return super().__torch_function__(function, types, args, kwargs)

    half = md.custom_op(
        "over::half", lambda x: x / 2, schema="(Tensor x) -> Tensor", mutates_args=(),
        registry=registry,
    )  # fmt: skip
    for _ in range(3):
        seen = []
        x = torch.ones(2)
        with Mode():
            half(x)
            put(torch.zeros(2), x)
        assert [each for each in seen if "over" in each] == [
            "over.half.default",
            "over.put.default",
        ]
        seen = []
        named = x.as_subclass(Named)
        assert type(half(named)) is Named
        assert "Named over.half.default" in seen
        with torch._C.DisableTorchFunctionSubclass():
            seen = []
            half(named)
            assert seen == []
        assert type(half(torch.nn.Parameter(x, requires_grad=False))) is torch.Tensor


def test_what_pytorch_knows_to_share_memory_is_refused(registry, way):
    def cut(x, more):
        return [x.clone(), *more]

    cut = md.custom_op(
        "over::cut", cut, schema="(Tensor x, Tensor[] more) -> Tensor[]", mutates_args=(),
        registry=registry,
    )  # fmt: skip
    for _ in range(3):
        x = torch.arange(4.0)
        assert len(cut(x, [])) == 1
        for wrong in ([x[1:]], [x], [x.to_sparse()] * 2):
            with pytest.raises(md.errors.AliasingError):
                cut(x, wrong)


def test_a_list_that_contains_itself_ends_no_process(registry, way):
    def first(x, more):
        return x * 2

    first = md.custom_op(
        "over::first", first, schema="(Tensor x, Any more) -> Tensor", mutates_args=(),
        registry=registry,
    )  # fmt: skip
    more = [1]
    more.append(more)
    for _ in range(3):
        for x in (torch.ones(1), torch.ones(1, requires_grad=True).detach()):
            assert first(x, more).item() == 2

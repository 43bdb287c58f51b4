"""Classes of Python among the arguments of operators on PyTorch's tensors: eager, in modes and
transforms, traced, compiled and exported. PyTorch's own tests of its opaque types want the same.
"""

from __future__ import annotations

import enum

import pytest

import mdispatch as md

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
pytest.importorskip("torch._library.opaque_object", reason="this PyTorch has no opaque types")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402


class Queue:
    """Stands for itself, and changes."""

    def __init__(self, *sizes):
        self.sizes = list(sizes)


class LongQueue(Queue):
    pass


class Scale:
    """A constant."""

    def __init__(self, by):
        self.by = by

    def __eq__(self, other):
        return isinstance(other, Scale) and self.by == other.by

    def __hash__(self):
        return hash(self.by)

    def __fx_repr__(self):
        return f"Scale({self.by})", {"Scale": Scale}


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


OPERATORS = """
def pushed(queue: Queue, x: torch.Tensor) -> torch.Tensor:
    queue.sizes.append(x.numel())
    return x * 2

def scaled(x: torch.Tensor, scale: Scale, more: list[Scale], perhaps: Scale | None = None) -> torch.Tensor:
    return x * scale.by * sum(each.by for each in more) * (perhaps.by if perhaps else 1)

def filled(queue: Queue, out: torch.Tensor) -> None:
    out.fill_(queue.sizes[-1])

def leveled(x: torch.Tensor, level: Level) -> torch.Tensor:
    return x * level.value
"""  # noqa: E501


@pytest.fixture(scope="module")
def ops():
    scope = dict(globals())
    exec(OPERATORS, scope)
    with md.Registry.create() as registry:
        made = {}
        for name in ("pushed", "scaled", "filled", "leveled"):
            scope[name].__module__ = __name__
            writes = ["out"] if name == "filled" else ()
            made[name] = md.custom_op(
                f"opaque::{name}", scope[name], mutates_args=writes, registry=registry
            )
        made["pushed"].register_fake(lambda queue, x: torch.empty_like(x))
        made["pushed"].register_autograd(lambda ctx, grad: (None, grad * 2))
        made["scaled"].register_fake(lambda x, *others: torch.empty_like(x))
        made["leveled"].register_fake(lambda x, level: torch.empty_like(x))
        yield type("Operators", (), made)


def test_the_schema_has_the_class(ops):
    assert str(ops.scaled.operator.schema) == (
        f"opaque::scaled(Tensor x, {__name__}.Scale scale, {__name__}.Scale[] more, "
        f"{__name__}.Scale? perhaps=None) -> Tensor"
    )


def test_eager_calls_and_gradients(ops):
    for _ in range(3):
        queue, x = Queue(), torch.ones(3, requires_grad=True)
        assert ops.pushed(queue, torch.ones(2)).tolist() == [2, 2]
        ops.pushed(LongQueue(), x).sum().backward()
        ops.pushed(queue, x).sum().backward()
        assert (x.grad.tolist(), queue.sizes) == ([4, 4, 4], [2, 3])
        assert ops.scaled(torch.ones(1), Scale(2), [Scale(3), Scale(4)], Scale(5)).item() == 70
        assert ops.leveled(torch.ones(1), Level.HIGH).item() == 2


def test_a_declared_write(ops):
    for needs in (False, True):
        out = torch.zeros(2, requires_grad=needs) * 1
        ops.filled(Queue(7), out)
        assert (out.tolist(), out._version) == ([7, 7], 2)  # the kernel's own operator counts, too


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch 2.15's of vmap
def test_modes_and_vmap(ops):
    queue = Queue()
    with FakeTensorMode() as mode:
        assert ops.pushed(queue, mode.from_tensor(torch.ones(2))).shape == (2,)
    assert queue.sizes == []
    assert torch.func.vmap(lambda x: ops.pushed(queue, x))(torch.ones(2, 3)).shape == (2, 3)
    assert queue.sizes == [3, 3]


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_trace_has_one_node_with_the_object(ops, mode):
    queue = Queue()
    graph = make_fx(lambda x: ops.pushed(queue, x), tracing_mode=mode)(torch.ones(2))
    [node] = [each for each in graph.graph.nodes if each.op == "call_function"]
    assert str(node.target) == "opaque.pushed.default"
    queue.sizes.clear()
    assert graph(torch.ones(2)).tolist() == [2, 2]
    assert queue.sizes == [2]


@pytest.mark.dear
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, in inductor
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_calls(ops, backend):
    def compiled(function):
        return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)

    queue, x = Queue(), torch.ones(2, requires_grad=True)
    pushed = compiled(lambda queue, x: ops.pushed(queue, x).sum())
    for at in range(1, 4):
        pushed(queue, x).backward()
        assert len(queue.sizes) == at
    assert x.grad.tolist() == [6, 6]
    scaled = compiled(lambda x, by: ops.scaled(x, Scale(by), [Scale(2)]))
    assert [scaled(torch.ones(1), by).item() for by in (2, 3, 2)] == [4, 6, 4]
    out = torch.zeros(2)
    compiled(lambda queue, out: ops.filled(queue, out))(Queue(9), out)
    assert out.tolist() == [9, 9]
    leveled = compiled(lambda x, high: ops.leveled(x, Level.HIGH if high else Level.LOW))
    assert [leveled(torch.ones(1), high).item() for high in (True, False)] == [2, 1]


@pytest.mark.dear
def test_an_exported_program_has_a_constant(ops):
    class Module(torch.nn.Module):
        def forward(self, x):
            return ops.scaled(x, Scale(3), [Scale(2)])

    program = torch.export.export(Module(), (torch.ones(2),))
    assert program.module()(torch.ones(2)).tolist() == [6, 6]


@pytest.mark.dear
def test_both_opchecks_are_content(ops):
    for op, given in (
        (ops.scaled, (torch.ones(2), Scale(2), [Scale(3)])),
        (ops.filled, (Queue(3), torch.zeros(2))),
    ):
        found = torch.library.opcheck(op.operator._exported(), given)
        assert set(found.values()) == {"SUCCESS"}
        md.opcheck(op, given)


def test_another_object_is_refused_in_words(ops):
    for call in (ops.pushed, ops.pushed.operator._exported()):
        with pytest.raises(md.errors.ArgumentError, match=r"takes \S+\.Queue for 'queue', not int"):
            call(3, torch.ones(2))


def test_a_kernel_for_meta_values_cannot_look_at_an_object_that_may_change(registry):
    """PyTorch's words: its graph would keep what the kernel has seen."""

    def resized(queue: Queue, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(queue.sizes[0])

    resized.__annotations__ = {"queue": Queue, "x": torch.Tensor, "return": torch.Tensor}
    op = md.custom_op("opaque::resized", resized, mutates_args=(), registry=registry)
    op.register_fake(lambda queue, x: torch.empty(queue.sizes[0]))
    assert op(Queue(3), torch.ones(1)).shape == (3,)
    with pytest.raises(Exception, match="sizes"):
        torch.compile(op, backend="eager", fullgraph=True)(Queue(3), torch.ones(1))


def test_a_class_that_pytorch_knows_keeps_its_name(registry):
    from torch._library.opaque_object import is_opaque_type, register_opaque_type

    class Known:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return isinstance(other, Known) and self.by == other.by

        def __hash__(self):
            return self.by

        def __fx_repr__(self):
            return f"Known({self.by})", {"Known": Known}

    Known.__qualname__ = "KnownElsewhere"
    register_opaque_type(Known, typ="value")
    Known.__qualname__ = "Known"

    def times(x, known=None):
        return x * (known.by if known else 1)

    times.__annotations__ = {"x": torch.Tensor, "known": Known | None, "return": torch.Tensor}
    op = md.custom_op("opaque::times", times, mutates_args=(), registry=registry)
    x = torch.ones(1, requires_grad=True)
    assert op(x, Known(3)).item() == 3
    its_name = str(op.operator.schema.arguments[1].type).rstrip("?")
    assert its_name.endswith(".Known")
    assert not is_opaque_type(its_name)


def test_classes_of_python_are_refused_where_pytorch_is_asked(registry):
    def joined(x, names):
        return x * len(names)

    joined.__annotations__ = {"x": torch.Tensor, "names": set[str], "return": torch.Tensor}
    op = md.custom_op("opaque::joined", joined, mutates_args=(), registry=registry)
    assert op(torch.ones(1), {"a", "b"}).item() == 2
    with pytest.raises(md.errors.TorchExportError, match="cannot be an operator of PyTorch"):
        op(torch.ones(1, requires_grad=True), {"a"})

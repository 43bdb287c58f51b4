"""A model with five operators: numbers, several tensors, several results, a list of tensors. One of
them is called by its name. Their kernels go through NumPy, so PyTorch can look into none of them.
"""

from __future__ import annotations

import numpy as np
import torch

import mdispatch as md


@md.custom_op("five::scale", mutates_args=())
def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * np.float32(by))


@md.custom_op("five::mix", mutates_args=())
def mix(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy())


@md.custom_op("five::bend", mutates_args=())
def bend(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


@md.custom_op("five::parts", mutates_args=())
def parts(x: torch.Tensor, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = x.detach().numpy()
    return torch.from_numpy(values[:, :at].copy()), torch.from_numpy(values[:, at:].copy())


@md.custom_op("five::total", mutates_args=())
def total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor(sum(float(x.detach().numpy().sum()) for x in xs))


scale.register_fake(lambda x, by: torch.empty_like(x))
mix.register_fake(lambda x, weight: x.new_empty((x.shape[0], weight.shape[1])))
bend.register_fake(lambda x: torch.empty_like(x))
parts.register_fake(
    lambda x, at: (x.new_empty((x.shape[0], at)), x.new_empty((x.shape[0], x.shape[1] - at)))
)
total.register_fake(lambda xs: xs[0].new_empty(()))


def keep_factor(ctx, inputs, output):
    ctx.by = inputs[1]


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def keep_output(ctx, inputs, output):
    ctx.save_for_backward(output)


def keep_shapes(ctx, inputs, output):
    ctx.shapes = [x.shape for x in inputs[0]]


def mix_backward(ctx, g):
    x, weight = ctx.saved_tensors
    return mix(g, weight.t().contiguous()), mix(x.t().contiguous(), g)


scale.register_autograd(lambda ctx, g: (scale(g, ctx.by), None), setup_context=keep_factor)
mix.register_autograd(mix_backward, setup_context=keep_inputs)
bend.register_autograd(
    lambda ctx, g: g * (1 - ctx.saved_tensors[0] ** 2), setup_context=keep_output
)
parts.register_autograd(lambda ctx, a, b: (torch.cat([a, b], 1), None))
total.register_autograd(
    lambda ctx, g: [g.expand(shape) for shape in ctx.shapes], setup_context=keep_shapes
)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(4, 6) * 0.3)
        self.second = torch.nn.Parameter(torch.randn(3, 1) * 0.3)

    def forward(self, x):
        a, b = parts(bend(mix(scale(x, 0.5), self.first)), 3)
        return total([mix(md.ops.five.scale(a * b), self.second) ** 2, a])


def trained(wrap):
    """The losses of ten steps, then the parameters."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    called = wrap(model)
    found = []
    for x in torch.randn(10, 8, 4):
        optimizer.zero_grad()
        loss = called(x)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *(each.detach() for each in model.parameters())]

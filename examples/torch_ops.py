"""Operators of PyTorch, registered as any project does: nothing here knows of mdispatch.

``TORCH_OPS_VERSION=2`` in the environment stands for a newer version of the file on one machine.
"""

from __future__ import annotations

import os

import torch
from torch.library import Library

IS_NEW = os.environ.get("TORCH_OPS_VERSION") == "2"

lib = Library("engine", "FRAGMENT")
lib.define(f"rotate(Tensor x, {'float' if IS_NEW else 'int'} steps=1) -> Tensor")
lib.impl("rotate", lambda x, steps=1: torch.roll(x, int(steps)), "CPU")
torch.library.register_fake("engine::rotate", lambda x, steps=1: torch.empty_like(x), lib=lib)


@torch.library.custom_op("engine::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


if not IS_NEW:

    @scale.register_fake
    def _(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x)

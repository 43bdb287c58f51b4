"""Golden errors: operators from functions, and registering without a library at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from golden_stage import Array, Stage, case, kernel

import mdispatch as md


def scale(x: md.Tensor, factor: float) -> md.Tensor:
    return Array()  # type: ignore[return-value]


@case("DuplicateRegistrationError: custom_op for an operator that is defined elsewhere")
def _(stage: Stage) -> None:
    md.custom_op("shop::scale", scale, mutates_args=(), registry=stage.registry)


@case("InvalidArgumentError: an annotation that is no type")
def _(stage: Stage) -> None:
    def late(text: str, by: 3) -> list[str]:  # type: ignore[valid-type]
        return [text]

    md.custom_op("shop::late", late, registry=stage.registry)


@case("InvalidArgumentError: a default that no schema has")
def _(stage: Stage) -> None:
    def late(text: str, folder: Path = Path("data")) -> list[str]:
        return [text]

    md.infer_schema(late)


@case("InvalidArgumentError: a misspelled argument that is written to")
def _(stage: Stage) -> None:
    md.infer_schema(scale, mutates_args=["y"])


@case("InvalidArgumentError: arguments that are written to as one text")
def _(stage: Stage) -> None:
    md.infer_schema(scale, mutates_args="x")


@case("InvalidArgumentError: a schema that says otherwise what is written to")
def _(stage: Stage) -> None:
    md.custom_op(
        "shop::late",
        kernel,
        mutates_args=["x"],
        schema="(Tensor x) -> Tensor",
        registry=stage.registry,
    )


@case("InvalidArgumentError: a schema with a name")
def _(stage: Stage) -> None:
    md.define("shop::late", "late(Tensor x) -> Tensor", lib=stage.lib)


@case("InvalidArgumentError: kernels for devices and nothing that tells the device")
def _(stage: Stage) -> None:
    def zeros(size: int) -> md.Tensor:
        return Array()  # type: ignore[return-value]

    md.custom_op("shop::zeros", zeros, mutates_args=(), device_types="cpu", registry=stage.registry)


@case("InvalidArgumentError: a device whose kernel is to be disabled and is not there")
def _(stage: Stage) -> None:
    made = md.custom_op("shop::late", scale, mutates_args=(), registry=stage.registry)
    made.set_kernel_enabled("cuda", False)


@case("InvalidArgumentError: a library and a registry that do not belong together")
def _(stage: Stage) -> None:
    with md.Registry.create() as other:
        try:
            md.impl("shop::scale", "cpu", kernel, lib=stage.lib, registry=other)
        finally:
            other.close()


@case("InvalidArgumentError: no device to register for")
def _(stage: Stage) -> None:
    md.register_kernel("shop::scale", (), kernel, lib=stage.lib)


@case("InvalidKeyError: a device that is none")
def _(stage: Stage) -> None:
    md.register_kernel("shop::scale", "gpu", kernel, lib=stage.lib)


@case("InvalidKeyError: a device without autocast")
def _(stage: Stage) -> None:
    md.register_autocast("shop::scale", "meta", "float16", lib=stage.lib)


@case("InvalidNameError: an operator without its namespace")
def _(stage: Stage) -> None:
    md.impl("scale", "cpu", kernel, registry=stage.registry)


@case("InvalidNameError: an operator that is none")
def _(stage: Stage) -> None:
    operator: Any = kernel
    md.impl(operator, "cpu", kernel, registry=stage.registry)


class TakenLibrary:
    """A library of PyTorch in which every name is taken: this test needs no PyTorch."""

    def __init__(self, namespace: str, kind: str) -> None:
        self.ns = namespace

    def define(self, schema: str, **more: Any) -> None:
        raise RuntimeError("the name is taken")

    def _destroy(self) -> None: ...


@case("TorchExportError: a name that PyTorch has already")
def _(stage: Stage) -> None:
    there = sys.modules.get("torch")
    torch = ModuleType("torch")
    torch.library = SimpleNamespace(Library=TakenLibrary)  # type: ignore[attr-defined]
    torch.Tag = SimpleNamespace(pt2_compliant_tag=None)  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    try:
        md.torch.export("shop::scale", registry=stage.registry)
    finally:
        del sys.modules["torch"]
        if there is not None:
            sys.modules["torch"] = there

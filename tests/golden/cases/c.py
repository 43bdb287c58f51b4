"""Golden errors: kernels in C, and the libraries that contain them."""

from __future__ import annotations

from c_libraries import library
from golden_stage import Stage, case


@case("BoxingError: a value that cannot be told to a kernel in C")
def _(stage: Stage) -> None:
    stage.registry.ops.load_library(library(stage.folder, "boxes"))
    stage.registry.ops.boxes.echo([1, 2j])


@case("KernelError: a kernel in C fails")
def _(stage: Stage) -> None:
    stage.registry.ops.load_library(library(stage.folder, "boxes"))
    stage.registry.ops.boxes.fail(4711, "out of paper")


@case("LibraryLoadError: there is no such file")
def _(stage: Stage) -> None:
    stage.registry.ops.load_library("/nowhere/libshop.so")


@case("LibraryLoadError: a library without a block")
def _(stage: Stage) -> None:
    stage.registry.ops.load_library("libc.so.6")

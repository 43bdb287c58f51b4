"""Kedro's ParallelRunner starts processes without the hooks that the main process has set: a node
that relies on one computes without it. Here the node makes sure that all have the same.
"""

from __future__ import annotations

import os

os.environ.setdefault("KEDRO_MP_CONTEXT", "spawn")  # the runner starts its processes so
os.environ.setdefault("DO_NOT_TRACK", "1")  # to Kedro's telemetry

from kedro.framework.hooks import hook_impl
from kedro.framework.hooks.manager import _create_hook_manager
from kedro.framework.project import settings
from kedro.io import SharedMemoryDataCatalog
from kedro.pipeline import node, pipeline
from kedro.runner import ParallelRunner

import mdispatch as md


class Audit:
    """A hook of the project."""

    @hook_impl
    def after_node_run(self, node: object) -> None:
        print(f"audited: {node}")


def check() -> None:
    """All processes have the same hooks."""
    md.agree("kedro.hooks", [type(hook) for hook in settings.HOOKS])


def double(raw: list[int]) -> list[int]:
    check()
    return [2 * each for each in raw]


def run() -> None:
    catalog = SharedMemoryDataCatalog({})
    catalog["raw"] = [1, 2, 3]
    hooks = _create_hook_manager()
    for hook in settings.HOOKS:
        hooks.register(hook)
    ParallelRunner(max_workers=2).run(pipeline([node(double, "raw", "doubled")]), catalog, hooks)


def main() -> None:
    check()
    run()
    print("without hooks of its own the pipeline runs")
    settings.set("HOOKS", (Audit(),))
    check()
    try:
        run()
    except md.errors.DisagreementError as error:
        print("with one that the workers lack:", *error.fields, sep="\n  ")
    else:
        raise SystemExit("nobody has told that the workers lack the hook")


if __name__ == "__main__":
    main()

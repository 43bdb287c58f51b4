"""Workers that are spawned start with the defaults of NetworkX: settings that the main process has
made in ``nx.config`` are lost there, and the results may come from another backend. Here the
initializer of the pool makes sure that all have the same configuration. The pool's caller gets the
error, which names each setting.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing

import networkx as nx

import mdispatch as md


def begin(settings: dict[str, bool]) -> None:
    """Each process begins so, the main one too."""
    for name, value in settings.items():
        setattr(nx.config, name, value)
    md.agree("networkx", nx.config)


def diameter(nodes: int) -> int:
    """The diameter of a ring of so many nodes."""
    return int(nx.diameter(nx.cycle_graph(nodes)))


def compute(settings: dict[str, bool]) -> list[int]:
    """Ten results of workers that begin with these settings."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, spawn, begin, (settings,)) as pool:
        return [*pool.map(diameter, range(10, 20))]


def main() -> None:
    settings = {"fallback_to_nx": True, "cache_converted_graphs": False}
    begin(settings)
    print("with the settings:", compute(settings))
    try:
        compute({})
    except md.errors.DisagreementError as error:
        print("without them:", *error.fields, sep="\n  ")
    else:
        raise SystemExit("nobody has told that the workers lack the settings")


if __name__ == "__main__":
    main()

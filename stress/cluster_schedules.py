"""Random schedules of a cluster's leaders, bridges and workers, whose histories are judged.

    python stress/cluster_schedules.py --count 10000 --seed 7 --processes 2
    python stress/cluster_schedules.py --engine redis --count 200 --seed 7
    python stress/cluster_schedules.py --first 41 --count 1 --seed 7 --tell

On the engine in memory, time is made up and a seed is a schedule (cluster_world.py). On Redis,
everybody is a process that is really killed and stopped (cluster_processes.py). Both histories go
to the same judge (cluster_judge.py). ``--without chain`` leaves a rule of the protocol out, to see
what the judge says.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from cluster_judge import Unjust, judge
from measure import Figures

from mdispatch.facts import DEF
from mdispatch.facts.native.constants import MD_UNIQUE
from mdispatch.facts.registration import kinds

UNIQUE = {kind.number for kind in kinds() if kind.rule & MD_UNIQUE}


def play(name: str, module: Any, options: argparse.Namespace, figures: Figures) -> str:
    """Plays one schedule; "" or what was wrong with it."""
    world = module.World(name, tuple(options.without))
    wrong = ""
    try:
        figures.latency("healing", int(world.play() * 1e9))
    except module.Hang as error:
        wrong = f"hang: {error}"
    except Exception:
        wrong = f"error: {traceback.format_exc()}"
    try:
        for what, number in judge(world.history, int(DEF), UNIQUE).items():
            figures.count(what, number)
    except Unjust as error:
        wrong = str(error)
    figures.count("schedules")
    figures.count("rounds")
    for each in world.blows:
        figures.count(each)
    if wrong or options.tell:
        print(f"schedule {name}: {wrong or 'as promised'}", *world.trace, sep="\n  ", flush=True)
    return wrong.partition(":")[0]


def some(options: argparse.Namespace, process: int, told: object) -> None:
    """The schedules of one process; tells its figures and what was wrong."""
    figures, wrong = Figures(), Counter[str]()
    module = import_module("cluster_processes" if options.engine == "redis" else "cluster_world")
    end = time.monotonic() + options.seconds if options.seconds else None
    for number in range(options.first + process, options.first + options.count, options.processes):
        if end is not None and time.monotonic() > end:
            break
        found = play(f"{options.seed} {number}", module, options, figures)
        if found:
            wrong[found] += 1
            if found == options.until:
                break
            if not options.without:
                print(f"again: python stress/cluster_schedules.py --engine {options.engine} "
                      f"--seed {options.seed} --first {number} --count 1 --tell")  # fmt: skip
    module.World.close()
    told.put((figures.as_dict(), dict(wrong)))  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--engine", choices=["memory", "redis"], default="memory")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 1_000_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--without", nargs="*", choices=["chain", "epoch"], default=[])
    parser.add_argument("--until", help="end when this was wrong, for example fork")
    parser.add_argument("--tell", action="store_true", help="print each schedule")
    parser.add_argument("--figures", help="a file for the figures, as JSON")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="md-schedules-", dir="/dev/shm")
    os.environ["MDISPATCH_FOLDER"] = folder
    os.environ.pop("MDISPATCH_REGISTRY", None)
    forks = multiprocessing.get_context("fork")
    told = forks.Queue()
    figures, wrong = Figures(), Counter[str]()
    try:
        players = [
            forks.Process(target=some, args=(options, process, told))
            for process in range(options.processes)
        ]
        for player in players:
            player.start()
        ended = True
        for player in players:
            while ended and told.empty() and player.is_alive():
                player.join(0.1)
        for player in players:
            player.join()
            ended = ended and player.exitcode == 0
        while not told.empty():
            counts, bad = told.get()
            figures.merge(Figures.from_dict(counts))
            wrong.update(bad)
    finally:
        shutil.rmtree(folder)
    healing = figures.latencies.get("healing")
    print(f"seed {options.seed}, engine {options.engine}, without {options.without or 'nothing'}:")
    print(*(f"{number} {what}" for what, number in sorted(figures.counts.items())), sep=", ")
    if healing:
        half, most = (f"{healing.quantile(part) / 1e9:.2f} s" for part in (0.5, 0.99))
        print(f"healed: half within {half}, 99 % within {most}, all within", end=" ")
        print(f"{healing.worst / 1e9:.2f} s")
    print("wrong:", dict(wrong) or "nothing")
    if options.figures:
        Path(options.figures).write_text(json.dumps(figures.as_dict()))
    return 0 if ended and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())

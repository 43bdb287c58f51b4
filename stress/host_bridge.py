"""A bridge of a host of a cluster, which writes down the texts that the names have there and when,
as a registrar does: see Changes in answers.py.

    python stress/host_bridge.py URL NAME HISTORIES

It says the address of the host's registry, and ends with its standard input.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from answers import TEXTS, Log

from mdispatch.cluster import parse_url
from mdispatch.cluster.bridge import Bridge
from mdispatch.cluster.region import Region
from mdispatch.cluster.state import Changes
from mdispatch.facts import DEF


def _name_and_text(name: str, body: str) -> tuple[int, int]:
    """The numbers that ``Changes`` has for both."""
    return int(name.rpartition("f")[2]), TEXTS.index(body.removeprefix(name))


def write_down(region: Region, log: Log) -> None:
    """Has each change of the registry's definitions written down, with the times around it."""
    apply = region.apply

    def applied(changes: Changes) -> None:
        there = [region._there[each] for each in changes.remove]
        ended = [_name_and_text(fact.name, fact.body) for fact in there if fact.kind == DEF]
        began = [
            _name_and_text(fact.name, fact.text.partition("\n")[0])
            for fact in changes.add
            if fact.kind == DEF
        ]
        before = time.monotonic_ns()
        apply(changes)
        after = time.monotonic_ns()
        for name, _ in ended:
            log.note("close", name, before)
            log.note("closed", name, after)
        for name, text in began:
            log.note("define", name, text, before)

    region.apply = applied  # type: ignore[method-assign]


def main(url: str, name: str, histories: str) -> None:
    bridge = Bridge(parse_url(url), name)
    log = Log(Path(histories, str(os.getpid())))
    write_down(bridge._region, log)
    thread = threading.Thread(target=bridge.run, args=(lambda said: None,))
    thread.start()
    print(bridge.registry.label, flush=True)
    sys.stdin.buffer.read()
    bridge.ended.set()
    thread.join()
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

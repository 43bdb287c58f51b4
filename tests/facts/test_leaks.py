"""Registries come and go and leave nothing behind. (Interpreters: test_interpreter_cycles.py.)"""

from __future__ import annotations

import pytest
from kinds import run_main

pytestmark = pytest.mark.shared


def test_registries_opened_and_closed_give_everything_back() -> None:
    got = run_main(
        """
        def now():
            maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
            ours = sum(len(m) > 5 and "memfd:mdispatch" in m[5] for m in maps)
            return len(os.listdir("/proc/self/fd")), ours
        before = now()
        for _ in range(300):
            with md.Registry.create() as registry:
                md.Library("a", "DEF", registry=registry).define("f() -> ()")
                with md.Registry.attach(registry.address) as second:
                    assert not second.is_main
        done(before=before, after=now())
        """
    )
    assert got["after"] == got["before"]


def test_looking_for_a_long_fact_gives_the_memory_for_it_back() -> None:
    """It does not fit where short ones are read into."""
    got = run_main(
        """
        import tracemalloc
        facts = md.default_registry().dispatcher.facts
        schema = f"long(str text='{'x' * 20_000}') -> ()"
        md.Library("a", "DEF").define(schema)
        def grown(times):
            tracemalloc.start()
            for _ in range(times):
                assert len(facts.find(md.facts.DEF, 0, "a::long").body) > 20_000
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return size
        grown(10)
        done(grown=grown(100))
        """
    )
    assert got["grown"] < 100_000

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

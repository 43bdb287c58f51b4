"""Wishes have no effect where nothing is shared, and are no mistake: docs/other-systems.md."""

from __future__ import annotations

from alone import program

WISHES = """
    lib = md.Library("s", "DEF")
    lib.define("count(str text) -> int")
    lib.impl("count", len, "CompositeExplicitAutograd", serve=True)
    with md.routing("s"):
        assert md.ops.s.count("four") == 4
    for scope in ("registry", "host"):
        assert md.choose("s::count", scope, {"a": 1}, lambda: "a", scope=scope) == "a"
    assert md.warm_up([], complete="s").differences == ()
    md.initializer([], complete="s")()
    assert md.seal() is False
    print("all")
"""


def test_wishes_have_no_effect_where_nothing_is_shared():
    assert program(WISHES) == "all\n"

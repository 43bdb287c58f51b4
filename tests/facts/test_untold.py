"""A program in C that embeds Python may fork and not tell Python (uWSGI does): no handler runs."""

from __future__ import annotations

import pytest
from kinds import run_main

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]


def test_a_fork_of_which_python_is_not_told_only_looks_and_calls() -> None:
    got = run_main(
        """
import ctypes
lib = md.Library("shop", "DEF")
lib.define("f(int x) -> int")
lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
read, write = os.pipe()
fork = ctypes.PyDLL(None).fork  # as C does, with the GIL held
if fork() == 0:
    told = [md.register_or_verify(), md.is_main_interpreter(), md.ops.shop.f(1)]
    for act in (lambda: lib.define("g(int x) -> int"), lambda: md.Library("fresh", "DEF"),
                lambda: md.wait_for_def("shop::f", 0)):
        try:
            told.append(act())
        except md.errors.RegistryError as error:
            told.append(str(error))
    md.default_registry().close()
    os.write(write, repr((os.getpid(), told)).encode())
    os._exit(0)
os.close(write)
child, told = eval(open(read).read())
os.wait()
done(child=child, told=told, pid=os.getpid(), still=md.register_or_verify(),
     late=str(lib.define("h(int x) -> int")), check=md.default_registry().check_invariants())
"""
    )
    assert got["told"][:3] == ["verify", False, 2]
    for words in got["told"][3:]:
        assert words.startswith(
            f"process {got['child']} was forked from process {got['pid']} without Python being told"
        )
        assert "py-call-osafterfork" in words
    assert (got["still"], got["late"]) == ("register", "shop::h")

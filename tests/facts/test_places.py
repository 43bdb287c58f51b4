"""A registration knows its own line, wherever the registration before it was made."""

from __future__ import annotations

import sys
import threading

import pytest

from mdispatch.facts import caller_lines


def run(lines, lib, name="module.py"):
    """Runs these lines as a module."""
    code = compile("\n".join(lines), name, "exec")
    exec(code, {"lib": lib, "__name__": "module"})


def lines_of(registry, name):
    where = [fact.where for fact in registry.registrations(f"s::{name}")]
    assert {each.rpartition(":")[0] for each in where} == {"module.py"}
    return [int(each.rpartition(":")[2]) for each in where]


@pytest.mark.waits
@pytest.mark.thorough
def test_each_line_of_a_long_module_is_told(registry, lib):
    run([f'lib.register_name("f{i}")' for i in range(500)], lib)
    assert [lines_of(registry, f"f{i}") for i in range(500)] == [[i + 1] for i in range(500)]


def test_places_that_come_again_and_in_any_order_are_told(registry, lib):
    run(
        [
            "def last():",
            '    lib.register_name("c")',
            "for i in range(3):",
            '    lib.register_name("a")',
            "    last()",
            "    [",
            '        lib.register_name("b")',
            "        for _ in range(2)",
            "    ]",
            *['lib.register_name("d")'] * 200,
            "last()",
        ],
        lib,
    )
    assert lines_of(registry, "a") == [4] * 3
    assert lines_of(registry, "b") == [7] * 6
    assert lines_of(registry, "c") == [2] * 4
    assert lines_of(registry, "d") == list(range(10, 210))


def test_a_registration_looks_for_its_line_once(lib):
    looked = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_qualname == "CallerLines.here":
            looked.append(frame.f_back.f_code.co_name)

    lib.define("before(Tensor x) -> Tensor")
    sys.setprofile(note)
    try:
        lib.impl("before", lambda x: x, "CPU")
        lib.define("after(Tensor x) -> Tensor")
    finally:
        sys.setprofile(None)
    assert looked == ["implement", "define_with_attributes"]


def test_two_codes_with_the_same_instructions_are_two_places(registry, lib):
    for i in range(3):
        run(["", *[""] * i, 'lib.register_name("f")'], lib)
    assert lines_of(registry, "f") == [2, 3, 4]


@pytest.mark.thorough
def test_threads_and_what_comes_in_between_do_not_mix_up_the_lines(registry, lib, monkeypatch):
    monkeypatch.setattr(caller_lines, "_KNOWN", 2)

    def work(k):
        run([f'lib.register_name("t{k}_{i}")' for i in range(200)], lib)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for k in range(4):
        assert [lines_of(registry, f"t{k}_{i}") for i in range(200)] == [
            [i + 1] for i in range(200)
        ]


def test_code_that_bears_the_packages_name_is_not_taken_for_the_users(registry, lib):
    code = compile('lib.register_name("f")', "ours.py", "exec")
    exec(code, {"lib": lib, "__name__": "mdispatch.more"})
    (fact,) = registry.registrations("s::f")
    assert fact.where.startswith(f"{__file__}:")
    exec(
        compile('lib.register_name("g")', "theirs.py", "exec"),
        {"lib": lib, "__name__": "mdispatcher"},
    )
    (fact,) = registry.registrations("s::g")
    assert fact.where == "theirs.py:1"

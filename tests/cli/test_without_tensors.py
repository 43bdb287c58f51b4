"""The commands about operators without Tensor arguments say nothing that only tensors need."""

from __future__ import annotations

import re

import pytest
from command_line import mdispatch

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

SHOP = """
import mdispatch as md

@md.custom_op("shop::price")
def price(article: str, tax: float = 0.19) -> float:
    "The price of an article."
    return 1.0 + tax

@md.custom_op("shop::shown")
def shown(value: object) -> str:
    return "something"

@shown.register_kernel(None, types=int | None)
def shown_number(value):
    return "a number"

lib = md.Library("text", "DEF")
lib.define("count(str s, int n=1) -> int")
lib.impl("count", lambda s, n: n)
lib.impl("count", lambda s, n: n, provider="fast")
lib.define("nothing(str s) -> int")
"""
#: Words that a user without tensors would have to look up.
UNKNOWN = re.compile(
    r"SymInt|Undefined|Composite|BackendSelect|ADInplaceOrView|Autograd|Functionalize|"
    r"PythonDispatcher|alias key|tensors|dispatch keys\b"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shop_ops.py").write_text(SHOP)
    return tmp_path


COMMANDS = [
    ["ls"],
    ["ls", "--schemas"],
    *(
        [command, operator]
        for command in ("table", "show", "why")
        for operator in ("shop::price", "shop::shown", "text::count", "text::nothing")
    ),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_uses_the_words_of_python(folder, words):
    done = mdispatch(*words, "--import", "shop_ops", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not UNKNOWN.search(done.stdout), done.stdout


def test_the_kernel_of_calls_is_everywhere(folder):
    def rows(*words):
        text = mdispatch(*words, "--import", "shop_ops", cwd=folder).stdout
        table = text.partition("──\n")[2].partition("\n\n")[0]
        return [re.split(" {2,}", line) for line in table.splitlines()]

    assert [row[:2] for row in rows("ls")] == [
        ["shop::price", "everywhere"],
        ["shop::shown", "everywhere (3)"],
        ["text::count", "everywhere (2)"],
        ["text::nothing", "-"],
    ]
    assert [row[0] for row in rows("show", "text::count")] == ["everywhere", "", "everywhere"]
    (row,) = rows("table", "shop::price")
    assert row == ["everywhere", "shop_ops.price", "shop_ops.py:4"]
    assert rows("table", "text::nothing") == [["everywhere", "-", "-"]]


def test_kernels_at_keys_are_shown_with_their_keys(folder):
    (folder / "keyed_ops.py").write_text(
        "import mdispatch as md\n"
        "lib = md.Library('text', 'DEF')\n"
        "lib.define('count(str s) -> int')\n"
        "lib.impl('count', len, 'CPU')\n"
    )
    done = mdispatch("table", "text::count", "--import", "keyed_ops", cwd=folder)
    assert "CPU         builtins.len" in done.stdout
    assert "everywhere  -" in done.stdout
    done = mdispatch("why", "text::count", "--import", "keyed_ops", cwd=folder)
    assert "text::count has no kernel that a call can come to: no argument is" in done.stdout
    assert 'Register one: lib.impl("count", function).' in done.stdout
    done = mdispatch("why", "text::count", "CPU", "--import", "keyed_ops", cwd=folder)
    assert "highest              CPU" in done.stdout


def test_the_report_has_their_kernels_and_no_table(folder):
    done = mdispatch("report", "page.html", "--import", "shop_ops", cwd=folder)
    assert done.returncode == 0, done.stderr
    operators = re.findall("<article.*?</article>", (folder / "page.html").read_text(), re.DOTALL)
    assert len(operators) == 4
    for each in operators:
        assert ("everywhere" in each) is ("text::nothing" not in each)
        assert not UNKNOWN.search(each)
        assert "Dispatch table" not in each

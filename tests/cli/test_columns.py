"""Tables of figures fit the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mdispatch.cli.columns import say_figures, styled


@pytest.mark.parametrize("length", range(30, 60))
def test_a_name_of_any_length_has_its_figures_on_a_line(length):
    console = Console(file=io.StringIO(), width=80)
    headings = ("", "median", "best", "half of all", "aim", "")
    figures = ["1234.5 ms", "11.5", "10.0 to 15.2", "", ""]
    say_figures(console, headings, [((*map(styled, ["x" * length, *figures]),), ())], left=1)
    *_, last = console.file.getvalue().splitlines()
    assert last.split()[-6:-3] == ["1234.5", "ms", "11.5"]

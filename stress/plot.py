"""--plot FILE: what came out of a run for people who would rather look."""

from __future__ import annotations

from pathlib import Path

import plot_page
import plot_picture
import pytest
from report import Result

from mdispatch._pictures import refusal


def check(file: str) -> None:
    """Before the run: whether that file can be drawn. UsageError says what to do."""
    reason = refusal(file)
    if reason is not None:
        raise pytest.UsageError(reason)


def draw(results: list[Result], about: dict[str, str], file: str) -> None:
    if file.endswith(".html"):
        Path(file).write_text(plot_page.page(results, about), encoding="utf-8")
    else:
        plot_picture.draw(results, about, file)

"""Pages of HTML, made by Jinja2 from templates that lie beside the commands.

A template cannot forget to escape: every value that it prints is escaped, and before that it loses
the characters that are not printable and those that turn the direction of reading. Only text that a
command marks as markup itself (its style, its script, its drawing) goes in as it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .columns import plain

if TYPE_CHECKING:
    from pathlib import Path


def templates(*folders: Path) -> Environment:
    """The templates of these folders; the first folder that has a name decides."""
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        finalize=_printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printed(value: object) -> str:
    """What an expression of a template prints, before it is escaped."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return text if text.isprintable() else plain(text)

"""What pictures of measurements have in common: where they go, how pages look, and the colours.

Pages are one file with everything in it: tables that can be read aloud, with drawings in their
cells; nothing is loaded, and no script runs. Other pictures are drawn by matplotlib, the extra
``plot``.
"""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BAD", "BAR", "LINE", "MARK", "SOFT", "STYLE", "page", "refusal", "table"]

BAR, MARK, SOFT, LINE, BAD = "#2a78d6", "#eb6834", "#52514e", "#dddcd6", "#c22f2f"

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e;
  --line: #dddcd6; --card: #f3f2ee; --bar: #2a78d6; --mark: #eb6834; --bad: #c22f2f;
  --good: #0c7a0c }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #fff; --soft: #c3c2b7;
  --line: #3b3a37; --card: #262624; --bar: #3987e5; --mark: #e0814f; --bad: #ff8a80;
  --good: #5fd35f } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 18px; margin: 36px 0 4px }
p { margin: 0 0 12px; color: var(--soft); max-width: 70ch }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; padding: 0; list-style: none }
.tiles li { background: var(--card); border-radius: 8px; padding: 10px 16px; min-width: 118px }
.tiles b { display: block; font-size: 22px; font-variant-numeric: tabular-nums }
.tiles span { color: var(--soft); font-size: 13px }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: right; font-weight: 500; color: var(--soft); font-size: 13px }
td { text-align: right; white-space: nowrap }
th, td { padding: 5px 8px; border-bottom: 1px solid var(--line); vertical-align: middle }
th:first-child { text-align: left } tbody th { color: var(--ink); font-size: 15px }
tbody th small { display: block; color: var(--soft); font-size: 13px }
td.draw, th.draw { text-align: left; width: 448px; padding-left: 16px; padding-right: 16px }
svg { display: block } .bar { fill: var(--bar) } .grid { stroke: var(--line) }
.mark { stroke: var(--mark); stroke-width: 2 } .limit { stroke: var(--soft); stroke-dasharray: 3 3 }
.tick { fill: var(--soft); font: 12px system-ui, sans-serif }
.ok { color: var(--good) } .bad { color: var(--bad); font-weight: 600 }
.none { color: var(--soft) }
code { background: var(--card); padding: 2px 5px; border-radius: 4px; overflow-wrap: anywhere }
li { margin: 4px 0 }
"""


def refusal(file: str) -> str | None:
    """Why a picture cannot be drawn into that file; None when it can. To be asked before what
    takes long.
    """
    path = Path(file)
    if path.suffix not in (".html", ".png"):
        return f"--plot {file}: the name has to end in .html or .png"
    if not path.resolve().parent.is_dir():
        return f"--plot {file}: there is no folder {path.resolve().parent}"
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        return (
            f"--plot {file}: pictures are drawn by matplotlib, which is not installed: "
            "pip install 'mdispatch[plot]', or let it draw a page: --plot FILE.html"
        )
    return None


def page(title: str, body: str) -> str:
    """A whole page around its body."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><main>
{body}
</main></body></html>
"""


def table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """A table of rows that are written already, as wide as it needs."""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )

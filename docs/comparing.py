"""Draws the picture on the first screen of README.md: ``python docs/comparing.py``.

One file serves light and dark pages: its colours follow the reader's setting.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["drawing", "main"]

FILE = Path(__file__).parent / "pictures" / "comparing.svg"
WIDTH, HEIGHT = 760, 330

STYLE = """
text{font:14px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:#1f2933}
.h{font-weight:600}.s{font-size:12px;fill:#52606d}
.m{font:12px ui-monospace,"DejaVu Sans Mono",monospace}
.paper{fill:#fbfcfd;stroke:#d9e2ec}.registry{fill:#e6f0fb;stroke:#2b6cb0}
.box{fill:#fff;stroke:#9aa5b1}.no{fill:#fdeceb;stroke:#b83227}.yes{fill:#e8f6ec;stroke:#2f855a}
.line{fill:none;stroke:#52606d;stroke-width:1.5;marker-end:url(#a)}#a path{fill:#52606d}
@media (prefers-color-scheme:dark){
text{fill:#e4e9ef}.s{fill:#a9b5c1}.paper{fill:#12171d;stroke:#2f3943}
.registry{fill:#12283f;stroke:#63a4e8}.box{fill:#1b232b;stroke:#66727f}
.no{fill:#3a1917;stroke:#ef7d72}.yes{fill:#12301f;stroke:#5fc489}
.line{stroke:#a9b5c1}#a path{fill:#a9b5c1}}
"""


def text(x: int, y: int, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


def box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/>'


def member(x: int, kind: str, title: str, tax: str, end: str) -> list[str]:
    """A process: what it is, what it imports, and what comes of that."""
    return [
        box(x, 20, 226, 104, kind),
        text(x + 12, 44, title, "h"),
        text(x + 12, 70, f"price(amount, tax={tax})", "m"),
        text(x + 12, 88, "from its own shop.py", "s"),
        text(x + 12, 111, end, "h" if kind == "no" else ""),
    ]


def arrow(x: int, start: int, end: int, words: str) -> list[str]:
    return [f'<path d="M{x} {start}V{end}" class="line"/>', text(x + 10, 158, words, "s")]


def drawing() -> str:
    parts = [
        box(0, 0, WIDTH, HEIGHT, "paper"),
        *member(20, "box", "The first process", "0.19", "It serves."),
        *member(267, "yes", "A worker, same version", "0.19", "It starts."),
        *member(514, "no", "A worker, another version", "0.16", "Its import fails."),
        *arrow(133, 124, 184, "1. registers"),
        *arrow(380, 184, 126, "2. compares: the same"),
        *arrow(627, 184, 126, "3. differs"),
        box(20, 186, 720, 66, "registry"),
        text(32, 210, "The registry, in memory that all of them share", "h"),
        text(32, 238, "shop::price(float amount, float tax=0.19) -> float", "m"),
        text(450, 238, "registered by pid 4242, shop.py:5", "m"),
        text(32, 280, "The error names both lines:", "s"),
        text(32, 304, "tax=0.16 in next/shop.py:5, tax=0.19 in shop.py:5", "m"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="t d">\n'
        '<title id="t">A worker with another version is refused</title>\n'
        '<desc id="d">The first process registers a function in a shared registry. A worker with '
        "the same version starts; the import of one with another default fails.</desc>\n"
        f"<style>{STYLE}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def main() -> None:
    FILE.write_text(drawing())


if __name__ == "__main__":
    main()

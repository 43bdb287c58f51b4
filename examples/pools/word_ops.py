"""The operators of these examples, and a job: imported in the main interpreter and every worker."""

from __future__ import annotations

import mdispatch as md

LINES = [
    "the ferry leaves at seven",
    "and the gulls know it",
    "nobody else is up",
    "but the cook",
]

library = md.Library("words", "DEF")
library.define("count(str text) -> int")


@library.impl("count", dispatch_key="CompositeExplicitAutograd")
def count(text: str) -> int:
    return len(text.split())


def job(line: str) -> tuple[str, int]:
    """What a worker does with a line: it calls the operator. With it goes the worker's role."""
    return md.register_or_verify(), md.ops.words.count(line)


def role_of_processes() -> str:
    """The role of worker processes. On macOS, on Windows and with musl no registry is shared, and
    each of them registers for itself.
    """
    return "register" if md.default_registry().address.startswith("local:") else "verify"

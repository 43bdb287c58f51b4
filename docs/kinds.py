"""Writes the table of kinds into docs/cluster.md: ``python docs/kinds.py``.

Its rows are the kinds of mdispatch/facts/kinds.py and of the features; tests/cluster/test_kinds.py
has a test for each cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mdispatch import facts
from mdispatch.facts.native.constants import (
    MD_CHOICE,
    MD_CLASS,
    MD_KEPT,
    MD_MATCH,
    MD_PRIORITY,
    MD_STACK,
    MD_TORCH,
    MD_UNIQUE,
    MD_VALUE,
    MD_VARIANT,
)
from mdispatch.facts.registration import kinds

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).parent / "cluster.md"
BEGIN, END = "<!-- from here on: docs/kinds.py -->\n", "<!-- to here: docs/kinds.py -->\n"

#: What a program writes to register one.
_WRITTEN = {
    facts.LIBRARY: '`Library(ns, "DEF")`',
    facts.DEF: "`define`, `custom_op`",
    facts.IMPL: "`impl`, `register_kernel`, fakes, formulas",
    facts.FALLBACK: "`fallback`",
    facts.PYSTUB: "`register_python_module`",
    facts.NAME: "`register_name`",
    facts.CLAIM: "nothing: a place in a queue",
    MD_TORCH: "`torch.library`, while `md.torch.watch()` is open",
    facts.STANDING: "nothing: how the host stands",
    MD_PRIORITY: "`set_priority`",
    MD_CLASS: "`register_class`, `md_class`",
    facts.TYPE: "`register_type`",
    MD_VARIANT: '`define` where `match="compatible"` lets it differ',
    MD_MATCH: '`match="compatible"`',
    facts.NOTE: "`serve=`: what a member tells of itself",
    MD_CHOICE: "`choose`, `choices.load`",
    MD_VALUE: "`agree`",
    MD_KEPT: "`agree(keep=True)`, `agreeing`",
}
_HEAD = ("what", "kind", "who registers", "a second one", "same host", "fork", "spawn")
_HEAD += ("pickle", "file of choices", "Redis", "TCPStore")
#: What a second one of the same name and key, by the same member, means.
_SECOND = {MD_UNIQUE: "refused", MD_STACK: "beside it; the newest counts", 0: "queues"}
#: What else there is to say of other hosts.
_OF_HOSTS = {
    facts.TYPE: " with the leader's, else with the first host's",
    MD_CHOICE: ', but with `scope="host"`',
}


def _cells(number: int) -> Iterator[str]:
    kind = facts.kind_of(number)
    members = kind.members
    hosts = kind.hosts + _OF_HOSTS.get(number, "")
    yield from (_WRITTEN[number], kind.name, "any member" if kind.by_any else "the main one")
    yield _SECOND[kind.rule & (MD_UNIQUE | MD_STACK)]
    yield from (members, members, members, kind.pickles, kind.files, hosts, hosts)


def _lines() -> Iterator[str]:
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|{'---|' * len(_HEAD)}"
    for kind in kinds():
        if type(kind).__module__.startswith("mdispatch."):  # a test may have added another one
            yield f"| {' | '.join(_cells(kind.number))} |"


def page(text: str) -> str:
    """The page with the table as it is."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return "".join([before, BEGIN, "\n", *(f"{line}\n" for line in _lines()), "\n", END, after])


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()

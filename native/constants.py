"""Writes ``mdispatch/facts/native/constants.py`` from the contract. Run it after a number of
``mdispatch.h`` has changed:

    python native/constants.py
"""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
HEADER = NATIVE / "mdispatch.h"
MODULE = NATIVE.parent / "mdispatch" / "facts" / "native" / "constants.py"

TOP = '''\
"""The numbers of the contract, under the names that ``native/mdispatch.h`` gives them.

Written by ``python native/constants.py``; a test compares the two files. The module is kept in the
repository, and not made by the build, so that type checkers, searches and readers find it in a bare
checkout. They are plain ints: an IntEnum would make every interpreter load ``enum`` at its start.
"""

from __future__ import annotations

'''


def enums(header: str) -> list[tuple[str, dict[str, int]]]:
    """Each enum of the contract: its name ("" for one without), and its names with their values."""
    contract = header.split("/* contract begins */")[1].split("/* contract ends */")[0]
    contract = re.sub(r"/\*.*?\*/", "", contract, flags=re.DOTALL)
    return [
        (name, {each: int(value) for each, value in re.findall(r"(\w+)\s*=\s*(-?\d+)", body)})
        for name, body in re.findall(r"\benum\s+(\w*)\s*\{([^}]*)\}", contract)
    ]


def module_text(header: str) -> str:
    """The module for a header."""
    found = enums(header)
    text = TOP + "__all__ = [\n"
    text += "".join(f'    "{name}",\n' for _, values in found for name in values) + "]\n"
    before = None
    for enum, values in found:
        if enum or enum != before:
            text += f"\n# {enum}\n" if enum else "\n"
        text += "".join(f"{name} = {value}\n" for name, value in values.items())
        before = enum
    return text


if __name__ == "__main__":
    MODULE.write_text(module_text(HEADER.read_text()))

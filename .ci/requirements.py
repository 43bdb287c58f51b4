"""Prints what must be installed for some extras of the package, without the package itself.

    python .ci/requirements.py [--lowest] [--without NAME] EXTRA...

"build" stands for what the build needs. With --lowest, each is the oldest version that
pyproject.toml claims to work with.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).resolve().parents[1].joinpath("pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def needs(extra: str) -> Iterator[str]:
    """The requirements of an extra; those that name extras of this package are followed."""
    for each in PROJECT["build-system"]["requires"] if extra == "build" else EXTRAS[extra]:
        own = re.fullmatch(r"mdispatch\[(.*)\]", each)
        if own:
            for name in own[1].split(","):
                yield from needs(name)
        else:
            yield each


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--without", default="")
    parser.add_argument("extras", nargs="*")
    given = parser.parse_args()
    found = [] if "build" in given.extras else [*PROJECT["project"]["dependencies"]]
    for extra in given.extras:
        found += needs(extra)
    for each in dict.fromkeys(found):
        if given.without and each.startswith(given.without):
            continue
        print(re.sub(r">=([\w.]+)(,<[\w.]+)?", r"==\1", each) if given.lowest else each)


main()

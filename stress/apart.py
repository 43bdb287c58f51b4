"""Acts that need a process of their own, because they fork or end interpreters by the dozen.

    python stress/apart.py ACT JSON

An act is a function ``act_NAME`` here below; the last line it prints is JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from importlib import import_module

from measure import HANG_SECONDS, Figures

ACTS = {
    "storm_of_forks": "forks",
    "killed_holders": "holders",
    "ended_interpreters": "endings",
}


def main(act: str, arguments: str) -> None:
    faulthandler.enable()
    words = json.loads(arguments)
    # What hangs shows its stacks before whoever started this gives it up.
    faulthandler.dump_traceback_later(words["seconds"] + 2 * HANG_SECONDS, exit=True)
    figures = Figures()
    try:
        said = getattr(import_module(ACTS[act]), act)(figures, **words) or {}
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without the threads that hang
    sys.stdout.write("\n" + json.dumps({**said, "figures": figures.as_dict()}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs a feature in four places: the main interpreter, a sub-interpreter that shares its GIL, one
with its own GIL, and another process.

A registrar imports a module, which registers. Each other place imports the same module, which
verifies. Then the body runs there, and its ``result`` comes back.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from kinds import INTERPRETERS, run_main

PLACES = ["main", *INTERPRETERS, "subprocess"]

_MAIN = """
    place, folder, body = args
    import sys
    sys.path.insert(0, folder)
    import feature
    if place == "main":
        space = {"__name__": "body"}
        exec(body, space)
        done(**space["result"])
    else:
        text = "import feature\\n" + body + "\\nreport(**result)\\n"
        done(**results(start(place, text, 1, Path(folder)))[0])
"""


def run_at(place: str, module: str, body: str, folder: Path) -> dict:
    """The dict of literals that the ``body`` leaves in its variable ``result`` at this place.

    ``module`` is the text of the module ``feature``, which main and worker import. An error in the
    worker is raised here, with its traceback.
    """
    (folder / "feature.py").write_text(textwrap.dedent(module))
    values = run_main(_MAIN, place, str(folder), textwrap.dedent(body))
    return {k: v for k, v in values.items() if k not in ("returncode", "stderr", "stdout")}

"""A feature is shown in four places: the main interpreter, a sub-interpreter that shares its GIL,
one with a GIL of its own, and another process.

A main process imports a module, which registers; in each other place the same module is imported
again, which verifies. The body then runs there. Its ``result`` comes back.
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
    """What the ``body`` leaves in its variable ``result``, a dict of literals, at this place.

    ``module`` is the text of the module ``feature``, which main and worker import. What fails in
    the worker fails here, with its traceback.
    """
    (folder / "feature.py").write_text(textwrap.dedent(module))
    values = run_main(_MAIN, place, str(folder), textwrap.dedent(body))
    return {k: v for k, v in values.items() if k not in ("returncode", "stderr", "stdout")}

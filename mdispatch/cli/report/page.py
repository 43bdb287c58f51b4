"""The page of ``mdispatch report``: one file with everything in it, made from ``page.html``.

The page loads nothing, and its own policy forbids loading. The policy names the style and the only
script by their hashes, so no other style or script works in the page. Everything that comes from
the registry is printed by the template, which escapes it (see :mod:`mdispatch.cli.pages`). Without
JavaScript the search is missing, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from ... import __version__, facts
from ...dispatch.explain import BUILT_IN
from ...dispatch.kernels import FALLTHROUGH
from ..columns import number_of, size
from ..doctor import awaited, duration, sentence
from ..pages import templates
from ..subject import by

#: Where the template, the style and the script lie.
FOLDER = Path(__file__).parent

_SHORT = 6  # A longer list of keys is folded up.

#: The rules by which a table's entries come about, the first that applies decides.
RULES = {
    "kernel": "A kernel that is registered at the key itself, the newest one.",
    "default backend kernel": "A kernel at CompositeExplicitAutogradNonFunctional, else at "
    "CompositeExplicitAutograd: one for all backends.",
    "nested kernel": "A kernel at CompositeImplicitAutogradNestedTensor, for nested tensors.",
    "math kernel": "A kernel at CompositeImplicitAutograd: made of other operators, it serves "
    "backends and their autograd keys alike, where no backend has a kernel of its own.",
    "ambiguous autogradother": "AutogradOther stands for many backends. Some of them have kernels "
    "of their own, so nobody knows which is meant: a call is refused.",
    "autograd kernel": "A kernel at Autograd: one for the autograd keys of all backends.",
    "batched kernel": "A kernel at FuncTorchBatchedDecomposition, for batched values.",
    "backend fallback": "The fallback of the key, which serves all operators.",
    "missing": "Nothing serves the key: a call is refused, and told which keys there are.",
}


def _anchor(name: str, what: str = "op") -> str:
    """The id of an operator, or of a namespace; a link to it adds a #."""
    return f"{what}-{quote(name, safe=':', errors='backslashreplace')}"


def _rule_anchor(reason: str) -> str:
    """The id of the explanation of a rule."""
    return "rule-" + reason.replace(" ", "-")


def _csp_hash(text: str) -> str:
    """A style or a script as the page's policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _thousands(number: int) -> str:
    return f"{number:,}"


def page(report: object) -> str:
    """The whole page of a :class:`~mdispatch.cli.report.command.Report`. The template asks the
    report for everything, so this module does not need to know its class.
    """
    environment = templates(FOLDER)
    environment.filters |= {
        "anchor": _anchor,
        "awaited": awaited,
        "by": by,
        "csp_hash": _csp_hash,
        "duration": duration,
        "number_of": number_of,
        "rule_anchor": _rule_anchor,
        "sentence": sentence,
        "size": size,
        "thousands": _thousands,
    }
    environment.globals |= {
        "BUILT_IN": BUILT_IN,
        "FALLTHROUGH": FALLTHROUGH,
        "RULES": RULES,
        "SHORT": _SHORT,
        "script": Markup((FOLDER / "page.js").read_text(encoding="utf-8")),
        "style": Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        "version": __version__,
        "who": facts.who,
    }
    return environment.get_template("page.html").render(report=report)

"""The page of ``mdispatch report``: one file with everything in it.

Nothing is loaded, and the page's own policy forbids it. Everything that comes from the registry
passes through ``text_of``, which leaves no markup, nothing that is not printed, and nothing that
turns the direction of reading. Without JavaScript the search is missing, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING

from . import __version__
from . import _registry as facts
from ._doctor import awaited
from ._doctor_show import duration, size
from ._report_markup import code, kernel, pairs, place, rule_anchor, table, text_of
from ._report_operators import built_in_or_place, operators
from ._report_style import SCRIPT, STYLE

if TYPE_CHECKING:
    from ._inspecting import Member
    from ._report import Report

__all__ = ["RULES", "page"]

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


# --- what belongs to no operator ------------------------------------------------------------------


def _fallbacks(report: Report) -> str:
    rows = [
        (text_of(", ".join(slots.keys)), kernel(slots.row.kernel), built_in_or_place(slots))
        for slots in report.fallbacks()
    ]
    words = "What runs at these keys where an operator has nothing of its own"
    return table(words, ("keys", "runs", "registered at"), rows)


def _registrars(report: Report) -> str:
    rows = [
        (
            code(each.file),
            text_of(facts.who(each.pid, each.interpreter)),
            *(f"{number:,}" for number in (each.definitions, each.kernels, each.fallbacks)),
        )
        for each in report.registrars()
    ]
    headings = ("file", "by", "definitions", "kernels", "fallbacks")
    parts = [table("By file and interpreter", headings, rows, 3)] if rows else []
    libraries = [(text_of(f.name), place(f)) for f in report.catalogue.libraries if f.name != "_"]
    if libraries:
        parts.append(table("Namespaces", ("namespace", "library opened at"), libraries))
    return "".join(parts) or "<p>Nobody has registered anything.</p>"


def _members(report: Report) -> str:
    seen = report.seen
    if seen is None or not seen.readable:
        return "<p>They could not be looked at.</p>"
    policy = "each namespace has a registrar (elect)" if seen.elects else "a main member registers"
    about = [("state", text_of(seen.state)), ("policy", policy)]
    used = f"{size(seen.used)} used, {size(seen.free)} free of {size(seen.capacity)}"
    about.append(("memory", used))
    rows = [
        (
            facts.who(member.pid, member.interpreter),
            text_of(member.role),
            "alive" if member.alive else '<span class="bad">dead</span>',
            _waits(member),
        )
        for member in report.members
    ]
    headings = ("member", "role", "state", "waits for")
    return pairs(about) + table("Interpreters that joined", headings, rows)


def _waits(member: Member) -> str:
    if not member.waits:
        return "-"
    return f"{text_of(awaited(member))}<small>{duration(member.seconds)}</small>"


def _rules() -> str:
    rules = "".join(
        f'<dt id="{rule_anchor(rule)}">{rule}</dt><dd>{escape(words)}</dd>'
        for rule, words in RULES.items()
    )
    return (
        "<p>A call has a set of dispatch keys. Of those that do not fall through, the one with the "
        "highest priority decides. What runs there is found by the first of these rules that "
        f"applies:</p><dl>{rules}</dl>"
    )


# --- the page -------------------------------------------------------------------------------------


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _tiles(report: Report) -> str:
    found = report.catalogue
    kernels = sum(len(operator.kernels) for operator in found.operators)
    alive = sum(member.alive for member in report.members)
    defined = sum(operator.definition is not None for operator in found.operators)
    tiles = [
        (defined, f"operator{'s' * (defined != 1)}"),
        (len(found.operators) - defined, "not defined"),
        (kernels, f"kernel{'s' * (kernels != 1)}"),
        (len(found.namespaces), f"namespace{'s' * (len(found.namespaces) != 1)}"),
        (len(found.fallbacks), f"fallback{'s' * (len(found.fallbacks) != 1)}"),
        (alive, f"member{'s' * (alive != 1)} alive"),
    ]
    cells = "".join(
        f"<li><b>{number:,}</b><span>{what}</span></li>"
        for number, what in tiles
        if number or what != "not defined"
    )
    return f'<ul class="tiles">{cells}</ul>'


def page(report: Report) -> str:
    """The whole page."""
    modules = text_of(", ".join(report.modules))
    title = f"Operators of {modules}" if modules else f"Registry {text_of(report.label)}"
    policy = (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    sections = [
        ("operators", "Operators", operators(report)),
        ("fallbacks", "Fallbacks", _fallbacks(report)),
        ("registrars", "Who registered what", _registrars(report)),
        ("members", "Members", _members(report)),
        ("rules", "How to read the tables", _rules()),
    ]
    links = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{words}</h2>\n{content}</section>\n'
        for name, words, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="mdispatch {text_of(__version__)}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#main">To the operators</a>
<header>
<h1>{title}</h1>
<p class="soft">Registry {code(report.catalogue.registry)}, as it was on
<time datetime="{text_of(report.made)}">{text_of(report.made)}</time>.</p>
{_tiles(report)}
<nav aria-label="Sections"><ul>{links}</ul></nav>
<noscript><p class="soft">Searching here needs JavaScript; everything else does not.</p></noscript>
</header>
<div class="search" role="search" hidden><div>
<label for="words">Search operators</label>
<input id="words" type="search" autocomplete="off" spellcheck="false" aria-describedby="hint">
<output for="words"></output>
<span id="hint" class="soft">name, schema, key, kernel, file</span>
</div></div>
<main id="main" tabindex="-1">
{body}</main>
<footer><p>Made by mdispatch {text_of(__version__)}.</p></footer>
<script>{SCRIPT}</script>
</body>
</html>
"""

"""The documentation as a site: what is in docs/, README-like pages of plain Markdown, and the
reference, which is made of docstrings and of native/mdispatch.h while the site is built.

    pip install '.[docs]'
    sphinx-build -qnW --keep-going -c docs/site docs build/site

Sphinx adds what pages that must read well on their own cannot have: the navigation, which is that
of docs/index.md, and links from the pages into the reference.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import c_reference  # noqa: E402
import python_reference  # noqa: E402
from sphinx.errors import ExtensionError  # noqa: E402

import mdispatch  # noqa: E402

project = "mdispatch"
author = "the authors of mdispatch"
project_copyright = author
version = release = mdispatch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site"]
root_doc = "index"
nitpicky = True

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
smartquotes = False  # texts are quoted as they are written: "" is no quotation mark

# Words that annotations use: type variables, aliases and classes whose objects nobody makes or
# names. Whatever else a docstring or a page refers to must be there.
nitpick_ignore_regex = [
    ("py:class", r"F|Op|Ops|Types|Keys|Kind|Sizes?|Mode|Rules|Formula|Result|Operator|ModuleType"),
    ("py:class", r"P|R|R_co|DeviceSwitch|Held|Location|Provider|_Ops|OurArgument"),
    ("py:class", r"libraries\.Library"),  # mdispatch.Library, of which torch_compat has a class
    ("py:class", r"TypeKeys|FrameType|What|Classes|Given|Chooser|RegisteredKernel"),
    (
        "py:class",
        r"Facts|Dispatcher|Interpreter|HigherOrderNamespace|Definition|OperatorEntry|TableEntry",
    ),
    ("py:class", r"DispatchTable|LocalKernel|Slot|T|Future|Path|PathLike|concurrent\.futures\..*"),
    ("py:class", r"AutogradEngine|Tracer|_keys\.DispatchKeySet|mdispatch(\.\w+){2,}\.\w+"),
    ("c:identifier", r"u?int(32|64)_t|size_t"),
]
# An annotation says DispatchKeySet, and torch_compat has a class of that name, too.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"mdispatch {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

# Where a page leads out of docs/: what of it is on the site. The rest is named, not linked.
ON_THE_SITE = {
    "../native/mdispatch.h": "reference/c.rst",
    "../native/mdispatch_kernels.h": "reference/c-kernels.rst",
    "../mdispatch/__init__.py": "reference/python.rst",
    "../mdispatch/errors/classes.py": "reference/errors.rst",
}
ENTRY = r"^- \[[^\]]+\]\(([^)#]+?)\.(?:md|rst)\)"
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


# What a browser loads by itself, from another host.
FETCHED = (
    r"<(?:script|img|iframe|source)[^>]* src=[\"']?(?:https?:)?//[^>]+>"
    r"|<link(?![^>]*rel=[\"']?canonical)[^>]* href=[\"']?(?:https?:)?//[^>]+>"
    r"|@import[^;]*//[^;]*;|url\([\"']?(?:https?:)?//[^)]*\)"
)
ERROR = re.compile(rf"(?<![\w.`:])({'|'.join(mdispatch.errors.__all__)})\b(?!`)")


def links(app, docname, source):
    """Turns links that lead out of docs/ into links to the reference, or into names of files."""

    def there(found):
        words, target = found.groups()
        if target in ON_THE_SITE:
            return f"[{words}]({ON_THE_SITE[target]})"
        name = target.removeprefix("../")
        return words if words.strip("`") == name else f"{words} (`{name}` in the sources)"

    # On the site a link to [calls.md](calls.md) has that page's title.
    text = re.sub(r"\[[\w-]+\.md\]\((?=[\w-]+\.md)", "[](", source[0])
    source[0] = LINK.sub(there, text)


def navigation(app, docname, source):
    """Adds to docs/index.md, a page of lists under headings, the navigation that they mean.

    What is in docs/ and not on that page comes under "How to": a new page is on the site at once.
    """
    if docname != root_doc:
        return
    listed = re.findall(ENTRY, source[0], re.MULTILINE)
    others = sorted({path.stem for path in Path(app.srcdir).glob("*.md")} - {*listed, root_doc})
    start, *parts = re.split(r"^## (.+)$", source[0], flags=re.MULTILINE)
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        names = re.findall(ENTRY, text, re.MULTILINE) + (others if heading == "How to" else [])
        lines = ["```{toctree}", ":hidden:", f":caption: {heading}", "", *names, "```"]
        start += "\n".join([f"## {heading}", text, *lines, "", ""])
    source[0] = start


def errors(app, what, name, value, options, lines):
    """Links the names of errors in docstrings, which have them as plain words."""
    for place, line in enumerate(lines):
        if not line.startswith("    "):
            lines[place] = ERROR.sub(r":py:exc:`~mdispatch.errors.\1`", line)


def signature(app, what, name, value, options, arguments, returns):
    """Leaves out the parameters that are for the package itself."""
    if what == "class" and "._" in name:
        return "", None  # made by the package alone
    if arguments is not None:
        arguments = re.sub(r", _\w+: [^,]+? = [^,)]*", "", arguments)
    return arguments, returns


def bare_name(app, env, node, contnode):
    """Docstrings say :class:`Library` wherever they stand: it is found by its last name."""
    if node.get("refdomain") != "py":
        return None
    python = env.get_domain("py")
    names = [name for name in python.objects if name.endswith("." + node["reftarget"])]
    if not names:
        return None
    name = min(names, key=lambda name: (name.count("."), name))
    kind, doc = node["reftype"], node["refdoc"]
    return python.resolve_xref(env, doc, app.builder, kind, name, node, contnode)


def reference(app):
    """Writes the pages of the reference; only what has changed, so that a build takes up there."""
    native = ROOT / "native"
    pages = {
        **python_reference.pages(),
        "c": c_reference.page(native / "mdispatch.h"),
        "c-kernels": c_reference.listing(native / "mdispatch_kernels.h"),
    }
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for old in {path.stem for path in folder.glob("*.rst")} - set(pages):
        (folder / f"{old}.rst").unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


#: What the theme and Pygments leave out for people who use a keyboard or a screen reader.
ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    # Both scroll sideways where the page is narrow.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}


def accessible(app, exception):
    if exception or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = new = path.read_text()
        for theirs, ours in ACCESSIBLE.items():
            new = new.replace(theirs, ours)
        if new != text:
            path.write_text(new)


def checked(app, exception):
    """The site that was built has every public name and needs no network to be read."""
    if exception or app.builder.format != "html":
        return
    faults = []
    there = {**app.env.get_domain("py").objects, **app.env.get_domain("py").modules}
    for page in python_reference.PAGES:
        for module, _, names in python_reference.names(page):
            faults += [f"no {module}.{n}" for n in names if f"{module}.{n}" not in there]
    for path in Path(app.outdir).rglob("*"):
        if path.suffix in {".html", ".css", ".js"}:
            text = path.read_text(errors="replace")
            faults += [f"{path}: {found}" for found in re.findall(FETCHED, text)]
    if faults:
        raise ExtensionError("\n".join(faults))


def setup(app):
    app.connect("builder-inited", reference)
    app.connect("build-finished", accessible)
    app.connect("build-finished", checked)
    app.connect("autodoc-process-docstring", errors)
    app.connect("autodoc-process-signature", signature)
    app.connect("env-get-outdated", lambda *_: [root_doc])  # its lists depend on what is there
    app.connect("missing-reference", bare_name)
    app.connect("source-read", links)
    app.connect("source-read", navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

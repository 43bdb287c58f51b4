"""The C reference: native/mdispatch.h as a page, in its own words and its own order.

The header is the manual. This reads what it has: the long comment at its top, with headings in
capitals, and between the two marker lines declarations with their comments. A declaration of a form
that it does not know is an error.
"""

from __future__ import annotations

import re
import textwrap

TITLE = "C reference"

_TOKEN = re.compile(
    r"/\*(?P<comment>.*?)\*/\s*"
    r"|(?P<enum>(?:typedef )?enum (?P<tag>\w+)? ?\{(?P<items>.*?)\}[^;]*;)\s*"
    r"|(?P<struct>typedef struct (?P<of>\w+) \{(?P<fields>.*?)\} \w+;)\s*"
    r"|(?P<alias>typedef [^;{]*?(?P<new>\w+);)\s*"
    r"|(?P<function>[a-z][^;{]*?\b(?P<called>md_\w+)\([^;]*?\);)\s*",
    re.DOTALL,
)


def page(header):
    text = header.read_text()
    manual, contract = _parts(text)
    lines = [TITLE, "=" * len(TITLE), ""]
    lines += ["This is ``mdispatch.h``: the manual at its top, then what it declares.", ""]
    lines += _manual(manual)
    lines += ["Declarations", "------------", ""]
    for kind, name, declaration, words in declarations(contract):
        lines += _entry(kind, name, declaration, words)
    return "\n".join(lines)


def listing(header):
    """The manual of a header, and then its code as it stands: half of that one is macros."""
    text = header.read_text()
    lines = ["Kernels and hosts in C", "=" * 22, "", f"This is ``{header.name}``.", ""]
    # What mdispatch.h declares has a location to link to; the rest stands below, on the same page.
    elsewhere = set(re.findall(r"\bMD_\w+|\bmd_\w+", header.with_name("mdispatch.h").read_text()))
    for line in _manual(re.match(r"/\*(.*?)\*/", text, re.DOTALL).group(1)):
        lines.append(
            re.sub(
                r":c:\w+:(`(\w+)`)",
                lambda found: found[0] if found[2] in elsewhere else f"`{found[1]}`",
                line,
            )
        )
    code = text[text.index("/* kernels begin */") :].rpartition("#ifdef __cplusplus")[0]
    lines += ["The header", "----------", "", ".. code-block:: c", ""]
    return "\n".join([*lines, textwrap.indent(code, "   "), ""])


def _parts(text):
    manual = re.match(r"/\*(.*?)\*/", text, re.DOTALL).group(1)
    contract = text.split("/* contract begins */")[1].split("/* contract ends */")[0]
    return manual, contract


def declarations(contract):
    """``(kind, name, declaration, words)`` in the header's order."""
    place = 0
    words = ""
    contract = contract.strip() + "\n"
    while place < len(contract):
        token = _TOKEN.match(contract, place)
        if token is None:
            rest = contract[place : place + 60]
            raise ValueError(f"mdispatch.h: c_reference.py does not know what this is: {rest!r}")
        place = token.end()
        if token["comment"] is not None:
            words = _flowing(token["comment"])
            continue
        for kind, name in (("enum", "tag"), ("struct", "of"), ("alias", "new")):
            if token[kind] is not None:
                yield kind, token[name] or "", token[kind], words
        if token["function"] is not None:
            yield "function", token["called"], token["function"], words
        # A comment is that of what follows it without an empty line.
        words = words if not token[0].endswith("\n\n") else ""


def _flowing(comment):
    """A comment's paragraphs without the stars and the line breaks."""
    return "\n".join(re.sub(r"^ ?\* ?", "", line).rstrip() for line in comment.splitlines()).strip()


def _manual(comment):
    """The comment at the top: headings are lines in capitals; what is indented is code."""
    lines = []
    code = False
    for line in _flowing(comment).splitlines():
        if re.fullmatch(r"[A-Z][A-Z ]+", line):
            lines += [line.capitalize(), "-" * len(line), ""]
        elif line.startswith("    "):
            if not code:
                lines += [".. code-block:: c", ""]
            lines.append(line)
        elif line:
            lines.append(_marked(line))
        else:
            lines.append("")
        code = line.startswith("    ") or (code and not line)
    return [*lines, ""]


def _entry(kind, name, declaration, words):
    marked = [_marked(line) for line in words.splitlines()]
    if kind == "function":
        shown = " ".join(declaration.rstrip(";").split())
        return [f".. c:function:: {shown}", "", *_indented(marked), ""]
    if kind == "alias":
        shown = " ".join(declaration.removeprefix("typedef ").rstrip(";").split())
        if shown == f"struct {name} {name}":
            return [f".. c:struct:: {name}", "", *_indented(marked), ""]
        return [f".. c:type:: {shown}", "", *_indented(marked), ""]
    body = re.search(r"\{(.*)\}", declaration, re.DOTALL).group(1)
    head = f".. c:{kind}:: {name}".rstrip()
    # An enum without a name is a list of constants.
    lines = [head, "", *_indented(marked), ""] if name else []
    form = "enumerator" if kind == "enum" else "member"
    for item in _items(body, "," if kind == "enum" else ";"):
        entry = [f".. c:{form}:: {item[0]}", "", *_indented([_marked(item[1])]), ""]
        lines += _indented(entry) if name else entry
    return lines


def _items(body, end):
    """``(declaration, words)`` of the entries of an enum or struct; comments stand after them."""
    items = []
    for piece in re.findall(r"/\*.*?\*/|[^/]+", body, re.DOTALL):
        if piece.startswith("/*"):
            items[-1][1] = " ".join(_flowing(piece[2:-2]).split())
        else:
            items += [[" ".join(each.split()), ""] for each in piece.split(end) if each.strip()]
    return items


def _indented(lines):
    return textwrap.indent("\n".join(lines), "   ").split("\n")


def _marked(line):
    """Names in a comment as what they are."""
    line = re.sub(r"`([^`]+)`", r"``\1``", line)
    line = line.replace("*", r"\*")
    line = re.sub(r"\b(md_\w+)\(\)", r":c:func:`\1`", line)
    return re.sub(r"(?<![`\w])(MD_[A-Z]+(?:_[A-Z]+)*)\b", r":c:enumerator:`\1`", line)

"""The page of ``mdispatch report``, read as a file and in a real browser."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_browser
from command_line import mdispatch
from markupsafe import Markup
from test_explain_command import SHOP, nameless

import mdispatch as md
from mdispatch.cli.pages import templates
from mdispatch.cli.report.page import FOLDER, RULES
from mdispatch.dispatch import table
from mdispatch.facts import DEF, IMPL
from mdispatch.keys.numbers import RUNTIME_KEYS

# The page is the same on every Python and with either binding.
pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

HOSTILE = "</code></script><script>document.title='owned'</script>'\"&<img src=x onerror=owned>"
HOSTILE += "\x1b[31m\u202e"
STYLE = (FOLDER / "page.css").read_text()
VOID = {"meta", "link", "input", "img", "br"}


def run(folder: Path, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    return mdispatch("report", *arguments, cwd=folder, **changes)


class Page(HTMLParser):
    """The elements of a page, in order, each with its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, dict(attrs), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag, "every element ends where it should"

    def handle_data(self, data: str) -> None:
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(found[1], "".join(found[2])) for found in self.elements if found[0] == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two pages and their JSON: of a module with every kind of registration, and of a
    running registry with hostile names and locations.
    """
    folder = tmp_path_factory.mktemp("pages")
    (folder / "shop.py").write_text(SHOP)
    done = run(folder, "shop.html", "--import", "shop", "--json")
    # What the module prints may be written at the end only.
    said, wrote = sorted(done.stderr.splitlines())
    assert (done.returncode, said) == (0, "a module that prints")
    assert re.fullmatch(r"wrote shop\.html: \d+ operators, [\d.]+ KiB", wrote)
    (folder / "shop.json").write_text(done.stdout)
    with md.Registry.create() as registry:
        _write_anything(registry)
        # In a process of its own, which is no member.
        done = run(folder, "hostile.html", "--registry", registry.address, "--json", process=True)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    (folder / "hostile.json").write_text(done.stdout)
    return folder


def _write_anything(registry: md.Registry) -> None:
    """Writes texts that every process with the registry open may write."""
    facts = registry.dispatcher.facts
    facts.register(DEF, 0, f"evil::{HOSTILE}.out", f"evil::{HOSTILE}(Tensor x)", HOSTILE)
    facts.register(IMPL, 99_999, f"evil::{HOSTILE}.out", HOSTILE, HOSTILE)
    facts.register(IMPL, int(md.DispatchKey.CPU), "evil::f", f"{HOSTILE}\n{HOSTILE}", "no place")
    facts.register(DEF, 0, "noNamespace", "\n\n\n", "")
    facts.register(IMPL, int(md.DispatchKey.Autograd), HOSTILE, HOSTILE, HOSTILE)


def page(folder: Path, name: str = "shop") -> Page:
    return Page((folder / f"{name}.html").read_text())


def answer(folder: Path, name: str = "shop") -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


# --- as a file ------------------------------------------------------------------------------------


@pytest.mark.dear
def test_a_page_has_every_operator_its_schema_its_kernels_and_their_places(folder: Path) -> None:
    articles = {attributes["id"]: text for attributes, text in page(folder).all("article")}
    told = answer(folder)["operators"]
    assert list(articles) == [f"op-{each['operator']}" for each in told]
    for each in told:
        text = articles[f"op-{each['operator']}"]
        assert (each["schema"] or "Not defined") in text
        for kernel in each["kernels"]:
            label = "falls through" if kernel["falls_through"] else kernel["kernel"]
            words = (
                kernel["key"],
                label,
                kernel["location"]["where"],
                f"pid {kernel['location']['pid']}",
            )
            assert all(word in text for word in words)


def test_the_json_has_the_table_of_each_operator_as_the_command_table_has_it(folder: Path) -> None:
    told = {each["operator"]: each["table"] for each in answer(folder)["operators"]}
    assert len(told) == 5
    for name in ("shop::scale", "shop::norm"):
        groups = told[name]
        arguments = ["table", name, "--all", "--json", "--import", "shop"]
        done = mdispatch(*arguments, cwd=folder)
        there = {slot.pop("key"): slot for slot in nameless(json.loads(done.stdout))["slots"]}
        here = {key: dict(group) for group in nameless(groups) for key in group["keys"]}
        for group in here.values():
            del group["keys"]
        assert len(here) == len(RUNTIME_KEYS) == sum(len(group["keys"]) for group in groups)
        assert here == there


def test_each_entry_of_a_table_links_to_the_words_for_its_rule(folder: Path) -> None:
    found = page(folder)
    ids = {attributes.get("id") for _, attributes, _ in found.elements}
    links = [attributes["href"] for attributes, _ in found.all("a")]
    assert [link for link in links if link[0] != "#" or link[1:] not in ids] == []
    reasons = {group["reason"] for each in answer(folder)["operators"] for group in each["table"]}
    assert reasons > {"kernel", "autograd kernel", "math kernel", "backend fallback"}
    assert {f"#rule-{reason.replace(' ', '-')}" for reason in reasons} <= set(links)


def test_there_are_words_for_every_rule() -> None:
    reasons = {reason for _, reason in table._ALIASES}
    reasons |= {table._KERNEL, table._AMBIGUOUS, table._FALLBACK, table._MISSING}
    assert set(RULES) == reasons


def test_no_two_elements_have_one_id(folder: Path) -> None:
    for name in ("shop", "hostile"):
        ids = [a["id"] for _, a, _ in page(folder, name).elements if "id" in a]
        assert len(ids) == len(set(ids))


def test_a_page_names_nothing_that_would_be_loaded(folder: Path) -> None:
    for name in ("shop", "hostile"):
        found = page(folder, name)
        assert {tag for tag, _, _ in found.elements} & {"img", "iframe", "object", "embed"} == set()
        assert [a for tag, a, _ in found.elements if a.get("src") or tag == "base"] == []
        assert [a["href"] for a, _ in found.all("link")] == ["data:,"]
        assert "url(" not in STYLE
        assert "@import" not in STYLE
        policy = found.all("meta")[1][0]
        assert policy["http-equiv"] == "Content-Security-Policy"
        assert "default-src 'none'" in policy["content"]


def test_names_and_places_that_hold_anything_are_text(folder: Path) -> None:
    found = page(folder, "hostile")
    assert len(found.all("script")) == 1
    assert [a for _, a, _ in found.elements for name in a if name.startswith("on")] == []
    text = (folder / "hostile.html").read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert [c for c in text if not (c.isprintable() or c == "\n")] == []
    written = "</code></script><script>document.title='owned'</script>'\"&<img src=x onerror=owned>"
    assert any(f"evil::{written}" in text for _, text in found.all("article"))
    told = {each["operator"]: each for each in answer(folder, "hostile")["operators"]}
    assert set(told) == {"evil::f", f"evil::{HOSTILE}.out", "noNamespace", HOSTILE}
    assert told[f"evil::{HOSTILE}.out"]["kernels"][0]["key"] == "99999"


def test_a_template_escapes_what_it_prints_and_leaves_markup_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<p title='{{ text }}'>{{ text }}{{ twice(text) }}{{ own }}"
    )
    template = templates(tmp_path).get_template("page.html")
    made = template.render(text=HOSTILE, own=Markup("<b>ours</b>"), twice=lambda text: 2 * text)
    found = Page(f"{made}</p>")
    assert [tag for tag, _, _ in found.elements] == ["p", "b"]
    printed = "".join(c if c.isprintable() else repr(c)[1:-1] for c in HOSTILE)
    assert found.elements[0][1] == {"title": printed}
    assert found.elements[0][2] == [f"{3 * printed}", "ours"]


def test_a_page_without_jinja2_names_the_extra_and_json_needs_none(folder: Path) -> None:
    (folder / "without" / "jinja2").mkdir(parents=True)
    (folder / "without" / "jinja2" / "__init__.py").write_text(
        "raise ModuleNotFoundError('hidden', name='jinja2')\n"
    )
    path = str(folder / "without")
    done = run(folder, "page.html", "--import", "shop", PYTHONPATH=path, process=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs 'jinja2', which is not installed" in done.stderr
    assert "pip install 'mdispatch[cli]'" in done.stderr
    assert not (folder / "page.html").exists()
    done = run(folder, "--json", "--import", "shop", PYTHONPATH=path, process=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["page"] is None


def test_who_only_looks_is_no_member_of_the_page(folder: Path) -> None:
    told = answer(folder, "hostile")
    assert [(each["pid"], each["role"]) for each in told["members"]] == [(os.getpid(), "main")]
    assert answer(folder)["members"][0]["role"] == "main"


def test_who_registered_what_is_counted_by_file(folder: Path) -> None:
    (who,) = answer(folder)["registrars"]
    assert who["file"] == f"{folder}/shop.py"
    assert [who[what] for what in ("definitions", "kernels", "fallbacks")] == [3, 7, 1]


def test_a_page_is_put_in_place_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise RuntimeError('never works')\n")
    (tmp_path / "there.html").write_text("the old one")
    assert run(tmp_path, "there.html", "--import", "fails").returncode == 2
    assert (tmp_path / "there.html").read_text() == "the old one"
    (tmp_path / "shop.py").write_text(SHOP)
    done = run(tmp_path, "there.html", "--import", "shop")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "there.html").read_text().startswith("<!doctype html>")
    left = {name for name in os.listdir(tmp_path) if name != "__pycache__"}
    assert left == {"fails.py", "shop.py", "there.html"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--import", "shop"), "report.html"),
        (("nowhere/at/all.html", "--import", "shop"), "no folder"),
        ((".", "--import", "shop"), "could not be written"),
        (("page.html",), "--registry NAME"),
        (("page.html", "--registry", "no-such-registry"), "mdispatch doctor lists"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_where_no_page_can_be_made_it_says_why(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert ".part" not in done.stderr
    assert not (folder / "page.html").exists()


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_can_be_read_on_its_ground_in_light_and_in_dark() -> None:
    """A contrast of at least 4.5, as WCAG 2 measures it."""
    schemes = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w+)", scheme))
        for text in ("ink", "soft", "link", "bad"):
            for ground in ("page", "card"):
                one, other = sorted(luminance(colours[name]) for name in (text, ground))
                assert (other + 0.05) / (one + 0.05) >= 4.5, (text, ground)


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def searched(browser: Browser, text: str) -> tuple[str, list[str]]:
    """Types a text into the search. Returns the words beside it and the operators that are still
    shown.
    """
    browser.key("Escape")
    browser.value("document.activeElement.blur()")
    browser.key("/")
    browser.type(text)
    browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shown = "[...document.querySelectorAll('article')].filter(each => each.checkVisibility())"
    left = browser.value(f"{shown}.map(each => each.id)")
    return browser.value("document.querySelector('output').textContent"), left


def test_a_page_opens_without_a_network_and_without_a_complaint(
    browser: Browser, folder: Path
) -> None:
    for name in ("shop", "hostile"):
        browser.open(folder / f"{name}.html")
        assert browser.loaded == [(folder / f"{name}.html").as_uri()]
        assert browser.complaints == []
        assert browser.value("document.querySelector('.search').checkVisibility()")
        assert "owned" not in browser.value("document.title")
        assert browser.value("typeof owned") == "undefined"


def test_what_a_page_should_not_run_would_be_refused(browser: Browser, folder: Path) -> None:
    """If an escape should ever fail, the page's policy still forbids scripts and loading."""
    text = (folder / "shop.html").read_text()
    bad = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/x'>"
    (folder / "bad.html").write_text(text.replace("<h2>", f"{bad}<h2>", 1))
    browser.open(folder / "bad.html")
    assert browser.value("document.title") == "Operators of shop"
    assert browser.loaded == [(folder / "bad.html").as_uri()]
    assert len([each for each in browser.complaints if "Content Security Policy" in each]) == 2


def test_the_search_finds_by_name_schema_key_kernel_and_file(
    browser: Browser, folder: Path
) -> None:
    browser.open(folder / "shop.html")
    assert searched(browser, "scale")[1] == ["op-shop::scale", "op-shop::scale.out"]
    assert searched(browser, "SCALE float") == ("1 of 5 operators", ["op-shop::scale"])
    assert searched(browser, "sparsecuda")[1] == ["op-shop::norm"]
    assert searched(browser, "shop.graded")[1] == ["op-shop::scale"]
    assert searched(browser, "pointwise")[1] == ["op-shop::scale"]
    assert len(searched(browser, "shop.py:")[1]) == 5
    assert searched(browser, "no such thing") == ("0 of 5 operators", [])
    assert browser.value("[...document.querySelectorAll('h3')].some(e => e.checkVisibility())") is (
        False
    )
    assert searched(browser, "") == (
        "",
        [f"op-shop::{n}" for n in ("held", "nobody", "norm", "scale", "scale.out")],
    )


def test_the_search_takes_what_is_typed_as_text(browser: Browser, folder: Path) -> None:
    browser.open(folder / "hostile.html")
    assert len(searched(browser, "<img src=x onerror=owned>")[1]) == 3
    assert searched(browser, ".*")[1] == []
    assert browser.complaints == []


def test_without_javascript_everything_is_there_but_the_search(
    browser: Browser, folder: Path
) -> None:
    browser.open(folder / "shop.html", script=False)
    assert not browser.value("document.querySelector('.search').checkVisibility()")
    assert "needs JavaScript" in browser.value("document.querySelector('header').innerText")
    browser.value("document.querySelector('#op-shop\\\\:\\\\:scale > details > summary').click()")
    shown = browser.value("document.querySelector('#op-shop\\\\:\\\\:scale').innerText")
    for words in ("shop.cpu", "shop.graded", "autograd kernel", "backend fallback", "built in"):
        assert words in shown


def test_a_screen_reader_is_told_what_everything_is(browser: Browser, folder: Path) -> None:
    browser.open(folder / "shop.html")
    roles = browser.roles()
    for landmark in ("banner", "main", "search", "contentinfo"):
        assert [role for role, _ in roles].count(landmark) == 1, landmark
    assert ("searchbox", "Search operators") in roles
    for role in ("table", "navigation", "link", "heading", "searchbox"):
        named = [name for found, name in roles if found == role]
        assert named
        assert all(named), f"every {role} has a name"
    levels = browser.value(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map(each => +each.tagName[1])"
    )
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert browser.value("document.documentElement.lang") == "en"
    assert browser.value(
        "[...document.querySelectorAll('th')].every(each => each.scope == 'col' || "
        "each.scope == 'row')"
    )


def test_a_page_can_be_used_with_the_keyboard_alone(browser: Browser, folder: Path) -> None:
    browser.open(folder / "shop.html")
    reached = []
    for _ in range(12):
        browser.key("Tab")
        reached.append(browser.value("document.activeElement.textContent || 'search'"))
        outline = browser.value("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
    assert reached[0] == "To the operators"
    assert "search" in reached


@pytest.mark.parametrize("width", [320, 768, 1600])
@pytest.mark.parametrize("name", ["shop", "hostile"])
def test_no_window_is_too_narrow(browser: Browser, folder: Path, name: str, width: int) -> None:
    browser.open(folder / f"{name}.html", width=width)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    ends = (
        "[...document.querySelectorAll('code,small,summary')].map(e => e.getBoundingClientRect())"
    )
    assert browser.value(f"Math.max(...{ends}.map(each => each.right)) <= innerWidth")


@pytest.mark.thorough
def test_the_page_is_dark_where_that_is_wanted(browser: Browser, folder: Path) -> None:
    grounds = []
    for dark in (False, True):
        browser.open(folder / "shop.html", dark=dark)
        ground = browser.value("getComputedStyle(document.body).backgroundColor")
        ink = browser.value("getComputedStyle(document.body).color")
        grounds.append([sum(map(int, re.findall(r"\d+", colour))) for colour in (ground, ink)])
    (light, dark_ink), (dark, light_ink) = grounds
    assert light > 700 > 100 > dark_ink
    assert dark < 100 < 700 < light_ink


@pytest.mark.thorough
def test_a_link_to_an_operator_leads_to_it(browser: Browser, folder: Path) -> None:
    for name in ("shop", "hostile"):
        browser.open(folder / f"{name}.html")
        found = browser.value(
            "[...document.querySelectorAll('h4 a')].map(each => { each.click(); "
            "return document.querySelector(':target') === each.closest('article') })"
        )
        assert len(found) == len(answer(folder, name)["operators"])
        assert all(found)

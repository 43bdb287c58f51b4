"""How the page of ``mdispatch report`` looks, and its only script: the search."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

#: Colours are named once for light and once for dark; each pair of text and ground has a contrast
#: of 4.5 at least (a test computes it).
STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --card: #f3f2ee; --ink: #191917;
  --soft: #56554f; --line: #d9d8d1; --link: #1a5fb4; --bad: #a8231b }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --card: #262624; --ink: #f1f0ec;
  --soft: #b9b8ae; --line: #403f3b; --link: #8ab4f8; --bad: #ff8a80 } }
* { box-sizing: border-box }
html { scroll-padding-top: 4.5rem }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
body > * { max-width: 1080px; margin: 0 auto; padding: 0 20px }
header { padding-top: 28px } footer { padding-top: 24px; padding-bottom: 48px }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere }
h2 { font-size: 20px; margin: 40px 0 8px } h3 { font-size: 17px; margin: 28px 0 8px }
h3, li { overflow-wrap: anywhere }
h4, h4 code { font-size: 15px; font-weight: 600; margin: 0 0 2px; overflow-wrap: anywhere }
p { margin: 0 0 10px; max-width: 75ch } .soft, footer p { color: var(--soft) }
a { color: var(--link) } h4 a, h3 a { color: inherit; text-decoration: none }
h4 a:hover, h3 a:hover { text-decoration: underline }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
.skip { position: absolute; left: -100vw } .skip:focus { left: 20px; background: var(--page) }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0; padding: 0; list-style: none }
.tiles li { background: var(--card); border-radius: 8px; padding: 8px 16px; min-width: 108px }
.tiles b { display: block; font-size: 21px; font-variant-numeric: tabular-nums }
.tiles span { color: var(--soft); font-size: 13px }
.search { position: sticky; top: 0; background: var(--page); padding-top: 10px;
  padding-bottom: 10px; border-bottom: 1px solid var(--line); z-index: 1 }
.search div { display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center }
.search input { font: inherit; color: inherit; background: var(--card); padding: 6px 10px;
  border: 1px solid var(--soft); border-radius: 6px; flex: 1 1 220px; min-width: 0 }
.search output { color: var(--soft); font-variant-numeric: tabular-nums }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 14px 0;
  list-style: none }
article { border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; margin: 10px 0;
  content-visibility: auto; contain-intrinsic-size: auto 190px }
article:target { border-color: var(--link) }
table { border-collapse: collapse; width: 100%; margin: 6px 0 }
caption { text-align: left; color: var(--soft); font-size: 13px; padding: 4px 0 }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0;
  border-bottom: 1px solid var(--line) }
thead th { font-weight: 500; font-size: 13px; color: var(--soft) }
tbody th { font-weight: 500 } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums }
td small, th small { display: block; color: var(--soft); font-size: 13px; font-weight: 400 }
dl { margin: 4px 0; display: grid; grid-template-columns: max-content 1fr; gap: 0 14px }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
summary { cursor: pointer; color: var(--link) } .bad { color: var(--bad); font-weight: 600 }
@media (min-width: 641px) { tbody th { width: 32% } }
@media (max-width: 640px) { html { scroll-padding-top: 8rem }
  dl { grid-template-columns: 1fr } dd { margin-bottom: 6px }
  table, caption, tbody, tr, th, td { display: block }
  thead { position: absolute; left: -100vw }
  tr { border-bottom: 1px solid var(--line); padding: 4px 0 } th, td { border: 0; padding: 1px 0 }
  td.number { text-align: left } td.number::before { content: attr(data-of) ": " } }
@media print { .search, nav, .skip { display: none } article { break-inside: avoid } }
"""

#: Works on what is there already: without it everything can be read all the same. It searches what
#: is said of an operator itself, not its table, where nearly all have nearly all keys.
SCRIPT = """
"use strict";
(() => {
  const box = document.querySelector(".search");
  if (!box) return;
  const input = box.querySelector("input"), told = box.querySelector("output");
  const groups = [...document.querySelectorAll("section.namespace")].map((group) => [group,
    [...group.querySelectorAll("article")].map((article) => [article,
      article.querySelector(".facts").textContent.toLowerCase()])]);
  const total = groups.reduce((sum, [, articles]) => sum + articles.length, 0);
  const search = () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter((word) => word);
    let found = 0;
    for (const [group, articles] of groups) {
      let here = 0;
      for (const [article, text] of articles) {
        article.hidden = !words.every((word) => text.includes(word));
        here += !article.hidden;
      }
      group.hidden = !here;
      found += here;
    }
    told.textContent = words.length ? found + " of " + total + " operators" : "";
  };
  let waiting = 0;
  input.addEventListener("input", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(search);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input && !event.ctrlKey
        && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
    } else if (event.key === "Escape" && document.activeElement === input) {
      input.value = "";
      search();
    }
  });
  box.hidden = false;
  search();
})();
"""

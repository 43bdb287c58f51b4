// The search, the page's only script. It works on the elements that are already there, so everything
// can be read without it. It searches an operator's facts and leaves out its table, because nearly
// every table has nearly every key.
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
    const words = input.value.toLowerCase().split(/\s+/).filter((word) => word);
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

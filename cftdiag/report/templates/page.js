"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const search = byId("search");
  const boxes = [...document.querySelectorAll("nav .filter input")];
  const articles = [...document.querySelectorAll("article")].map((node) => ({ node, text: node.textContent.toLowerCase() }));
  const body = document.querySelector("#compile-table tbody");
  const all = byId("more-compiles") ? JSON.parse(byId("more-compiles").textContent) : [];
  const own = body ? [...body.rows].map((node) => ({ node, text: node.textContent.toLowerCase() })) : [];
  const lower = all.map((row) => row.join(" ").toLowerCase());
  const more = byId("compiles-more"), told = byId("compiles-shown");
  const page = 200;
  let limit = page;

  search.hidden = !(articles.length || own.length);
  boxes.forEach((box) => { box.parentElement.hidden = false; });
  if (more) more.hidden = false;

  function cell(text, index) {
    const td = document.createElement("td");
    if (index >= 2 && index <= 4) td.className = "num";
    const inner = index === 1 ? td.appendChild(document.createElement("code")) : td;
    inner.textContent = text;
    return td;
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.includes(word));
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const { node, text } of articles) node.hidden = off.has(node.className) || !has(text);
    if (!all.length) {
      for (const { node, text } of own) node.hidden = !has(text);
      return;
    }
    const found = all.filter((row, i) => has(lower[i]));
    body.replaceChildren(...found.slice(0, limit).map((row) => {
      const tr = document.createElement("tr");
      tr.append(...row.map(cell), document.createElement("td"));
      return tr;
    }));
    told.textContent = `${Math.min(limit, found.length)} of ${found.length}`;
    more.hidden = limit >= found.length;
  }

  search.addEventListener("input", () => { limit = page; draw(); });
  boxes.forEach((box) => box.addEventListener("change", draw));
  if (more) more.addEventListener("click", () => { limit += 5 * page; draw(); });
  // a link to a finding shows it whatever is filtered
  addEventListener("hashchange", () => {
    const target = byId(decodeURIComponent(location.hash.slice(1)));
    if (target && target.hidden) { search.value = ""; boxes.forEach((box) => { box.checked = true; }); draw(); target.scrollIntoView(); }
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();

// The table of pods: search, filters, sorting, and rows for the visible part alone.
//
// The grid has the focus, and aria-activedescendant names the active row, so that a row that is
// recycled while scrolling never takes the focus away.

import { announce, byId, el, setAttribute, setText } from "./dom.js";
import { age, bytes, count, number } from "./format.js";
import { select, state, subscribe } from "./store.js";

const ROW = 34; // pixels, as in style.css
const SPARE = 8; // rows above and below the visible part
const COLUMNS = [
  { key: "status", title: "Status" },
  { key: "name", title: "Name" },
  { key: "namespace", title: "Namespace" },
  { key: "node", title: "Remote" },
  { key: "ready", title: "Ready", end: true, first: "descending" },
  { key: "restarts", title: "Restarts", end: true, first: "descending" },
  { key: "cpu", title: "CPU", end: true, first: "descending" },
  { key: "memory", title: "Memory", end: true, first: "descending" },
  { key: "at", title: "Age", end: true, first: "descending" },
];
const GROUPS = { bad: "Failing", warn: "Waiting", good: "Running", dim: "Completed" };
const RANK = { bad: 0, warn: 1, good: 2, dim: 3 };

const view = { rows: [], active: "", sort: "status", direction: "ascending", open: () => {} };
const pool = [];
let pending = 0;

/** Builds the table. `open` is called with the row whose details the user wants. */
export function start({ open }) {
  view.open = open;
  build();
  subscribe("pods", schedule);
  subscribe("selected", () => {
    byId("filter-remote").value = state.selected;
    schedule();
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("input", () => {
    select(byId("filter-remote").value);
    byId("scroller").scrollTop = 0;
    schedule();
  });
  const grid = byId("pods");
  grid.addEventListener("keydown", onKey);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      byId("search").focus();
      byId("search").select();
    }
  });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      grid.focus();
      activate(0);
    }
  });
  setInterval(paint, 10_000); // ages
  schedule();
}

function build() {
  const head = el("div", { class: "grid-head", role: "row", "aria-rowindex": "1" },
    ...COLUMNS.map((column) => el("div", { role: "columnheader", class: column.end ? "end" : "", "data-key": column.key },
      el("button", { type: "button", click: () => sortBy(column) }, column.title, el("span", { class: "arrow", "aria-hidden": "true" })))));
  const body = el("div", { id: "rows", class: "rows", role: "rowgroup" });
  const scroller = el("div", { id: "scroller", class: "scroller" }, body);
  byId("pods").append(el("div", { role: "rowgroup" }, head), scroller);
  setAttribute(byId("pods"), "aria-colcount", COLUMNS.length);
  scroller.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  new ResizeObserver(() => requestAnimationFrame(paint)).observe(scroller);
  showSort();
}

function schedule() {
  pending ||= requestAnimationFrame(() => {
    pending = 0;
    compute();
    paint();
  });
}

/** The rows that match the filters, in order. */
function compute() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const namespace = byId("filter-namespace").value;
  const group = byId("filter-status").value;
  const namespaces = new Map();
  const groups = new Map();
  const found = [];
  for (const row of state.pods.values()) {
    if (state.selected && row.node !== state.selected) continue;
    namespaces.set(row.namespace, (namespaces.get(row.namespace) ?? 0) + 1);
    groups.set(row.tone, (groups.get(row.tone) ?? 0) + 1);
    if (namespace && row.namespace !== namespace) continue;
    if (group && row.tone !== group) continue;
    if (words.every((word) => row.text.includes(word))) found.push(row);
  }
  found.sort(comparison());
  view.rows = found;
  options("filter-remote", "All remotes", state.order.map((it) => [it, it]), state.selected);
  options("filter-namespace", "All namespaces", [...namespaces.keys()].sort().map((it) => [it, `${it} (${namespaces.get(it)})`]), namespace);
  options("filter-status", "Any status", Object.entries(GROUPS).map(([key, title]) => [key, `${title} (${groups.get(key) ?? 0})`]), group);
  const total = state.pods.size;
  setText(byId("pod-count"), found.length === total ? count(total, "pod") : `${found.length.toLocaleString("en")} of ${count(total, "pod")}`);
  const none = byId("no-pods");
  none.hidden = found.length > 0;
  setText(none, total ? "No pod matches." : "No pods on virtual nodes.");
  setAttribute(byId("pods"), "aria-rowcount", found.length + 1);
  byId("rows").style.blockSize = `${found.length * ROW}px`;
}

function comparison() {
  const { sort, direction } = view;
  const sign = direction === "ascending" ? 1 : -1;
  const by = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return (a, b) => {
    const first = sort === "status" ? by(RANK[a.tone], RANK[b.tone]) || by(a.status, b.status)
      : sort === "ready" ? by(a.ready / (a.containers || 1), b.ready / (b.containers || 1))
      : sort === "at" ? by(b.at, a.at) : by(a[sort], b[sort]);
    return sign * first || by(a.namespace, b.namespace) || by(a.name, b.name);
  };
}

function options(id, all, choices, chosen) {
  const select = byId(id);
  const wanted = JSON.stringify(choices);
  if (select.dataset.choices === wanted) return;
  select.dataset.choices = wanted;
  const known = choices.some(([value]) => value === chosen) || !chosen ? choices : [...choices, [chosen, chosen]];
  select.replaceChildren(...[["", all], ...known].map(([value, text]) => el("option", { value }, text)));
  select.value = chosen;
}

function sortBy(column) {
  const opposite = view.direction === "ascending" ? "descending" : "ascending";
  view.direction = view.sort === column.key ? opposite : (column.first ?? "ascending");
  view.sort = column.key;
  byId("scroller").scrollTop = 0;
  showSort();
  announce(`Sorted by ${column.title.toLowerCase()}, ${view.direction}`);
  compute();
  paint();
}

function showSort() {
  for (const cell of byId("pods").querySelectorAll("[role=columnheader]")) {
    setAttribute(cell, "aria-sort", cell.dataset.key === view.sort ? view.direction : "none");
  }
}

/** Fills the elements of the visible rows. */
function paint() {
  const scroller = byId("scroller");
  const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - SPARE);
  const last = Math.min(view.rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + SPARE);
  while (pool.length < last - first) pool.push(buildRow());
  const now = Date.now();
  pool.forEach((element, at) => {
    const index = first + at;
    element.hidden = index >= last;
    if (index < last) fill(element, view.rows[index], index, now);
  });
  const active = view.rows.findIndex((it) => it.uid === view.active);
  const isDrawn = active >= first && active < last;
  setAttribute(byId("pods"), "aria-activedescendant", isDrawn ? `pod-${view.active}` : null);
}

function buildRow() {
  const cells = COLUMNS.map((column, at) => el("div", { role: "gridcell", "aria-colindex": at + 1, class: column.end ? "end" : "" }));
  cells[0].append(el("span", { class: "dot", "aria-hidden": "true" }), el("span", { class: "status-text" }));
  const row = el("div", { class: "row", role: "row" }, ...cells);
  row.addEventListener("click", () => {
    view.active = row.dataset.uid;
    paint();
    view.open(state.pods.get(row.dataset.uid));
  });
  byId("rows").append(row);
  return row;
}

function fill(element, row, index, now) {
  const cells = element.children;
  element.style.transform = `translateY(${index * ROW}px)`;
  element.dataset.uid = row.uid;
  element.id = `pod-${row.uid}`;
  setAttribute(element, "aria-rowindex", index + 2);
  setAttribute(element, "aria-selected", row.uid === view.active);
  cells[0].firstChild.className = `dot ${row.tone}`;
  cells[0].lastChild.className = `status-text ${row.tone}`;
  setText(cells[0].lastChild, row.status);
  setAttribute(cells[0], "title", row.message || null);
  const texts = [row.name, row.namespace, row.node, `${row.ready}/${row.containers}`, number(row.restarts),
    row.cpu ? number(row.cpu) : "–", row.memory ? bytes(row.memory) : "–", age(row.created, now)];
  texts.forEach((text, at) => setText(cells[at + 1], text));
  setAttribute(cells[1], "title", row.name);
}

function activate(index) {
  const at = Math.min(view.rows.length - 1, Math.max(0, index));
  const row = view.rows[at];
  if (!row) return;
  view.active = row.uid;
  const scroller = byId("scroller");
  if (at * ROW < scroller.scrollTop) scroller.scrollTop = at * ROW;
  const below = (at + 1) * ROW - scroller.clientHeight;
  if (below > scroller.scrollTop) scroller.scrollTop = below;
  paint();
}

function onKey(event) {
  if (event.target !== byId("pods")) return;
  const at = view.rows.findIndex((it) => it.uid === view.active);
  const page = Math.max(1, Math.floor(byId("scroller").clientHeight / ROW) - 1);
  const moves = { ArrowDown: at + 1, ArrowUp: at < 0 ? 0 : at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: view.rows.length - 1 };
  if (event.key in moves) activate(moves[event.key]);
  else if ((event.key === "Enter" || event.key === " ") && at >= 0) view.open(view.rows[at]);
  else return;
  event.preventDefault();
}

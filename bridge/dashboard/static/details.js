// The panel with what `bridge explain` and the Events tell about one pod. Read on request.

import { announce, byId, el, setAttribute } from "./dom.js";
import { age, bytes, number } from "./format.js";

let shown = null; // the row whose details are open
let returnFocus = null;
let request = null;
let tab = "explain";

/** Whether the panel is open. */
export const isOpen = () => shown !== null;

/** Opens the panel for a pod. */
export function open(row) {
  if (!row) return;
  if (!isOpen()) returnFocus = document.activeElement;
  shown = row;
  draw();
  load();
  byId("details-close").focus();
}

/** Closes the panel; the focus returns to where it was. */
export function close() {
  if (!isOpen()) return;
  request?.abort();
  shown = null;
  byId("details").hidden = true;
  document.body.classList.remove("with-details");
  (returnFocus?.isConnected ? returnFocus : byId("pods")).focus();
}

/** Listens for Escape. */
export function start() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isOpen()) {
      event.preventDefault();
      close();
    }
  });
}

function draw() {
  const row = shown;
  const panel = byId("details");
  panel.hidden = false;
  document.body.classList.add("with-details");
  const button = (key, title) => el("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-selected": tab === key, "aria-controls": "details-body", tabindex: tab === key ? "0" : "-1",
    click: () => choose(key), keydown: (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      choose(tab === "explain" ? "events" : "explain");
    },
  }, title);
  panel.replaceChildren(
    el("header", { class: "details-head" },
      el("div", {}, el("p", { class: "eyebrow" }, row.namespace), el("h2", { id: "details-title" }, row.name)),
      el("button", { id: "details-close", class: "icon-button", type: "button", "aria-label": "Close the details", click: close }, "✕")),
    el("p", { class: "details-state" }, el("span", { class: `badge ${row.tone}` }, row.status), ` on `, el("b", {}, row.node),
      ` · ${row.ready}/${row.containers} ready · ${number(row.cpu)} CPU · ${bytes(row.memory)} · ${age(row.created)} old`),
    row.message ? el("p", { class: `problem ${row.tone}` }, row.message) : "",
    el("div", { class: "tabs", role: "tablist", "aria-label": "Details" }, button("explain", "Explain"), button("events", "Events")),
    el("div", { id: "details-body", class: "details-body", role: "tabpanel", "aria-labelledby": `tab-${tab}`, "aria-busy": "true", tabindex: "0" }, skeleton()),
  );
}

function choose(key) {
  tab = key;
  draw();
  load();
  byId(`tab-${tab}`).focus(); // the one that had the focus was replaced
}

const skeleton = () => el("div", { class: "skeleton" }, ...Array.from({ length: 6 }, () => el("span")));

async function load() {
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  const path = `api/v1/pods/${encodeURIComponent(shown.namespace)}/${encodeURIComponent(shown.name)}/${tab}`;
  let content;
  try {
    const answer = await fetch(path, { cache: "no-store", signal });
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.error);
    content = tab === "explain" ? explain(data) : [eventList(data.events)];
    announce(tab === "explain" ? data.summary : `${data.events.length} Events`);
  } catch (error) {
    if (signal.aborted) return;
    content = [el("p", { class: "problem bad", role: "alert" }, `It could not be read: ${error.message}`)];
  }
  const body = byId("details-body");
  if (signal.aborted || !body) return;
  body.replaceChildren(...content);
  setAttribute(body, "aria-busy", "false");
}

function explain(report) {
  const reason = (it) => `${it.field ? `${it.field}: ` : ""}${it.why}`;
  return [
    el("p", { class: "summary" }, report.summary),
    section("Problems", report.waiting.map((it) => point(it.side, it.why))),
    section("Rejected", report.refusals.map((it) => point(it.by, reason(it)))),
    section("Placement", report.placement.obstacles.map((it) => point("home", reason(it)))),
    report.remote ? section("In the remote", [pairs({
      Namespace: report.remote.namespace, Name: report.remote.name, Node: report.remote.node, Phase: report.remote.phase, Server: report.remote.server,
    })]) : "",
    section("References", report.references.map((it) => reference(it))),
    section("Dropped fields", report.notCarried.map((it) => point("", reason(it)))),
    folded("Differences in the remote", report.differences.map((it) => el("li", { class: "difference" }, el("code", {}, it.path), " ", it.why ?? it.change ?? ""))),
    folded("Conditions", report.conditions.map((it) => el("li", {}, el("span", { class: "side" }, it.side), el("b", {}, it.type), ` ${it.status}`,
      it.message ? el("span", { class: "dim" }, ` ${it.message}`) : ""))),
    section("Not examined", report.notLookedAt.map((it) => el("li", { class: "dim" }, it))),
  ].filter(Boolean);
}

function section(title, items) {
  if (!items.length) return "";
  return el("section", {}, el("h3", {}, title), items[0].tagName === "DL" ? items[0] : el("ul", { class: "points" }, ...items));
}

/** A section that a click or Enter opens: long, and seldom needed. */
function folded(title, items) {
  if (!items.length) return "";
  return el("details", {}, el("summary", {}, `${title} (${items.length})`), el("ul", { class: "points" }, ...items));
}

const point = (side, text) => el("li", {}, side ? el("span", { class: "side" }, side) : "", text);

function reference(it) {
  const missing = it.required && (it.home === "missing" || it.remote === "missing" || it.missingKeys.length > 0);
  const where = [`home: ${it.home}`, `remote: ${it.remote}`];
  if (it.missingKeys.length) where.push(`missing keys: ${it.missingKeys.join(", ")}`);
  return el("li", { class: missing ? "bad" : "" }, el("span", { class: "side" }, it.kind), it.name,
    it.becomes && it.becomes !== it.name ? ` → ${it.becomes}` : "", el("span", { class: "dim" }, ` ${where.join(", ")}`));
}

function pairs(values) {
  const known = Object.entries(values).filter(([, value]) => value);
  return el("dl", { class: "pairs" }, ...known.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, String(value))]));
}

function eventList(events) {
  if (!events.length) return el("p", { class: "empty" }, "No Events. Home keeps them for an hour by default.");
  return el("ol", { class: "events" }, ...events.map((it) => el("li", { class: it.type === "Warning" ? "warn" : "" },
    el("p", { class: "event-head" }, el("b", {}, it.reason), el("span", { class: "dim" }, `${age(it.last)} ago${it.count > 1 ? `, ${it.count} times` : ""} · ${it.cluster} ${it.component}`)),
    el("p", {}, it.message))));
}

// The last hour as small plots, of the selected remote or of all.

import { byId, el, setAttribute, setText, svg } from "./dom.js";
import { age, bytes, clock, count, duration, number } from "./format.js";
import { select, state, subscribe, values } from "./store.js";

const WIDTH = 320;
const HEIGHT = 72;
const perSecond = (value) => (value === null ? "–" : `${number(value)} /s`);
const PLOTS = [
  { series: "pods", title: "Pods", format: number },
  { series: "started", title: "Pods started", format: perSecond },
  { series: "lag", title: "Lag", format: (value) => (value === null ? "–" : `${number(value)} s`) },
  { series: "errors", title: "Errors", format: perSecond },
  { series: "relay", title: "Relay traffic", format: (value) => (value === null ? "–" : `${bytes(value)}/s`) },
];
const drawn = new Map();

/** The path of a line; missing values are gaps. */
export function linePath(series, top, width, height) {
  let path = "";
  let open = false;
  for (const [at, value] of series.entries()) {
    if (value === null) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${x(at, series.length, width)} ${y(value, top, height)}`;
    if (!open && (series[at + 1] ?? null) === null) path += "h0.01";
    open = true;
  }
  return path;
}

/** The path of the area below the line. */
export function areaPath(series, top, width, height) {
  let path = "";
  for (let at = 0; at < series.length; at += 1) {
    if (series[at] === null) continue;
    const begin = at;
    let part = `M${x(at, series.length, width)} ${height}`;
    for (; at < series.length && series[at] !== null; at += 1) part += `L${x(at, series.length, width)} ${y(series[at], top, height)}`;
    if (at - begin > 1) path += `${part}L${x(at - 1, series.length, width)} ${height}Z`;
  }
  return path;
}

const x = (at, length, width) => round(length > 1 ? (at * width) / (length - 1) : width);
const y = (value, top, height) => round(height - 2 - (Math.max(0, value) / top) * (height - 5));
const round = (value) => Math.round(value * 100) / 100;

/** Draws the plots, and follows the state. */
export function start() {
  for (const plot of PLOTS) byId("plots").append(build(plot));
  subscribe("history", draw);
  subscribe("selected", draw);
  subscribe("fleet", drawSubject);
  byId("clear-remote").addEventListener("click", () => select(""));
  draw();
}

function build(plot) {
  const now = el("b", { class: "plot-now" });
  const range = el("span", { class: "plot-range" });
  const line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  const area = svg("path", { class: "area" });
  const mark = svg("line", { class: "mark", y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" });
  const graph = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, area, line, mark);
  const from = el("span");
  const parts = { now, range, line, area, mark, graph, from, series: [], pinned: null };
  drawn.set(plot.series, parts);
  graph.addEventListener("pointermove", (event) => point(event.offsetX / graph.clientWidth));
  graph.addEventListener("pointerleave", () => point(null));
  return el("figure", { class: "plot", "data-series": plot.series },
    el("figcaption", {}, el("span", { class: "plot-title" }, plot.title), now), graph,
    el("div", { class: "plot-foot" }, from, range));
}

/** Marks the same time in all plots, and shows the values there; null shows the latest ones. */
function point(part) {
  const length = state.history.times.length;
  const at = part === null ? null : Math.min(length - 1, Math.max(0, Math.round(part * (length - 1))));
  for (const plot of PLOTS) {
    const parts = drawn.get(plot.series);
    parts.pinned = at;
    label(plot, parts);
  }
}

function label(plot, parts) {
  const { series, pinned } = parts;
  const shown = pinned === null || pinned < 0 ? latest(series) : (series[pinned] ?? null);
  setText(parts.now, plot.format(shown));
  parts.mark.style.visibility = pinned === null || pinned < 0 ? "hidden" : "visible";
  if (pinned !== null && pinned >= 0) {
    const at = x(pinned, series.length, WIDTH);
    setAttribute(parts.mark, "x1", at);
    setAttribute(parts.mark, "x2", at);
  }
  const time = state.history.times[pinned ?? -1];
  const first = state.history.times[0];
  setText(parts.from, time ? `at ${clock(time)}` : first ? `since ${clock(first)}` : "");
}

const latest = (series) => series.findLast((it) => it !== null) ?? null;

function draw() {
  drawSubject();
  for (const plot of PLOTS) {
    const parts = drawn.get(plot.series);
    const series = values(plot.series, state.selected);
    parts.series = series;
    const known = series.filter((it) => it !== null);
    const most = known.length ? Math.max(...known) : 0;
    const top = most > 0 ? most : 1;
    setAttribute(parts.area, "d", areaPath(series, top, WIDTH, HEIGHT));
    setAttribute(parts.line, "d", linePath(series, top, WIDTH, HEIGHT));
    setText(parts.range, known.length ? `max ${plot.format(most)}` : "no samples yet");
    setAttribute(parts.graph, "aria-label", known.length
      ? `${plot.title}: now ${plot.format(latest(series))}, at least ${plot.format(Math.min(...known))}, at most ${plot.format(most)} in ${duration(known.length * state.history.interval)}`
      : `${plot.title}: no samples yet`);
    label(plot, parts);
  }
}

function drawSubject() {
  const remote = state.remotes.get(state.selected);
  setText(byId("history-subject"), state.selected || "all remotes");
  byId("clear-remote").hidden = !state.selected;
  const facts = byId("remote-facts");
  facts.hidden = !remote;
  if (!remote) return;
  const text = (label, value) => (value ? el("div", { class: "fact" }, el("dt", {}, label), el("dd", {}, value)) : "");
  facts.replaceChildren(
    el("dl", { class: "fact-list" },
      text("Status", remote.status), text("Remote", [remote.versions.remote, remote.server].filter(Boolean).join(" · ")),
      text("Bridge", [remote.versions.bridge, remote.started ? `up ${age(remote.started)}` : ""].filter(Boolean).join(" · ")),
      text("Pod networks", remote.network),
      text("Capacity", remote.resources.map((it) => `${number(it.unit === "bytes" ? it.allocatable / 2 ** 30 : it.allocatable)}${it.unit === "bytes" ? " GiB" : ""} ${it.name}`).join(" · ")),
      text("Volumes", remote.volumes?.total ? `${remote.volumes.total} with ${remote.volumes.capacity}` : "")),
    el("ul", { class: "problems" },
      ...remote.health.problems.map((it) => el("li", { class: it.tone }, it.text)),
      ...remote.errors.slice(0, 4).map((it) => el("li", { class: it.level === "warning" ? "warn" : "bad" },
        el("span", { class: "dim" }, `${age(it.last)} ago${it.count > 1 ? `, ${count(it.count, "time")}` : ""}: `), it.message))),
  );
}

// Home, its remotes by tier, and the links between them. A card selects its remote.

import { announce, byId, el, setAttribute, setText, svg } from "./dom.js";
import { bytes, cost, count, number, resourceName } from "./format.js";
import { areaPath, linePath } from "./plots.js";
import { select, state, subscribe, values } from "./store.js";

const RANK = { bad: 0, warn: 1, dim: 2, good: 3 };
const LABELS = { cpu: "CPU", memory: "Mem", pods: "Pods" };
const SPARK = { width: 120, height: 26 };
const cards = new Map();
const lanes = new Map();

/** Draws the picture, and follows the state. */
export function start() {
  subscribe("fleet", draw);
  subscribe("history", () => {
    for (const name of cards.keys()) drawSpark(name);
    drawLinks();
  });
  subscribe("selected", () => {
    for (const [name, card] of cards) setAttribute(card, "aria-pressed", name === state.selected);
  });
  byId("lanes").addEventListener("keydown", moveFocus);
  new ResizeObserver(drawLinks).observe(byId("picture"));
}

function draw() {
  drawHome();
  const tiers = new Map();
  for (const name of state.order) {
    const remote = state.remotes.get(name);
    if (!remote) continue;
    if (!tiers.has(remote.tier)) tiers.set(remote.tier, []);
    tiers.get(remote.tier).push(remote);
  }
  for (const [tier, lane] of lanes) {
    if (!tiers.has(tier)) {
      lane.remove();
      lanes.delete(tier);
    }
  }
  for (const [name, card] of cards) {
    if (!state.remotes.has(name)) {
      card.parentNode.remove();
      cards.delete(name);
    }
  }
  for (const [tier, remotes] of tiers) drawLane(tier, remotes, tiers.size);
  byId("lanes").replaceChildren(...orderedLanes(tiers));
  const first = [...cards.values()];
  if (!first.some((it) => it.tabIndex === 0) && first.length) first[0].tabIndex = 0;
  drawLinks();
}

/** The lanes in their order; a lane that has the focus keeps it, since nothing moves. */
function orderedLanes(tiers) {
  const wanted = [...tiers.keys()].map((tier) => lanes.get(tier));
  const present = [...byId("lanes").children];
  const same = wanted.length === present.length && wanted.every((it, at) => it === present[at]);
  if (same) return present;
  return wanted.length ? wanted : [el("p", { class: "empty" }, "Home has no virtual nodes; ", el("code", {}, "bridge join"), " creates one.")];
}

function drawHome() {
  const home = state.home;
  if (!home) return;
  const remotes = [...state.remotes.values()];
  const pods = remotes.reduce((sum, it) => sum + (it.pods?.total ?? 0), 0);
  const tone = home.error ? "bad" : "good";
  byId("home").replaceChildren(
    el("p", { class: "eyebrow" }, "Home"),
    el("p", { class: "home-name" }, dot(tone), home.context || "home"),
    el("p", { class: "dim mono", title: home.server }, home.server.replace(/^https?:\/\//, "")),
    home.error ? el("p", { class: "problem bad" }, home.error) : "",
    el(
      "dl",
      { class: "pairs" },
      ...pair("Version", home.version || "–"),
      ...(home.nodes === null ? [] : pair("Nodes", number(home.nodes))),
      ...(home.nodes ? pair("CPU", `${number(home.cpu)} cores`) : []),
      ...(home.nodes ? pair("Memory", bytes(home.memory)) : []),
      ...pair("Remotes", number(home.remotes)),
      ...pair("Their pods", number(pods)),
    ),
  );
  const unhealthy = remotes.filter((it) => ["bad", "warn"].includes(it.health.tone)).length;
  const parts = [count(home.remotes, "remote"), count(pods, "pod")];
  if (unhealthy) parts.push(`${unhealthy} need${unhealthy === 1 ? "s" : ""} attention`);
  setText(byId("totals"), parts.join(" · "));
  document.title = `${unhealthy ? `(${unhealthy}) ` : ""}${home.context || "home"} · cluster-bridge`;
}

const pair = (term, value) => [el("dt", {}, term), el("dd", {}, value)];
const dot = (tone) => el("span", { class: `dot ${tone}`, "aria-hidden": "true" });

function drawLane(tier, remotes, total) {
  let lane = lanes.get(tier);
  if (!lane) {
    const title = tier || (total > 1 ? "No tier" : "Remotes");
    lane = el("div", { class: "lane", role: "group", "aria-label": tier ? `Tier ${tier}` : title },
      el("p", { class: "lane-title" }, el("span", {}, title), el("span", { class: "lane-sum" })),
      el("ul", { class: "cards" }));
    lanes.set(tier, lane);
  }
  const pods = remotes.reduce((sum, it) => sum + (it.pods?.total ?? 0), 0);
  setText(lane.querySelector(".lane-sum"), `${count(remotes.length, "remote")} · ${count(pods, "pod")}`);
  const worst = remotes.map((it) => it.health.tone).sort((a, b) => RANK[a] - RANK[b])[0];
  lane.dataset.tone = worst;
  lane.dataset.pods = pods;
  lane.dataset.names = remotes.map((it) => it.name).join("\n");
  const list = lane.querySelector("ul");
  remotes.forEach((remote, at) => {
    const item = drawCard(remote).parentNode;
    if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
  });
}

function drawCard(remote) {
  let card = cards.get(remote.name);
  if (!card) {
    const name = remote.name;
    card = el("button", {
      class: "card", type: "button", tabindex: "-1", "aria-pressed": name === state.selected, "data-name": name,
      click: () => {
        const chosen = state.selected === name ? "" : name;
        select(chosen);
        announce(chosen ? `Showing ${chosen} alone` : "Showing all remotes");
      },
    });
    el("li", {}, card);
    cards.set(name, card);
  }
  const { tone, problems } = remote.health;
  card.className = `card ${tone}`;
  setAttribute(card, "aria-label", spoken(remote));
  const shown = mainResources(remote);
  card.replaceChildren(
    el("span", { class: "card-head" }, dot(tone), el("span", { class: "card-name", title: remote.name }, remote.name),
      remote.cost === null ? "" : el("span", { class: "card-cost" }, `cost ${cost(remote.cost)}`)),
    el("span", { class: `card-state ${tone}`, title: problems.map((it) => it.text).join("\n") },
      problems[0]?.text ?? [remote.status, remote.versions.remote].filter(Boolean).join(" · ")),
    el("span", { class: "meters" }, ...shown.map(meter)),
    el("span", { class: "card-foot" }, el("span", { class: "pods-now" }, el("b", {}, remote.pods ? number(remote.pods.total) : "?"), remote.pods?.total === 1 ? " pod" : " pods"),
      svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: "none" },
        svg("path", { class: "area" }), svg("path", { class: "line", "vector-effect": "non-scaling-stroke" }))),
  );
  drawSpark(remote.name);
  return card;
}

/** CPU, memory, and a resource with a domain such as GPUs, or else pods. */
function mainResources(remote) {
  const by = new Map(remote.resources.map((it) => [it.name, it]));
  const extended = remote.resources.find((it) => it.name.includes("/"));
  return [by.get("cpu"), by.get("memory"), extended ?? by.get("pods")].filter(Boolean);
}

function meter(resource) {
  const percent = resource.percent ?? 0;
  const level = percent >= 95 ? "full" : percent >= 80 ? "high" : "";
  const fill = el("span", { class: `meter-fill ${level}` });
  fill.style.inlineSize = `${Math.min(100, percent)}%`;
  return el("span", { class: "meter" },
    el("span", { class: "meter-label" }, LABELS[resource.name] ?? resourceName(resource.name).toUpperCase(),
      el("b", {}, resource.percent === null ? "–" : `${resource.percent}%`)),
    el("span", { class: "meter-track" }, fill));
}

function spoken(remote) {
  const parts = [remote.status];
  if (remote.tier) parts.push(`tier ${remote.tier}`);
  if (remote.cost !== null) parts.push(`cost ${remote.cost}`);
  if (remote.pods) parts.push(count(remote.pods.total, "pod"));
  for (const it of mainResources(remote)) if (it.percent !== null) parts.push(`${resourceName(it.name)} ${it.percent} % requested`);
  parts.push(...remote.health.problems.map((it) => it.text));
  return `${remote.name}: ${parts.join(", ")}`;
}

function drawSpark(name) {
  const spark = cards.get(name)?.querySelector(".spark");
  if (!spark) return;
  const series = values("pods", name);
  const top = Math.max(1, ...series.map((it) => it ?? 0));
  setAttribute(spark.querySelector(".area"), "d", areaPath(series, top, SPARK.width, SPARK.height));
  setAttribute(spark.querySelector(".line"), "d", linePath(series, top, SPARK.width, SPARK.height));
}

/** Curves from home to each lane: as wide as its share of pods, in the colour of its health. */
function drawLinks() {
  const picture = byId("picture").getBoundingClientRect();
  const home = byId("home").getBoundingClientRect();
  const links = byId("links");
  const beside = home.right < byId("lanes").getBoundingClientRect().left;
  if (!beside || !home.width || !lanes.size) {
    links.replaceChildren();
    return;
  }
  setAttribute(links, "viewBox", `0 0 ${picture.width} ${picture.height}`);
  const total = Math.max(1, ...[...lanes.values()].map((it) => Number(it.dataset.pods)));
  const x0 = home.right - picture.left;
  const y0 = home.top - picture.top + Math.min(home.height / 2, 40);
  links.replaceChildren(...[...lanes.values()].flatMap((lane) => {
    const box = lane.getBoundingClientRect();
    const x1 = box.left - picture.left;
    const y1 = box.top - picture.top + 40;
    const half = (x0 + x1) / 2;
    const d = `M${x0} ${y0} C${half} ${y0} ${half} ${y1} ${x1} ${y1}`;
    const width = 2 + 4 * Math.sqrt(Number(lane.dataset.pods) / total);
    const busy = lane.dataset.names.split("\n").some((name) => (values("started", name).at(-1) ?? 0) > 0);
    return [
      svg("path", { d, class: `link ${lane.dataset.tone}`, "stroke-width": width }),
      ...(busy ? [svg("path", { d, class: "flow" })] : []),
      svg("circle", { cx: x1, cy: y1, r: 4, class: `link-end ${lane.dataset.tone}` }),
    ];
  }), svg("circle", { cx: x0, cy: y0, r: 4.5, class: "link-start" }));
}

/** Arrow keys move between cards: left and right in their order, up and down by place. */
function moveFocus(event) {
  const all = [...byId("lanes").querySelectorAll(".card")];
  const from = all.indexOf(document.activeElement);
  if (from < 0) return;
  let to = null;
  if (event.key === "ArrowRight") to = all[from + 1];
  else if (event.key === "ArrowLeft") to = all[from - 1];
  else if (event.key === "Home") to = all[0];
  else if (event.key === "End") to = all.at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = nearest(all, from, event.key === "ArrowDown" ? 1 : -1);
  else return;
  event.preventDefault();
  if (!to) return;
  for (const it of all) it.tabIndex = it === to ? 0 : -1;
  to.focus();
}

function nearest(all, from, direction) {
  const here = all[from].getBoundingClientRect();
  const distance = (it) => {
    const box = it.getBoundingClientRect();
    const down = (box.top - here.top) * direction;
    return down > 4 ? down * 10 + Math.abs(box.left - here.left) : Infinity;
  };
  const best = all.reduce((a, b) => (distance(b) < distance(a) ? b : a));
  return distance(best) < Infinity ? best : null;
}

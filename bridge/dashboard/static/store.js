// The state that the server sends, and the selection of the user. Views subscribe to parts of it.

const HOUR_SAMPLES = 240;

export const state = {
  /** Rows of pods by UID. */
  pods: new Map(),
  /** Views of remotes by name, and their order. */
  remotes: new Map(),
  order: [],
  home: null,
  /** Samples of the last hour: common times, and by remote the values of each series. */
  history: { interval: 15, series: [], times: [], remotes: {} },
  /** The remote that plots and pods are limited to; "" is all. */
  selected: "",
};

const listeners = { fleet: [], history: [], pods: [], selected: [] };

/** Calls the function whenever this part of the state has changed. */
export function subscribe(part, listener) {
  listeners[part].push(listener);
}

function publish(part) {
  for (const listener of listeners[part]) listener();
}

/** Takes over an update of the server. */
export function apply(update) {
  if (update.home) {
    state.home = update.home;
    state.order = update.home.order;
    const present = new Set(state.order);
    for (const name of state.remotes.keys()) if (!present.has(name)) state.remotes.delete(name);
    if (state.selected && !present.has(state.selected)) select("");
  }
  for (const remote of update.remotes ?? []) state.remotes.set(remote.name, remote);
  if (update.pods) applyPods(update.pods);
  if (update.history) applyHistory(update.history);
  if (update.home || update.remotes) publish("fleet");
  if (update.history) publish("history");
  if (update.pods) publish("pods");
}

/** Limits plots and pods to a remote; "" shows all. */
export function select(name) {
  if (state.selected === name) return;
  state.selected = name;
  publish("selected");
}

function applyPods({ reset, rows, removed }) {
  if (reset) state.pods.clear();
  for (const uid of removed) state.pods.delete(uid);
  for (const row of rows) {
    row.text = `${row.name} ${row.namespace} ${row.node} ${row.status} ${row.message}`.toLowerCase();
    row.at = Date.parse(row.created) || 0;
    state.pods.set(row.uid, row);
  }
}

function applyHistory({ reset, interval, series, times, remotes }) {
  const known = reset ? { times: [], remotes: {} } : state.history;
  const joined = { interval, series, times: [...known.times, ...times].slice(-HOUR_SAMPLES), remotes: {} };
  for (const [name, samples] of Object.entries(remotes)) {
    const gap = new Array(Math.max(0, known.times.length - (known.remotes[name]?.length ?? 0)));
    const before = [...gap.fill(null), ...(known.remotes[name] ?? [])];
    joined.remotes[name] = [...before, ...samples].slice(-HOUR_SAMPLES);
  }
  state.history = joined;
}

/** The values of one series, of a remote or of all: sums, and of the lag the maximum. */
export function values(series, name) {
  const { remotes, times } = state.history;
  const at = state.history.series.indexOf(series);
  const chosen = name ? [remotes[name] ?? []] : Object.values(remotes);
  return times.map((_, index) => {
    let total = null;
    for (const samples of chosen) {
      const value = samples[index]?.[at] ?? null;
      if (value === null) continue;
      if (total === null) total = value;
      else total = series === "lag" ? Math.max(total, value) : total + value;
    }
    return total;
  });
}

// The connection to the server. The browser reconnects by itself, and gets what it missed.

import { byId, setAttribute, setText } from "./dom.js";
import { apply } from "./store.js";

const PATIENCE = 4000; // milliseconds until a lost connection is shown
const RETRY = 5000;
let shown = 0;
let source = null;

/** Opens the connection, and keeps it open. */
export function connect() {
  source?.close();
  source = new EventSource("api/v1/live");
  source.onopen = () => show("live", "live", 0);
  source.onmessage = (event) => {
    show("live", "live", 0);
    apply(JSON.parse(event.data));
  };
  source.onerror = () => {
    show("lost", "no connection; is the command still running?", PATIENCE);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY);
  };
}

function show(kind, text, delay) {
  clearTimeout(shown);
  shown = setTimeout(() => {
    setAttribute(byId("live"), "data-state", kind);
    setText(byId("live-text"), text);
  }, delay);
}

// Wires the parts of the page.

import { byId, setAttribute, setText } from "./dom.js";
import * as details from "./details.js";
import * as fleetPicture from "./fleet_picture.js";
import * as live from "./live.js";
import * as plots from "./plots.js";
import * as podTable from "./pod_table.js";

const KEY = "cluster-bridge-theme";
const THEMES = { auto: ["light", "◐"], light: ["dark", "☀"], dark: ["auto", "☾"] };

function showTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const [next, sign] = THEMES[now];
  const name = now === "auto" ? "as the system" : now;
  setText(byId("theme"), sign);
  setAttribute(byId("theme"), "aria-label", `Colours: ${name}. Change to ${next === "auto" ? "those of the system" : next}`);
  setAttribute(byId("theme"), "title", `Colours: ${name}`);
}

function changeTheme() {
  const [next] = THEMES[document.documentElement.dataset.theme ?? "auto"];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Storage is blocked: the choice lasts until the page is closed.
  }
  showTheme();
}

byId("theme").addEventListener("click", changeTheme);
showTheme();
plots.start();
fleetPicture.start();
details.start();
podTable.start({ open: details.open });
live.connect();

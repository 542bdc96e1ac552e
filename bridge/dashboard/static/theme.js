// Sets the colours before the first paint: the user's choice, or else those of the system.
"use strict";
(() => {
  const KEY = "cluster-bridge-theme";
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    // Storage is blocked: the system's colours apply.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

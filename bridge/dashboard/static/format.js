// Numbers, amounts and times as people read them.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A number with at most three digits that matter, and thousands separated. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.01) return value < 0 ? "0" : "<0.01";
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** A cost: two decimals or more, so that costs below one compare at a glance. */
export const cost = (value) =>
  value.toLocaleString("en", { minimumFractionDigits: value % 1 ? 2 : 0, maximumFractionDigits: 4 });

/** An amount of bytes with a binary unit. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let power = 0;
  let rest = value;
  while (rest >= 1024 && power < BINARY.length - 1) {
    rest /= 1024;
    power += 1;
  }
  return `${number(rest)} ${BINARY[power]}`;
}

/** An amount of a resource. */
export const amount = (resource, value) => (resource.unit === "bytes" ? bytes(value) : number(value));

/** The name of a resource as a column has it: `nvidia.com/gpu` is `gpu`. */
export const resourceName = (name) => name.slice(name.lastIndexOf("/") + 1);

/** A duration in seconds with one unit, as kubectl's ages. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const left = Math.max(0, Math.round(seconds));
  if (left < 120) return `${left}s`;
  if (left < 2 * 3600) return `${Math.floor(left / 60)}m`;
  if (left < 2 * 86400) return `${Math.floor(left / 3600)}h`;
  return `${Math.floor(left / 86400)}d`;
}

/** The age of a moment in RFC 3339. */
export const age = (moment, now = Date.now()) => duration((now - Date.parse(moment)) / 1000);

/** The time of day, of seconds since the epoch. */
export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** `1 pod`, `2 pods`. */
export const count = (value, word) => `${value.toLocaleString("en")} ${word}${value === 1 ? "" : "s"}`;

// Builds elements. Texts are always set as text, never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this ID. */
export const byId = (id) => document.getElementById(id);

/** An element with attributes, listeners (functions) and children (elements or texts). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key.startsWith("aria-")) element.setAttribute(key, String(value));
    else if (value === false) continue;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((it) => it !== null && it !== undefined && it !== ""));
  return element;
}

/** Sets the text, if it differs: an unchanged node keeps a selection of its text. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, if it differs; null removes it. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

let announced = 0;

/** Has a screen reader read a sentence. */
export function announce(text) {
  clearTimeout(announced);
  announced = setTimeout(() => setText(byId("announcer"), text), 200);
}

// One colour for each speculator, in the order in which they appear.

import { make } from "./dom.js";
import { speculatorName } from "./words.js";

const COLOURS = 6;
const known = new Map();

/** The CSS colour of a speculator. */
export function colourOf(name) {
  if (!known.has(name)) known.set(name, known.size % COLOURS);
  return `var(--speculator-${known.get(name)})`;
}

/** CSS custom properties with the colours of at most two speculators. */
export function paint(names) {
  const [first, second = first] = names.map(colourOf);
  return names.length ? { "--one": first, "--two": second } : {};
}

/** Adds the speculators of a step to the legend. */
export function showLegend(list, names) {
  names.forEach(colourOf);
  if (list.childElementCount === known.size + 1) return;
  const entries = [...known.keys()].map((name) =>
    make("li", {}, make("span", { class: "swatch", ...paint([name]) }), speculatorName(name)));
  list.replaceChildren(...entries, make("li", {}, make("span", { class: "swatch own" }), "the model itself"));
}

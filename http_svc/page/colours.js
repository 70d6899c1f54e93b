// One colour for each speculator, in the order in which they are met.

import { make } from "./dom.js";
import { speculatorName } from "./words.js";

const COLOURS = 6;
const known = new Map();

/** The CSS colour of a speculator. */
export function colourOf(name) {
  if (!known.has(name)) known.set(name, known.size % COLOURS);
  return `var(--speculator-${known.get(name)})`;
}

/** Custom properties that paint something in the colours of some speculators: two at most are shown. */
export function paint(names) {
  const [first, second = first] = names.map(colourOf);
  return names.length ? { "--one": first, "--two": second } : {};
}

/** Shows the speculators of a step beside those that were met before. */
export function showLegend(list, names) {
  names.forEach(colourOf);
  if (list.childElementCount === known.size + 1) return;
  const entries = [...known.keys()].map((name) =>
    make("li", {}, make("span", { class: "swatch", ...paint([name]) }), speculatorName(name)));
  list.replaceChildren(...entries, make("li", {}, make("span", { class: "swatch own" }), "the model itself"));
}

// Draws a tree as SVG, and lists it as a table.

import { colourOf, paint } from "./colours.js";
import { make, makeSvg } from "./dom.js";
import { HEIGHT, SIDE, grown, layOut } from "./layout.js";
import { proposers } from "./recording.js";
import { count, percent, speculatorName, visible } from "./words.js";

const MARGIN = 6;
const SMALLEST = 0.7;

/** The SVG of a step's tree, scaled down to a width of `room` pixels, at most to `SMALLEST`. */
export function drawTree(step, room) {
  const { boxes, edges, width, height } = layOut(grown(step));
  const full = { width: width + 2 * MARGIN, height: height + 2 * MARGIN };
  const scale = Math.min(1, Math.max(SMALLEST, room / full.width));
  const taken = (edge) => edge.to.node.kind === "accepted" || edge.to.node.kind === "bonus";
  return makeSvg(
    "svg",
    {
      viewBox: `${-MARGIN} ${-MARGIN} ${full.width} ${full.height}`,
      width: Math.round(full.width * scale),
      height: Math.round(full.height * scale),
      role: "img",
      "aria-label": inWords(step),
    },
    ...edges.filter((edge) => !taken(edge)).map((edge) => drawEdge(edge, "edge")),
    ...edges.filter(taken).map((edge) => drawEdge(edge, "edge taken")),
    ...boxes.map(drawBox),
  );
}

function drawEdge({ from, to }, name) {
  const start = from.x + from.width;
  const [above, below] = [from.y + HEIGHT / 2, to.y + HEIGHT / 2];
  const middle = (start + to.x) / 2;
  return makeSvg("path", { class: name, d: `M${start} ${above}C${middle} ${above} ${middle} ${below} ${to.x} ${below}` });
}

function drawBox({ node, label, chance, x, y, width }) {
  const names = proposers(node);
  const bar = (name, index, all) =>
    makeSvg("rect", {
      class: "bar", "--one": colourOf(name), x: 0, width: 5,
      y: (HEIGHT * index) / all.length, height: HEIGHT / all.length,
    });
  return makeSvg(
    "g",
    { class: `node ${node.kind}`, transform: `translate(${x} ${y})`, ...paint(names) },
    makeSvg("title", {}, explain(node)),
    makeSvg("rect", { class: "pill", width, height: HEIGHT, rx: 6 }),
    makeSvg("g", { class: "bars" }, ...names.map(bar)),
    makeSvg("text", { x: SIDE + (chance ? 3 : 0), y: HEIGHT / 2, class: "word" }, label),
    chance ? makeSvg("text", { x: width - SIDE + 2, y: HEIGHT / 2, class: "chance" }, chance) : null,
  );
}

function explain(node) {
  const word = `“${visible(node.text)}”`;
  if (node.kind === "root") return `${word}: the last token before the step`;
  if (node.kind === "bonus") return `${word}: the model's own token`;
  if (node.forced) return `${word}, ${node.kind}: the constraint allows nothing else`;
  const chances = node.proposals.map(({ speculator, chance }) => `${speculatorName(speculator)}: ${percent(chance)}`);
  return `${word}, ${node.kind}: ${chances.join(", ")}; the gateway expects ${percent(node.chance)}`;
}

const quoted = (text) => `“${text.trim() || visible(text)}”`;

/** A step in a sentence. */
export function inWords(step) {
  const drafted = step.nodes.length - 1;
  const text = quoted(step.accepted.map((index) => step.nodes[index].text).join(""));
  const path = step.accepted.length ? `, of which the model accepted ${text}` : drafted ? ", none of them accepted" : "";
  return `${drafted ? count(drafted, "guessed token") : "No guesses"}${path}; the model added ${quoted(step.bonus.text)}`;
}

/** A table of the nodes: token, parent, chances by speculator and gateway, outcome. */
export function tableOf(step) {
  const head = ["Node", "Token", "After", "Guessed by", "Gateway expects", "Outcome"];
  const path = new Set(step.accepted);
  const rows = step.nodes.slice(1).map((node, index) => [
    String(index + 1),
    visible(node.text),
    node.parent ? `${node.parent} ${visible(step.nodes[node.parent].text)}` : "the root",
    node.forced ? "the constraint" : node.proposals.map(({ speculator, kind, chance }) =>
      `${speculatorName(speculator)} ${percent(chance)}${kind === "point" ? "" : " (drawn)"}`).join(", "),
    percent(node.chance),
    path.has(index + 1) ? "accepted" : "rejected",
  ]);
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))))),
  );
}

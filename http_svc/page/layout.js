// Positions of a tree's nodes: depth from left to right, leaves below each other, the accepted path on top.

import { percent, visible } from "./words.js";

export const HEIGHT = 26;
export const SIDE = 10;
const LETTER = 7.3;
const DIGIT = 6.1;
const GAP = 26;
const ROW = 35;

/** Nodes with their children; the bonus token is a further node after the accepted path. */
export function grown(step) {
  const path = new Set(step.accepted);
  const nodes = step.nodes.map((node, index) => ({
    ...node,
    kind: index === 0 ? "root" : path.has(index) ? "accepted" : "rejected",
    children: [],
  }));
  nodes.forEach((node) => nodes[node.parent]?.children.push(node));
  const bonus = { text: step.bonus.text, kind: "bonus", children: [], proposals: [], chance: null };
  nodes[step.accepted.at(-1) ?? 0].children.push(bonus);
  nodes.forEach((node) => node.children.sort((one, other) => rank(other) - rank(one)));
  return nodes[0];
}

const rank = (node) => (node.kind === "rejected" ? node.chance : 2);

/** Boxes ({node, x, y, width}) and edges ({from, to} between boxes) with the drawing's size. */
export function layOut(root) {
  const boxes = [];
  const edges = [];
  const widths = [];
  let row = 0; // of the leaf that is placed next

  const place = (node, depth) => {
    const label = visible(node.text);
    const chance = node.proposals.length ? percent(node.chance) : "";
    const box = { node, depth, label, chance, y: ROW * row, width: widthOf(label, chance) };
    boxes.push(box);
    widths[depth] = Math.max(widths[depth] ?? 0, box.width);
    node.children.forEach((child, index) => {
      if (index) row++;
      edges.push({ from: box, to: place(child, depth + 1) });
    });
    return box;
  };
  place(root, 0);

  const lefts = widths.map((_, depth) => widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  boxes.forEach((box) => (box.x = lefts[box.depth]));
  return { boxes, edges, width: lefts.at(-1) + widths.at(-1), height: ROW * row + HEIGHT };
}

function widthOf(label, chance) {
  const words = 2 * SIDE + Array.from(label).length * LETTER;
  return chance ? words + SIDE + chance.length * DIGIT : words;
}

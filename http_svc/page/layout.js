// Where the nodes of a tree stand: from left to right by depth, leaves one below the other. Pure.

import { visible } from "./words.js";

export const HEIGHT = 26;
const LETTER = 7.4;
const PADDING = 22;
const GAP = 30;
const ROW = 48;

/** Nodes with their children; the bonus token is a node of its own behind the accepted path. */
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
  return nodes[0];
}

/** Boxes ({node, x, y, width}) and edges ({from, to} between boxes) with the size of the whole. */
export function layOut(root) {
  const boxes = [];
  const edges = [];
  const widths = [];
  let row = 0;

  const place = (node, depth) => {
    const label = visible(node.text);
    const box = { node, depth, label, width: Array.from(label).length * LETTER + PADDING };
    boxes.push(box);
    widths[depth] = Math.max(widths[depth] ?? 0, box.width);
    const below = node.children.map((child) => place(child, depth + 1));
    below.forEach((child) => edges.push({ from: box, to: child }));
    box.y = below.length ? (below[0].y + below.at(-1).y) / 2 : ROW * row++;
    return box;
  };
  place(root, 0);

  const lefts = widths.map((_, depth) => widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  boxes.forEach((box) => (box.x = lefts[box.depth]));
  return { boxes, edges, width: lefts.at(-1) + widths.at(-1), height: ROW * (row - 1) + HEIGHT + 16 };
}

// Finds Markdown in a growing text as ranges of characters; the text itself is not changed.

const FENCE = /^\s*(`{3,}|~{3,})/;
const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*/g;

/** Ranges [start, end, class] of code, headings, table rows and bold words, in order, without overlap. */
export function markdown(text) {
  const found = [];
  let start = 0;
  let fence = "";
  for (const line of text.split("\n")) {
    const end = start + line.length;
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (fence ? mark.startsWith(fence) && line.trim() === mark : mark) {
      found.push([start, end, "fence"]);
      fence = fence ? "" : mark;
    } else if (fence || /^\s*\|/.test(line)) {
      found.push([start, end, "code"]);
    } else if (/^#{1,6} /.test(line)) {
      found.push([start, end, "heading"]);
    } else {
      for (const match of line.matchAll(INLINE)) {
        const kind = match[1] === undefined ? "strong" : "code";
        found.push([start + match.index, start + match.index + match[0].length, kind]);
      }
    }
    start = end + 1;
  }
  return found;
}

/** The first character whose range differs between two lists of ranges; Infinity if none does. */
export function firstDifference(before, now) {
  const place = now.findIndex((range, i) => String(range) !== String(before[i]));
  if (place < 0) return now.length < before.length ? before[now.length][0] : Infinity;
  return Math.min(now[place][0], before[place]?.[0] ?? Infinity);
}

/** Splits `text`, which begins at a character, at the ends of ranges: [text, class or null]. */
export function pieces(text, start, ranges) {
  const found = [];
  let place = start;
  const end = start + text.length;
  const take = (upTo, kind) => {
    if (upTo > place) found.push([text.slice(place - start, upTo - start), kind]);
    place = Math.max(place, upTo);
  };
  for (const [from, to, kind] of ranges) {
    if (to <= place) continue;
    if (from >= end) break;
    take(from, null);
    take(Math.min(to, end), kind);
  }
  take(end, null);
  return found;
}

// An answer's text as Markdown, each token marked by the speculator that guessed it.

import { paint } from "./colours.js";
import { make } from "./dom.js";
import { blocks } from "./markdown.js";
import { guessers } from "./recording.js";
import { speculatorName } from "./words.js";

/** Shows a recording's tokens step by step, and the text that no step has. */
export class AnswerText {
  constructor(element) {
    this.element = element;
    this.shown = 0;
    this.text = ""; // of the steps
    this.tokens = []; // { start, step, names }
    this.drawn = []; // { key, element } of each block
    this.chosen = null;
  }

  show(recording, upTo = recording.steps.length, withRest = true) {
    for (; this.shown < upTo; this.shown++) {
      const step = recording.steps[this.shown];
      const text = step.tokens.map((token) => token.text).join("");
      if (recording.dropped && !recording.text.startsWith(text, this.text.length)) break;
      step.tokens.forEach((token, place) => {
        this.tokens.push({ start: this.text.length, step: this.shown, names: guessers(step, place) });
        this.text += token.text;
      });
    }
    this.#draw(this.text + (withRest ? recording.text.slice(this.text.length) : ""));
  }

  /** Highlights the tokens of one step; null: of no step. */
  choose(index) {
    this.chosen = index;
    for (const one of this.element.querySelectorAll(".chosen")) one.classList.remove("chosen");
    for (const one of this.element.querySelectorAll(`[data-step="${index}"]`)) one.classList.add("chosen");
  }

  /** Draws the blocks whose text or marks have changed. */
  #draw(text) {
    const all = blocks(text);
    all.forEach(({ raw, start, render }, index) => {
      const key = `${start} ${Math.min(this.text.length, start + raw.length)} ${raw}`;
      if (this.drawn[index]?.key === key) return;
      const element = render((piece, offsets) => this.#pieces(piece, offsets)) ?? document.createTextNode("");
      if (this.drawn[index]) this.drawn[index].element.replaceWith(element);
      else this.element.append(element);
      this.drawn[index] = { key, element };
    });
    for (const { element } of this.drawn.splice(all.length)) element.remove();
  }

  /** The characters of a piece, those of each token in an element; the rest as it is. */
  #pieces(piece, offsets) {
    const nodes = [];
    for (let from = 0; from < piece.length;) {
      const token = this.#tokenAt(offsets[from]);
      let to = from + 1;
      while (to < piece.length && this.#tokenAt(offsets[to]) === token) to++;
      nodes.push(token ? this.#mark(token, piece.slice(from, to)) : document.createTextNode(piece.slice(from, to)));
      from = to;
    }
    return nodes;
  }

  #tokenAt(offset) {
    if (offset >= this.text.length) return null;
    let [low, high] = [0, this.tokens.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tokens[middle].start <= offset) low = middle;
      else high = middle - 1;
    }
    return this.tokens[low] ?? null;
  }

  #mark({ step, names }, text) {
    const who = names.map(speculatorName).join(" and ");
    const kinds = ["token", ...(names.length ? ["guessed"] : []), ...(step === this.chosen ? ["chosen"] : [])];
    const title = names.length ? `guessed by ${who}` : "the model's own";
    return make("span", { class: kinds.join(" "), title, "data-step": step, ...paint(names) }, text);
  }
}

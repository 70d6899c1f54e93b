// An answer's text, each token marked by the speculator that guessed it.

import { paint } from "./colours.js";
import { make } from "./dom.js";
import { firstDifference, markdown, pieces } from "./markdown.js";
import { guessers } from "./recording.js";
import { speculatorName } from "./words.js";

/** Shows a recording's tokens step by step, and at the end the text that no step has. */
export class AnswerText {
  constructor(element) {
    this.element = element;
    this.rest = document.createTextNode("");
    element.append(this.rest);
    this.shown = 0;
    this.text = "";
    this.tokens = []; // { element, start, text }
    this.ranges = [];
    this.chosen = null;
  }

  show(recording, upTo = recording.steps.length, withRest = true) {
    const first = this.text.length;
    for (; this.shown < upTo; this.shown++) {
      const step = recording.steps[this.shown];
      const text = step.tokens.map((token) => token.text).join("");
      if (recording.dropped && !recording.text.startsWith(text, this.text.length)) break;
      this.rest.before(make("span", { class: "step", "data-step": this.shown }, ...this.#add(step)));
    }
    if (this.text.length > first) this.#style(first);
    this.rest.data = withRest ? recording.text.slice(this.text.length) : "";
  }

  /** Highlights the tokens of one step; null: of no step. */
  choose(index) {
    this.chosen?.classList.remove("chosen");
    this.chosen = index === null ? null : this.element.querySelector(`[data-step="${index}"]`);
    this.chosen?.classList.add("chosen");
  }

  /** Adds the tokens of a step; returns their elements, which `#style` fills. */
  #add(step) {
    return step.tokens.map(({ text }, place) => {
      const names = guessers(step, place);
      const who = names.map(speculatorName).join(" and ");
      const title = names.length ? `guessed by ${who}` : "the model's own";
      const element = make("span", { class: names.length ? "token guessed" : "token", title, ...paint(names) });
      this.tokens.push({ element, start: this.text.length, text });
      this.text += text;
      return element;
    });
  }

  /** Fills the tokens from a character on, and earlier ones whose Markdown changed. */
  #style(first) {
    const ranges = markdown(this.text);
    const from = Math.min(first, firstDifference(this.ranges, ranges));
    this.ranges = ranges;
    for (let i = this.tokens.length - 1; i >= 0; i--) {
      const { element, start, text } = this.tokens[i];
      if (start < first && start + text.length <= from) break;
      element.replaceChildren(...pieces(text, start, ranges).map(([piece, kind]) =>
        kind ? make("span", { class: kind }, piece) : piece));
    }
  }
}

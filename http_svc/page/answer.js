// An answer's text, each token marked by who guessed it.

import { paint } from "./colours.js";
import { make } from "./dom.js";
import { guessers } from "./recording.js";

/** Shows the steps of a recording up to one, and the text that no step tells; goes on where it was. */
export class AnswerText {
  constructor(element) {
    this.element = element;
    this.rest = document.createTextNode("");
    element.append(this.rest);
    this.shown = 0;
    this.length = 0;
    this.chosen = null;
  }

  show(recording, upTo = recording.steps.length, withRest = true) {
    for (; this.shown < upTo; this.shown++) {
      const step = recording.steps[this.shown];
      const text = step.tokens.map((token) => token.text).join("");
      if (recording.dropped && !recording.text.startsWith(text, this.length)) break;
      this.rest.before(markedStep(step, this.shown));
      this.length += text.length;
    }
    this.rest.data = withRest ? recording.text.slice(this.length) : "";
  }

  /** Marks the tokens of one step; null: of none. */
  choose(index) {
    this.chosen?.classList.remove("chosen");
    this.chosen = index === null ? null : this.element.querySelector(`[data-step="${index}"]`);
    this.chosen?.classList.add("chosen");
  }
}

function markedStep(step, index) {
  const tokens = step.tokens.map((token, place) => {
    const names = guessers(step, place);
    const title = names.length ? `guessed by ${names.join(" and ")}` : "the model's own";
    return make("span", { class: names.length ? "token guessed" : "token", title, ...paint(names) }, token.text);
  });
  return make("span", { class: "step", "data-step": index }, ...tokens);
}

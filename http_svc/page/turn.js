// One question and its answer.

import { AnswerText } from "./answer.js";
import { byId, make } from "./dom.js";
import { race } from "./race.js";
import { count, rounded } from "./words.js";

export class Turn {
  /** `onStep` is called with a step whose text was clicked; `settings` has the API key. */
  constructor(question, recording, settings, onStep) {
    this.recording = recording;
    this.settings = settings;
    const body = make("div", { class: "text" });
    this.text = new AnswerText(body);
    this.note = make("p", { class: "note" });
    this.again = make("button", { type: "button", class: "quiet", hidden: true }, "Race against plain decoding");
    this.track = make("div", { class: "race" });
    this.element = make("article", { class: "turn" },
      make("h3", { class: "question" }, make("span", { class: "hidden" }, "You: "), question),
      make("div", { class: "answer" }, body, make("div", { class: "below" }, this.note, this.again), this.track));
    body.addEventListener("click", (event) => {
      const step = event.target.closest(".step");
      if (step) onStep(this, Number(step.dataset.step));
    });
    this.again.addEventListener("click", () => this.#race());
  }

  /** Shows the recording's new text and figures. */
  update() {
    const { recording } = this;
    this.text.show(recording);
    this.element.ariaBusy = String(recording.running);
    if (recording.error) this.note.setAttribute("role", "alert");
    this.note.textContent = recording.error || this.#figures();
    this.again.hidden = recording.running || !recording.steps.length || Boolean(recording.error);
  }

  #figures() {
    const { recording } = this;
    if (recording.unwatched) return `The steps are not available: ${recording.unwatched}`;
    if (!recording.steps.length) return recording.running ? "reading the prompt …" : "";
    const parts = [
      count(recording.tokens, "token"),
      count(recording.steps.length, "step"),
      `${rounded(recording.tokensPerStep)} tokens per step`,
    ];
    if (recording.end === "length") parts.unshift(`cut at ${count(recording.body.max_tokens, "token")}, the requested maximum`);
    if (recording.tokensPerSecond) parts.push(`${rounded(recording.tokensPerSecond)} tokens per second`);
    return parts.join(" · ");
  }

  async #race() {
    this.again.disabled = true;
    const controller = new AbortController();
    byId("new").addEventListener("click", () => controller.abort(), { once: true });
    byId("said").textContent = await race(this.recording, this.track, this.settings.key(), controller.signal);
    this.again.disabled = false;
  }
}

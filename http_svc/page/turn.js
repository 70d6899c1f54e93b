// One question and its answer.

import { AnswerText } from "./answer.js";
import { byId, make } from "./dom.js";
import { race } from "./race.js";
import { count, rounded } from "./words.js";

export class Turn {
  /** `settings` has the API key; `on` has what follows: step(turn, index), again(turn), edit(turn). */
  constructor(question, recording, settings, on) {
    this.question = question;
    this.recording = recording;
    this.settings = settings;
    const body = make("div", { class: "text" });
    this.text = new AnswerText(body);
    this.note = make("p", { class: "note" });
    const button = (text, work) => {
      const made = make("button", { type: "button", class: "quiet" }, text);
      made.addEventListener("click", work);
      return made;
    };
    this.race = button("Race against plain decoding", () => this.#race());
    this.actions = make("div", { class: "buttons", hidden: true },
      button("Edit", () => on.edit(this)), button("Regenerate", () => on.again(this)), this.race);
    this.track = make("div", { class: "race" });
    this.element = make("article", { class: "turn" },
      make("h3", { class: "question" }, make("span", { class: "hidden" }, "You: "), question),
      make("div", { class: "answer" }, body, make("div", { class: "below" }, this.note, this.actions), this.track));
    this.element.ariaBusy = String(recording.running);
    body.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) on.step(this, Number(token.dataset.step));
    });
  }

  /** Shows the recording's new text and figures. */
  update() {
    const { recording } = this;
    this.text.show(recording);
    this.element.ariaBusy = String(recording.running);
    if (recording.error) this.note.setAttribute("role", "alert");
    this.note.textContent = recording.error || this.#figures();
    this.actions.hidden = recording.running;
    this.race.hidden = !recording.steps.length || Boolean(recording.error);
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
    if (recording.used) parts.push(`context ${recording.used}${this.settings.context ? ` of ${this.settings.context}` : ""}`);
    return parts.join(" · ");
  }

  async #race() {
    this.race.disabled = true;
    const controller = new AbortController();
    byId("new").addEventListener("click", () => controller.abort(), { once: true });
    byId("said").textContent = await race(this.recording.body, this.track, this.settings.key(), controller.signal);
    this.race.disabled = false;
  }
}

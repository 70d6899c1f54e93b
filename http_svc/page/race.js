// Replays a recorded answer next to the same answer by plain decoding.
//
// The two run one after the other, since concurrent requests would share the model's passes. Both clocks start at the
// first token.

import { AnswerText } from "./answer.js";
import { make } from "./dom.js";
import { Recording } from "./recording.js";
import { count, rounded } from "./words.js";

class Column {
  constructor(title, recording) {
    this.recording = recording;
    this.speed = make("output", {}, "–");
    const body = make("div", { class: "text" });
    this.progress = make("progress", { max: 1, value: 0, "aria-label": `${title}: share of the answer` });
    this.element = make("div", { class: "column" },
      make("h4", {}, title), make("p", { class: "speed" }, this.speed, " tokens per second"), this.progress, body);
    this.text = new AnswerText(body);
  }

  show(steps, tokensOfAll, done) {
    const { recording } = this;
    const tokens = recording.steps.slice(0, steps).reduce((sum, step) => sum + step.tokens.length, 0);
    const seconds = recording.times[steps - 1];
    if (seconds) this.speed.textContent = rounded((tokens - recording.steps[0].tokens.length) / seconds);
    this.progress.value = done ? 1 : Math.min(1, tokens / tokensOfAll);
    this.text.show(recording, steps, done);
  }
}

/** Runs the race of a recording inside an element; resolves to a sentence with the result. */
export async function race(recording, element, key, signal) {
  const plain = new Recording({ ...recording.body, speculation: "off" });
  const left = new Column("Token trees", recording);
  const right = new Column("Plain decoding", plain);
  const verdict = make("p", { class: "verdict" }, "Plain decoding reads the prompt …");
  element.replaceChildren(verdict, make("div", { class: "columns" }, left.element, right.element));
  element.scrollIntoView({ block: "start" });

  let started = null;
  const frame = () => {
    if (plain.steps.length) started ??= performance.now();
    if (started !== null) {
      const elapsed = (performance.now() - started) / 1000;
      const reached = recording.times.filter((time) => time <= elapsed).length;
      left.show(reached, recording.tokens, reached === recording.steps.length);
      right.show(plain.steps.length, recording.tokens, !plain.running);
      if (plain.running) verdict.textContent = "Both run …";
    }
    return started !== null && !plain.running && left.progress.value === 1;
  };
  const finished = new Promise((resolve) => {
    const next = () => (signal.aborted || plain.error || frame() ? resolve() : requestAnimationFrame(next));
    next();
  });
  await plain.run(key, signal, () => {});
  await finished;
  const sentence = plain.error || judge(recording, plain);
  verdict.textContent = sentence;
  verdict.classList.add(recording.text === plain.text ? "equal" : "different");
  return sentence;
}

function judge(trees, plain) {
  const equal = trees.text === plain.text;
  const same = equal
    ? `Same text, character for character (${count(trees.tokens, "token")}).`
    : "The texts differ: at this temperature a speculator draws its guesses, which keeps the distribution but not the draw.";
  if (!trees.tokensPerSecond || !plain.tokensPerSecond) return same;
  if (trees.steps.length >= plain.steps.length) return `${same} The planner decoded plainly, too, which it found to be faster.`;
  const ratio = trees.tokensPerSecond / plain.tokensPerSecond;
  if (trees.dropped || plain.dropped) return `${same} Trees were ${rounded(ratio)} times as fast.`;
  const steps = `${count(trees.steps.length, "pass", "passes")} of the model instead of ${plain.steps.length}`;
  return `${same} Trees were ${rounded(ratio)} times as fast: ${steps}.`;
}

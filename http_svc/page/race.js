// Runs an answer again with trees and by plain decoding, in turns.
//
// One run at a time, since concurrent requests would share the model's passes; trees, plain, plain, trees, so that a
// drift of the machine's speed affects both. The prompt is in the cache; clocks start at the first token.

import { AnswerText } from "./answer.js";
import { make } from "./dom.js";
import { Recording } from "./recording.js";
import { count, rounded } from "./words.js";

const LONGEST = 128; // tokens of a run

class Column {
  constructor(title, body) {
    this.title = title;
    this.body = body;
    this.runs = [];
    this.speed = make("output", {}, "–");
    this.progress = make("progress", { max: body.max_tokens, value: 0, "aria-label": `${title}: share of the answer` });
    this.place = make("div", { class: "text" });
    this.element = make("div", { class: "column" },
      make("h4", {}, title), make("p", { class: "speed" }, this.speed, " tokens per second"), this.progress, this.place);
  }

  async run(key, signal) {
    const recording = new Recording(this.body);
    this.runs.push(recording);
    this.place.replaceChildren();
    const text = new AnswerText(this.place);
    await recording.run(key, signal, () => {
      text.show(recording);
      this.progress.value = recording.running ? recording.tokens : this.body.max_tokens;
      if (this.rate) this.speed.textContent = rounded(this.rate);
    });
    return recording.error;
  }

  sum(value) {
    return this.runs.reduce((sum, run) => sum + value(run), 0);
  }

  /** Tokens per second of all runs. */
  get rate() {
    const seconds = this.sum((run) => run.seconds);
    return seconds ? this.sum((run) => run.laterTokens) / seconds : 0;
  }
}

/** Runs the race inside an element; resolves to a sentence with the result. */
export async function race(body, element, key, signal) {
  const same = { ...body, max_tokens: Math.min(LONGEST, body.max_tokens) };
  const trees = new Column("Token trees", same);
  const plain = new Column("Plain decoding", { ...same, speculation: "off" });
  const verdict = make("p", { class: "verdict" });
  element.replaceChildren(verdict, make("div", { class: "columns" }, trees.element, plain.element));
  element.scrollIntoView({ block: "start" });
  const order = [trees, plain, plain, trees];
  let error = "";
  for (let turn = 0; turn < order.length && !error && !signal.aborted; turn++) {
    verdict.textContent = `Run ${turn + 1} of ${order.length}: ${order[turn].title.toLowerCase()} …`;
    error = await order[turn].run(key, signal);
  }
  const sentence = signal.aborted ? "Stopped." : error || judge(trees, plain);
  verdict.textContent = sentence;
  const texts = new Set([...trees.runs, ...plain.runs].map((run) => run.text));
  if (!error && !signal.aborted) verdict.classList.add(texts.size === 1 ? "equal" : "different");
  return sentence;
}

function judge(trees, plain) {
  const [first] = trees.runs;
  const texts = new Set([...trees.runs, ...plain.runs].map((run) => run.text));
  const same = texts.size === 1
    ? `Same text, character for character (${count(first.tokens, "token")}).`
    : "The texts differ: at this temperature a speculator draws its guesses, which keeps the distribution but not the draw.";
  if (!trees.rate || !plain.rate) return same;
  const steps = trees.sum((run) => run.steps.length);
  const without = trees.sum((run) => run.plainSteps);
  if (without === steps) return `${same} The planner chose plain decoding, too, as guesses would not pay now.`;
  const passes = `${count(steps, "pass", "passes")} of the model instead of ${plain.sum((run) => run.steps.length)}`;
  const mixed = without ? ` In ${without} of them the planner chose plain decoding.` : "";
  const asked = trees.body.speculation === "always" ? " Trees were drawn in every step, as you asked." : "";
  return `${same} Trees were ${rounded(trees.rate / plain.rate)} times as fast: ${passes}, two runs each.${mixed}${asked}`;
}

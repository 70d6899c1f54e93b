// The data of one answer: its text, and the steps that generated it.

import { answer, newId, watch } from "./api.js";

/** Requests an answer and stores its text and steps; `onChange` is called after each change. */
export class Recording {
  /** `body`: request of OpenAI's chat completions, with a seed. */
  constructor(body) {
    this.body = body;
    this.steps = [];
    this.dropped = 0;
    this.text = "";
    this.running = true;
    this.error = "";
    this.unwatched = "";
    this.end = ""; // OpenAI's finish_reason
    this.used = 0; // tokens of prompt and answer
  }

  /** What a reload needs. */
  get kept() {
    const { body, steps, dropped, text, end, used } = this;
    return { body, steps, dropped, text, end, used };
  }

  static of(kept) {
    return Object.assign(new Recording(kept.body), kept, { running: false });
  }

  /** Runs to the end, or until `signal` aborts. */
  async run(key, signal, onChange) {
    const id = newId();
    const watching = new AbortController();
    signal.addEventListener("abort", () => watching.abort());
    try {
      const steps = await watch(id, key, watching.signal).catch((error) => this.#lose(error));
      const followed = steps ? this.#follow(steps, onChange) : null;
      for await (const piece of answer(this.body, id, key, signal)) {
        this.text += piece.text;
        this.end ||= piece.end;
        this.used ||= piece.used;
        onChange();
      }
      await followed;
    } catch (error) {
      if (!signal.aborted) this.error = error.message;
    } finally {
      watching.abort();
      this.running = false;
      onChange();
    }
  }

  async #follow(steps, onChange) {
    try {
      for await (const event of steps) {
        this.dropped += event.dropped;
        if (event.step) this.steps.push(event.step);
        onChange();
      }
    } catch (error) {
      this.#lose(error);
    }
  }

  #lose(error) {
    this.unwatched = error.message;
    return null;
  }

  /** Number of tokens in the steps. */
  get tokens() {
    return this.steps.reduce((sum, step) => sum + step.tokens.length, 0);
  }

  get tokensPerStep() {
    return this.steps.length ? this.tokens / this.steps.length : 0;
  }

  /** Seconds at which each step ended, from the end of the first one, which has read the prompt. */
  get times() {
    let time = 0;
    return this.steps.map((step, index) => (time += index ? step.seconds : 0));
  }

  /** Seconds of all steps but the first one. */
  get seconds() {
    return this.times.at(-1) ?? 0;
  }

  /** Tokens of all steps but the first one. */
  get laterTokens() {
    return this.steps.length ? this.tokens - this.steps[0].tokens.length : 0;
  }

  get tokensPerSecond() {
    return this.seconds ? this.laterTokens / this.seconds : 0;
  }

  /** Number of steps for which the planner chose plain decoding. */
  get plainSteps() {
    return this.steps.filter((step) => !step.planner.speculators.length).length;
  }

  /** Share of the drafted nodes that were accepted; null: none were drafted. */
  get accepted() {
    const drafted = this.steps.reduce((sum, step) => sum + step.nodes.length - 1, 0);
    const accepted = this.steps.reduce((sum, step) => sum + step.accepted.length, 0);
    return drafted ? accepted / drafted : null;
  }
}

/** Names of the speculators that guessed a step's token; none: it is the model's own. */
export function guessers(step, place) {
  const node = step.nodes[step.accepted[place]];
  return node ? proposers(node) : [];
}

/** Names of the speculators that proposed a node. */
export function proposers(node) {
  return node.forced ? ["the constraint"] : [...new Set(node.proposals.map((proposal) => proposal.speculator))];
}

// The steps of one recording: a bar for each, a slider through them, and the chosen step with its tree.

import { paint, showLegend } from "./colours.js";
import { byId, make } from "./dom.js";
import { guessers } from "./recording.js";
import { drawTree, inWords, tableOf } from "./tree.js";
import { count, milliseconds, percent, reason, rounded, speculatorName, visible } from "./words.js";

/** Step that is shown before the first question: the tree of the documentation. */
const EXAMPLE = {
  position: 0,
  nodes: [
    { text: "the", parent: -1, chance: 1, proposals: [] },
    { text: " cat", parent: 0, chance: 0.7, proposals: [
      { speculator: "ngram", kind: "point", chance: 0.6 }, { speculator: "ssm", kind: "point", chance: 0.8 }] },
    { text: " sat", parent: 1, chance: 0.5, proposals: [{ speculator: "ssm", kind: "point", chance: 0.5 }] },
    { text: " ran", parent: 1, chance: 0.3, proposals: [{ speculator: "ngram", kind: "point", chance: 0.3 }] },
    { text: " dog", parent: 0, chance: 0.2, proposals: [{ speculator: "ssm", kind: "point", chance: 0.2 }] },
  ],
  accepted: [1, 2],
  bonus: { text: " on" },
};
const EXPLAINED = "Speculators guess what may follow “the”; their guesses are merged into one tree, which the model checks in " +
  "one pass. Here it agrees with “cat sat” and adds “on”: three tokens for the time of about one.";

const PADDING = 28; // of the box around the tree, both sides

export class Inspector {
  constructor() {
    this.recording = null;
    this.index = 0;
    this.following = true;
    this.onChoose = () => {};
    this.drawn = false;
    byId("slider").addEventListener("input", (event) => this.choose(event.target.value - 1));
    byId("follow").addEventListener("click", () => this.follow());
    byId("table").addEventListener("toggle", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(byId("tree"));
    showLegend(byId("legend"), ["ngram", "ssm"]);
  }

  /** Shows this recording from now on, and follows its newest step. */
  open(recording) {
    this.recording = recording;
    byId("bars").replaceChildren();
    this.follow();
  }

  follow() {
    this.following = true;
    this.update();
  }

  /** Selects, at the answer's end, the last step with the most accepted nodes; prefers trees with rejected nodes. */
  finish() {
    if (!this.recording) return;
    const worth = this.recording.steps.map(
      (step) => step.accepted.length + (step.nodes.length - 1 > step.accepted.length ? 100 * Math.sign(step.accepted.length) : 0));
    if (this.following && worth.length) this.choose(worth.lastIndexOf(Math.max(...worth)));
    else this.update();
  }

  /** Shows one step, and follows new steps no more. */
  choose(index) {
    this.following = false;
    this.index = index;
    this.draw();
  }

  /** Draws the recording's new steps. */
  update() {
    if (!this.recording) return;
    const steps = this.recording.steps;
    if (this.following) this.index = steps.length - 1;
    this.#addBars(steps);
    this.draw();
  }

  draw() {
    const steps = this.recording?.steps ?? [];
    const step = steps[this.index] ?? (steps.length ? steps[0] : EXAMPLE);
    const real = step !== EXAMPLE;
    showLegend(byId("legend"), step.planner?.speculators ?? []);
    byId("tree").replaceChildren(drawTree(step, byId("tree").clientWidth - PADDING));
    byId("caption").textContent = real ? `${inWords(step)}.` : EXPLAINED;
    byId("steps-title").textContent = real ? `Step ${this.index + 1} of ${steps.length}` : "How a step works";
    byId("timeline").hidden = !real;
    byId("follow").hidden = this.following || !this.recording?.running;
    byId("facts").replaceChildren(...(real ? facts(step, this.recording) : []));
    byId("phases").replaceChildren(...(real ? phases(step) : []));
    byId("table").hidden = !real;
    if (byId("table").open) byId("table").querySelector(".scroll").replaceChildren(tableOf(step));
    if (real) this.#moveSlider(steps, step);
    this.onChoose(this.recording, real ? this.index : null);
  }

  #moveSlider(steps, step) {
    const slider = byId("slider");
    byId("timeline").style.setProperty("--steps", steps.length);
    slider.max = steps.length;
    slider.value = this.index + 1;
    const words = step.tokens.map((token) => visible(token.text)).join(" ");
    slider.setAttribute("aria-valuetext", `step ${this.index + 1} of ${steps.length}: ${words}`);
    const bars = byId("bars").children;
    byId("bars").querySelector(".chosen")?.classList.remove("chosen");
    bars[this.index]?.classList.add("chosen");
  }

  #addBars(steps) {
    const bars = byId("bars");
    bars.style.setProperty("--most", Math.max(1, ...steps.map((step) => step.tokens.length)));
    for (let index = bars.childElementCount; index < steps.length; index++) {
      const step = steps[index];
      const parts = step.tokens.map((_, place) => {
        const names = guessers(step, place);
        return make("i", { class: names.length ? "guessed" : "own", ...paint(names) });
      });
      const bar = make("button", { type: "button", tabindex: -1, title: `step ${index + 1}` }, ...parts);
      bar.addEventListener("click", () => this.choose(index));
      bars.append(bar);
    }
  }
}

function facts(step, recording) {
  const { planner } = step;
  const asked = recording.body.speculation === "always" && planner.reason === "not adaptive";
  const why = asked ? "as you asked: plain decoding would be faster now" : reason(planner.reason);
  const chosen = planner.speculators.length
    ? `${planner.speculators.map(speculatorName).join(" and ")}, trees of up to ${count(planner.tree_nodes, "node")} (${why})`
    : `plain decoding (${reason(planner.reason)})`;
  const expected = planner.expected_seconds
    ? `${rounded(planner.expected_tokens)} tokens in ${milliseconds(planner.expected_seconds)}` +
      (planner.plain_tokens_per_second ? `; plain decoding would make ${rounded(planner.plain_tokens_per_second)} a second` : "")
    : "";
  const own = step.tokens.length - step.accepted.length;
  const rows = [
    ["Tokens per step", rounded(recording.tokensPerStep), "figure"],
    ["Tokens per second", recording.tokensPerSecond ? rounded(recording.tokensPerSecond) : "–", "figure"],
    ["Guesses accepted", recording.accepted === null ? "no guesses" : percent(recording.accepted), "figure"],
    ["This step added", `${count(step.tokens.length, "token")}: ${step.accepted.length} guessed${own > 0 ? ", 1 the model's own" : ""}`, ""],
    ["The planner chose", chosen, ""],
    ["It expected", expected, ""],
    ["Shared with", step.batch > 1 ? count(step.batch - 1, "other request") : "", ""],
    ["Not shown", recording.dropped ? `${count(recording.dropped, "step")}: too many at once` : "", ""],
  ];
  return rows.filter(([, value]) => value).map(([name, value, kind]) =>
    make("div", { class: kind }, make("dt", {}, name), make("dd", {}, value)));
}

/** A bar of the step's seconds by phase. */
function phases(step) {
  const parts = Object.entries(step.phases).filter(([, seconds]) => seconds > 0);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const bar = parts.map(([name, seconds]) => make("i", { class: name, "--share": `${(100 * seconds) / total}%` }));
  const words = parts.map(([name, seconds]) => make("li", { class: name }, `${name} ${milliseconds(seconds)}`));
  return [
    make("p", {}, `The step took ${milliseconds(step.seconds)}`),
    make("div", { class: "bar", "aria-hidden": "true" }, ...bar),
    make("ul", {}, ...words),
  ];
}

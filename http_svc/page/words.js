// Numbers and tokens as people read them.

export const percent = (share) => `${Math.round(100 * share)} %`;
export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
export const rounded = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const count = (number, noun, nouns = `${noun}s`) => `${number} ${number === 1 ? noun : nouns}`;

/** Why the planner chose so, by its reasons. */
const REASONS = {
  "fastest": "the fastest so far",
  "plain is faster": "guesses would not pay now",
  "first trees": "to measure trees for the first time",
  "first plain": "to measure plain decoding for the first time",
  "probe all": "to measure other trees again",
  "probe plain": "to measure plain decoding again",
  "not adaptive": "always so, as configured",
  "no speculators": "nobody drafts here: start the server with --draft MODEL",
  "no request wants drafts": "the request wants no guesses",
};
export const reason = (name) => REASONS[name] ?? name;

/** Speculators by the kinds of drafters; others have names of their own. */
const SPECULATORS = {
  ngram: "n-grams",
  suffix: "suffixes",
  ssm: "draft model",
  eagle: "EAGLE",
  medusa: "Medusa",
};
export const speculatorName = (name) => SPECULATORS[name] ?? name;

const LONGEST = 18;

/** A token so that its blanks and line breaks are seen, cut if it is long. */
export function visible(text) {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");
  const letters = Array.from(shown);
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : shown;
}

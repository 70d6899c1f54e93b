// Formats numbers and tokens for people.

export const percent = (share) => `${Math.round(100 * share)} %`;
export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
export const rounded = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const count = (number, noun, nouns = `${noun}s`) => `${number} ${number === 1 ? noun : nouns}`;

/** Words for the planner's reasons. */
const REASONS = {
  "fastest": "the fastest so far",
  "plain is faster": "guesses would not pay now",
  "probe all": "to learn about other trees",
  "probe plain": "to measure plain decoding",
  "not adaptive": "always so, as configured",
  "no speculators": "the server has no speculator: start it with --draft MODEL",
  "no request wants drafts": "the request wants no guesses",
};
export const reason = (name) => REASONS[name] ?? name;

/** Words for speculators named after their drafter; other names are shown as they are. */
const SPECULATORS = {
  ngram: "n-grams",
  suffix: "suffixes",
  ssm: "draft model",
  eagle: "EAGLE",
  medusa: "Medusa",
};
export const speculatorName = (name) => SPECULATORS[name] ?? name;

const LONGEST = 18;

/** A token with visible blanks and line breaks, shortened to `LONGEST` characters. */
export function visible(text) {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");
  const letters = Array.from(shown);
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : shown;
}

// Keeps the conversation in the browser, so that it survives a reload. Nothing is sent anywhere.

const PLACE = "specinfer conversation";

/** Stores recordings; without their steps if the browser has no room for them. */
export function keep(turns) {
  const whole = turns.map(({ question, recording }) => ({ question, ...recording.kept }));
  for (const stored of [whole, whole.map((turn) => ({ ...turn, steps: [] })), []]) {
    try {
      localStorage.setItem(PLACE, JSON.stringify(stored));
      return;
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // the quota, or storage that is switched off
    }
  }
}

/** The stored turns, oldest first. */
export function kept() {
  try {
    return JSON.parse(localStorage.getItem(PLACE) ?? "[]");
  } catch {
    return [];
  }
}

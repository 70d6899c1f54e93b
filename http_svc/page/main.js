// Connects the parts of the page: the form sends questions, turns show answers, the inspector shows steps.

import { modelName, newSeed } from "./api.js";
import { byId } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Recording } from "./recording.js";
import { Turn } from "./turn.js";

const NEAR_PX = 80; // maximum distance from the end at which new text scrolls the page
const LOADING_MS = 1000; // time between two questions whether the model is loaded
const PAUSE_MS = 80; // minimum time between two drawings of new steps

const inspector = new Inspector();
const settings = { key: () => byId("key").value.trim() };
let turns = [];
let running = null;

inspector.onChoose = (recording, index) =>
  turns.forEach((turn) => turn.text.choose(turn.recording === recording ? index : null));

async function showModel() {
  try {
    settings.model = await modelName(settings.key());
    byId("model").textContent = settings.model;
  } catch (error) {
    byId("model").textContent = error.message;
    if (error.loading) setTimeout(showModel, LOADING_MS);
  }
}

function bodyOf(question) {
  const before = turns.filter((turn) => turn.recording.text).flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.recording.text },
  ]);
  const seed = byId("seed").value;
  return {
    model: settings.model,
    messages: [...before, { role: "user", content: question }],
    temperature: byId("temperature").valueAsNumber || 0,
    max_tokens: byId("tokens").valueAsNumber || 128,
    seed: seed === "" ? newSeed() : Number(seed),
  };
}

async function ask(question) {
  if (!settings.model) await showModel();
  const recording = new Recording(bodyOf(question));
  const turn = new Turn(question, recording, settings, show);
  turn.question = question;
  turns.push(turn);
  byId("hint").hidden = true;
  byId("turns").append(turn.element);
  running = new AbortController();
  setBusy(true);
  inspector.open(recording);
  const update = paced(() => {
    const { scrollHeight, scrollTop, clientHeight } = byId("turns");
    turn.update();
    if (inspector.recording === recording) inspector.update();
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) turn.element.scrollIntoView({ block: "end" });
  });
  turn.element.scrollIntoView({ block: "end" });
  await recording.run(settings.key(), running.signal, update);
  update.now();
  if (inspector.recording === recording) inspector.finish();
  running = null;
  setBusy(false);
  byId("said").textContent = recording.error || `Answer: ${recording.text}`;
}

function show(turn, index) {
  if (inspector.recording !== turn.recording) inspector.open(turn.recording);
  inspector.choose(index);
}

/** Returns a function that runs `work` after a pause, once for all calls within the pause. */
function paced(work) {
  let waiting = null;
  const now = () => {
    clearTimeout(waiting);
    waiting = null;
    work();
  };
  return Object.assign(() => (waiting ??= setTimeout(now, PAUSE_MS)), { now });
}

function setBusy(busy) {
  byId("send").textContent = busy ? "Stop" : "Send";
  byId("new").disabled = busy;
}

function submit(event) {
  event?.preventDefault();
  if (running) {
    running.abort();
    return;
  }
  const question = byId("prompt").value.trim() || byId("prompt").placeholder;
  byId("prompt").value = "";
  ask(question);
}

function restart() {
  turns.forEach((turn) => turn.element.remove());
  turns = [];
  inspector.recording = null;
  inspector.draw();
  byId("hint").hidden = false;
  byId("prompt").focus();
}

byId("form").addEventListener("submit", submit);
byId("new").addEventListener("click", restart);
byId("key").addEventListener("change", showModel);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  if (event.key === "Escape") running?.abort();
});
inspector.draw();
showModel();

// Connects the parts of the page: the form sends questions, turns show answers, the inspector shows steps.

import { newSeed, servedModel } from "./api.js";
import { byId } from "./dom.js";
import { keep, kept } from "./history.js";
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
    const { id, max_model_len: context, weights, drafts } = await servedModel(settings.key());
    Object.assign(settings, { model: id, context });
    byId("model").textContent = id;
    const named = drafts.map(({ name, model }) => (model ? `${name} (${model})` : name)).join(" + ");
    const draft = named ? `draft ${named}` : "no draft";
    byId("about").textContent = [weights?.replace(/^.*: /, ""), draft, `context ${context}`].filter(Boolean).join(" · ");
    turns.forEach((turn) => turn.update());
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
  const system = byId("system").value.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  const seed = byId("seed").value;
  return {
    model: settings.model,
    messages: [...first, ...before, { role: "user", content: question }],
    temperature: byId("temperature").valueAsNumber || 0,
    top_p: byId("top-p").valueAsNumber || 1,
    top_k: byId("top-k").valueAsNumber || 0,
    max_tokens: byId("tokens").valueAsNumber || 512,
    ...(byId("trees").checked ? { speculation: "always" } : {}),
    seed: seed === "" ? newSeed() : Number(seed),
  };
}

async function ask(question) {
  if (!settings.model) await showModel();
  const recording = new Recording(bodyOf(question));
  const turn = add(question, recording);
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
  keep(turns);
  byId("said").textContent = recording.error || `Answer: ${recording.text}`;
}

function add(question, recording) {
  const turn = new Turn(question, recording, settings, { step: show, again, edit });
  turns.push(turn);
  byId("hint").hidden = true;
  byId("turns").append(turn.element);
  return turn;
}

/** Removes a turn and those after it. */
function cut(turn) {
  turns.splice(turns.indexOf(turn)).forEach((later) => later.element.remove());
  if (!turns.some(({ recording }) => recording === inspector.recording)) inspector.recording = null;
  inspector.draw();
  keep(turns);
}

function again(turn) {
  if (running) return;
  cut(turn);
  ask(turn.question);
}

function edit(turn) {
  if (running) return;
  cut(turn);
  byId("prompt").value = turn.question;
  byId("prompt").focus();
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
  keep(turns);
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
for (const one of kept()) {
  const turn = add(one.question, Recording.of(one));
  turn.update();
  if (one.steps.length) inspector.open(turn.recording);
}
inspector.finish();
inspector.draw();
showModel();

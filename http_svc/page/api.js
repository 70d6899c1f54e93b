// Calls of the HTTP service: the model, answers as they are generated, steps as they happen.

/** The events of a response, as parsed JSON; ends at OpenAI's [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (held + value).split("\n\n");
      held = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        if (!data.length) continue;
        if (data[0] === "[DONE]") return;
        yield checked(JSON.parse(data.join("\n")));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function checked(body) {
  if (body.error) throw new Error(body.error.message);
  return body;
}

async function call(path, key, options = {}) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `${response.status} ${response.statusText}`);
  }
  return response;
}

/** The name of the model that is served. */
export async function modelName(key) {
  const body = await (await call("v1/models", key)).json();
  return body.data[0].id;
}

/** The pieces of an answer, each with its text and, at last, why it ended. `body` is that of OpenAI's chat completions. */
export async function* answer(body, id, key, signal) {
  const response = await call("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": id },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const event of events(response)) {
    const choice = event.choices[0];
    yield { text: choice?.delta.content ?? "", end: choice?.finish_reason ?? "" };
  }
}

/** The steps of a request. Resolves once none is missed any more, so that the request may be sent. */
export async function watch(id, key, signal) {
  const response = await call(`v1/watch?request_id=${encodeURIComponent(id)}`, key, { signal });
  const all = events(response);
  await all.next();
  return all;
}

/** An id that nobody guesses. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A seed, so that the same answer can be had again. */
export function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// Calls of the HTTP service: the model's name, streamed answers, streamed steps.

/** The events of a response, as parsed JSON; ends at OpenAI's [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
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
    const message = body.error?.message ?? `${response.status} ${response.statusText}`;
    throw Object.assign(new Error(message), { loading: body.error?.code === "loading" });
  }
  return response;
}

/** The served model: { id, max_model_len, weights, drafts }. */
export async function servedModel(key) {
  const body = await (await call("v1/models", key)).json();
  return body.data[0];
}

/** Yields { text, end, used }: at the end its reason, and the tokens of prompt and answer. `body`: chat completions. */
export async function* answer(body, id, key, signal) {
  const response = await call("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": id },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const event of events(response)) {
    const choice = event.choices[0];
    yield { text: choice?.delta.content ?? "", end: choice?.finish_reason ?? "", used: event.usage?.total_tokens ?? 0 };
  }
}

/** The steps of a request. Resolves when watching has begun: send the request afterwards. */
export async function watch(id, key, signal) {
  const response = await call(`v1/watch?request_id=${encodeURIComponent(id)}`, key, { signal });
  const all = events(response);
  await all.next();
  return all;
}

/** A random request id, 96 bits. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A random seed, kept so that an answer can be repeated. */
export function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// A speculator service in JavaScript. It proposes what followed the last token when it last occurred in the context.
//
//   npm install && node speculator.js 127.0.0.1:50054          specinfer check 127.0.0.1:50054
"use strict";
const crypto = require("node:crypto");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const PROTO = { includeDirs: [path.join(__dirname, "../../proto")], keepCase: true, longs: String, defaults: true };
const { Speculator } = grpc.loadPackageDefinition(loader.loadSync("specinfer/v1/speculator.proto", PROTO)).specinfer.v1;
const OK = 1, RESYNC = 2, ERROR = 3, POINT = 1; // EntryStatus, ProposalKind
const MAX_NODES = 16, MAX_REQUESTS = 1000;
const instance_id = crypto.randomBytes(8).toString("hex");
const contexts = new Map(); // the committed tokens of every request, by client and request; the oldest come first

function keyOf(client, request_id) {
  return JSON.stringify([client, request_id]);
}

function whatIsWrong(entry) {
  if (!entry.delta_token_ids.length) return "delta_token_ids: must not be empty";
  if (entry.node_budget > MAX_NODES) return `node_budget = ${entry.node_budget}: at most ${MAX_NODES}`;
  const unknown = entry.speculators.find((place) => place !== 0);
  return unknown === undefined ? "" : `speculators = ${unknown}: this service has 1`;
}

// A chain of at most so many tokens behind the last one, or nothing. Points: chosen by a rule, not drawn.
function draft(tokens, most) {
  const last = tokens.length - 1;
  const at = last > 0 ? tokens.lastIndexOf(tokens[last], last - 1) : -1;
  const chain = at < 0 ? [] : tokens.slice(at + 1, at + 1 + most);
  if (!chain.length) return [];
  const tree = {
    token_ids: [tokens[last], ...chain],
    parents: [-1, ...chain.keys()],
    scores: [1, ...chain.map(() => 0.5)], // how likely each is accepted if its parent is: a guess
    proposals: chain.map((_, node) => ({ parent: node, kind: POINT, children: [node + 1] })),
  };
  return [{ speculator: 0, status: OK, tree }];
}

function serve(client, entry, seen) {
  const wrong = seen.has(entry.request_id) ? "request_id: is in the message twice" : whatIsWrong(entry);
  seen.add(entry.request_id);
  const key = keyOf(client, entry.request_id);
  if (wrong) return { status: ERROR, message: wrong };
  const tokens = (entry.base_len && contexts.get(key)) || []; // base_len 0 starts over
  contexts.delete(key);
  if (tokens.length !== entry.base_len) return { status: RESYNC }; // everything is sent again
  for (const token of entry.delta_token_ids) tokens.push(token);
  contexts.set(key, tokens);
  if (contexts.size > MAX_REQUESTS) contexts.delete(contexts.keys().next().value);
  return { status: OK, cached_len: tokens.length, drafts: draft(tokens, Math.min(entry.node_budget, entry.max_depth)) };
}

const server = new grpc.Server();
server.addService(Speculator.service, {
  Describe: (_, reply) => reply(null, { speculators: [{ name: "last-time", drafter: "bigram" }], max_nodes: MAX_NODES, instance_id }),
  Release: ({ request: { client, request_ids } }, reply) =>
    reply(null, { released: request_ids.filter((id) => contexts.delete(keyOf(client, id))).length }),
  Draft: (call) => {
    call.on("data", ({ client, step_id, entries }) => {
      const seen = new Set();
      const results = entries.map((entry) => ({ request_id: entry.request_id, ...serve(client, entry, seen) }));
      call.write({ step_id, instance_id, entries: results });
    });
    call.on("end", () => call.end());
  },
});
server.bindAsync(process.argv[2] || "127.0.0.1:50054", grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(`serving on port ${port}`);
});

// A decoder in the kernels' memory, with the buffers of a pass.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/cache_kinds.h"
#include "attention/plan.h"
#include "bindings.h"
#include "experts.h"
#include "products/products.h"
#include "simd/threads.h"

namespace specinfer {

struct Norm {
  std::vector<float> weight, bias;  // with a bias: norm by mean and variance, else root mean square
};

struct Layer {
  Norm input_norm, post_norm, attended_norm, mlp_norm;
  std::vector<float> q_norm, k_norm, qkv_bias, sinks;
  std::vector<float> convolution, convolution_bias, decay, time_bias, gated_norm, skip;  // recurrent layers only
  int window = 0, table = 0;            // window: number of visible positions, 0: all; table: rotary table, -1: none
  int place = 0;                        // number among layers with attention, or among recurrent ones
  Matrix q, k, v, out, gate, up, down;  // absent in layers without that part
  Matrix convolved, output_gates, state_gates, state_out;  // recurrent layers only
  Experts experts;
  bool recurrent() const { return convolved.n > 0; }
  bool attends() const { return q.n > 0; }
  // Returns the matrix that reads the hidden states first.
  const Matrix& first() const { return recurrent() ? convolved : q; }
  Matrix& matrix(int slot) {
    if (slot == ROUTER) return experts.router;
    if (slot >= EXPERTS) return experts.matrix(slot);
    Matrix* all[] = {&q, &k, &v, &out, &gate, &up, &down,  // in the order of MatrixSlot
                     &convolved, &output_gates, &state_gates, &state_out};
    return *all[slot];
  }
};

struct Model {
  Shape shape;
  CacheKind cache;
  std::vector<Layer> layers;
  Norm final_norm, hidden_norm;
  Matrix head, fc;
  Arena arena;  // memory of the matrices
  const void* embedding = nullptr;  // [vocabulary, hidden], in the caller's memory
  Storage embedding_storage = F32;
  std::vector<float> cos, sin;   // [tables, positions, rotary / 2]
  std::vector<float> positions;  // [positions, hidden] learnt; empty: none
  // buffers, sized for the largest pass so far
  std::vector<float> x, qkv, normed, attended, inner, change;  // change: output of a part before its norm
  std::vector<float> mixed, deltas, decays;  // recurrent layers: see recurrent/
  std::vector<uint32_t> query;  // in the form that the cache's products read
  Routes routes;
  AttentionPlan attention;
  Inputs inputs;                // inputs of the present product
  int ways = PLAIN;             // ways in which any matrix reads its inputs
};

// Sizes of a recurrent layer, in float32 numbers.
struct RecurrentSizes {
  int keys, values, channels;  // of a row: keys (or queries) of all heads; values; channels of the convolution
  int state, base;             // of a head's state; of a stored state: all heads, and the convolution's last inputs
  int token;                   // of a token: inputs of the convolution, keys, changes of the state, decays
  int gates, columns;          // outputs of STATE_GATES; of CONVOLVED, OUTPUT_GATES and STATE_GATES together
  explicit RecurrentSizes(const Shape& s)
      : keys(s.key_heads * s.key_dim), values(s.value_heads * s.value_dim), channels(2 * keys + values),
        state(s.key_dim * s.value_dim), base(s.value_heads * state + (s.convolved - 1) * channels),
        token(channels + (s.recurrent_kind == SHORT_CONVOLUTION ? 0 : keys + values + s.value_heads)),
        gates(s.recurrent_kind == DELTA_NET ? 2 * s.value_heads : s.recurrent_kind == STATE_SPACE ? s.value_heads : values),
        columns(channels + values + gates) {}
};

// Returns the input size of a layer's first projections; EAGLE reads an embedding and a hidden state.
inline int read_width(const Shape& s) { return s.states ? 2 * s.hidden : s.hidden; }

// Packs the rows of a matrix; `layer` is ignored for the model's matrices.
inline void set_matrix(Model& m, int layer, int which, Storage storage, const void* rows) {
  const Shape& s = m.shape;
  const RecurrentSizes r(s);
  const int query = s.heads * s.dim, key = s.kv_heads * s.dim, read = read_width(s);
  const auto put = [&](Matrix& to, int n, int k, int vectors) {
    pack(to, m.arena, storage, rows, n, k, vectors);
    m.ways |= to.input;
  };
  if (which == FC) return put(m.fc, s.hidden, s.states * s.hidden, 2);
  if (which == HEAD) return put(m.head, s.vocab, s.hidden, WIDE);
  const ExpertShape& experts = m.layers[layer].experts.shape;
  const int inter = experts.count ? experts.shared : s.inter;
  Matrix& to = m.layers[layer].matrix(which);
  if (which == QUERY) put(to, query * (1 + s.output_gate), read, 2);
  if (which == KEY || which == VALUE) put(to, key, read, 2);
  if (which == OUT) put(to, s.hidden, query, 2);
  if (which == GATE || which == UP) put(to, inter, s.hidden, WIDE);
  if (which == DOWN) put(to, s.hidden, inter, 2);
  if (which == CONVOLVED) put(to, r.channels, read, 2);
  if (which == OUTPUT_GATES) put(to, r.values, read, 2);
  if (which == STATE_GATES) put(to, r.gates, read, 2);
  if (which == STATE_OUT) put(to, s.hidden, r.values, 2);
  if (which == ROUTER) put(to, experts.count + experts.gated_shared, s.hidden, 2);
  if (which < EXPERTS) return;
  if ((which - EXPERTS) % 3 < 2) put(to, experts.inter, s.hidden, WIDE);
  else put(to, s.hidden, experts.inter, 2);
}

// Declares a layer's experts, whose matrices follow.
inline void set_experts(Model& m, int layer, const ExpertShape& shape) {
  Experts& e = m.layers[layer].experts;
  e.shape = shape;
  e.each = std::vector<Expert>(shape.count);
}

// Enlarges the buffers of a layer's mixture for a pass; returns its number of routes.
inline size_t prepare(Routes& to, const ExpertShape& shape, size_t tokens, size_t hidden) {
  const auto grow = [](auto& buffer, size_t n) { buffer.resize(std::max(buffer.size(), n)); };
  const size_t routes = tokens * shape.used;
  grow(to.scores, tokens * (shape.count + shape.gated_shared));
  grow(to.expert, routes), grow(to.weight, routes), grow(to.shared, tokens);
  grow(to.gathered, routes * hidden), grow(to.inner, routes * shape.inter);
  return routes;
}

// Enlarges the buffers for a pass, and plans its attention.
template <class C>
void prepare(Model& m, const Pass& p) {
  const Shape& s = m.shape;
  const size_t tokens = std::max(p.tokens, p.logits);
  const RecurrentSizes r(s);
  const size_t read = std::max(read_width(s), s.states * s.hidden), query = std::max(s.heads * s.dim, r.values);
  const size_t attending = (s.heads * (1 + s.output_gate) + 2 * s.kv_heads) * s.dim;
  const auto grow = [](auto& buffer, size_t n) { buffer.resize(std::max(buffer.size(), n)); };
  grow(m.x, tokens * s.hidden);
  if (!m.layers[0].attended_norm.weight.empty()) grow(m.change, tokens * s.hidden);
  grow(m.qkv, tokens * std::max<size_t>(attending, r.columns));
  grow(m.mixed, tokens * r.channels);
  grow(m.deltas, tokens * r.values);
  grow(m.decays, tokens * s.value_heads);
  grow(m.normed, tokens * read);
  grow(m.query, tokens * s.heads * C::query_words(s.dim));
  grow(m.attended, tokens * query);
  size_t inter = s.inter;
  for (const Layer& l : m.layers) {
    const ExpertShape& shape = l.experts.shape;
    if (!shape.count) continue;
    inter = std::max(inter, size_t(shape.shared));
    m.inputs.reserve(m.ways, prepare(m.routes, shape, tokens, s.hidden), std::max(s.hidden, shape.inter));
  }
  grow(m.inner, tokens * inter);
  m.inputs.reserve(m.ways, tokens, std::max({read, query, inter}));
  m.attention.make(s, p);
}

// Base of parts of a pass: one thread, in step with the other threads.
class ThreadOfPass {
 public:
  ThreadOfPass(Model& model, const Pass& pass, Barrier& barrier, int thread, int threads)
      : m_(model), s_(model.shape), p_(pass), barrier_(barrier), thread_(thread), threads_(threads) {}

 protected:
  Range mine(int items) const { return share(items, thread_, threads_); }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  Barrier& barrier_;
  const int thread_, threads_;
};

}  // namespace specinfer

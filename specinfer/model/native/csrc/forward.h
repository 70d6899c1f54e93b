// One pass of the decoder: every thread runs a Worker, all in step.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/attention.h"
#include "norms.h"
#include "products/products.h"

namespace specinfer {

// Runs one pass; one object per thread, all in step.
template <class Kind>
class Worker {
  using T = typename Kind::T;
  using A = typename Kind::A;
  static constexpr int S = Kind::S;

 public:
  Worker(Model& model, const Pass& pass, Barrier& barrier, SharedWork* work, int thread, int threads)
      : m_(model), s_(model.shape), p_(pass), barrier_(barrier), work_(work), thread_(thread), threads_(threads),
        attention_(model, pass, work, thread, threads) {}

  void run() {
    const int end = p_.end_layer;
    attention_.plan();
    if (s_.states) join();
    else if (p_.first_layer == 0) embed();
    for (int layer = p_.first_layer; layer < end; ++layer) {
      keep_features(layer);
      Layer& l = m_.layers[layer];
      if (!s_.states) norm(l.input_norm);
      project(l.qkv, activations(m_.normed), m_.qkv, first(l.out));
      norm_rows(l);
      place(l, layer);
      attention_.run(layer);
      barrier_.wait();
      if (s_.parallel) norm(l.post_norm);  // of x as attention saw it
      add_to_x(l.out, activations(m_.attended), l.attended_norm, first(l.up));
      if (!s_.parallel) norm(l.post_norm);
      expand(l.up, first(l.down));
      // of a layer that is not there yet nothing can be fetched
      const Matrix& next = layer + 1 < end ? m_.layers[layer + 1].qkv : end == s_.layers ? m_.head : l.down;
      add_to_x(l.down, activations(m_.inner), l.mlp_norm, first(next));
    }
    if (end < s_.layers) return;
    keep_features(end);
    finish();
  }

 private:
  static A* activations(std::vector<uint32_t>& buffer) { return reinterpret_cast<A*>(buffer.data()); }
  Range mine(int items) const { return share(items, thread_, threads_); }
  const char* first(const Matrix& m) const { return first_tile(m, S, thread_, threads_); }

  void embed() {
    const T* table = static_cast<const T*>(m_.embedding);
    const Range r = mine(p_.tokens);
    const float scale = s_.embedding_scale;
    for (int t = r.begin; t < r.end; ++t)
      for (int i = 0; i < s_.hidden; ++i)
        m_.x[size_t(t) * s_.hidden + i] = scale * Kind::to_float(table[size_t(p_.token_ids[t]) * s_.hidden + i]);
    if (!s_.rotary)
      for (int t = r.begin; t < r.end; ++t)
        for (int i = 0; i < s_.hidden; ++i)
          m_.x[size_t(t) * s_.hidden + i] += m_.positions[size_t(p_.positions[t]) * s_.hidden + i];
    barrier_.wait();
  }

  // EAGLE: rows are hidden states, and what the layer reads are the embeddings of their tokens beside them, both normed.
  void join() {
    hide();
    const T* table = static_cast<const T*>(m_.embedding);
    std::vector<float> embedding(s_.hidden);
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      const T* row = table + size_t(p_.token_ids[t]) * s_.hidden;
      float* x = &m_.x[size_t(t) * s_.hidden];
      A* both = activations(m_.normed) + size_t(t) * 2 * s_.hidden;
      for (int i = 0; i < s_.hidden; ++i) embedding[i] = Kind::to_float(row[i]);
      normalise<Kind>(embedding.data(), m_.layers[0].input_norm, s_.hidden, s_.eps, both);
      normalise<Kind>(x, m_.hidden_norm, s_.hidden, s_.eps, both + s_.hidden);
      if (s_.residual_normed) normalise<F32>(x, m_.hidden_norm, s_.hidden, s_.eps, x);
    }
    barrier_.wait();
  }

  // x of EAGLE's rows: fc of the target's hidden states, or its own.
  void hide() {
    const Range r = mine(p_.tokens);
    const size_t begin = size_t(r.begin) * s_.hidden, end = size_t(r.end) * s_.hidden;
    if (!p_.states) {
      std::copy(p_.hidden + begin, p_.hidden + end, m_.x.data() + begin);
      return;
    }
    std::fill(m_.x.data() + begin, m_.x.data() + end, 0.0f);
    A* states = activations(m_.normed);
    for (size_t i = begin * s_.states; i < end * s_.states; ++i) states[i] = Kind::activation(from_bf16(p_.states[i]));
    barrier_.wait();
    add_to_x(m_.fc, states, Norm{}, first(m_.layers[0].qkv));
  }

  // Hidden states after `layer` layers, if they are wanted. x is whole here, and next changed behind a barrier.
  void keep_features(int layer) const {
    for (int f = 0; f < p_.features; ++f) {
      if (p_.feature_layers[f] != layer) continue;
      const Range r = mine(p_.tokens);
      for (int t = r.begin; t < r.end; ++t)
        std::memcpy(p_.features_out + (size_t(t) * p_.features + f) * s_.hidden, &m_.x[size_t(t) * s_.hidden],
                    s_.hidden * sizeof(float));
    }
  }

  void norm(const Norm& norm) {
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t)
      normalise<Kind>(&m_.x[size_t(t) * s_.hidden], norm, s_.hidden, s_.eps,
                      activations(m_.normed) + size_t(t) * s_.hidden);
    barrier_.wait();
  }

  // to = a W^T + bias
  void project(const Matrix& w, const A* a, std::vector<float>& to, const char* next) {
    float* out = to.data();
    multiply<Kind, 2>(w, a, p_.tokens, mine(w.tiles()), scratch_, next, [&](int row, int col, const float* v) {
      const int n = std::min(32, w.n - col);
      float* y = out + size_t(row) * w.n + col;
      for (int i = 0; i < n; ++i) y[i] = v[i];
      if (!w.bias.empty())
        for (int i = 0; i < n; ++i) y[i] += w.bias[col + i];
    });
    barrier_.wait();
  }

  // Norms of all heads of a token together, of queries and of keys.
  void norm_rows(const Layer& l) {
    const int d = s_.dim, queries = s_.heads * d, keys = s_.kv_heads * d;
    const bool whole_q = int(l.q_norm.size()) > d, whole_k = int(l.k_norm.size()) > d;
    if (!whole_q && !whole_k) return;
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float *q = &m_.qkv[size_t(t) * (queries + 2 * keys)], *k = q + queries;
      if (whole_q) rms_norm<F32>(q, l.q_norm.data(), queries, s_.eps, q);
      if (whole_k) rms_norm<F32>(k, l.k_norm.data(), keys, s_.eps, k);
    }
    barrier_.wait();
  }

  // Normalises and rotates queries and keys; puts keys and values into the cache. Head by head: the tokens of a tree
  // share the lines of a cache block, and threads that write to one line wait for each other.
  void place(const Layer& l, int layer) {
    const int heads = s_.heads + 2 * s_.kv_heads, d = s_.dim, turned = l.table < 0 ? 0 : s_.rotary;
    const size_t table = size_t(std::max(l.table, 0)) * s_.max_positions;
    const Range r = mine(p_.tokens * heads);
    for (int item = r.begin; item < r.end; ++item) {
      const int h = item / p_.tokens, t = item % p_.tokens, pos = p_.positions[t];
      float* x = &m_.qkv[(size_t(t) * heads + h) * d];
      const size_t angle = (table + pos) * s_.rotary / 2;
      const float *cos = m_.cos.data() + angle, *sin = m_.sin.data() + angle;
      if (h < s_.heads) {
        norm_head(x, l.q_norm, d, s_.eps);
        rotate(x, cos, sin, turned);
        A* q = activations(m_.query) + (size_t(t) * s_.heads + h) * d;
        for (int i = 0; i < d; i += LANES) Kind::put(q + i, load(x + i));
      } else if (h < s_.heads + s_.kv_heads) {
        norm_head(x, l.k_norm, d, s_.eps);
        rotate(x, cos, sin, turned);
        store_key(layer, p_.write_slots[t], h - s_.heads, x);
      } else {
        store_value(layer, p_.write_slots[t], h - s_.heads - s_.kv_heads, x);
      }
    }
    if (thread_ == 0) work_[layer].reset();
    barrier_.wait();
  }

  void store_key(int layer, int slot, int head, const float* x) const {
    uint32_t* block = reinterpret_cast<uint32_t*>(cache_block<T>(p_, s_, p_.keys, layer, slot / BLOCK, head)) + slot % BLOCK;
    uint32_t units[LANES / S];
    for (int i = 0; i < s_.dim; i += LANES) {
      Kind::store(reinterpret_cast<T*>(units), load(x + i));
      for (int u = 0; u < LANES / S; ++u) block[(i / S + u) * BLOCK] = units[u];
    }
  }

  void store_value(int layer, int slot, int head, const float* x) const {
    const int lane = slot % BLOCK;
    T* pair = cache_block<T>(p_, s_, p_.values, layer, slot / BLOCK, head) + size_t(lane / S) * s_.dim * S + lane % S;
    T numbers[LANES];
    for (int i = 0; i < s_.dim; i += LANES) {
      Kind::store(numbers, load(x + i));
      for (int j = 0; j < LANES; ++j) pair[(i + j) * S] = numbers[j];
    }
  }

  // x += residual_scale * norm(a W^T + bias)
  void add_to_x(const Matrix& w, const A* a, const Norm& norm, const char* next) {
    const float scale = s_.residual_scale;
    if (!norm.weight.empty()) return add_normed(w, a, norm, next);
    multiply<Kind, 2>(w, a, p_.tokens, mine(w.tiles()), scratch_, next, [&](int row, int col, const float* v) {
      float* y = &m_.x[size_t(row) * s_.hidden + col];
      const int n = std::min(32, w.n - col);
      for (int i = 0; i < n; ++i) y[i] += scale * v[i];
      if (!w.bias.empty())
        for (int i = 0; i < n; ++i) y[i] += scale * w.bias[col + i];
    });
    barrier_.wait();
  }

  void add_normed(const Matrix& w, const A* a, const Norm& norm, const char* next) {
    project(w, a, m_.change, next);
    const float scale = s_.residual_scale;
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float *change = &m_.change[size_t(t) * s_.hidden], *x = &m_.x[size_t(t) * s_.hidden];
      normalise<F32>(change, norm, s_.hidden, s_.eps, change);
      for (int i = 0; i < s_.hidden; ++i) x[i] += scale * change[i];
    }
    barrier_.wait();
  }

  // inner = act(gate) * up, or act(up)
  void expand(const Matrix& w, const char* next) {
    if (s_.activation == SILU) expand<silu>(w, next);
    if (s_.activation == GELU) expand<gelu>(w, next);
    if (s_.activation == RELU) expand<relu>(w, next);
    if (s_.activation == GELU_TANH) expand<gelu_tanh>(w, next);
    barrier_.wait();
  }

  template <Floats act(Floats)>
  void expand(const Matrix& w, const char* next) {
    const A* normed = activations(m_.normed);
    if (s_.gated)
      return multiply<Kind, WIDE>(w, normed, p_.tokens, mine(w.tiles()), scratch_, next, [&](int row, int col, const float* v) {
        put_inner(row, col / 2, GATE, [v](int i) { return mul(act(load(v + i)), load(v + GATE + i)); });
      });
    multiply<Kind, WIDE>(w, normed, p_.tokens, mine(w.tiles()), scratch_, next, [&](int row, int col, const float* v) {
      const float* bias = w.bias.empty() ? nullptr : &w.bias[col];
      put_inner(row, col, WIDE * LANES, [&](int i) {
        return act(bias ? add(load(v + i), load_first(bias + i, s_.inter - col - i, zeros())) : load(v + i));
      });
    });
  }

  // Columns of the MLP's inner activations, `lanes(i)` being those from i on.
  template <class Lanes>
  void put_inner(int row, int first, int columns, Lanes lanes) {
    const int n = std::min(columns, s_.inter - first);
    A* y = activations(m_.inner) + size_t(row) * s_.inter + first;
    for (int i = 0; i < n; i += LANES) {
      if (n - i >= LANES) {
        Kind::put(y + i, lanes(i));
        continue;
      }
      float rest[LANES];
      store(rest, lanes(i));
      for (int j = 0; j < n - i; ++j) y[i + j] = Kind::activation(rest[j]);
    }
  }

  void finish() {
    const Range r = mine(p_.logits);
    for (int i = r.begin; i < r.end; ++i) {
      const float* x = &m_.x[size_t(p_.logit_rows[i]) * s_.hidden];
      normalise<Kind>(x, m_.final_norm, s_.hidden, s_.eps, activations(m_.normed) + size_t(i) * s_.hidden);
    }
    barrier_.wait();
    const bool stream = p_.sparse && s_.vocab % 64 == 0 && reinterpret_cast<uintptr_t>(p_.logits_out) % 64 == 0;
    multiply<Kind, WIDE>(m_.head, activations(m_.normed), p_.logits, mine(m_.head.tiles()), scratch_, first(m_.head),
                      [&](int row, int col, const float* v) {
                        float* out = p_.logits_out + size_t(row) * s_.vocab + col;
                        float capped[WIDE * LANES];
                        if (s_.logit_cap) v = cap_logits(v, capped);
                        if (!stream) {
                          std::memcpy(out, v, std::min(WIDE * LANES, s_.vocab - col) * sizeof(float));
                          return;
                        }
                        for (int i = 0; i < WIDE * LANES; i += LANES) specinfer::stream(out + i, load(v + i));
                      });
    if (stream) _mm_sfence();
  }

  const float* cap_logits(const float* v, float* capped) const {
    const float over = 1 / s_.logit_cap;
    for (int i = 0; i < WIDE * LANES; i += LANES) store(capped + i, soft_cap(load(v + i), s_.logit_cap, over));
    return capped;
  }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  Barrier& barrier_;
  SharedWork* work_;
  const int thread_, threads_;
  Scratch scratch_;
  Attention<Kind> attention_;
};

// Runs `work(worker, thread)` on all threads, with workers for the pass that `p` describes at that moment.
template <class Kind, class Work>
void in_parallel(Model& m, const Pass& p, Barrier& barrier, int threads, Work work) {
  std::vector<SharedWork> shared(m.shape.layers);
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    Worker<Kind> worker(m, p, barrier, shared.data(), thread, threads);
    work(worker, thread);
  }
}

template <class Kind>
void forward(Model& m, const Pass& p) {
  prepare<Kind>(m, std::max(p.tokens, p.logits));
  Barrier barrier(p.threads);
  in_parallel<Kind>(m, p, barrier, p.threads, [](Worker<Kind>& worker, int) { worker.run(); });
}

}  // namespace specinfer

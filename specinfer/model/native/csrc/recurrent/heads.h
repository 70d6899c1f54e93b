// Recurrent heads in float32: gated delta nets (arXiv 2412.06464) and state spaces (Mamba 2, arXiv 2405.21060).
//
// After a causal convolution, with S the state at the beginning of a row's block and A the decay since, each head computes
//   delta = beta (v - A S^T k - sum_i A / A_i (k_i . k) delta_i)     over the tokens i before the row in its block
//   out = A S^T q + sum_i A / A_i (k_i . q) delta_i                  also over the row itself
// This is the recurrence of the state, expanded. A state space has delta = dt v instead, and adds skip v to out; its queries,
// keys and values are called C, B and x. One thread computes a head's rows, in order.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "norms.h"
#include "recurrent/past.h"
#include "simd/threads.h"

namespace specinfer {

inline constexpr float SMALLEST_SQUARES = 1e-6f;  // added to the squared length of queries and keys before dividing by it

// Computes S^T k and S^T q for V * LANES values; a state is [values / LANES][keys][LANES].
template <int V>
inline void read_columns(const float* state, const float* k, const float* q, int keys, float* of_k, float* of_q) {
  Floats a[V], b[V];
  times<V>([&](auto v) INLINED { a[v] = zeros(), b[v] = zeros(); });
  for (int j = 0; j < keys; ++j)
    times<V>([&](auto v) INLINED {
      const Floats s = load(state + (size_t(v) * keys + j) * LANES);
      a[v] = fma(s, spread(k[j]), a[v]), b[v] = fma(s, spread(q[j]), b[v]);
    });
  times<V>([&](auto v) INLINED { store(of_k + v * LANES, a[v]), store(of_q + v * LANES, b[v]); });
}

inline void read_state(const float* state, const float* k, const float* q, int keys, int values, float* of_k, float* of_q) {
  int c = 0;
  for (; c + 2 * LANES <= values; c += 2 * LANES) read_columns<2>(state + size_t(c) * keys, k, q, keys, of_k + c, of_q + c);
  if (c < values) read_columns<1>(state + size_t(c) * keys, k, q, keys, of_k + c, of_q + c);
}

inline float dot(const float* a, const float* b, int n) {
  Floats total = zeros();
  for (int i = 0; i < n; i += LANES) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

inline void add_scaled(float scale, const float* x, int n, float* to) {
  for (int i = 0; i < n; i += LANES) store(to + i, fma(load(x + i), spread(scale), load(to + i)));
}

inline void scale_by(float scale, int n, float* x) {
  for (int i = 0; i < n; i += LANES) store(x + i, mul(load(x + i), spread(scale)));
}

// One thread's part of recurrent layers with heads.
class RecurrentHeads {
 public:
  RecurrentHeads(Model& m, const Pass& p, int thread, int threads)
      : m_(m), s_(m.shape), p_(p), sizes_(m.shape), past_(m, p), thread_(thread), threads_(threads) {}

  // Convolves queries, keys and values of all rows; a delta net's queries and keys are then divided by their length.
  void convolve(const Layer& l) {
    const int heads = 2 * s_.key_heads + s_.value_heads;
    const Range r = share(p_.tokens * heads, thread_, threads_);
    for (int item = r.begin; item < r.end; ++item) convolve_head(l, item / heads, item % heads);
  }

  void run(const Layer& l) {
    prepare();
    const Range r = share(p_.sequences * s_.value_heads, thread_, threads_);
    for (int item = r.begin; item < r.end; ++item) run_head(l, item / s_.value_heads, item % s_.value_heads);
  }

  // Applies a state space's norm to its gated outputs.
  void norm_groups(const Layer& l) {
    const int groups = s_.key_heads, n = sizes_.values / groups;
    const Range r = share(p_.tokens * groups, thread_, threads_);
    for (int item = r.begin; item < r.end; ++item) {
      float* x = &m_.attended[size_t(item) * n];
      rms_norm(x, &l.gated_norm[item % groups * n], n, s_.eps, x);
    }
  }

 private:
  void prepare() {
    of_key_.resize(s_.value_dim), out_.resize(s_.value_dim), scaled_.resize(BLOCK * s_.key_dim);
  }

  void convolve_head(const Layer& l, int row, int head) {
    const bool value = head >= 2 * s_.key_heads;
    const int n = value ? s_.value_dim : s_.key_dim;
    const int c = value ? 2 * sizes_.keys + (head - 2 * s_.key_heads) * n : head * n;
    float* out = &m_.mixed[size_t(row) * sizes_.channels + c];
    if (l.convolution_bias.empty()) std::fill(out, out + n, 0.0f);
    else std::copy_n(&l.convolution_bias[c], n, out);
    for (int back = s_.convolved - 1; back >= 0; --back) {
      const float* x = past_.inputs(row, back, l);
      const float* w = &l.convolution[size_t(s_.convolved - 1 - back) * sizes_.channels + c];
      if (x)
        for (int i = 0; i < n; i += LANES) store(out + i, fma(load(x + c + i), load(w + i), load(out + i)));
    }
    for (int i = 0; i < n; i += LANES) store(out + i, silu(load(out + i)));
    const bool query = head < s_.key_heads;
    if (!value && !spaces()) scale_by(1 / std::sqrt(dot(out, out, n) + SMALLEST_SQUARES) * (query ? 1 / std::sqrt(float(n)) : 1), n, out);
    if (!past_.keeps(row)) return;
    const KeptToken own = past_.own(row, l.place);
    const float* inputs = past_.inputs(row, 0, l) + c;
    std::copy(inputs, inputs + n, own.inputs + c);
    if (!query && !value) std::copy(out, out + n, own.keys + c - sizes_.keys);
  }

  void run_head(const Layer& l, int sequence, int head) {
    const Recurrence& at = *p_.recurrence;
    int job = at.job_start[sequence];
    const int end = at.job_start[sequence + 1];
    for (int row = p_.row_start[sequence]; row < p_.row_start[sequence + 1]; ++row) {
      for (; job < end && at.job_row[job] == row; ++job) settle(l, job, head);
      step(l, row, head);
    }
    for (; job < end; ++job) settle(l, job, head);
  }

  int key_head(int head) const { return head / (s_.value_heads / s_.key_heads); }

  // Computes a head's state at the end of a block; it may overwrite the state at the beginning.
  void settle(const Layer& l, int job, int head) {
    const Recurrence& at = *p_.recurrence;
    const float* from = past_.state(at.job_from[job], l);
    float* to = past_.state(at.job_to[job], l);
    const int64_t* tokens = at.job_past + size_t(job) * BLOCK;
    if (head == 0) past_.keep_inputs(tokens, l, to);
    const int keys = s_.key_dim, values = s_.value_dim, first = key_head(head) * keys;
    const float* deltas[BLOCK];
    const float last = past_.token(tokens[BLOCK - 1], l).decays[head];
    for (int i = 0; i < BLOCK; ++i) {
      const PastToken t = past_.token(tokens[i], l);
      deltas[i] = t.deltas + size_t(head) * values;
      const float weight = std::exp(last - t.decays[head]);
      for (int j = 0; j < keys; ++j) scaled_[i * keys + j] = weight * t.keys[first + j];
    }
    const Floats decay = spread(std::exp(last));
    const size_t skip = size_t(head) * sizes_.state;
    for (int c = 0; c < values; c += LANES)
      for (int j = 0; j < keys; ++j) {
        const size_t place = skip + size_t(c) * keys + j * LANES;
        Floats x = from ? mul(decay, load(from + place)) : zeros();
        for (int i = 0; i < BLOCK; ++i) x = fma(spread(scaled_[i * keys + j]), load(deltas[i] + c), x);
        store(to + place, x);
      }
  }

  void step(const Layer& l, int row, int head) {
    const int keys = s_.key_dim, values = s_.value_dim, first = key_head(head) * keys, inside = past_.inside(row);
    const float* mixed = &m_.mixed[size_t(row) * sizes_.channels];
    const float *q = mixed + first, *k = mixed + sizes_.keys + first, *v = mixed + 2 * sizes_.keys + head * values;
    const float* row_at = &m_.qkv[size_t(row) * sizes_.columns];
    const float *gate = row_at + sizes_.channels + head * values, *beta = row_at + sizes_.channels + sizes_.values + head;
    const float time = softplus(beta[spaces() ? 0 : s_.value_heads] + l.time_bias[head]);
    const int64_t* block = past_.block(row);
    const float before = inside ? past_.token(block[inside - 1], l).decays[head] : 0.0f;
    const float total = before + l.decay[head] * time;
    read_base(l, row, head, k, q, std::exp(total));
    for (int i = 0; i < inside; ++i) {
      const PastToken t = past_.token(block[i], l);
      const float *key = t.keys + first, *delta = t.deltas + size_t(head) * values, weight = std::exp(total - t.decays[head]);
      if (!spaces()) add_scaled(weight * dot(key, k, keys), delta, values, of_key_.data());
      add_scaled(weight * dot(key, q, keys), delta, values, out_.data());
    }
    float* delta = &m_.deltas[size_t(row) * sizes_.values + head * values];
    const Floats share = spread(spaces() ? time : 1 / (1 + std::exp(-beta[0])));
    for (int c = 0; c < values; c += LANES) {
      const Floats x = load(v + c);
      store(delta + c, mul(share, spaces() ? x : sub(x, load(&of_key_[c]))));
    }
    if (spaces()) add_scaled(l.skip[head], v, values, out_.data());
    add_scaled(dot(k, q, keys), delta, values, out_.data());
    m_.decays[size_t(row) * s_.value_heads + head] = total;
    if (past_.keeps(row)) {
      const KeptToken own = past_.own(row, l.place);
      std::copy(delta, delta + values, own.deltas + head * values);
      own.decays[head] = total;
    }
    finish(l, gate, &m_.attended[size_t(row) * sizes_.values + head * values]);
  }

  // Multiplies the state at the beginning of the block by a key and a query.
  void read_base(const Layer& l, int row, int head, const float* k, const float* q, float decay) {
    const float* base = past_.base(row, l);
    if (!base) {
      std::fill(of_key_.begin(), of_key_.end(), 0.0f);
      std::fill(out_.begin(), out_.end(), 0.0f);
      return;
    }
    read_state(base + size_t(head) * sizes_.state, k, q, s_.key_dim, s_.value_dim, of_key_.data(), out_.data());
    scale_by(decay, s_.value_dim, of_key_.data());
    scale_by(decay, s_.value_dim, out_.data());
  }

  void finish(const Layer& l, const float* gate, float* to) {
    if (spaces()) std::copy(out_.begin(), out_.end(), to);
    else rms_norm(out_.data(), l.gated_norm.data(), s_.value_dim, s_.eps, to);
    for (int c = 0; c < s_.value_dim; c += LANES) store(to + c, mul(load(to + c), silu(load(gate + c))));
  }

  bool spaces() const { return s_.recurrent_kind == STATE_SPACE; }

  static float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  const RecurrentSizes sizes_;
  const Past past_;
  const int thread_, threads_;
  std::vector<float> of_key_, out_, scaled_;
};

}  // namespace specinfer

// Prepares heads of queries, keys and values for attention, and gates its outputs.
#pragma once
#include <algorithm>

#include "attention/cache_kinds.h"
#include "model.h"
#include "norms.h"
#include "simd/threads.h"

namespace specinfer {

// One thread's part of a pass's heads; all threads run in step.
template <class C>
class AttentionHeads : ThreadOfPass {
 public:
  explicit AttentionHeads(const ThreadOfPass& thread) : ThreadOfPass(thread) {}

  // Applies norms over all query heads, and over all key heads, of a token.
  void norm_rows(const Layer& l) {
    const int d = s_.dim, queries = s_.heads * d, keys = s_.kv_heads * d;
    const bool whole_q = int(l.q_norm.size()) > d, whole_k = int(l.k_norm.size()) > d;
    if (!whole_q && !whole_k) return;
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float *q = &m_.qkv[size_t(t) * columns(l)], *k = q + l.q.n;
      if (whole_q) rms_norm(q, l.q_norm.data(), queries, s_.eps, q);
      if (whole_k) rms_norm(k, l.k_norm.data(), keys, s_.eps, k);
    }
    barrier_.wait();
  }

  // Normalises, bounds and rotates queries and keys; writes keys and values to the cache. Threads share out heads, not
  // tokens: a tree's tokens share lines of a cache block, and threads that write to one line slow each other.
  void place(const Layer& l) {
    const int heads = s_.heads + 2 * s_.kv_heads, d = s_.dim, turned = l.table < 0 ? 0 : s_.rotary;
    const size_t table = size_t(std::max(l.table, 0)) * s_.max_positions;
    const Range r = mine(p_.tokens * heads);
    for (int item = r.begin; item < r.end; ++item) {
      const int h = item / p_.tokens, t = item % p_.tokens, pos = p_.positions[t];
      const int before = h < s_.heads ? h * (1 + s_.output_gate) : h + s_.output_gate * s_.heads;
      float* x = &m_.qkv[size_t(t) * columns(l) + before * d];
      const size_t angle = (table + pos) * s_.rotary / 2;
      const float *cos = m_.cos.data() + angle, *sin = m_.sin.data() + angle;
      if (h < s_.heads) {
        norm_head(x, l.q_norm, d, s_.eps);
        bound(x);
        rotate(x, cos, sin, turned);
        C::put_query(x, d, m_.query.data() + (size_t(t) * s_.heads + h) * C::query_words(d));
      } else if (h < s_.heads + s_.kv_heads) {
        norm_head(x, l.k_norm, d, s_.eps);
        bound(x);
        rotate(x, cos, sin, turned);
        C::put_key(block(p_.keys, l.place, p_.write_slots[t], h - s_.heads), p_.write_slots[t] % BLOCK, d, x);
      } else {
        bound(x);
        C::put_value(block(p_.values, l.place, p_.write_slots[t], h - s_.heads - s_.kv_heads), p_.write_slots[t] % BLOCK, d, x);
      }
    }
    barrier_.wait();
  }

  // Multiplies attention's outputs by their heads' gates.
  void gate(const Layer& l) {
    const Range r = mine(p_.tokens * s_.heads);
    for (int item = r.begin; item < r.end; ++item) {
      const int t = item / s_.heads, h = item % s_.heads, d = s_.dim;
      const float* gate = &m_.qkv[size_t(t) * columns(l) + (2 * h + 1) * d];
      float* x = &m_.attended[size_t(item) * d];
      for (int i = 0; i < d; i += LANES) store(x + i, div(load(x + i), add(spread(1.0f), vexp(sub(zeros(), load(gate + i))))));
    }
    barrier_.wait();
  }

 private:
  // Length of a row of m_.qkv.
  static int columns(const Layer& l) { return l.q.n + l.k.n + l.v.n; }

  void bound(float* x) const {
    if (!s_.bound) return;
    const Floats top = spread(s_.bound), bottom = spread(-s_.bound);
    for (int i = 0; i < s_.dim; i += LANES) store(x + i, most(bottom, least(top, load(x + i))));
  }

  char* block(void* cache, int layer, int slot, int head) const {
    return cache_block<C>(s_, cache, p_.cache_blocks, layer, slot / BLOCK, head);
  }
};

}  // namespace specinfer

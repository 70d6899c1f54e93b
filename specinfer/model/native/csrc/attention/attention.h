// Tree attention over the paged cache: no mask, no copy, one chain of additions per query.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "model.h"

namespace specinfer {

// The 16 entries of one block for one head, of keys or of values.
template <class T>
T* cache_block(const Pass& p, const Shape& s, void* cache, int layer, int block, int head) {
  return static_cast<T*>(cache) + ((size_t(layer) * p.cache_blocks + block) * s.kv_heads + head) * s.dim * BLOCK;
}

// One thread's share of the attention of a pass.
template <class Kind>
class Attention {
  using T = typename Kind::T;
  using A = typename Kind::A;
  using Unit = typename Kind::Unit;
  static constexpr int S = Kind::S;

 public:
  Attention(Model& model, const Pass& pass, SharedWork* work, int thread, int threads)
      : m_(model), s_(model.shape), p_(pass), work_(work), thread_(thread), threads_(threads) {}

  // Work comes in tiles of (token, head) rows that share a KV head and read it once, sequence by sequence and
  // head by head. Called once per pass.
  void plan() {
    first_unit_.assign(1, 0);
    for (int s = 0; s < p_.sequences; ++s) first_unit_.push_back(first_unit_.back() + tiles_of(s) * s_.kv_heads);
  }

  void run(int layer) {
    for (int unit; (unit = work_[layer].take(thread_, first_unit_.back())) >= 0;) {
      const int s = int(std::upper_bound(first_unit_.begin(), first_unit_.end(), unit) - first_unit_.begin()) - 1;
      const int tiles = tiles_of(s), place = unit - first_unit_[s];
      const Range r = share(rows_of(s), place % tiles, tiles);
      attend_rows<ROWS>(layer, s, place / tiles, r.begin, r.end - r.begin);
    }
  }

 private:
  int rows_of(int s) const { return (p_.row_start[s + 1] - p_.row_start[s]) * (s_.heads / s_.kv_heads); }

  // Fewer rows in a tile when there is little work, so that all threads get some. (Twelve rows with two vectors
  // each were slower.)
  int tiles_of(int s) const {
    const int most = std::clamp(p_.tokens * s_.heads / (4 * threads_), 1, ROWS);
    return (rows_of(s) + most - 1) / most;
  }

  template <int RT>
  void attend_rows(int layer, int s, int kv, int first, int rows) {
    if (rows == RT) return attend_tile<RT>(layer, s, kv, first);
    if constexpr (RT > 1) attend_rows<RT - 1>(layer, s, kv, first, rows);
  }

  template <int RT>
  void attend_tile(int layer, int s, int kv, int first) {
    constexpr int MANY = std::clamp(SUMS / RT, 1, WIDE);  // blocks or vectors at a time
    const int group = s_.heads / s_.kv_heads, d = s_.dim, steps = d / S;
    const int32_t* table = p_.blocks + p_.block_start[s];
    int token[RT], head[RT], from[RT], most = 0, last = 0, start = INT_MAX;
    const Unit* q[RT];
    for (int r = 0; r < RT; ++r) {
      token[r] = p_.row_start[s] + (first + r) / group;
      head[r] = kv * group + (first + r) % group;
      q[r] = reinterpret_cast<const Unit*>(m_.query.data()) + (size_t(token[r]) * s_.heads + head[r]) * steps;
      from[r] = first_seen(token[r], m_.layers[layer].window);
      start = std::min(start, from[r] / BLOCK * BLOCK);
      most = std::max(most, p_.visible[token[r]]);
      const int e = p_.extra_start[token[r] + 1];
      last = std::max(last, e > p_.extra_start[token[r]] ? p_.extra[e - 1] + 1 : 0);
    }
    const int blocks = (std::max(most, last) + BLOCK - 1) / BLOCK, width = blocks * BLOCK + 2 * LANES;
    scores_.resize(size_t(RT) * width);
    int whole[RT];
    Floats top[RT];
    for (int r = 0; r < RT; ++r) whole[r] = p_.visible[token[r]] / BLOCK, top[r] = spread(-INFINITY);
    int b = start / BLOCK;
    for (; b + MANY <= blocks; b += MANY) dot<RT, MANY>(layer, kv, table, b, blocks, q, width, whole, top);
    for (; b < blocks; ++b) dot<RT, 1>(layer, kv, table, b, blocks, q, width, whole, top);
    weights_.resize(size_t(RT) * width / S);
    float scale[RT];
    for (int r = 0; r < RT; ++r)
      scale[r] = softmax(token[r], &scores_[size_t(r) * width], &weights_[size_t(r) * width / S], most, top[r], from[r], start);
    int c = 0;
    for (; c + MANY * LANES <= d; c += MANY * LANES)
      mix<RT, MANY>(layer, kv, table, token, head, scale, width, most, from, start, c);
    for (; c < d; c += LANES) mix<RT, 1>(layer, kv, table, token, head, scale, width, most, from, start, c);
  }

  // The first position on a token's path that it sees through a window, counted along the path.
  int first_seen(int token, int window) const {
    const int positions = p_.visible[token] + p_.extra_start[token + 1] - p_.extra_start[token];
    return window ? std::max(positions - window, 0) : 0;
  }

  // Scores of RT rows against NB blocks of keys, and their maxima over the blocks that a row sees whole.
  template <int RT, int NB>
  void dot(int layer, int kv, const int32_t* table, int b, int blocks, const Unit* const* q, int width,
           const int* whole, Floats* top) {
    const char *k[NB], *ahead[NB];
    for (int i = 0; i < NB; ++i) {
      k[i] = reinterpret_cast<const char*>(cache_block<T>(p_, s_, p_.keys, layer, table[b + i], kv));
      const int next = std::min(b + NB + i, blocks - 1);
      ahead[i] = reinterpret_cast<const char*>(cache_block<T>(p_, s_, p_.keys, layer, table[next], kv));
    }
    Floats acc[RT][NB];
    times<RT>([&](auto r) INLINED { times<NB>([&](auto i) INLINED { acc[r][i] = zeros(); }); });
    for (int step = 0; step < s_.dim / S; ++step) {
      times<NB>([&](auto i) INLINED { _mm_prefetch(ahead[i] + size_t(step) * 64, _MM_HINT_T0); });
      multiply_step<Kind>(acc, k, [&](auto r) INLINED -> auto& { return q[r][step]; });
      times<NB>([&](auto i) INLINED { k[i] += 64; });
    }
    for (int r = 0; r < RT; ++r)
      for (int i = 0; i < NB; ++i) {
        store(&scores_[size_t(r) * width + (b + i) * BLOCK], acc[r][i]);
        if (b + i < whole[r]) top[r] = most(top[r], acc[r][i]);
      }
  }

  // Scores `x` to unnormalised probabilities, visible positions first, then the extra ones: as factors in
  // `w`, with zeros from the first step that is not wholly visible up to position `farthest`, because other rows
  // of the tree see more; and in `x` what lies in that step or behind it, for mix_end. `top`: maxima of the
  // blocks that are visible as a whole. Nothing before `from` is seen, and `start` is where the rows of a tile begin.
  // Returns what normalises them.
  float softmax(int token, float* x, Unit* w, int farthest, Floats top, int from, int start) const {
    const int visible = p_.visible[token], begin = p_.extra_start[token], end = p_.extra_start[token + 1];
    for (int j = begin; j < end; ++j) x[visible + j - begin] = x[p_.extra[j]];  // extras ascend: safe in place
    const int n = visible + end - begin, first = from / LANES * LANES;
    if (s_.score_cap) cap_scores(x + first, n - first);
    std::fill(x + first, x + from, -INFINITY);
    for (int i = n; i < ((n + LANES - 1) & ~(LANES - 1)); ++i) x[i] = -INFINITY;
    const bool changed = from || s_.score_cap;  // so are the maxima
    if (changed) top = spread(-INFINITY);
    for (int i = changed ? first : visible / BLOCK * BLOCK; i < n; i += LANES) top = most(top, load(x + i));
    const float factor = s_.score_cap ? LOG2_E : LOG2_E * s_.score_scale;
    const Floats f = spread(factor), peak = spread(largest(top) * factor);
    Floats total = zeros();
    std::fill(w + start / S, w + first / S, Unit{});
    for (int i = first; i < n; i += LANES) {
      const Floats e = keep_first(vexp2(fms(load(x + i), f, peak)), n - i);
      total = add(total, e);
      if (i + LANES > visible / S * S) store(x + i, e);
      Kind::put(reinterpret_cast<A*>(w) + i, e);
    }
    std::fill(w + visible / S, w + (farthest + S - 1) / S, Unit{});
    return 1.0f / sum(total);
  }

  void cap_scores(float* x, int n) const {
    const float over = 1 / s_.score_cap;
    for (int i = 0; i < n; i += LANES)
      store(x + i, soft_cap(mul(load(x + i), spread(s_.score_scale)), s_.score_cap, over));
  }

  // Weighted sums of values, NV vectors of the head from column c. Positions are taken S at a time in the
  // order in which they lie, or will lie once committed; a row's last ones are collected from where they
  // are: the odd end of its visible stretch and the nodes on its path.
  template <int RT, int NV>
  void mix(int layer, int kv, const int32_t* table, const int* token, const int* head, const float* scale,
           int width, int most, const int* from, int start, int c) {
    Floats acc[RT][NV];
    times<RT>([&](auto r) INLINED { times<NV>([&](auto v) INLINED { acc[r][v] = zeros(); }); });
    const int steps = most / S;
    const Unit* weights = weights_.data();
    for (int u = start / S; u < steps; u += BLOCK / S) {
      const T* base = cache_block<T>(p_, s_, p_.values, layer, table[u * S / BLOCK], kv) + c * S;
      const int next = std::min(u * S / BLOCK + 1, (steps - 1) * S / BLOCK);
      const T* ahead = cache_block<T>(p_, s_, p_.values, layer, table[next], kv) + c * S;
      const int n = std::min(BLOCK / S, steps - u);
      for (int i = 0; i < n; ++i, base += s_.dim * S, ahead += s_.dim * S) {
        const char* at[NV];
        times<NV>([&](auto v) INLINED {
          at[v] = reinterpret_cast<const char*>(base + v * LANES * S);
          _mm_prefetch(reinterpret_cast<const char*>(ahead + v * LANES * S), _MM_HINT_T0);
        });
        multiply_step<Kind>(acc, at, [&](auto r) INLINED -> auto& { return weights[size_t(r) * width / S + u + i]; });
      }
    }
    for (int r = 0; r < RT; ++r) {
      mix_end<NV>(layer, kv, table, token[r], &scores_[size_t(r) * width], from[r], c, acc[r]);
      float* out = m_.attended.data() + (size_t(token[r]) * s_.heads + head[r]) * s_.dim + c;
      for (int v = 0; v < NV; ++v) store(out + v * LANES, mul(acc[r][v], spread(scale[r])));
    }
  }

  template <int NV>
  void mix_end(int layer, int kv, const int32_t* table, int token, const float* p, int from, int c, Floats* acc) {
    const int visible = p_.visible[token], begin = p_.extra_start[token];
    const int n = visible + p_.extra_start[token + 1] - begin;
    for (int i = std::max(visible / S * S, from / LANES * LANES); i < n; i += S) {
      Words vv[NV];
      for (int v = 0; v < NV; ++v) vv[v] = no_bits();
      A factors[S] = {};
      for (int j = 0; j < S && i + j < n; ++j) {
        const int at = i + j < visible ? i + j : p_.extra[begin + i + j - visible], lane = at % BLOCK;
        const T* pair = cache_block<T>(p_, s_, p_.values, layer, table[at / BLOCK], kv) + (size_t(lane / S) * s_.dim + c) * S;
        for (int v = 0; v < NV; ++v)
          vv[v] = either(vv[v], Kind::pick(load_words(pair + v * LANES * S), lane % S, j));
        factors[j] = Kind::activation(p[i + j]);
      }
      Unit factor;
      std::memcpy(&factor, factors, sizeof(Unit));
      for (int part = 0; part < Kind::PARTS; ++part)
        for (int v = 0; v < NV; ++v) acc[v] = Kind::madd(acc[v], Kind::part(vv[v], part), factor, part);
    }
  }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  SharedWork* work_;
  const int thread_, threads_;
  std::vector<int> first_unit_;  // of each sequence, and the number of all
  std::vector<float> scores_;
  std::vector<Unit> weights_;
};

}  // namespace specinfer

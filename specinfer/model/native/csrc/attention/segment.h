// Attention of a few rows to one segment of their context in the paged cache, without mask or copy.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cache_kinds.h"
#include "attention/plan.h"
#include "model.h"

namespace specinfer {

// A row's part of a segment. Positions are counted along the row's path, as they will be once committed: first `visible`
// leading positions of the sequence, then the tree nodes in `extra`.
struct SegmentRow {
  int token, head;
  int from, to;         // positions of the segment that the row sees; equal if none
  int seen;             // end of the visible leading positions
  const int32_t* extra;  // sequence positions of the path's positions from `visible` on
  int visible;
};

template <class C>
class SegmentAttention {
  using Keys = typename C::Keys;
  using Values = typename C::Values;
  using Unit = typename Values::Unit;
  static constexpr int S = C::S;

 public:
  SegmentAttention(Model& model, const Pass& pass) : m_(model), s_(model.shape), p_(pass) {}

  // Writes [rows][dim + 2] for rows of a KV head: maximum score, sum of weights, weighted sum of values. The sum of weights
  // is 0 if the row sees nothing of the segment.
  template <int RT>
  void attend(int layer, int sequence, int kv, int first, int segment, float* out) {
    SegmentRow rows[RT];
    const int group = s_.heads / s_.kv_heads, width = s_.dim + 2;
    start_ = INT_MAX;
    int most = 0, last = 0;
    for (int r = 0; r < RT; ++r) {
      const int token = p_.row_start[sequence] + (first + r) / group;
      rows[r] = row_of(token, kv * group + (first + r) % group, m_.layers[layer].window, segment);
      out[r * width] = -INFINITY, out[r * width + 1] = 0;
      if (rows[r].from >= rows[r].to) continue;
      start_ = std::min(start_, rows[r].from / BLOCK * BLOCK);
      most = std::max(most, rows[r].seen);
      if (rows[r].to > rows[r].visible) last = std::max(last, rows[r].extra[rows[r].to - 1 - rows[r].visible] + 1);
    }
    if (start_ == INT_MAX) return;
    layer_ = m_.layers[layer].place, kv_ = kv, table_ = p_.blocks + p_.block_start[sequence];
    const int blocks = (std::max(most, last) + BLOCK - 1) / BLOCK;
    width_ = std::max(blocks * BLOCK - start_, SEGMENT) + 2 * LANES;
    score<RT>(rows, blocks);
    if constexpr (C::SCALE_BYTES > 0) take_scales(blocks);
    most = std::max(most, start_);
    weights_.resize(size_t(RT) * width_ / S), tails_.resize(size_t(RT) * width_ / S);
    float scale[RT];
    for (int r = 0; r < RT; ++r)
      scale[r] = weigh(rows[r], &scores_[size_t(r) * width_], r, (most - start_ + S - 1) / S, out + r * width);
    mix_all<RT>(rows, scale, most, out);
  }

 private:
  SegmentRow row_of(int token, int head, int window, int segment) const {
    const int visible = p_.visible[token], begin = segment * SEGMENT;
    const int positions = visible + p_.extra_start[token + 1] - p_.extra_start[token];
    const int first_seen = window ? std::max(positions - window, 0) : 0;
    const int from = std::max(begin, first_seen), to = std::max(std::min(begin + SEGMENT, positions), from);
    return {token, head, from, to, std::min(visible, to), p_.extra + p_.extra_start[token], visible};
  }

  char* key_block(int block) const { return cache_block<C>(s_, p_.keys, p_.cache_blocks, layer_, table_[block], kv_); }
  char* value_block(int block) const { return cache_block<C>(s_, p_.values, p_.cache_blocks, layer_, table_[block], kv_); }
  static const char* lines(const char* block) { return block + BLOCK * C::SCALE_BYTES; }

  template <int RT>
  void score(const SegmentRow* rows, int blocks) {
    constexpr int MANY = std::clamp(SUMS / RT, 1, WIDE);  // blocks at a time
    scores_.resize(size_t(RT) * width_);
    const uint32_t* query[RT];
    for (int r = 0; r < RT; ++r)
      query[r] = m_.query.data() + (size_t(rows[r].token) * s_.heads + rows[r].head) * C::query_words(s_.dim);
    int b = start_ / BLOCK;
    for (; b + MANY <= blocks; b += MANY) dot<RT, MANY>(b, blocks, query);
    for (; b < blocks; ++b) dot<RT, 1>(b, blocks, query);
  }

  // Computes the scores of RT rows and NB blocks of keys.
  template <int RT, int NB>
  void dot(int b, int blocks, const uint32_t* const* query) {
    const char *block[NB], *k[NB], *ahead[NB];
    for (int i = 0; i < NB; ++i) {
      block[i] = key_block(b + i), k[i] = lines(block[i]);
      ahead[i] = lines(key_block(std::min(b + NB + i, blocks - 1)));
    }
    typename Keys::Sum acc[RT][NB];
    times<RT>([&](auto r) INLINED { times<NB>([&](auto i) INLINED { acc[r][i] = C::begin(query[r], s_.dim); }); });
    for (int step = 0; step < s_.dim / S; ++step) {
      times<NB>([&](auto i) INLINED { _mm_prefetch(ahead[i] + size_t(step) * 64, _MM_HINT_T0); });
      multiply_step<Keys>(acc, k, [&](auto r) INLINED -> auto& {
        return reinterpret_cast<const typename Keys::Unit*>(query[r])[step];
      });
      times<NB>([&](auto i) INLINED { k[i] += 64; });
    }
    for (int r = 0; r < RT; ++r)
      for (int i = 0; i < NB; ++i)
        store(&scores_[size_t(r) * width_ + (b + i) * BLOCK - start_], C::score(acc[r][i], block[i], query[r], s_.dim));
  }

  // Reads the scales of all values from `start_` on.
  void take_scales(int blocks) {
    scales_.resize(width_), path_scales_.resize(width_);
    for (int b = start_ / BLOCK; b < blocks; ++b) store(&scales_[b * BLOCK - start_], load(reinterpret_cast<const float*>(value_block(b))));
  }

  // Converts scores `x` of a row to weights: in `weights_` for leading positions, zero up to unit `end`, as other rows may see
  // more; in `tails_` from the first unit that has other positions. Writes maximum score and sum of weights to `out`; returns
  // the factor of the sums of products.
  float weigh(const SegmentRow& row, float* x, int r, int end, float* out) {
    Unit *w = &weights_[size_t(r) * width_ / S], *tail = &tails_[size_t(r) * width_ / S];
    std::fill(w, w + end, Unit{});
    if (row.from >= row.to) return 0;
    const int from = row.from - start_, n = row.to - start_, first = from / LANES * LANES, last = (n + LANES - 1) / LANES * LANES;
    for (int i = std::max(row.visible, row.from); i < row.to; ++i)
      x[i - start_] = x[row.extra[i - row.visible] - start_];  // extra positions ascend: safe in place
    weigh_scores(x, first, from, n, last, out);
    const float* scales = x;  // not read if values have no scales
    if constexpr (C::SCALE_BYTES > 0) scales = path_scales(row, last);
    const float scale = C::put_weights(x + first, n - first, scales + first, w + first / S);
    const int odd = std::max((row.seen - start_) / S * S, first);
    std::copy(w + odd / S, w + last / S, tail);
    std::fill(w + odd / S, w + std::max(last / S, end), Unit{});
    return scale;
  }

  void weigh_scores(float* x, int first, int from, int n, int last, float* out) const {
    if (s_.score_cap) cap_scores(x + first, n - first);
    std::fill(x + first, x + from, -INFINITY);
    std::fill(x + n, x + last, -INFINITY);
    Floats top = spread(-INFINITY);
    for (int i = first; i < n; i += LANES) top = most(top, load(x + i));
    const float factor = s_.score_cap ? LOG2_E : LOG2_E * s_.score_scale, peak = largest(top) * factor;
    Floats total = zeros();
    for (int i = first; i < n; i += LANES) {
      const Floats e = keep_first(vexp2(fms(load(x + i), spread(factor), spread(peak))), n - i);
      total = add(total, e);
      store(x + i, e);
    }
    out[0] = peak, out[1] = sum(total);
  }

  void cap_scores(float* x, int n) const {
    const float over = 1 / s_.score_cap;
    for (int i = 0; i < n; i += LANES)
      store(x + i, soft_cap(mul(load(x + i), spread(s_.score_scale)), s_.score_cap, over));
  }

  // Returns the scales of the values at a row's positions.
  const float* path_scales(const SegmentRow& row, int last) {
    if (row.to <= row.visible) return scales_.data();
    const int seen = std::max(row.seen - start_, 0);
    std::copy(scales_.begin(), scales_.begin() + seen, path_scales_.begin());
    for (int i = seen; i < last; ++i) {
      const int extra = i + start_ - row.visible;
      path_scales_[i] = i + start_ < row.to ? scales_[row.extra[extra] - start_] : 0;
    }
    return path_scales_.data();
  }

  template <int RT>
  void mix_all(const SegmentRow* rows, const float* scale, int most, float* out) {
    constexpr int MANY = std::clamp(SUMS / RT, 1, WIDE);  // vectors at a time
    int c = 0;
    for (; c + MANY * LANES <= s_.dim; c += MANY * LANES) mix<RT, MANY>(rows, scale, most, c, out);
    for (; c < s_.dim; c += LANES) mix<RT, 1>(rows, scale, most, c, out);
  }

  // Computes weighted sums of values, for NV vectors of the head from column c, S positions at a time.
  template <int RT, int NV>
  void mix(const SegmentRow* rows, const float* scale, int most, int c, float* out) {
    typename Values::Sum acc[RT][NV];
    times<RT>([&](auto r) INLINED { times<NV>([&](auto v) INLINED { acc[r][v] = C::nothing(); }); });
    const int steps = (most - start_) / S;
    const Unit* weights = weights_.data();
    for (int u = 0; u < steps; u += BLOCK / S) {
      const int block = start_ / BLOCK + u * S / BLOCK, n = std::min(BLOCK / S, steps - u);
      const char* base = lines(value_block(block)) + c * 4;
      const char* ahead = lines(value_block(u + n < steps ? block + 1 : block)) + c * 4;
      for (int i = 0; i < n; ++i, base += s_.dim * 4, ahead += s_.dim * 4) {
        const char* at[NV];
        times<NV>([&](auto v) INLINED {
          at[v] = base + v * 64;
          _mm_prefetch(ahead + v * 64, _MM_HINT_T0);
        });
        multiply_step<Values>(acc, at, [&](auto r) INLINED -> auto& { return weights[size_t(r) * width_ / S + u + i]; });
      }
    }
    for (int r = 0; r < RT; ++r) {
      if (rows[r].from >= rows[r].to) continue;
      mix_tail<NV>(rows[r], &tails_[size_t(r) * width_ / S], c, acc[r]);
      for (int v = 0; v < NV; ++v)
        store(out + size_t(r) * (s_.dim + 2) + 2 + c + v * LANES, C::mixed(acc[r][v], scale[r]));
    }
  }

  // Adds a row's remaining positions, at scattered places: an odd end of the leading positions, and nodes of its path.
  template <int NV>
  void mix_tail(const SegmentRow& row, const Unit* tail, int c, typename Values::Sum* acc) {
    for (int i = std::max(row.seen / S * S, start_ + (row.from - start_) / LANES * LANES); i < row.to; i += S, ++tail) {
      Words vv[NV];
      for (int v = 0; v < NV; ++v) vv[v] = no_bits();
      for (int j = 0; j < S && i + j < row.to; ++j) {
        const int at = i + j < row.visible ? i + j : row.extra[i + j - row.visible], lane = at % BLOCK;
        const char* units = lines(value_block(at / BLOCK)) + (size_t(lane / S) * s_.dim + c) * 4;
        for (int v = 0; v < NV; ++v) vv[v] = either(vv[v], C::pick(load_words(units + v * 64), lane % S, j));
      }
      for (int part = 0; part < Values::PARTS; ++part)
        for (int v = 0; v < NV; ++v) acc[v] = Values::madd(acc[v], Values::part(vv[v], part), *tail, part);
    }
  }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  int layer_ = 0, kv_ = 0, start_ = 0, width_ = 0;  // of the present call: first position, length of a buffer's row
  const int32_t* table_ = nullptr;
  std::vector<float> scores_, scales_, path_scales_;
  std::vector<Unit> weights_, tails_;
};

}  // namespace specinfer

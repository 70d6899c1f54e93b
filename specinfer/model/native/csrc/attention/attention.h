// Tree attention over the paged cache: one chain of additions per query and segment; segments are merged in order.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/plan.h"
#include "attention/segment.h"
#include "model.h"

namespace specinfer {

// One thread's part of a pass's attention.
template <class C>
class Attention {
 public:
  Attention(Model& model, const Pass& pass, SharedWork* work, int thread)
      : m_(model), s_(model.shape), work_(work), thread_(thread), segment_(model, pass), width_(s_.dim + 2), p_(pass) {}

  void run(int layer) {
    AttentionPlan& plan = m_.attention;
    for (int unit; (unit = work_[layer].take(thread_, plan.units)) >= 0;) {
      const int index = plan.group_of(unit);
      const AttentionGroup& g = plan.groups[index];
      if (!plan.by_segments || g.segments == 1) attend_whole(layer, g);
      else attend_part(layer, g, index, unit - g.unit);
    }
  }

 private:
  void attend_whole(int layer, const AttentionGroup& g) {
    const size_t size = size_t(g.rows) * width_;
    merged_.resize(size), part_.resize(size);
    for (int segment = 0; segment < g.segments; ++segment) {
      attend_segment(layer, g, segment, segment ? part_.data() : merged_.data());
      if (segment) merge(g.rows, merged_.data(), part_.data());
    }
    finish(layer, g, merged_.data());
  }

  // Computes one segment of a group; the thread that ends the group's last segment merges all.
  void attend_part(int layer, const AttentionGroup& g, int index, int segment) {
    const size_t size = size_t(g.rows) * width_;
    float* parts = m_.attention.partials.data() + g.partials;
    attend_segment(layer, g, segment, parts + segment * size);
    if (!m_.attention.finish_segment(index)) return;
    for (int i = 1; i < g.segments; ++i) merge(g.rows, parts, parts + i * size);
    finish(layer, g, parts);
  }

  void attend_segment(int layer, const AttentionGroup& g, int segment, float* out) {
    const int tiles = (g.rows + ROWS - 1) / ROWS;
    for (int tile = 0; tile < tiles; ++tile) {
      const Range r = share(g.rows, tile, tiles);
      attend_rows<ROWS>(r.end - r.begin, layer, g, g.first + r.begin, segment, out + r.begin * width_);
    }
  }

  template <int RT>
  void attend_rows(int rows, int layer, const AttentionGroup& g, int first, int segment, float* out) {
    if (rows == RT) return segment_.template attend<RT>(layer, g.sequence, g.head, first, segment, out);
    if constexpr (RT > 1) attend_rows<RT - 1>(rows, layer, g, first, segment, out);
  }

  // Adds a segment's rows to the sum of the segments before it.
  void merge(int rows, float* to, const float* from) const {
    for (int r = 0; r < rows; ++r, to += width_, from += width_) {
      if (from[1] == 0) continue;
      if (to[1] == 0) {
        std::copy(from, from + width_, to);
        continue;
      }
      const Floats before = spread(to[0]), here = spread(from[0]), peak = most(before, here);
      const Floats old = vexp2(sub(before, peak)), now = vexp2(sub(here, peak));
      float factors[2][LANES], top[LANES];
      store(factors[0], old), store(factors[1], now), store(top, peak);
      to[0] = top[0], to[1] = to[1] * factors[0][0] + from[1] * factors[1][0];
      for (int i = 2; i < width_; i += LANES) store(to + i, fma(load(from + i), now, mul(load(to + i), old)));
    }
  }

  void finish(int layer, const AttentionGroup& g, const float* rows) const {
    const std::vector<float>& sinks = m_.layers[layer].sinks;
    const int group = s_.heads / s_.kv_heads;
    for (int r = 0; r < g.rows; ++r, rows += width_) {
      const int token = p_.row_start[g.sequence] + (g.first + r) / group, head = g.head * group + (g.first + r) % group;
      float* out = m_.attended.data() + (size_t(token) * s_.heads + head) * s_.dim;
      const float sink = sinks.empty() ? 0 : std::exp2(sinks[head] * LOG2_E - rows[0]);  // rows[0]: maximum of the scores
      const Floats scale = spread(1.0f / (rows[1] + sink));
      for (int i = 0; i < s_.dim; i += LANES) store(out + i, mul(load(rows + 2 + i), scale));
    }
  }

  Model& m_;
  const Shape& s_;
  SharedWork* work_;
  const int thread_;
  SegmentAttention<C> segment_;
  const int width_;  // length of a row: maximum, sum of weights, weighted sum of values
  const Pass& p_;
  std::vector<float> merged_, part_;
};

}  // namespace specinfer

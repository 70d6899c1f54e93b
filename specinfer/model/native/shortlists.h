// The best of many logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numbers.h"

namespace specinfer {

// The most probable tokens of rows of logits, best first.
class Shortlists {
 public:
  void reset(int rows, int width) {
    width_ = width;
    value_.resize(size_t(rows) * width), index_.resize(size_t(rows) * width), sum_.resize(rows);
  }
  const float* values(int row) const { return &value_[size_t(row) * width_]; }
  const int32_t* indices(int row) const { return &index_[size_t(row) * width_]; }
  // Normaliser of exp((logit - best) / temperature) over the whole row.
  float sum(int row) const { return sum_[row]; }

  void fill(int row, const float* logits, int n, float temperature) {
    float* value = &value_[size_t(row) * width_];
    int32_t* index = &index_[size_t(row) * width_];
    int held = 0;
    float least = -INFINITY;
    for (int i = 0; i < n; i += LANES) {
      const Floats x = load_first(logits + i, n - i, spread(-INFINITY));
      unsigned better = held < width_ ? first_lanes(n - i) : above(x, spread(least));
      for (; better; better &= better - 1) {
        const int at = i + __builtin_ctz(better);
        if (held == width_ && logits[at] <= least) continue;
        held = insert(value, index, held, logits[at], at);
        if (held == width_) least = value[held - 1];
      }
    }
    const Floats peak = spread(value[0]), factor = spread(1.0f / temperature);
    Floats total = zeros();
    for (int i = 0; i < n; i += LANES) {
      const Floats x = load_first(logits + i, n - i, peak);
      total = add(total, keep_first(vexp(mul(sub(x, peak), factor)), n - i));
    }
    sum_[row] = specinfer::sum(total);
  }

 private:
  // Equal values keep the order in which they came.
  int insert(float* value, int32_t* index, int held, float x, int at) const {
    int place = std::min(held, width_ - 1);
    for (; place > 0 && value[place - 1] < x; --place) value[place] = value[place - 1], index[place] = index[place - 1];
    value[place] = x, index[place] = at;
    return std::min(held + 1, width_);
  }

  int width_ = 0;
  std::vector<float> value_, sum_;
  std::vector<int32_t> index_;
};

}  // namespace specinfer

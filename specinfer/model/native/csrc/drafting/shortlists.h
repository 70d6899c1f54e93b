// Finds the best of many logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sampling/gumbel.h"
#include "simd/numbers.h"

namespace specinfer {

// The noise of a position.
struct Noise {
  uint64_t key;
  float temperature, floor;  // temperature of the distribution; minimum logit that min-p keeps
  float score_temperature;
  int rivals;                // number of tokens in the softmax of a score
};

// The best tokens of rows of logits, best first: the most probable, or the first by noise.
class Shortlists {
 public:
  void reset(int rows, int width) {
    width_ = width;
    value_.resize(size_t(rows) * width), index_.resize(size_t(rows) * width), sum_.resize(rows);
  }
  int width() const { return width_; }
  const float* values(int row) const { return &value_[size_t(row) * width_]; }
  const int32_t* indices(int row) const { return &index_[size_t(row) * width_]; }
  // Returns the sum of exp((value - best) / temperature), over the whole row or the rivals.
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

  // Values are log weight + noise of the target's tokens; a list with too few tokens ends with -infinity.
  void fill_noisy(int row, const float* logits, int n, const int32_t* tokens, const Noise& noise) {
    float* value = &value_[size_t(row) * width_];
    int32_t* index = &index_[size_t(row) * width_];
    Floats top = spread(-INFINITY);
    for (int i = 0; i < n; i += LANES) top = most(load_first(logits + i, n - i, top), top);
    const Floats peak = spread(largest(top)), factor = spread(1.0f / noise.temperature);
    int held = 0;
    double latest = INFINITY;  // E / weight of the list's last token, once the list is full
    for (int i = 0; i < n; i += LANES) {
      float weight[LANES], bounds[LANES];
      const Floats weights = vexp(mul(sub(load_first(logits + i, n - i, peak), peak), factor));
      store(weight, weights), store(bounds, mul(weights, spread(float(latest) * (1 + 1e-6f))));
      const auto state = [&](uint32_t j) { return split_mix_state(noise.key, uint32_t(tokens[i + j])); };
      const int count = std::min(LANES, n - i);
      if (count == LANES && !may_be_below<LANES>(state, bounds)) continue;
      for (int j = 0; j < count; ++j) {
        if (logits[i + j] < noise.floor || !(weight[j] > 0)) continue;
        const double time = exponential(split_mix(noise.key, tokens[i + j])) / weight[j];
        if (time >= latest) continue;
        held = insert(value, index, held, float(-std::log(time)), i + j);
        if (held == width_) latest = std::exp(-double(value[held - 1]));
      }
    }
    std::fill(value + held, value + width_, -INFINITY);
    std::fill(index + held, index + width_, 0);
    sum_[row] = 0;
    for (int c = 0; c < std::min(noise.rivals, held); ++c) sum_[row] += std::exp((value[c] - value[0]) / noise.score_temperature);
  }

 private:
  // Inserts a value after equal ones.
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

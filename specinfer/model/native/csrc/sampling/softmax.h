// The softmax of logits.
#pragma once
#include <cmath>

#include "simd/numbers.h"

namespace specinfer {

// p = softmax(x / temperature) over n numbers, reading the row three times. If x has a NaN or an infinity, all of p is NaN.
inline void softmax(const float* x, int n, float temperature, double* p) {
  Floats top = spread(-INFINITY);
  for (int i = 0; i < n; i += LANES) top = most(load_first(x + i, n - i, top), top);
  const Floats best = spread(largest(top)), factor = spread(LOG2_E / temperature);
  const Floats lowest = spread(-200.0f);  // 2^-200 is 0; x = -infinity gives no NaN
  const auto weight = [&](int i) {
    return vexp2(most(lowest, mul(sub(load_first(x + i, n - i, best), best), factor)));  // in this order a NaN is kept
  };
  Doubles total = spread(0.0);
  for (int i = 0; i < n; i += LANES) total = add(total, widen(keep_first(weight(i), n - i)));
  const Doubles share = spread(1.0 / sum(total));
  for (int i = 0; i < n; i += LANES) store_first(p + i, mul(widen(weight(i)), share), n - i);
}

}  // namespace specinfer

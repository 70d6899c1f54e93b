// Rotates heads by a Hadamard matrix: products of two heads stay equal, large numbers are spread over all numbers.
#pragma once
#include <cmath>

namespace specinfer {

// Rotates each run of n & -n numbers (the largest power of two that divides n). It is its own inverse.
inline void hadamard(float* x, int n) {
  const int run = n & -n;
  for (int step = 1; step < run; step *= 2)
    for (int i = 0; i < n; i += 2 * step)
      for (int j = i; j < i + step; ++j) {
        const float a = x[j], b = x[j + step];
        x[j] = a + b, x[j + step] = a - b;
      }
  const float scale = 1 / std::sqrt(float(run));
  for (int i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace specinfer

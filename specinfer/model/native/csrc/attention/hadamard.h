// Rotation of a head by a Hadamard matrix: products of two heads stay the same, large numbers are spread over all.
#pragma once
#include <cmath>

namespace specinfer {

// Turns runs of n & -n numbers, the largest power of two in n, each by itself. The inverse is the same.
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

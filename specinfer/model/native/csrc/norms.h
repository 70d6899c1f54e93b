// Norms of hidden states and of heads, and rotary positions.
#pragma once
#include <cmath>
#include <vector>

#include "model.h"
#include "simd/simd.h"

namespace specinfer {

inline void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  Floats squares = zeros();
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Floats v = load(x + i);
    squares = fma(v, v, squares);
  }
  float total = sum(squares);
  for (; i < n; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / n + eps);
  for (i = 0; i + LANES <= n; i += LANES) {
    const Floats v = mul(load(x + i), spread(scale));
    store(out + i, mul(v, load(weight + i)));
  }
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

// Norm by mean and variance, in double precision: few families have it, and it takes a hundredth of their pass.
inline void layer_norm(const float* x, const Norm& norm, int n, float eps, float* out) {
  double total = 0, squares = 0;
  for (int i = 0; i < n; ++i) total += x[i];
  const double mean = total / n;
  for (int i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1.0 / std::sqrt(squares / n + eps);
  for (int i = 0; i < n; ++i) out[i] = float((x[i] - mean) * scale) * norm.weight[i] + norm.bias[i];
}

// Copies x if the norm has no weights.
inline void normalise(const float* x, const Norm& norm, int n, float eps, float* out) {
  if (norm.weight.empty()) return void(std::copy(x, x + n, out));
  if (norm.bias.empty()) return rms_norm(x, norm.weight.data(), n, eps, out);
  layer_norm(x, norm, n, eps, out);
}

// RMS norm of one head of `dim` numbers, in place, if the weights are a head's.
void norm_head(float* x, const std::vector<float>& weight, int dim, float eps) {
  if (weight.size() != size_t(dim)) return;
  float total = 0;
  for (size_t i = 0; i < weight.size(); ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / weight.size() + eps);
  for (size_t i = 0; i < weight.size(); ++i) x[i] *= scale * weight[i];
}

void rotate(float* x, const float* cos, const float* sin, int dim) {
  for (int i = 0; i < dim / 2; ++i) {
    const float a = x[i], b = x[i + dim / 2];
    x[i] = a * cos[i] - b * sin[i];
    x[i + dim / 2] = b * cos[i] + a * sin[i];
  }
}

}  // namespace specinfer

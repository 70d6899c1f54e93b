// Chooses tokens by shared noise; the reference is specinfer/model/sampling/noise.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd/numbers.h"
#include "sampling/randomness.h"

namespace specinfer {

inline double exponential(uint64_t z) { return -std::log((double(z >> 12) + 0.5) * 0x1p-52); }

inline constexpr int CHUNK = 32;  // tokens that are tested together

// Counts the tokens of N that may have noise below `bounds` [N], without a logarithm: E = -log(u) >= 1 - u. The upper halves
// of u's bits suffice, except for their lowest bit, which split_mix would still change. `state(i)`: SplitMix64's state.
template <int N, class State>
int may_be_below(State state, const float* bounds) {
  uint32_t upper[N];
  for (uint32_t i = 0; i < N; ++i) upper[i] = uint32_t(mixed(state(i)) >> 32);
  int count = 0;
  for (int i = 0; i < N; ++i) count += float(int32_t(~upper[i] >> 1)) * (0x1p-31f * (1 - 1e-6f)) <= bounds[i];
  return count;
}

// Returns argmin of E / p over n tokens; -1 if no p is above 0. `bound(start, least, bounds)` quickly writes upper bounds of
// p * least from `start` on to `bounds` [CHUNK]; `p(x)` is the exact number.
template <class Bound, class Number>
int first_to_arrive(int n, uint64_t key, Bound bound, Number p) {
  int best = -1;
  double least = INFINITY;
  for (int start = 0; start < n; start += CHUNK) {
    float bounds[CHUNK] = {};
    bound(start, least, bounds);
    const uint64_t state = split_mix_state(key, start);
    if (!may_be_below<CHUNK>([&](uint32_t i) { return state + i * GOLDEN; }, bounds) && best >= 0) continue;
    for (int x = start; x < std::min(start + CHUNK, n); ++x) {
      const double share = p(x);
      if (!(share > 0)) continue;
      const double time = exponential(split_mix(key, x)) / share;
      if (time < least) least = time, best = x;
    }
  }
  return best;
}

inline int choose(const double* p, int n, uint64_t key) {
  const auto bound = [&](int start, double least, float* bounds) {
    for (int i = 0; i < std::min(CHUNK, n - start); ++i) bounds[i] = float(p[start + i] * least) * (1 + 1e-6f);
  };
  return first_to_arrive(n, key, bound, [&](int x) { return p[x]; });
}

// Returns a number from 2^x to 1.07 * 2^x: chords from n - 1/2 to n + 1/2.
inline Floats above_exp2(Floats x) {
  x = exponents(x);
  const Floats n = nearest(x);
  return scale_by_power(fma(sub(x, n), spread(0.70710678f), spread(1.0608f)), n);
}

// Returns argmin of E / p for p = softmax(logits / temperature), without storing p; -1 if a logit is NaN or +infinity, or all
// are -infinity.
inline int choose_by_logits(const float* logits, int n, float temperature, uint64_t key) {
  const Floats lowest = spread(-3e38f);
  Floats top = spread(-INFINITY), strange = zeros();
  for (int i = 0; i < n; i += LANES) {
    const Floats x = most(lowest, load_first(logits + i, n - i, lowest));  // in this order a NaN is kept
    top = most(x, top);
    strange = fma(x, zeros(), strange);
  }
  if (sum(strange) != 0) return -1;
  const float best = largest(top);
  const Floats factor = spread(LOG2_E / temperature);
  double known = 1;
  Floats offset = zeros();  // logarithm of `least`
  const auto bound = [&](int start, double least, float* bounds) {
    if (least != known) known = least, offset = spread(float(std::log2(least)));
    for (int i = 0; i < CHUNK && start + i < n; i += LANES) {
      const Floats behind = sub(load_first(logits + start + i, n - start - i, lowest), spread(best));
      store(bounds + i, above_exp2(fma(behind, factor, offset)));
    }
  };
  return first_to_arrive(n, key, bound, [&](int x) { return std::exp((double(logits[x]) - best) / temperature); });
}

}  // namespace specinfer

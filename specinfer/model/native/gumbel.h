// Choosing tokens by shared noise: the reference is specinfer/model/gumbel.py.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "randomness.h"

namespace specinfer {

// Whether a token's noise may be as small as `most`, told without a logarithm: E = -log(u) >= 1 - u. Loops of this
// become vectors; the logarithm is taken for the few that may win.
inline bool may_be_below(uint64_t z, double most) {
  const uint64_t bits = (z >> 12) | 0x3FF0000000000000ull;
  double above;  // 1 + u, but for half of the last bit
  std::memcpy(&above, &bits, 8);
  return 2.0 - above - 0x1p-52 <= most;
}

inline double exponential(uint64_t z) { return -std::log((double(z >> 12) + 0.5) * 0x1p-52); }

// argmin of E / p over n tokens, or -1 if no p is above 0.
inline int choose(const double* p, int n, uint64_t key) {
  constexpr int BLOCK_OF = 32;
  int best = -1;
  double least = INFINITY;
  for (int start = 0; start < n; start += BLOCK_OF) {
    const int end = start + BLOCK_OF < n ? start + BLOCK_OF : n;
    int candidates = 0;
    for (int x = start; x < end; ++x) candidates += may_be_below(split_mix(key, x), p[x] * least);
    if (!candidates && best >= 0) continue;
    for (int x = start; x < end; ++x) {
      if (!(p[x] > 0)) continue;
      const double time = exponential(split_mix(key, x)) / p[x];
      if (time < least) least = time, best = x;
    }
  }
  return best;
}

}  // namespace specinfer

// Draws children of tree nodes; the reference is specinfer/model/sampling/drawing.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "bindings.h"
#include "sampling/randomness.h"

namespace specinfer {

// The children of one node, drawn in turn from q.
struct Drawing {
  int node;
  std::vector<int32_t> ids;
  std::vector<float> q;
  Philox random;
  int drawn = 0;
  std::vector<double> left;  // probabilities of tokens that can still be drawn
  // Expected acceptance of the next draw: class Draws of specinfer/tree/draws.py.
  double sum = 0, squares = 0, alive = 1, chance = 0;

  Drawing(int of, std::vector<int32_t> tokens, std::vector<float> p, const Philox& stream, const double* agreement)
      : node(of), ids(std::move(tokens)), q(std::move(p)), random(stream), left(q.begin(), q.end()), agreement_(agreement) {
    for (const double x : left) sum += x, squares += x * x;
    chance = acceptance();
  }
  // Draws a child; returns its index in q.
  int draw(bool replace) {
    const int i = pick(random.next() * std::accumulate(left.begin(), left.end(), 0.0));
    alive -= chance, ++drawn;
    if (!replace) sum -= left[i], squares -= left[i] * left[i], left[i] = 0;
    const bool over = !replace && drawn == int(q.size());
    chance = over ? 0 : std::min(chance, alive * acceptance());
    return i;
  }

 private:
  const double* agreement_;  // [PLACES]

  double acceptance() const {
    if (sum <= 0) return 0;
    return agreement_[std::min(drawn, PLACES - 1)] * std::min(std::sqrt(std::max(squares, 0.0)) / sum, 1.0);
  }
  int pick(double at) const {
    double before = 0;
    int last = 0;
    for (int i = 0; i < int(left.size()); ++i) {
      if (left[i] > 0) last = i;
      if ((before += left[i]) > at) return i;
    }
    return last;  // only after rounding
  }
};

// One draw: its drawing, its node, and the path probability before its token was known.
struct Draw {
  int drawing, node;
  double path_probability;
};

}  // namespace specinfer

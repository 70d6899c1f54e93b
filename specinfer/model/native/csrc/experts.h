// A layer's experts, and the rows of a pass that each expert computes.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "bindings.h"
#include "products/matrix.h"

namespace specinfer {

struct Expert {
  Matrix gate, up, down;
};

// A layer's mixture; a dense layer has no experts. The shared expert is the layer's own MLP.
struct Experts {
  ExpertShape shape{};
  Matrix router;  // in float32, one row per expert, and one for the shared expert's gate, if any
  std::vector<Expert> each;
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, columns]; empty: none

  bool any() const { return shape.count > 0; }
  // slot: MatrixSlot::EXPERTS + 3 * expert + 0 (gate), 1 (up), 2 (down)
  Matrix& matrix(int slot) {
    Expert& expert = each[(slot - EXPERTS) / 3];
    Matrix* all[] = {&expert.gate, &expert.up, &expert.down};
    return *all[(slot - EXPERTS) % 3];
  }
  // Returns an expert's biases from a column on; null: none.
  static const float* bias(const std::vector<float>& all, int expert, int columns, int col) {
    return all.empty() ? nullptr : &all[size_t(expert) * columns + col];
  }
  // Returns the ways to prepare the inputs of gate and up.
  int inputs() const { return each[0].gate.input | each[0].up.input; }
};

// Buffers of a pass. A route is a row and one of its experts.
struct Routes {
  std::vector<float> scores;    // [rows, columns of the router]
  std::vector<int32_t> expert;  // [rows, used]
  std::vector<float> weight;    // [rows, used]
  std::vector<float> shared;    // [rows] weight of the shared expert
  std::vector<float> gathered;  // [routes, hidden] inputs, by expert
  std::vector<float> inner;     // [routes, inter] in the same order
};

// Chooses a row's experts with the highest scores (of equal ones the first) and their weights: the softmax over all scores,
// or over the chosen ones, which equals the former divided by its sum over the chosen experts.
inline void choose_experts(const float* scores, const ExpertShape& shape, int32_t* chosen, float* weights) {
  std::vector<char> taken(shape.count, 0);
  for (int i = 0; i < shape.used; ++i) {
    int best = -1;
    for (int e = 0; e < shape.count; ++e)
      if (!taken[e] && (best < 0 || scores[e] > scores[best])) best = e;
    taken[best] = 1, chosen[i] = best, weights[i] = std::exp(scores[best] - scores[chosen[0]]);
  }
  float total = 0;
  if (shape.renormalised)
    for (int i = 0; i < shape.used; ++i) total += weights[i];
  else
    for (int e = 0; e < shape.count; ++e) total += std::exp(scores[e] - scores[chosen[0]]);
  for (int i = 0; i < shape.used; ++i) weights[i] /= total;
}

// Routes of a pass ordered by expert, then by row.
class RoutesByExpert {
 public:
  struct Group {
    int expert, first, rows;  // first: place in `order`
  };
  std::vector<Group> groups;  // of experts with rows
  std::vector<int32_t> order;  // routes

  void make(const int32_t* expert, int routes, int experts) {
    starts_.assign(experts + 1, 0), order.resize(routes), groups.clear();
    for (int i = 0; i < routes; ++i) ++starts_[expert[i] + 1];
    for (int e = 0; e < experts; ++e) {
      if (starts_[e + 1]) groups.push_back({e, starts_[e], starts_[e + 1]});
      starts_[e + 1] += starts_[e];
    }
    for (int i = 0; i < routes; ++i) order[starts_[expert[i]]++] = i;
  }

 private:
  std::vector<int> starts_;
};

}  // namespace specinfer

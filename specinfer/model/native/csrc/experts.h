// Experts of a layer, and which rows of a pass each of them reads.
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

// The mixture of a layer; of a dense one it has no experts. A shared expert is the layer's own MLP.
struct Experts {
  ExpertShape shape{};
  Matrix router;  // in float32, one row for each expert; then one for the gate of the shared expert, if that has one
  std::vector<Expert> each;
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, columns], or none

  bool any() const { return shape.count > 0; }
  // slot: from MatrixSlot::EXPERTS on, three for each expert
  Matrix& matrix(int slot) {
    Expert& expert = each[(slot - EXPERTS) / 3];
    Matrix* all[] = {&expert.gate, &expert.up, &expert.down};
    return *all[(slot - EXPERTS) % 3];
  }
  // Biases of an expert from a column on; null: none.
  static const float* bias(const std::vector<float>& all, int expert, int columns, int col) {
    return all.empty() ? nullptr : &all[size_t(expert) * columns + col];
  }
  // Ways to prepare the rows that gate and up read.
  int inputs() const { return each[0].gate.input | each[0].up.input; }
};

// Buffers of a pass: what rows were routed to. A route is a row and one of its experts.
struct Routes {
  std::vector<float> scores;    // [rows, columns of the router]
  std::vector<int32_t> expert;  // [rows, used]
  std::vector<float> weight;    // [rows, used]
  std::vector<float> shared;    // [rows], weight of the shared expert
  std::vector<float> gathered;  // [routes, hidden], by expert
  std::vector<float> inner;     // [routes, inter], in the same order
};

// Chooses the experts of a row with the highest scores, the first of equal ones, and their weights: the softmax of all
// scores, or of the chosen ones. That is the same as the softmax of all, divided by its sum over the chosen ones.
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

// Routes of a pass in the order of experts, and of rows for each expert.
class RoutesByExpert {
 public:
  struct Group {
    int expert, first, rows;  // first: place in the order
  };
  std::vector<Group> groups;  // of experts that have rows
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

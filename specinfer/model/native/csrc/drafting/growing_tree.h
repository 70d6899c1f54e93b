// A token tree while a draft model grows it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "bindings.h"
#include "drafting/drawing.h"

namespace specinfer {

inline double nth_best(std::vector<double> values, int n) {
  if (int(values.size()) < n) return 0;
  std::nth_element(values.begin(), values.begin() + n - 1, values.end(), std::greater<>());
  return values[n - 1];
}

// One tree under construction; node 0 is the root.
struct GrowingTree {
  const GrowthJob* job;
  int index;                 // number of the job
  const int32_t* blocks;     // the job's block table
  std::vector<int> token{0}, parent{-1}, depth{0}, scored{-1}, frontier{0};  // scored: tentative entry in the cache, -1: none
  std::vector<float> score{1};
  std::vector<double> path_probability{1};  // estimated probability that the path is accepted
  std::vector<Drawing> drawings;
  std::vector<Draw> draws;
  std::vector<float> outs;   // EAGLE: layer's outputs [hidden] of the last context row and of tentative nodes
  int tentative = 0;

  int add(int from, int token_id, double p) {
    token.push_back(token_id), parent.push_back(from), depth.push_back(depth[from] + 1), scored.push_back(-1);
    score.push_back(float(p)), path_probability.push_back(path_probability[from] * p);
    return int(token.size()) - 1;
  }
  int child(int from, int token_id) const {
    for (int node = from + 1; node <= size(); ++node)
      if (parent[node] == from && token[node] == token_id) return node;
    return -1;
  }
  int size() const { return int(token.size()) - 1; }
  bool full() const { return size() >= job->nodes; }
  // Minimum path probability for a place in the tree; 0 until it is full.
  double bar() const { return nth_best({path_probability.begin() + 1, path_probability.end()}, job->nodes); }
  double next_path_probability(int drawing) const { return path_probability[drawings[drawing].node] * drawings[drawing].chance; }
};

}  // namespace specinfer

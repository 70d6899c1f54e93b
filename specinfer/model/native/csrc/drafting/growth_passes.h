// Builds the passes of a draft model that grows trees.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bindings.h"
#include "drafting/growing_tree.h"

namespace specinfer {

// The passes of a growth: new context of all requests, then the frontiers of all trees, level by level.
class GrowthPasses {
 public:
  // `hidden`: size of the EAGLE layer's outputs, which its nodes read; 0: nodes read tokens only
  GrowthPasses(const Growth& g, int hidden) : hidden_(hidden) {
    pass.keys = g.keys, pass.values = g.values, pass.cache_blocks = g.cache_blocks, pass.threads = g.threads;
  }

  void context(const Growth& g, const std::vector<GrowingTree>& trees) {
    clear();
    pass.states = g.states;
    const int32_t* tokens = g.token_ids;
    for (const GrowingTree& t : trees) {
      const GrowthJob& j = *t.job;
      for (int i = 0; i < j.delta; ++i) {
        push(*tokens++, j.held + i + j.shift, slot(t, j.held + i), j.held + i + 1);
        extra_start_.push_back(int(extra_.size()));
      }
      close(t);
      if (j.nodes && j.depth) logit_rows_.push_back(int(token_ids_.size()) - 1);
    }
    seal();
  }

  void frontiers(std::vector<GrowingTree*>& trees) {
    clear();
    pass.states = nullptr;
    for (GrowingTree* t : trees) {
      const int base = t->job->held + t->job->delta;
      for (int node : t->frontier) {
        t->scored[node] = t->tentative++;
        push(t->token[node], base - 1 + t->depth[node] + t->job->shift, slot(*t, base + t->scored[node]), base);
        const size_t first = extra_.size();
        for (int u = node; u > 0; u = t->parent[u]) extra_.push_back(base + t->scored[u]);
        std::reverse(extra_.begin() + first, extra_.end());
        extra_start_.push_back(int(extra_.size()));
        logit_rows_.push_back(int(token_ids_.size()) - 1);
        const auto out = t->outs.begin() + (t->scored[t->parent[node]] + 1) * hidden_;
        outs_.insert(outs_.end(), out, out + hidden_);
      }
      close(*t);
    }
    seal();
  }

  // Keeps the layer's outputs x [tokens, hidden] of the rows with logits, the frontiers of these trees in order.
  void keep_outs(const std::vector<GrowingTree*>& trees, const float* x) const {
    const int32_t* row = pass.logit_rows;
    for (GrowingTree* t : trees)
      for (size_t i = 0; i < t->frontier.size(); ++i, ++row)
        t->outs.insert(t->outs.end(), x + *row * hidden_, x + (*row + 1) * hidden_);
  }

  Pass pass{};

 private:
  static int slot(const GrowingTree& t, int position) { return t.blocks[position / BLOCK] * BLOCK + position % BLOCK; }

  void clear() {
    for (auto* v : {&token_ids_, &positions_, &slots_, &visible_, &extra_, &blocks_, &logit_rows_}) v->clear();
    for (auto* v : {&extra_start_, &row_start_, &block_start_}) v->assign(1, 0);
    outs_.clear();
  }
  void push(int token, int position, int slot, int visible) {
    token_ids_.push_back(token), positions_.push_back(position), slots_.push_back(slot), visible_.push_back(visible);
  }
  void close(const GrowingTree& t) {
    row_start_.push_back(int(token_ids_.size()));
    blocks_.insert(blocks_.end(), t.blocks, t.blocks + t.job->blocks);
    block_start_.push_back(int(blocks_.size()));
  }
  void seal() {
    pass.tokens = int(token_ids_.size()), pass.sequences = int(row_start_.size()) - 1, pass.logits = int(logit_rows_.size());
    pass.token_ids = token_ids_.data(), pass.positions = positions_.data(), pass.write_slots = slots_.data();
    pass.visible = visible_.data(), pass.extra_start = extra_start_.data(), pass.extra = extra_.data();
    pass.row_start = row_start_.data(), pass.block_start = block_start_.data(), pass.blocks = blocks_.data();
    pass.logit_rows = logit_rows_.data(), pass.hidden = outs_.data();
  }

  const size_t hidden_;

  std::vector<int32_t> token_ids_, positions_, slots_, visible_, extra_start_, extra_;
  std::vector<int32_t> row_start_, block_start_, blocks_, logit_rows_;
  std::vector<float> outs_;
};

}  // namespace specinfer

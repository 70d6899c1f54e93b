// Grows token trees with a draft model: all drafts of a batch in one call.
//
// A draft is five passes of a fifth of a millisecond each; Python took longer than that between them. Here one parallel
// region reads the new context, then alternates between expanding all trees' frontiers and scoring the new frontiers, until
// all trees have their depth.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "bindings.h"
#include "drafting/growing_tree.h"
#include "drafting/growth_passes.h"
#include "drafting/growth_rules.h"
#include "drafting/shortlists.h"
#include "forward.h"

namespace specinfer {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

template <class C>
void grow(Model& m, Growth& g) {
  const int vocabulary = m.shape.vocab;
  std::vector<GrowingTree> trees;
  const int32_t* blocks = g.blocks;
  for (int i = 0; i < g.jobs; ++i) {
    trees.push_back({&g.job[i], i, blocks});
    blocks += g.job[i].blocks;
  }
  std::vector<float> logits;
  GrowthPasses passes(g, m.shape.states ? m.shape.hidden : 0);
  Shortlists lists;
  Rules rules(g, lists);
  std::vector<GrowingTree*> active;  // in the order of the next logits' rows
  int depth = 0;
  Clock::time_point first;  // end of the first pass
  g.levels_run = 0, g.level_seconds = 0;
  // One thread calls it while the others wait.
  const auto start_pass = [&] {
    if (depth == 0) passes.context(g, trees);
    else passes.frontiers(active);
    prepare<C>(m, passes.pass);
    logits.resize(size_t(passes.pass.logits) * vocabulary);
    passes.pass.logits_out = logits.data();
    passes.pass.end_layer = m.shape.layers;
    lists.reset(passes.pass.logits, rules.listed(active, vocabulary));
  };
  const auto end_pass = [&] {
    passes.keep_outs(active, m.x.data());
    int row = 0;
    for (GrowingTree* t : active) {
      const int width = int(t->frontier.size());
      rules.expand(*t, row, vocabulary, depth);
      row += width;
    }
    const Clock::time_point now = Clock::now();
    if (depth++) g.levels_run = depth - 1, g.level_seconds = seconds(now - first);
    else first = now;
    std::erase_if(active, [&](GrowingTree* t) { return t->frontier.empty() || depth >= t->job->depth; });
    if (!rules.level_pays(active)) std::erase_if(active, [&](GrowingTree* t) { return rules.may_end(*t); });
  };
  for (GrowingTree& t : trees)
    if (t.job->nodes && t.job->depth) active.push_back(&t);
  start_pass();
  bool done = false;
  Barrier barrier(g.threads);
  in_parallel<C>(m, passes.pass, barrier, g.threads, [&](Worker<C>& worker, int thread) {
    while (!done) {
      worker.run();
      barrier.wait();
      std::vector<const GrowthJob*> job;
      for (const GrowingTree* t : active) job.insert(job.end(), t->frontier.size(), t->job);
      const Range r = share(passes.pass.logits, thread, g.threads);
      for (int i = r.begin; i < r.end; ++i) rules.list(*job[i], i, &logits[size_t(i) * vocabulary], vocabulary, depth);
      barrier.wait();
      if (thread == 0) {
        end_pass();
        done = active.empty();
        if (!done) start_pass();
      }
      barrier.wait();
    }
  });
  for (const GrowingTree& t : trees) rules.finish(t);
}

}  // namespace specinfer

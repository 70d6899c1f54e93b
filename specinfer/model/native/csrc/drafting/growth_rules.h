// Rules of growth: nodes to expand, their children, and the final tree. The reference is
// specinfer/model/drafting/expansion.py; both must give equal trees.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "bindings.h"
#include "drafting/growing_tree.h"
#include "drafting/shortlists.h"

namespace specinfer {

// The rules for a batch. Only one thread at a time may call methods, except `list` for different rows.
class Rules {
 public:
  Rules(const Growth& g, Shortlists& lists) : g_(g), lists_(lists) {}

  int width(const GrowthJob& j, int vocabulary, int depth) const {
    int w = std::min(j.nodes, vocabulary);
    if (g_.levels) w = depth < g_.levels ? std::min(w, g_.widths[depth]) : 0;
    return j.width ? std::min(w, j.width) : w;
  }

  // Adds children to the frontier, whose candidates are the lists from `row` on; chooses the new frontier.
  void expand(GrowingTree& t, int row, int vocabulary, int depth) {
    std::vector<int> added = t.job->draws ? sampled(t, row, width(*t.job, vocabulary, depth))
                                          : best(t, row, width(*t.job, vocabulary, depth));
    if (!g_.levels) {
      // a child is no more probable than its parent: children of nodes below the bar cannot be kept
      const double bar = t.bar(), least = t.job->least_reach;
      std::erase_if(added, [&](int node) { return t.path_probability[node] <= bar || t.path_probability[node] < least; });
      std::stable_sort(added.begin(), added.end(), [&](int a, int b) { return t.path_probability[a] > t.path_probability[b]; });
      if (int(added.size()) > g_.beam) added.resize(g_.beam);
    }
    t.frontier = added;
  }

  // Returns whether another level is worth its time: a node adds one expected token if its path and its best child are
  // accepted.
  bool level_pays(const std::vector<GrowingTree*>& active) const {
    double sum = 0;
    for (const GrowingTree* t : active)
      if (may_end(*t))
        for (int node : t->frontier) sum += t->path_probability[node];
    return sum >= g_.least_level;
  }

  // Only best-first trees of points may end early: draws must not depend on tokens of other trees.
  bool may_end(const GrowingTree& t) const { return !g_.levels && !t.job->draws && !t.job->width; }

  // Returns the length of the candidate lists: enough for the trees' nodes, the softmax of scores and the support of draws.
  int listed(const std::vector<GrowingTree*>& active, int vocabulary) const {
    int most = g_.most;
    for (const GrowingTree* t : active) {
      if (t->job->draws || cuts(*t->job)) most = std::max(most, g_.support);
      if (!t->job->greedy) most = std::max(most, g_.rivals);
    }
    return std::min(most, vocabulary);
  }

  // Lists the candidates below one node of a level.
  void list(const GrowthJob& j, int row, const float* logits, int vocabulary, int depth) const {
    if (j.greedy || j.draws) return lists_.fill(row, logits, vocabulary, j.draws ? j.temperature : j.score_temperature);
    float floor = -INFINITY;
    if (cuts(j)) {
      lists_.fill(row, logits, vocabulary, j.temperature);
      floor = lists_.values(row)[kept(j, row) - 1];
    }
    const uint64_t key = noise_key(j.seed, uint64_t(j.last) + depth);
    lists_.fill_noisy(row, logits, vocabulary, g_.vocabulary, {key, j.temperature, floor, j.score_temperature, g_.rivals});
  }

  // Writes a finished tree, cut to its most probable nodes.
  void finish(const GrowingTree& t) const {
    std::vector<int> rank(t.draws.size(), -1);
    const std::vector<int> kept = t.job->draws ? likeliest_draws(t, rank) : likeliest(t);
    const size_t at = size_t(t.index) * (g_.most + 1);
    std::vector<int> place(t.token.size(), 0);
    g_.count[t.index] = int(kept.size()) + 1, g_.parents[at] = -1, g_.scores[at] = 1;
    for (int i = 0; i < int(kept.size()); ++i) {
      const int node = kept[i];
      place[node] = i + 1;
      g_.tokens[at + i + 1] = t.token[node], g_.parents[at + i + 1] = place[t.parent[node]];
      g_.scores[at + i + 1] = t.score[node];
    }
    if (t.job->draws) propose(t, rank, place);
  }

 private:
  std::vector<int> best(GrowingTree& t, int row, int width) const {
    std::vector<int> added;
    if (width == 0) return added;
    const int rows = int(t.frontier.size()), nodes = t.job->nodes;
    std::vector<float> p(size_t(rows) * width);
    std::vector<double> path_probability(p.size());
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width; ++c) {
        const float below = lists_.values(row + r)[c] - lists_.values(row + r)[0];
        p[r * width + c] = std::exp(below / t.job->score_temperature) / lists_.sum(row + r);
        path_probability[r * width + c] = t.path_probability[t.frontier[r]] * p[r * width + c];
      }
    // only the level's best `nodes` candidates can be among the tree's best
    const double least = g_.levels ? 0 : nth_best(path_probability, nodes);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width && path_probability[r * width + c] >= least && path_probability[r * width + c] > 0; ++c)
        added.push_back(t.add(t.frontier[r], g_.vocabulary[lists_.indices(row + r)[c]], p[r * width + c]));
    return added;
  }

  // Draws children of the frontier, by expansion vector or best first.
  std::vector<int> sampled(GrowingTree& t, int row, int most) const {
    const int before = t.size(), first = int(t.drawings.size());
    for (size_t r = 0; r < t.frontier.size(); ++r) {
      const uint64_t stream = (uint64_t(t.job->last) << 32) | (uint64_t(t.drawings.size()) << 1) | 1;
      auto [ids, q] = distribution(*t.job, row + int(r));
      t.drawings.emplace_back(t.frontier[r], std::move(ids), std::move(q), Philox(t.job->seed, stream), g_.agreement);
    }
    if (g_.levels) draw_all(t, first, most);
    else draw_likeliest(t, first, most);
    std::vector<int> added(t.size() - before);
    std::iota(added.begin(), added.end(), before + 1);
    return added;
  }

  void draw_all(GrowingTree& t, int first, int count) const {
    for (int d = first; d < int(t.drawings.size()); ++d)
      while (t.drawings[d].drawn < count && t.drawings[d].chance > 0 && !t.full()) draw(t, d);
  }

  void draw_likeliest(GrowingTree& t, int first, int most) const {
    for (;;) {
      int best = -1;
      for (int d = first; d < int(t.drawings.size()); ++d) {
        if (t.drawings[d].drawn >= most || t.drawings[d].chance <= 0) continue;
        if (best < 0 || t.next_path_probability(d) > t.next_path_probability(best)) best = d;
      }
      if (best < 0 || (t.full() && t.next_path_probability(best) <= t.bar())) return;
      draw(t, best);
    }
  }

  // Draws a child; a repeated token is the same node.
  void draw(GrowingTree& t, int d) const {
    Drawing& drawing = t.drawings[d];
    const double path_probability = t.next_path_probability(d), chance = drawing.chance;
    const int token = drawing.ids[drawing.draw(g_.replace)];
    int node = g_.replace ? t.child(drawing.node, token) : -1;
    if (node < 0) node = t.add(drawing.node, token, chance);
    t.draws.push_back({d, node, path_probability});
  }

  static std::vector<int> likeliest(const GrowingTree& t) {
    std::vector<int> kept(t.size());
    std::iota(kept.begin(), kept.end(), 1);
    if (t.size() > t.job->nodes) {
      std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return t.path_probability[a] > t.path_probability[b]; });
      kept.resize(t.job->nodes);
      std::sort(kept.begin(), kept.end());
    }
    return kept;
  }

  // Returns the nodes of the first draws within the budget, by rank or, with an expansion vector, by draw order; `rank` gets
  // each draw's rank, -1 if it is left out. (The tree ends with the budget even if the next draw repeats a node: any other
  // rule would depend on its token.)
  std::vector<int> likeliest_draws(const GrowingTree& t, std::vector<int>& rank) const {
    std::vector<int> order(t.draws.size()), kept;
    std::iota(order.begin(), order.end(), 0);
    if (!g_.levels)
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return t.draws[a].path_probability > t.draws[b].path_probability;
      });
    for (size_t i = 0; i < order.size() && int(kept.size()) < t.job->nodes; ++i) {
      rank[order[i]] = int(i);
      const int node = t.draws[order[i]].node;
      if (std::find(kept.begin(), kept.end(), node) == kept.end()) kept.push_back(node);
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }

  // Writes the drawings with kept draws.
  void propose(const GrowingTree& t, const std::vector<int>& rank, const std::vector<int>& place) const {
    int proposals = 0;
    for (int d = 0; d < int(t.drawings.size()); ++d) {
      const Drawing& drawing = t.drawings[d];
      const size_t at = size_t(t.index) * g_.most + proposals;
      int count = 0;
      for (size_t i = 0; i < t.draws.size(); ++i)
        if (rank[i] >= 0 && t.draws[i].drawing == d) {
          g_.ranks[at * g_.most + count] = rank[i];
          g_.draws[at * g_.most + count++] = place[t.draws[i].node];
        }
      if (count == 0) continue;
      g_.proposal_parent[at] = place[drawing.node], g_.draw_count[at] = count, g_.q_count[at] = int(drawing.q.size());
      std::copy(drawing.ids.begin(), drawing.ids.end(), g_.q_ids + at * g_.support);
      std::copy(drawing.q.begin(), drawing.q.end(), g_.q + at * g_.support);
      ++proposals;
    }
    g_.proposals[t.index] = proposals;
  }

  static bool cuts(const GrowthJob& j) { return j.top_k || j.top_p < 1; }

  // Returns the number of tokens that temperature, top-k, top-p and the support leave. (A top-k above the support does not
  // limit the sum for top-p: that changes drafts, not outputs.)
  int kept(const GrowthJob& j, int row) const {
    const float* value = lists_.values(row);
    int n = std::min(g_.support, lists_.width());
    if (j.top_k) n = std::min(n, j.top_k);
    const auto weight = [&](int i) { return std::exp((value[i] - value[0]) / j.temperature); };
    float whole = lists_.sum(row), before = 0;
    if (j.top_k && j.top_k <= g_.support) {  // top-p counts the tokens that top-k leaves
      whole = 0;
      for (int i = 0; i < n; ++i) whole += weight(i);
    }
    for (int i = 0; i < n; ++i) {
      if (weight(i) <= 0 || (j.top_p < 1 && before >= j.top_p * whole)) return i;
      before += weight(i);
    }
    return n;
  }

  // Returns q: the remaining tokens, renormalised before any draw; the caller gets the same q.
  std::pair<std::vector<int32_t>, std::vector<float>> distribution(const GrowthJob& j, int row) const {
    const int n = kept(j, row);
    std::vector<int32_t> ids(n);
    std::vector<float> q(n);
    float whole = 0;
    for (int i = 0; i < n; ++i) whole += q[i] = std::exp((lists_.values(row)[i] - lists_.values(row)[0]) / j.temperature);
    for (int i = 0; i < n; ++i) ids[i] = g_.vocabulary[lists_.indices(row)[i]], q[i] /= whole;
    return {ids, q};
  }

  const Growth& g_;
  Shortlists& lists_;
};

}  // namespace specinfer

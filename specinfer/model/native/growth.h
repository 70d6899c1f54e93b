// Growing token trees with a small model: the whole draft of a batch in one call.
//
// Why: a draft is five passes of a fifth of a millisecond each. Between them Python took longer than the
// passes. Here one parallel region reads the new context and then alternates between expanding every
// tree's frontier and scoring the new one, until all trees have their depth.
//
// The rules are those of specinfer/model/growth.py, which is the reference; this file must give its trees.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "forward.h"
#include "randomness.h"

namespace specinfer {

// One request. Its new context and its block table follow those of the request before.
struct GrowthJob {
  int32_t delta, held, shift, blocks;   // new context tokens, those in the cache, rotary shift, blocks
  int32_t nodes, depth, width;          // limits; width 0: none
  int32_t greedy, top_k, last;          // last: absolute position of the root, keys the random stream
  float temperature, top_p;             // greedy: of the softmax that scores points
  uint64_t seed;
};

struct Growth {
  int jobs, most, beam, support, replace, levels, threads;  // most: largest `nodes`; replace: draws go back
  double least_reach;  // best-first trees go on below paths at least so probable
  const GrowthJob* job;
  const int32_t *token_ids, *blocks, *vocabulary;  // vocabulary: target token of each draft token
  const int32_t* widths;                           // the expansion vector, `levels` long; 0: best-first
  void *keys, *values;
  int64_t cache_blocks;
  // results: nodes in the order of insertion, root first, [jobs][most + 1]
  int32_t *count, *tokens, *parents;
  float* scores;
  // proposals of sampled trees, [jobs][most]: parent, draws [most], q [support]
  int32_t *proposals, *proposal_parent, *draw_count, *draws, *q_count, *q_ids;
  float* q;
};

// The most probable tokens of rows of logits, best first.
class Shortlists {
 public:
  void reset(int rows, int width) {
    width_ = width;
    value_.resize(size_t(rows) * width), index_.resize(size_t(rows) * width), sum_.resize(rows);
  }
  const float* values(int row) const { return &value_[size_t(row) * width_]; }
  const int32_t* indices(int row) const { return &index_[size_t(row) * width_]; }
  // Normaliser of exp((logit - best) / temperature) over the whole row.
  float sum(int row) const { return sum_[row]; }

  void fill(int row, const float* logits, int n, float temperature) {
    float* value = &value_[size_t(row) * width_];
    int32_t* index = &index_[size_t(row) * width_];
    int held = 0;
    float least = -INFINITY;
    for (int i = 0; i < n; i += LANES) {
      const __mmask16 valid = lanes(n - i);
      const __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), valid, logits + i);
      unsigned better = held < width_ ? valid : _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_GT_OQ);
      for (; better; better &= better - 1) {
        const int at = i + __builtin_ctz(better);
        if (held == width_ && logits[at] <= least) continue;
        held = insert(value, index, held, logits[at], at);
        if (held == width_) least = value[held - 1];
      }
    }
    const __m512 peak = _mm512_set1_ps(value[0]), factor = _mm512_set1_ps(1.0f / temperature);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < n; i += LANES) {
      const __mmask16 valid = lanes(n - i);
      const __m512 x = _mm512_maskz_loadu_ps(valid, logits + i);
      sum = _mm512_mask_add_ps(sum, valid, sum, vexp(_mm512_mul_ps(_mm512_sub_ps(x, peak), factor)));
    }
    sum_[row] = _mm512_reduce_add_ps(sum);
  }

 private:
  static __mmask16 lanes(int left) { return left >= LANES ? 0xFFFF : __mmask16((1u << left) - 1); }

  // Equal values keep the order in which they came.
  int insert(float* value, int32_t* index, int held, float x, int at) const {
    int place = std::min(held, width_ - 1);
    for (; place > 0 && value[place - 1] < x; --place) value[place] = value[place - 1], index[place] = index[place - 1];
    value[place] = x, index[place] = at;
    return std::min(held + 1, width_);
  }

  int width_ = 0;
  std::vector<float> value_, sum_;
  std::vector<int32_t> index_;
};

// One tree under construction; node 0 is the root.
struct GrowingTree {
  const GrowthJob* job;
  int index;                 // which job
  const int32_t* blocks;     // its block table
  std::vector<int> token{0}, parent{-1}, depth{0}, scored{-1}, frontier{0};  // scored: tentative entry, -1: none
  std::vector<float> score{1};
  std::vector<double> reach{1};  // the draft's probability of the path
  int tentative = 0, streams = 0, proposals = 0;

  int add(int from, int token_id, float p) {
    token.push_back(token_id), parent.push_back(from), depth.push_back(depth[from] + 1), scored.push_back(-1);
    score.push_back(p), reach.push_back(reach[from] * p);
    return int(token.size()) - 1;
  }
  int size() const { return int(token.size()) - 1; }
};

// Builds the passes of a growth: the new context of all requests, then the frontiers of all trees.
class GrowthPasses {
 public:
  explicit GrowthPasses(const Growth& g) {
    pass.keys = g.keys, pass.values = g.values, pass.cache_blocks = g.cache_blocks, pass.threads = g.threads;
  }

  void context(const Growth& g, const std::vector<GrowingTree>& trees) {
    clear();
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
      }
      close(*t);
    }
    seal();
  }

  Pass pass{};

 private:
  static int slot(const GrowingTree& t, int position) { return t.blocks[position / BLOCK] * BLOCK + position % BLOCK; }

  void clear() {
    for (auto* v : {&token_ids_, &positions_, &slots_, &visible_, &extra_, &blocks_, &logit_rows_}) v->clear();
    for (auto* v : {&extra_start_, &row_start_, &block_start_}) v->assign(1, 0);
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
    pass.logit_rows = logit_rows_.data();
  }

  std::vector<int32_t> token_ids_, positions_, slots_, visible_, extra_start_, extra_;
  std::vector<int32_t> row_start_, block_start_, blocks_, logit_rows_;
};

// The rules of growth for a whole batch; one thread at a time may call its methods.
class Rules {
 public:
  Rules(const Growth& g, const Shortlists& lists) : g_(g), lists_(lists) {}

  int width(const GrowthJob& j, int vocabulary, int depth) const {
    int w = std::min(j.nodes, vocabulary);
    if (g_.levels) w = depth < g_.levels ? std::min(w, g_.widths[depth]) : 0;
    return j.width ? std::min(w, j.width) : w;
  }

  // Gives the frontier children; rows are those of the lists from `row` on. The new frontier follows.
  void expand(GrowingTree& t, int row, int vocabulary, int depth) {
    std::vector<int> added =
        t.job->greedy ? best(t, row, width(*t.job, vocabulary, depth)) : sampled(t, row, vocabulary, depth);
    if (!g_.levels) {
      if (!t.job->width) std::erase_if(added, [&](int node) { return t.reach[node] < g_.least_reach; });
      std::stable_sort(added.begin(), added.end(), [&](int a, int b) { return t.reach[a] > t.reach[b]; });
      if (int(added.size()) > g_.beam) added.resize(g_.beam);
    }
    t.frontier = added;
  }

  // Writes a finished tree; a greedy one is cut to its most probable nodes.
  void finish(const GrowingTree& t) const {
    std::vector<int> kept(t.size());
    std::iota(kept.begin(), kept.end(), 1);
    if (t.size() > t.job->nodes) {
      std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return t.reach[a] > t.reach[b]; });
      kept.resize(t.job->nodes);
      std::sort(kept.begin(), kept.end());
    }
    const size_t at = size_t(t.index) * (g_.most + 1);
    std::vector<int> place(t.token.size(), 0);
    g_.count[t.index] = int(kept.size()) + 1, g_.parents[at] = -1, g_.scores[at] = 1;
    for (int i = 0; i < int(kept.size()); ++i) {
      const int node = kept[i];
      place[node] = i + 1;
      g_.tokens[at + i + 1] = t.token[node], g_.parents[at + i + 1] = place[t.parent[node]];
      g_.scores[at + i + 1] = t.score[node];
    }
    g_.proposals[t.index] = t.proposals;
  }

 private:
  std::vector<int> best(GrowingTree& t, int row, int width) const {
    std::vector<int> added;
    if (width == 0) return added;
    const int rows = int(t.frontier.size()), nodes = t.job->nodes;
    std::vector<float> p(size_t(rows) * width);
    std::vector<double> reach(p.size());
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width; ++c) {
        const float below = lists_.values(row + r)[c] - lists_.values(row + r)[0];
        p[r * width + c] = std::exp(below / t.job->temperature) / lists_.sum(row + r);
        reach[r * width + c] = t.reach[t.frontier[r]] * p[r * width + c];
      }
    // a candidate that is not among the level's `nodes` best cannot be among the tree's
    const double least = g_.levels ? 0 : nth_best(reach, nodes);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width && reach[r * width + c] >= least; ++c)
        added.push_back(t.add(t.frontier[r], g_.vocabulary[lists_.indices(row + r)[c]], p[r * width + c]));
    if (!g_.levels) {
      const double bar = nth_best({t.reach.begin() + 1, t.reach.end()}, nodes);
      std::erase_if(added, [&](int node) { return t.reach[node] < bar; });
    }
    return added;
  }

  static double nth_best(std::vector<double> values, int n) {
    if (int(values.size()) <= n) return 0;
    std::nth_element(values.begin(), values.begin() + n - 1, values.end(), std::greater<>());
    return values[n - 1];
  }

  // How many children a node gets is settled before any of them is drawn.
  std::vector<int> sampled(GrowingTree& t, int row, int vocabulary, int depth) const {
    const GrowthJob& j = *t.job;
    std::vector<int> added;
    double total = 0;
    for (int node : t.frontier) total += t.reach[node];
    const double share = double(j.nodes - t.size()) / (j.depth - depth);
    for (size_t r = 0; r < t.frontier.size(); ++r) {
      const int node = t.frontier[r];
      int count = 1;
      if (j.width != 1)
        count = g_.levels ? width(j, vocabulary, depth)
                          : std::max(1, int(std::nearbyint(share * (t.reach[node] / (total > 0 ? total : 1)))));
      count = std::min(count, j.nodes - t.size());
      if (count > 0) draw(t, node, row + int(r), count, added);
    }
    return added;
  }

  void draw(GrowingTree& t, int node, int row, int count, std::vector<int>& added) const {
    const size_t at = size_t(t.index) * g_.most + t.proposals++;
    int32_t *ids = g_.q_ids + at * g_.support, *draws = g_.draws + at * g_.most;
    float* q = g_.q + at * g_.support;
    const int support = distribution(*t.job, row, ids, q);
    std::vector<double> p(q, q + support);
    Philox random(t.job->seed, (uint64_t(t.job->last) << 32) | (uint64_t(t.streams++) << 1) | 1);
    int drawn = 0;
    for (; drawn < count; ++drawn) {
      const double total = std::accumulate(p.begin(), p.end(), 0.0);
      if (!(total > 0)) break;
      const int i = pick(p, random.next() * total);
      if (!g_.replace) p[i] = 0;
      draws[drawn] = child(t, node, ids[i], q[i], added);
    }
    g_.proposal_parent[at] = node, g_.draw_count[at] = drawn, g_.q_count[at] = support;
  }

  static int pick(const std::vector<double>& p, double at) {
    double sum = 0;
    int last = 0;
    for (int i = 0; i < int(p.size()); ++i) {
      if (p[i] > 0) last = i;
      if ((sum += p[i]) > at) return i;
    }
    return last;  // rounding
  }

  // The child with this token; drawn again it is the same node.
  static int child(GrowingTree& t, int node, int token, float p, std::vector<int>& added) {
    for (int kid : added)
      if (t.parent[kid] == node && t.token[kid] == token) return kid;
    added.push_back(t.add(node, token, p));
    return added.back();
  }

  // q': temperature, top-k, top-p, cut to its support and renormalised before anything is drawn. (A top-k
  // above the support does not narrow what top-p counts; q is sent as it is, so that changes no output.)
  int distribution(const GrowthJob& j, int row, int32_t* ids, float* q) const {
    const float* value = lists_.values(row);
    int n = g_.support;
    float whole = lists_.sum(row), kept = 0;
    if (j.top_k) n = std::min(n, j.top_k);
    for (int i = 0; i < n; ++i) kept += q[i] = std::exp((value[i] - value[0]) / j.temperature);
    if (j.top_k && j.top_k <= g_.support) whole = kept;  // top-p counts what top-k has left
    float before = 0;
    for (int i = 0; i < n; ++i) {
      if (q[i] <= 0 || (j.top_p < 1 && before >= j.top_p * whole)) {
        n = i;
        break;
      }
      before += q[i];
    }
    for (int i = 0; i < n; ++i) ids[i] = g_.vocabulary[lists_.indices(row)[i]], q[i] /= before;
    return n;
  }

  const Growth& g_;
  const Shortlists& lists_;
};

template <class Kind>
void grow(Model& m, const Growth& g) {
  const int vocabulary = m.shape.vocab;
  std::vector<GrowingTree> trees;
  const int32_t* blocks = g.blocks;
  for (int i = 0; i < g.jobs; ++i) {
    trees.push_back({&g.job[i], i, blocks});
    blocks += g.job[i].blocks;
  }
  std::vector<float> logits;
  GrowthPasses passes(g);
  Shortlists lists;
  Rules rules(g, lists);
  std::vector<GrowingTree*> active;  // in the order of the rows of the coming logits
  int depth = 0;
  // Called by one thread while the others wait.
  const auto start_pass = [&] {
    if (depth == 0) passes.context(g, trees);
    else passes.frontiers(active);
    prepare<Kind>(m, passes.pass.tokens, g.threads);
    logits.resize(size_t(passes.pass.logits) * vocabulary);
    passes.pass.logits_out = logits.data();
    const bool all_greedy = std::all_of(active.begin(), active.end(), [](auto* t) { return t->job->greedy; });
    lists.reset(passes.pass.logits, std::min(vocabulary, std::max(g.most, all_greedy ? 0 : g.support)));
  };
  const auto end_pass = [&] {
    int row = 0;
    for (GrowingTree* t : active) {
      const int width = int(t->frontier.size());
      rules.expand(*t, row, vocabulary, depth);
      row += width;
    }
    ++depth;
    std::erase_if(active, [&](GrowingTree* t) { return t->frontier.empty() || depth >= t->job->depth; });
  };
  for (GrowingTree& t : trees)
    if (t.job->nodes && t.job->depth) active.push_back(&t);
  start_pass();
  bool done = false;
  Barrier barrier(g.threads);
  in_parallel<Kind>(m, passes.pass, barrier, g.threads, [&](Worker<Kind>& worker, int thread) {
    while (!done) {
      worker.run();
      barrier.wait();
      std::vector<float> temperature;
      for (const GrowingTree* t : active)
        temperature.insert(temperature.end(), t->frontier.size(), t->job->temperature);
      const Range r = share(passes.pass.logits, thread, g.threads);
      for (int i = r.begin; i < r.end; ++i) lists.fill(i, &logits[size_t(i) * vocabulary], vocabulary, temperature[i]);
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

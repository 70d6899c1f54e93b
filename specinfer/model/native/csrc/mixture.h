// A layer's mixture of experts: all rows of an expert are multiplied with its matrices together.
//
// A row's result does not depend on other rows: its scores depend on the row alone, and the outputs of its experts are added
// in the order of their numbers, by any thread.
#pragma once
#include <algorithm>

#include "experts.h"
#include "mlp.h"
#include "model.h"
#include "products/products.h"

namespace specinfer {

// One thread's part of the mixtures of a pass; all threads run in step.
class Mixture : ThreadOfPass {
 public:
  explicit Mixture(const ThreadOfPass& thread) : ThreadOfPass(thread), rows_(p_.tokens) {}

  // Chooses the experts of all rows.
  void route(const Experts& e) {
    Routes& routes = m_.routes;
    const int columns = e.router.n, used = e.shape.used;
    multiply(e.router, m_.inputs, m_.normed.data(), rows_, share(e.router.tiles(), thread_, threads_), e.router.data,
             [&](int row, int col, const float* v, int n) {
               float* scores = &routes.scores[size_t(row) * columns + col];
               std::copy(v, v + n, scores);
               if (!e.router.bias.empty()) add_to(scores, &e.router.bias[col], n);
             });
    barrier_.wait();
    const Range mine = share(rows_, thread_, threads_);
    for (int row = mine.begin; row < mine.end; ++row) {
      const float* scores = &routes.scores[size_t(row) * columns];
      choose_experts(scores, e.shape, &routes.expert[size_t(row) * used], &routes.weight[size_t(row) * used]);
      routes.shared[row] = e.shape.gated_shared ? 1 / (1 + std::exp(-scores[e.shape.count])) : 1;
    }
    barrier_.wait();
  }

  // Adds the chosen experts' outputs to x; prefetches `next` at the end.
  void add_experts(const Experts& e, const char* next) {
    by_expert_.make(m_.routes.expert.data(), rows_ * e.shape.used, e.shape.count);
    gather(e);
    if (e.shape.limit > 0) expand(e, ClampedGate{e.shape.limit, e.shape.alpha, 1 / e.shape.alpha});
    else if (s_.activation == SILU) expand(e, Gated<silu>());
    else if (s_.activation == GELU) expand(e, Gated<gelu>());
    else if (s_.activation == RELU) expand(e, Gated<relu>());
    else expand(e, Gated<gelu_tanh>());
    prepare_inner(e);
    add(e, next);
  }

 private:
  using Group = RoutesByExpert::Group;
  static inline constexpr int RUN = Shares<1>::SHARED;
  // Number of rows whose arithmetic takes as long as reading the matrix.
  static inline constexpr int READING = 4;

  static Range tiles(const Matrix& m, Range runs) {
    const auto tile = [&](int run) { return std::min(run * RUN / m.width, m.tiles()); };
    return {tile(runs.begin), tile(runs.end)};
  }

  // Copies the rows of each expert to adjacent places, prepared for its matrices.
  void gather(const Experts& e) {
    const int ways = e.inputs();
    float* gathered = m_.routes.gathered.data();
    const Range r = mine(int(by_expert_.order.size()));
    for (int i = r.begin; i < r.end; ++i) {
      const float* from = &m_.normed[size_t(by_expert_.order[i] / e.shape.used) * s_.hidden];
      std::copy(from, from + s_.hidden, gathered + size_t(i) * s_.hidden);
      m_.inputs.prepare(ways, gathered, s_.hidden, i, 0, s_.hidden);
    }
    barrier_.wait();
  }

  // inner = combine(gate, up). Threads share runs of columns of all experts, with about equal work.
  template <class Combine>
  void expand(const Experts& e, Combine combine) {
    const int runs = (e.shape.inter + RUN - 1) / RUN;
    int all = 0, before = 0;
    for (const Group& g : by_expert_.groups) all += runs * (READING + g.rows);
    const Range part = mine(all);
    for (const Group& g : by_expert_.groups) {
      const int cost = READING + g.rows;
      const auto run = [&](int at) { return std::clamp((at - before + cost - 1) / cost, 0, runs); };
      const Range own{run(part.begin), run(part.end)};
      before += runs * cost;
      if (own.begin == own.end) continue;
      const bool last = part.end <= before || &g == &by_expert_.groups.back();
      const Expert& expert = e.each[g.expert];
      expand_group(e, g, own, last ? expert.up.data : e.each[(&g + 1)->expert].gate.data, combine);
    }
    barrier_.wait();
  }

  template <class Combine>
  void expand_group(const Experts& e, const Group& g, Range runs, const char* next, Combine combine) {
    const Expert& expert = e.each[g.expert];
    const float* x = m_.routes.gathered.data();
    const Range rows{g.first, g.first + g.rows}, up = tiles(expert.up, runs);
    const auto inner = [&](int row, int col) { return &m_.routes.inner[size_t(g.first + row) * e.shape.inter + col]; };
    multiply_rows(expert.gate, m_.inputs, x, rows, tiles(expert.gate, runs), expert.up.tile(up.begin),
                  [&](int row, int col, const float* v, int n) {
                    std::copy(v, v + n, inner(row, col));
                    add_to(inner(row, col), Experts::bias(e.gate_bias, g.expert, e.shape.inter, col), n);
                  });
    multiply_rows(expert.up, m_.inputs, x, rows, up, next, [&](int row, int col, float* v, int n) {
      float* y = inner(row, col);
      add_to(v, Experts::bias(e.up_bias, g.expert, e.shape.inter, col), n);
      write_lanes(n, y, [&](int i) { return combine(load_first(y + i, n - i, zeros()), load(v + i)); });
    });
  }

  void prepare_inner(const Experts& e) {
    const int ways = e.each[0].down.input;
    if (ways == PLAIN) return;
    const int rows = int(by_expert_.order.size());
    m_.inputs.prepare_share(ways, m_.routes.inner.data(), rows, e.shape.inter, thread_, threads_);
    barrier_.wait();
  }

  // x += residual_scale * weight * down(inner); each thread computes some columns of all experts.
  void add(const Experts& e, const char* next) {
    for (const Group& g : by_expert_.groups) {
      const Matrix& down = e.each[g.expert].down;
      const bool last = &g == &by_expert_.groups.back();
      const Matrix& following = last ? down : e.each[(&g + 1)->expert].down;
      const Range own = Shares<1>({&down}, thread_, threads_).tiles[0];
      const char* then = last || own.begin == own.end ? next : following.tile(own.begin);
      multiply_rows(down, m_.inputs, m_.routes.inner.data(), {g.first, g.first + g.rows}, own, then,
                    [&](int i, int col, float* v, int n) {
                      add_to(v, Experts::bias(e.down_bias, g.expert, s_.hidden, col), n);
                      const int route = by_expert_.order[g.first + i], row = route / e.shape.used;
                      const float factor = s_.residual_scale * m_.routes.weight[route];
                      float* y = &m_.x[size_t(row) * s_.hidden + col];
                      for (int c = 0; c < n; ++c) y[c] += factor * v[c];
                    });
    }
    barrier_.wait();
  }

  const int rows_;
  RoutesByExpert by_expert_;
};

}  // namespace specinfer

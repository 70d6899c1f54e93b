// The inner part of MLPs, and the products of dense ones.
#pragma once
#include "model.h"
#include "products/products.h"
#include "simd/threads.h"

namespace specinfer {

// Inner part of a gated MLP: act(gate) * up.
template <Floats act(Floats)>
struct Gated {
  Floats operator()(Floats gate, Floats up) const { return mul(act(gate), up); }
};

// Inner part of an MLP with maximums of gate and |up|: (up + 1) * gate * sigmoid(alpha * gate).
struct ClampedGate {
  float limit, alpha, over;  // over: 1 / alpha

  Floats operator()(Floats gate, Floats up) const {
    const Floats top = spread(limit), bottom = spread(-limit);
    const Floats g = least(top, gate), u = most(bottom, least(top, up));  // a NaN stays NaN
    return mul(add(u, spread(1.0f)), mul(silu(mul(g, spread(alpha))), spread(over)));
  }
};

// One thread's part of the dense MLPs of a pass; all threads run in step.
class DenseMlp : ThreadOfPass {
 public:
  explicit DenseMlp(const ThreadOfPass& thread) : ThreadOfPass(thread) {}

  // inner = act(factor * gate) * up, or act(up)
  void expand(const Layer& l, const char* next) {
    if (s_.activation == SILU) expand<silu>(l, next);
    if (s_.activation == GELU) expand<gelu>(l, next);
    if (s_.activation == RELU) expand<relu>(l, next);
    if (s_.activation == GELU_TANH) expand<gelu_tanh>(l, next);
    barrier_.wait();
  }

 private:
  template <Floats act(Floats)>
  void expand(const Layer& l, const char* next) {
    const Shares<1> up({&l.up}, thread_, threads_);
    const auto inner = [&](int row, int col) { return &m_.inner[size_t(row) * l.up.n + col]; };
    if (!s_.gated)
      return multiply(l.up, m_.inputs, m_.normed.data(), p_.tokens, up.tiles[0], next, [&](int row, int col, float* v, int n) {
        if (!l.up.bias.empty()) add_to(v, &l.up.bias[col], n);
        write_lanes(n, inner(row, col), [v](int i) { return act(load(v + i)); });
      });
    // both matrices are divided alike: a thread has computed the gates of its own columns
    const Shares<1> gate({&l.gate}, thread_, threads_);
    multiply(l.gate, m_.inputs, m_.normed.data(), p_.tokens, gate.tiles[0], up.first(0, next),
             [&](int row, int col, const float* v, int n) {
               for (int i = 0; i < n; ++i) inner(row, col)[i] = l.gate.factor * v[i];
             });
    multiply(l.up, m_.inputs, m_.normed.data(), p_.tokens, up.tiles[0], next, [&](int row, int col, const float* v, int n) {
      float* y = inner(row, col);
      write_lanes(n, y, [&](int i) { return Gated<act>()(load_first(y + i, n - i, zeros()), load(v + i)); });
    });
  }
};

}  // namespace specinfer

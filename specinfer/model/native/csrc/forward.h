// Runs one pass of the decoder: each thread has a Worker; all run in step.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/attention.h"
#include "attention/heads.h"
#include "mixture.h"
#include "mlp.h"
#include "norms.h"
#include "recurrent/heads.h"
#include "recurrent/short_convolution.h"

namespace specinfer {

// One thread's part of a pass; all threads run in step.
template <class C>
class Worker : ThreadOfPass {
 public:
  Worker(Model& model, const Pass& pass, Barrier& barrier, SharedWork* work, int thread, int threads)
      : ThreadOfPass(model, pass, barrier, thread, threads), work_(work), attention_(model, pass, work, thread),
        mixture_(*this), heads_(*this), mlp_(*this), states_(model, pass, thread, threads), short_convolution_(model, pass, thread, threads) {}

  void run() {
    const int end = p_.end_layer;
    if (s_.states) join();
    else if (p_.first_layer == 0) embed();
    for (int layer = p_.first_layer; layer < end; ++layer) {
      keep_features(layer);
      Layer& l = m_.layers[layer];
      // of an offloaded layer that is not in memory yet nothing can be prefetched
      const Matrix& next = layer + 1 < end ? m_.layers[layer + 1].first() : end == s_.layers ? m_.head : l.first();
      const Matrix& inner = l.experts.any() ? l.experts.router : !l.up.n ? next : s_.gated ? l.gate : l.up;
      if (l.recurrent()) recur(l, l.attends() ? l.q : inner);
      if (l.attends()) attend(l, layer, inner);
      if (l.up.n || l.experts.any()) run_mlp(l, next);
    }
    if (end < s_.layers) return;
    keep_features(end);
    if (p_.logits) finish();
  }

 private:
  // Returns the first tile of a matrix that this thread multiplies.
  const char* first(const Matrix& m) const { return Shares<1>({&m}, thread_, threads_).first(0, m.data); }

  // Prepares the input of a product in the given ways.
  void prepare(const float* x, int rows, int k, int ways) {
    if (ways == PLAIN) return;
    m_.inputs.prepare_share(ways, x, rows, k, thread_, threads_);
    barrier_.wait();
  }

  void read_embedding(int token, float* to) const { read_row(m_.embedding_storage, m_.embedding, token, s_.hidden, to); }

  // x += attention(norm(x)). A recurrent layer has computed the norm before.
  void attend(const Layer& l, int layer, const Matrix& next) {
    const Shares<3> qkv({&l.q, &l.k, &l.v}, thread_, threads_);
    if (s_.states || l.recurrent()) prepare(m_.normed.data(), p_.tokens, l.q.k, qkv.inputs());
    else norm(l.input_norm, qkv.inputs());
    project(qkv, l.qkv_bias, first(l.out));
    if (thread_ == 0) work_[layer].reset();
    heads_.norm_rows(l);
    heads_.place(l);
    attention_.run(layer);
    barrier_.wait();
    if (s_.output_gate) heads_.gate(l);
    if (s_.parallel) norm(l.post_norm, PLAIN);  // of x before attention's output is added
    add_to_x(l.out, m_.attended.data(), l.attended_norm, first(next));
  }

  // x += experts or MLP(norm(x)).
  void run_mlp(const Layer& l, const Matrix& next) {
    const int ways = l.up.input | (s_.gated ? l.gate.input : PLAIN);
    if (s_.parallel) prepare(m_.normed.data(), p_.tokens, s_.hidden, ways);
    else norm(l.post_norm, ways);
    if (l.experts.any()) return mix(l, first(next));
    mlp_.expand(l, first(l.down));
    add_to_x(l.down, m_.inner.data(), l.mlp_norm, first(next));
  }

  // x += recurrent layer(norm(x)).
  void recur(const Layer& l, const Matrix& next) {
    const Shares<3> inputs({&l.convolved, &l.output_gates, &l.state_gates}, thread_, threads_);
    norm(l.input_norm, inputs.inputs());
    project(inputs, {}, first(l.state_out));
    const bool is_short = s_.recurrent_kind == SHORT_CONVOLUTION;
    is_short ? short_convolution_.multiply_inputs(l) : states_.convolve(l);
    barrier_.wait();
    is_short ? short_convolution_.convolve(l) : states_.run(l);
    barrier_.wait();
    if (s_.recurrent_kind == STATE_SPACE && !l.gated_norm.empty()) {
      states_.norm_groups(l);
      barrier_.wait();
    }
    add_to_x(l.state_out, m_.attended.data(), Norm{}, first(next));
  }

  void embed() {
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float* x = &m_.x[size_t(t) * s_.hidden];
      read_embedding(p_.token_ids[t], x);
      for (int i = 0; i < s_.hidden; ++i) x[i] *= s_.embedding_scale;
    }
    if (!m_.positions.empty())
      for (int t = r.begin; t < r.end; ++t)
        for (int i = 0; i < s_.hidden; ++i)
          m_.x[size_t(t) * s_.hidden + i] += m_.positions[size_t(p_.positions[t]) * s_.hidden + i];
    barrier_.wait();
  }

  // EAGLE: inputs of the layer are embedding and hidden state, both normed.
  void join() {
    hide();
    std::vector<float> embedding(s_.hidden);
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float* x = &m_.x[size_t(t) * s_.hidden];
      float* both = &m_.normed[size_t(t) * 2 * s_.hidden];
      read_embedding(p_.token_ids[t], embedding.data());
      normalise(embedding.data(), m_.layers[0].input_norm, s_.hidden, s_.eps, both);
      normalise(x, m_.hidden_norm, s_.hidden, s_.eps, both + s_.hidden);
      if (s_.residual_normed) normalise(x, m_.hidden_norm, s_.hidden, s_.eps, x);
    }
    barrier_.wait();
  }

  // EAGLE: x = fc(hidden states of the target), or the layer's own hidden states.
  void hide() {
    const Range r = mine(p_.tokens);
    const size_t begin = size_t(r.begin) * s_.hidden, end = size_t(r.end) * s_.hidden;
    if (!p_.states) {
      std::copy(p_.hidden + begin, p_.hidden + end, m_.x.data() + begin);
      return;
    }
    std::fill(m_.x.data() + begin, m_.x.data() + end, 0.0f);
    for (size_t i = begin * s_.states; i < end * s_.states; ++i) m_.normed[i] = from_bf16(p_.states[i]);
    barrier_.wait();
    add_to_x(m_.fc, m_.normed.data(), Norm{}, first(m_.layers[0].q));
  }

  // Stores the hidden states after `layer` layers, if requested. x is complete; its next change follows a barrier.
  void keep_features(int layer) const {
    for (int f = 0; f < p_.features; ++f) {
      if (p_.feature_layers[f] != layer) continue;
      const Range r = mine(p_.tokens);
      for (int t = r.begin; t < r.end; ++t)
        std::memcpy(p_.features_out + (size_t(t) * p_.features + f) * s_.hidden, &m_.x[size_t(t) * s_.hidden],
                    s_.hidden * sizeof(float));
    }
  }

  // Computes the normed rows of x, and prepares them for the products that read them.
  void norm(const Norm& norm, int ways) {
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      normalise(&m_.x[size_t(t) * s_.hidden], norm, s_.hidden, s_.eps, &m_.normed[size_t(t) * s_.hidden]);
      m_.inputs.prepare(ways, m_.normed.data(), s_.hidden, t, 0, s_.hidden);
    }
    barrier_.wait();
  }

  // Multiplies the normed rows by three matrices, with outputs side by side.
  void project(const Shares<3>& to, const std::vector<float>& bias, const char* next) {
    const int columns = to.matrix[0]->n + to.matrix[1]->n + to.matrix[2]->n;
    for (int i = 0, before = 0; i < 3; before += to.matrix[i++]->n)
      multiply(*to.matrix[i], m_.inputs, m_.normed.data(), p_.tokens, to.tiles[i], to.first(i + 1, next),
               [&](int row, int col, const float* v, int n) {
                 float* y = &m_.qkv[size_t(row) * columns + before + col];
                 for (int j = 0; j < n; ++j) y[j] = to.matrix[i]->factor * v[j];
                 if (!bias.empty()) add_to(y, &bias[before + col], n);
               });
    barrier_.wait();
  }

  // x += experts(normed rows) and the shared expert, if any.
  void mix(const Layer& l, const char* next) {
    mixture_.route(l.experts);
    if (l.up.n) {
      mlp_.expand(l, first(l.down));
      add_to_x(l.down, m_.inner.data(), Norm{}, l.experts.each[0].gate.data, m_.routes.shared.data());
    }
    mixture_.add_experts(l.experts, next);
  }

  // x += residual_scale * norm(factor * (a W^T + bias)), times `weights` per row, if given.
  void add_to_x(const Matrix& w, const float* a, const Norm& norm, const char* next, const float* weights = nullptr) {
    prepare(a, p_.tokens, w.k, w.input);
    const Shares<1> shares({&w}, thread_, threads_);
    const bool normed = !norm.weight.empty();
    multiply(w, m_.inputs, a, p_.tokens, shares.tiles[0], next, [&](int row, int col, float* v, int n) {
      if (!w.bias.empty()) add_to(v, &w.bias[col], n);
      for (int i = 0; i < n; ++i) v[i] *= w.factor;
      if (normed) return void(std::copy(v, v + n, &m_.change[size_t(row) * s_.hidden + col]));
      float* y = &m_.x[size_t(row) * s_.hidden + col];
      const float scale = weights ? s_.residual_scale * weights[row] : s_.residual_scale;
      for (int i = 0; i < n; ++i) y[i] += scale * v[i];
    });
    barrier_.wait();
    if (normed) add_normed(norm);
  }

  void add_normed(const Norm& norm) {
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t) {
      float *change = &m_.change[size_t(t) * s_.hidden], *x = &m_.x[size_t(t) * s_.hidden];
      normalise(change, norm, s_.hidden, s_.eps, change);
      for (int i = 0; i < s_.hidden; ++i) x[i] += s_.residual_scale * change[i];
    }
    barrier_.wait();
  }

  void finish() {
    const Range r = mine(p_.logits);
    for (int i = r.begin; i < r.end; ++i) {
      const float* x = &m_.x[size_t(p_.logit_rows[i]) * s_.hidden];
      normalise(x, m_.final_norm, s_.hidden, s_.eps, &m_.normed[size_t(i) * s_.hidden]);
      m_.inputs.prepare(m_.head.input, m_.normed.data(), s_.hidden, i, 0, s_.hidden);
    }
    barrier_.wait();
    const bool stream = p_.sparse && s_.vocab % LANES == 0 && reinterpret_cast<uintptr_t>(p_.logits_out) % 64 == 0;
    const Shares<1> shares({&m_.head}, thread_, threads_);
    multiply(m_.head, m_.inputs, m_.normed.data(), p_.logits, shares.tiles[0], first(m_.head),
             [&](int row, int col, float* v, int n) {
               if (s_.logit_cap) cap_logits(v);
               float* out = p_.logits_out + size_t(row) * s_.vocab + col;
               if (!stream) return void(std::copy(v, v + n, out));
               for (int i = 0; i < n; i += LANES) specinfer::stream(out + i, load(v + i));
             });
    if (stream) _mm_sfence();
  }

  void cap_logits(float* v) const {
    const float over = 1 / s_.logit_cap;
    for (int i = 0; i < m_.head.width; i += LANES) store(v + i, soft_cap(load(v + i), s_.logit_cap, over));
  }

  SharedWork* work_;
  Attention<C> attention_;
  Mixture mixture_;
  AttentionHeads<C> heads_;
  DenseMlp mlp_;
  RecurrentHeads states_;
  ShortConvolution short_convolution_;
};

// Runs `work(worker, thread)` on all threads; workers run the pass that `p` then describes.
template <class C, class Work>
void in_parallel(Model& m, const Pass& p, Barrier& barrier, int threads, Work work) {
  std::vector<SharedWork> shared(m.shape.layers);
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    Worker<C> worker(m, p, barrier, shared.data(), thread, threads);
    work(worker, thread);
  }
}

template <class C>
void forward(Model& m, const Pass& p) {
  specinfer::prepare<C>(m, p);
  Barrier barrier(p.threads);
  in_parallel<C>(m, p, barrier, p.threads, [](Worker<C>& worker, int) { worker.run(); });
}

}  // namespace specinfer

// Short convolutions (LFM2): multiply inputs by factors, convolve causally, multiply outputs by factors.
#pragma once
#include <cstring>

#include "recurrent/past.h"
#include "simd/threads.h"

namespace specinfer {

// One thread's part of short convolutions.
class ShortConvolution {
 public:
  ShortConvolution(Model& m, const Pass& p, int thread, int threads)
      : m_(m), s_(m.shape), p_(p), channels_(RecurrentSizes(m.shape).channels), past_(m, p), thread_(thread), threads_(threads) {}

  // Multiplies the convolution's inputs of all rows by their factors.
  void multiply_inputs(const Layer& l) {
    const Range r = share(p_.tokens, thread_, threads_);
    for (int row = r.begin; row < r.end; ++row) {
      const float* parts = &m_.qkv[size_t(row) * 3 * channels_];
      float* to = &m_.mixed[size_t(row) * channels_];
      for (int c = 0; c < channels_; c += LANES) store(to + c, mul(load(parts + c), load(parts + 2 * channels_ + c)));
      if (past_.keeps(row)) std::memcpy(past_.own(row, l.place).inputs, to, channels_ * sizeof(float));
    }
  }

  void convolve(const Layer& l) {
    const Range r = share(p_.tokens, thread_, threads_);
    for (int row = r.begin; row < r.end; ++row) {
      const float* factors = &m_.qkv[(size_t(row) * 3 + 1) * channels_];
      float* out = &m_.attended[size_t(row) * channels_];
      std::fill(out, out + channels_, 0.0f);
      for (int back = s_.convolved - 1; back >= 0; --back) {
        const float *x = past_.inputs(row, back, l), *w = &l.convolution[size_t(s_.convolved - 1 - back) * channels_];
        if (x)
          for (int c = 0; c < channels_; c += LANES) store(out + c, fma(load(x + c), load(w + c), load(out + c)));
      }
      for (int c = 0; c < channels_; c += LANES) store(out + c, mul(load(out + c), load(factors + c)));
    }
    const Recurrence& at = *p_.recurrence;
    const Range jobs = share(p_.sequences, thread_, threads_);
    for (int job = at.job_start[jobs.begin]; job < at.job_start[jobs.end]; ++job)
      past_.keep_inputs(at.job_past + size_t(job) * BLOCK, l, past_.state(at.job_to[job], l));
  }

 private:
  Model& m_;
  const Shape& s_;
  const Pass& p_;
  const int channels_;
  const Past past_;
  const int thread_, threads_;
};

}  // namespace specinfer

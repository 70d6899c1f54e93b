// Threads in step: a spin barrier, and how items are shared out.
#pragma once
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace specinfer {

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    if (threads_ == 1) return;
    const int phase = phase_.load(std::memory_order_relaxed);
    if (count_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      count_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (spins < 8192) _mm_pause();
      else sched_yield();  // somebody else needs the core
    }
  }

 private:
  const int threads_;
  std::atomic<int> count_{0}, phase_{0};
};

struct Range {
  int begin, end;
};
inline Range share(int items, int thread, int threads) {
  return {int(int64_t(items) * thread / threads), int(int64_t(items) * (thread + 1) / threads)};
}

}  // namespace specinfer

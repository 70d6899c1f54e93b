// Threads in step: a spin barrier, and division of work.
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
      else sched_yield();  // another thread needs the core
    }
  }

 private:
  const int threads_;
  std::atomic<int> count_{0}, phase_{0};
};

// Units of work, numbered in memory order, handed out from both ends, so that threads at different ends read different
// memory.
class SharedWork {
 public:
  void reset() { taken_ = front_ = back_ = 0; }

  // Returns the next of `units` for a thread; -1: none is left.
  int take(int thread, int units) {
    if (taken_.fetch_add(1, std::memory_order_relaxed) >= units) return -1;
    if (thread % 2 == 0) return front_.fetch_add(1, std::memory_order_relaxed);
    return units - 1 - back_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<int> taken_{0}, front_{0}, back_{0};
};

struct Range {
  int begin, end;
};
inline Range share(int items, int thread, int threads) {
  return {int(int64_t(items) * thread / threads), int(int64_t(items) * (thread + 1) / threads)};
}

}  // namespace specinfer

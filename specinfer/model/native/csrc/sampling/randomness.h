// Random numbers: for draws Philox4x64-10 as in numpy, so that both growths draw alike; for noise SplitMix64.
#pragma once
#include <cstdint>

namespace specinfer {

// Steps of SplitMix64: successive states differ by GOLDEN, and each is mixed. The last shift changes only the lowest bit of
// the upper half.
inline constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;
inline uint64_t split_mix_state(uint64_t state, uint64_t index) { return state + (index + 1) * GOLDEN; }
inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  return (z ^ (z >> 27)) * 0x94D049BB133111EBull;
}

// Returns SplitMix64's number `index` from a state; the key of noise: see specinfer/request/sampling.py.
inline uint64_t split_mix(uint64_t state, uint64_t index) {
  const uint64_t z = mixed(split_mix_state(state, index));
  return z ^ (z >> 31);
}
inline uint64_t noise_key(uint64_t seed, uint64_t position) {
  return split_mix(split_mix(seed, uint64_t(1) << 32), position);
}

// Returns the numbers of numpy's `Generator(Philox(key=(seed, place))).random()`.
class Philox {
 public:
  Philox(uint64_t seed, uint64_t place) : key_{seed, place} {}

  // Returns a uniform number in [0, 1).
  double next() {
    if (used_ == 4) refill();
    return double(out_[used_++] >> 11) * 0x1p-53;
  }

 private:
  void refill() {
    ++counter_;
    uint64_t c[4] = {counter_, 0, 0, 0}, k[2] = {key_[0], key_[1]};
    for (int round = 0; round < 10; ++round) {
      const auto a = (unsigned __int128)0xD2E7470EE14C6C93ull * c[0];
      const auto b = (unsigned __int128)0xCA5A826395121157ull * c[2];
      const uint64_t next[4] = {uint64_t(b >> 64) ^ c[1] ^ k[0], uint64_t(b), uint64_t(a >> 64) ^ c[3] ^ k[1], uint64_t(a)};
      for (int i = 0; i < 4; ++i) c[i] = next[i];
      k[0] += 0x9E3779B97F4A7C15ull, k[1] += 0xBB67AE8584CAA73Bull;
    }
    for (int i = 0; i < 4; ++i) out_[i] = c[i];
    used_ = 0;
  }

  uint64_t key_[2], counter_ = 0, out_[4] = {};
  int used_ = 4;
};

}  // namespace specinfer

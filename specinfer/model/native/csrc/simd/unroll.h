// Loops over arrays in registers.
#pragma once
#include <type_traits>
#include <utility>

// For functions that must be inlined before registers are assigned.
#define INLINED __attribute__((always_inline))

namespace specinfer {

// Calls f(0), ..., f(N - 1) with constants, so that arrays indexed with them stay in registers. (If the compiler itself unrolls
// a loop, arrays that fill AVX2's sixteen registers are stored in memory.)
template <int N, class Do>
INLINED inline void times(Do f) {
  [&]<int... I>(std::integer_sequence<int, I...>) INLINED { (f(std::integral_constant<int, I>()), ...); }
  (std::make_integer_sequence<int, N>());
}

}  // namespace specinfer

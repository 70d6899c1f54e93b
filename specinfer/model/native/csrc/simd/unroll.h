// Loops over registers.
#pragma once
#include <type_traits>
#include <utility>

// For functions that have to be part of their caller before registers are handed out.
#define INLINED __attribute__((always_inline))

namespace specinfer {

// f(0), ..., f(N - 1), each with a constant, so that arrays indexed with it live in registers. (Where the compiler
// unrolls a loop itself, asked to or not, arrays that fill the sixteen registers of AVX2 go to memory and back.)
template <int N, class Do>
INLINED inline void times(Do f) {
  [&]<int... I>(std::integer_sequence<int, I...>) INLINED { (f(std::integral_constant<int, I>()), ...); }
  (std::make_integer_sequence<int, N>());
}

}  // namespace specinfer

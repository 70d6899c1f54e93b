// The distribution that a token is drawn from.
#pragma once
#include <cmath>

#include "numbers.h"

namespace specinfer {

// p = softmax(x / temperature) over n numbers: three readings of the row, one writing. A NaN or an infinity in x makes
// all of p NaN.
inline void softmax(const float* x, int n, float temperature, double* p) {
  const auto lanes = [n](int i) { return n - i >= LANES ? __mmask16(0xFFFF) : __mmask16((1u << (n - i)) - 1); };
  __m512 top = _mm512_set1_ps(-INFINITY);
  for (int i = 0; i < n; i += LANES) top = _mm512_max_ps(_mm512_mask_loadu_ps(top, lanes(i), x + i), top);
  const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(top)), factor = _mm512_set1_ps(LOG2_E / temperature);
  const __m512 least = _mm512_set1_ps(-200.0f);  // 2^-200 is 0, and stays a number if x is -infinity
  const auto weight = [&](int i) {
    const __m512 below = _mm512_mul_ps(_mm512_sub_ps(_mm512_mask_loadu_ps(most, lanes(i), x + i), most), factor);
    return vexp2(_mm512_max_ps(least, below));  // in this order a NaN stays one
  };
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  for (int i = 0; i < n; i += LANES) {
    const __m512 e = _mm512_maskz_mov_ps(lanes(i), weight(i));
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
  }
  const __m512d share = _mm512_set1_pd(1.0 / (_mm512_reduce_add_pd(low) + _mm512_reduce_add_pd(high)));
  for (int i = 0; i < n; i += LANES) {
    const __m512 e = weight(i);
    const __mmask16 valid = lanes(i);
    _mm512_mask_storeu_pd(p + i, __mmask8(valid), _mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(e)), share));
    _mm512_mask_storeu_pd(p + i + 8, __mmask8(valid >> 8),
                          _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)), share));
  }
}

}  // namespace specinfer

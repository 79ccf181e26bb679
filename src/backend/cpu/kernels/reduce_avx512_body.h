// Sums of the lanes of vectors, included by both AVX-512 units inside their namespaces. Lanes are added at
// distances 8, 4, 2 and 1, alone and four at a time: the same bits.
//
// No include guard: one inclusion per unit.

inline float Reduce(__m512 v) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

// The four 128-bit sums of each of four vectors.
inline __m512 Quarters4(const __m512* v) {
  // Halves of two vectors side by side.
  const __m512 by8_01 =
      _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xEE));
  const __m512 by8_23 =
      _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(by8_01, by8_23, 0x88),
                       _mm512_shuffle_f32x4(by8_01, by8_23, 0xDD));
}

// out[i] = Reduce(v[i]) for four vectors.
inline void Reduce4(const __m512* v, float* out) {
  const __m512 by4 = Quarters4(v);
  const __m512 by2 = _mm512_add_ps(by4, _mm512_permute_ps(by4, 0x0E));
  const __m512 by1 = _mm512_add_ps(by2, _mm512_movehdup_ps(by2));
  const __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, by1)));
}

// out[2 * i] and out[2 * i + 1]: Reduce of v[i] with nothing but lanes 0 and 1 of every four, and with lanes
// 2 and 3 instead. Adding the zeros of the other lanes turns a negative zero around.
inline void ReducePairs4(const __m512* v, float* out) {
  const __m512 by2 = _mm512_add_ps(Quarters4(v), _mm512_setzero_ps());
  const __m512 by1 = _mm512_add_ps(by2, _mm512_movehdup_ps(by2));
  const __m512i evens = _mm512_castsi256_si512(_mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, by1)));
}

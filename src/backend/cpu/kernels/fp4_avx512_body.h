// 4-bit weights as both AVX-512 units read them, included inside their namespaces.
//
// A chunk of 256 columns is two vectors of 16 dwords, eight elements each. The even dwords of both make one vector, the odd
// dwords another, and in both a lane belongs to the same block of 16 columns: one scale vector serves the chunk.
//
// No include guard: one inclusion per unit.

struct Fp4 {
  static constexpr int64_t kColumns = 256;
  static constexpr int64_t kBytes = 128;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = __m512;
  static inline __m512 PartScale(const Scales& scales, int) { return scales; }

  // The even (0) or odd (1) dwords.
  static inline __m512i Dwords(const uint8_t* bytes, int odd) {
    const __m512 a = _mm512_loadu_ps(bytes);
    const __m512 b = _mm512_loadu_ps(bytes + 64);
    return _mm512_castps_si512(odd == 0 ? _mm512_shuffle_ps(a, b, 0x88) : _mm512_shuffle_ps(a, b, 0xDD));
  }
  // The column of element `nibble` of a lane of Dwords.
  static constexpr int Column(int odd, int lane, int nibble) {
    const int dword = lane / 4 * 4 + lane % 2 * 2 + odd;
    return lane / 2 % 2 * 128 + dword * 8 + nibble;
  }
};

struct NvFp4Scales : Fp4 {
  static constexpr int64_t kScaleBytes = 16;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    const __m128i each =
        _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)),
                         _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    // e4m3's exponent lands in fp32's field 120 too low.
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(each), 20);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120F));
  }
};

struct MxFp4Scales : Fp4 {
  static constexpr int64_t kScaleBytes = 8;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    const __m128i each = _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)),
                                          _mm_setr_epi8(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(each), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
  }
};

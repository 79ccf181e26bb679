// 4-bit weights as both AVX-512 units read them, included inside their namespaces.
//
// A chunk of 256 columns is two vectors of 16 dwords, eight elements each. The even dwords of both make one
// vector, the odd dwords another. In both a lane belongs to the same block of 16 columns: one scale vector
// serves the chunk.
//
// No include guard: one inclusion per unit.

#include "backend/cpu/kernels/reduce_avx512_body.h"

struct Fp4 {
  static constexpr int64_t kColumns = 256;
  static constexpr int64_t kBytes = 128;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = __m512;
  static inline __m512 PartScale(const Scales& scales, int) { return scales; }

  // Lanes 0 and 1 of every four hold columns of the first half of a chunk, lanes 2 and 3 those of the second.
  static constexpr bool kHalvesApart = true;
  static inline void ReducePairs(const __m512* sums, float* out) { ReducePairs4(sums, out); }
  // Packed activations of half a chunk, for both halves of the lanes.
  static inline void RepeatHalf(const void* from, void* to, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += sizeof(__m512i)) {
      const __m512i half = _mm512_loadu_si512(static_cast<const uint8_t*>(from) + i);
      _mm512_storeu_si512(static_cast<uint8_t*>(to) + i,
                          _mm512_or_si512(half, _mm512_shuffle_epi32(half, _MM_PERM_BADC)));
    }
  }

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

// Lane i of the scales of a chunk has the bits of the code of its columns. They begin at bit kPlace, which is
// in the third byte. Other bits are anything. There is one code for each kBlock columns, and a qword has
// eight: the chunk's, or those of the lane's half. With VBMI it is one shift by a different number of bits
// for each byte, else a look-up of bytes and a shift.
template <int kBlock, int kPlace>
struct ScaleBits {
  static_assert(kPlace / 8 == 2);
  constexpr ScaleBits() {
    for (int lane = 0; lane < 16; ++lane) {
      const int code = Fp4::Column(0, lane, 0) / kBlock % 8;
      for (int byte = 0; byte < 4; ++byte) {
#ifdef __AVX512VBMI__
        bytes[4 * lane + byte] = static_cast<uint8_t>((8 * code - kPlace + 8 * byte) & 63);
#else
        bytes[4 * lane + byte] = byte == 2 ? static_cast<uint8_t>(lane / 2 % 2 * 8 + code) : uint8_t{0x80};
#endif
      }
    }
  }
  // Codes times two, eight in every 128 bits.
  inline __m512i Of(__m512i codes) const {
#ifdef __AVX512VBMI__
    return _mm512_multishift_epi64_epi8(_mm512_load_si512(bytes), codes);
#else
    return _mm512_slli_epi32(_mm512_shuffle_epi8(codes, _mm512_load_si512(bytes)), kPlace % 8);
#endif
  }
  alignas(64) uint8_t bytes[64] = {};
};

// e4m3 as fp32 with an exponent 8 too low. No subnormal fp32 comes up, which costs some cores a hundred
// cycles: subnormal codes first get the exponent below theirs and a leading one. Doubled, without that one,
// they are right, and less than before; other numbers are not.
struct NvFp4Scales : Fp4 {
  static constexpr int64_t kScaleBytes = 16;
  static constexpr float kUnit = 0x1p8F;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    static constexpr ScaleBits<16, 20> kBits;
    const __m512i halves = _mm512_broadcast_i64x2(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    // (bits & magnitude) | exponent
    const __m512 number = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        kBits.Of(halves), _mm512_set1_epi32(0x07F00000), _mm512_set1_epi32((127 - 15) << 23), 0xEA));
    return _mm512_min_ps(number, _mm512_fmsub_ps(number, _mm512_set1_ps(2.0F), _mm512_set1_ps(0x1p-14F)));
  }
};

struct MxFp4Scales : Fp4 {
  static constexpr int64_t kScaleBytes = 8;
  static inline Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    static constexpr ScaleBits<32, 23> kBits;
    int64_t eight;
    __builtin_memcpy(&eight, codes, sizeof(eight));
    const __m512i bits = _mm512_and_si512(kBits.Of(_mm512_set1_epi64(eight)), _mm512_set1_epi32(0x7F800000));
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
  }
};

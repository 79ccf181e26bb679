// Codes of e4m3 as bf16 with AVX-512, by look-up tables of the two bytes of a value. A scale is in them where
// it is a power of two. Included by the units of bf16 products inside their namespaces.
//
// No include guard: one inclusion per unit.

// The bytes of the bf16 values of the non-negative e4m3 codes.
struct E4m3Tables {
  constexpr E4m3Tables() {
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> 3;
      const int mantissa = code & 7;
      int bits = ((exponent + 120) << 7) | (mantissa << 4);
      if (exponent == 0) {
        bits = 0;  // mantissa * 2^-9, normalised.
        for (int leading = 2; leading >= 0 && bits == 0; --leading) {
          if ((mantissa >> leading & 1) != 0) {
            bits = ((118 + leading) << 7) | (((mantissa << (7 - leading)) & 0x7F));
          }
        }
      }
      if (code == 127) bits = 0x7FC0;
      words[code] = static_cast<uint16_t>(bits);
      bytes[code] = static_cast<uint8_t>(bits & 0xFF);
      bytes[128 + code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  alignas(64) uint16_t words[128] = {};
  alignas(64) uint8_t bytes[256] = {};  // The lower ones, then the upper ones.
};
constexpr E4m3Tables kE4m3Tables;

// The column that is element i of packed activations: unpacking bytes to words takes the low, then the high
// half of every 128-bit lane.
constexpr int E4m3Column(int i) { return i / 64 * 64 + i % 32 / 8 * 16 + i / 32 % 2 * 8 + i % 8; }

// Whether every scale is a power of two that keeps e4m3 numbers normal in bf16.
bool Foldable(const float* scales, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, scales + i, sizeof(bits));
    const uint32_t exponent = bits >> 23;  // And the sign, which must not be there.
    if ((bits & 0x7FFFFFU) != 0 || exponent < 127 - 100 || exponent > 127 + 100) return false;
  }
  return true;
}

// Words of the e4m3 numbers of interleaved codes (E4m3Column), with `add` on the fields of their exponents;
// zero and NaN stay.
inline __m512i WithExponents(__m512i words, __m512i add) {
  const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7FFF));
  const __mmask32 finite =
      _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)), _mm512_set1_epi16(0x7F7F));
  return _mm512_mask_add_epi16(words, finite, words, add);
}

// Scales of kFineColumns as what WithExponents adds: 128 bytes a chunk, a vector for each 64 codes. The first
// group of the two is in the lower half of the vector, as unpacking leaves it.
constexpr int64_t kFineBytes = 128;
void FoldFineScales(const float* scales, int64_t num_chunks, uint8_t* adds) {
  for (int64_t i = 0; i < 2 * num_chunks; ++i, scales += 2, adds += 64) {
    __m256i halves[2];
    for (int half = 0; half < 2; ++half) {
      uint32_t bits;
      __builtin_memcpy(&bits, scales + half, sizeof(bits));
      halves[half] = _mm256_set1_epi16(static_cast<int16_t>(((bits >> 23) - 127) << 7));
    }
    _mm512_storeu_si512(adds, _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1));
  }
}

void FoldScales(const float* scales, int64_t num_chunks, uint8_t* tables) {
  for (int64_t i = 0; i < num_chunks; ++i, tables += 256) {
    uint32_t bits;
    __builtin_memcpy(&bits, scales + i, sizeof(bits));
    // Added to the field of the exponent; zero and NaN stay.
    const __m512i add = _mm512_set1_epi16(static_cast<int16_t>(((bits >> 23) - 127) << 7));
    for (int part = 0; part < 4; ++part) {
      const __m512i words = _mm512_load_si512(kE4m3Tables.words + 32 * part);
      const __mmask32 finite = _mm512_cmpgt_epi16_mask(words, _mm512_setzero_si512()) &
                               _mm512_cmplt_epi16_mask(words, _mm512_set1_epi16(0x7F80));
      const __m512i scaled = _mm512_mask_add_epi16(words, finite, words, add);
      _mm256_store_si256(reinterpret_cast<__m256i*>(tables + 32 * part), _mm512_cvtepi16_epi8(scaled));
      _mm256_store_si256(reinterpret_cast<__m256i*>(tables + 128 + 32 * part),
                         _mm512_cvtepi16_epi8(_mm512_srli_epi16(scaled, 8)));
    }
  }
}

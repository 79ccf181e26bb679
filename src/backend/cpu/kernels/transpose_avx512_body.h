// A transposition in registers, included by units inside their own namespaces after memory_body.h.
// No include guard: one inclusion per unit.

// Words of 16 x 16, rows and columns exchanged.
DSV4_INLINE void Transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i quads[16];  // [4 * i + c]: word c of each quarter, of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xEE);
    const __m512i low_next = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x44);
    const __m512i high_next = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xEE);
    rows[c] = _mm512_shuffle_i32x4(low, low_next, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(low, low_next, 0xDD);
    rows[8 + c] = _mm512_shuffle_i32x4(high, high_next, 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(high, high_next, 0xDD);
  }
}

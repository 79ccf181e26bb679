// Roundings of rows, included by every fp32 unit inside its own namespace. Plain loops are left to the
// compiler's vectoriser under the unit's flags; they give the same bits in every tier.
//
// No include guard: one inclusion per unit.

static inline uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// To the nearest e4m3 number, ties to even; |value| <= 448 or NaN, which stays.
static inline float NearestE4m3(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t normal = (magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) & 0xFFF00000U;
  // Below 2^-6 the step is 2^-9: 2^14 leaves an fp32 sum no finer one.
  const uint32_t subnormal = BitsOf((FloatOf(magnitude) + 0x1p14F) - 0x1p14F);
  const uint32_t rounded = (magnitude < 0x3C800000U ? subnormal : normal) | (bits & 0x80000000U);
  return FloatOf(magnitude > 0x7F800000U ? bits : rounded);
}

// The scale of a group with this largest magnitude, a power of two.
static inline float ScaleOfFp8Group(float largest) {
  const float floored = largest > 1e-4F ? largest : 1e-4F;
  const uint32_t ratio = BitsOf(floored * FloatOf(0x3B124925U));  // fl32(1/448)
  return FloatOf(((ratio & 0x7FFFFFU) != 0 ? ratio + 0x800000U : ratio) & 0x7F800000U);
}

static void RoundFp8(const float* in, int64_t count, int64_t group, float* out) {
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t end = begin + group < count ? begin + group : count;
    uint32_t max = 0;  // Magnitudes compare as integers; a NaN takes no part.
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t magnitude = BitsOf(in[i]) & 0x7FFFFFFFU;
      const uint32_t number = magnitude > 0x7F800000U ? 0U : magnitude;
      max = number > max ? number : max;
    }
    const float scale = ScaleOfFp8Group(FloatOf(max));
    const float inverse = 1.0F / scale;  // A power of two: products with it are the quotients, and quicker.
    for (int64_t i = begin; i < end; ++i) {
      const float quotient = in[i] * inverse;
      const float low = quotient < -448.0F ? -448.0F : quotient;
      out[i] = NearestE4m3(low > 448.0F ? 448.0F : low) * scale;
    }
  }
}

static void WidenBf16(const uint8_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    __builtin_memcpy(&bits, in + 2 * i, sizeof(bits));
    out[i] = FloatOf(static_cast<uint32_t>(bits) << 16);
  }
}

static void NarrowBf16(const float* in, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(in[i]);
    const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const uint16_t narrow =
        static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? (bits >> 16) | 0x40U : rounded);
    __builtin_memcpy(out + 2 * i, &narrow, sizeof(narrow));
  }
}

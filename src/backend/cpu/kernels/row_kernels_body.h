// The kernels that are not matrix products, included by every fp32 unit inside its own namespace after it has defined Vec,
// kFloatLanes, Zero, Fma, Broadcast, LoadFloats, LoadBf16s and StoreFloats. Plain loops are left to the compiler's
// vectoriser under the unit's flags; they give the same bits in every tier.
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

static void RoundFp8(const float* in, int64_t count, int64_t group, float* out) {
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t end = begin + group < count ? begin + group : count;
    uint32_t max = 0;  // Magnitudes compare as integers; a NaN takes no part.
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t magnitude = BitsOf(in[i]) & 0x7FFFFFFFU;
      const uint32_t number = magnitude > 0x7F800000U ? 0U : magnitude;
      max = number > max ? number : max;
    }
    const float floored = FloatOf(max) > 1e-4F ? FloatOf(max) : 1e-4F;
    const uint32_t ratio = BitsOf(floored * FloatOf(0x3B124925U));  // fl32(1/448)
    const float scale = FloatOf(((ratio & 0x7FFFFFU) != 0 ? ratio + 0x800000U : ratio) & 0x7F800000U);
    for (int64_t i = begin; i < end; ++i) {
      const float quotient = in[i] / scale;
      const float low = quotient < -448.0F ? -448.0F : quotient;
      out[i] = NearestE4m3(low > 448.0F ? 448.0F : low) * scale;
    }
  }
}

static inline double DoubleAt(const uint8_t* row, int64_t i) {
  float value;
  __builtin_memcpy(&value, row + 4 * i, sizeof(value));
  return static_cast<double>(value);
}

static void DotRows(const uint8_t* rows, int64_t num_rows, int64_t width, const float* x, double* out) {
  constexpr int kSums = 16;
  for (int64_t row = 0; row < num_rows; ++row) {
    const uint8_t* const from = rows + 4 * row * width;
    double sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums <= width; i += kSums) {
      for (int s = 0; s < kSums; ++s) sums[s] += DoubleAt(from, i + s) * static_cast<double>(x[i + s]);
    }
    double total = 0.0;
    for (; i < width; ++i) total += DoubleAt(from, i) * static_cast<double>(x[i]);
    for (int s = 0; s < kSums; ++s) total += sums[s];
    out[row] = total;
  }
}

static inline float WidenOne(const uint8_t* row, bool bf16, int64_t d) {
  if (bf16) {
    uint16_t bits;
    __builtin_memcpy(&bits, row + 2 * d, sizeof(bits));
    return FloatOf(static_cast<uint32_t>(bits) << 16);
  }
  float value;
  __builtin_memcpy(&value, row + 4 * d, sizeof(value));
  return value;
}

template <bool kBf16, int kHeads, int kVectors>
static void AddWeightedTile(const float* weights, int64_t weight_stride, const uint8_t* const* values,
                            int64_t num_values, int64_t d, int64_t dim, float* o) {
  Vec acc[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[h][v] = LoadFloats(o + h * dim + d + v * kFloatLanes);
  }
  for (int64_t t = 0; t < num_values; ++t) {
    Vec value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = d + v * kFloatLanes;
      value[v] = kBf16 ? LoadBf16s(values[t] + 2 * at) : LoadFloats(values[t] + 4 * at);
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = Broadcast(weights[h * weight_stride + t]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[h][v] = Fma(weight, value[v], acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) StoreFloats(o + h * dim + d + v * kFloatLanes, acc[h][v]);
  }
}

template <bool kBf16, int kHeads>
static void AddWeightedHeads(const float* weights, int64_t weight_stride, const uint8_t* const* values,
                             int64_t num_values, int64_t dim, float* o) {
  constexpr int kWide = kValueVectors;
  int64_t d = 0;
  for (; d + kWide * kFloatLanes <= dim; d += kWide * kFloatLanes) {
    AddWeightedTile<kBf16, kHeads, kWide>(weights, weight_stride, values, num_values, d, dim, o);
  }
  for (; d + kFloatLanes <= dim; d += kFloatLanes) {
    AddWeightedTile<kBf16, kHeads, 1>(weights, weight_stride, values, num_values, d, dim, o);
  }
  for (; d < dim; ++d) {
    for (int h = 0; h < kHeads; ++h) {
      float sum = o[h * dim + d];
      for (int64_t t = 0; t < num_values; ++t) {
        sum = __builtin_fmaf(weights[h * weight_stride + t], WidenOne(values[t], kBf16, d), sum);
      }
      o[h * dim + d] = sum;
    }
  }
}

template <bool kBf16>
static void AddWeighted(const float* weights, int64_t weight_stride, int64_t num_heads,
                        const uint8_t* const* values, int64_t num_values, int64_t dim, float* o) {
  int64_t h = 0;
  for (; h + 4 <= num_heads; h += 4) {
    AddWeightedHeads<kBf16, 4>(weights + h * weight_stride, weight_stride, values, num_values, dim,
                               o + h * dim);
  }
  for (; h < num_heads; ++h) {
    AddWeightedHeads<kBf16, 1>(weights + h * weight_stride, weight_stride, values, num_values, dim,
                               o + h * dim);
  }
}

static void AddWeightedRows(const float* weights, int64_t weight_stride, int64_t num_heads,
                            const uint8_t* const* values, bool values_bf16, int64_t num_values, int64_t dim,
                            float* o) {
  if (values_bf16) return AddWeighted<true>(weights, weight_stride, num_heads, values, num_values, dim, o);
  AddWeighted<false>(weights, weight_stride, num_heads, values, num_values, dim, o);
}

static void WidenBf16(const uint8_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = WidenOne(in, true, i);
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

// The kernels of rows.h, included by the unit of every tier inside its own namespace. One source for all
// tiers: vectors are the compiler's, of a fixed number of lanes, which it makes of what the unit's flags
// allow.
//
// The unit defines kDotTileRows and kDotTileTokens: what fits into its registers as sums of eight doubles.
//
// No include guard: one inclusion per unit.

#include "backend/cpu/kernels/memory_body.h"

constexpr int64_t kLanes = 8;
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));

// g++ 12 makes two conversions of halves and an insertion of what is one instruction.
#if defined(__AVX512F__)
DSV4_INLINE Doubles Widen(Floats x) {
  return reinterpret_cast<Doubles>(_mm512_cvtps_pd(reinterpret_cast<__m256>(x)));
}
DSV4_INLINE Words Widen(Halves x) {
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x)));
}
DSV4_INLINE Halves UpperHalves(Words x) {
  return reinterpret_cast<Halves>(_mm256_cvtepi32_epi16(_mm256_srli_epi32(reinterpret_cast<__m256i>(x), 16)));
}
#else
DSV4_INLINE Doubles Widen(Floats x) { return __builtin_convertvector(x, Doubles); }
DSV4_INLINE Words Widen(Halves x) { return __builtin_convertvector(x, Words); }
DSV4_INLINE Halves UpperHalves(Words x) { return __builtin_convertvector(x >> 16, Halves); }
#endif
DSV4_INLINE Floats Narrow(Doubles x) { return __builtin_convertvector(x, Floats); }
DSV4_INLINE Doubles Broadcast(double x) { return Doubles{} + x; }

// As fp32 whose lower half is zero. NaN stays NaN.
DSV4_INLINE Words RoundBitsToBf16(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const Words is_nan = reinterpret_cast<Words>((bits & 0x7FFFFFFFU) > 0x7F800000U);
  return ((rounded & ~is_nan) | ((bits | 0x400000U) & is_nan)) & 0xFFFF0000U;
}
DSV4_INLINE Floats RoundToBf16(Floats x) { return reinterpret_cast<Floats>(RoundBitsToBf16(x)); }

// Eight consecutive elements of a row; `i` counts elements.
template <bool kBf16>
DSV4_INLINE Floats LoadRow(const uint8_t* row, int64_t i) {
  if (!kBf16) return Load<Floats>(row + 4 * i);
  return reinterpret_cast<Floats>(Widen(Load<Halves>(row + 2 * i)) << 16);
}
template <bool kBf16>
DSV4_INLINE void StoreRow(uint8_t* row, int64_t i, Floats x) {
  if (!kBf16) return Store(row + 4 * i, x);
  Store(row + 2 * i, UpperHalves(RoundBitsToBf16(x)));
}

// Runs step(first, count) over eight elements at a time; what is left at the end goes through `partial(first,
// rest)`.
template <typename Whole, typename Partial>
DSV4_INLINE void ForEachEight(int64_t count, const Whole& whole, const Partial& partial) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) whole(i);
  if (i < count) partial(i, count - i);
}

DSV4_INLINE Floats LoadPartial(const float* from, int64_t count) {
  Floats x = {};
  __builtin_memcpy(&x, from, static_cast<uint64_t>(count) * sizeof(float));
  return x;
}
DSV4_INLINE void StorePartial(float* to, Floats x, int64_t count) {
  __builtin_memcpy(to, &x, static_cast<uint64_t>(count) * sizeof(float));
}

// Lanes in order.
DSV4_INLINE double SumLanes(Doubles x) {
  double sum = 0.0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
}

// e^x = 2^n e^r with |r| <= ln(2) / 2, where thirteen terms of the series leave less than a rounding of
// double. NaN stays.
DSV4_INLINE Doubles Exp(Doubles x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefap-1;  // 36 bits: n times it is exact.
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kRound = 0x1.8p52;  // Leaves a sum its integer part, in its lowest bits.
  const Doubles clamped = x < -700.0 ? Broadcast(-700.0) : (x > 709.0 ? Broadcast(709.0) : x);
  const Doubles shifted = clamped * kLog2E + kRound;
  const Doubles n = shifted - kRound;
  const Doubles r = (clamped - n * kLn2High) - n * kLn2Low;
  constexpr double kFactors[] = {1.0 / 6227020800.0,
                                 1.0 / 479001600.0,
                                 1.0 / 39916800.0,
                                 1.0 / 3628800.0,
                                 1.0 / 362880.0,
                                 1.0 / 40320.0,
                                 1.0 / 5040.0,
                                 1.0 / 720.0,
                                 1.0 / 120.0,
                                 1.0 / 24.0,
                                 1.0 / 6.0,
                                 0.5,
                                 1.0,
                                 1.0};
  Doubles p = Broadcast(kFactors[0]);
#pragma GCC unroll 16
  for (int i = 1; i < 14; ++i) p = p * r + kFactors[i];
  const Longs exponent = (reinterpret_cast<Longs>(shifted) << 52) + (int64_t{1023} << 52);
  const Doubles result = p * reinterpret_cast<Doubles>(exponent);
  return x > 709.0 ? Broadcast(__builtin_inf()) : result;
}

static void Swiglu(const float* gate, const float* up, int64_t count, double limit, double row_weight,
                   float* out) {
  const auto value = [&](Floats gates, Floats ups) __attribute__((always_inline)) {
    const Doubles high = Broadcast(limit);
    const Doubles g = Widen(gates);
    const Doubles u = Widen(ups);
    const Doubles bounded_gate = g > high ? high : g;
    const Doubles bounded_up = u < -high ? -high : (u > high ? high : u);
    return Narrow(row_weight * (bounded_gate / (1.0 + Exp(-bounded_gate)) * bounded_up));
  };
  ForEachEight(
      count, [&](int64_t i) { Store(out + i, value(Load<Floats>(gate + i), Load<Floats>(up + i))); },
      [&](int64_t i, int64_t rest) {
        StorePartial(out + i, value(LoadPartial(gate + i, rest), LoadPartial(up + i, rest)), rest);
      });
}

static double SumSquares(const float* x, int64_t count, bool round_squares) {
  Doubles sums = {};
  const auto add = [&](Floats values) __attribute__((always_inline)) {
    if (round_squares) {
      sums += Widen(RoundToBf16(values * values));
    } else {
      sums += Widen(values) * Widen(values);
    }
  };
  ForEachEight(
      count, [&](int64_t i) { add(Load<Floats>(x + i)); },
      [&](int64_t i, int64_t rest) { add(LoadPartial(x + i, rest)); });
  return SumLanes(sums);
}

static void Scale(const float* x, const float* weight, int64_t count, double factor, float* out) {
  if (weight == nullptr) {
    ForEachEight(
        count, [&](int64_t i) { Store(out + i, Narrow(Widen(Load<Floats>(x + i)) * factor)); },
        [&](int64_t i, int64_t rest) {
          StorePartial(out + i, Narrow(Widen(LoadPartial(x + i, rest)) * factor), rest);
        });
    return;
  }
  const auto value = [&](Floats values, Floats weights) __attribute__((always_inline)) {
    return Narrow(Widen(values) * (factor * Widen(weights)));
  };
  ForEachEight(
      count, [&](int64_t i) { Store(out + i, value(Load<Floats>(x + i), Load<Floats>(weight + i))); },
      [&](int64_t i, int64_t rest) {
        StorePartial(out + i, value(LoadPartial(x + i, rest), LoadPartial(weight + i, rest)), rest);
      });
}

// kIn 0: any number of inputs.
template <bool kBf16, int kIn>
static void MixRowsOf(const uint8_t* const* in, int64_t num_in, const double* factors, int64_t num_out,
                      int64_t count, uint8_t* const* out) {
  const int64_t inputs = kIn > 0 ? kIn : num_in;
  // All inputs of a column are read before an output is written: it may be one of them.
  const auto mix = [&](int64_t i) __attribute__((always_inline)) {
    Doubles x[kIn > 0 ? kIn : kMaxMixRows];
#pragma GCC unroll 8
    for (int64_t k = 0; k < inputs; ++k) x[k] = Widen(LoadRow<kBf16>(in[k], i));
    for (int64_t o = 0; o < num_out; ++o) {
      const double* const factor = factors + o * inputs;
      Doubles sum = x[0] * factor[0];
#pragma GCC unroll 8
      for (int64_t k = 1; k < inputs; ++k) sum += x[k] * factor[k];
      StoreRow<kBf16>(out[o], i, Narrow(sum));
    }
  };
  const auto mix_rest = [&](int64_t first, int64_t rest) {
    constexpr int64_t kBytes = kBf16 ? 2 : 4;
    for (int64_t i = first; i < first + rest; ++i) {
      float x[kMaxMixRows];
      for (int64_t k = 0; k < inputs; ++k) {
        uint32_t bits = 0;
        __builtin_memcpy(&bits, in[k] + kBytes * i, kBytes);
        bits = kBf16 ? bits << 16 : bits;
        __builtin_memcpy(&x[k], &bits, sizeof(bits));
      }
      for (int64_t o = 0; o < num_out; ++o) {
        const double* const factor = factors + o * inputs;
        double sum = static_cast<double>(x[0]) * factor[0];
        for (int64_t k = 1; k < inputs; ++k) sum += static_cast<double>(x[k]) * factor[k];
        uint8_t eight[4 * kLanes];
        StoreRow<kBf16>(eight, 0, Floats{} + static_cast<float>(sum));
        __builtin_memcpy(out[o] + kBytes * i, eight, kBytes);
      }
    }
  };
  ForEachEight(count, mix, mix_rest);
}

template <bool kBf16>
static void MixRowsAs(const uint8_t* const* in, int64_t num_in, const double* factors, int64_t num_out,
                      int64_t count, uint8_t* const* out) {
  switch (num_in) {
    case 0:
      return;
    case 4:
      return MixRowsOf<kBf16, 4>(in, num_in, factors, num_out, count, out);
    case 5:
      return MixRowsOf<kBf16, 5>(in, num_in, factors, num_out, count, out);
    default:
      return MixRowsOf<kBf16, 0>(in, num_in, factors, num_out, count, out);
  }
}

static void MixRows(const uint8_t* const* in, int64_t num_in, bool bf16, const double* factors,
                    int64_t num_out, int64_t count, uint8_t* const* out) {
  if (bf16) return MixRowsAs<true>(in, num_in, factors, num_out, count, out);
  MixRowsAs<false>(in, num_in, factors, num_out, count, out);
}

// Every pair has one sum of eight lanes over whole groups of eight, then its lanes in order, then the rest.
template <int kRows, int kTokens>
static void DotTile(const uint8_t* rows, int64_t row_stride, int64_t width, const float* x, double* out,
                    int64_t out_stride) {
  Doubles sums[kRows][kTokens] = {};
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Doubles tokens[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) tokens[t] = Widen(Load<Floats>(x + t * width + i));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* const from = rows + 4 * (r * row_stride + i);
      if (kTokens == 1) __builtin_prefetch(from + 1024);
      const Doubles row = Widen(Load<Floats>(from));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) sums[r][t] += row * tokens[t];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      double sum = SumLanes(sums[r][t]);
      for (int64_t i = whole; i < width; ++i) {
        sum += static_cast<double>(Load<float>(rows + 4 * (r * row_stride + i))) *
               static_cast<double>(x[t * width + i]);
      }
      out[t * out_stride + r] = sum;
    }
  }
}

template <int kTokens>
static void DotTokens(const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                      const float* x, double* out) {
  int64_t r = 0;
  for (; r + kDotTileRows <= num_rows; r += kDotTileRows)
    DotTile<kDotTileRows, kTokens>(rows + 4 * r * row_stride, row_stride, width, x, out + r, num_rows);
  for (; r < num_rows; ++r)
    DotTile<1, kTokens>(rows + 4 * r * row_stride, row_stride, width, x, out + r, num_rows);
}

static void DotRows(const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t width, const float* x,
                    int64_t num_tokens, double* out) {
  int64_t t = 0;
  for (; t + kDotTileTokens <= num_tokens; t += kDotTileTokens)
    DotTokens<kDotTileTokens>(rows, row_stride, num_rows, width, x + t * width, out + t * num_rows);
  // The rest reads the rows once too.
  const int64_t left = num_tokens - t;
  if (kDotTileTokens > 3 && left == 3)
    return DotTokens<3>(rows, row_stride, num_rows, width, x + t * width, out + t * num_rows);
  if (kDotTileTokens > 2 && left == 2)
    return DotTokens<2>(rows, row_stride, num_rows, width, x + t * width, out + t * num_rows);
  for (; t < num_tokens; ++t)
    DotTokens<1>(rows, row_stride, num_rows, width, x + t * width, out + t * num_rows);
}

// Sine and cosine for |angle| <= 2^24. First n quarter turns are taken off in three parts, the first two so
// short that n times them is exact. Then follow series of both functions on |r| <= pi / 4.
DSV4_INLINE void SineCosine8(Doubles angle, double* sines, double* cosines) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPi1 = 0x1.921fb54p+0;
  constexpr double kHalfPi2 = 0x1.10b4611p-30;
  constexpr double kHalfPi3 = 0x1.4c4c6628b80dcp-59;
  constexpr double kRound = 0x1.8p52;
  const Doubles shifted = angle * kTwoOverPi + kRound;
  const Doubles n = shifted - kRound;
  const Longs quarter = reinterpret_cast<Longs>(shifted);
  const Doubles r = ((angle - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const Doubles square = r * r;
  constexpr double kSine[] = {
      1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
      1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  constexpr double kCosine[] = {
      1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
      1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0,        -0.5};
  Doubles s = Broadcast(kSine[0]);
#pragma GCC unroll 16
  for (int i = 1; i < 8; ++i) s = s * square + kSine[i];
  Doubles c = Broadcast(kCosine[0]);
#pragma GCC unroll 16
  for (int i = 1; i < 8; ++i) c = c * square + kCosine[i];
  const Doubles sine = r + r * square * s;
  const Doubles cosine = 1.0 + square * c;
  const Longs odd = (quarter & 1) != 0;
  const Doubles sine_part = odd ? cosine : sine;
  const Doubles cosine_part = odd ? sine : cosine;
  // Sine changes sign in quarters 2 and 3, cosine in 1 and 2.
  const Longs sine_sign = (quarter & 2) << 62;
  const Longs cosine_sign = ((quarter + 1) & 2) << 62;
  Store(sines, reinterpret_cast<Doubles>(reinterpret_cast<Longs>(sine_part) ^ sine_sign));
  Store(cosines, reinterpret_cast<Doubles>(reinterpret_cast<Longs>(cosine_part) ^ cosine_sign));
}

static void SineCosine(const float* angles, int64_t count, double* sines, double* cosines) {
  ForEachEight(
      count, [&](int64_t i) { SineCosine8(Widen(Load<Floats>(angles + i)), sines + i, cosines + i); },
      [&](int64_t i, int64_t rest) {
        double s[kLanes];
        double c[kLanes];
        SineCosine8(Widen(LoadPartial(angles + i, rest)), s, c);
        for (int64_t k = 0; k < rest; ++k) {
          sines[i + k] = s[k];
          cosines[i + k] = c[k];
        }
      });
  for (int64_t i = 0; i < count; ++i) {
    if (__builtin_fabsf(angles[i]) <= 0x1p24F) continue;  // NaN too goes to the library.
    sines[i] = __builtin_sin(static_cast<double>(angles[i]));
    cosines[i] = __builtin_cos(static_cast<double>(angles[i]));
  }
}

template <bool kBf16>
static void RotateRows(uint8_t* data, int64_t num_rows, int64_t stride, int64_t num_pairs,
                       const double* sines, const double* cosines) {
  constexpr int64_t kBytes = kBf16 ? 2 : 4;
  constexpr int64_t kPairs = kLanes / 2;
  for (int64_t pair = 0; pair < num_pairs; pair += kPairs) {
    const int64_t count = num_pairs - pair < kPairs ? num_pairs - pair : kPairs;
    Doubles c = {};
    Doubles s = {};
    for (int64_t i = 0; i < count; ++i) {
      c[2 * i] = c[2 * i + 1] = cosines[pair + i];
      s[2 * i] = -sines[pair + i];
      s[2 * i + 1] = sines[pair + i];
    }
    uint8_t* at = data + kBytes * 2 * pair;
    const auto rotated = [&](Floats values) __attribute__((always_inline)) {
      const Doubles x = Widen(values);
      return Narrow(x * c + __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6) * s);
    };
    for (int64_t row = 0; row < num_rows; ++row, at += stride) {
      if (count == kPairs) {
        StoreRow<kBf16>(at, 0, rotated(LoadRow<kBf16>(at, 0)));
        continue;
      }
      const auto bytes = static_cast<uint64_t>(kBytes * 2 * count);
      uint8_t eight[4 * kLanes] = {};
      __builtin_memcpy(eight, at, bytes);
      StoreRow<kBf16>(eight, 0, rotated(LoadRow<kBf16>(eight, 0)));
      __builtin_memcpy(at, eight, bytes);
    }
  }
}

static void Rotate(uint8_t* data, bool bf16, int64_t num_rows, int64_t stride, int64_t num_pairs,
                   const double* sines, const double* cosines) {
  if (bf16) return RotateRows<true>(data, num_rows, stride, num_pairs, sines, cosines);
  RotateRows<false>(data, num_rows, stride, num_pairs, sines, cosines);
}

static void Hadamard(const float* x, int64_t width, double factor, bool bf16, double* scratch, float* out) {
  const Doubles one = {1, -1, 1, -1, 1, -1, 1, -1};
  const Doubles two = {1, 1, -1, -1, 1, 1, -1, -1};
  const Doubles four = {1, 1, 1, 1, -1, -1, -1, -1};
  for (int64_t i = 0; i < width; i += kLanes) {
    Doubles v = Widen(Load<Floats>(x + i));
    v = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6) + v * one;
    v = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5) + v * two;
    v = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3) + v * four;
    Store(scratch + i, v);
  }
  for (int64_t half = kLanes; half < width; half *= 2) {
    for (int64_t block = 0; block < width; block += 2 * half) {
      for (int64_t i = block; i < block + half; i += kLanes) {
        const Doubles a = Load<Doubles>(scratch + i);
        const Doubles b = Load<Doubles>(scratch + i + half);
        Store(scratch + i, a + b);
        Store(scratch + i + half, a - b);
      }
    }
  }
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats y = Narrow(Load<Doubles>(scratch + i) * factor);
    Store(out + i, bf16 ? RoundToBf16(y) : y);
  }
}

// Rounds to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with its sign, ties to even codes. Adding a large
// number leaves the multiples of the binade's step.
static inline float NearestE2m1(float value) {
  const float magnitude = __builtin_fabsf(value);
  const float bounded = magnitude > 6.0F ? 6.0F : magnitude;
  const float large = bounded < 2.0F ? 0x1.8p22F : (bounded < 4.0F ? 0x1.8p23F : 0x1.8p24F);
  return __builtin_copysignf((bounded + large) - large, value);
}

static bool RoundFp4(float* row, int64_t count, int64_t group) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = Load<uint32_t>(row + i) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest >= 0x7F800000U) return false;
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t end = begin + group < count ? begin + group : count;
    uint32_t max = 0;  // Magnitudes compare as integers.
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t magnitude = Load<uint32_t>(row + i) & 0x7FFFFFFFU;
      max = magnitude > max ? magnitude : max;
    }
    const float magnitude = Load<float>(&max);
    const float floored = magnitude > 6.0F * 0x1p-126F ? magnitude : 6.0F * 0x1p-126F;
    const float ratio = floored * (1.0F / 6.0F);
    const uint32_t bits = Load<uint32_t>(&ratio);
    const uint32_t scale_bits = ((bits & 0x7FFFFFU) != 0 ? bits + 0x800000U : bits) & 0x7F800000U;
    const float scale = Load<float>(&scale_bits);
    for (int64_t i = begin; i < end; ++i) row[i] = NearestE2m1(row[i] / scale) * scale;
  }
  return true;
}

#include "backend/cpu/kernels/widen_body.h"

static void Range(const float* x, int64_t count, float* smallest, float* largest) {
  Floats low = Floats{} + x[0];
  Floats high = low;
  const auto take = [&](Floats values) __attribute__((always_inline)) {
    low = values < low ? values : low;
    high = values > high ? values : high;
  };
  ForEachEight(
      count, [&](int64_t i) { take(Load<Floats>(x + i)); },
      [&](int64_t i, int64_t rest) {
        for (int64_t k = i; k < i + rest; ++k) take(Floats{} + x[k]);
      });
  *smallest = low[0];
  *largest = high[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    *smallest = low[lane] < *smallest ? low[lane] : *smallest;
    *largest = high[lane] > *largest ? high[lane] : *largest;
  }
}

static double Exponentials(const float* logits, int64_t count, double scale, double max, bool round_weights,
                           float* weights) {
  Doubles sums = {};
  const auto rounded = [&](Doubles e) __attribute__((always_inline)) {
    const Floats narrow = Narrow(e);
    return round_weights ? RoundToBf16(narrow) : narrow;
  };
  ForEachEight(
      count,
      [&](int64_t i) {
        const Doubles e = Exp(Widen(Load<Floats>(logits + i)) * scale - max);
        sums += e;
        Store(weights + i, rounded(e));
      },
      [&](int64_t i, int64_t rest) {
        Doubles e = Exp(Widen(LoadPartial(logits + i, rest)) * scale - max);
        for (int64_t lane = rest; lane < kLanes; ++lane) e[lane] = 0.0;
        sums += e;
        StorePartial(weights + i, rounded(e), rest);
      });
  return SumLanes(sums);
}

static bool AllFinite(const uint8_t* row, bool bf16, int64_t count) {
  uint32_t largest = 0;
  if (bf16) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t magnitude = Load<uint16_t>(row + 2 * i) & 0x7FFFU;
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7F80U;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = Load<uint32_t>(row + 4 * i) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < 0x7F800000U;
}

template <bool kBf16>
DSV4_INLINE void IndexScoresOf(const float* dots, int64_t stride, int64_t num_heads, const float* weights,
                               float* scores) {
  for (int64_t i = 0; i < kScoreKeys; i += kLanes) {
    Doubles sum = {};
    for (int64_t h = 0; h < num_heads; ++h) {
      const Floats exact = Load<Floats>(dots + h * stride + i);
      const Floats dot = kBf16 ? RoundToBf16(exact) : exact;
      const Floats relu = dot < 0.0F ? Floats{} : dot;
      if (kBf16) {
        sum += Widen(RoundToBf16(relu * weights[h]));  // The product of two bf16 numbers is exact in fp32.
      } else {
        sum += Widen(relu) * static_cast<double>(weights[h]);
      }
    }
    const Floats score = Narrow(sum);
    Store(scores + i, kBf16 ? RoundToBf16(score) : score);
  }
}

static void IndexScores(const float* dots, int64_t stride, int64_t num_heads, const float* weights, bool bf16,
                        float* scores) {
  if (bf16) return IndexScoresOf<true>(dots, stride, num_heads, weights, scores);
  IndexScoresOf<false>(dots, stride, num_heads, weights, scores);
}

static void Pool(const float* scores, int64_t score_stride, const float* const* values, int64_t num_tokens,
                 int64_t count, float* out) {
  const auto pooled = [&](int64_t c, const auto& load) __attribute__((always_inline)) {
    Floats max = load(scores + c);
    for (int64_t t = 1; t < num_tokens; ++t) {
      const Floats score = load(scores + t * score_stride + c);
      max = score > max ? score : max;
    }
    Doubles weighted = {};
    Doubles total = {};
    for (int64_t t = 0; t < num_tokens; ++t) {
      const Doubles weight = Exp(Widen(load(scores + t * score_stride + c)) - Widen(max));
      weighted += weight * Widen(load(values[t] + c));
      total += weight;
    }
    return Narrow(weighted / total);
  };
  ForEachEight(
      count,
      [&](int64_t c) { Store(out + c, pooled(c, [](const float* from) { return Load<Floats>(from); })); },
      [&](int64_t c, int64_t rest) {
        StorePartial(out + c, pooled(c, [rest](const float* from) { return LoadPartial(from, rest); }), rest);
      });
}

static constexpr RowKernels MakeRowKernels() {
  return {.swiglu = Swiglu,
          .sum_squares = SumSquares,
          .scale = Scale,
          .mix_rows = MixRows,
          .dot_rows = DotRows,
          .sine_cosine = SineCosine,
          .rotate = Rotate,
          .hadamard = Hadamard,
          .round_fp4 = RoundFp4,
          .widen_e4m3 = WidenE4m3,
          .widen_e2m1 = WidenE2m1,
          .range = Range,
          .exponentials = Exponentials,
          .all_finite = AllFinite,
          .index_scores = IndexScores,
          .pool = Pool};
}

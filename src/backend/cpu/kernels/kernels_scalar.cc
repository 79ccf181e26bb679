// The tier that every machine has: plain C++, no intrinsics.
#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::scalar {
namespace {

using Vec = float;
using WVec = float;
using X = float;
constexpr int kVecs = 16;
constexpr int kLanes = 1;
constexpr int kRowsOfOne = 1;
constexpr int kPlainRows = 1;
constexpr int kFreshRows = 1;
constexpr int kPlainTokens = 2;
constexpr int kFreshTokens = 2;
constexpr int kWideTokens = 0;
constexpr bool kHoldX = false;
constexpr int kLoadedTokens = 2;

// Vocabulary that every instruction set gives to matmul_body.h and row_kernels_body.h; one lane wants less of
// it than vectors do.
inline Vec Zero() { return 0.0F; }
inline Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec Dot(Vec sum, WVec w, X x) { return w * x + sum; }
inline Vec Add(Vec a, Vec b) { return a + b; }
inline void Reduce4(const Vec* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = v[i];
}

template <typename T>
inline T Load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
inline X LoadX(const X* from) { return *from; }
[[maybe_unused]] inline WVec LoadW(const uint8_t* from) { return Load<float>(from); }
[[maybe_unused]] inline void StoreW(uint8_t* to, WVec w) { __builtin_memcpy(to, &w, sizeof(w)); }
inline float FloatFrom(uint32_t bits) { return Load<float>(&bits); }
inline Vec LoadBf16s(const uint8_t* from) {
  return FloatFrom(static_cast<uint32_t>(Load<uint16_t>(from)) << 16);
}

// e4m3 without its sign, at first with an exponent 8 too low. No subnormal fp32 comes up, which costs some
// cores a hundred cycles: subnormal codes first get the exponent below theirs and a leading one. Doubled,
// without that one, they are right, and less than before; other numbers are not.
inline float E4m3Magnitude(uint32_t code) {
  const float number = FloatFrom((code & 0x7FU) << 20 | (127U - 15U) << 23);
  const float doubled = 2.0F * number - 0x1p-14F;
  return (code & 0x7FU) == 0x7FU ? __builtin_nanf("") : (number < doubled ? number : doubled) * 0x1p8F;
}

constexpr float kE2m1[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                             -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// A step is a part: 16 columns, the smallest block of scales.
constexpr int kStepColumns = kVecs * kLanes;

struct Chunk {
  static constexpr int64_t kColumns = kChunk;
  static constexpr int kPartSteps = 1;
};

struct Unscaled : Chunk {
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = false;
  struct Scales {};
  static Scales LoadScales(const uint8_t*, const void*, int64_t) { return {}; }
  static Vec PartScale(const Scales&, int) { return 1.0F; }
};

struct F32 : Unscaled {
  static constexpr int64_t kBytes = 512;
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int i = 0; i < kStepColumns; ++i) w[i] = Load<float>(bytes + 4 * (step * kStepColumns + i));
  }
};

struct Bf16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int i = 0; i < kStepColumns; ++i) w[i] = LoadBf16s(bytes + 2 * (step * kStepColumns + i));
  }
};

struct F16 : Unscaled {
  static constexpr int64_t kBytes = 256;
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int i = 0; i < kStepColumns; ++i) {
      const uint32_t half = Load<uint16_t>(bytes + 2 * (step * kStepColumns + i));
      // As for e4m3: the exponent is 112 too low; infinity and NaN need all ones.
      const uint32_t magnitude = (half & 0x7FFFU) << 13;
      const float value =
          (half & 0x7C00U) == 0x7C00U ? FloatFrom(magnitude | 0x7F800000U) : FloatFrom(magnitude) * 0x1p112F;
      w[i] = (half & 0x8000U) != 0 ? -value : value;
    }
  }
};

struct Fp8 : Chunk {
  static constexpr int64_t kBytes = 128;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  using Scales = float;
  static Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const float*>(side)[chunk];
  }
  static Vec PartScale(const Scales& scales, int) { return scales; }
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int i = 0; i < kStepColumns; ++i) {
      const uint32_t code = bytes[step * kStepColumns + i];
      w[i] = (code & 0x80U) != 0 ? -E4m3Magnitude(code) : E4m3Magnitude(code);
    }
  }
};

struct Fp8Fine : Fp8 {
  using Scales = const float*;
  static Scales LoadScales(const uint8_t*, const void* side, int64_t chunk) {
    return static_cast<const float*>(side) + chunk * (kChunk / kFineColumns);
  }
  static Vec PartScale(const Scales& scales, int part) { return scales[part * kStepColumns / kFineColumns]; }
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    Fp8::Decode(bytes, step, 1.0F, w);
  }
};

struct Fp4 : Chunk {
  static constexpr int64_t kBytes = 64;
  static constexpr bool kScaled = true;
  static constexpr bool kLoaded = false;
  template <class Scales>
  static void Decode(const uint8_t* bytes, int step, const Scales&, WVec* w) {
    for (int i = 0; i < kStepColumns; i += 2) {
      const uint8_t byte = bytes[(step * kStepColumns + i) / 2];
      w[i] = kE2m1[byte & 0xFU];
      w[i + 1] = kE2m1[byte >> 4];
    }
  }
};

struct MxFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 4;
  struct Scales {
    float values[4];
  };
  static Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    Scales scales;
    for (int i = 0; i < 4; ++i) {
      scales.values[i] = FloatFrom(codes[i] == 0 ? 0x00400000U : static_cast<uint32_t>(codes[i]) << 23);
    }
    return scales;
  }
  static Vec PartScale(const Scales& scales, int part) { return scales.values[part / 2]; }
};

struct NvFp4 : Fp4 {
  static constexpr int64_t kScaleBytes = 8;
  struct Scales {
    float values[8];
  };
  static Scales LoadScales(const uint8_t* codes, const void*, int64_t) {
    Scales scales;
    for (int i = 0; i < 8; ++i) scales.values[i] = E4m3Magnitude(codes[i]);
    return scales;
  }
  static Vec PartScale(const Scales& scales, int part) { return scales.values[part]; }
};

#include "backend/cpu/kernels/matmul_body.h"
#include "backend/cpu/kernels/row_kernels_body.h"

struct Order {
  constexpr Order() {
    for (int i = 0; i < kPackColumns; ++i) columns[i] = static_cast<uint8_t>(i);
  }
  uint8_t columns[kPackColumns] = {};
};
constexpr Order kInOrder;

}  // namespace

const Kernels kKernels = {
    .floats = {.bf16_activations = false,
               .formats = {{kInOrder.columns, Multiply<F32>},
                           {kInOrder.columns, Multiply<F16>},
                           {kInOrder.columns, Multiply<Bf16>},
                           {kInOrder.columns, Multiply<Fp8>},
                           {kInOrder.columns, Multiply<MxFp4>},
                           {kInOrder.columns, Multiply<NvFp4>},
                           {kInOrder.columns, Multiply<Fp8Fine>}}},
    .bf16 = {},
    .round_fp8 = RoundFp8,
    .widen_bf16 = WidenBf16,
    .narrow_bf16 = NarrowBf16,
};

}  // namespace dsv4::backend::cpu::scalar

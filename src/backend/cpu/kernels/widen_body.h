// Codes of packed cache rows as bf16, included by rows_body.h.
//
// No include guard: one inclusion per unit.

// Codes become fp32 with their own exponent; that of a subnormal one is taken for the smallest, whose leading
// one is then subtracted. So no subnormal fp32 comes up, which costs some cores a hundred cycles.
typedef uint32_t Words16 __attribute__((vector_size(64)));
typedef float Floats16 __attribute__((vector_size(64)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));

// kMantissaBits of a code and what its exponent lacks to that of fp32; signs are in bit 31.
template <int kMantissaBits, uint32_t kExponent>
DSV4_INLINE Words16 WidenCodes(Words16 magnitudes, Words16 signs, float scale) {
  constexpr uint32_t kOne = 1U << 23;
  const Words16 subnormal = reinterpret_cast<Words16>(magnitudes < (1U << kMantissaBits));
  const Words16 bits = (magnitudes << (23 - kMantissaBits)) + (kExponent << 23) + (subnormal & kOne);
  const Words16 leading = subnormal & ((kExponent + 1) << 23);
  const Floats16 value = reinterpret_cast<Floats16>(bits) - reinterpret_cast<Floats16>(leading);
  return reinterpret_cast<Words16>(reinterpret_cast<Floats16>(reinterpret_cast<Words16>(value) | signs) *
                                   scale);
}

static void WidenE4m3(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                      uint8_t* out) {
  const auto sixteen = [&](Bytes16 some, float scale) __attribute__((always_inline)) {
    const Words16 wide = __builtin_convertvector(some, Words16);
    return __builtin_convertvector(WidenCodes<3, 120>(wide & 0x7FU, (wide & 0x80U) << 24, scale) >> 16,
                                   Halves16);
  };
  uint32_t largest = 0;
  for (int64_t i = 0; i < num_groups * group; ++i) {
    const uint32_t magnitude = codes[i] & 0x7FU;
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    int64_t i = g * group;
    const int64_t end = i + group;
    for (; i + 16 <= end; i += 16) Store(out + 2 * i, sixteen(Load<Bytes16>(codes + i), scales[g]));
    if (i < end) {
      Bytes16 some = {};
      __builtin_memcpy(&some, codes + i, static_cast<uint64_t>(end - i));
      const Halves16 values = sixteen(some, scales[g]);
      __builtin_memcpy(out + 2 * i, &values, static_cast<uint64_t>(2 * (end - i)));
    }
  }
  if (largest < 0x7FU) return;
  for (int64_t i = 0; i < num_groups * group; ++i) {
    if ((codes[i] & 0x7FU) == 0x7FU) Store(out + 2 * i, uint16_t{0x7FC0});
  }
}

static void WidenE2m1(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                      uint8_t* out) {
  // A byte is a word of two bf16.
  const auto sixteen = [&](Bytes16 some, float scale) __attribute__((always_inline)) {
    const Words16 wide = __builtin_convertvector(some, Words16);
    const Words16 even = WidenCodes<1, 126>(wide & 7U, (wide & 8U) << 28, scale);
    const Words16 odd = WidenCodes<1, 126>((wide >> 4) & 7U, (wide & 0x80U) << 24, scale);
    return (even >> 16) | (odd & 0xFFFF0000U);
  };
  for (int64_t g = 0; g < num_groups; ++g) {
    int64_t i = g * group / 2;  // A byte's.
    const int64_t end = i + group / 2;
    for (; i + 16 <= end; i += 16) Store(out + 4 * i, sixteen(Load<Bytes16>(codes + i), scales[g]));
    if (i < end) {
      Bytes16 some = {};
      __builtin_memcpy(&some, codes + i, static_cast<uint64_t>(end - i));
      const Words16 values = sixteen(some, scales[g]);
      __builtin_memcpy(out + 4 * i, &values, static_cast<uint64_t>(4 * (end - i)));
    }
  }
}

// Faster ways have codes of e4m3 as words. A normal number's exponent and mantissa move to their bits. The
// difference to bf16's exponent and the exponent of the group's power of two are added. Zero and the seven
// subnormal ones are looked up among these, and those get the group's exponent too.
constexpr uint16_t kSmallE4m3[8] = {0,        118 << 7,        119 << 7,        (119 << 7) + 64,
                                    120 << 7, (120 << 7) + 32, (120 << 7) + 64, (120 << 7) + 96};

// Whether a scale is a power of two, whose exponent is so usual that nothing leaves bf16's normal numbers.
DSV4_INLINE bool UsualPower(float scale, int* exponent) {
  constexpr int kLargestExponent = 100;
  const uint32_t bits = Load<uint32_t>(&scale);
  *exponent = static_cast<int>(bits >> 23) - 127;  // The exponent of a negative one is too large.
  return (bits & 0x7FFFFFU) == 0 && *exponent >= -kLargestExponent && *exponent <= kLargestExponent;
}

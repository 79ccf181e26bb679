// The row kernels of every tier against double and the library: densely, since parity tests meet only some
// values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4::backend::cpu {
namespace {

template <typename Check>
void OnEveryTier(const Check& check) {
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(std::string(IsaName(isa)));
    check(KernelsFor(isa).rows);
  }
}

std::vector<float> Normals(size_t count, float sigma, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Every bf16 gate there is, and fp32 ones between them. The exponential's relative error of some 2^-52 may
// turn an fp32 rounding once in 2^27 elements or so. It turns none of these.
TEST(RowKernels, SwigluOfEveryGate) {
  std::vector<float> gates;
  for (uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const float gate = FloatFromBf16(static_cast<uint16_t>(bits));
    if (std::isinf(gate)) continue;
    gates.push_back(gate);
    if (std::fabs(gate) < 200.0F) gates.push_back(gate * 1.0013F);
  }
  const std::vector<float> ups = Normals(gates.size(), 3.0F, 1);
  for (const double limit : {10.0, std::numeric_limits<double>::infinity()}) {
    std::vector<float> want;
    for (size_t i = 0; i < gates.size(); ++i) {
      const double g = std::min(static_cast<double>(gates[i]), limit);
      const double u = std::clamp(static_cast<double>(ups[i]), -limit, limit);
      want.push_back(static_cast<float>(0.3 * (g / (1.0 + std::exp(-g)) * u)));
    }
    OnEveryTier([&](const RowKernels& kernels) {
      std::vector<float> got(gates.size());
      kernels.swiglu(gates.data(), ups.data(), static_cast<int64_t>(gates.size()), limit, 0.3, got.data());
      size_t num_different = 0;
      for (size_t i = 0; i < got.size(); ++i)
        num_different += !(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])));
      EXPECT_EQ(num_different, 0U);
    });
  }
}

TEST(RowKernels, SineAndCosineAtEveryRange) {
  std::vector<float> angles = {0.0F, -0.0F, 1e-30F, 0x1p24F, -0x1p24F, 0x1.000002p24F, 1e9F, -1e30F};
  for (const float scale : {1.0F, 100.0F, 1e4F, 1e6F, 1.6e7F}) {
    for (const float value : Normals(50001, scale / 3, 2)) angles.push_back(value);
  }
  // Multiples of a quarter turn, where a difference of nearly equal numbers is left.
  for (int n = 1; n < 20000; ++n) angles.push_back(static_cast<float>(n * 1.57079632679489661923));
  OnEveryTier([&](const RowKernels& kernels) {
    std::vector<double> sines(angles.size());
    std::vector<double> cosines(angles.size());
    kernels.sine_cosine(angles.data(), static_cast<int64_t>(angles.size()), sines.data(), cosines.data());
    double worst = 0;
    for (size_t i = 0; i < angles.size(); ++i) {
      const double angle = static_cast<double>(angles[i]);
      worst =
          std::max({worst, std::fabs(sines[i] - std::sin(angle)), std::fabs(cosines[i] - std::cos(angle))});
    }
    EXPECT_LE(worst, 3 * 0x1p-53);
  });
}

TEST(RowKernels, Fp4OfEveryQuotientAndItsTies) {
  std::vector<float> row;
  for (int eighth = -64; eighth <= 64; ++eighth) {
    const float value = static_cast<float>(eighth) / 8;
    for (const float x : {value, std::nextafter(value, 9.0F), std::nextafter(value, -9.0F)}) row.push_back(x);
  }
  for (const float value : Normals(4001, 1e-38F, 3)) row.push_back(value);  // Subnormals.
  for (const float value : Normals(4001, 1e37F, 4)) row.push_back(value);
  for (const int64_t group : {32, 33, 1}) {
    std::vector<float> want(row.size());
    RoundToFp4Groups(row, group, want);
    OnEveryTier([&](const RowKernels& kernels) {
      std::vector<float> got = row;
      ASSERT_TRUE(kernels.round_fp4(got.data(), static_cast<int64_t>(got.size()), group));
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << group;
    });
  }
  OnEveryTier([&](const RowKernels& kernels) {
    for (const float odd :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> with = row;
      with[77] = odd;
      std::vector<float> after = with;
      EXPECT_FALSE(kernels.round_fp4(after.data(), static_cast<int64_t>(after.size()), 32));
      EXPECT_EQ(std::memcmp(after.data(), with.data(), with.size() * sizeof(float)), 0);
    }
  });
}

// Tiles of rows and tokens, their remainders, and a width that is no multiple of anything.
// Every code under scales of every size and of NaN, in groups of whole and of broken vectors.
TEST(RowKernels, WidenedCodesAreExact) {
  for (const int64_t group : {64, 32, 16, 6}) {
    std::vector<float> scales;
    for (const int exponent : {-100, -22, -1, 0, 3, 60}) scales.push_back(std::ldexp(1.0F, exponent));
    for (const float e4m3 : {1.125F, 0x1p-9F, 448.0F}) scales.push_back(e4m3);
    scales.push_back(std::numeric_limits<float>::quiet_NaN());
    // Every code meets every scale.
    std::vector<float> of_groups;
    std::vector<uint8_t> codes;
    const int64_t groups_of_scale = (256 + group - 1) / group;
    for (const float scale : scales) {
      for (int64_t i = 0; i < groups_of_scale * group; ++i) codes.push_back(static_cast<uint8_t>(i));
      of_groups.insert(of_groups.end(), static_cast<size_t>(groups_of_scale), scale);
    }
    const auto num_groups = static_cast<int64_t>(of_groups.size());
    const auto expect = [&](float want, const uint8_t* got, int64_t i) {
      uint16_t bits = 0;
      std::memcpy(&bits, got + 2 * i, sizeof(bits));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(FloatFromBf16(bits))) << i;
      } else {
        EXPECT_EQ(bits, Bf16FromFloat(want)) << i << ", group " << group;
      }
    };
    OnEveryTier([&](const RowKernels& kernels) {
      std::vector<uint8_t> out(2 * codes.size() + 2, 0xAA);
      kernels.widen_e4m3(codes.data(), of_groups.data(), num_groups, group, out.data());
      for (int64_t i = 0; i < num_groups * group; ++i) {
        const auto at = static_cast<size_t>(i);
        expect(FloatFromE4m3(codes[at]) * of_groups[static_cast<size_t>(i / group)], out.data(), i);
      }
      EXPECT_EQ(out.back(), 0xAA);
      // Half as many groups of two codes a byte.
      std::fill(out.begin(), out.end(), uint8_t{0xAA});
      kernels.widen_e2m1(codes.data(), of_groups.data(), num_groups, group, out.data());
      for (int64_t i = 0; i < num_groups * group; ++i) {
        const uint8_t pair = codes[static_cast<size_t>(i / 2)];
        expect(FloatFromE2m1(i % 2 == 0 ? EvenE2m1(pair) : OddE2m1(pair)) *
                   of_groups[static_cast<size_t>(i / group)],
               out.data(), i);
      }
      EXPECT_EQ(out.back(), 0xAA);
    });
  }
}

TEST(RowKernels, DotRowsDoNotDependOnTheirNeighbours) {
  constexpr int64_t kRows = 24;
  constexpr int64_t kTokens = 9;
  constexpr int64_t kWidth = 1037;
  const std::vector<float> rows = Normals(kRows * kWidth, 1.0F, 5);
  const std::vector<float> x = Normals(kTokens * kWidth, 1.0F, 6);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(rows.data());
  OnEveryTier([&](const RowKernels& kernels) {
    std::vector<double> all(kRows * kTokens);
    kernels.dot_rows(bytes, kWidth, kRows, kWidth, x.data(), kTokens, all.data());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t r = 0; r < kRows; ++r) {
        double one = 0;
        kernels.dot_rows(bytes + 4 * r * kWidth, kWidth, 1, kWidth, x.data() + t * kWidth, 1, &one);
        EXPECT_EQ(one, all[static_cast<size_t>(t * kRows + r)]) << t << " " << r;
        double want = 0;
        for (int64_t i = 0; i < kWidth; ++i)
          want += static_cast<double>(rows[static_cast<size_t>(r * kWidth + i)]) *
                  static_cast<double>(x[static_cast<size_t>(t * kWidth + i)]);
        EXPECT_NEAR(one, want, kWidth * 0x1p-53 * kWidth);
      }
    }
  });
}

}  // namespace
}  // namespace dsv4::backend::cpu

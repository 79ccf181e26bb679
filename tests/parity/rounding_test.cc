// The ops that simulate narrow formats: simulate_fp8 (cache rows) and hadamard_fp4 (indexer).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/grids.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// The smallest power of two not below t, t itself an fp32 product.
double PowerOfTwoAbove(float t) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(t), &exponent);
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

double GroupScale(const std::vector<double>& x, size_t begin, size_t end, float floor, float largest) {
  float max = floor;
  for (size_t i = begin; i < end; ++i) max = std::max(max, std::fabs(static_cast<float>(x[i])));
  return PowerOfTwoAbove(max * (1.0F / largest));
}

struct FormatCase {
  int64_t num_rows;
  int64_t width;
  int64_t num_columns;
  int64_t group;
  int64_t row_gap;
};

TEST(SimulateFp8Parity, AgainstTheArithmeticGrid) {
  const FormatCase cases[] = {{0, 64, 64, 64, 0},   {1, 64, 64, 64, 0}, {3, 512, 448, 64, 0},
                              {129, 80, 64, 64, 7}, {2, 20, 0, 64, 0},  {5, 300, 256, 128, 0},
                              {4, 9, 9, 3, 1}};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const FormatCase& c : cases) {
      for (const bool spread : {false, true}) {
        Random random(31);
        const int64_t count = c.num_rows * c.width;
        std::vector<double> x = Rounded(dtype, spread ? random.Spread(count) : random.Normals(count, 5.0));
        if (!x.empty() && !spread) x[0] = 30000.0;  // One huge neighbour.
        x = Rounded(dtype, x);
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor rounded(dtype, {c.num_rows, c.width}, x, c.row_gap);
          const Status status =
              backend.table.simulate_fp8(*backend.context, {rounded, c.num_columns, c.group});
          EXPECT_TRUE(status.ok()) << status.ToString();
          return Outputs(std::move(rounded));
        });
        std::vector<double> want = x;
        for (int64_t row = 0; row < c.num_rows; ++row) {
          for (int64_t begin = 0; begin < c.num_columns; begin += c.group) {
            const size_t first = static_cast<size_t>(row * c.width + begin);
            const size_t last = first + static_cast<size_t>(c.group);
            const double scale = GroupScale(x, first, last, 1e-4F, 448.0F);
            for (size_t i = first; i < last; ++i) want[i] = NearestE4m3(x[i] / scale) * scale;
          }
        }
        EXPECT_EQ(outputs[0].Values(), want) << c.num_rows << " x " << c.width << " spread " << spread;
      }
    }
  }
}

TEST(HadamardFp4Parity, AgainstTheDenseMatrixAndTheArithmeticGrid) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t width : {32, 64, 128, 256}) {
      for (const int64_t num_rows : {0, 1, 3, 65}) {
        Random random(32);
        const std::vector<double> x = Rounded(dtype, random.Normals(num_rows * width, 3.0));
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor rotated(dtype, {num_rows, width}, x);
          EXPECT_TRUE(backend.table.hadamard_fp4(*backend.context, {rotated}).ok());
          return Outputs(std::move(rotated));
        });
        std::vector<double> want;
        for (int64_t row = 0; row < num_rows; ++row) {
          std::vector<double> y;
          for (int64_t i = 0; i < width; ++i) {
            double sum = 0.0;
            for (int64_t j = 0; j < width; ++j) {
              // H[i][j] = (-1)^(number of common bits of i and j).
              const double sign =
                  __builtin_parityll(static_cast<unsigned long long>(i & j)) != 0 ? -1.0 : 1.0;
              sum += sign * x[static_cast<size_t>(row * width + j)];
            }
            y.push_back(sum / std::sqrt(static_cast<double>(width)));
          }
          if (dtype == DType::kBF16) y = Rounded(dtype, y);
          for (size_t begin = 0; begin < y.size(); begin += 32) {
            const double scale = GroupScale(y, begin, begin + 32, 6 * 0x1p-126F, 6.0F);
            for (size_t i = begin; i < begin + 32; ++i) {
              const double q = static_cast<double>(static_cast<float>(y[i])) / scale;
              want.push_back(NearestE2m1(std::min(6.0, std::max(-6.0, q))) * scale);
            }
          }
        }
        EXPECT_EQ(outputs[0].Values(), want) << width;
      }
    }
  }
}

TEST(HadamardFp4Parity, RotationOnBothSidesKeepsTheDotProductAndOneSideDoesNot) {
  // field notes: rotating the queries and not the keys breaks recall. Small integers survive the FP4 rounding exactly
  // often enough to see the scale of the product.
  Random random(33);
  double plain_sum = 0;
  double both_error = 0;
  double one_error = 0;
  const ops::Backend& backend = Reference();
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<double> q = Rounded(DType::kBF16, random.Normals(128));
    const std::vector<double> k = q;  // A matching key: q . k = |q|^2.
    TestTensor q_rotated(DType::kBF16, {1, 128}, q);
    TestTensor k_rotated(DType::kBF16, {1, 128}, k);
    ASSERT_TRUE(backend.table.hadamard_fp4(*backend.context, {q_rotated}).ok());
    ASSERT_TRUE(backend.table.hadamard_fp4(*backend.context, {k_rotated}).ok());
    double plain = 0;
    double both = 0;
    double one = 0;
    const std::vector<double> qr = q_rotated.Values();
    const std::vector<double> kr = k_rotated.Values();
    for (size_t i = 0; i < 128; ++i) {
      plain += q[i] * k[i];
      both += qr[i] * kr[i];
      one += qr[i] * k[i];
    }
    plain_sum += plain;
    both_error += std::fabs(both - plain);
    one_error += std::fabs(one - plain);
  }
  EXPECT_LT(both_error, 0.15 * plain_sum);
  EXPECT_GT(one_error, 0.5 * plain_sum);
}

}  // namespace
}  // namespace dsv4::test

// Parity of rope: positions, directions, widths and strides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// The table of a plain layer; the op takes any.
std::vector<double> Frequencies(int64_t count, double theta) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < count; ++i) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(count)));
  }
  return Rounded(DType::kF32, frequencies);
}

struct RopeCase {
  int64_t num_heads;
  int64_t width;
  int64_t num_frequencies;
  std::vector<double> positions;
};

std::vector<RopeCase> Cases() {
  return {{1, 2, 1, {}},
          {1, 2, 1, {0}},
          {3, 7, 2, {5, 0, 1000000}},
          {64, 512, 32, {0, 1, 127, 128, 99999, 1000000}},
          {1, 512, 32, {1000000, 1048575, 16777215}},
          {2, 128, 32, {4, 4, 3}},
          {2, 16, 0, {1}}};
}

std::vector<double> Rotated(const RopeCase& c, const std::vector<double>& x,
                            const std::vector<double>& frequencies, bool inverse) {
  std::vector<double> want = x;
  for (size_t t = 0; t < c.positions.size(); ++t) {
    for (int64_t head = 0; head < c.num_heads; ++head) {
      const size_t row_end = (t * static_cast<size_t>(c.num_heads) + static_cast<size_t>(head) + 1) *
                             static_cast<size_t>(c.width);
      for (size_t i = 0; i < static_cast<size_t>(c.num_frequencies); ++i) {
        // Long double holds the cosine of the fp32 angle to far more digits than any result needs.
        const long double angle =
            static_cast<long double>(static_cast<float>(c.positions[t]) * static_cast<float>(frequencies[i]));
        const long double cosine = std::cos(angle);
        const long double sine = inverse ? -std::sin(angle) : std::sin(angle);
        const size_t even = row_end - 2 * static_cast<size_t>(c.num_frequencies) + 2 * i;
        const long double a = static_cast<long double>(x[even]);
        const long double b = static_cast<long double>(x[even + 1]);
        want[even] = static_cast<double>(a * cosine - b * sine);
        want[even + 1] = static_cast<double>(a * sine + b * cosine);
      }
    }
  }
  return want;
}

TEST(RopeParity, AgainstLongDoubleUpToPositionOneMillion) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool inverse : {false, true}) {
      for (const RopeCase& c : Cases()) {
        Random random(21);
        const int64_t num_tokens = static_cast<int64_t>(c.positions.size());
        const Shape shape = {num_tokens, c.num_heads, c.width};
        const std::vector<double> x = Rounded(dtype, random.Normals(shape.num_elements(), 2.0));
        const std::vector<double> frequencies = Frequencies(c.num_frequencies, 10000.0);
        const TestTensor positions(DType::kI32, {num_tokens}, c.positions);
        const TestTensor frequency_tensor(DType::kF32, {c.num_frequencies}, frequencies);
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor rotated(dtype, shape, x);
          const Status status =
              backend.table.rope(*backend.context, {rotated, positions, frequency_tensor, inverse});
          EXPECT_TRUE(status.ok()) << status.ToString();
          return Outputs(std::move(rotated));
        });
        const std::vector<double> magnitudes(x.size(), 10.0);
        ExpectRounded(dtype, outputs[0].Values(), Rotated(c, x, frequencies, inverse), magnitudes, "rope");
      }
    }
  }
}

TEST(RopeParity, LeadingElementsAreNotTouched) {
  const std::vector<double> x = {1, 2, 3, 4, 5, 6};
  TestTensor rotated(DType::kF32, {1, 1, 6}, x);
  const TestTensor positions(DType::kI32, {1}, std::vector<double>{1});
  const TestTensor frequencies(DType::kF32, {1}, std::vector<double>{1.0});
  ASSERT_TRUE(Reference().table.rope(*Reference().context, {rotated, positions, frequencies, false}).ok());
  const std::vector<double> got = rotated.Values();
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 4, x.begin()));
  EXPECT_NE(got[4], 5.0);
}

TEST(RopeParity, InverseUndoesTheRotation) {
  Random random(22);
  const std::vector<double> x = Rounded(DType::kF32, random.Normals(2 * 64));
  TestTensor rotated(DType::kF32, {2, 1, 64}, x);
  const TestTensor positions(DType::kI32, {2}, std::vector<double>{1000000, 17});
  const TestTensor frequencies(DType::kF32, {32}, Frequencies(32, 160000.0));
  const ops::Backend& backend = Reference();
  ASSERT_TRUE(backend.table.rope(*backend.context, {rotated, positions, frequencies, false}).ok());
  EXPECT_NE(rotated.Values(), x);
  ASSERT_TRUE(backend.table.rope(*backend.context, {rotated, positions, frequencies, true}).ok());
  const std::vector<double> back = rotated.Values();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 4e-6);
}

// Each argument is used: a neighbour's position, another frequency or the other direction gives other
// numbers.
TEST(RopeParity, EveryArgumentMatters) {
  Random random(23);
  const std::vector<double> x = random.Normals(64);
  const auto run = [&](double position, double theta, bool inverse) {
    TestTensor rotated(DType::kBF16, {1, 1, 64}, x);
    const TestTensor positions(DType::kI32, {1}, std::vector<double>{position});
    const TestTensor frequencies(DType::kF32, {32}, Frequencies(32, theta));
    EXPECT_TRUE(
        Reference().table.rope(*Reference().context, {rotated, positions, frequencies, inverse}).ok());
    return rotated.Values();
  };
  const std::vector<double> base = run(1000000, 10000, false);
  EXPECT_NE(base, run(999999, 10000, false));
  EXPECT_NE(base, run(1000000, 160000, false));
  EXPECT_NE(base, run(1000000, 10000, true));
}

TEST(RopeParity, NegativePositionIsNamed) {
  TestTensor x(DType::kBF16, {2, 1, 2}, std::vector<double>(4, 1.0));
  const TestTensor positions(DType::kI32, {2}, std::vector<double>{3, -1});
  const TestTensor frequencies(DType::kF32, {1}, std::vector<double>{1.0});
  const Status status = Reference().table.rope(*Reference().context, {x, positions, frequencies, false});
  EXPECT_NE(status.message().find("positions[1]: -1"), std::string::npos) << status.ToString();
  EXPECT_EQ(x.Values(), std::vector<double>(4, 1.0));
}

}  // namespace
}  // namespace dsv4::test

// engram_mix against a second writing of its formula.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

struct MixCase {
  int64_t num_tokens;
  int64_t mult;
  int64_t dim;
};

struct MixInputs {
  std::vector<double> streams;
  std::vector<double> mixed;
  std::vector<double> q;
  std::vector<double> k;
};

MixInputs MakeInputs(const MixCase& c, DType dtype) {
  Random random(83);
  return {Rounded(dtype, random.Normals(c.num_tokens * c.mult * c.dim, 3.0)),
          Rounded(dtype, random.Normals(c.num_tokens * (c.mult + 1) * c.dim, 0.7)),
          Rounded(DType::kBF16, random.Normals(c.mult * c.dim)),
          Rounded(DType::kBF16, random.Normals(c.mult * c.dim))};
}

struct Mixed {
  std::vector<double> values;
  std::vector<double> magnitudes;
  std::vector<double> gates;
};

Mixed Formula(const MixCase& c, const MixInputs& in, double eps, const std::vector<double>& is_image) {
  Mixed result;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const double* const value = in.mixed.data() + (t * (c.mult + 1) + c.mult) * c.dim;
    for (int64_t i = 0; i < c.mult; ++i) {
      const double* const s = in.streams.data() + (t * c.mult + i) * c.dim;
      const double* const key = in.mixed.data() + (t * (c.mult + 1) + i) * c.dim;
      double dot = 0;
      double s2 = 0;
      double k2 = 0;
      for (int64_t d = 0; d < c.dim; ++d) {
        dot += s[d] * in.q[static_cast<size_t>(i * c.dim + d)] * key[d] *
               in.k[static_cast<size_t>(i * c.dim + d)];
        s2 += s[d] * s[d];
        k2 += key[d] * key[d];
      }
      const auto width = static_cast<double>(c.dim);
      const double d = dot / std::sqrt(s2 / width + eps) / std::sqrt(k2 / width + eps) / std::sqrt(width);
      const double root = std::sqrt(std::fmax(std::fabs(d), 1e-6));
      double gate = 0.5 * (1 + std::tanh((d < 0 ? -root : root) / 2));
      if (!is_image.empty() && is_image[static_cast<size_t>(t)] != 0) gate = 0;
      result.gates.push_back(gate);
      for (int64_t column = 0; column < c.dim; ++column) {
        result.values.push_back(s[column] + gate * value[column]);
        result.magnitudes.push_back(std::fabs(s[column]) + std::fabs(gate * value[column]));
      }
    }
  }
  return result;
}

TEST(EngramMixParity, AgainstTheFormula) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const MixCase& c :
         {MixCase{0, 4, 8}, MixCase{1, 4, 1}, MixCase{3, 4, 127}, MixCase{33, 4, 16}, MixCase{2, 1, 64},
          MixCase{2, 3, 33}, MixCase{1, 4, 5120}, MixCase{5, 16, 256}}) {
      const MixInputs in = MakeInputs(c, dtype);
      std::vector<double> is_image(static_cast<size_t>(c.num_tokens), 0.0);
      for (size_t t = 1; t < is_image.size(); t += 3) is_image[t] = 1;
      const TestTensor streams(dtype, {c.num_tokens, c.mult, c.dim}, in.streams);
      const TestTensor mixed(dtype, {c.num_tokens, (c.mult + 1) * c.dim}, in.mixed);
      const TestTensor q(DType::kF32, {c.mult, c.dim}, in.q);
      const TestTensor k(DType::kF32, {c.mult, c.dim}, in.k);
      const TestTensor images(DType::kI32, {c.num_tokens}, is_image);
      for (const bool has_images : {false, true}) {
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor out(dtype, {c.num_tokens, c.mult, c.dim});
          TestTensor in_place(dtype, {c.num_tokens, c.mult, c.dim}, in.streams);
          ops::EngramMixArgs args{.streams = streams,
                                  .mixed = mixed,
                                  .q_weight = q,
                                  .k_weight = k,
                                  .is_image = has_images ? images.view() : TensorView(),
                                  .out = out,
                                  .eps = 1e-20F};
          EXPECT_TRUE(backend.table.engram_mix(*backend.context, args).ok());
          args.streams = args.out = in_place;
          EXPECT_TRUE(backend.table.engram_mix(*backend.context, args).ok());
          EXPECT_EQ(in_place.Bytes(), out.Bytes());
          return Outputs(std::move(out));
        });
        const Mixed want = Formula(c, in, 1e-20, has_images ? is_image : std::vector<double>());
        ExpectRounded(dtype, outputs[0].Values(), want.values, want.magnitudes, "engram_mix");
      }
    }
  }
}

// Both signs, and both sides of the least similarity: the gate jumps over a half.
TEST(EngramMixParity, TheGateHasTheSignOfTheSimilarity) {
  const auto gate = [](double s, double key, float eps) {
    // One column: d = sign(s key) where eps is nothing beside them.
    const TestTensor streams(DType::kF32, {1, 1, 1}, std::vector<double>{s});
    const TestTensor mixed(DType::kF32, {1, 2}, std::vector<double>{key, 1.0});
    const TestTensor ones(DType::kF32, {1, 1}, std::vector<double>{1.0});
    const auto outputs = RunOnAll([&](const ops::Backend& backend) {
      TestTensor out(DType::kF32, {1, 1, 1});
      EXPECT_TRUE(
          backend.table.engram_mix(*backend.context, {streams, mixed, ones, ones, {}, out, eps}).ok());
      return Outputs(std::move(out));
    });
    return outputs[0].Values()[0] - s;
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(gate(2, 3, 1e-20F), sigmoid(1), 1e-6);
  EXPECT_NEAR(gate(-2, 3, 1e-20F), sigmoid(-1), 1e-6);
  EXPECT_NEAR(gate(0, 3, 1e-20F), sigmoid(std::sqrt(1e-6)), 1e-6);
  EXPECT_NEAR(gate(1e-5, 1e-5, 1.0F), sigmoid(std::sqrt(1e-6)), 1e-6);    // |d| of 1e-10 counts as 1e-6,
  EXPECT_NEAR(gate(-1e-5, 1e-5, 1.0F), sigmoid(-std::sqrt(1e-6)), 1e-6);  // with its sign.
  EXPECT_NEAR(gate(1, 1, 3.0F), sigmoid(std::sqrt(0.25)), 1e-6);
}

// A row of zeros, whose norms are as large as eps allows.
TEST(EngramMixParity, ZeroRowsGiveHalfTheValue) {
  const TestTensor streams(DType::kBF16, {1, 1, 64}, std::vector<double>(64, 0.0));
  std::vector<double> row(128, 0.0);
  for (size_t i = 64; i < 128; ++i) row[i] = 2.0;
  const TestTensor mixed(DType::kBF16, {1, 128}, row);
  const TestTensor ones(DType::kF32, {1, 64}, std::vector<double>(64, 1.0));
  const auto outputs = RunOnAll([&](const ops::Backend& backend) {
    TestTensor out(DType::kBF16, {1, 1, 64});
    EXPECT_TRUE(
        backend.table.engram_mix(*backend.context, {streams, mixed, ones, ones, {}, out, 1e-20F}).ok());
    return Outputs(std::move(out));
  });
  for (const double value : outputs[0].Values()) EXPECT_NEAR(value, 1.0, 0.01);
}

}  // namespace
}  // namespace dsv4::test

// The test vectors that the specification prints (vectors.json), on the formats, the rotary table and the
// reference ops.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"
#include "model/config/rope_table.h"
#include "tests/golden/golden_data.h"

namespace dsv4::testing {
namespace {

Json Vectors(const char* name) { return ReadJson(GoldenDirectory() / "vectors.json").at(name); }

TensorView View(std::vector<float>& values, Shape shape) {
  return TensorView::Contiguous(values.data(), DType::kF32, shape);
}

// The vector gives the mixing products m themselves. Streams of ones have the norm factor 1 / sqrt(1 + eps),
// so a diagonal fn of m times its inverse makes hc_pre compute them.
TEST(SpecificationVectors, HyperConnectionSplit) {
  const Json vector = Vectors("hyper_connection_split");
  const auto mixed = vector.at("mixed").get<std::vector<float>>();
  auto base = vector.at("base").get<std::vector<float>>();
  auto scale = vector.at("scale").get<std::vector<float>>();
  const auto eps = vector.at("eps").get<float>();
  const int64_t h = 4;
  const int64_t d = 6;  // H * D = 24 values, as many as products.
  std::vector<float> streams(24, 1.0F);
  std::vector<float> fn(24 * 24, 0.0F);
  for (size_t k = 0; k < 24; ++k) fn[k * 24 + k] = mixed[k] * std::sqrt(1 + eps);
  std::vector<float> u(6);
  std::vector<float> post(4);
  std::vector<float> comb(16);
  const ops::Backend backend = backend::MakeReferenceBackend(1);
  const Status status =
      backend.table.hc_pre(*backend.context, {.streams = View(streams, {1, h, d}),
                                              .fn = View(fn, {24, 24}),
                                              .scale = View(scale, {3}),
                                              .base = View(base, {24}),
                                              .u = View(u, {1, d}),
                                              .post = View(post, {1, h}),
                                              .comb = View(comb, {1, h, h}),
                                              .norm_eps = eps,
                                              .hc_eps = eps,
                                              .sinkhorn_iters = vector.at("iterations").get<int>()});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto tolerance = vector.at("tolerance").get<double>();
  double pre_sum = 0;
  for (const double pre : vector.at("pre").get<std::vector<double>>()) pre_sum += pre;
  for (const float value : u) EXPECT_NEAR(value, pre_sum, 4 * tolerance);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(post[i], vector.at("post")[i].get<double>(), tolerance);
    for (size_t j = 0; j < 4; ++j)
      EXPECT_NEAR(comb[4 * i + j], vector.at("comb")[i][j].get<double>(), tolerance);
  }
}

TEST(SpecificationVectors, YarnFrequencies) {
  const Json vector = Vectors("yarn_frequencies");
  const model::RopeConfig config = {
      .theta = vector.at("theta").get<double>(),
      .yarn = true,
      .factor = vector.at("factor").get<double>(),
      .original_max_position_embeddings = vector.at("original_max_position_embeddings").get<int64_t>(),
      .beta_fast = vector.at("beta_fast").get<double>(),
      .beta_slow = vector.at("beta_slow").get<double>()};
  const std::vector<float> got = model::RopeFrequencies(config, vector.at("rope_dim").get<int64_t>());
  const auto want = vector.at("values").get<std::vector<double>>();
  ASSERT_EQ(got.size(), want.size());
  // The printed digits, and one rounding to fp32.
  const double tolerance = vector.at("relative_tolerance").get<double>() + std::ldexp(1.0, -24);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, tolerance) << i;
}

TEST(SpecificationVectors, NvFp4Blocks) {
  for (const Json& vector : Vectors("nvfp4_blocks")) {
    const auto values = vector.at("x").get<std::vector<float>>();
    const QuantizedMatrix matrix = QuantizeNvFp4(values, 1, 16, vector.at("tensor_scale").get<float>());
    EXPECT_EQ(matrix.scale, std::vector<uint8_t>{vector.at("scale_byte").get<uint8_t>()});
    const auto hex = vector.at("packed_hex").get<std::string>();
    for (size_t i = 0; i < matrix.data.size(); ++i) {
      EXPECT_EQ(matrix.data[i], std::stoi(hex.substr(2 * i, 2), nullptr, 16)) << "byte " << i;
    }
    if (vector.at("dequantised").is_null()) continue;
    std::vector<float> row(16);
    DequantizeRow(matrix.View(), 0, row.data());
    const auto want = vector.at("dequantised").get<std::vector<float>>();
    // 448 times the rounded 1.5/2688 is 0.25 to the last bit of fp32 only.
    for (size_t i = 0; i < row.size(); ++i) EXPECT_FLOAT_EQ(row[i], want[i]) << "element " << i;
  }
}

TEST(SpecificationVectors, E2m1Ties) {
  for (const Json& tie : Vectors("e2m1_ties")) {
    EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(tie[0].get<float>())), tie[1].get<float>()) << tie;
  }
}

TEST(SpecificationVectors, E2m1ToE4m3Bytes) {
  const Json bytes = Vectors("e2m1_to_e4m3_bytes");
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(E4m3FromFloat(FloatFromE2m1(code)), bytes[code].get<uint8_t>()) << int{code};
  }
}

TEST(SpecificationVectors, MxFp4ScalesAsNvFp4) {
  const Json vector = Vectors("mxfp4_to_nvfp4");
  for (size_t i = 0; i < 2; ++i) {
    const float mxfp4 = FloatFromE8m0(vector.at("e8m0")[i].get<uint8_t>());
    const float block = FloatFromE4m3(vector.at("block_scale_bytes")[i].get<uint8_t>());
    EXPECT_EQ(block * vector.at("tensor_scale").get<float>(), mxfp4);
  }
}

}  // namespace
}  // namespace dsv4::testing

// The reference ops on cases small enough to check by hand, and on the vectors of the specification. The
// general cases are in tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4::backend {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

// f32 by default: `plain` numerics, where the hand calculation needs no rounding.
TensorView View(std::vector<float>& values, Shape shape) {
  return TensorView::Contiguous(static_cast<void*>(values.data()), DType::kF32, shape);
}
TensorView View(std::vector<int32_t>& values, Shape shape) {
  return TensorView::Contiguous(static_cast<void*>(values.data()), DType::kI32, shape);
}
TensorView View(std::vector<uint16_t>& values, Shape shape) {
  return TensorView::Contiguous(static_cast<void*>(values.data()), DType::kBF16, shape);
}

std::vector<uint16_t> Bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(Bf16FromFloat(value));
  return bits;
}

class ReferenceTest : public ::testing::Test {
 protected:
  template <typename Args>
  void Run(ops::OpFunction<Args> op, const Args& args) {
    const Status status = op(*backend_.context, args);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  const ops::OpTable& table() const { return backend_.table; }

  ops::Backend backend_ = MakeReferenceBackend(2);
};

TEST_F(ReferenceTest, HasEveryOp) {
  EXPECT_THAT(ops::MissingOps(table()), ElementsAre());
  EXPECT_EQ(backend_.name, "reference");
}

TEST_F(ReferenceTest, EveryOpValidatesFirst) {
  ops::OpContext& context = *backend_.context;
  for (const Status& status : {table().prepare_weight(context, {}), table().rms_norm(context, {}),
                               table().head_rms_norm(context, {}),  table().linear(context, {}),
                               table().grouped_linear(context, {}), table().embed(context, {}),
                               table().rope(context, {}),           table().simulate_fp8(context, {}),
                               table().hadamard_fp4(context, {}),   table().hc_pre(context, {}),
                               table().hc_post(context, {}),        table().hc_head(context, {}),
                               table().store_rows(context, {}),     table().compressor_pool(context, {}),
                               table().indexer_select(context, {}), table().attention(context, {}),
                               table().router(context, {}),         table().swiglu(context, {}),
                               table().routed_experts(context, {}), table().moe_combine(context, {}),
                               table().sample(context, {})}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::StartsWith("op "));
  }
}

TEST_F(ReferenceTest, RmsNorm) {
  // Rows (3, 4) and (0, 0): mean square 12.5; eps 12.5 makes the root 5.
  std::vector<float> x = {3, 4, 0, 0};
  std::vector<float> weight = {2, 10};
  std::vector<float> y(4);
  Run(table().rms_norm, {View(x, {2, 2}), View(weight, {2}), View(y, {2, 2}), 12.5F});
  EXPECT_THAT(y, Pointwise(FloatNear(1e-6F), {1.2F, 8.0F, 0.0F, 0.0F}));
}

TEST_F(ReferenceTest, RmsNormRoundsOnceAfterTheWeight) {
  // Values for which rounding the quotient before the product with the weight would show.
  std::vector<uint16_t> x = Bf16({1.0F, 1.0078125F});
  std::vector<float> weight = {1.0F, 3.0F};
  std::vector<uint16_t> y(2);
  Run(table().rms_norm, {View(x, {1, 2}), View(weight, {2}), View(y, {1, 2}), 1e-6F});
  const double root = std::sqrt((1.0 + 1.0078125 * 1.0078125) / 2 + 1e-6);
  EXPECT_EQ(FloatFromBf16(y[1]), RoundToBf16(static_cast<float>(1.0078125 / root * 3.0)));
  EXPECT_NE(FloatFromBf16(y[1]), RoundToBf16(3.0F * RoundToBf16(static_cast<float>(1.0078125 / root))));
}

TEST_F(ReferenceTest, HeadRmsNorm) {
  std::vector<float> x = {3, 4, 6, 8};
  std::vector<float> y(4);
  Run(table().head_rms_norm, {View(x, {1, 2, 2}), View(y, {1, 2, 2}), 1e-6F});
  const float factor = 1.0F / std::sqrt(12.5F);
  EXPECT_THAT(y, Pointwise(FloatNear(1e-5F), {3 * factor, 4 * factor, 3 * factor, 4 * factor}));
}

TEST_F(ReferenceTest, LinearInEveryFormat) {
  // W = [[1, 6], [-1.5, 0]] padded with zeros (exact in every format); x = (3, 1, 0, ...) -> (9, -4.5).
  std::vector<float> w(2 * 32, 0.0F);
  w[0] = 1;
  w[1] = 6;
  w[32] = -1.5F;
  std::vector<float> x(32, 0.0F);
  x[0] = 3;
  x[1] = 1;
  const QuantizedMatrix nvfp4 = QuantizeNvFp4(w, 2, 32, 1.0F);
  const QuantizedMatrix mxfp4 = QuantizeMxFp4(w, 2, 32);
  const QuantizedMatrix fp8 = QuantizeFp8Block(w, 2, 32, 128, 128);
  Weight plain;
  plain.rows = 2;
  plain.cols = 32;
  plain.data = View(w, {2, 32});
  for (Weight weight : {plain, nvfp4.View(), mxfp4.View(), fp8.View()}) {
    for (const ActivationQuant quant : {ActivationQuant::kNone, ActivationQuant::kFp8Block}) {
      weight.activation = quant;
      std::vector<float> y(2);
      Run(table().linear, {View(x, {1, 32}), &weight, View(y, {1, 2})});
      EXPECT_THAT(y, ElementsAre(9.0F, -4.5F)) << WeightFormatName(weight.format);
    }
  }
}

TEST_F(ReferenceTest, LinearRoundsActivationsToFp8) {
  // Group maximum 448: scale 1. 17 lies between 16 and 18: a tie to the even 16; 19 to 20.
  std::vector<float> x = {448, 17, 19, 0.001F};
  std::vector<float> w = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  Weight weight;
  weight.rows = 3;
  weight.cols = 4;
  weight.data = View(w, {3, 4});
  weight.activation = ActivationQuant::kFp8Block;
  std::vector<float> y(3);
  Run(table().linear, {View(x, {1, 4}), &weight, View(y, {1, 3})});
  EXPECT_THAT(
      y, ElementsAre(16.0F, 20.0F, 0x1p-9F * 1.0F));  // 0.001 is half a subnormal step: 2^-9 * round(0.512).
}

TEST_F(ReferenceTest, GroupedLinear) {
  // Two groups of width 2 and rank 1: y_0 = x_0 + x_1, y_1 = x_2 - x_3.
  std::vector<float> x = {1, 2, 3, 4};
  std::vector<float> w = {1, 1, 1, -1};
  Weight weight;
  weight.rows = 2;
  weight.cols = 2;
  weight.data = View(w, {2, 2});
  std::vector<float> y(2);
  Run(table().grouped_linear, {View(x, {1, 2, 2}), &weight, View(y, {1, 2, 1})});
  EXPECT_THAT(y, ElementsAre(3.0F, -1.0F));
}

TEST_F(ReferenceTest, RopeTurnsInterleavedPairsOfTheTail) {
  // An angle of pi / 2 up to fp32: (x, y) -> (-y, x).
  std::vector<float> x = {9, 9, 1, 2, 3, 4};
  std::vector<int32_t> positions = {1};
  std::vector<float> frequencies = {1.5707963F, 0.0F};
  Run(table().rope, {View(x, {1, 1, 6}), View(positions, {1}), View(frequencies, {2}), false});
  EXPECT_THAT(x, Pointwise(FloatNear(1e-6F), {9, 9, -2, 1, 3, 4}));
  Run(table().rope, {View(x, {1, 1, 6}), View(positions, {1}), View(frequencies, {2}), true});
  EXPECT_THAT(x, Pointwise(FloatNear(1e-6F), {9, 9, 1, 2, 3, 4}));
}

TEST_F(ReferenceTest, RopeAtPositionOneMillion) {
  // cos and sin of exactly 1e6 rad and of the fp32 product 1e6 * fl32(0.1), to 10 digits (computed with 50
  // digits).
  std::vector<float> x = {1, 0, 1, 0};
  std::vector<int32_t> positions = {1000000};
  std::vector<float> frequencies = {1.0F, 0.1F};
  Run(table().rope, {View(x, {1, 1, 4}), View(positions, {1}), View(frequencies, {2}), false});
  EXPECT_THAT(x, Pointwise(FloatNear(1e-7F), {0.9367521275F, -0.3499935022F, -0.9993608075F, 0.0357487980F}));
}

TEST_F(ReferenceTest, SimulateFp8) {
  std::vector<float> x = {448, 17, 1, 17.3F};
  Run(table().simulate_fp8, {View(x, {1, 4}), 2, 2});
  EXPECT_THAT(x, ElementsAre(448, 16, 1, 17.3F));
}

TEST_F(ReferenceTest, HadamardFp4) {
  // The first basis vector of 64: every element becomes 64^-0.5 = 1/8, which is on the grid.
  std::vector<float> x(64, 0.0F);
  x[0] = 1;
  Run(table().hadamard_fp4, {View(x, {1, 64})});
  EXPECT_THAT(x, ::testing::Each(0.125F));
  // The second: natural order alternates the sign.
  std::fill(x.begin(), x.end(), 0.0F);
  x[1] = 1;
  Run(table().hadamard_fp4, {View(x, {1, 64})});
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(x[i], i % 2 == 0 ? 0.125F : -0.125F);
}

TEST_F(ReferenceTest, Scale) {
  std::vector<uint16_t> x = Bf16({1.0F, -2.0F});
  Run(table().scale, {View(x, {2}), View(x, {2}), 0.3F});
  EXPECT_EQ(x, Bf16({0.3F, -0.6F}));
}

// model.md 4.4. With one stream value x = (1, 0, ...) the norm's factor is known, so fn can be chosen to give
// the vector's m exactly.
class HyperConnectionVector : public ReferenceTest {
 protected:
  static constexpr std::array<float, 4> kPre = {.268942F, .562178F, .531210F, .622460F};

  HyperConnectionVector() {
    // Mean square 1/4 over 4 values: factor 1 / sqrt(0.25 + 1e-6).
    const float factor = 1.0F / std::sqrt(0.25F + 1e-6F);
    for (int k = 0; k < 24; ++k) {
      const float m = static_cast<float>((7 * k) % 11 - 5) / 4.0F;
      fn_.insert(fn_.end(), {m / factor, 0.0F, 0.0F, 0.0F});
      base_.push_back(static_cast<float>((3 * k) % 7 - 3) / 8.0F);
    }
  }

  std::vector<float> streams_ = {1, 0, 0, 0};  // 4 streams of 1.
  std::vector<float> fn_;
  std::vector<float> base_;
  std::vector<float> scale_ = {0.5F, 1.5F, 2.0F};
};

TEST_F(HyperConnectionVector, Pre) {
  std::vector<float> u(1);
  std::vector<float> post(4);
  std::vector<float> comb(16);
  Run(table().hc_pre, {View(streams_, {1, 4, 1}), View(fn_, {24, 4}), View(scale_, {3}), View(base_, {24}),
                       View(u, {1, 1}), View(post, {1, 4}), View(comb, {1, 4, 4}), 1e-6F, 1e-6F, 20});
  EXPECT_NEAR(u[0], kPre[0], 1e-6);
  EXPECT_THAT(post, Pointwise(FloatNear(1e-6F), {1.302710F, .403626F, 1.670967F, .814667F}));
  EXPECT_THAT(comb, Pointwise(FloatNear(1e-6F), {.104914F, .581231F, .196866F, .116988F, .249115F, .005641F,
                                                 .467465F, .277779F, .176965F, .408701F, .332071F, .082262F,
                                                 .469005F, .004427F, .003597F, .522970F}));
}

TEST_F(HyperConnectionVector, PreWeighsEveryStream) {
  // The value sits in another stream: fn's matching column must move with it.
  for (size_t i = 1; i < 4; ++i) {
    std::vector<float> streams(4, 0.0F);
    streams[i] = 1.0F;
    std::vector<float> fn(fn_.size(), 0.0F);
    for (size_t k = 0; k < 24; ++k) fn[4 * k + i] = fn_[4 * k];
    std::vector<float> u(1);
    std::vector<float> post(4);
    std::vector<float> comb(16);
    Run(table().hc_pre, {View(streams, {1, 4, 1}), View(fn, {24, 4}), View(scale_, {3}), View(base_, {24}),
                         View(u, {1, 1}), View(post, {1, 4}), View(comb, {1, 4, 4}), 1e-6F, 1e-6F, 20});
    EXPECT_NEAR(u[0], kPre[i], 1e-6);
  }
}

TEST_F(HyperConnectionVector, Head) {
  // The same m and base with one scale: pre = sigmoid(m * 0.5 + base) + eps is the vector's pre.
  std::vector<float> scale = {0.5F};
  std::vector<float> y(1);
  Run(table().hc_head, {View(streams_, {1, 4, 1}), View(fn_, {24, 4}).Rows(0, 4), View(scale, {1}),
                        View(base_, {24}).Rows(0, 4), View(y, {1, 1}), 1e-6F, 1e-6F});
  EXPECT_NEAR(y[0], kPre[0], 1e-6);
}

TEST_F(ReferenceTest, HcPost) {
  // Two streams of one value: out_j = post_j y + sum_i comb[i][j] residual_i.
  std::vector<float> y = {10};
  std::vector<float> residual = {1, 2};
  std::vector<float> post = {0.5F, 2};
  std::vector<float> comb = {1, 3, 5, 7};
  std::vector<float> out(2);
  Run(table().hc_post, {View(y, {1, 1}), View(residual, {1, 2, 1}), View(post, {1, 2}), View(comb, {1, 2, 2}),
                        View(out, {1, 2, 1})});
  EXPECT_THAT(out, ElementsAre(5 + 1 + 10, 20 + 3 + 14));
}

TEST_F(ReferenceTest, CompressorPoolWithOverlap) {
  // Ratio 2, width 1: columns are (previous, current). Equal scores: plain means.
  std::vector<float> values = {1, 10, 2, 20, 3, 30, 4, 40};
  std::vector<float> scores(8, 0.0F);
  std::vector<float> ape(4, 0.0F);
  std::vector<float> pooled(2);
  std::vector<float> value_ring(6);
  std::vector<float> score_ring(6);
  const std::vector<ops::CompressorSequence> sequences = {
      {0, 4, 0, {value_ring.data(), 3, 2, DType::kF32}, {score_ring.data(), 3, 2, DType::kF32}}};
  Run(table().compressor_pool, {View(values, {4, 2}), View(scores, {4, 2}), View(ape, {2, 2}),
                                View(pooled, {2, 1}), 2, true, sequences});
  EXPECT_THAT(pooled, ElementsAre((10 + 20) / 2.0F, (1 + 2 + 30 + 40) / 4.0F));
  EXPECT_THAT(value_ring, ElementsAre(4, 40, 2, 20, 3, 30));  // Position 3 in slot 0.
}

TEST_F(ReferenceTest, IndexerSelect) {
  // Scores of entries 0..3: relu(q . k) * w = 0, 2, 2, 3: the best two of four are 3 and, of the equal ones,
  // 1.
  std::vector<uint16_t> q = Bf16({1, 0});
  std::vector<uint16_t> weights = Bf16({1});
  std::vector<uint16_t> keys = Bf16({-9, 1, 2, 5, 2, -7, 3, 0});
  std::vector<int32_t> selected(2);
  void* const pages[] = {keys.data()};
  const std::vector<ops::IndexerSequence> sequences = {{0, 1, 15, {pages, 4, 4, 2, DType::kBF16}}};
  Run(table().indexer_select,
      {View(q, {1, 1, 2}), View(weights, {1, 1}), View(selected, {1, 2}), 4, sequences});
  EXPECT_THAT(selected, ElementsAre(1, 3));
}

TEST_F(ReferenceTest, AttentionWithSink) {
  // Equal logits of 0 over two keys and a sink of ln 2: weights 1 / (1 + 1 + 2).
  std::vector<float> q = {0, 0};
  std::vector<float> sink = {std::log(2.0F)};
  std::vector<float> keys = {4, 8, 12, 16};
  std::vector<float> o(2);
  const std::vector<ops::AttentionSequence> sequences = {{0, 1, 1, {keys.data(), 2, 2, DType::kF32}, {}}};
  Run(table().attention,
      {View(q, {1, 1, 2}), View(sink, {1}), {}, View(o, {1, 1, 2}), 1.0F, 128, 0, sequences});
  EXPECT_THAT(o, Pointwise(FloatNear(1e-6F), {4.0F, 6.0F}));
}

TEST_F(ReferenceTest, Router) {
  // sqrt(softplus(x)) = 1, 2, 3 for softplus = 1, 4, 9: x = ln(e^s - 1).
  const auto logit = [](double root) { return static_cast<float>(std::log(std::expm1(root * root))); };
  std::vector<float> logits = {logit(2), logit(1), logit(3)};
  std::vector<float> bias = {0, 10, 0};
  std::vector<int32_t> indices(2);
  std::vector<float> weights(2);
  Run(table().router,
      {View(logits, {1, 3}), View(bias, {3}), {}, {}, View(indices, {1, 2}), View(weights, {1, 2}), 1.5F});
  EXPECT_THAT(indices, ElementsAre(1, 2));
  EXPECT_THAT(weights, Pointwise(FloatNear(1e-6F), {1.5F * 1 / 4, 1.5F * 3 / 4}));
}

TEST_F(ReferenceTest, Swiglu) {
  const float sigmoid = 1.0F / (1.0F + std::exp(-1.0F));
  std::vector<float> gate = {5, 1, -5};
  std::vector<float> up = {0.5F, -7, 1};
  std::vector<float> weight = {2};
  std::vector<float> y(3);
  Run(table().swiglu, {View(gate, {1, 3}), View(up, {1, 3}), View(weight, {1}), View(y, {1, 3}), 1.0F});
  // The gate is clamped from above only.
  EXPECT_THAT(
      y, Pointwise(FloatNear(1e-6F), {2 * sigmoid * 0.5F, 2 * sigmoid * -1, 2 * -5 / (1 + std::exp(5.0F))}));
}

TEST_F(ReferenceTest, RoutedExpertsAndCombine) {
  // Experts of one unit each: w1 = 1, w3 = e + 1, w2 = 10: y = 10 g silu(x) (e + 1) x, padded to 32 columns.
  std::vector<QuantizedMatrix> matrices;
  std::vector<ops::ExpertWeights> experts;
  const auto single = [&](float value) {
    std::vector<float> values(32 * 32, 0.0F);
    values[0] = value;
    matrices.push_back(QuantizeMxFp4(values, 32, 32));
    return matrices.back().View();
  };
  matrices.reserve(6);
  for (int e = 0; e < 2; ++e) {
    const Weight w1 = single(1);
    const Weight w2 = single(6);
    const Weight w3 = single(static_cast<float>(e + 1));
    experts.push_back({w1, w2, w3});
  }
  std::vector<float> x(32, 0.0F);
  x[0] = 2;
  std::vector<int32_t> indices = {1, 0};
  std::vector<float> weights = {0.25F, 0.5F};
  std::vector<float> y(32);
  Run(table().routed_experts,
      {View(x, {1, 32}), View(indices, {1, 2}), View(weights, {1, 2}), experts, 100.0F, View(y, {1, 32})});
  const float silu = 2.0F / (1.0F + std::exp(-2.0F));
  EXPECT_NEAR(y[0], 6 * silu * 2 * (0.25F * 2 + 0.5F * 1), 1e-5);
  EXPECT_EQ(y[1], 0.0F);

  std::vector<uint16_t> shared = Bf16(std::vector<float>(32, 1.0F));
  Run(table().moe_combine, {View(y, {1, 32}), View(shared, {1, 32}), View(shared, {1, 32})});
  EXPECT_EQ(FloatFromBf16(shared[0]), RoundToBf16(y[0] + 1.0F));
  EXPECT_EQ(FloatFromBf16(shared[1]), 1.0F);
}

TEST_F(ReferenceTest, EmbedAndStoreRows) {
  std::vector<uint16_t> embedding = Bf16({1, 2, 3, 4});
  std::vector<int32_t> ids = {1};
  std::vector<uint16_t> streams(4);
  Run(table().embed, {View(ids, {1}), View(embedding, {2, 2}), View(streams, {1, 2, 2})});
  EXPECT_EQ(streams, Bf16({3, 4, 3, 4}));
  std::vector<uint16_t> cache(4, 7);
  const std::vector<ops::RowRun> runs = {{1, 1, cache.data() + 2}};
  Run(table().store_rows, {View(embedding, {2, 2}), runs});
  EXPECT_THAT(cache, ElementsAre(7, 7, embedding[2], embedding[3]));
}

}  // namespace
}  // namespace dsv4::backend

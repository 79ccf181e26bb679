// Goldens of the release's formats with products in FP8 of any number of tokens: bounds of their own, the
// same bits in any cut.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>

#include "tests/golden/model_runs.h"

namespace dsv4::testing {
namespace {

// Each product in FP8 carries the 1e-4 of its roundings on, so models of three layers have wider bounds than
// those of one and two. Seen on an H100, in FP8 and in fp32: fp8_mxfp4 a median of 0.99984 and 0.99995, a 5th
// percentile of 0.99964 and 0.99985. For dspark they are 0.99987 and 0.99999, 0.99966 and 0.99993. Elsewhere
// the bounds of README.md hold.
constexpr CosineBound kThreeLayersBound = {.min = -1, .median = 0.9998, .p5 = 0.9995};

CosineBound BoundOf(const std::string& golden) {
  return golden == "fp8_mxfp4" || golden == "dspark" ? kThreeLayersBound : ReleaseBound();
}

Comparison Compare(const std::vector<float>& got, const std::string& golden, int64_t vocab_size) {
  return CheckCosines(RowCosines(got, GoldenLogits(golden, "logits.release.npy"), vocab_size),
                      BoundOf(golden));
}

class Fp8Goldens : public ::testing::TestWithParam<std::string> {};

TEST_P(Fp8Goldens, ReleasePrefillAndDecode) {
  const std::string& golden = GetParam();
  const std::unique_ptr<model::Model> model =
      LoadGolden(golden, model::Numerics::kRelease, {}, "cuda, products in FP8");
  const std::vector<int32_t> tokens = GoldenTokens(golden);
  const std::vector<float> prefill = RunPieces(*model, tokens, {1000});
  const Comparison comparison = Compare(prefill, golden, model->config().vocab_size);
  EXPECT_TRUE(comparison.passed) << golden << ": " << comparison.message;
  std::cout << "  " << golden << ": " << comparison.message << "\n";
  for (const int64_t piece : {128, 37, 7, 1}) {
    const std::vector<float> pieces = RunPieces(*model, tokens, {piece});
    ASSERT_EQ(pieces.size(), prefill.size());
    EXPECT_EQ(std::memcmp(pieces.data(), prefill.data(), prefill.size() * sizeof(float)), 0)
        << golden << " in pieces of " << piece;
  }
}

// Differences that the wider bounds still tell: logits without the release's rounding points.
TEST(Fp8GoldenBounds, TellRoundingPointsLeftOut) {
  const std::string golden = "fp8_mxfp4";
  const int64_t vocab_size = LoadParts(golden, model::Numerics::kRelease).config.vocab_size;
  EXPECT_FALSE(Compare(GoldenLogits(golden, "logits.plain.npy"), golden, vocab_size).passed);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Fp8Goldens, ::testing::ValuesIn(ReleaseGoldens()),
                         [](const auto& golden) { return golden.param; });

}  // namespace
}  // namespace dsv4::testing

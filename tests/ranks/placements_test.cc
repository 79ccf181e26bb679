// Every placement of every golden model, and of the small model of the repository, against one rank: bit for bit where no sum is
// cut, within the goldens' own bounds where one is.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

constexpr const char* kTiny = "models/tiny";  // Tests run in the source root.

// Some of a prompt in uneven chunks, then tokens one by one.
std::vector<float> Logits(const RanksRun& run, const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  RunModel(run, [&](model::Model& model) { logits = RunPieces(model, tokens, {7, 13, 3, 1, 1, 24, 1}); });
  return logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
         });
}

struct Case {
  int num_ranks;
  const char* placement;
};

std::vector<int32_t> Tokens(const std::string& directory, int64_t count) {
  const auto config = model::LoadModelConfig(directory);
  EXPECT_TRUE(config.has_value()) << directory;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>((i * 7919 + 3) % config->vocab_size));
  return tokens;
}

class Goldens : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Goldens, ::testing::ValuesIn(GoldenModels()),
                         [](const auto& golden) { return golden.param; });

TEST_P(Goldens, SameBitsWithoutCutSums) {
  const std::string directory = ModelDirectory(GetParam()).string();
  const std::vector<int32_t> tokens = Tokens(directory, 60);
  RanksRun run{.directory = directory, .options = {}};
  const auto config = model::LoadModelConfig(directory);
  ASSERT_TRUE(config.has_value());
  // Release numerics where the shape allows them.
  if (config->nope_head_dim() % 64 != 0 || config->index_head_dim % 32 != 0)
    run.options.numerics = model::Numerics::kPlain;
  const std::vector<float> alone = Logits(run, tokens);
  for (const auto& [num_ranks, placement] :
       {Case{2, "expert"}, Case{3, "expert"}, Case{4, "expert"}, Case{2, "pipeline"}}) {
    if (std::string(placement) == "pipeline" && config->num_hidden_layers < num_ranks) continue;
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_TRUE(SameBits(Logits(run, tokens), alone)) << num_ranks << " ranks, " << placement;
  }
}

TEST_P(Goldens, NearlySameWithCutSums) {
  const std::string directory = ModelDirectory(GetParam()).string();
  const std::vector<int32_t> tokens = Tokens(directory, 40);
  // Plain numerics: no rounding that would make much of little differences.
  RanksRun run{.directory = directory, .options = {.numerics = model::Numerics::kPlain}};
  const std::vector<float> alone = Logits(run, tokens);
  float largest = 0;
  for (const float logit : alone) largest = std::max(largest, std::abs(logit));
  for (const int num_ranks : {2, 3}) {
    run.num_ranks = num_ranks;
    run.placement = "tensor";
    const std::vector<float> logits = Logits(run, tokens);
    ASSERT_EQ(logits.size(), alone.size());
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - alone[i]));
    EXPECT_LT(worst, 1e-4F * largest) << num_ranks << " ranks";
  }
}

TEST(Tiny, SameBitsOnTheCpuBackend) {
  const std::vector<int32_t> tokens = Tokens(kTiny, 150);
  RanksRun run{.directory = kTiny, .options = {}, .backend = GoldenBackends().back()};
  const std::vector<float> alone = Logits(run, tokens);
  for (const auto& [num_ranks, placement] :
       {Case{2, "expert"}, Case{3, "expert"}, Case{4, "expert"}, Case{2, "pipeline"}, Case{3, "pipeline"},
        Case{4, "pipeline"}, Case{4, "pipeline=2,expert"}}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    EXPECT_TRUE(SameBits(Logits(run, tokens), alone)) << num_ranks << " ranks, " << placement;
  }
}

// Its output groups begin inside scale blocks, so that shards have smaller blocks than one rank.
TEST(SmallerScaleBlocks, SameBitsOnTheCpuBackend) {
  RanksRun run{
      .directory = ModelDirectory("fp8_mxfp4").string(), .options = {}, .backend = GoldenBackends().back()};
  const std::vector<int32_t> tokens = Tokens(run.directory, 60);
  const std::vector<float> alone = Logits(run, tokens);
  run.num_ranks = 2;
  run.placement = "expert";
  EXPECT_TRUE(SameBits(Logits(run, tokens), alone));
}

}  // namespace
}  // namespace dsv4::testing

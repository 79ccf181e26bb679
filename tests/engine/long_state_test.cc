// A sequence of a million tokens: filled, saved, restored and continued with the same bits, whichever way its
// rows are kept.
#include "tests/engine/long_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kv/random_rows.h"
#include "model/arch/architecture.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4 {
namespace {

constexpr int64_t kLength = 1'048'000;  // Length, of 1,048,576 positions.

std::unique_ptr<model::Model> MakeModel(model::CacheRows rows) {
  const testing::LongStateModel of = testing::MakeLongStateModel();
  const model::SyntheticOptions synthetic{.shape = of.shape,
                                          .num_layers = of.num_layers,
                                          .vocab_size = {},
                                          .format = model::SyntheticFormat::kRelease};
  auto config = model::ParseModelConfig(*model::SyntheticConfig(synthetic), of.shape);
  EXPECT_TRUE(config.has_value()) << config.error().ToString();
  auto checkpoint = model::MakeSyntheticCheckpoint(of.shape, synthetic, 2);
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().ToString();
  model::ModelOptions options;
  options.cache_rows = rows;
  auto model = model::Model::FromCheckpoint(*config, *checkpoint, of.backend, options);
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

// Logits of the tokens that follow, one chunk, then one token.
std::vector<float> Continue(model::Model& model, kv::SequenceState& state) {
  std::vector<float> logits;
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{5, 17, 300, 2, 9}, std::vector<int32_t>{44}}) {
    const model::SequenceChunk chunk{.state = &state, .tokens = tokens, .logits = model::LogitsRows::kAll};
    const auto output = model.Step(std::span(&chunk, 1));
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    logits.insert(logits.end(), output->logits.begin(), output->logits.end());
  }
  return logits;
}

void ExpectBitEqual(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << what;
}

TEST(LongState, AMillionTokensSavedRestoredAndContinued) {
  std::vector<float> want;
  size_t file_bytes[2] = {};
  for (const model::CacheRows rows : {model::CacheRows::kWide, model::CacheRows::kPacked}) {
    const std::unique_ptr<model::Model> model = MakeModel(rows);
    auto state = model->NewSequence();
    ASSERT_TRUE(state.has_value()) << state.error().ToString();
    const Status filled = kv::FillWithRandomRows(*state, kLength, 7);
    ASSERT_TRUE(filled.ok()) << filled.ToString();
    const auto saved = state->Snapshot()->Serialize(model->recipe(), 16);
    ASSERT_TRUE(saved.has_value()) << saved.error().ToString();
    file_bytes[rows == model::CacheRows::kPacked ? 1 : 0] = saved->size();
    auto read = model->DeserializeSnapshot(*saved, model->recipe());
    ASSERT_TRUE(read.has_value()) << read.error().ToString();
    kv::SequenceState restored = read->Continue();
    ASSERT_EQ(restored.length(), kLength);
    const std::vector<float> straight = Continue(*model, *state);
    ExpectBitEqual(Continue(*model, restored), straight, "restored");
    if (want.empty()) want = straight;
    ExpectBitEqual(straight, want, "packed against wide");
    // Taken back and continued.
    ASSERT_TRUE(restored.Rewind(6).ok());
    ExpectBitEqual(Continue(*model, restored), straight, "rewound");
  }
  EXPECT_LT(static_cast<double>(file_bytes[1]), 0.8 * static_cast<double>(file_bytes[0]))
      << file_bytes[1] << " bytes packed, " << file_bytes[0] << " wide";
}

}  // namespace
}  // namespace dsv4
